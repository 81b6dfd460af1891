"""report.html: complete where the data is, a sentence where it is not, and nothing fetched from elsewhere."""

from __future__ import annotations

import base64
import gzip
import json
import logging
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plotly.offline import get_plotlyjs

from rljax.observe.metrics import MetricsLog
from rljax.observe.report.data import RunData, chosen_samples, flat, outlooks, time_split, waits
from rljax.observe.report.plots import binned, smooth
from rljax.observe.report.sections import speed
from tests.observe.report_pages import checked, figure, figures, numbers, written

AUDIT: dict[str, Any] = {
    "claimed": 102,
    "trained": 96,
    "open": 1,
    "open_by_state": {"ready": 1},
    "dropped": {"end_of_data": 2},
    "filtered": {"group_variance": 3},
    "trained_twice": 0,
    "max_staleness": 2,
    "staleness_bound": 2,
    "staleness_histogram": {"0": 10, "1": 80, "2": 10},
    "versions": {"announced": 13, "withdrawn": 0, "newest": 12},
    "lineages": [{"id": 1}],
    "faults": {"timeout": 4},
    "finished": True,
    "failure": None,
    "problems": [],
    "balanced": True,
}


def row(step: int) -> dict[str, float | None]:
    return {
        "reward/mean": step / 500,
        "staleness/mean": 1.0,
        "staleness/max": 2.0,
        "time/step": 1.0,
        "time/train": 0.4,
        "time/wait": 0.3,
        "time/publish": 0.1,
        "wait/generation": 0.2,
        "wait/stragglers": 0.1,
        "time/engine_busy": 0.6,
        "tokens_per_second": 1500.0,
        "bound/fraction": 0.6,
        "parity/max_abs_logprob_gap": 1e-6,
        "parity/mean_abs_logprob_gap": 1e-7,
        "response/mean_tokens": 3.0,
        "response/cut_off": 0.5,
        "entropy": 1.0,
        "grad_norm": float("nan") if step == 3 else 0.5,
    }


def test_tasksets_and_explorers_are_named_where_there_are_several(tmp_path: Path) -> None:
    several = {"tasksets": {"digits": {"size": 90, "issued": 12, "trained": 9, "open": 3}, "<own>": {"size": 5}}}
    page = checked(written(tmp_path, {}, AUDIT | several | {"explorers": {"explorer": {"trained": 9}}}))
    assert "<h3>Tasksets</h3>" in page
    assert "size 90, issued 12, open 3" in page
    assert "&lt;own&gt;" in page
    assert "<h3>Explorers</h3>" not in page


def test_a_whole_run_in_under_three_seconds(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    for step in range(1, 501):
        log.write(step, row(step))
        if step % 50 == 0:
            log.write(step, {"val/digits/score": 0.1 + step / 625})
    sample = {
        "at": 1.0,
        "step": 5,
        "task": "digits/0/1",
        "member": 0,
        "prompt": "</script><b>",
        "reward": 1.0,
        "tokens": 2,
    }
    sample |= {"reward_parts": {}, "finish_reason": "stop", "trained_from": 4, "staleness": 1, "retries": 0}
    sample["spans"] = [{"text": "4 < 5", "tokens": 2, "version": 3}]
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "a.jsonl").write_text(json.dumps(sample) + "\n")
    config = {"max_steps": 500, "sidecar": {"num_engines": 1, "engine": "embedded"}, "seed": 0}
    began = time.process_time()
    page = checked(written(tmp_path, config, AUDIT, {"commit": "abc<1>"}))
    assert time.process_time() - began < 3
    assert len(figures(page)) == 12
    scores = figure(page, "Held-out score")["data"][0]
    assert numbers(scores["x"]) == list(range(50, 501, 50))
    assert numbers(scores["y"]) == pytest.approx([0.1 + step / 625 for step in range(50, 501, 50)])
    rewards, smoothed = (numbers(trace["y"]) for trace in figure(page, "Reward")["data"])
    assert len(rewards) == len(smoothed) == 240
    assert np.mean(rewards) == pytest.approx(501 / 1000, rel=0.01)
    packed = re.findall(r'<script type="text/plain" id="plotly">(.*?)</script>', page)
    assert gzip.decompress(base64.b64decode(packed[0])).decode() == get_plotlyjs()
    assert len(page) < 2.5e6
    for said in ("finished", "0.18 →</span> 0.9", "balanced", "bound S = 2", "1.5k", "60%", "8:20", "group_variance 3"):
        assert said in page
    assert "abc&lt;1&gt;" in page
    assert "sidecar.num_engines" in page
    (embedded,) = re.findall(r'<script type="application/json" id="samples">(.*?)</script>', page, re.S)
    assert json.loads(embedded)[0]["turns"][0]["shown"] == "</script><b>"


