"""The page of results: Markdown between two markers, from result files alone."""

from collections.abc import Sequence
from pathlib import Path

from robot_rl.bench.methods.protocol import Protocol
from robot_rl.bench.methods.record import WINDOW
from robot_rl.bench.methods.results import Result
from robot_rl.bench.methods.rows import Row, interval, over_tasks
from robot_rl.errors import UserError
from robot_rl.evaluation.initial_states import VALIDATION
from robot_rl.evaluation.statistics import iqm
from robot_rl.runs import write_text

BEGIN, END = "<!-- robot-rl bench table: begin -->", "<!-- robot-rl bench table: end -->"
THRESHOLDS = (0.9, 0.95)
_TITLE = "# Results\n\n"
_NOTE = f"""\
Options were chosen on the validation states, so success there is somewhat optimistic; the test states are
others, and nothing was chosen on them. IQM: mean of the middle half of the seeds (of fewer than 4, of all),
with a 95 % stratified bootstrap interval over seeds (Agarwal et al., 2021); none for one seed.
Demonstration steps: environment steps in the demonstrations that the base and the run have seen, failed
ones too, to be added to those of the run (≈ where counted in another machine's data, of the same command
but not the same to the bit). “Steps to” is the first policy measured at or above, each seed in turn,
without interpolation, and – where there was none. Dip: the lowest success over {WINDOW} training episodes
in a row, exploration included, minus the base's success, of the seed where it was deepest; in brackets what
the base alone is expected to show as its lowest in as many episodes, by chance. Wall-clock is training's,
evaluations not counted.
"""
_HEAD = (
    *("entry", "demonstration steps", "base", "final success, IQM", "each seed"),
    *(f"steps to {threshold:g}" for threshold in THRESHOLDS),
    *("dip (by chance)", "wall-clock per run", "seeds"),
)


def write_page(path: Path, content: str) -> None:
    """Put the content between the markers of a page, or make the page.

    Raises:
        UserError: the page is there and has no markers.
    """
    old = path.read_text() if path.is_file() else f"{_TITLE}{BEGIN}\n{END}\n"
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"{path} has not the lines {BEGIN} and {END}, between which the table goes")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, f"{before}{BEGIN}\n{content}{END}{after}")


def content(tables: Sequence[Sequence[Row]], images: Sequence[Sequence[str]]) -> str:
    """The sections of all tasks and splits; `images` are the addresses of each section's figures."""
    parts = [_NOTE]
    parts += [_section(rows, paths) for rows, paths in zip(tables, images, strict=True)]
    for split in dict.fromkeys(rows[0].protocol.split for rows in tables):
        of_split = [rows for rows in tables if rows[0].protocol.split == split]
        if len(of_split) > 1:
            parts.append(_all_tasks(of_split))
    return "\n" + "\n".join(parts) + "\n"


def _section(rows: Sequence[Row], images: Sequence[str]) -> str:
    protocol = rows[0].protocol
    results = [result for row in rows for result in row.results]
    text = f"## {protocol.task.capitalize()}, {protocol.split} states\n\n{_measured(protocol)}\n"
    text += "".join(f"\n![Success on {protocol.task}]({image})\n" for image in images)
    text += "\n" + _table([row for row in rows if row.entry.parent is None])
    for parent in [row for row in rows if row.entry.parent is None]:
        ablations = [row for row in rows if row.entry.parent == parent.entry.name]
        if ablations:
            text += f"\nAblations of `{parent.entry.name}`:\n\n" + _table([parent, *ablations])
    return text + _imitation(rows) + _remarks(results)


def _measured(protocol: Protocol) -> str:
    text = (
        f"{protocol.steps:,} environment steps, measured on {protocol.final_episodes} {protocol.split} states"
    )
    if protocol.split == VALIDATION:
        return f"{text} every {protocol.eval_every:,}."
    text += f"; policies saved every {protocol.save_every:,} steps"
    if protocol.curve_episodes == protocol.final_episodes:
        return f"{text} on the same."
    return f"{text} on the first {protocol.curve_episodes} of them."


def _table(rows: Sequence[Row]) -> str:
    lines = [_line(_HEAD), _line(["---", *["---:"] * (len(_HEAD) - 1)])]
    return "\n".join([*lines, *(_line(_cells(row)) for row in rows)]) + "\n"


