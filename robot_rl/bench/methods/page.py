"""Writes the page of results: Markdown tables between two markers, from result files only."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from robot_rl.bench.methods.protocol import Protocol
from robot_rl.bench.methods.result_writer import WINDOW
from robot_rl.bench.methods.results import Result, Row, interval, over_tasks, with_ablations
from robot_rl.errors import UserError
from robot_rl.evaluation.initial_states import TEST, VALIDATION
from robot_rl.runs import write_text
from robot_rl.stats import iqm, ratio_interval

BEGIN, END = "<!-- robot-rl bench table: begin -->", "<!-- robot-rl bench table: end -->"
THRESHOLDS = (0.9, 0.95)
STAYS = 0.9, 3
"""Success that so many saved policies in a row have to reach."""
_TITLE = "# Results\n\n"
_NOTE = f"""\
Options were chosen on the validation states, so success there is somewhat optimistic; nothing was chosen on
the test states. IQM: interquartile mean over seeds (with fewer than 4, the mean), with a 95 % stratified
bootstrap interval over seeds (Agarwal et al., 2021) if there are at least two.
Demonstration steps: environment steps in the demonstrations that the base and the run learned from,
including failed episodes; add them to the steps of the run (≈ if they were counted in data that another
machine collected with the same command). “Steps to” is the step of the first evaluated policy at or above the
threshold, for each seed, without interpolation; – if no policy reached it. Runs that failed, as “each seed”
and the last column say, are left out of the IQM, dip and wall-clock. Dip: the lowest success rate over
{WINDOW} consecutive training episodes, with exploration, minus the base's success, of the worst seed; in
brackets the expected lowest of the base itself in as many episodes, by chance. Wall-clock is that of
training, without evaluations.
"""
_HEAD = (
    *("entry", "demonstration steps", "base", "final success, IQM", "each seed"),
    *(f"steps to {threshold:g}" for threshold in THRESHOLDS),
    *("dip (by chance)", "wall-clock per run", "seeds"),
)


def write_page(path: Path, content: str) -> None:
    """Replace what is between the markers of a page, or create the page.

    Raises:
        UserError: if the page exists and has no markers.
    """
    old = path.read_text() if path.is_file() else f"{_TITLE}{BEGIN}\n{END}\n"
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(
            f"{path} does not have the lines {BEGIN} and {END}, between which the table is written"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, f"{before}{BEGIN}\n{content}{END}{after}")


def content(tables: Sequence[Sequence[Row]], images: Sequence[Sequence[str]]) -> str:
    """Markdown of all tasks and splits; `images` are the paths of each section's figures."""
    parts = [_NOTE]
    for _, sections in groupby(zip(tables, images, strict=True), lambda section: _place(section[0])):
        of_tasks = []
        for rows, paths in sections:
            parts.append(_section(rows, paths))
            of_tasks.append(rows)
        if len(of_tasks) > 1 and over_tasks(of_tasks):
            parts.append(_all_tasks(of_tasks))
    return "\n" + "\n".join(parts) + "\n"


def _place(rows: Sequence[Row]) -> tuple[str, str]:
    return rows[0].protocol.group, rows[0].protocol.split


def _section(rows: Sequence[Row], images: Sequence[str]) -> str:
    protocol = rows[0].protocol
    results = [result for row in rows for result in row.results]
    text = f"## {protocol.title}, {protocol.split} states\n\n{_evaluation(protocol)}\n"
    text += "".join(f"\n![Success, {protocol.title}]({image})\n" for image in images)
    entries = with_ablations(rows)
    text += "\n" + _table([entry for entry, _ in entries])
    for parent, ablations in entries:
        if ablations:
            text += f"\nVariants of `{parent.entry.name}`:\n\n" + _table([parent, *ablations])
            if protocol.split == TEST and parent.entry.collect is None:
                text += _speed(parent, ablations)
    return text + _bc_baselines(rows) + _remarks(results)


