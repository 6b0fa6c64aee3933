"""A chart as SVG, to stand in an HTML page.

The SVG has no style sheet, no style attribute and no script, so that a page with a strict content security policy can
contain it. Its colours are CSS variables, which the page sets for light and dark: `LIGHT`, `DARK`. Text stays text.
"""

import io
import re
import threading
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from trilateral.common.report.drawing import PALETTE

_INK, _PAPER = "#1f2328", "#ffffff"
LIGHT = {"--chart-ink": _INK, "--chart-paper": _PAPER} | {
    f"--chart-{number}": colour for number, colour in enumerate(PALETTE, 1)
}
"""The variables of an SVG and their colours on a light page, and on paper. They apply where a page sets no others."""
DARK = {
    "--chart-ink": "#e6edf3",
    "--chart-paper": "#0d1117",
    "--chart-1": "#58a6e8",
    "--chart-2": "#f08a4b",
    "--chart-3": "#3fc495",
    "--chart-4": "#e08cc0",
}
"""The same on a dark page."""

_VARIABLES = {colour: f"var({name}, {colour})" for name, colour in LIGHT.items()}
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_STYLE: dict[Any, Any] = {
    "axes.edgecolor": _INK,
    "axes.facecolor": "none",
    "axes.labelcolor": _INK,
    "axes.titlecolor": "auto",
    "figure.facecolor": "none",
    "font.family": "sans-serif",
    "font.size": 10.0,
    "svg.fonttype": "none",
    "svg.hashsalt": "trilateral",
    "text.color": _INK,
    "text.parse_math": False,
    "text.usetex": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
}
_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
_LEFT_OUT = {"font-family", "font-stretch", "font-variant", "line-height"}
_LOCK = threading.Lock()
"""matplotlib's style and Python's filters of warnings belong to the whole process."""


def render(draw: Callable[[Axes], str], *, name: str, title: str, width: float = 6.4, height: float = 4.0) -> str:
    """Draw a chart as an element `svg`.

    Args:
        draw: draws on the axes that it is given, and returns a sentence that describes the chart.
        name: begins each id in the SVG; a page has one chart of a name. Letters, digits and hyphens.
        title: what the chart shows, in a few words.
        width: in inches. A page may scale the chart.
        height: in inches.

    Returns:
        The same text for the same chart.
    """
    with _LOCK, _styled():
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        description = draw(figure.add_subplot())
        content = io.BytesIO()
        figure.savefig(content, format="svg", metadata=_METADATA)
    # The text was written by matplotlib, and has no entities.
    root = ET.fromstring(content.getvalue())  # noqa: S314
    _strip(root)
    _rename(root, name)
    _describe(root, name, title, description)
    ET.register_namespace("", _SVG)
    return ET.tostring(root, encoding="unicode")


@contextmanager
def _styled() -> Iterator[None]:
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        # The page has fonts for all scripts. matplotlib's own font only measures the text.
        warnings.filterwarnings("ignore", message=r"Glyph \d+")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        yield


def _strip(root: ET.Element) -> None:
    """Leave out metadata and style sheets, and turn styles into attributes."""
    for parent in root.iter():
        for child in list(parent):
            if child.tag in {f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"}:
                parent.remove(child)
    for element in root.iter():
        for key, value in _declarations(element.attrib.pop("style", "")):
            element.set(key, value)
        for key in ("fill", "stroke"):
            if element.get(key) in _VARIABLES:
                element.set(key, _VARIABLES[element.attrib[key]])
        reference = element.attrib.pop(f"{{{_XLINK}}}href", None)
        if reference is not None:
            element.set("href", reference)
    root.set("font-family", "system-ui, sans-serif")
    root.set("stroke-linejoin", "round")


def _declarations(style: str) -> Iterator[tuple[str, str]]:
    for declaration in filter(None, map(str.strip, style.split(";"))):
        key, value = map(str.strip, declaration.split(":", 1))
        if key not in _LEFT_OUT:
            yield key, value


def _rename(root: ET.Element, name: str) -> None:
    """Give the elements that others refer to ids that begin with the name of the chart, and the others none."""
    references = {
        found
        for element in root.iter()
        for value in element.attrib.values()
        for found in re.findall(r"^#(.+)$|^url\(#(.+)\)$", value)
    }
    used = {first or second for first, second in references}
    numbers: dict[str, str] = {}
    for element in root.iter():
        old = element.attrib.pop("id", None)
        if old in used and old is not None:
            numbers[old] = f"{name}-{len(numbers)}"
            element.set("id", numbers[old])
    for element in root.iter():
        for key, value in element.attrib.items():
            if value.startswith("#") and value[1:] in numbers:
                element.set(key, f"#{numbers[value[1:]]}")
            elif value.startswith("url(#"):
                element.set(key, f"url(#{numbers[value[5:-1]]})")


def _describe(root: ET.Element, name: str, title: str, description: str) -> None:
    for place, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = ET.Element(f"{{{_SVG}}}{tag}", {"id": f"{name}-{tag}"})
        element.text = text
        root.insert(place, element)
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-title")
    root.set("aria-describedby", f"{name}-desc")
