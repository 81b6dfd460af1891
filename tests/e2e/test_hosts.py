"""One learner over several processes, each with devices of its own, as a user starts them by hand."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import psutil
import pytest
from program import ROOT, Started, assert_balanced, batches_of, free_port, query, steps_trained, warn_once

from bench.cable import ADDRESSES, Cable, two_machines
from rljax.config.schema import ModelConfig, TinyConfig
from rljax.interrupts import HOST_LOST
from rljax.learner.checkpoints import Checkpoints
from rljax.learner.checksums import read_arrays
from rljax.models.tiny import make_tiny

DEVICES = 4
GOES_ON = ": all hosts end; the same command goes on from the last checkpoint"
FEW = ("mode=both", f"learner.mesh.fsdp={DEVICES}", "observe.report=false", "eval_steps=none")


def start(
    run_dir: Path,
    cache: Path,
    number: int,
    *overrides: str,
    few: Sequence[str] = FEW,
    halts: Mapping[int, str] = MappingProxyType({}),
    heartbeat: int = 10,
) -> list[Started]:
    """Starts so many hosts, which share the devices; ``halts`` are the failpoints at which some halt, by rank."""
    coordinator = f"learner.hosts.coordinator=127.0.0.1:{free_port()}"
    flags = devices_of_each(number)
    if number == 1:
        return [Started(run_dir, cache, *few, *overrides, **flags)]
    hosts = (f"learner.hosts.number={number}", coordinator, f"learner.hosts.heartbeat_timeout={heartbeat}")
    ranks = [f"learner.hosts.rank={rank}" for rank in range(number)]
    strikes = [f"{halts[rank]}=SIGSTOP" if rank in halts else "" for rank in range(number)]
    return [
        Started(run_dir, cache, *few, *hosts, rank, *overrides, failpoint=strike, **flags)
        for rank, strike in zip(ranks, strikes, strict=True)
    ]


def given(address: str = "127.0.0.1") -> tuple[str, ...]:
    """What two hosts are both given."""
    return (*FEW, "learner.hosts.number=2", f"learner.hosts.coordinator={address}:{free_port()}")


def devices_of_each(number: int) -> dict[str, str]:
    return {"XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES // number}"}


def end(hosts: list[Started]) -> None:
    for host in hosts:
        assert host.end() == 0, host.printed


def weights_of(run_dir: Path) -> dict[str, np.ndarray]:
    checkpoints = Checkpoints(run_dir / "checkpoints", keep=9)
    newest = checkpoints.committed()[-1]
    saved = checkpoints._checksums(checkpoints.directory / str(newest))
    names = [name for name in saved if name.startswith("params")]
    arrays = read_arrays(checkpoints.directory / str(newest), {name: saved[name] for name in names})
    return dict(zip(names, arrays, strict=True))


def assert_same_weights(run_dir: Path, other: Path, within: float = 1e-6) -> None:
    ours, theirs = weights_of(run_dir), weights_of(other)
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_allclose(array, theirs[name], rtol=0, atol=within)


def test_four_hosts_then_two_and_then_one_train_what_one_process_does(tmp_path: Path, cache: Path) -> None:
    """Host 2 halts for a while, which host 0 sees. Host 1 is asked to stop on the way; host 0 saves with it, all end,
    and two hosts go on. They are asked too, and one process ends the run over another mesh.
    """
    end(start(tmp_path / "one", cache, 1))
    four = start(tmp_path / "run", cache, 4, halts={2: "agree:2"}, heartbeat=60)
    halts_for_a_while(four[2])
    four[0].until(lambda: steps_trained(tmp_path / "run") >= 2, "two steps")
    assert four[1].end(signal.SIGTERM) == 0, four[1].printed
    end(four)
    assert "host 1" in four[0].printed
    assert "stopped after a checkpoint" in four[0].printed
    for rank, host in enumerate(four):
        assert "Gloo" not in host.printed
        assert "[Gloo] Rank" in (tmp_path / "run" / "logs" / f"host-{rank}-libraries.log").read_text()
    first, second, *_ = metrics_of_hosts(tmp_path / "run")
    for row in (first, second):
        assert 0 <= row["hosts/wait"] <= row["hosts/agree"] <= row["time/train"]
    assert second["hosts/wait"] > 0
    assert second["hosts/slowest"] == 2
    two = start(tmp_path / "run", cache, 2)
    two[0].until(lambda: steps_trained(tmp_path / "run") >= 4, "two steps more")
    assert two[0].end(signal.SIGTERM) == 0, two[0].printed
    end(two)
    another = ("mode=both", "learner.mesh.fsdp=2", "learner.mesh.data=2", *FEW[2:])
    end([Started(tmp_path / "run", cache, *another, **devices_of_each(1))])

    assert_balanced(tmp_path / "run", groups=24)
    assert batches_of(tmp_path / "run") == batches_of(tmp_path / "one")
    assert_same_weights(tmp_path / "run", tmp_path / "one")


def halted(host: Started) -> list[psutil.Process]:
    """Waits until a host has halted itself; returns its process."""

    def found() -> list[psutil.Process]:
        processes = psutil.Process(host.process.pid).children()
        return [process for process in processes if process.status() == psutil.STATUS_STOPPED]

    host.until(lambda: bool(found()), "its halt")
    return found()


def halts_for_a_while(host: Started) -> None:
    """Waits until a host has halted itself, and has it go on after seconds in which the others come to wait for it."""
    there = halted(host)
    time.sleep(12)  # less than its heartbeat_timeout
    for process in there:
        process.resume()


def metrics_of_hosts(run_dir: Path) -> list[dict[str, float]]:
    """The rows of a run whose steps several hosts have trained."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "hosts/slowest" in row]


