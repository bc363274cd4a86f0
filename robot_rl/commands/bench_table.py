"""Write the table and the figures of methods from the result files of `robot-rl bench methods`.

Entries of the protocols without a result are listed as not run. Nothing is extrapolated.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from robot_rl.bench.methods.page import content, write_page
from robot_rl.bench.methods.plots import write_plots
from robot_rl.bench.methods.protocol import read_protocols
from robot_rl.bench.methods.results import Row, read_rows
from robot_rl.errors import as_user_errors
from robot_rl.evaluation.initial_states import TEST, VALIDATION

SHIPPED = (
    "states",
    "images",
    "images_spatial_base",
    "imagination",
    "imagination_images",
    "imagination_returns",
)
"""Folders of `benchmarks/protocol/`, in the order in which the page shows them."""


@dataclass
class Config:
    protocols: list[str] = field(default_factory=lambda: [f"benchmarks/protocol/{name}" for name in SHIPPED])
    """Folders of protocols, one YAML file per task, or such files."""
    results: str = "benchmarks/results"
    """Folder of the results, in subfolders named after those of the protocols."""
    out: str = "docs/results.md"
    """Page to write; in an existing page only the part between its markers is replaced."""
    plots: str = "docs/results"
    """Folder of the figures."""


def run(config: Config) -> None:
    page = Path(config.out)
    with as_user_errors():
        tables = [rows for folder in config.protocols for rows in _tables(Path(folder), Path(config.results))]
        figures = [write_plots(rows, Path(config.plots)) for rows in tables]
        # Relative to the page, as linked from it.
        images = [[os.path.relpath(path, page.parent) for path in paths] for paths in figures]
        write_page(page, content(tables, images))
    for split in (TEST, VALIDATION):
        found = [row for rows in tables for row in rows if row.protocol.split == split]
        done, planned = sum(len(row.results) for row in found), sum(len(row.entry.seeds) for row in found)
        if planned:
            print(f"{page}: {done} of {planned} runs have results on {split} states")


def _tables(protocols: Path, results: Path) -> list[list[Row]]:
    """Rows of each task: on test states those with results, on validation states all, if any has one."""
    tested = [read_rows(protocol, results) for protocol in read_protocols(protocols, TEST)]
    validated = [read_rows(protocol, results) for protocol in read_protocols(protocols, VALIDATION)]
    tables = [[row for row in rows if row.results] for rows in tested]
    return [rows for rows in [*tables, *validated] if any(row.results for row in rows)]
