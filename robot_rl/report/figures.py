"""The figures of a report, as SVG, and their curves."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from robot_rl.report.inputs import Policy, RunData
from robot_rl.report.style import BASE, INK, MUTED, SURFACE, TUNED, page_style, to_svg
from robot_rl.stats import wilson
from robot_rl.training.logger import Series

ROLLING_EPISODES = 50
MAX_POINTS = 300
"""More points cannot be distinguished in a figure and make the page larger."""
COLORS = {"base": BASE, "tuned": TUNED}
TITLES = {
    "learn/loss": "Loss",
    "learn/imagined_share": "Imagined share of a batch",
    "learn/imagined_chunks": "Chunks of an imagined branch",
    "learn/imagined_success": "Imagined chunks that succeed",
    "learn/imagined_weight": "Weight of imagined chunks",
    "learn/grad": "Gradient norm",
    "learn/accuracy": "Accuracy",
    "learn/critic_loss": "Critic loss",
    "learn/critic_grad": "Gradient norm of the critics",
    "learn/q_mean": "Mean Q",
    "learn/q_spread": "Disagreement of the critics",
    "learn/q_excess": "Q above the largest possible return",
    "learn/actor_q": "Mean Q of the actor's actions",
    "learn/actor_loss": "Actor loss",
    "learn/actor_grad": "Gradient norm of the actor",
    "learn/residual_abs": "Residual size relative to its bound",
    "learn/imitation": "Imitation loss",
    "learn/entropy": "Entropy of the actor",
    "learn/alpha": "Entropy temperature",
    "learn/base_loss": "Imitation loss of the base",
    "learn/seed_loss": "Loss of the noise critic",
    "learn/distill_loss": "Distillation loss of the noise critic",
    "learn/gripper_loss": "Loss of the gripper's critic",
    "learn/gripper_q": "Mean Q of the gripper's critic",
    "learn/value_loss": "Value loss",
    "learn/kl": "KL divergence from the old policy",
    "learn/clipped": "Fraction of clipped probability ratios",
    "learn/explained_variance": "Explained variance of the returns",
    "learn/return_mean": "Mean return",
    "learn/reward_scale": "Standard deviation used to scale the reward",
    "learn/std": "Standard deviation of the actions",
    "learn/passes": "Passes over the rollout",
    "learn/base_queries": "Observations per update for which the base was sampled",
    "train/base_queries": "Observations per environment step for which the base was sampled",
    "train/base_encodings": "Observations per environment step that the base encoded, with shifted ones",
    "train/episode_length": f"Episode length, mean of {ROLLING_EPISODES}",
    "eval/episode_length": "Evaluation episode length",
    "train/success": f"Success of the training episodes, mean of {ROLLING_EPISODES}",
    "hil/intervention_rate": f"Fraction of steps by the operator, mean of {ROLLING_EPISODES}",
    "hil/steps": "Environment steps",
    "hil/interventions": f"Interventions per episode, mean of {ROLLING_EPISODES}",
    "hil/intervention_steps": "Mean length of an intervention, steps",
    "hil/alone": f"Success without help, mean of {ROLLING_EPISODES}",
    "hil/late": f"Fraction of late control steps, mean of {ROLLING_EPISODES}",
    "hil/staleness": "Staleness of the acting weights, in versions",
    "hil/utd": "Updates per environment step",
    "hil/owed": "Updates that the learner is behind",
}
# Shown in the learning curve, so not repeated below it.
IN_THE_CURVE = ("train/success", "eval/success", "eval/episodes", "hil/intervention_rate")
_EACH_EPISODE = (
    "train/success",
    "train/episode_length",
    "hil/intervention_rate",
    "hil/interventions",
    "hil/alone",
    "hil/late",
)


def intervals(policies: list[Policy]) -> str:
    """Success rates with their confidence intervals on an axis from 0 to 100 %."""
    with page_style():
        figure = Figure(figsize=(5.4, 0.38 * len(policies) + 0.3))
        axes = figure.add_axes((0.105, 0.28 / figure.get_figheight(), 0.86, 1 - 0.3 / figure.get_figheight()))
        for row, policy in enumerate(policies):
            color = COLORS[policy.name]
            axes.plot(policy.interval, (row, row), color=color, linewidth=9, alpha=0.3, solid_capstyle="butt")
            axes.plot(policy.interval, (row, row), "|", color=color, markersize=9, markeredgewidth=1.6)
            axes.plot(policy.success, row, "o", color=color, markersize=8, markeredgecolor=SURFACE)
            axes.text(-0.015, row, policy.name.capitalize(), ha="right", va="center", color=INK)
        axes.set_xlim(0, 1)
        axes.set_ylim(len(policies) - 0.4, -0.6)
        axes.set_yticks([])
        axes.grid(axis="y", visible=False)
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
        rates = (f"{p.name} {p.success:.0%}, {p.interval[0]:.0%} to {p.interval[1]:.0%}" for p in policies)
        return to_svg(figure, "intervals", f"Success with 95 % interval: {'; '.join(rates)}")


def _learning_curve(data: RunData, against: str) -> str:
    with page_style():
        figure, axes = _plot(4.6, 3.1)
        unit, unit_name = _unit(data)
        scale = 1.0 if against == "steps" else unit
        column = 0 if against == "steps" else 1
        end = max(columns(series)[column].max() for series in data.metrics.values()) / scale
        if data.base:
            _base_line(axes, data.base)
        _phases(axes, data, column, scale)
        if series := data.metrics.get("train/success"):
            axes.plot(*_rate(series, column, scale), color=TUNED)
        if series := data.metrics.get("hil/intervention_rate"):
            x, rate = _rate(series, column, scale)
            axes.plot(x, rate, color=MUTED, linewidth=1.3)
            axes.annotate("steps by the operator", (x[-1], rate[-1]), (0, 5), ha="right",
                textcoords="offset points", fontsize=7.5, color=MUTED,
            )  # fmt: skip
        if series := data.metrics.get("eval/success"):
            _evaluations(axes, series, data.metrics.get("eval/episodes", []), column, scale)
        axes.set_xlim(-0.015 * (end or 1), end or 1)  # room for a point at 0
        axes.set_ylim(-0.02, 1.03)
        axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
        axes.set_ylabel("success")
        axes.set_xlabel("environment steps" if against == "steps" else f"wall-clock, {unit_name}")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(FuncFormatter(_short))
        return to_svg(figure, f"curve-{against}", f"Success over {against}")


def _rate(series: Series, column: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Rolling success rate, from the tenth episode on."""
    x, rate = columns(series)[column] / scale, rolling_mean(columns(series)[2])
    first = min(9, len(x) - 1)
    x, rate, *_ = thinned(x[first:], rate[first:])
    return x, rate


