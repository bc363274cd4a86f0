"""Write the table and the figures of methods from the result files of `robot-rl bench methods`.

Entries of the protocols without a result are listed as not run. Nothing is extrapolated.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from robot_rl.bench.methods.page import content, write_page
from robot_rl.bench.methods.plots import write_plots
from robot_rl.bench.methods.protocol import read_protocols
from robot_rl.bench.methods.results import Row, read_rows
from robot_rl.errors import mistakes
from robot_rl.evaluation.initial_states import TEST, VALIDATION, Split


@dataclass
class Config:
    protocol: str = "benchmarks/protocol"
    """Folder of protocols, one YAML file per task, or one such file."""
    results: str = "benchmarks/results/methods"
    """Folder of the results."""
    out: str = "docs/results.md"
    """Page to write; in an existing page only the part between its markers is replaced."""
    plots: str = "docs/results"
    """Folder of the figures."""


def run(config: Config) -> None:
    page = Path(config.out)
    with mistakes():
        tables = [*_tested(config), *_rows(config, VALIDATION)]
        figures = [write_plots(rows, Path(config.plots)) for rows in tables]
        # Relative to the page, as linked from it.
        images = [[os.path.relpath(path, page.parent) for path in paths] for paths in figures]
        write_page(page, content(tables, images))
    for split in (TEST, VALIDATION):
        found = [row for rows in tables for row in rows if row.protocol.split == split]
        done, planned = sum(len(row.results) for row in found), sum(len(row.entry.seeds) for row in found)
        if planned:
            print(f"{page}: {done} of {planned} runs have results on {split} states")


def _rows(config: Config, split: Split) -> list[list[Row]]:
    return [
        read_rows(protocol, Path(config.results)) for protocol in read_protocols(Path(config.protocol), split)
    ]


def _tested(config: Config) -> list[list[Row]]:
    """Rows with results on test states, where only recommended methods are evaluated."""
    tables = [[row for row in rows if row.results] for rows in _rows(config, TEST)]
    return [rows for rows in tables if rows]
