"""What a program in the sandbox costs: beside a bare interpreter, and a batch of the reward `code`.

    python -m bench.sandbox [--quick]

What: a short program, run to its end by turns in the sandbox and in an interpreter alone (`python -I`), pair by pair.
Then the reward `code`, called as training calls it, on a batch of responses with three tests each: by one worker
process and by two, of statements and of texts, and with one response in eight that never ends (`timeout=2`).
``--quick`` asks an eighth.

Target: the sandbox costs as much again as the interpreter that it starts (a ratio of 2); a program that never ends
costs its own time limit, and its neighbours nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from statistics import median

from bench.paired import print_machine, print_table
from rljax.tasks.rewards.registry import reward_terms
from rljax.tasks.rewards.runner import RewardRunner
from rljax.tasks.sandbox.sandbox import run
from rljax.tasks.task import Task
from rljax.trajectory import TaskId

PAIRS = 64
RESPONSES = 128
SECONDS = 2
"""Time limit of the program that never ends."""
SHORT = "print(sum(range(100)))"
RIGHT = "```python\ndef double(x):\n    return 2 * x\nif __name__ == '__main__':\n    print(double(int(input())))\n```"
ENDLESS = "```python\nwhile True:\n    pass\n```"
TESTS = {
    "statements": "assert double(1) == 2\nassert double(0) == 0\nassert double(-3) == -6",
    "texts": '{"input": ["1", "0", "-3"], "output": ["2", "0", "-6"]}',
}


def seconds_of(work: Callable[[], object]) -> float:
    """Returns the seconds that it takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def starts(pairs: int) -> list[list[object]]:
    """Returns the rows of the sandbox and the bare interpreter: median milliseconds, and the median ratio."""
    command = [sys.executable, "-I", "-c", SHORT]
    ways = (lambda: run(SHORT), lambda: subprocess.run(command, capture_output=True, check=True))
    for way in ways:
        way()  # the first reads files that are on no page yet
    times = [[seconds_of(way) for way in ways] for _ in range(pairs)]
    shut_in, bare = zip(*times, strict=True)
    ratio = median(one / other for one, other in times)
    return [["sandbox", 1000 * median(shut_in), f"{ratio:.2f}"], ["interpreter alone", 1000 * median(bare), ""]]


async def batch(tests: str, responses: list[str], workers: int) -> tuple[float, Counter[str]]:
    """Returns the seconds for a batch, and how many of its responses had which score."""
    limits = {"timeout": SECONDS, "total_timeout": SECONDS}
    terms = reward_terms(("code",), None, "tasks.train.code.rewards", {"code": {"tests": "answer", **limits}})
    task = Task(TaskId("code", 0, 0), ({"role": "user", "content": "Double it."},), TESTS[tests], rewards=terms)
    with RewardRunner(["code"], timeout=60.0, workers=workers) as runner:
        await runner.score(task, RIGHT)  # the workers are up
        start = time.perf_counter()
        rewards = await asyncio.gather(*(runner.score(task, response) for response in responses))
        return time.perf_counter() - start, Counter(f"scored {reward.score:g}" for reward in rewards)


def main() -> None:
    """Runs the bench and prints its tables."""
    parser = argparse.ArgumentParser(description="the sandbox for programs: what one costs, and a batch of them")
    parser.add_argument("--quick", action="store_true", help="an eighth of the programs")
    part = 8 if parser.parse_args().quick else 1
    count = RESPONSES // part
    print_machine()
    print_table("a short program, medians", ["by", "milliseconds", "ratio"], starts(PAIRS // part))
    rows = []
    for tests in TESTS:
        for workers, endless in ((1, 0), (2, 0), (2, count // 8)):
            responses = [ENDLESS if number < endless else RIGHT for number in range(count)]
            seconds, ends = asyncio.run(batch(tests, responses, workers))
            said = "; ".join(f"{times} {end}" for end, times in sorted(ends.items()))
            rows.append([tests, workers, endless, f"{seconds:.2f}", f"{count / seconds:.1f}", said])
    heads = ["tests", "workers", "never end", "seconds", "responses/s", "ends"]
    print_table(f"{count} responses, three tests each", heads, rows)


if __name__ == "__main__":
    main()
