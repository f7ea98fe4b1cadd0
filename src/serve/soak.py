"""One long run of `quire serve` under clients that stream, cancel, vanish, read slowly and send nonsense.

usage: soak.py BINARY MODEL [--requests N] [--seconds S]

Ends with 0 if so many requests were made in the time, every text that was read to its end is the one
that was given before the load, no page of the KV cache is in use afterwards, and memory did not grow
between a quarter of the way and its end; with 1, and why, otherwise.
"""

import argparse
import signal
import statistics
import sys
import time

import load_clients
from serve_client import Server

# Less than half a kilobyte for each of the 15,000 requests between the two: what is kept of each, such as
# its answer, would be more. A heap needs some thousand requests to find its size.
MAX_GROWTH_BYTES = 6 << 20
LEAST_REQUESTS = 10000
PROGRESS_S = 10


class Watch:
    """What the load looked like on its way."""

    def __init__(self, num_requests):
        self._num_requests = num_requests
        self._begin = self._shown = time.monotonic()
        self.samples = []  # (part of the requests that were begun, resident bytes)

    @property
    def seconds(self):
        return time.monotonic() - self._begin

    def __call__(self, load):
        self.samples.append((load.num_begun / self._num_requests, load.memory))
        if time.monotonic() - self._shown < PROGRESS_S:
            return
        self._shown = time.monotonic()
        print(f"{self.seconds:4.0f} s  {load.num_begun:6} of {self._num_requests} requests  "
              f"{load.num_begun / self.seconds:5.1f}/s  {load.memory / 2**20:6.1f} MiB resident  "
              f"{len(load.failures)} failures", flush=True)

    def memory_between(self, low, high):
        """The median, so that one large answer on its way is no leak. Requests that went by between two
        looks have the nearest one."""
        if not self.samples:
            return None
        found = [memory for part, memory in self.samples if low <= part <= high]
        nearest = min(self.samples, key=lambda sample: abs(sample[0] - (low + high) / 2))
        return statistics.median(found or [nearest[1]])


def soak(num_requests, seconds):
    """What is wrong, a line each."""
    server = Server("--access-log", "off", "--max-running-requests", load_clients.NUM_CLIENTS,
                    "--max-total-tokens", 16 << 10, "--page-size", 16, *load_clients.TOOL_FLAGS)
    try:
        cases = load_clients.make_cases(most_tokens=400)
        answers = load_clients.ask_one_at_a_time(server, cases)
        watch = Watch(num_requests)
        load = load_clients.Load(server, cases, answers).run(seconds, num_requests, watch)
        took = watch.seconds
        problems = list(load.failures)
        if server.process.poll() is not None:
            return [*problems, f"the server has ended:\n{server.log[-5000:]}"]
        stats = server.wait_idle()
        metrics = server.metrics()
        pages = metrics['kv_cache_pages{owner="in_use"}']
        early, late = watch.memory_between(0.2, 0.3), watch.memory_between(0.9, 1.0)
        print(f"{load.num_begun} requests in {took:.0f} s: {load.num_finished}")
        print(f"{load.tokens_seen} tokens of whole answers compared, at most {load.max_running} running, "
              f"{stats['counters']}")
        print(f"{pages:.0f} pages in use at the end; statuses {load.statuses}")
        if load.num_begun < num_requests:
            problems.append(f"expected {num_requests} requests in {seconds:g} s, got {load.num_begun}")
        if pages != 0 or stats["pages"]["in_use"] != 0:
            problems.append(f"{pages:.0f} pages are still in use")
        if set(load.statuses) - {200, 400}:
            problems.append(f"expected statuses 200 and 400, got {load.statuses}")
        if early and late:
            print(f"resident memory: {early / 2**20:.1f} MiB at 25%, {late / 2**20:.1f} MiB at the end, "
                  f"{server.memory_bytes() / 2**20:.1f} MiB idle")
            if num_requests >= LEAST_REQUESTS and late - early > MAX_GROWTH_BYTES:
                problems.append(f"memory grew by {(late - early) / 2**20:.1f} MiB")
        else:
            problems.append("memory was never looked at")
        if server.stop() != 0:
            problems.append(f"the server ended with {server.process.returncode}:\n{server.log[-5000:]}")
        return problems
    finally:
        server.kill()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=20000)
    parser.add_argument("--seconds", type=float, default=840)  # of 15 minutes, with what is around it
    flags = parser.parse_args(sys.argv[3:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the server is not left behind
    problems = soak(flags.requests, flags.seconds)
    for problem in problems:
        print(f"FAILED: {problem}")
    print("soak: " + ("failed" if problems else "passed"))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
