"""One model on several processes, which mpirun starts: their answers, and how they end.

usage: mpi_test.py BINARY MODEL MPIRUN BUNDLED_MODEL [unittest arguments]
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import serve_client
from serve_client import BINARY, Server, wait_for

MPIRUN, BUNDLED = sys.argv[3], pathlib.Path(sys.argv[4])
# More processes than cores, by whoever runs the tests.
ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_rmaps_base_oversubscribe": "1"}
LONG = 120_000  # tokens: more than come while a test looks on
END_S = 10  # by when all processes of a group that has lost one have ended
# Rank 0's exit code goes to the file $CODE: mpirun's own is that of the rank that ended first. Of the signals
# that mpirun sends when a rank is lost, the shell is to outlive the first.
KEEP_CODE = ('trap "" TERM; "$0" "$@"; code=$?; '
             'test "$OMPI_COMM_WORLD_RANK" != 0 || echo $code > "$CODE"; exit $code')


def mpirun(size, *args, **kwargs):
    """`quire ARGS` as so many processes, or with several lists of arguments one process for each."""
    lists = args if isinstance(args[0], list) else [list(args)]
    count = size // len(lists)
    command = [MPIRUN]
    for i, each in enumerate(lists):
        command += ([":"] if i else []) + ["-n", count, BINARY, *each]
    return subprocess.run([str(part) for part in command], env=serve_client.environment(),
                          stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=serve_client.WAIT_S, check=False, **kwargs)


def processes_of(launcher):
    """The processes of `quire` that an mpirun has started, by rank."""
    found = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "exe").resolve() != BINARY:
                continue
            variables = dict(part.split("=", 1) for part in
                             (folder / "environ").read_text().split("\0") if "=" in part)
            parents = []
            at = folder
            while at.name != "1" and len(parents) < 5:
                at = at.parent / (at / "stat").read_text().rsplit(")", 1)[1].split()[1]
                parents.append(int(at.name))
            if launcher in parents:
                found[int(variables["OMPI_COMM_WORLD_RANK"])] = int(folder.name)
        except (OSError, KeyError, ValueError):
            continue  # it ended meanwhile, or is another's
    return found


class MpiTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="quire_mpi_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def answers(self, size, ranks="--tp-size", *more):
        """What `quire eval` was answered to 20 questions."""
        result = self.folder / f"{size}.json"
        args = ["eval", BUNDLED, "--data", next((BUNDLED / "eval").glob("*.jsonl")), "--num-questions", 20,
                "--max-tokens", 40, "--concurrency", 20, ranks, size, "--threads", size, "--json", result, *more]
        if size == 1:
            done = subprocess.run([str(part) for part in [BINARY, *args]], capture_output=True, text=True,
                                  timeout=serve_client.WAIT_S, check=False)
        else:
            done = mpirun(size, *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("right"), 1, done.stdout)  # one of them prints
        return [(answer["text"], answer.get("tokens")) for answer in json.loads(result.read_text())["answers"]]

    def test_twenty_answers_are_those_of_one_process(self):
        alone = self.answers(1)
        self.assertEqual(len(alone), 20)
        for size in (2, 4):
            self.assertEqual(self.answers(size), alone, f"{size} processes")
            self.assertEqual(self.answers(size, "--dp-size"), alone, f"{size} groups")
        for drafts in (["eagle"], ["ngram"], ["eagle", "--speculative-num-steps", 3, "--speculative-eagle-topk", 2,
                                              "--speculative-num-draft-tokens", 6],
                       ["eagle", "--speculative-num-steps", "auto"]):
            said = self.answers(2, "--dp-size", "--speculative-algorithm", *drafts)
            self.assertEqual(said, alone, f"groups that speculate: {drafts}")

    def test_scores_are_those_of_one_process_and_one_of_them_prints(self):
        args = ["score", BUNDLED, "--tokens", "1,2,3,4,5,6,7,8,9", "--top", 3, "--json", "--threads", 1]
        alone = subprocess.run([str(part) for part in [BINARY, *args]], capture_output=True, check=True, text=True)
        done = mpirun(2, *args, "--tp-size", 2)
        self.assertEqual((done.returncode, done.stdout), (0, alone.stdout), done.stderr)
        self.assertEqual(done.stderr.count("ready"), alone.stderr.count("ready"))

    def test_a_number_of_processes_that_is_not_that_of_ranks_is_refused_once(self):
        for size, flag, ranks in ((2, "--tp-size", 4), (2, "--tp-size", 1), (2, "--dp-size", 4)):
            done = mpirun(size, "score", BUNDLED, "--tokens", "1,2", flag, ranks)
            self.assertEqual(done.returncode, 2, done.stderr)
            message = (f"quire: error: {flag}: expected {size}, as many ranks as processes were started, "
                       f"got {ranks}")
            self.assertEqual(done.stderr.count(message), 1, done.stderr)
            self.assertEqual(done.stderr.count("quire: "), 1, done.stderr)

    def test_a_rank_without_a_gpu_of_its_own_ends_all_by_its_name(self):
        size = 16  # more than a machine has
        done = mpirun(size, "score", BUNDLED, "--tokens", "1,2", "--tp-size", size, "--device", "cuda")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, rf"quire: error: rank \d+ of {size}: --device cuda: ")

    def test_without_the_module_what_is_missing_is_said(self):
        copy = self.folder / "quire"
        shutil.copy(BINARY, copy)
        args = ["score", BUNDLED, "--tokens", "1,2"]
        alone = subprocess.run([str(copy), *map(str, args), "--tp-size", "2"], capture_output=True, text=True,
                               check=False)
        self.assertEqual(alone.returncode, 0, alone.stderr)  # ranks of one process
        done = subprocess.run([MPIRUN, "-n", "2", str(copy), *map(str, args), "--tp-size", "2"],
                              capture_output=True, text=True, timeout=serve_client.WAIT_S, check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("quire: error: MPI: this Quire was built without MPI", done.stderr)

    def test_a_truncated_file_of_one_rank_ends_all_with_its_message(self):
        broken = self.folder / "broken"
        shutil.copytree(BUNDLED, broken)
        file = sorted(broken.glob("*.safetensors"))[-1]
        os.truncate(file, file.stat().st_size // 2)
        for ranks in ("--tp-size", "--dp-size"):
            args = ["generate", "--prompt-file", "/dev/null", ranks, 2, "--threads", 1, "--model"]
            begin = time.monotonic()
            done = mpirun(2, [*args, BUNDLED], [*args, broken])
            self.assertLess(time.monotonic() - begin, END_S + 5)
            self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
            self.assertIn("quire: rank 1: error: ", done.stderr)
            self.assertRegex(done.stderr, rf"quire: error: rank 1 of 2: .*{file.name}")

    # ---- A server ----

    def start(self, size, ranks="--tp-size", *more):
        model = serve_client.long_model(tempfile.mkdtemp(dir=self.folder))
        self.code = self.folder / "code"
        self.code.unlink(missing_ok=True)
        os.environ["CODE"] = str(self.code)
        tokens = (1 << 18) * (size if ranks == "--dp-size" else 1)
        server = Server(ranks, size, "--threads", size, "--max-total-tokens", tokens, *more, model=model,
                        launcher=[MPIRUN, "-n", size, "sh", "-c", KEEP_CODE])
        self.addCleanup(server.kill)
        self.processes = processes_of(server.process.pid)
        self.assertEqual(sorted(self.processes), list(range(size)))
        return server

    def assert_all_end(self, begin, code):
        """Within the time that is stated, with rank 0's exit code."""
        alive = lambda: [pid for pid in self.processes.values() if pathlib.Path(f"/proc/{pid}/exe").exists()]
        left_s = lambda: END_S - (time.monotonic() - begin)
        wait_for(lambda: not alive(), "all processes to end", left_s())
        wait_for(lambda: self.code.exists() and self.code.read_text(), "rank 0's exit code", left_s())
        self.assertEqual(self.code.read_text().strip(), str(code))

    def test_a_rank_that_is_killed_ends_all_by_its_name_and_a_restart_serves(self):
        self.kill_and_restart("--tp-size")

    def test_a_group_that_is_killed_ends_all_by_its_name_and_a_restart_serves(self):
        self.kill_and_restart("--dp-size")
        self.kill_and_restart("--dp-size", "--speculative-algorithm", "ngram")

    def kill_and_restart(self, *ranks):
        server = self.start(4, *ranks)
        stream = server.open_stream("Question", max_tokens=LONG)
        for _ in range(5):
            next(stream.events())
        health = server.connection()
        statuses = []

        def look():
            try:
                while True:
                    health.request("GET", "/health")
                    response = health.getresponse()
                    response.read()
                    statuses.append(response.status)
                    time.sleep(0.005)
            except (OSError, serve_client.http.client.HTTPException):
                pass  # the server has ended
        looks = threading.Thread(target=look, daemon=True)
        looks.start()
        wait_for(lambda: 200 in statuses, "the server to be well")
        begin = time.monotonic()
        os.kill(self.processes[2], signal.SIGKILL)
        stream.read()
        self.assertIn("rank 2 of 4: its process has ended", stream.error["message"])
        self.assert_all_end(begin, 1)
        looks.join(END_S)
        self.assertEqual(sorted(set(statuses)), [200, 503])
        self.assertNotEqual(server.wait(), 0)
        self.assertIn("the device is lost: rank 2 of 4: its process has ended", server.log)
        server = self.start(4, *ranks)
        self.assertEqual(server.complete(max_tokens=3, ignore_eos=True).json()["usage"]["completion_tokens"], 3)

    def test_clients_that_go_away_leave_no_page_behind_and_the_end_is_clean(self):
        for ranks in ("--tp-size", "--dp-size"):
            self.come_and_go(self.start(2, ranks))

    def come_and_go(self, server):
        for i in range(3):
            stream = server.open_stream(f"Question {i}", max_tokens=LONG)
            next(stream.events())
            stream.close()
        stats = server.wait_idle()
        self.assertEqual((stats["running"], stats["pages"]["in_use"]), ([], 0))
        self.assertEqual(server.complete(max_tokens=3, ignore_eos=True).status, 200)
        begin = time.monotonic()
        os.kill(self.processes[0], signal.SIGTERM)
        self.assert_all_end(begin, 0)
        self.assertEqual(server.wait(), 0)


if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)
    serve_client.main(num_arguments=4)
