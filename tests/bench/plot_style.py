"""How bounds and numbers look in the tables and figures of benchmarks."""

from __future__ import annotations

from typing import Any

MODES = ("off", "paper", "certified")
COLOURS = {"off": "#888888", "paper": "#d9822b", "certified": "#2b6cb0"}


def shown(value: float | None, scale: float = 1e3) -> str:
    """Three significant digits, or a dash."""
    if value is None:
        return "-"
    value *= scale
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def pyplot() -> Any:
    """matplotlib, set so that equal data gives equal SVG files."""
    import matplotlib
    matplotlib.use("svg")
    from matplotlib import pyplot as plt
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "foxserve",
                                "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    return plt
