"""What hosts say to each other, through JAX's own coordination service: its clients may be in one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from jax._src.lib import _jax

from rljax.interrupts import HOST_LOST
from rljax.learner.hosts import HostLost, Hosts, HostsError, means_loss
from rljax.learner.leading import asked_by_leader
from rljax.learner.served import TeacherAway, TeacherError
from rljax.learner.teachers import Ask, TokenValues
from rljax.pipeline.assemble.hosts import tell
from rljax.trajectory import Trajectory
from tests.e2e.program import free_port
from tests.learner.made_up import make_groups, trajectories_of

Start = Callable[..., list[Hosts]]


@pytest.fixture
def start() -> Iterator[Start]:
    services: list[Any] = []
    clients: list[Any] = []

    def started(number: int, timeout: float = 30.0) -> list[Hosts]:
        address = f"127.0.0.1:{free_port()}"
        services.append(_jax.get_distributed_runtime_service(address, number))
        clients.extend(_jax.get_distributed_runtime_client(address, rank) for rank in range(number))
        with ThreadPoolExecutor(number) as pool:
            list(pool.map(lambda client: client.connect(), clients))
        return [Hosts(client, rank, number, timeout) for rank, client in enumerate(clients)]

    yield started
    with ThreadPoolExecutor(len(clients)) as pool:
        list(pool.map(lambda client: client.shutdown(), clients))
    for service in services:
        service.shutdown()


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Calls all at once; an error is what came of its call."""

    def one(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except HostsError as error:
            return str(error)

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


def test_an_announcement_comes_whole(start: Start) -> None:
    first, second, third = start(3)
    parts = [b"", b"x" * 3_000_000, b"end"]
    first.announce("train", {"step": 4}, parts)
    for host in (second, third):
        heard = host.hear()
        assert (heard.what, heard.said, list(heard.parts)) == ("train", {"step": 4}, parts)
    waited, _ = together(*(lambda host=host: host.agree("train", {"batch": "a"}) for host in (first, second, third)))[0]
    assert 0 <= waited < 30


def test_the_last_is_named_where_to_ask_takes_time(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Host 2 is ready beforehand, host 1 once it is waited for; each answer takes ten milliseconds."""
    first, second, third = start(3)
    first.announce("train")
    second.hear(), third.hear()
    get, asked = first._get, threading.Event()

    def slowly(key: str, seconds: float) -> bytes | None:
        asked.set()
        time.sleep(0.01)
        return get(key, seconds)

    monkeypatch.setattr(first, "_get", slowly)
    with ThreadPoolExecutor(2) as pool:
        pool.submit(third.agree, "train")
        while first._try_get("1/ready/2") is None:
            pass
        agreed = pool.submit(first.agree, "train")
        assert asked.wait(30)
        second.agree("train")
        waited, slowest = agreed.result()
    assert slowest == 1
    assert waited >= 0.01


def test_who_says_something_else_is_named_to_all(start: Start) -> None:
    first, second, third = hosts = start(3)
    together(*(lambda host=host: host.exchange_names(f"node{host.rank}") for host in hosts))
    first.announce("train")
    second.hear(), third.hear()
    said = together(
        lambda: first.agree("train", {"step": "1", "batch": "a"}),
        lambda: second.agree("train", {"step": "1", "batch": "a"}),
        lambda: third.agree("train", {"step": "1", "batch": "b"}),
    )
    for line in said:
        assert line.startswith("host 2 (node2): its batch is another than that of host 0 (node0)")


def test_who_is_late_is_named(start: Start) -> None:
    first, second = start(2, timeout=0.2)
    first.announce("train")
    second.hear()
    with pytest.raises(HostsError, match=r"waited 0.2 s \(wait_timeout\) for host 1 to train step 3"):
        first.agree("train step 3")


def test_why_a_host_cannot_go_on_comes_to_host_0(start: Start) -> None:
    """And from there to the others; all end with the code that it has."""
    first, second, third = start(3)
    first.announce("begin")
    second.hear()
    second.fail("no such model", 2)
    third.hear()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(third.agree, "open the model")
        for agree in (lambda: first.agree("open the model"), waiting.result):
            with pytest.raises(HostsError, match="host 1: no such model") as raised:
                agree()
            assert raised.value.exit_code == 2


def test_a_failure_after_all_have_agreed_comes_with_the_next_thing(start: Start) -> None:
    """Host 0 would wait for this one until it counted as lost, and all would start again."""
    first, second = start(2)
    first.announce("load")
    second.hear()
    with ThreadPoolExecutor(1) as pool:
        agreed = pool.submit(second.agree, "read the model")
        first.agree("read the model")
        agreed.result()
    second.fail("no memory", 1)
    first.announce("score")
    with pytest.raises(HostsError, match="host 1: no memory"):
        first.agree("score the probe")


def test_a_failure_of_host_0_before_all_have_agreed_comes_to_the_others(start: Start) -> None:
    first, second = start(2)
    first.announce("train")
    second.hear()
    first.refuse("another trainer has taken over", 1)
    with pytest.raises(HostsError, match="host 0 has ended: another trainer has taken over"):
        second.agree("train step 3")


def test_a_host_that_is_late_is_lost_on_all(start: Start) -> None:
    """The third hears the reason where it waits, and may not end as if something were wrong with the run."""
    first, second, third = start(3, timeout=0.5)
    first.announce("train")
    second.hear()
    third.hear()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(third.agree, "train step 3")
        with pytest.raises(HostLost) as late:
            first.agree("train step 3")
        tell(first, late.value)
        with pytest.raises(HostsError, match="for host 1 to train step 3") as told:
            waiting.result()
    assert told.value.exit_code == HOST_LOST


def test_what_each_gives_comes_to_host_0_alone(start: Start) -> None:
    first, second = start(2)
    first.announce("save")
    second.hear()
    assert together(lambda: first.gather("save", b"a"), lambda: second.gather("save", b"b")) == [[b"a", b"b"], []]


def test_what_is_given_travels_in_values_that_come_within_one_wait(start: Start) -> None:
    """One of 100 MB does not come within a second on a busy machine, and so never does."""
    first, second = start(2)
    first.announce("write a version")
    second.hear()
    manifest = bytes(range(256)) * 10_000
    given = together(lambda: first.gather("write", b"{}"), lambda: second.gather("write", manifest))
    assert given == [[b"{}", manifest], []]
    values = [value for _, value in first._client.key_value_dir_get_bytes("rljax/1/given/")]
    assert len(values) > 2
    assert max(map(len, values)) <= 2**20


def test_a_host_asks_for_the_end(start: Start) -> None:
    first, second = start(2)
    asked: list[str] = []
    second.ask_to_stop()
    with ThreadPoolExecutor(1) as pool:
        first.watch_for_stop(lambda name: pool.submit(asked.append, name))
        while not asked:
            first._stopped.wait(0.05)
    first.close()
    assert asked == ["host 1"]


def test_a_loss_is_one_whatever_it_is_told_as() -> None:
    """Who writes files takes an error of what exchanges arrays for one of the disk."""
    for cause in (HostLost("host 1 is late"), ValueError("[Gloo] connection closed by peer")):
        error = OSError("version 3 cannot be written")
        error.__cause__ = cause
        assert means_loss(error)
    assert not means_loss(OSError("disk full"))
    assert not issubclass(HostsError, RuntimeError), "which a publisher makes its own error of"


def test_all_hear_what_a_teacher_says_to_host_0_or_why_it_says_nothing(start: Start) -> None:
    groups = trajectories_of(make_groups(1, groups=1))
    weights = [np.ones(len(one.token_ids), np.float32) for one in groups]
    outcomes: list[Any] = [ValueError("two\nlines"), TeacherAway("big: no answer"), None]

    def ask(trajectories: Sequence[Trajectory], weights: TokenValues, step: int) -> TokenValues:
        if outcomes[step] is not None:
            raise outcomes[step]
        return [np.arange(len(one.token_ids), dtype=np.float32) for one in trajectories]

    first, second = start(2)
    asks = [asked_by_leader(first, ask), asked_by_leader(second, None)]

    def heard(step: int) -> list[Any]:
        def one(share: Ask) -> Any:
            try:
                return [values.tolist() for values in share(groups, weights, step)]
            except TeacherError as error:
                return str(error)

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(one, asks))

    assert heard(0) == ["ValueError: two"] * 2
    assert heard(1) == ["big: no answer"] * 2
    assert heard(2) == [[list(range(len(one.token_ids))) for one in groups]] * 2
