import asyncio
import contextlib
import functools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from rljax.tasks.rewards import Reward, RewardError, RewardRunner, RewardTimeout, processes, register_reward
from rljax.tasks.rewards.registry import resolve_reward
from rljax.tasks.task import RewardTerm, Task
from rljax.trajectory import TaskId

LIMIT = 3.0
"""Seconds, for rewards that hang; honest ones keep to it too."""

SOURCE = """
import os, re, sys, time
from rljax.tasks.rewards import Reward

class Awkward(Exception):
    def __init__(self, one, two): super().__init__("cannot be unpickled")

def length(task, response): return len(response)
def apart(task, response, *, by=1.0): return by * len(response)
def parts(task, response): return Reward(0.5, {"style": 0.25, "truth": 1})
def raises(task, response): raise KeyError("left\\nright")
def awkward(task, response): raise Awkward(1, 2)
def exits(task, response): sys.exit(3)
def dies(task, response): os._exit(7)
def nan(task, response): return float("nan")
def infinite(task, response): return -float("inf")
def text(task, response): return "1.0"
def nothing(task, response): pass
def bad_part(task, response): return Reward(1.0, {"style": float("nan")})
def loops(task, response):
    while True: pass
def swallows(task, response):
    while True:
        try: time.sleep(60)
        except BaseException: pass
def regex(task, response): return float(bool(re.match(r"(a+)+$", "a" * 64 + "b")))
def power(task, response): return float(len(str(9 ** 9 ** 9)))
def seizes(task, response):
    with open(response, "w") as fifo: fifo.write("now")
    import ctypes
    ctypes.PyDLL(None).sleep(3600)
def prints(task, response):
    print(response)
    print("err", file=sys.stderr)
    time.sleep(3600)
def process_id(task, response): return float(os.getpid())
"""

FAILING = {
    "raises": "KeyError: 'left\\nright' (",
    "awkward": "Awkward: cannot be unpickled (",
    "exits": "SystemExit: 3 (",
    "dies": "worker process failed: ProcessExpired",
    "nan": "ValueError: returned nan",
    "infinite": "ValueError: returned -inf",
    "text": "TypeError: returned str, not a number",
    "nothing": "TypeError: returned NoneType, not a number",
    "bad_part": "ValueError: returned nan",
}


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test on a fresh event loop, for a minute at most."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 60))

    return run


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("rewards")
    (path / "judges.py").write_text(SOURCE)
    sys.path.insert(0, str(path))
    yield path
    sys.path.remove(str(path))


@pytest.fixture(scope="module")
def runner(directory: Path) -> Iterator[RewardRunner]:
    with RewardRunner(["judges:length", "numeric"], timeout=LIMIT, workers=1) as runner:
        yield runner


def task(*names: str, answer: str = "18", weights: tuple[float, ...] | None = None) -> Task:
    terms = [RewardTerm(n, n.rpartition(":")[2], w) for n, w in zip(names, weights or [1.0] * len(names), strict=True)]
    return Task(TaskId("mine", 0, 12), (), answer, rewards=tuple(terms))


def children() -> set[int]:
    # The resource tracker of multiprocessing is one process for the life of the parent, whoever spawns.
    found = psutil.Process().children(recursive=True)
    return {p.pid for p in found if p.status() != "zombie" and "resource_tracker" not in " ".join(p.cmdline())}


def gone(process_id: int) -> bool:
    return not psutil.pid_exists(process_id) or psutil.Process(process_id).status() == "zombie"


@on_a_loop
async def test_sum_inline() -> None:
    before = children()
    runner = RewardRunner(["exact", "digits"], timeout=LIMIT, workers=1)
    reward = await runner.score(task("exact", "digits", weights=(2.0, 0.5)), "19")
    assert reward == Reward(0.25, {"exact": 0.0, "digits": 0.5})
    assert children() == before, "cheap rewards need no worker"
    runner.close()


@on_a_loop
async def test_arguments_reach_a_reward_wherever_it_runs(runner: RewardRunner) -> None:
    @register_reward("apart")
    def apart(task: Task, response: str, *, by: float = 1.0) -> float:
        return by * len(response)

    for name in ("apart", "judges:apart"):
        terms = (RewardTerm(name, "apart", args={"by": 0.5}),)
        asked = replace(task("exact"), rewards=terms)
        assert (await runner.score(asked, "four")).score == 2.0


