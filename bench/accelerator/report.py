"""The one table of a run, in Markdown, from the rows of its parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bench.accelerator.process import Outcome

Row = dict[str, Any]
Cells = tuple[str, str, str, str, str, str]
COLUMNS: Cells = ("part", "case", "rljax", "torch", "rljax / torch", "")
GIB = 2**30


def markdown(facts: Row, outcomes: Sequence[Outcome]) -> str:
    """Returns the report: what was measured on, the table, and what was left out."""
    peak = facts["peak"]
    lines = [f"# {facts['kind']}", ""]
    lines += [f"- {name}: {facts[name]}" for name in ("machine", "packages", "commit", "command", "seconds")]
    if peak:
        lines.append(f"- MFU: of {peak['flops'] / 1e12:g} TFLOP/s ({peak['source']}); see `bench/accelerator/peaks.py`")
    else:
        lines.append(f"- MFU is left out: the peak of {facts['kind']!r} is not in `rljax/config/chips.py`")
    lines += [f"- {note}" for note in facts["notes"]]
    rows = list(table(outcomes, peak and peak["flops"]))
    cells = [COLUMNS, ("---",) * len(COLUMNS), *rows]
    lines += ["", *("| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in cells), ""]
    for outcome in outcomes:
        if outcome.status != "done":
            lines.append(f"- {outcome.part.name}: {outcome.status}: {outcome.why}")
    return "\n".join(lines) + "\n"


def table(outcomes: Sequence[Outcome], peak: float | None) -> Iterator[Cells]:
    """Yields the rows of the table."""
    by_group: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_group.setdefault(outcome.part.group, []).append(outcome)
    for group, found in by_group.items():
        yield from _MAKE[group](found, peak)


def mfu(row: Row, peak: float | None) -> float | None:
    """Returns model FLOPs utilisation, from 0 to 1; None without a peak. See `bench.accelerator.peaks`."""
    return row["flops"] / row["seconds"] / peak if peak else None


def _errors(outcomes: Sequence[Outcome], peak: float | None) -> Iterator[Cells]:
    for outcome in outcomes:
        for row in outcome.rows:
            body = row.get("body", "")
            if "error" in row:
                verdict = "right" if row["error"] < row["bound"] else "WRONG"  # NaN is wrong
                found = f"error {row['error']:.1e} (bound {row['bound']:.0e})"
                yield outcome.part.group, row["case"], found, "", "", f"{verdict} {body}".strip()
            elif "out_of_memory" in row:
                yield outcome.part.group, row["case"], "out of memory", "", "", body
            else:
                share = mfu(row, peak)
                used = f", {share:.1%} of the peak" if share is not None else ""
                found = f"{row['seconds'] * 1e3:.3g} ms, {row['flops'] / row['seconds'] / 1e12:.3g} TFLOP/s{used}"
                yield outcome.part.group, row["case"], found, "", "", body


def _learners(outcomes: Sequence[Outcome], peak: float | None) -> Iterator[Cells]:
    cases: dict[str, dict[str, list[Row]]] = {}
    for outcome in outcomes:
        sides = cases.setdefault(outcome.part.case, {"learner": [], "torch_learner": []})
        sides[outcome.part.worker] += outcome.rows
    for case, sides in cases.items():
        ours, theirs = sides["learner"], sides["torch_learner"]
        if not (ours or theirs):
            continue  # neither ran: why is said below the table
        rates = [_rate(rows) for rows in (ours, theirs)]
        notes = [f"{row['side']}: {note}" for row in (*ours, *theirs) if (note := _note(row))]
        yield (
            "learner",
            case,
            _learner_cell(ours, peak),
            _learner_cell(theirs, peak),
            _ratio(*rates),
            "; ".join(notes),
        )


def _rate(rows: Sequence[Row]) -> float | None:
    return next((row["tokens"] / row["seconds"] for row in rows if "seconds" in row), None)


def _note(row: Row) -> str:
    out = "out of memory with " if "out_of_memory" in row else ""
    failed = [f"not {text}" for text in row.get("failed", ())]
    return ", ".join([out + row["way"], *([row["body"]] if "body" in row else []), *failed])


def _learner_cell(rows: Sequence[Row], peak: float | None) -> str:
    for row in rows:
        if "seconds" in row:
            cell = f"{row['tokens'] / row['seconds']:,.0f} tokens/s"
            share = mfu(row, peak)
            cell += f", MFU {share:.1%}" if share is not None else ""
            if "peak_bytes" in row:
                cell += f", {row['peak_bytes'] / GIB:.3g} GiB" + (" (compiler)" * (row["peak_from"] != "the device"))
            return cell
    return "out of memory" if rows else "–"


def _ratio(ours: float | None, theirs: float | None) -> str:
    return f"{ours / theirs:.2f}" if ours and theirs else ""


def _engines(outcomes: Sequence[Outcome], peak: float | None) -> Iterator[Cells]:
    rows = [row for outcome in outcomes for row in outcome.rows]
    for model, sequences in dict.fromkeys((row["model"], row["sequences"]) for row in rows):
        here = [row for row in rows if row["sequences"] == sequences]
        ours, theirs = (
            max((row["tokens_per_second"] for row in here if row["side"] == side), default=None)
            for side in ("rljax", "torch")
        )
        how = ", ".join(f"{row['how']} {row['tokens_per_second']:,.0f}" for row in here if row["side"] == "torch")
        left, right = (f"{rate:,.0f} tokens/s" if rate else "–" for rate in (ours, theirs))
        yield "engine", f"{model}, {sequences} at once", left, right, _ratio(ours, theirs), how


def _quickstart(outcomes: Sequence[Outcome], peak: float | None) -> Iterator[Cells]:
    for row in outcomes[0].rows:
        parts = [f"first step after {row['first_step_seconds']:.3g} s"] if row["first_step_seconds"] else ["no step"]
        if row["seconds_to_target"]:
            parts.append(f"held out 0.9 after {row['seconds_to_target']:.3g} s and {row['steps_to_target']} steps")
        elif "score" in row:
            missed = f" instead of {row['target']}" if row["target"] else ""
            parts.append(f"held out {row['score']:.3f}{missed} after {row['steps']} steps")
        yield "quickstart", row["case"], ", ".join(parts), "", "", ""


def _first_step(outcomes: Sequence[Outcome], peak: float | None) -> Iterator[Cells]:
    for outcome in outcomes:
        for row in outcome.rows:
            if "first_step_seconds" in row:
                found = (
                    f"first step after {row['first_step_seconds']:.3g} s, {row['ready_seconds']:.3g} s of it to begin"
                )
                yield "first-step", outcome.part.case, found, "", "", row["way"]


_MAKE = {
    "kernels": _errors,
    "agreement": _errors,
    "learner": _learners,
    "engine": _engines,
    "quickstart": _quickstart,
    "first-step": _first_step,
}
