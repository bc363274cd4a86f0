"""Converts matplotlib figures into inline SVG with the page's colours and fonts."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.figure import Figure

# matplotlib needs colours; the page has CSS variables, which differ in light and dark mode. Each of these
# colours is replaced by its variable after drawing.
INK, MUTED, GRID, BASE, TUNED, SURFACE = (f"#01020{i}" for i in range(6))
_VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", BASE: "base", TUNED: "tuned", SURFACE: "surface"}
# The colours of the page's light mode, for PNG files, which have no variables.
_LIGHT = {INK: "#1a1d21", MUTED: "#5b636e", GRID: "#dde1e6"}

_RC: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it has the page's font and can be searched
    "svg.hashsalt": "robot-rl",  # the same figures give the same bytes
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
}


@contextmanager
def page_style() -> Iterator[None]:
    """Context in which figures have the page's style."""
    with matplotlib.rc_context(_RC):
        yield


@contextmanager
def light_style() -> Iterator[None]:
    """Context with the page's style in the colours of its light mode, for PNG files."""
    with page_style():
        colors = {
            key: _LIGHT[value]
            for key, value in matplotlib.rcParams.items()
            if isinstance(value, str) and value in _LIGHT
        }
        with matplotlib.rc_context({**colors, "axes.facecolor": "white", "figure.facecolor": "white"}):
            yield


def to_svg(figure: Figure, name: str, label: str) -> str:
    """The figure as an `<svg>` element that scales with its container.

    Args:
        name: unique on the page; prefixes the ids inside the drawing.
        label: plain-text description for screen readers.
    """
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # HTML needs no namespaces, and the page must not contain URLs.
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = svg.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, f"var(--{variable})")
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", svg)
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box is not None
    label = label.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    svg = re.sub(r"<svg[^>]*>", lambda _: f'<svg {box[0]} role="img" aria-label="{label}">', svg, count=1)
    return re.sub(r"\n\s*", "\n", svg)
