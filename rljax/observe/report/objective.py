"""Curves of the objective in the report: the metrics of an algorithm, which depend on the algorithm."""

from __future__ import annotations

from plotly import graph_objects as go

from rljax.observe.report.data import RunData
from rljax.observe.report.plots import Drawn, PlotSpec, curve, simple

FILTERED = "rollout/filtered"
MOST_FILTERS = 6
"""Filters with a curve of their own: there are no more colours."""


def _filtered(data: RunData, figure: go.Figure) -> Drawn:
    steps, values = data.series(FILTERED)
    if not values:
        return None
    caption = (
        f"Groups that a filter rejected while the batch of a step was collected; {sum(values):.0f} in these steps."
    )
    names = data.metric_names(f"{FILTERED}/")
    if len(names) > MOST_FILTERS:
        caption += f" Not shown: {', '.join(name.removeprefix(f'{FILTERED}/') for name in names[MOST_FILTERS:])}."
    names = names[:MOST_FILTERS]
    if len(names) < 2:
        curve(figure, steps, values, "s3", smoothed=True)
        return caption, []
    for i, name in enumerate(names, start=1):
        curve(figure, *data.series(name), f"s{i}", smoothed=True, name=name.removeprefix(f"{FILTERED}/"))
    return caption, [(name.removeprefix(f"{FILTERED}/"), f"s{i}") for i, name in enumerate(names, start=1)]


_KL = "Divergence of the policy from its reference at the tokens that it is trained on, nats, in the mean."
_APPROX_KL = "Divergence of the policy from what sampled the tokens that it is trained on, nats, in the mean."
_ESS = "Share of the sampled tokens that count after weighting by π/π_behaviour: 1 is on policy."
_RATIO = "Mean of π/π_behaviour at the trained tokens: 1 in expectation, whatever the policy."
_SIMPLE = (
    ("Loss", "loss", "Of the policy, in the mean over a step's updates. Its level means little.", "s1"),
    ("Entropy", "entropy", "Of the policy at the tokens it is trained on, nats, in the mean.", "s6"),
    ("Gradient norm", "grad_norm", "Global norm of the gradient before clipping.", "s7"),
    ("Divergence from the reference", "policy/kl_reference", _KL, "s5"),
    ("Coefficient of that divergence", "policy/kl_coef", "As a step used it, fixed or adapted.", "s5"),
    ("Divergence from the behaviour", "policy/approx_kl", _APPROX_KL, "s4"),
    ("Effective sample size", "policy/ess", _ESS, "s2"),
    ("Importance ratio", "policy/ratio_mean", _RATIO, "s4"),
    ("Clipped tokens", "policy/clip_fraction", "Share of the sampled tokens whose loss was clipped.", "s3"),
    ("Loss of the critic", "critic/loss", "In the mean over a step's updates.", "s1"),
    ("Variance that the critic explains", "critic/explained_variance", "1 − error / variance of the returns.", "s2"),
)
OBJECTIVE = (
    *(PlotSpec(title, simple(metric, caption, colour)) for title, metric, caption, colour in _SIMPLE),
    PlotSpec("Filtered groups", _filtered),
)