@on_a_loop
async def test_parts_of_a_reward_are_named_after_it(runner: RewardRunner) -> None:
    reward = await runner.score(task("judges:parts", "judges:length", weights=(1.0, 0.1)), "four")
    assert reward.score == pytest.approx(0.9)
    assert reward.parts == {"parts": 0.5, "parts/style": 0.25, "parts/truth": 1.0, "length": 4.0}


@pytest.mark.parametrize("name", FAILING)
@on_a_loop
async def test_a_reward_without_a_number_fails_its_trajectory_alone(runner: RewardRunner, name: str) -> None:
    neighbour = asyncio.ensure_future(runner.score(task("judges:length"), "four"))
    with pytest.raises(RewardError) as caught:
        await runner.score(task(f"judges:{name}"), "response", "member 3")
    assert str(caught.value).startswith(f"task mine/0/12, member 3: reward 'judges:{name}': ")
    assert FAILING[name] in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, RewardTimeout)
    assert (await neighbour).score == 4
    assert (await runner.score(task("judges:length"), "four")).score == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["loops", "swallows", "regex", "power"])
@on_a_loop
async def test_a_reward_that_never_returns_is_killed(runner: RewardRunner, name: str) -> None:
    worker = int((await runner.score(task("judges:process_id"), "")).score)
    begin = time.monotonic()
    waiting = asyncio.ensure_future(runner.score(task(f"judges:{name}"), "response"))
    behind = [asyncio.ensure_future(runner.score(task("judges:length"), "x" * i)) for i in range(5)]
    with pytest.raises(RewardTimeout, match="not done after 3 s; its worker process was killed"):
        await waiting
    assert LIMIT <= time.monotonic() - begin < LIMIT + 15
    assert [reward.score for reward in await asyncio.gather(*behind)] == [0, 1, 2, 3, 4]
    assert gone(worker)
    assert runner.pending == 0


@pytest.mark.slow
@on_a_loop
async def test_a_response_that_cannot_be_judged_in_time_is_wrong(
    runner: RewardRunner, caplog: pytest.LogCaptureFixture
) -> None:
    reward = await runner.score(task("numeric", answer="#### 18"), r"\boxed{9^{9^{9^{9}}}}")
    assert reward == Reward(0.0, {"numeric": 0.0})
    assert "cannot judge the response in time" in caplog.text
    assert (await runner.score(task("numeric", answer="#### 18"), "#### 18")).score == 1


@on_a_loop
async def test_a_worker_that_is_killed_while_idle_is_replaced(runner: RewardRunner) -> None:
    worker = int((await runner.score(task("judges:process_id"), "")).score)
    os.kill(worker, signal.SIGKILL)
    await asyncio.sleep(0.5)
    assert (await runner.score(task("judges:length"), "four")).score == 4


@on_a_loop
async def test_a_task_that_cannot_be_sent_fails_alone(runner: RewardRunner) -> None:
    unsendable = Task(
        TaskId("mine", 0, 0), (), "", metadata={"lock": threading.Lock()}, rewards=task("judges:length").rewards
    )
    with pytest.raises(RewardError, match="cannot pickle"):
        await runner.score(unsendable, "")
    assert (await runner.score(task("judges:length"), "four")).score == 4


@on_a_loop
async def test_cancelling_frees_the_worker(runner: RewardRunner) -> None:
    waiting = asyncio.ensure_future(runner.score(task("judges:loops"), ""))
    await asyncio.sleep(0.3)
    waiting.cancel()
    begin = time.monotonic()
    assert (await runner.score(task("judges:length"), "four")).score == 4
    assert time.monotonic() - begin < 20
    with pytest.raises(asyncio.CancelledError):
        await waiting


@on_a_loop
async def test_a_task_without_rewards_is_refused(runner: RewardRunner) -> None:
    with pytest.raises(RewardError, match="task mine/0/12: has no reward"):
        await runner.score(task(), "")


@on_a_loop
async def test_reasoning_gym_scores_its_own(directory: Path) -> None:
    pytest.importorskip("reasoning_gym")
    from rljax.tasks.gym_rows import ReasoningGymRows

    problem = ReasoningGymRows("chain_sum", "train", {"size": 3}, "key").problem(0)
    terms = task("reasoning_gym").rewards
    gym_task = Task(TaskId("gym", 0, 0), (), problem.answer, metadata=problem.metadata, rewards=terms)
    with RewardRunner(["reasoning_gym"], timeout=20, workers=1) as runner:
        assert (await runner.score(gym_task, f"Well, <answer>{problem.answer}</answer>")).score == 1
        assert (await runner.score(gym_task, f" {problem.answer}\n")).score == 1
        assert (await runner.score(gym_task, "<answer>none</answer>")).score < 1


