"""The report of a run: ``report.html``, one page that shows it, self-contained and offline."""

from rljax.observe.report.write import write_report

__all__ = ["write_report"]
