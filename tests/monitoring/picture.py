"""Draw the dashboard with matplotlib, in the layout of its file, as Grafana would."""

import re
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter
from PIL import Image

COLUMNS = 24
CELL = (0.62, 0.30)
"""Size of a cell of the dashboard's grid, in inches."""
BACKGROUND, PANEL, INK, FAINT = "#f4f5f5", "#ffffff", "#24292e", "#8e8e8e"
COLOURS = [plt.get_cmap(name)(index) for name, count in (("tab10", 10), ("Set2", 8)) for index in range(count)]


def draw(panels: list[tuple[dict[str, Any], list[tuple[str, str, list[dict[str, Any]]]]]], path: Path) -> None:
    """Draw every panel in its place, and write the picture."""
    n_rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel, _ in panels)
    width, height = COLUMNS * CELL[0], n_rows * CELL[1]
    figure = plt.figure(figsize=(width, height), facecolor=BACKGROUND)
    starts = [float(s["values"][0][0]) for _, series in panels for _, _, found in series for s in found]
    for panel, series in panels:
        place = panel["gridPos"]
        left, bottom = place["x"] / COLUMNS, 1 - (place["y"] + place["h"]) / n_rows
        right, top = left + place["w"] / COLUMNS, bottom + place["h"] / n_rows
        if panel["type"] == "row":
            figure.text(left + 0.06 / width, (bottom + top) / 2, panel["title"], weight="bold", size=9, color=INK)
            continue
        box = (left + 0.05 / width, bottom + 0.05 / height, right - left - 0.1 / width, top - bottom - 0.1 / height)
        figure.add_axes(box, facecolor=PANEL, xticks=[], yticks=[], frame_on=True)
        for spine in figure.axes[-1].spines.values():
            spine.set_color("#dcdcdc")
        figure.text(left + 0.15 / width, top - 0.22 / height, panel["title"], size=7.5, color=INK)
        if panel["type"] == "stat":
            text = stat_text(panel, series)
            middle = ((left + right) / 2, (bottom + top) / 2 - 0.07 / height)
            size = 15 if "\n" not in text and len(text) < 12 else 8.5
            figure.text(*middle, text, size=size, color="#2f7d32", ha="center", va="center")
        else:
            inner = (
                left + 0.55 / width,
                bottom + 0.66 / height,
                right - left - 0.7 / width,
                top - bottom - 1.0 / height,
            )
            plot(figure.add_axes(inner, facecolor=PANEL), panel, series, min(starts))
    path.parent.mkdir(parents=True, exist_ok=True)
    content = BytesIO()
    figure.savefig(content, dpi=80)
    Image.open(content).convert("RGB").quantize(96).save(path, optimize=True)


def plot(axes: Axes, panel: dict[str, Any], series: list[tuple[str, str, list[dict[str, Any]]]], begun: float) -> None:
    """Draw a time series, stacked if the panel asks for it."""
    lines = [(legend(pattern, each["metric"]), points(each, begun)) for _, pattern, found in series for each in found]
    lines = [(name, line) for name, line in lines if any(line.values())] or lines[:3]
    if panel["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal":
        times = sorted({time for _, line in lines for time in line})
        heights = [[line.get(time, 0.0) for time in times] for _, line in lines]
        axes.stackplot(times, heights, labels=[name for name, _ in lines], colors=COLOURS, alpha=0.85, linewidth=0)
    else:
        for (name, line), colour in zip(lines, COLOURS, strict=False):
            axes.plot(list(line), list(line.values()), label=name, color=colour, linewidth=1.2)
    defaults = panel["fieldConfig"]["defaults"]
    if "min" in defaults:
        axes.set_ylim(bottom=defaults["min"])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: in_unit(value, defaults["unit"])))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} s"))
    axes.tick_params(labelsize=6, colors=FAINT, length=0)
    axes.grid(color="#ececec", linewidth=0.6)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)
    width = panel["gridPos"]["w"]
    columns, left = (2 if width <= 6 else 5), -0.06 * min(1, 12 / width)
    axes.legend(
        loc="upper left", bbox_to_anchor=(left, -0.14), ncol=columns, fontsize=6, frameon=False, labelcolor=INK,
        handlelength=1, columnspacing=1, borderpad=0, labelspacing=0.25,
    )  # fmt: skip


def stat_text(panel: dict[str, Any], series: list[tuple[str, str, list[dict[str, Any]]]]) -> str:
    """Return the last value of each series."""
    unit = panel["fieldConfig"]["defaults"]["unit"]
    shown = []
    for _, pattern, found in series:
        for each in found:
            name = legend(pattern, each["metric"]) if pattern else ""
            shown.append(f"{name}  {in_unit(float(each['values'][-1][1]), unit)}".strip())
    return "\n".join(shown) or "none"


def points(series: dict[str, Any], begun: float) -> dict[float, float]:
    """Return the values by seconds since the beginning."""
    return {float(time) - begun: float(value) for time, value in series["values"]}


def legend(pattern: str, labels: dict[str, str]) -> str:
    """Fill labels in, as Grafana does."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), pattern)


def in_unit(value: float, unit: str) -> str:
    """Return a value with its unit, as Grafana formats it."""
    match unit:
        case "percentunit":
            return f"{100 * value:.0f} %"
        case "s" if value >= 86400:
            return f"{value / 86400:.0f} days"
        case "s":
            return f"{value:.3g} s"
        case "bytes" | "Bps":
            per, size = ("/s" if unit == "Bps" else ""), value
            for prefix in ("", "k", "M", "G", "T"):
                if abs(size) < 1000 or prefix == "T":
                    return f"{size:.3g} {prefix}B{per}"
                size /= 1000
            return ""
        case _:
            return f"{value:.4g}"