def learning_curves(data: RunData) -> list[str]:
    """Success over steps and over time; empty for a run without training or evaluation episodes."""
    if not any(data.metrics.get(name) for name in ("train/success", "eval/success")):
        return []
    return [_learning_curve(data, against) for against in ("steps", "time")]


def small_multiples(data: RunData) -> list[dict[str, str]]:
    """One small curve per further metric: its `title`, `name`, `note` and `svg`."""
    names = [n for n in data.metrics if n not in IN_THE_CURVE and not n.startswith("phase")]
    return [_small(name, data.metrics[name], i) for i, name in enumerate(names)]


def _small(name: str, series: Series, number: int) -> dict[str, str]:
    kind, actor = _kind_and_actor(name)
    title = TITLES.get(kind, kind) + (f", {actor}" if actor else "")
    steps, _, values = columns(series)
    if kind in _EACH_EPISODE:
        values = rolling_mean(values)
    x, mean, low, high = thinned(steps, values)
    with page_style():
        figure, axes = _plot(3.0, 1.75)
        if len(x) < len(steps):
            axes.fill_between(x, low, high, color=TUNED, alpha=0.2, linewidth=0)
        axes.plot(x, mean, color=TUNED, linewidth=1.3, marker="o" if len(x) == 1 else None)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(FuncFormatter(_short))
        axes.margins(x=0.01)
        svg = to_svg(figure, f"metric-{number}", f"{title} over environment steps")
    bad = int((~np.isfinite(columns(series)[2])).sum())
    note = f"{bad} of {len(steps)} values are not finite" if bad else ""
    return {"title": title, "name": name, "note": note, "svg": svg}


