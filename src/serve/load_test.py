"""Many clients at once, well-behaved and not, against a live `quire serve`.

usage: load_test.py BINARY MODEL SECONDS SANITIZERS [unittest arguments]

For SECONDS, 64 clients ask what was asked before the load, one at a time: answers must be the same.
SANITIZERS is what the binary was built with, or none: with one, the memory of the process is not
compared with its plan.
"""

import json
import pathlib
import shutil
import sys
import tempfile
import unittest

import serve_client
from load_clients import (NUM_CASES, NUM_CLIENTS, TOOL_FLAGS, Load, ask_one_at_a_time,
                          check_constraint, make_cases)
from serve_client import Server

SECONDS = float(sys.argv[3])
SANITIZERS = sys.argv[4]
MEMORY_TOLERANCE = 0.05


def drafting_model(folder):
    """The model with a draft layer, whose guesses are as good as its made-up weights."""
    copy = pathlib.Path(folder) / serve_client.MODEL.name
    shutil.copytree(serve_client.MODEL, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    return copy


class LoadTest(unittest.TestCase):
    def start(self, *flags, model=None):
        server = Server("--access-log", "off", *TOOL_FLAGS, *flags, model=model, leak_check=True)
        self.addCleanup(server.kill)
        return server

    def check_load(self, server, seconds, other=None):
        """Answers must be those of `other`, or of the server itself before."""
        cases = make_cases()
        answers = ask_one_at_a_time(other or server, cases)
        self.assertGreater(len({repr(answer) for answer in answers}), NUM_CASES // 2)
        self.assertGreater(sum(map(check_constraint, cases, answers)), 4)
        load = Load(server, cases, answers).run(seconds)
        self.assertIsNone(server.process.poll(), f"the server has ended:\n{server.log[-5000:]}")
        stats = server.wait_idle()
        print(f"{seconds:g} s: {load.num_finished}, {load.tokens_seen} tokens, at most "
              f"{load.max_running} running; {stats['counters']}", flush=True)
        self.assertEqual(load.failures, [])
        for behaviour, count in load.num_finished.items():
            self.assertGreater(count, 0, behaviour)
        self.assertEqual(set(load.statuses), {200, 400})
        self.assertEqual((stats["running"], stats["waiting"], stats["pages"]["in_use"]), ([], 0, 0))
        self.check_numbers(server, load, [] if other else answers)
        return load, stats

    def check_numbers(self, server, load, answers):
        """/metrics against what the clients saw, and against itself."""
        metrics = server.metrics()
        stats = server.stats()
        counters = stats["counters"]
        ends = {reason: metrics[f'request_success_total{{finished_reason="{reason}"}}']
                for reason in ("stop", "length", "cancelled", "deadline", "failed")}
        self.assertEqual((ends["deadline"], ends["failed"]), (0, 0))
        self.assertEqual(sum(ends.values()), counters["answers_finished"])
        self.assertEqual(ends, stats["answers"])
        before = len(answers)
        self.assertLessEqual(counters["requests_added"], before + load.num_sent)
        self.assertGreaterEqual(counters["requests_added"], before + sum(
            load.num_finished[name] for name in ("stream", "whole", "slow", "leave", "reset")))
        self.assertEqual(metrics["e2e_request_latency_seconds_count"], counters["requests_added"])
        choices_before = sum(len(answer.choices) for answer in answers)
        self.assertGreaterEqual(ends["stop"] + ends["length"], choices_before + load.choices_seen)
        self.assertGreater(ends["cancelled"], 0)
        tokens_before = sum(answer.num_tokens for answer in answers)
        self.assertEqual(metrics["generation_tokens_total"], counters["output_tokens"])
        self.assertEqual(metrics["generation_tokens_total"], metrics["request_generation_tokens_sum"])
        self.assertGreaterEqual(metrics["generation_tokens_total"], tokens_before + load.tokens_seen)
        self.assertEqual(metrics["request_generation_tokens_count"], counters["answers_finished"])
        self.assertGreater(metrics["prefix_cache_hits_total"], 0)
        self.assertLessEqual(metrics["prefix_cache_hits_total"], metrics["prompt_tokens_total"])
        self.assertEqual(counters["requests_refused"], 0)
        statuses = {int(status) for status in stats["http_responses"]}
        self.assertLessEqual(statuses, {200, 400})
        self.assertEqual(stats["http_responses"]["400"], load.num_finished["wrong"])

    def test_load(self):
        # So much that the program itself is little beside it.
        server = self.start("--max-total-tokens", 6 << 20, "--max-running-requests", NUM_CLIENTS)
        load, _ = self.check_load(server, SECONDS)
        self.assertGreater(load.max_running, NUM_CLIENTS // 4)
        plan = server.ask("GET", "/server_info").json()["memory_bytes"]
        ratio = max(load.max_memory, server.memory_bytes()) / plan
        print(f"resident memory: {ratio:.3f} of the plan of {plan / 2**20:.0f} MiB")
        self.assertEqual(server.stop(), 0)
        self.assertGreater(plan, 500 << 20)
        if SANITIZERS != "none":
            print(f"SKIPPED: memory against the plan, because the build has -fsanitize={SANITIZERS}")
            return
        self.assertLess(abs(ratio - 1), MEMORY_TOLERANCE)

    def test_load_in_little_memory(self):
        """Answers lose their pages to others, and go on later."""
        server = self.start("--max-total-tokens", 5120, "--context-length", 4096,
                            "--max-running-requests", 32, "--page-size", 16)
        _, stats = self.check_load(server, max(SECONDS / 4, 5))
        self.assertGreater(stats["counters"]["preemptions"], 0)
        self.assertGreater(stats["counters"]["evicted_pages"], 0)
        self.assertEqual(server.stop(), 0)

    def test_load_with_drafts(self):
        """What is said without guesses is said with trees of them, short of pages too."""
        with tempfile.TemporaryDirectory() as folder:
            model = drafting_model(folder)
            plain = self.start("--context-length", 4096, model=model)
            server = self.start("--max-total-tokens", 5120, "--context-length", 4096,
                                "--max-running-requests", 32, "--page-size", 16,
                                "--speculative-algorithm", "eagle", "--speculative-num-steps", 3,
                                "--speculative-eagle-topk", 4, "--speculative-num-draft-tokens", 8,
                                model=model)
            _, stats = self.check_load(server, max(SECONDS / 4, 5), other=plain)
            self.assertGreater(stats["counters"]["preemptions"], 0)
            self.assertGreater(server.metrics()["spec_decode_num_drafts_total"], 0)
            self.assertGreater(server.metrics()["spec_decode_num_accepted_tokens_total"], 0)
            self.assertEqual(plain.stop(), 0)
            self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    serve_client.main(num_arguments=4)