def test_an_empty_run_gives_sentences(tmp_path: Path) -> None:
    page = checked(written(tmp_path))
    assert not figures(page)
    assert len(page) < 50_000, "no figure, no library that draws it"
    for said in (
        "not started",
        "No step has a reward",
        "There is no audit",
        "No trajectory was sampled",
        "config was not found",
    ):
        assert said in page


@pytest.mark.parametrize("rows", [1, 2])
def test_a_run_that_has_just_begun(tmp_path: Path, rows: int) -> None:
    log = MetricsLog(tmp_path)
    log.write(0, {"val/digits/score": 0.1})
    for step in range(1, rows + 1):
        log.write(step, row(step))
    page = checked(written(tmp_path, {}, None))
    assert len(figures(page)) == 11  # all but the audit's histogram


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    audit = AUDIT | {"failure": "trainer: 3 updates <in a row>", "balanced": False, "problems": ["2 groups were lost"]}
    audit |= {"finished": False, "max_staleness": 3}
    page = checked(written(tmp_path, {}, audit))
    for said in ('pill bad">failed', "3 updates &lt;in a row&gt;", "does not balance", "2 groups were lost"):
        assert said in page


def test_spoilt_data_spoils_its_section_only(tmp_path: Path) -> None:
    MetricsLog(tmp_path).write(1, row(1))
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "audit.json").write_text(json.dumps(AUDIT | {"dropped": 7, "staleness_histogram": {"x": 1}}))
    written(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "section “audit” could not be written" in page
    assert "Could not be drawn" in page
    assert len(figures(page)) == 10


def test_a_page_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "report.html").mkdir()
    with caplog.at_level(logging.WARNING):
        assert written(tmp_path) is None
    assert "report.html was not written" in caplog.text


def data(rows: list[dict[str, Any]], config: dict[str, Any] | None = None) -> RunData:
    return RunData("x", rows, config or {}, None, [])


def test_one_more_engine_by_hand() -> None:
    # Two engines compute 3 s a step each, G = 3; training takes T = 2.
    rows = [{"step": i, "time/step": 4.0, "time/train": 2.0, "time/engine_busy": 3.0} for i in range(1, 11)]
    rows[0] |= {"time/train": 60.0}  # compiles
    rows.insert(0, {"step": 0, "time/step": 9.0, "reward/mean": 0.5})  # the initial weights' validation
    now, one_more, two_more = outlooks(data(rows, {"sidecar": {"num_engines": 2}}))
    assert (now.engines, now.generation, now.training, now.least_step) == (2, 3.0, 2.0, 3.0)
    assert now.over_turns == pytest.approx(5 / 3)
    assert (one_more.generation, one_more.least_step, one_more.gain) == (2.0, 2.0, 1.5)
    assert one_more.over_turns == 2.0
    assert (two_more.least_step, two_more.gain) == (2.0, 1.5)
    assert outlooks(data([])) == []
    assert outlooks(data(rows, {"algorithm": {"expert_data_ratio": 1.0}})) == [], "engines only validate"
    assert data(rows).values("reward/mean") == []


@pytest.mark.parametrize(
    ("wait", "said"), [(0.5, "what the learner waits for."), (0.1, "what else it does in a step;")]
)
def test_where_more_is_to_be_gained_is_where_the_time_is(wait: float, said: str) -> None:
    """A step of 1 s with 0.4 of training and 0.2 of an engine: 0.6 are left, which it waits for or works."""
    row = {"time/step": 1.0, "time/train": 0.4, "time/wait": wait, "time/engine_busy": 0.2}
    rows = [row | {"step": step} for step in range(1, 11)]
    assert f"more to gain from {said}" in speed(data(rows, {"sidecar": {"num_engines": 1}}))["verdict"]


