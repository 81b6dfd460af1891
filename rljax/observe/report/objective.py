"""Curves of the objective in the report: the metrics of an algorithm, which depend on the algorithm."""

from __future__ import annotations

from plotly import graph_objects as go

from rljax.observe.report.data import RunData
from rljax.observe.report.plots import LINES, Drawn, PlotSpec, lines, simple

FILTERED = "rollout/filtered"


def _filtered(data: RunData, figure: go.Figure) -> Drawn:
    whole = data.series(FILTERED)
    if not whole[1]:
        return None
    total = f"{sum(whole[1]):.0f} in these steps."
    caption = f"Groups that a filter rejected while the batch of a step was collected; {total}"
    names = data.metric_names(f"{FILTERED}/")
    if len(names) > LINES:
        caption += f" Not shown: {', '.join(name.removeprefix(f'{FILTERED}/') for name in names[LINES:])}."
    each = [(name.removeprefix(f"{FILTERED}/"), data.series(name)) for name in names[:LINES]]
    legend = lines(figure, each if len(each) > 1 else [("", whole)], smoothed=True)
    return caption, legend if len(each) > 1 else []


def _distilled(data: RunData, figure: go.Figure) -> Drawn:
    names = [name for name in data.metric_names("distill/") if name.endswith("/reverse_kl")]
    if not names:
        return None
    caption = "logπ − logπ_k of the tokens that the policy sampled, nats a token, in the mean, by teacher and taskset."
    if len(names) > LINES:
        caption += f" Not shown: {', '.join(names[LINES:])}."
    named = {name: name.removeprefix("distill/").removesuffix("/reverse_kl") for name in names[:LINES]}
    return caption, lines(figure, [(short, data.series(name)) for name, short in named.items()], smoothed=True)


_KL = "Divergence of the policy from its reference at the tokens that it is trained on, nats, in the mean."
_APPROX_KL = "Divergence of the policy from what sampled the tokens that it is trained on, nats, in the mean."
_ESS = "Share of the sampled tokens that count after weighting by π/π_behaviour: 1 is on policy."
_RATIO = "Mean of π/π_behaviour at the trained tokens: 1 in expectation, whatever the policy."
METRICS = (
    ("Loss", "loss", "Of the policy, in the mean over a step's updates. Its level means little."),
    ("Entropy", "entropy", "Of the policy at the tokens it is trained on, nats, in the mean."),
    ("Gradient norm", "grad_norm", "Global norm of the gradient before clipping."),
    ("Learning rate", "learning_rate", "Of a step's last update."),
    ("Divergence from the reference", "policy/kl_reference", _KL),
    ("Coefficient of that divergence", "policy/kl_coef", "As a step used it, fixed or adapted."),
    ("Divergence from the behaviour", "policy/approx_kl", _APPROX_KL),
    ("Effective sample size", "policy/ess", _ESS),
    ("Importance ratio", "policy/ratio_mean", _RATIO),
    ("Clipped tokens", "policy/clip_fraction", "Share of the sampled tokens whose loss was clipped."),
    ("Loss of the critic", "critic/loss", "In the mean over a step's updates."),
    ("Variance that the critic explains", "critic/explained_variance", "1 − error / variance of the returns."),
)
"""Title, metric and caption of figures."""
OBJECTIVE: tuple[PlotSpec[RunData], ...] = (
    *(PlotSpec(title, simple(metric, caption)) for title, metric, caption in METRICS),
    PlotSpec("Reverse KL to the teachers", _distilled),
    PlotSpec("Filtered groups", _filtered),
)
