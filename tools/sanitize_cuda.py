#!/usr/bin/env python3
"""Runs the CUDA tests under compute-sanitizer, and prints a table of what it said.

usage: tools/sanitize_cuda.py [--build build/cuda] [--jobs 7] [--limit 600] [--only TEXT] [--log FILE]
       tools/sanitize_cuda.py --list

memcheck and synccheck see every test but those that LEFT_OUT and SUITES name; racecheck and
initcheck a small case of each kernel. Parts of a test binary run as processes of their own, so that
a long one holds up no other. Fails if a tool found something or did not finish. --list says how many
tests each job has, runs none, needs no GPU, and fails where a name stands for no test any more.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

from check_test_names import lost_patterns, names_of, stands_for

ROOT = pathlib.Path(__file__).resolve().parent.parent
# They measure or exhaust memory, of which the tools take some; end the process's context; launch what
# cannot be launched; leave the recording of a graph unfinished; or time gigabytes of work.
LEFT_OUT = ("*.TheDevicesMemoryIsWithinOnePercentOfThePlan:CudaMemoryTest.MoreThanTheDeviceHasIsNamed:"
            "CudaCheckTest.ALaunchThatCannotBeIsNamedAndForgotten:CudaCheckTest.ALostContextIsSticky:"
            "CudaGraphTest.WaitingInTheBody*:CudaGraphTest.AStreamThatRecords*:"
            "CudaRoofTest.BothRoofsAreMeasured")

Suite = collections.namedtuple("Suite", "name binary tests parts small small_parts")
SUITES = (
    Suite("device", "device/cuda_device_test", "*", 1, "", 0),
    Suite("plans", "attn/cuda_attn_test", "*", 2, "CudaPlanTest.*", 2),
    Suite("index arrays", "interop/cuda_interop_test", "*", 1, "CudaExportTest.*", 1),
    Suite("stores, row ops, routing", "kernels/cuda_kernels_test",
          "CudaStore*:CudaRoof*:CudaRope*:CudaRow*:*CudaRoute*:CudaCombine*", 6,
          "CudaStoreTest.WritesTheBytes*:CudaStoreTest.MovesRead*:CudaRopeStoreTest.NormAnd*:"
          "CudaRowOpsTest.*Rms*:CudaRowOpsTest.Combine*:CudaRowOpsTest.Silu*:CudaRowOpsTest.*Rope*:"
          "CudaRowOpsTest.Embed*:CudaRouteTest.RowsLie*:CudaRouteTest.LargeModels*:"
          "CudaRouteAndSortTest.*:*/CudaRoute*SeedsTest.*/0:CudaRouterTest.Only*:CudaCombine*", 8),
    Suite("products, experts", "kernels/cuda_kernels_test", "CudaGemm*:CudaExpert*", 5,
          "CudaGemmTest.HeadsAre*:CudaGemmTest.RowsAreQuantised*:CudaGemmTest.RepeatsHave*:"
          "CudaExpertGemmTest.EqualsALoop*:CudaExpertGemmTest.AFewTiles*:"
          "CudaExpertGemmTest.RowsOfCodes*:CudaGemmTest.CodesAre*:"
          "CudaGemmPlannerTest.FewRowsKeep*:CudaGemmPlannerTest.HeadsRotated*:"
          "CudaExpertGemvTest.FewRowsBegin*:CudaGemmBoxedTest.WhatIsNotFinite*:"
          "CudaGemmStripsTest.WhatIsNotFinite*:CudaGemmStripsTest.HeadsHave*", 2),
    Suite("attention", "kernels/cuda_kernels_test", "*CudaMla*:CudaMhaPrefill*", 16,
          "*/CudaMlaSmallTest.*:*/CudaMlaSmallTreeTest.*:CudaMlaSmallMergeTest.*:"
          "CudaMhaPrefillTest.AKeyThat*", 10),
    Suite("choosing keys", "kernels/cuda_kernels_test", "CudaSelectKeys*:*CudaSparse*", 4,
          "CudaSelectKeysTest.KeysBehind*:CudaSelectKeysTest.ByCodesKeysBehind*:"
          "CudaSelectKeysTest.ByCodesALongRow*", 3),
    Suite("sampling, trees", "decode/cuda_decode_test", "*", 2,
          "*/SampleItemsTest/*.TheHighestAnd*:*/SampleItemsTest/*.Bias*:*/SampleItemsTest/*.ALarge*:"
          "*/SampleItemsTest/*.Logprobs*:*/SampleItemsTest/*.RowsThat*:CudaSearchTest.EveryFormTakes*:"
          "CudaSearchTest.EveryFormCuts*:"
          "*/TreeGrowthTest.*", 8),
    Suite("runner", "runner/cuda_runner_test", "*", 1, "CudaRunnerTest.CopiedPages*", 1),
    Suite("drafts", "runner/cuda_drafts_test", "*", 6, "LayerDrafterTest.RowsOfATree*", 1),
    Suite("runner: bits, parity", "runner/cuda_runner_invariants_test", "*", 6, "", 0),
    # Page sizes differ in the engine's bookkeeping, and have no kernels of their own.
    Suite("engine", "testing/cuda_engine_invariants_test",
          "*page16_graph:*true_geometry_latent_bf16*", 8, "", 0),
)
# racecheck sees shared memory alone. Both look at our kernels only: cuBLASLt's are not ours to repair.
OURS = ("--kernel-name", "kernel_substring=quire")
# Roles hand memory on: what one wrote for a second, a third writes over once the second is done.
# Both keep track of as many barriers of a CTA as the compiler tells of, which are not all that a loop initialises;
# one attention kernel has 26. With 64 synccheck overflowed once there were clusters, whose eight CTAs have 12 each.
BARRIERS = ("--num-cuda-barriers", "256")
RACES = (*OURS, *BARRIERS, "--racecheck-indirect-barrier-dependency")
TOOLS = {"memcheck": (), "synccheck": BARRIERS, "racecheck": RACES, "initcheck": OURS}
OF_SMALL_CASES = ("racecheck", "initcheck")
# A whole step ends with an error of the tool's own: "failed to handle a hardware exception".
NOT_POSSIBLE = (("racecheck", "runner"), ("racecheck", "drafts"))

Job = collections.namedtuple("Job", "suite tool part parts")
Outcome = collections.namedtuple("Outcome", "job verdict seconds log")


def jobs_of(only):
    jobs = []
    for tool in TOOLS:
        for suite in SUITES:
            if (tool, suite.name) in NOT_POSSIBLE:
                continue
            parts = suite.small_parts if tool in OF_SMALL_CASES else suite.parts
            jobs += [Job(suite, tool, part, parts) for part in range(parts)]
    jobs.sort(key=lambda job: job.tool != "racecheck")  # the longest first
    return [job for job in jobs if only in f"{job.tool} {job.suite.name}"]


def count_tests(names, patterns):
    """How many of the names a filter stands for; 0 too if one of its patterns stands for none."""
    patterns = patterns.split(":")
    if lost_patterns(names, patterns):
        return 0
    return sum(stands_for(patterns, name) and not stands_for(LEFT_OUT.split(":"), name)
               for name in names)


def list_all(build):
    missing = 0
    for suite in SUITES:
        names = names_of(build / "src" / suite.binary)
        for kind, patterns in (("tests", suite.tests), ("small cases", suite.small)):
            if not patterns:
                continue
            count = count_tests(names, patterns)
            print(f"{suite.name}: {count} {kind}" + ("" if count else f"; nothing for a part of {patterns}"))
            missing += count == 0
    return 1 if missing else 0


def run(job, options):
    # Some tests make a call of CUDA fail on purpose: that is no finding, what memory it touches is.
    calls = ("--report-api-errors", "no") if job.suite.name == "device" else ()
    tests = job.suite.small if job.tool in OF_SMALL_CASES else job.suite.tests
    command = ["compute-sanitizer", "--tool", job.tool, "--error-exitcode", "9", "--print-limit", "5",
               *TOOLS[job.tool], *calls, options.build / "src" / job.suite.binary,
               "--gtest_brief=1", f"--gtest_filter={tests}-{LEFT_OUT}"]
    shard = {"GTEST_TOTAL_SHARDS": str(job.parts), "GTEST_SHARD_INDEX": str(job.part)}
    begin = time.monotonic()
    try:
        done = subprocess.run(command, env={**os.environ, **shard}, timeout=options.limit,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", check=False)
        verdict, log = verdict_of(done.returncode, done.stdout), done.stdout
    except subprocess.TimeoutExpired as late:
        verdict, log = f"not finished in {options.limit} s", (late.stdout or b"").decode(errors="replace")
    return Outcome(job, verdict, time.monotonic() - begin, log)


def verdict_of(code, log):
    """"clean" only if the tests passed, and there were some, and the tool counted no error."""
    if re.search(r"\d+ tests?, listed below|SKIPPED|\[  FAILED  \]", log):
        return "tests failed or were skipped"
    if not re.search(r"\[  PASSED  \] [1-9]", log):
        return f"no test passed (exit status {code})"
    if code != 0 or not re.search(r"SUMMARY: 0 (errors|hazards)", log):
        return "found something"
    return "clean"


def shortened(log):
    """What the tool found first, which its first lines say, and how it ended."""
    return log if len(log) <= 4000 else f"{log[:2500]}\n...\n{log[-1500:]}"


def table(outcomes):
    """A row for every suite: the worst verdict of its parts, and their time together."""
    lines = ["| tests | " + " | ".join(TOOLS) + " |", "|---|" + "---|" * len(TOOLS)]
    for suite in SUITES:
        cells = []
        for tool in TOOLS:
            mine = [o for o in outcomes if o.job.suite is suite and o.job.tool == tool]
            bad = sorted({o.verdict for o in mine} - {"clean"})
            seconds = sum(o.seconds for o in mine)
            cells.append(f"{', '.join(bad) or 'clean'}, {seconds:.0f} s" if mine else "-")
        lines.append(f"| {suite.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {text}")
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "cuda")
    parser.add_argument("--jobs", type=positive, default=7, help="processes at a time")
    parser.add_argument("--limit", type=positive, default=600, help="seconds for each")
    parser.add_argument("--only", default="", help="jobs with this in 'tool suite'")
    parser.add_argument("--log", type=pathlib.Path, help="where to write what the tools print")
    parser.add_argument("--list", action="store_true", help="count the tests of each job, run none")
    options = parser.parse_args()
    jobs = jobs_of(options.only)
    if not jobs:
        parser.error(f"--only: no 'tool suite' has '{options.only}' in it")
    if options.list:
        return list_all(options.build)
    if not shutil.which("compute-sanitizer"):
        parser.error("compute-sanitizer: not found; it comes with the CUDA toolkit")
    missing = sorted({str(options.build / "src" / job.suite.binary) for job in jobs
                      if not (options.build / "src" / job.suite.binary).exists()})
    if missing:
        parser.error(f"{missing[0]}: not found; `make test-cuda` builds the tests")
    outcomes = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for done in concurrent.futures.as_completed([pool.submit(run, job, options) for job in jobs]):
            outcome = done.result()
            outcomes.append(outcome)
            job = outcome.job
            print(f"[{len(outcomes)}/{len(jobs)}] {job.tool} {job.suite.name} {job.part + 1}/{job.parts}: "
                  f"{outcome.verdict}, {outcome.seconds:.0f} s", flush=True)
            if outcome.verdict != "clean":
                print(shortened(outcome.log), flush=True)
    if options.log:
        options.log.write_text("".join(outcome.log for outcome in outcomes))
    print("\n" + table(outcomes))
    return 0 if all(outcome.verdict == "clean" for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
