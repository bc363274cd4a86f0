"""One self-contained page about a run: what was run on what, and how much better it got."""

from robot_rl.report.write import write_report

__all__ = ["write_report"]
