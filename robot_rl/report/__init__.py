"""The report of a run: one self-contained HTML page with results, curves, videos and configuration."""

from robot_rl.report.write import write_report

__all__ = ["write_report"]
