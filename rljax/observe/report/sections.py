"""Sections of the report, as the values that their templates show."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljax.observe.formatting import clock, number, seconds, short
from rljax.observe.report.data import Outlook, RunData, chosen_samples, flat, outlooks, typical, waits

EMBEDDED_CHARACTERS = 6000
"""Characters of a prompt and of a response that the page carries; samples/ has more."""

WAIT_REASONS = {
    "explorer": "an explorer: none was alive",
    "generation": "generation: too few groups were ready",
    "stragglers": "stragglers: groups that no later step may train",
    "data": "the end of the data",
    "other": "reasons that were not recorded",
}

Context = dict[str, Any]
"""Variables of a template, by name."""


@dataclass(frozen=True)
class Tile:
    """A key figure, with a label, a note, a tone (good, warn, bad), and the value that it began with."""

    label: str
    value: str
    note: str = ""
    tone: str = ""
    began: str = ""


@dataclass(frozen=True)
class Count:
    """A row of a table: what is counted, a note on it, and the count as text."""

    name: str
    count: str
    note: str = ""


def status(data: RunData) -> tuple[str, str]:
    """Returns the status of the run as a phrase, and its tone (good, warn, bad)."""
    audit = data.audit
    if _failure(data):
        return "failed", "bad"
    if data.running:
        return "running", "live"
    if audit is None:
        return ("not audited", "warn") if data.rows else ("not started", "warn")
    return ("finished", "good") if audit.get("finished") else ("unfinished", "warn")


def _failure(data: RunData) -> str | None:
    return (data.audit or {}).get("failure") or data.failure


def header(data: RunData) -> Context:
    """Returns name, status, facts and failure of the run."""
    word, tone = status(data)
    note = "As it stood at the last validation: this page is written anew at each, and at the end." * data.running
    return {
        "name": data.name,
        "status": word,
        "tone": tone,
        "facts": data.facts,
        "failure": _failure(data),
        "note": note,
    }


def summary(data: RunData) -> Context:
    """Returns the key figures."""
    most = data.config.get("max_steps")
    wall = sum(data.values("time/step"))
    rate, fraction = typical(data.rows, "tokens_per_second"), typical(data.rows, "bound/fraction")
    tokens = short(rate) if rate is not None else "–"
    tiles = [
        Tile("Steps", str(data.steps), f"of {most}" if most else ""),
        _held_out_tile(data),
        *_audit_tiles(data),
        Tile("Tokens per second", tokens, "trained, median, not the first steps"),
        Tile("Of the bound", f"{fraction:.0%}" if fraction is not None else "–", "training or sampling alone, median"),
        Tile("Wall time", clock(wall) if wall else "–", "all steps"),
    ]
    return {"tiles": tiles}


def _held_out_tile(data: RunData) -> Tile:
    scores = {name: data.values(f"val/{name}/score") for name in data.tasksets()}
    ends = {name: [number(round(x, 3)) for x in (v[0], v[-1])[-len(v) :]] for name, v in scores.items() if v}
    if not ends:
        return Tile("Held-out score", "–", "not validated yet")
    (name, (*first, last)), *others = ends.items()
    note = ", ".join([name, *(f"{other} {' → '.join(values)}" for other, values in others[:3])])
    return Tile("Held-out score", last, note, began=first[0] if first else "")


def _audit_tiles(data: RunData) -> list[Tile]:
    audit = data.audit
    if audit is None:
        return [Tile("Audit", "–", "no audit yet")]
    balanced, twice, worst = audit.get("balanced"), audit.get("trained_twice"), audit.get("max_staleness")
    note = f"{audit.get('claimed', 0)} groups claimed" if balanced else f"{len(audit.get('problems', []))} problems"
    over = data.bound is not None and worst is not None and worst > data.bound
    within = f"bound S = {data.bound}" if data.bound is not None else ""
    return [
        Tile("Audit", "balanced" if balanced else "does not balance", note, "good" if balanced else "bad"),
        Tile("Max staleness", number(worst), within, "bad" if over else ""),
        Tile(_too_often(audit).name.capitalize(), number(twice), "groups", "bad" if twice else ""),
    ]


def _most_uses(audit: Mapping[str, Any]) -> int:
    """Returns the number of steps that may train a group."""
    return audit.get("max_uses") or 1


def _too_often(audit: Mapping[str, Any]) -> Count:
    """Returns the row of groups that were trained in more steps than that."""
    most, count = _most_uses(audit), number(audit.get("trained_twice"))
    if most == 1:
        return Count("trained twice", count)
    return Count("trained too often", count, f"in more than the {many(most, 'step')} that algorithm.max_uses allows")


def many(count: int, word: str) -> str:
    """Returns the count with its word, in the plural where it is one.

    >>> many(2, "step")
    '2 steps'
    """
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def speed(data: RunData) -> Context:
    """Returns the learner's waits by reason, and the speed to be expected of more engines."""
    found, wall, ahead = waits(data), sum(data.values("time/step")), outlooks(data)
    longest = max(found.values(), default=0.0)
    step, waited = (typical(data.rows, f"time/{name}") for name in ("step", "wait"))
    rows = [
        {
            "reason": WAIT_REASONS.get(reason, reason),
            "spent": spent,
            "of_longest": spent / longest,
            "share": f"{spent / wall:.1%}" if wall else "–",
        }
        for reason, spent in found.items()
    ]
    return {
        "waits": rows,
        "waited_known": bool(data.values("time/wait")),
        "outlooks": ahead,
        "verdict": _verdict(ahead, step, waited or 0.0) if ahead else "",
    }


