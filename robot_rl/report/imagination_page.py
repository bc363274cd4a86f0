"""Writes `imagination.html`, the page about a run's world model and gate."""

import base64
from pathlib import Path

from robot_rl.files.durable import write_file
from robot_rl.imagination.gate import judge_model
from robot_rl.imagination.latent_model import LatentModel
from robot_rl.report import imagination_figures as figures
from robot_rl.report.feature_videos import feature_videos
from robot_rl.report.imagination_data import measure_horizon, read_imagination
from robot_rl.report.imagination_videos import imagination_videos
from robot_rl.report.write import render_page


def write_imagination_report(run: Path, *, videos: bool = True) -> Path:
    """Write `run/imagination.html`, a page without external resources; returns its path.

    Raises:
        UserError: if the run has no imagination, or a file is missing or damaged.
    """
    data = read_imagination(run)
    make_videos = feature_videos if isinstance(data.model, LatentModel) else imagination_videos
    found, reason = make_videos(data) if videos else ([], "videos=false: there are none.")
    horizon = measure_horizon(data)
    options = data.config["imagination"]
    page = render_page(
        "imagination.html.j2",
        data=data,
        method=data.config["method"]["name"],
        task=data.config["task"]["name"],
        options=options,
        verdict=judge_model(data.pool, data.limits),
        last=data.decisions[-1] if data.decisions else {},
        horizon=horizon,
        horizon_svg=figures.horizon(horizon) if horizon else "",
        coverage=figures.coverage(data),
        uncertainty=figures.uncertainty(data),
        roc=figures.roc(data),
        history=figures.history(data.decisions),
        videos=[(video.caption, base64.b64encode(video.mp4).decode()) for video in found],
        no_videos=reason,
    )
    write_file(run / "imagination.html", page.encode())
    return run / "imagination.html"