def test_hosts_that_the_environment_tells_apart(tmp_path: Path, cache: Path) -> None:
    """By what torchrun sets, with host 0 told that it is at localhost: the other comes to it by the machine's name."""
    port = free_port() - 1
    few = (*FEW, "learner.hosts.number=2", "learner.hosts.start=environment", "max_steps=2", "save_steps=2")
    hosts = []
    for rank, address in enumerate(("localhost", socket.gethostname())):
        variables = {"RANK": f"{rank}", "WORLD_SIZE": "2", "MASTER_ADDR": address, "MASTER_PORT": f"{port}"}
        hosts.append(Started(tmp_path / "run", cache, *few, **variables, **devices_of_each(2)))
    end(hosts)
    for rank, host in enumerate(hosts):
        said = f"learner.hosts: host {rank} of 2, as torchrun says; coordinator {socket.gethostname()}:{port + 1}"
        assert said in host.printed
    assert_balanced(tmp_path / "run", groups=8)


def test_kl_in_the_reward_and_a_critic(tmp_path: Path, cache: Path) -> None:
    """What is computed on the devices of both and read on the host: scores of the reference, and values."""
    kl = ("algorithm.kl.where=reward", "algorithm.kl.coef=0.1", "algorithm.adv_estimator=gae")
    few = (*kl, "algorithm.minibatch_size=8", "max_steps=2")
    end(start(tmp_path / "one", cache, 1, *few))
    end(start(tmp_path / "run", cache, 2, *few))
    assert batches_of(tmp_path / "run") == batches_of(tmp_path / "one")
    # A hundredth of what an update moves a weight by: gradients are summed in any order over processes, and Adam
    # magnifies the rounding of those near zero (one weight of 2048 was seen 1.8e-6 apart).
    assert_same_weights(tmp_path / "run", tmp_path / "one", within=1e-5)


def assert_refused(hosts: list[Started], *said: str, code: int = 1, begun: bool = False) -> None:
    """All end by this code, each with one line that says all this; where a run had begun, host 1 has said that."""
    for host in hosts:
        assert host.end() == code, host.printed
        lines = [line for line in host.printed.splitlines() if not (begun and " trains with host 0 " in line)]
        line = warn_once("\n".join(lines))
        assert all(part in line for part in said), line


