"""Report of a run: ``report.html``, one self-contained page that works offline."""

from rljax.observe.report.write import write_report

__all__ = ["write_report"]