def _kind_and_actor(name: str) -> tuple[str, str]:
    """What a metric shows, and of which actor of several: hil/late and actor1 of hil/actor1/late."""
    group, *actor, kind = name.split("/")
    if group != "hil" or len(actor) != 1:
        return name, ""
    return f"{'train' if kind in ('success', 'episode_length') else 'hil'}/{kind}", actor[0]


def _plot(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _base_line(axes: Axes, base: Policy) -> None:
    axes.axhspan(*base.interval, color=BASE, alpha=0.18, linewidth=0)
    axes.axhline(base.success, color=BASE, linewidth=1.4, linestyle=(0, (5, 3)))


def _phases(axes: Axes, data: RunData, column: int, scale: float) -> None:
    """Draw a thin line where a phase (`phase/<name>`) starts."""
    names = [name for name in data.metrics if name.startswith("phase/")]
    for i, name in enumerate(names):
        x = columns(data.metrics[name])[column][0] / scale
        axes.axvline(x, color=MUTED, linewidth=0.8, linestyle=(0, (1, 2)))
        axes.annotate(
            name.removeprefix("phase/"), (x, 0), (3, 3 + 10 * (len(names) - 1 - i)),  # one above the other
            xycoords=("data", "axes fraction"), textcoords="offset points", fontsize=7.5, color=MUTED,
        )  # fmt: skip


def _evaluations(axes: Axes, series: Series, episodes: Series, column: int, scale: float) -> None:
    """Draw evaluations, with intervals if the number of episodes was logged at the same step."""
    counts = {step: int(n) for step, _, n in episodes}
    for row in series:
        x, success = row[column] / scale, row[2]
        if np.isfinite(success) and (n := counts.get(row[0], 0)):
            axes.plot((x, x), wilson(round(success * n), n), color=INK, linewidth=1.1)
        axes.plot(x, success, "o", color=INK, markersize=5.5, markeredgecolor=SURFACE, markeredgewidth=0.8)


def _unit(data: RunData) -> tuple[float, str]:
    return time_unit(max(series[-1][1] for series in data.metrics.values() if series))


def _short(value: float, _: object = None) -> str:
    """12000 as 12k, so that tick labels do not overlap."""
    for size, suffix in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{suffix}"
    return f"{value:g}"


def rolling_mean(values: np.ndarray, window: int = ROLLING_EPISODES) -> np.ndarray:
    """Mean over the last `window` values at each value; over fewer at the start."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    end = np.arange(1, len(values) + 1)
    start = np.maximum(end - window, 0)
    return (sums[end] - sums[start]) / (end - start)


def columns(series: Series) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, seconds and values of a series, float64 [T] each."""
    steps, seconds, values = np.asarray(series, float).reshape(-1, 3).T
    return steps, seconds, values


def thinned(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Downsample to at most MAX_POINTS: x, mean, lowest and highest y of groups of neighbouring points.

    A group without finite values is NaN, a gap in the curve; other groups ignore NaN and infinities.
    """
    groups = np.array_split(np.arange(len(x)), min(len(x), MAX_POINTS))
    rows = []
    for group in groups:
        finite = y[group][np.isfinite(y[group])]
        stats = (finite.mean(), finite.min(), finite.max()) if finite.size else (np.nan,) * 3
        rows.append((x[group].mean(), *stats))
    xs, mean, low, high = np.array(rows, float).reshape(-1, 4).T
    return xs, mean, low, high


def time_unit(seconds: float) -> tuple[float, str]:
    """Divisor and name of a readable unit for a duration."""
    if seconds < 180:
        return 1.0, "seconds"
    return (60.0, "minutes") if seconds < 3 * 3600 else (3600.0, "hours")
