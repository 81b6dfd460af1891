"""The report's sections as HTML. Whatever comes from a run is escaped."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from rljax.observe.formatting import clock, number, seconds, short
from rljax.observe.report_data import Outlook, RunData, chosen_samples, flat, outlooks, typical, waits
from rljax.observe.report_plots import Plot

EMBEDDED_CHARACTERS = 6000
"""Characters of a prompt and of a response that the page carries; samples/ has more."""

WAIT_REASONS = {
    "explorer": "an explorer: none was alive",
    "generation": "generation: too few groups were ready",
    "stragglers": "stragglers: groups that no later step may train",
    "data": "the end of the data",
    "other": "reasons that were not recorded",
}


def status(data: RunData) -> tuple[str, str]:
    """What became of the run, and the tone (good, warn, bad) to say it in."""
    audit = data.audit
    if audit is None:
        return ("running or not audited", "warn") if data.rows else ("not started", "warn")
    if audit.get("failure"):
        return "failed", "bad"
    return ("finished", "good") if audit.get("finished") else ("unfinished", "warn")


def header(data: RunData) -> str:
    """Name, status and facts; what failed, in a box of its own."""
    word, tone = status(data)
    facts = "".join(f"<span>{escape(name)} <b>{escape(str(value))}</b></span>" for name, value in data.facts.items())
    failure = (data.audit or {}).get("failure")
    alert = f'<p class="alert">{escape(str(failure))}</p>' if failure else ""
    return (
        f'<header><p class="brand">rljax</p><h1>{escape(data.name)}<span class="pill {tone}">{word}</span></h1>'
        f'<div class="facts">{facts}</div>{alert}</header>'
    )


def tiles(data: RunData) -> str:
    """The numbers to look at first."""
    most = data.config.get("max_steps")
    wall = sum(data.values("time/step"))
    made = [_tile("Steps", str(data.steps), f"of {most}" if most else "")]
    made.append(_held_out_tile(data))
    made += _audit_tiles(data)
    rate, fraction = typical(data.rows, "tokens_per_second"), typical(data.rows, "bound/fraction")
    made.append(
        _tile("Tokens per second", short(rate) if rate is not None else "–", "trained, median, not the first steps")
    )
    made.append(_tile("Of the bound", f"{fraction:.0%}" if fraction is not None else "–", "median of the steps"))
    made.append(_tile("Wall time", clock(wall) if wall else "–", "all steps"))
    return f'<div class="tiles">{"".join(made)}</div>'


def _held_out_tile(data: RunData) -> str:
    scores = {name: data.values(f"val/{name}/score") for name in data.tasksets()}
    ends = {name: [number(round(x, 3)) for x in (v[0], v[-1])[-len(v) :]] for name, v in scores.items() if v}
    if not ends:
        return _tile("Held-out score", "–", "not validated yet")
    (name, (*first, last)), *others = ends.items()
    note = ", ".join([name, *(f"{other} {' → '.join(values)}" for other, values in others[:3])])
    began = f'<span class="from">{first[0]} →</span> ' if first else ""
    return _tile("Held-out score", f"{began}{last}", note, raw=True)


def _audit_tiles(data: RunData) -> list[str]:
    audit = data.audit
    if audit is None:
        return [_tile("Audit", "–", "no audit yet")]
    balanced, twice, worst = audit.get("balanced"), audit.get("trained_twice"), audit.get("max_staleness")
    note = f"{audit.get('claimed', 0)} groups claimed" if balanced else f"{len(audit.get('problems', []))} problems"
    over = data.bound is not None and worst is not None and worst > data.bound
    within = f"bound S = {data.bound}" if data.bound is not None else ""
    return [
        _tile("Audit", "balanced" if balanced else "does not balance", note, "good" if balanced else "bad"),
        _tile("Max staleness", number(worst), within, "bad" if over else ""),
        _tile(_too_often(audit)[0].capitalize(), number(twice), "groups", "bad" if twice else ""),
    ]


def _most_uses(audit: Mapping[str, Any]) -> int:
    """In how many steps a group may be trained."""
    return audit.get("max_uses") or 1


def _too_often(audit: Mapping[str, Any]) -> tuple[str, Any, str]:
    """Groups that were trained more often than that, as a row: name, count and note."""
    most, count = _most_uses(audit), audit.get("trained_twice")
    if most == 1:
        return "trained twice", count, ""
    return "trained too often", count, f"in more than the {_many(most, 'step')} that algorithm.max_uses allows"


def _many(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _tile(label: str, value: str, note: str = "", tone: str = "", raw: bool = False) -> str:
    shown = value if raw else escape(value)
    below = f'<div class="note">{escape(note)}</div>' if note else ""
    above = f'<div class="label">{escape(label)}</div>'
    return f'<div class="tile {tone}">{above}<div class="value">{shown}</div>{below}</div>'


def plots(heading: str, found: Iterable[tuple[str, Plot | str]]) -> str:
    """A card for each plot, by title; a sentence where there is none, and no section where there is neither."""
    cards = []
    for title, plot in found:
        if not plot:
            continue
        if isinstance(plot, str):
            cards.append(f'<div class="card"><h3>{escape(title)}</h3><p class="missing">{escape(plot)}</p></div>')
            continue
        legend = "".join(f'<span style="--c:var(--{colour})">{escape(label)}</span>' for label, colour in plot.legend)
        legend = f'<div class="legend">{legend}</div>' if legend else ""
        cards.append(f'<div class="card"><h3>{escape(title)}</h3><p>{escape(plot.caption)}</p>{legend}{plot.svg}</div>')
    return f'<h2>{escape(heading)}</h2><div class="plots">{"".join(cards)}</div>' if cards else ""


def speed(data: RunData) -> str:
    """What the learner waited for, and what engines would buy."""
    return f'<h2>Where the time goes</h2><div class="two">{_waits(data)}{_engines(data)}</div>'


def _waits(data: RunData) -> str:
    found, wall = waits(data), sum(data.values("time/step"))
    title = "<h3>What the learner waited for</h3>"
    if not found:
        said = "The learner never waited." if data.values("time/wait") else "No step has recorded a wait."
        return f'<div class="card">{title}<p class="missing">{said}</p></div>'
    longest, rows = max(found.values()), ""
    for reason, spent in found.items():
        share = f"{spent / wall:.1%}" if wall else "–"
        bar = f'<div class="bar" style="width:{spent / longest:.1%}"></div>'
        what = escape(WAIT_REASONS.get(reason, reason))
        rows += f'<tr><td>{what}{bar}</td><td class="n">{seconds(spent)}</td><td class="n">{share}</td></tr>'
    head = '<tr><th>waiting for</th><th class="n">in all</th><th class="n">of wall time</th></tr>'
    return f'<div class="card">{title}<div class="scroll"><table>{head}{rows}</table></div></div>'


def _engines(data: RunData) -> str:
    title, found = "<h3>What one more engine would buy</h3>", outlooks(data)
    if not found:
        said = "Not known yet: it takes the engines' busy time and the training time of a step."
        return f'<div class="card">{title}<p class="missing">{said}</p></div>'
    rows = "".join(
        f'<tr class="{"now" if i == 0 else ""}"><td>{o.engines} engine{"s" if o.engines > 1 else ""}'
        f'{" <small>now</small>" if i == 0 else ""}</td><td class="n">{seconds(o.generation)}</td>'
        f'<td class="n">{seconds(o.training)}</td><td class="n">{seconds(o.least_step)}</td>'
        f'<td class="n">{o.over_turns:.2f}×</td></tr>'
        for i, o in enumerate(found)
    )
    head = (
        '<tr><th></th><th class="n">generating, G</th><th class="n">training, T</th>'
        '<th class="n">least step</th><th class="n">over taking turns</th></tr>'
    )
    verdict = escape(_verdict(found, typical(data.rows, "time/step")))
    table = f'<div class="scroll"><table>{head}{rows}</table></div>'
    return f'<div class="card">{title}{table}<p class="verdict">{verdict}</p></div>'


def _verdict(found: Sequence[Outlook], step: float | None) -> str:
    now, next_one = found[0], found[1]
    if next_one.gain > 1.02:
        least = seconds(next_one.least_step)
        text = f"One more engine lowers the least step to {least}: at most {next_one.gain:.2f}× faster."
    else:
        text = "One more engine would buy nothing: training is the longer side."
    if step is not None and step > 1.25 * now.least_step:
        text += f" A step takes {seconds(step)} now, so there is more to gain from what the learner waits for."
    return text + " Engines that share the learner's cores or chips buy less."


def audit(data: RunData) -> str:
    """What each claimed group became, and the faults on the way."""
    lead = '<p class="lead">Every claimed group, and what became of it. Counts are in groups.</p>'
    return f'<h2>Audit</h2>{lead}<div class="two">{_balance(data)}{_origins(data)}{_faults(data)}</div>'


def _balance(data: RunData) -> str:
    found = data.audit
    if found is None:
        return '<div class="card"><h3>Balance</h3><p class="missing">There is no audit of this run yet.</p></div>'
    rows = [("claimed", found.get("claimed"), ""), ("trained", found.get("trained"), _share(found, "trained"))]
    for state in ("filtered", "dropped"):
        reasons = found.get(state) or {}
        rows.append((state, sum(reasons.values()), ", ".join(f"{reason} {n}" for reason, n in reasons.items())))
    still = found.get("open_by_state") or {}
    rows.append(("open", found.get("open"), ", ".join(f"{state} {n}" for state, n in still.items())))
    if _most_uses(found) > 1:
        uses = {int(times): count for times, count in (found.get("uses") or {}).items()}
        rows += [(f"trained in {_many(times, 'step')}", count, "") for times, count in uses.items()]
    rows.append(_too_often(found))
    if found.get("demonstrations"):
        rows.append(("demonstrations", found["demonstrations"], "imitated beside the groups"))
    if found.get("retired"):
        rows.append(("retired", found["retired"], "of a lost lineage; their tasks were opened again"))
    versions = found.get("versions")
    if isinstance(versions, Mapping):
        rows.append(("versions", versions.get("announced"), _listed(versions, skip="announced")))
    elif versions is not None:
        rows.append(("versions", versions if isinstance(versions, int) else len(versions), ""))
    if found.get("lineages"):
        rows.append(("lineages", len(found["lineages"]), "lives of the learner"))
    body = "".join(
        f"<tr><td>{escape(name)}{f' <small>{escape(note)}</small>' if note else ''}</td>"
        f'<td class="n">{escape(number(count))}</td></tr>'
        for name, count, note in rows
    )
    problems = "".join(f'<p class="alert">{escape(str(problem))}</p>' for problem in found.get("problems") or [])
    return f'<div class="card"><h3>Balance</h3><table>{body}</table>{problems}</div>'


def _share(audit: Mapping[str, Any], name: str) -> str:
    claimed = audit.get("claimed")
    return f"{math.floor(1000 * audit.get(name, 0) / claimed) / 10:g}% of the claimed" if claimed else ""


def _listed(values: Mapping[str, Any], skip: str) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if name != skip)


def _origins(data: RunData) -> str:
    """Which tasksets and explorers the groups come from, where there are several."""
    cards = ""
    for title, section in (("Tasksets", "tasksets"), ("Explorers", "explorers")):
        found = (data.audit or {}).get(section) or {}
        if len(found) < 2:
            continue
        rows = "".join(
            f"<tr><td>{escape(name)} <small>{escape(_listed(counts, skip='trained'))}</small></td>"
            f'<td class="n">{escape(number(counts.get("trained", 0)))} trained</td></tr>'
            for name, counts in found.items()
        )
        cards += f'<div class="card"><h3>{title}</h3><table>{rows}</table></div>'
    return cards


def _faults(data: RunData) -> str:
    title, found = "<h3>Faults that the run survived</h3>", (data.audit or {}).get("faults") or {}
    if not found:
        said = "None was recorded." if data.audit is not None else "Not known: there is no audit of this run yet."
        return f'<div class="card">{title}<p class="missing">{said}</p></div>'
    rows = "".join(
        f'<tr><td>{escape(str(kind).replace("_", " "))}</td><td class="n">{escape(number(count))}</td></tr>'
        for kind, count in sorted(found.items(), key=lambda item: -item[1])
    )
    return f'<div class="card">{title}<table>{rows}</table></div>'


def trajectories(data: RunData) -> str:
    """The viewer of sampled trajectories."""
    title, samples = "<h2>Trajectories</h2>", [_cut(sample) for sample in chosen_samples(data.samples)]
    if not samples:
        said = "No trajectory was sampled (observe.samples_per_step keeps some of every step)."
        return f'{title}<div class="card"><p class="missing">{said}</p></div>'
    lead = "Some of every step. Each colour is the version of the weights that sampled those tokens."
    if any(len(sample["turns"]) > 1 for sample in samples):
        lead += " Of many turns, the prompt is what the environment showed, and the response what the model answered."
    embedded = json.dumps(samples, ensure_ascii=False).replace("<", "\\u003c")
    return (
        f'{title}<p class="lead">{lead}</p><div class="card viewer" id="viewer"><div class="controls">'
        '<button id="previous" type="button">← Previous</button><button id="next" type="button">Next →</button>'
        f'<input id="slider" type="range" min="0" max="{len(samples) - 1}" aria-label="sample">'
        '<span class="where" id="where"></span></div><div class="chips" id="chips"></div>'
        '<div class="controls" id="turns"><button id="back" type="button">← Turn</button>'
        '<button id="on" type="button">Turn →</button><span class="where" id="turn"></span></div>'
        '<p class="role">Prompt</p><pre id="prompt" tabindex="0"></pre>'
        '<p class="role">Response</p><pre id="response" tabindex="0"></pre><div class="legend" id="versions"></div>'
        "<noscript>Trajectories need JavaScript; samples/ in the run directory has them as text.</noscript></div>"
        f'<script type="application/json" id="samples">{embedded}</script>'
    )


def _cut(sample: Mapping[str, Any]) -> dict[str, Any]:
    turns = sample.get("turns", [{"shown": sample.get("prompt", ""), "spans": sample.get("spans", [])}])
    room, cut = EMBEDDED_CHARACTERS, []
    for turn in turns:
        shown, spans = turn["shown"][:room], []
        room -= len(shown)
        for span in turn["spans"]:
            text = span["text"][: max(room, 0)]
            room -= len(text)
            spans.append(span | {"text": text + (" […]" if len(text) < len(span["text"]) else "")})
        cut.append({**turn, "shown": shown, "spans": spans})
        if room <= 0:
            break
    kept = {name: value for name, value in sample.items() if name not in ("prompt", "spans")}
    return kept | {"turns": cut, "of": len(turns)}


def config(data: RunData) -> str:
    """The resolved config, folded."""
    if not data.config:
        return '<h2>Config</h2><div class="card"><p class="missing">The resolved config was not found.</p></div>'
    rows = "".join(
        f"<div><span>{escape(key)}</span><code>{escape(shown)}</code></div>"
        for key, value in flat(data.config).items()
        for shown in [json.dumps(value, ensure_ascii=False, default=str)]
    )
    return (
        f'<details><summary>Resolved config</summary><div class="card"><div class="config">{rows}</div></div></details>'
    )