def test_a_host_with_another_config_is_one_line(tmp_path: Path, cache: Path) -> None:
    both, flags = given(), devices_of_each(2)
    hosts = [
        Started(tmp_path / "run", cache, *both, "learner.hosts.rank=0", **flags),
        Started(tmp_path / "run", cache, *both, "learner.hosts.rank=1", "learner.optimizer.beta1=0.8", **flags),
    ]
    assert_refused(hosts, "host 1", "its config.learner.optimizer.beta1 is another than that of host 0")
    assert not (tmp_path / "run").exists()


OWN = """
def loss(inputs):
    return -inputs.ratio * inputs.advantages, {}
"""


def test_a_host_with_another_file_of_the_users_own_loss_is_one_line(tmp_path: Path, cache: Path) -> None:
    """A shared config names it, and each machine has its own state of it."""
    both = (*given(), "algorithm.pg_variant=their_own:loss", "algorithm.allow_uncorrected=true")
    hosts = []
    for rank, text in enumerate((OWN, OWN.replace("-inputs", "-2 * inputs"))):
        (machine := tmp_path / f"machine-{rank}").mkdir()
        (machine / "their_own.py").write_text(text)
        keys, path = (*both, f"learner.hosts.rank={rank}"), os.pathsep.join([str(machine), str(ROOT)])
        hosts.append(Started(tmp_path / "run", cache, *keys, PYTHONPATH=path, **devices_of_each(2)))
    assert_refused(hosts, "host 1", "its file of algorithm.pg_variant=their_own:loss is another than that of host 0")
    assert not (tmp_path / "run").exists()


def test_a_host_with_another_tokenizer_is_one_line(tmp_path: Path, cache: Path) -> None:
    """The model is at the same path on both machines, and that of one numbers its tokens otherwise."""
    both = given()
    hosts = []
    for rank, characters in enumerate(("0123456789", "0123456798")):
        tiny = TinyConfig(hidden_size=32, intermediate_size=64, num_layers=1, characters=characters)
        make_tiny(ModelConfig(tiny=tiny), 0, (machine := tmp_path / f"machine-{rank}") / "model")
        keys = (*both, f"learner.hosts.rank={rank}", "model.path=./model", "max_steps=2")
        within = ("env", "-C", str(machine))
        hosts.append(Started(tmp_path / "run", cache, *keys, within=within, **devices_of_each(2)))
    assert_refused(hosts, "host 1", "its model is another than that of host 0", begun=True)
    assert steps_trained(tmp_path / "run") == 0