def test_waits_and_time_split_by_hand() -> None:
    rows = [
        {
            "step": 1,
            "time/step": 3.0,
            "time/train": 1.0,
            "time/wait": 1.5,
            "wait/generation": 0.5,
            "wait/explorer": 0.75,
        },
        {"step": 2, "time/step": 2.0, "time/train": 1.0, "time/wait": 0.5, "wait/generation": 0.5, "time/zip": 0.25},
    ]
    assert waits(data(rows)) == {"generation": 1.0, "explorer": 0.75, "other": 0.25}
    steps, parts = time_split(data(rows))
    assert steps == [1, 2]
    assert parts == {"train": [1.0, 1.0], "wait": [1.5, 0.5], "zip": [0.0, 0.25], "other": [0.5, 0.25]}


def test_binned_means_by_hand() -> None:
    steps, values = binned([1, 2, 3, 4, 5, 6], [1, 3, 5, 7, 9, 11], points=3)
    assert (steps.tolist(), values.tolist()) == ([2, 4, 6], [2, 6, 10])
    assert smooth(np.array([0.0, 3.0, 6.0]), 3).tolist() == [1.5, 3.0, 4.5]


def test_samples_keep_first_and_last() -> None:
    samples = [{"step": i} for i in range(1000)]
    kept = [sample["step"] for sample in chosen_samples(samples, 5)]
    assert (kept[0], kept[-1], len(kept)) == (0, 999, 5)


def test_flat_config() -> None:
    assert flat({"a": {"b": 1, "c": {"d": None}}, "e": {}}) == {"a.b": 1, "a.c.d": None, "e": {}}


def test_the_objective_has_the_curves_that_the_run_knows(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    known = {"loss": 0.1, "policy/kl_reference": 0.02, "policy/ess": 0.9, "rollout/filtered": 3.0}
    for step in range(1, 31):
        log.write(step, known | {"rollout/filtered/mean_band": 2.0, "rollout/filtered/overlong": 1.0})
    page = checked(written(tmp_path, {}, None))
    objective = page[page.index("<h2>Objective</h2>") : page.index("<h2>Staleness and speed</h2>")]
    titles = re.findall("<h3>(.*?)</h3>", objective)
    assert titles == ["Loss", "Divergence from the reference", "Effective sample size", "Filtered groups"]
    assert objective.count('class="figure"') == 4
    assert len(figures(page)) == 4
    assert "90 in these steps" in objective
    assert re.findall(r"var\(--(s\d)\).*?</svg>\s*(\w+)</span>", objective) == [("s1", "mean_band"), ("s2", "overlong")]


def test_the_divergence_from_teachers_is_drawn_by_teacher_and_taskset(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    for step in range(1, 31):
        log.write(step, {"distill/big/reverse_kl": 0.4, "distill/big/sums/reverse_kl": 0.5, "distill/big/seconds": 2.0})
    page = checked(written(tmp_path, {}, None))
    objective = page[page.index("<h2>Objective</h2>") : page.index("<h2>Staleness and speed</h2>")]
    assert re.findall("<h3>(.*?)</h3>", objective) == ["Reverse KL to the teachers"]
    assert re.findall(r"var\(--(s\d)\).*?</svg>\s*([\w/]+)</span>", objective) == [("s1", "big"), ("s2", "big/sums")]


def test_a_run_that_knows_nothing_of_its_objective_has_no_such_section(tmp_path: Path) -> None:
    assert "<h2>Objective</h2>" not in checked(written(tmp_path))


def test_groups_trained_twice_are_an_error_only_where_they_may_not_be(tmp_path: Path) -> None:
    page = checked(written(tmp_path, {}, AUDIT))
    assert '<div class="label">Trained twice</div><div class="value">0</div>' in page
    assert '<td>trained twice</td><td class="n">0</td>' in page


def test_uses_of_groups_that_may_be_trained_again_have_a_row_each(tmp_path: Path) -> None:
    page = checked(written(tmp_path, {}, AUDIT | {"max_uses": 2, "uses": {"1": 16, "2": 32}}))
    assert '<td>trained in 1 step</td><td class="n">16</td>' in page
    assert '<td>trained in 2 steps</td><td class="n">32</td>' in page
    allowed = "<small>in more than the 2 steps that algorithm.max_uses allows</small>"
    assert f'<td>trained too often {allowed}</td><td class="n">0</td>' in page
    assert '<div class="label">Trained too often</div>' in page
    assert "rained twice" not in page
