"""Report of a run: ``report.html``, one self-contained page that works offline."""

from rljax.observe.report.read import NoRun, check_run, find_runs, read_run
from rljax.observe.report.write import COMPARISON, FILE, comparison, page, write_report

__all__ = ["COMPARISON", "FILE", "NoRun", "check_run", "comparison", "find_runs", "page", "read_run", "write_report"]