def _evaluation(protocol: Protocol) -> str:
    text = (
        f"{protocol.steps:,} environment steps, evaluated on {protocol.final_episodes} "
        f"{protocol.split} states"
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


def _speed(parent: Row, ablations: Sequence[Row]) -> str:
    """Table of the steps after which success stays, for the seeds that an ablation and its entry have."""
    lines = []
    for row in ablations:
        steps, its = (
            {r.planned.seed: None if r.failure else r.stays_at(*STAYS) for r in of.results}
            for of in (row, parent)
        )
        if seeds := sorted(steps.keys() & its.keys()):
            lines.append(_speed_line(row, [steps[seed] for seed in seeds], [its[seed] for seed in seeds]))
    if not lines:
        return ""
    head = _line(["entry", "steps", f"steps of `{parent.entry.name}`", "ratio of the means"])
    text = (
        f"Steps to the first of {STAYS[1]} saved policies in a row with at least {STAYS[0]:g}, for the\n"
        "seeds that both have. A run without them, or that failed, counts with its whole budget (>). The\n"
        "interval is that of the bootstrap over pairs of runs with the same seed."
    )
    return "\n".join(["", text, "", head, _line(["---", *["---:"] * 3]), *lines, ""])


def _speed_line(row: Row, *steps: list[int | None]) -> str:
    budget = row.protocol.steps
    cells = [
        ", ".join(f"> {short(budget)}" if s is None else short(s) for s in of_entry) for of_entry in steps
    ]
    first, second = ([budget if s is None else s for s in of_entry] for of_entry in steps)
    bounds = ratio_interval(first, second) if len(first) > 1 else None
    return _line([f"`{row.entry.name}`", *cells, _with_interval(sum(first) / sum(second), bounds)])


def _demonstrations(row: Row) -> str:
    """Each number once: all runs of a table have the same demonstrations, unless they collect their own."""
    numbers = {
        f"{'' if result.exact_demonstrations else '≈ '}{result.demonstration_steps:,}": None
        for result in row.results
    }
    return ", ".join(numbers)


def _success(row: Row) -> str:
    return _with_interval(iqm(row.finals), interval(row.finals))


def _with_interval(value: float, bounds: tuple[float, float] | None) -> str:
    return f"**{value:.3f}**" + (f" [{bounds[0]:.3f}, {bounds[1]:.3f}]" if bounds else "")


def _reached(row: Row, threshold: float) -> str:
    steps = [None if result.failure else result.first_at(threshold) for result in row.results]
    return ", ".join("–" if step is None else short(step) for step in steps)


def _dip(row: Row) -> str:
    lowest = row.worst_dip
    if lowest is None:
        return "–"
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
    """Format a number of steps, 12500 as 12.5k."""
    return f"{step / 1000:g}k" if step >= 1000 else f"{step:g}"


def _bc_baselines(rows: Sequence[Row]) -> str:
    """Note on steps and wall-clock of the behaviour-cloning baselines that have results."""
    notes = []
    for row in rows:
        if row.entry.collect is not None and row.done:
            steps = ", ".join(short(result.curve[-1].step) for result in row.done)
            notes.append(f"`{row.entry.name}` ({' '.join(row.entry.collect)}: {steps} steps)")
    if not notes:
        return ""
    return (
        f"\nBehaviour cloning of more demonstrations: {'; '.join(notes)}. Steps are those of the "
        "demonstrations, wall-clock that of collecting and training.\n"
    )


def _remarks(results: Sequence[Result]) -> str:
    """Remarks on hardware, bases and failures, which matter for comparing the rows."""
    lines = []
    if hardware := sorted({result.hardware for result in results}):
        lines.append(f"Trained on: {'; '.join(hardware)}.")
    bases = {result.base_fingerprint for result in results}
    if len(bases) > 1:
        lines.append(f"The runs have {len(bases)} different bases (trained on several machines).")
    # After the first `;` are paths on the machine of the run.
    lines += [
        f"`{result.planned.name}` failed: {result.failure.partition(';')[0]}."
        for result in results
        if result.failure
    ]
    return "".join(f"\n{line}\n" for line in lines)


def _all_tasks(tables: Sequence[Sequence[Row]]) -> str:
    """Table over all tasks, without entries that lack a result on some task."""
    titles = "; ".join(rows[0].protocol.title for rows in tables)
    text = "## All tasks of `{}`, {} states\n\n".format(*_place(tables[0]))
    text += f"IQM over all runs ({titles}), for the entries with results on each task.\n\n"
    lines = [_line(["entry", "final success, IQM"]), _line(["---", "---:"])]
    lines += [_line([f"`{name}`", _with_interval(*score)]) for name, score in over_tasks(tables).items()]
    return text + "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
