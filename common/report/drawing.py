"""What all charts have in common: colours, axes, names that come from data, and a note where there is nothing to draw.

The ink of axes and text is that of matplotlib's style, so that a chart follows the style of a notebook. The colours of
series are fixed.
"""

import os
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

PALETTE = ("#0072b2", "#bf5000", "#007d5b", "#a8508a")
"""Colours of series, which people with any colour vision can tell apart: blue, vermilion, bluish green and reddish
purple of Okabe and Ito (2008), Color Universal Design, the last three darker. On white, each has a contrast of at least
4.5 to 1, as text needs, and on black of at least 3 to 1, as lines need."""
FIRST, SECOND, *_ = PALETTE

MAX_NAME = 32
"""Characters of a name in a chart. A longer one loses its middle."""
MAX_ROWS = 20
"""Names in a chart with a line for each. The others are counted."""
SMALL = 8.5
"""Font size of labels inside a chart, in points."""
MAX_BINS = 40
"""Bins of a column in a chart."""
REFERENCE: dict[str, Any] = {"alpha": 0.55, "linewidth": 1, "linestyle": (0, (4, 3))}
"""The look of a line to compare others with."""
_HIDDEN = {"Cc", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories that have no form of their own in a chart, or that XML forbids."""
_DIRECTIONS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the direction of the text around them."""


def names_of(texts: Sequence[str]) -> list[str]:
    """Return names that stand in one chart; see `name_of`. Long ones that would look alike keep what differs."""
    short = [name_of(text) for text in texts]
    shown = list(short)
    for place, name in enumerate(short):
        alike = [text for text, other in zip(texts, short, strict=True) if other == name]
        if len(set(alike)) > 1:
            n_common = len(os.path.commonprefix(alike))  # noqa: RUF071 - these are no paths
            start = max(n_common - 3, MAX_NAME // 3)
            shown[place] = (
                f"{name_of(texts[place][: MAX_NAME // 3])}…{name_of(texts[place][start:], MAX_NAME * 2 // 3)}"
            )
    return shown


def name_of(text: str, longest: int = MAX_NAME) -> str:
    """Return a name from data as a chart shows it: on one line, and not too long.

    Args:
        text: any text, such as a category. Control characters become U+FFFD.
        longest: characters to show.
    """
    shown = "".join(
        " " if each in "\t\r\n" else "\ufffd" if unicodedata.category(each) in _HIDDEN or each in _DIRECTIONS else each
        for each in text
    )
    if len(shown) <= longest:
        return shown
    tail = (longest - 1) // 3
    return f"{shown[: longest - 1 - tail]}…{shown[-tail:]}"


def ink() -> str:
    """Return the colour of text in the current style."""
    return str(mpl.rcParams["text.color"])


def prepare(axes: Axes, x: str, y: str) -> None:
    """Set the labels of axes, and leave out what carries no information."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=ink(), alpha=0.12, linewidth=0.8)
    axes.set_axisbelow(True)


def prepare_rows(axes: Axes, names: Sequence[str], x: str, most: int = MAX_ROWS) -> None:
    """Make axes with a line for each name, the first one at the top.

    Args:
        axes: the chart.
        names: names from data.
        x: label of the horizontal axis.
        most: maximum number of names. The last line says how many others there are.
    """
    shown = names_of(names[:most]) + ([f"and {len(names) - most} more"] if len(names) > most else [])
    prepare(axes, x, "")
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    # A name is never a formula, whatever characters it has.
    axes.set_yticks(range(len(shown)), shown, parse_math=False, usetex=False)


def percent(*sides: Any) -> None:
    """Show shares as per cent.

    Args:
        *sides: `axes.xaxis`, `axes.yaxis` or both.
    """
    for side in sides:
        side.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.4g}%"))


def logarithmic(side: Any, turn_on: Callable[[str], None]) -> None:
    """Make an axis logarithmic, with few numbers that are plain text.

    Args:
        side: `axes.xaxis` or `axes.yaxis`.
        turn_on: `axes.set_xscale` or `axes.set_yscale`.
    """
    turn_on("log")
    side.set_major_locator(LogLocator(numticks=7))
    side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    side.set_minor_locator(NullLocator())


def unit_square(axes: Axes) -> None:
    """Show shares from 0 to 100% on both axes."""
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    percent(axes.xaxis, axes.yaxis)


def say(axes: Axes, x: float, y: float, text: str, **style: Any) -> None:
    """Write text into a chart. It is never a formula.

    Args:
        axes: the chart.
        x: place, in units of the data unless `style` has another `transform`.
        y: likewise.
        text: the text.
        **style: properties of matplotlib's `Text`.
    """
    axes.text(x, y, text, **{"fontsize": SMALL, "parse_math": False, "usetex": False} | style)


def name_point(axes: Axes, x: float, y: float, text: str, shift: tuple[float, float], **style: Any) -> None:
    """Name a curve beside one of its points.

    Args:
        axes: the chart.
        x: the point.
        y: likewise.
        text: the name.
        shift: of the text against the point, in points to the right and upwards.
        **style: properties of matplotlib's `Text`.
    """
    usual: dict[str, Any] = {"fontsize": SMALL, "weight": "bold", "parse_math": False, "usetex": False}
    axes.annotate(text, (x, y), xytext=shift, textcoords="offset points", **usual | style)


def refer(axes: Axes, x: Sequence[float], y: Sequence[float]) -> None:
    """Draw a line to compare others with."""
    axes.plot(x, y, zorder=1.5, **REFERENCE | {"color": ink()})


def nothing(axes: Axes, reason: str) -> str:
    """Say why there is nothing to draw.

    Returns:
        The reason, as a description.
    """
    axes.set_axis_off()
    say(axes, 0.5, 0.5, reason, transform=axes.transAxes, ha="center", va="center", wrap=True, fontsize=10)
    return reason
