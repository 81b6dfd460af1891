"""The bench of the steady state: its meters against numpy, and a short run on each database."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from bench.steady.__main__ import table
from bench.steady.load import SAVE_STEPS, Load
from bench.steady.meters import Latencies, between, merged, quantile
from bench.steady.run import measure
from tests.postgres import Server


def test_quantiles_of_bins_are_those_of_the_values_within_a_bin() -> None:
    seconds = np.random.default_rng(0).lognormal(-6, 1.5, 10_000)
    latencies = Latencies()
    for value in seconds:
        latencies.add("store", float(value))
    for share in (0.5, 0.99):
        exact = np.quantile(seconds, share, method="inverted_cdf")
        assert quantile(latencies.bins["store"], share) == pytest.approx(exact, rel=0.03)  # half a bin is 2.5 %
    assert math.isnan(quantile({}, 0.5))


def test_bins_of_two_processes_add_up_to_what_both_counted_since() -> None:
    ours = between({"store": {3: 2}}, {"store": {3: 5, 4: 1}, "claim": {0: 7}})
    assert ours == {"store": {3: 3, 4: 1}, "claim": {0: 7}}
    assert merged([ours, {"store": {4: 1}}]) == {"store": {3: 3, 4: 2}, "claim": {0: 7}}


def short_run(load: Load) -> None:
    lines: list[str] = []
    found = measure(load, 0.0, 0.0, list, lines.append, least_steps=2 * SAVE_STEPS)
    assert found["audit"]["balanced"]
    assert found["audit"]["trained"] >= 2 * SAVE_STEPS * load.batch_groups
    assert 0 < found["most_in_flight"] <= load.in_flight
    assert {"store", "lease", "mark_trained", "heartbeat"} <= set(found["latency_ms"])
    last = found["samples"][-1]["rows"]
    assert last["payloads"] < last["groups"]  # those that no checkpoint would replay are gone
    assert lines
    assert f"{load.in_flight} in flight" in table(found)


@pytest.mark.slow
def test_a_short_run_on_sqlite(tmp_path: Path) -> None:
    short_run(Load(str(tmp_path / "ledger.db"), "", tmp_path, 64, 64.0, explorers=1, engines=2, sample_seconds=1.0))


@pytest.mark.slow
def test_a_short_run_of_two_explorers_on_postgresql(server: Server, tmp_path: Path) -> None:
    place = server.new_schema()
    url = place.url.render_as_string(hide_password=False)
    short_run(Load(url, place.name, tmp_path, 64, 64.0, explorers=2, engines=2, sample_seconds=1.0))
