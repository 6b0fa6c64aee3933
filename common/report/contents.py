"""What a report consists of: sections with facts, tables and charts, before they become a page.

All texts are plain text, which the page escapes. So a name from a table cannot become markup, wherever it is shown.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NO_FIGURE = "\N{EN DASH}"
"""Stands for a figure that is not known."""
WIDE = 8.4
"""Width of a chart that has a row of the page of its own, in inches."""
SQUARE = 4.1
"""Height of a chart whose axes are equal, in inches."""


@dataclass(frozen=True)
class Figure:
    """A key figure at the top of a report."""

    name: str
    value: str
    note: str = ""
    """A few words below the value, such as its confidence interval."""


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class Points:
    """A list of remarks."""

    kind: ClassVar[str] = "points"
    texts: Sequence[str]


@dataclass(frozen=True)
class Facts:
    """Names with their values, one a line."""

    kind: ClassVar[str] = "facts"
    caption: str
    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Table:
    """A table whose first column names the rows."""

    kind: ClassVar[str] = "table"
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    n_texts: int = 1
    """The first so many columns hold text, and the others numbers."""
    note: str = ""
    """Explains the columns, below the table."""


@dataclass(frozen=True)
class Chart:
    """A chart, drawn when the page is made."""

    name: str
    """Unique in the report; letters, digits and hyphens."""
    title: str
    draw: "Callable[[Axes], str]"
    """Draws on axes, and returns a sentence that says what the chart shows."""
    note: str = ""
    """How to read it."""
    width: float = 5.0
    """In inches, at the size of the text of the page."""
    height: float = 3.4


@dataclass(frozen=True)
class Charts:
    """Charts side by side, where the page is wide enough."""

    kind: ClassVar[str] = "charts"
    charts: Sequence[Chart]


@dataclass(frozen=True)
class Thresholds:
    """What follows from each threshold on the probability, for a table and for a slider."""

    kind: ClassVar[str] = "thresholds"
    prefix: str
    """Begins the names of the elements, which are unique in a report with several such blocks."""
    axis: str
    """What `score` is called."""
    of_what: str
    """Ends the captions, in a report with several such blocks."""
    probability: Sequence[float]
    """Of each threshold, in ascending order. An isotonic map may give several thresholds the same one."""
    score: Sequence[float]
    """The thresholds: rows with a higher score u count as positive."""
    true_positive: Sequence[int]
    false_positive: Sequence[int]
    n_positive: int
    n_negative: int
    first: int
    """Place of the threshold that is shown first."""
    cost_false_positive: float
    """Of a negative row above the threshold, in any unit."""
    cost_false_negative: float
    """Of a positive row below it."""
    table: Table
    """Some of the thresholds."""


Block = Text | Points | Facts | Table | Charts | Thresholds


@dataclass(frozen=True)
class Section:
    """A part of a report with a heading of its own."""

    name: str
    """Identifies the section in the page."""
    title: str
    blocks: Sequence[Block]
    sections: "Sequence[Section]" = ()
    """Parts of this part."""


@dataclass(frozen=True)
class Report:
    """A report of one job, at one process."""

    title: str
    role: str
    lead: str
    """What the report is about, in a few sentences."""
    figures: Sequence[Figure] = ()
    sections: Sequence[Section] = ()
    identity: Sequence[tuple[str, str]] = field(default_factory=tuple)
    """What tells this report from others, such as the run."""


def number(value: float | None, digits: int = 4) -> str:
    """Return a figure with so many decimals, or significant digits if it is huge; `NO_FIGURE` for None."""
    if value is None:
        return NO_FIGURE
    text = f"{value:z.{digits}f}" if abs(value) < 1e6 else f"{value:.{digits}g}"
    return text.replace("-", "\N{MINUS SIGN}")


def significant(value: float | None, digits: int = 4) -> str:
    """Return a figure with so many significant digits; `NO_FIGURE` for None."""
    return NO_FIGURE if value is None else f"{value:.{digits}g}".replace("-", "\N{MINUS SIGN}")


def share(value: float | None) -> str:
    """Return a share as a percentage."""
    return NO_FIGURE if value is None else f"{value:.1%}"


def interval(ends: tuple[float, float] | None, digits: int = 3) -> str:
    """Return a confidence interval; an empty text for None."""
    return "" if ends is None else f"{number(ends[0], digits)} to {number(ends[1], digits)}"


def size(n_bytes: int) -> str:
    """Return a number of bytes in suitable units (10^3 bytes to a kB)."""
    value, units = float(n_bytes), ["B", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.0f} B" if units[0] == "B" else f"{value:.3g} {units[0]}"


def pieces(*blocks: Block | None) -> list[Block]:
    """Return the blocks that there are."""
    return [block for block in blocks if block is not None]