def _cells(row: Row) -> list[str]:
    name, planned = f"`{row.entry.name}`", len(row.entry.seeds)
    if not row.results:
        return [name, "", "", "not run", *[""] * (len(_HEAD) - 5), f"0 of {planned}"]
    failed = len(row.results) - len(row.done)
    seeds = f"{len(row.done)} of {planned}" if len(row.done) < planned else str(planned)
    return [
        name,
        _demonstrations(row),
        _range([result.base_success for result in row.results]),
        _success(row) if row.done else "failed",
        ", ".join(f"{result.final:.2f}" if result.failure is None else "failed" for result in row.results),
        *(_reached(row, threshold) for threshold in THRESHOLDS),
        _dip(row),
        _minutes(row.done),
        seeds + (f", {failed} failed" if failed else ""),
    ]


def _demonstrations(row: Row) -> str:
    """Each number once: all runs of a table have the same demonstrations, unless they collect their own."""
    told = {
        f"{'' if result.exact_demonstrations else '≈ '}{result.demonstration_steps:,}": None
        for result in row.results
    }
    return ", ".join(told)


def _success(row: Row) -> str:
    return _with_interval(iqm(row.finals), interval(row.finals))


def _with_interval(value: float, bounds: tuple[float, float] | None) -> str:
    return f"**{value:.3f}**" + (f" [{bounds[0]:.3f}, {bounds[1]:.3f}]" if bounds else "")


def _reached(row: Row, threshold: float) -> str:
    steps = [result.first_at(threshold) for result in row.done]
    return ", ".join("–" if step is None else short(step) for step in steps)


def _dip(row: Row) -> str:
    if row.worst_dip is None:
        return "–"
    _, lowest = row.worst_dip
    base = lowest.success - lowest.minus_base
    return f"{lowest.minus_base:+.2f} at {short(lowest.step)} ({lowest.base_by_chance - base:+.2f})"


def _minutes(results: Sequence[Result]) -> str:
    if not results:
        return "–"
    return f"{sum(result.wall_seconds for result in results) / len(results) / 60:.1f} min"


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"


def short(step: float) -> str:
    """12500 as 12.5k."""
    return f"{step / 1000:g}k" if step >= 1000 else f"{step:g}"


def _imitation(rows: Sequence[Row]) -> str:
    """What steps and wall-clock are of the entries that collect for themselves and have results."""
    told = []
    for row in rows:
        if row.entry.collect is not None and row.done:
            steps = ", ".join(short(result.curve[-1].step) for result in row.done)
            told.append(f"`{row.entry.name}` ({' '.join(row.entry.collect)}: {steps} steps)")
    if not told:
        return ""
    return (
        f"\nBy imitation of more demonstrations alone: {'; '.join(told)}. Steps are those of the "
        "demonstrations, wall-clock that of collecting and training.\n"
    )


def _remarks(results: Sequence[Result]) -> str:
    """What a reader must know to compare the rows."""
    lines = []
    if hardware := sorted({result.hardware for result in results}):
        lines.append(f"Trained on: {'; '.join(hardware)}.")
    bases = {result.base_fingerprint for result in results}
    if len(bases) > 1:
        lines.append(f"The runs have {len(bases)} different bases (made on several machines).")
    # What follows the first `;` is where things are on the machine that it ran on.
    lines += [
        f"`{result.planned.name}` failed: {result.failure.partition(';')[0]}."
        for result in results
        if result.failure
    ]
    return "".join(f"\n{line}\n" for line in lines)


def _all_tasks(tables: Sequence[Sequence[Row]]) -> str:
    """Over all tasks; entries without a result in each of them are left out."""
    names = ", ".join(rows[0].protocol.task for rows in tables)
    split = tables[0][0].protocol.split
    text = f"## All tasks, {split} states\n\n"
    text += f"IQM over the runs of {names}, of the entries that have been run on each.\n\n"
    lines = [_line(["entry", "final success, IQM"]), _line(["---", "---:"])]
    found = over_tasks(tables)
    lines += [_line([f"`{name}`", _with_interval(*figures)]) for name, figures in found.items()]
    return text + ("\n".join(lines) if found else "None yet.") + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
