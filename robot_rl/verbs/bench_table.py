"""Make the table and the figures of methods from the result files of `robot-rl bench methods`.

Entries of the protocols that have no result are listed as not run. Nothing is extrapolated.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from robot_rl.bench.methods.page import content, write_page
from robot_rl.bench.methods.plots import write_plots
from robot_rl.bench.methods.protocol import read_protocols
from robot_rl.bench.methods.rows import rows_of
from robot_rl.errors import mistakes


@dataclass
class Config:
    protocol: str = "benchmarks/protocol"
    """Folder of protocols, one YAML file per task, or one such file."""
    results: str = "benchmarks/results/methods"
    """Where the results are."""
    out: str = "docs/results.md"
    """Page to write; of one that is there, only what is between its markers."""
    plots: str = "docs/results"
    """Folder of the figures."""


def run(config: Config) -> None:
    page = Path(config.out)
    with mistakes():
        tables = [
            rows_of(protocol, Path(config.results)) for protocol in read_protocols(Path(config.protocol))
        ]
        figures = [write_plots(rows, Path(config.plots)) for rows in tables]
        # As they are linked from the page.
        images = [[os.path.relpath(path, page.parent) for path in paths] for paths in figures]
        write_page(page, content(tables, images))
    done = sum(len(row.results) for rows in tables for row in rows)
    planned = sum(len(row.entry.seeds) for rows in tables for row in rows)
    print(f"{page}: {done} of {planned} runs have results")
