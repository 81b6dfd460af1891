"""Which host of a learner a process is to be, by its config and by what has started it."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from jax._src.clusters import cloud_tpu_cluster

from rljax.config.fields import ConfigError
from rljax.config.schema import Config, HostsConfig, LearnerConfig, MeshConfig
from rljax.launch.host_places import place_of
from rljax.launch.host_process import Place

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "first", "MASTER_PORT": "29500", "LOCAL_RANK": "1"}
SLURM = {
    "SLURM_JOB_ID": "70000",
    "SLURM_STEP_NODELIST": "node[07-08]",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}


def config(**hosts: Any) -> Config:
    learner = LearnerConfig(mesh=MeshConfig(fsdp=4), hosts=HostsConfig(number=2, **hosts))
    return Config(mode="evaluate", learner=learner)


def test_the_config_comes_first() -> None:
    assert place_of(config(rank=0, coordinator="here:1"), TORCHRUN) == Place(0, 2, "here:1")


def test_torchrun_says_it() -> None:
    """Its own store listens at MASTER_PORT: JAX's service is at the port after it. The second of two processes on a
    machine has the second half of its devices.
    """
    assert place_of(config(), TORCHRUN) == Place(1, 2, "first:29501", "torchrun", "2,3")


def test_slurm_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX's port of job 70000 is 61440 + 70000 mod 4096. The first task of a node has its first devices."""
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    assert place_of(config(), {}) == Place(1, 2, "node07:61808", "slurm", "0,1")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"WORLD_SIZE": "x"}, r"WORLD_SIZE='x': must be a whole number at least 1"),
        ({"WORLD_SIZE": "0"}, r"WORLD_SIZE='0': must be a whole number at least 1"),
        ({"RANK": "second"}, r"RANK='second': must be a whole number from 0 to 1"),
        ({"RANK": "2"}, r"RANK='2': must be a whole number from 0 to 1"),
        ({"LOCAL_RANK": "-1"}, r"LOCAL_RANK='-1': must be a whole number at least 0"),
        ({"MASTER_PORT": "tcp://10.0.0.1:29500"}, r"MASTER_PORT='tcp://10.0.0.1:29500': must be a whole number from 1"),
        ({"MASTER_PORT": "65535"}, r"MASTER_PORT='65535': must be a whole number from 1 to 65534"),
        ({"MASTER_ADDR": "fd00::1"}, r"MASTER_ADDR='fd00::1': must be a name or IPv4 address of host 0"),
        ({"MASTER_ADDR": ""}, r"MASTER_ADDR='': must be a name or IPv4 address of host 0"),
    ],
)
def test_a_variable_that_cannot_be_is_named(changed: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{said}.*write learner.hosts.rank and learner.hosts.coordinator"):
        place_of(config(), TORCHRUN | changed)


def test_where_the_config_says_where_host_0_is_no_variable_is_asked() -> None:
    broken = {**TORCHRUN, "MASTER_ADDR": "fd00::1", "MASTER_PORT": "tcp://10.0.0.1:29500"}
    assert place_of(config(coordinator="there:1"), broken) == Place(1, 2, "there:1", "torchrun", "2,3")


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1"])
@pytest.mark.parametrize(
    ("rank", "of_machine", "others_come"),
    [("0", "1", True), ("0", None, True), ("0", "2", False), ("1", "1", True), ("1", "2", False)],
)
def test_host_0_listens_to_other_machines(address: str, rank: str, of_machine: str | None, others_come: bool) -> None:
    """To whom it is ``localhost``, as some launchers tell host 0 alone; unless all hosts are known to be here. All on
    its machine call that by the same name.
    """
    given = {**TORCHRUN, "RANK": rank, "MASTER_ADDR": address}
    place = place_of(config(), given | ({} if of_machine is None else {"LOCAL_WORLD_SIZE": of_machine}))
    assert place is not None
    assert place.coordinator == f"{socket.gethostname() if others_come else address}:29501"


GPUS = "CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("given", "devices"),
    [
        ({GPUS: "4,5,6,7"}, "2,3"),
        ({GPUS: "2,3", "SLURM_GPUS_PER_TASK": "2"}, ""),
        ({GPUS: "0,1", "SLURM_GPU_BIND": "per_task:2"}, ""),
        ({GPUS: "0,1,2,3", "SLURM_GPU_BIND": "none"}, "2,3"),
        ({GPUS: "0", "JAX_PLATFORMS": "cpu"}, "2,3"),
        ({GPUS: "NoDevFiles"}, "2,3"),
        ({GPUS: ""}, "2,3"),
    ],
)
def test_the_second_task_of_a_node_has_gpus_that_it_sees(
    given: dict[str, str], devices: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers count what it sees: all of the machine, or what is its own."""
    for name, value in {**SLURM, "SLURM_LOCALID": "1"}.items():
        monkeypatch.setenv(name, value)
    assert place_of(config(), given) == Place(1, 2, "node07:61808", "slurm", devices)


@pytest.mark.parametrize("gpus", ["0,1", "0,1,2"])
def test_gpus_that_are_not_seen_are_refused(gpus: str) -> None:
    """Two processes that see the same two GPUs have not two each."""
    with pytest.raises(ConfigError, match=rf"^{GPUS}={gpus}: process 1 of this machine is to have GPUs 2,3 of those"):
        place_of(config(), {**TORCHRUN, GPUS: gpus})


@pytest.fixture
def tpu_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A TPU machine, and the attributes that its metadata server knows."""
    attributes = {"tpu-env": "ZONE: 'us-east5-a'"}

    class Metadata(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = attributes.get(self.path.rpartition("/")[2])
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write((found or "").encode())

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    threading.Thread(target=server.serve_forever).start()
    monkeypatch.setattr(cloud_tpu_cluster, "running_in_cloud_tpu_vm", True)
    monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{server.server_port}")
    yield attributes
    server.shutdown()
    server.server_close()


def test_a_tpu_slice_says_it(tpu_machine: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """By the attributes of its metadata server, of which JAX asks; all TPUs of a machine are its host's."""
    monkeypatch.delenv("TPU_SKIP_MDS_QUERY", raising=False)
    tpu_machine |= {"agent-worker-number": "1", "worker-network-endpoints": "unknown:0:127.0.0.1,unknown:1:127.0.0.2"}
    assert place_of(config(), {}) == Place(1, 2, "127.0.0.1:8482", "gcetpu", "")
    tpu_machine["worker-network-endpoints"] = "unknown:0:127.0.0.1"
    assert place_of(config(), {}) is None


@pytest.mark.usefixtures("tpu_machine")
def test_a_tpu_slice_on_kubernetes_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the variables that GKE sets."""
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "true")
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "localhost,second")
    monkeypatch.setenv("TPU_WORKER_ID", "1")
    assert place_of(config(), {}) == Place(1, 2, "localhost:8482", "gketpu", "")


@pytest.mark.parametrize("tasks", ["1", None])
def test_where_nothing_says_of_several_all_are_here(monkeypatch: pytest.MonkeyPatch, tasks: str | None) -> None:
    """A job of one task is one in which somebody tries something out."""
    for name, value in SLURM.items() if tasks else ():
        monkeypatch.setenv(name, value if name != "SLURM_NTASKS" else tasks or "")
    assert place_of(config(), {}) is None
    with pytest.raises(ConfigError, match=r"learner.hosts.start=environment: nothing says which of 2 hosts"):
        place_of(config(start="environment"), {})


@pytest.mark.parametrize("variables", [{}, {**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"}])
def test_a_coordinator_without_a_rank_is_refused_where_nothing_says_one(variables: dict[str, str]) -> None:
    """Else each machine would start all hosts."""
    with pytest.raises(
        ConfigError, match=r"^learner.hosts.coordinator='first:1': nothing says which of 2 .*\.rank, or"
    ):
        place_of(config(coordinator="first:1"), variables)


def test_the_config_may_say_that_all_are_here() -> None:
    assert place_of(config(start="here"), TORCHRUN) is None


def test_another_number_of_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"learner.hosts.number=2: WORLD_SIZE=4 processes were started; write 4"):
        place_of(config(), {**TORCHRUN, "WORLD_SIZE": "4"})
    for name, value in {**SLURM, "SLURM_NTASKS": "3"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"learner.hosts.number=2: slurm=3 processes were started; write 3"):
        place_of(config(), {})