def _verdict(found: Sequence[Outlook], step: float | None, waited: float) -> str:
    now, next_one = found[0], found[1]
    if next_one.gain > 1.02:
        least = seconds(next_one.least_step)
        text = f"One more engine lowers the least step to {least}: at most {next_one.gain:.2f}× faster."
    else:
        text = "One more engine would buy nothing: training is the longer side."
    if step is not None and step > 1.25 * now.least_step:
        waiting = waited > (step - now.least_step) / 2
        rest = "what the learner waits for" if waiting else "what else it does in a step; see the budget of a step"
        text += f" The median step takes {seconds(step)}, so there is more to gain from {rest}."
    return text + " Engines that share the learner's cores or chips buy less."


def audit(data: RunData) -> Context:
    """Returns the final states of the claimed groups, their origins, and the faults of the run."""
    found = data.audit or {}
    faults = sorted((found.get("faults") or {}).items(), key=lambda item: -item[1])
    return {
        "known": data.audit is not None,
        "balance": _balance(found) if data.audit is not None else [],
        "problems": found.get("problems") or [],
        "origins": _origins(found),
        "faults": [Count(str(kind).replace("_", " "), number(count)) for kind, count in faults],
    }


def _balance(audit: Mapping[str, Any]) -> list[Count]:
    rows = [Count("claimed", number(audit.get("claimed")))]
    rows.append(Count("trained", number(audit.get("trained")), _share(audit, "trained")))
    for state in ("filtered", "dropped"):
        reasons = audit.get(state) or {}
        rows.append(Count(state, number(sum(reasons.values())), _listed(reasons)))
    rows.append(Count("open", number(audit.get("open")), _listed(audit.get("open_by_state") or {})))
    if _most_uses(audit) > 1:
        uses = {int(times): count for times, count in (audit.get("uses") or {}).items()}
        rows += [Count(f"trained in {many(times, 'step')}", number(count)) for times, count in uses.items()]
    rows.append(_too_often(audit))
    if audit.get("demonstrations"):
        rows.append(Count("demonstrations", number(audit["demonstrations"]), "imitated beside the groups"))
    if audit.get("retired"):
        rows.append(Count("retired", number(audit["retired"]), "of a lost lineage; their tasks were opened again"))
    versions = audit.get("versions")
    if isinstance(versions, Mapping):
        rows.append(Count("versions", number(versions.get("announced")), _listed(versions, skip="announced")))
    elif versions is not None:
        rows.append(Count("versions", number(versions if isinstance(versions, int) else len(versions))))
    if audit.get("lineages"):
        rows.append(Count("lineages", number(len(audit["lineages"])), "lives of the learner"))
    return rows


def _share(audit: Mapping[str, Any], name: str) -> str:
    claimed = audit.get("claimed")
    return f"{math.floor(1000 * audit.get(name, 0) / claimed) / 10:g}% of the claimed" if claimed else ""


def _listed(values: Mapping[str, Any], skip: str = "") -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if name != skip)


def _origins(audit: Mapping[str, Any]) -> dict[str, list[Count]]:
    """Returns the tasksets and explorers that the groups come from, by title, where there are several."""
    return {
        title: [
            Count(name, f"{number(counts.get('trained', 0))} trained", _listed(counts, skip="trained"))
            for name, counts in audit[section].items()
        ]
        for title, section in (("Tasksets", "tasksets"), ("Explorers", "explorers"))
        if len(audit.get(section) or {}) > 1
    }


def trajectories(data: RunData) -> Context:
    """Returns the sampled trajectories that the viewer steps through."""
    samples = [_cut(sample) for sample in chosen_samples(data.samples)]
    return {"samples": samples, "several_turns": any(len(sample["turns"]) > 1 for sample in samples)}


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


def config(data: RunData) -> Context:
    """Returns the resolved config, by dotted key."""
    return {
        "keys": {key: json.dumps(value, ensure_ascii=False, default=str) for key, value in flat(data.config).items()}
    }