@on_a_loop
async def test_close_ends_workers_and_fails_what_waits(directory: Path) -> None:
    before = children()
    runner = RewardRunner(["judges:loops"], timeout=30, workers=2)
    large = "x" * 100_000  # more than the pipe holds, so that the sender is stuck as well
    waiting = [asyncio.ensure_future(runner.score(task("judges:loops"), large)) for _ in range(8)]
    await asyncio.sleep(1)
    assert runner.pending == 8
    await asyncio.to_thread(runner.close)
    for failed in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(failed, RewardError)
        assert "the rewards were closed" in str(failed)
    assert children() == before
    with pytest.raises(RewardError, match="the rewards were closed"):
        await runner.score(task("judges:length"), "")
    runner.close()


def test_several_loops_on_other_threads_share_a_runner(runner: RewardRunner) -> None:
    scores: list[float] = []

    async def many() -> None:
        rewards = await asyncio.gather(*(runner.score(task("judges:length"), "x" * i) for i in range(50)))
        scores.append(sum(reward.score for reward in rewards))

    threads = [threading.Thread(target=lambda: asyncio.run(many())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert scores == [1225.0] * 3


async def until_a_thread_is_free(runner: RewardRunner, response: str) -> float:
    """What it scores, once what was left behind has ended."""
    while True:
        with contextlib.suppress(RewardError):
            return (await runner.score(task("mine_quick"), response)).score
        await asyncio.sleep(0.01)


@on_a_loop
async def test_registered_functions_run_here_on_threads_with_a_deadline() -> None:
    release = threading.Event()
    seen: list[Any] = []

    @register_reward("mine_quick")
    def quick(task: Task, response: str) -> float:
        seen.append(threading.current_thread())
        return len(response)

    @register_reward("mine_stuck")
    def stuck(task: Task, response: str) -> float:
        release.wait(30)
        return 0.0

    @register_reward("mine_raises")
    def raises(task: Task, response: str) -> float:
        raise ValueError("no")

    before = children()
    with RewardRunner(["mine_quick"], timeout=0.5, workers=1) as runner:
        assert (await runner.score(task("mine_quick"), "four")).score == 4
        assert seen[0] is not threading.main_thread()
        with pytest.raises(RewardError, match=r"mine_raises': ValueError: no \(.*test_reward_runner.py:"):
            await runner.score(task("mine_raises"), "")
        stuck_ones = [asyncio.ensure_future(runner.score(task("mine_stuck"), "")) for _ in range(12)]
        await asyncio.sleep(0)
        quick_ones = await asyncio.gather(*(runner.score(task("mine_quick"), "x" * i) for i in range(20)))
        assert [reward.score for reward in quick_ones] == list(range(20))
        for failed in await asyncio.gather(*stuck_ones, return_exceptions=True):
            assert isinstance(failed, RewardTimeout)
            assert "left behind" in str(failed)

        # 12 hang; beyond 16 no more are tried
        more = await asyncio.gather(*(runner.score(task("mine_stuck"), "") for _ in range(4)), return_exceptions=True)
        assert all(isinstance(failed, RewardError) for failed in more)
        with pytest.raises(RewardError, match="threads already hang"):
            await runner.score(task("mine_quick"), "")
        release.set()
        assert await until_a_thread_is_free(runner, "four") == 4

        @register_reward("mine_quick")
        def better(task: Task, response: str) -> float:
            return 99

        assert (await runner.score(task("mine_quick"), "four")).score == 99
    assert children() == before


UNGUARDED = """
import asyncio, os, sys, threading, time
print("script", flush=True)
sys.path.insert(0, {directory!r})
from rljax.tasks.rewards import RewardRunner
from rljax.tasks.task import RewardTerm, Task
from rljax.trajectory import TaskId

runner = RewardRunner(["judges:length"], timeout=3600, workers=2)
def task(name):
    return Task(TaskId("mine", 0, 0), (), "", rewards=(RewardTerm("judges:" + name, name),))
async def main():
    print("score", (await runner.score(task("length"), "four")).score, flush=True)
    print("worker", int((await runner.score(task("process_id"), "")).score), flush=True)
    if {then!r} == "hang":
        os.mkfifo({directory!r} + "/fifo")
        judging = asyncio.ensure_future(runner.score(task("seizes"), {directory!r} + "/fifo"))
        await asyncio.to_thread(lambda: open({directory!r} + "/fifo").read())
        print("ready", flush=True)
        time.sleep(3600)
asyncio.run(main())
"""


def test_a_script_without_main_guard_that_never_closes_ends(directory: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED.format(directory=str(directory), then="end"))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True)
    lines = done.stdout.split()
    assert lines[:3] == ["script", "score", "4.0"], "workers must not run the script again"
    assert lines.count("script") == 1
    assert gone(int(lines[4]))
    assert not done.stderr


def test_workers_end_when_their_parent_is_killed(directory: Path, tmp_path: Path) -> None:
    """One of them in a reward that holds the interpreter's lock and has an hour to judge."""
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED.format(directory=str(directory), then="hang"))
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        while parent.stdout.readline().strip() != "ready":
            assert parent.poll() is None
        workers = [p.pid for p in psutil.Process(parent.pid).children(recursive=True)]
        parent.kill()
    deadline = time.monotonic() + 20
    while not all(gone(worker) for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@on_a_loop
async def test_what_a_reward_prints_is_in_its_log_and_nowhere_else(
    directory: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "logs" / "rewards.log"
    task = Task(TaskId("mine", 0, 0), (), "", rewards=(RewardTerm("judges:prints", "prints"),))
    with RewardRunner(["judges:prints"], timeout=LIMIT, workers=1, log=log) as runner:
        with pytest.raises(RewardTimeout):  # it prints, and then is killed
            await runner.score(task, "out\x1b[2J")
        assert log.read_text() == "out\x1b[2J\nerr\n"
    assert capfd.readouterr() == ("", "")


@on_a_loop
async def test_what_a_module_of_rewards_prints_when_it_is_imported_is_in_the_log_too(
    directory: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (directory / "loud.py").write_text(
        "import sys\nprint('begun')\nprint('badly', file=sys.stderr)\n"
        "def length(task, response): return len(response)\n"
    )
    log = tmp_path / "logs" / "rewards.log"
    task = Task(TaskId("mine", 0, 0), (), "", rewards=(RewardTerm("loud:length", "length"),))
    with RewardRunner(["loud:length"], timeout=LIMIT, workers=1, log=log) as runner:
        assert (await runner.score(task, "four")).score == 4
        assert log.read_text() == "begun\nbadly\n"
    assert capfd.readouterr() == ("", "")


def test_a_module_of_rewards_may_log_to_the_terminal_though_its_import_is_silent(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "logging_one.py").write_text(
        "import logging, sys, threading\n"
        "handler = logging.StreamHandler()\n"
        "print('begun')\n"
        "other = threading.Thread(target=lambda: print('progress'))\n"
        "other.start(); other.join()\n"
        "def length(task, response): return len(response)\n"
    )
    resolve_reward("logging_one:length", "rewards")
    handler = sys.modules["logging_one"].handler
    handler.emit(logging.makeLogRecord({"msg": "logged later"}))
    assert capsys.readouterr() == ("progress\n", "logged later\n")


def test_a_notebook_can_use_it(directory: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    cells = [
        f"import sys; sys.path.insert(0, {str(directory)!r})",
        "from rljax.tasks.rewards import RewardRunner, register_reward\n"
        "from rljax.tasks.task import RewardTerm, Task\n"
        "from rljax.trajectory import TaskId\n"
        "@register_reward('mine')\n"
        "def mine(task, response):\n"
        "    return response.count('a')\n"
        "runner = RewardRunner(['mine', 'judges:length'], timeout=20, workers=1)\n"
        "terms = (RewardTerm('mine', 'mine'), RewardTerm('judges:length', 'length'))\n"
        "task = Task(TaskId('t', 0, 0), (), '', rewards=terms)",
        "(await runner.score(task, 'banana')).score",
        "runner.close()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=60).execute()
    assert notebook.cells[2].outputs[0].data["text/plain"] == "9.0"


@on_a_loop
async def test_a_worker_that_does_not_take_it_up_is_not_the_fault_of_the_response(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``numeric`` scores 0 what it cannot judge in time; a right answer must not get that."""
    monkeypatch.setattr(processes, "_START_SECONDS", -100.0)
    with (
        RewardRunner(["numeric"], timeout=LIMIT, workers=1) as runner,
        pytest.raises(RewardError, match="no worker process took it up") as error,
    ):
        await runner.score(task("numeric"), "18")
    assert not isinstance(error.value, RewardTimeout)
