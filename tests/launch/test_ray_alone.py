"""A cluster that a run starts for itself is nobody else's."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest
import ray

from rljax.config.load import load_config
from rljax.launch import ray_cluster
from rljax.launch.ray_alone import ClusterError, of_this_run_alone, replaced
from rljax.launch.ray_cluster import RayCluster, runtime_env

pytestmark = pytest.mark.ray

SMALLEST = Path(__file__).parents[1] / "e2e" / "smallest.py"
ALONE = {"launcher": "ray", "ray.address": "local", "sidecar.devices": "cpu"}
SET = (
    *("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"),
    *("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_prestart_worker_first_driver"),
    "RAY_worker_niceness",
)
ASKS = "import sys; from ray._raylet import GcsClient; print(GcsClient(address=sys.argv[1]).internal_kv_keys(b''))"


def listening() -> set[str]:
    """Addresses at which this process and its children take connections."""
    found = set()
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            connections = process.net_connections(kind="tcp")
            found |= {c.laddr.ip.removeprefix("::ffff:") for c in connections if c.status == psutil.CONN_LISTEN}
    return found


def test_it_listens_on_loopback_and_asks_for_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SET:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    before = dict(os.environ)
    with contextlib.closing(RayCluster(load_config(str(SMALLEST), ALONE))) as cluster:
        assert cluster.started
        assert cluster.place("cpu").engine_placements
        assert [address for address in listening() if not ip_address(address).is_loopback] == []
        priority = ray.remote(lambda: os.getpriority(os.PRIO_PROCESS, 0))
        assert ray.get(priority.remote()) == os.getpriority(os.PRIO_PROCESS, 0), "not below the learner's"
        started = [" ".join(process.cmdline()) for process in psutil.Process().children(recursive=True)]
        assert any("gcs_server" in command for command in started)
        idle = ("log_monitor.py", "/monitor.py", "dashboard/dashboard.py")
        assert [command for command in started if any(file in command for file in idle)] == []
        where = ray.get_runtime_context().gcs_address
        token = os.environ["RAY_AUTH_TOKEN"]

        def ask(**environment: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-c", ASKS, where]
            return subprocess.run(
                command, env={**before, **environment}, capture_output=True, text=True, timeout=120, check=False
            )

        assert "AuthenticationError" in ask().stderr
        assert "AuthenticationError" in ask(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token[::-1]).stderr
        known = ask(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token)
        assert known.returncode == 0, known.stderr
    assert {name: os.environ.get(name) for name in SET} == {name: before.get(name) for name in SET}
    assert not (tmp_path / ".ray").exists(), "Ray would write its token there for everybody to read"


def test_workers_have_another_priority_where_the_user_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_worker_niceness", "5")
    with of_this_run_alone():
        assert dict(os.environ)["RAY_worker_niceness"] == "5"
    assert dict(os.environ)["RAY_worker_niceness"] == "5"


def test_a_ray_that_cannot_close_a_cluster_is_refused_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(os.environ)
    monkeypatch.delattr(ray._private.ray_constants, "ENABLE_RAY_CLUSTER")
    said = r"^launcher=ray: Ray [\d.]+ has no ENABLE_RAY_CLUSTER, .*install ray=="
    with pytest.raises(ClusterError, match=said), of_this_run_alone():
        pass
    assert dict(os.environ) == before


def test_a_ray_that_starts_its_processes_in_another_way_starts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ray._private.node.Node, "start_api_server")
    with of_this_run_alone():
        assert not hasattr(ray._private.node.Node, "start_api_server")
    with replaced(ray, "__version__", "0"):
        assert ray.__version__ == "0"
    assert ray.__version__ != "0"


def test_keys_are_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray writes the environments of its processes into logs and command lines."""
    monkeypatch.setenv("HF_TOKEN", "s3cret")
    monkeypatch.setenv("HF_HOME", "/models")
    passed = runtime_env(load_config(str(SMALLEST), ALONE))
    assert "s3cret" not in str(passed)
    assert passed["env_vars"]["HF_HOME"] == "/models"


WEDGED = """
import logging, sys, threading
from concurrent.futures import ThreadPoolExecutor
import ray
from rljax.interrupts import RAY, end_process
from rljax.launch import ray_cluster
ray_cluster.LEAVE_SECONDS = 0.1
ray.shutdown = threading.Event().wait
ray_cluster._leave(ThreadPoolExecutor(1, RAY))
end_process(7)
"""


def test_a_process_ends_though_ray_does_not() -> None:
    end = subprocess.run([sys.executable, "-c", WEDGED], capture_output=True, text=True, timeout=240, check=False)
    said = "launcher=ray: Ray did not shut down within 0 seconds; this process ends all the same\n"
    assert (end.returncode, end.stderr) == (7, said)


def test_an_error_of_rays_own_is_not_taken_for_the_end_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise TimeoutError("of Ray's own")

    monkeypatch.setattr(ray_cluster.ray, "shutdown", fails)
    with pytest.raises(TimeoutError, match="of Ray's own"):
        ray_cluster._leave(ThreadPoolExecutor(1))
