"""Writes `report.html` and `report.json` of a run."""

import base64
import json
from pathlib import Path
from typing import Any

import jinja2

from robot_rl.files.durable import write_file
from robot_rl.report import figures
from robot_rl.report.classifier import calibration
from robot_rl.report.deployments import Deployment
from robot_rl.report.figures import ROLLING_EPISODES
from robot_rl.report.inputs import Pairing, Policy, RunData, pair, read_run
from robot_rl.stats import mcnemar, wilson


def write_report(run: Path) -> Path:
    """Write `run/report.html`, a page without external resources, and `run/report.json`.

    Returns the path of the page. The same run gives the same bytes.

    Raises:
        UserError: if a file is missing or damaged; names the command that writes it.
    """
    data = read_run(run)
    page = _page(data)
    write_file(run / "report.json", (json.dumps(_figures(data), indent=2) + "\n").encode())
    write_file(run / "report.html", page.encode())
    return run / "report.html"


def _figures(data: RunData) -> dict[str, Any]:
    """Content of `report.json`; `base` and `tuned` are null without such an evaluation."""

    def result(policy: Policy | Deployment | None) -> dict[str, Any] | None:
        return {"success": policy.success, "interval": list(policy.interval)} if policy else None

    kept = ("env_steps", "wall_seconds", "seed", "command", "machine")
    return {
        "base": result(data.base),
        "tuned": result(data.tuned),
        "deployments": {deployment.file: result(deployment) for deployment in data.deployments},
        **{key: data.run[key] for key in kept},
    }


def render_page(template: str, **values: Any) -> str:
    """A page of this folder's template."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("robot_rl.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=_percent, interval=_interval, duration=_duration)
    return environment.get_template(template).render(**values)


def _page(data: RunData) -> str:
    policies = [p for p in (data.base, data.tuned) if p]
    pairing = pair(data.base, data.tuned) if data.base and data.tuned else None
    return render_page(
        "page.html.j2",
        data=data,
        run=data.run,
        base=data.base,
        tuned=data.tuned,
        policies=policies,
        pairing=pairing,
        pairing_p=_p_value(pairing) if pairing else "",
        intervals=figures.intervals(policies) if policies else "",
        recent=_recent(data),
        curves=figures.learning_curves(data),
        rolling=ROLLING_EPISODES,
        multiples=figures.small_multiples(data),
        calibration=calibration(data.classifier) if data.classifier else "",
        videos=_videos(data, policies),
    )


def _recent(data: RunData) -> dict[str, Any] | None:
    """Success in the newest training episodes, for a run that nothing else measures; None without any."""
    won = [value > 0.5 for _, _, value in data.metrics.get("train/success", [])[-ROLLING_EPISODES:]]
    if data.base or data.deployments or not won:
        return None
    return {"episodes": len(won), "success": sum(won) / len(won), "interval": wilson(sum(won), len(won))}


def _videos(data: RunData, policies: list[Policy]) -> list[dict[str, str]]:
    """For each policy: its name, the outcome, and video and contact sheet as base64 or ''."""

    def coded(content: bytes | None) -> str:
        return base64.b64encode(content or b"").decode()

    def outcome(policy: Policy) -> str:
        if data.video_episode not in policy.outcomes:
            return ""
        result = "succeeds after" if policy.outcomes[data.video_episode] else "does not succeed in"
        return f"{result} {policy.lengths[data.video_episode]} steps"

    return [
        {
            "name": policy.name,
            "outcome": outcome(policy),
            "mp4": coded(data.videos.get(policy.name)),
            "png": coded(data.sheets.get(policy.name)),
        }
        for policy in policies
    ]


def _percent(value: float) -> str:
    return f"{100 * value:.1f}".removesuffix(".0") + " %"


def _interval(interval: tuple[float, float]) -> str:
    """With one decimal, so that 99.6 % is not shown as 100 %."""
    return f"{100 * interval[0]:.1f} – {100 * interval[1]:.1f} %"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _p_value(pairing: Pairing) -> str:
    p = mcnemar(pairing.only_base, pairing.only_tuned)
    return f"p = {p:.2g}" if p >= 1e-4 else "p < 0.0001"