def test_a_host_with_a_directory_of_its_own_is_one_line(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path means another directory on each machine unless the disk is shared."""
    monkeypatch.chdir(tmp_path)  # what the hosts print is kept beside their relative run_dir
    both = given()
    hosts = []
    for rank in range(2):
        (machine := tmp_path / f"machine-{rank}").mkdir()
        keys, within = (*both, f"learner.hosts.rank={rank}"), ("env", "-C", str(machine))
        hosts.append(Started(Path("run"), cache, *keys, within=within, **devices_of_each(2)))
    assert_refused(hosts, "run_dir=run: host 1", "write a directory that all hosts share", code=2, begun=True)


def test_a_host_whose_others_never_come_says_so(tmp_path: Path, cache: Path) -> None:
    alone = Started(tmp_path / "run", cache, *given(), "learner.hosts.rank=0", "wait_timeout=12")
    assert alone.end() == HOST_LOST, alone.printed
    first, *_ = [line for line in alone.printed.splitlines() if line.startswith("rljax:") and "waits" not in line]
    assert "host 0 of 2 did not meet the others within 12 s; start all of them with the same coordinator" in first
    assert "and let all reach JAX's service 127.0.0.1:" in first
    *_, last = [line for line in alone.printed.splitlines() if line.startswith("rljax:")]
    assert last == first + GOES_ON
    assert "Check failure stack trace" not in alone.printed


def test_all_end_when_one_is_lost_and_the_same_commands_go_on(tmp_path: Path, cache: Path) -> None:
    """Host 0 and its supervisor are killed; then those of host 1 halt. Those go on when others have taken over: they
    end, and nothing of the run is harmed.
    """
    run_dir = tmp_path / "run"
    hosts = start(run_dir, cache, 2)
    hosts[0].until(lambda: steps_trained(run_dir) >= 1, "a step")
    hosts[0].end(signal.SIGKILL)
    assert lost(hosts[1], within=30) == f"rljax: host 0 ({socket.gethostname()}) is gone, and its supervisor{GOES_ON}"

    hosts = start(run_dir, cache, 2)
    hosts[1].until(lambda: steps_trained(run_dir) >= 3, "three steps")
    halted = [psutil.Process(hosts[1].process.pid), *psutil.Process(hosts[1].process.pid).children()]
    for process in halted:
        process.suspend()
    said = "has shown no sign of life for 10 s (learner.hosts.heartbeat_timeout)"
    assert lost(hosts[0], within=60) == f"rljax: host 1 ({socket.gethostname()}) {said}{GOES_ON}"

    successors = start(run_dir, cache, 2)
    successors[0].until(lambda: steps_trained(run_dir) >= 4, "a step more")
    for process in halted:
        process.resume()
    assert hosts[1].end() == HOST_LOST, hosts[1].printed
    end(successors)
    assert_balanced(run_dir, groups=24)


def test_hosts_0_that_halt_and_go_on_when_others_have_taken_over_harm_nothing(tmp_path: Path, cache: Path) -> None:
    """One as it announces a version, the next as it commits a checkpoint, each with its supervisor. The explorer finds
    them silent.
    """
    run_dir, former = tmp_path / "run", list[tuple[Started, list[psutil.Process]]]()
    few = ("mode=train", *FEW[1:], "rollout.claim_timeout=2")
    explorer = Started(run_dir, cache, "mode=explore", *few[1:])
    silent = "SELECT 1 FROM processes WHERE name = 'trainer' AND NOT alive"
    for failpoint in ("announce:2", "commit:2"):
        hosts = start(run_dir, cache, 2, few=few, halts={0: failpoint})
        asleep = [psutil.Process(hosts[0].process.pid), *halted(hosts[0])]
        asleep[0].suspend()
        former.append((hosts[0], asleep))
        assert f"host 0 ({socket.gethostname()}) has shown no sign of life for 10 s" in lost(hosts[1], within=60)
        explorer.until(lambda: bool(query(run_dir, silent)), "the explorer to find host 0 silent")

    successors, done = start(run_dir, cache, 2, few=few), steps_trained(run_dir)
    successors[0].until(lambda: steps_trained(run_dir) > done, "a step more")
    for host, asleep in former:
        for process in asleep:
            process.resume()
        assert host.end() in (1, HOST_LOST), host.printed
    end([*successors, explorer])
    assert_balanced(run_dir, groups=24)


@pytest.fixture
def cable() -> Iterator[Cable]:
    with contextlib.ExitStack() as held:
        try:
            there = held.enter_context(two_machines())
        except OSError as error:
            pytest.skip(str(error))
        yield there


def test_two_machines_whose_cable_is_cut_both_end_and_the_same_commands_go_on(
    tmp_path: Path, cache: Path, cable: Cable
) -> None:
    """Each says of the other what it sees: nothing."""
    run_dir = tmp_path / "run"

    def begin() -> list[Started]:
        both = (*given(ADDRESSES[0]), "learner.hosts.heartbeat_timeout=10")
        return [
            Started(run_dir, cache, *both, f"learner.hosts.rank={rank}", within=cable.on(rank), **devices_of_each(2))
            for rank in range(2)
        ]

    hosts = begin()
    hosts[0].until(lambda: steps_trained(run_dir) >= 1, "a step")
    cable.cut()
    silence = "has shown no sign of life for 10 s (learner.hosts.heartbeat_timeout)"
    for rank, host in enumerate(hosts):
        assert lost(host, within=60) == f"rljax: host {1 - rank} ({ADDRESSES[1 - rank]}) {silence}{GOES_ON}"
    cable.mend()
    end(begin())
    assert_balanced(run_dir, groups=24)


def lost(host: Started, within: float) -> str:
    """Waits for the end of a host that loses another; returns the line that says which."""
    began = time.monotonic()
    assert host.end() == HOST_LOST, host.printed
    assert time.monotonic() - began < within
    return [line for line in host.printed.splitlines() if line.startswith("rljax: ")][-1]
