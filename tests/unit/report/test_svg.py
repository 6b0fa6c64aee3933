"""A chart in a page: it needs no style sheet, takes its colours from the page, and shows names as they are."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes

from trilateral.common.data.model.score_groups import ScoreGroups
from trilateral.common.report import charts, svg

NASTY = [
    "<script>alert(1)</script>",
    "]]></desc><script>",
    "$x^2$ & $\\frac{1}{2}$",
    "a_b^c",
    "\\$",
    "עברית",
    "😀",
    "_hidden",
    "%s {0} {{x}}",
    "' onload='alert(1)",
]


def groups() -> ScoreGroups:
    rng = np.random.default_rng(3)
    labels = np.where(rng.random(600) < 0.4, 1.0, -1.0)
    scores = rng.normal(size=600) + labels
    found = ScoreGroups.of(scores, labels, scores)
    assert found is not None
    return found


def names(axes: Axes) -> str:
    return charts.draw_coefficients(axes, [charts.Term(name, 1.0 + place) for place, name in enumerate(NASTY)])


def roc(axes: Axes) -> str:
    return charts.draw_roc(axes, groups(), auc=0.9, label="holdout")


def distribution(axes: Axes) -> str:
    return charts.draw_distribution(axes, groups())


def path_of_loss(axes: Axes) -> str:
    return charts.draw_loss(axes, range(1, 9), [10.0**-n for n in range(8)])


def local(tag: str) -> str:
    return tag.rpartition("}")[2]


def texts(root: ET.Element) -> list[str]:
    return [each.text or "" for each in root.iter() if local(each.tag) == "text"]


@pytest.mark.parametrize("draw", [names, roc, distribution, path_of_loss])
def test_a_page_with_a_strict_policy_can_contain_a_chart(draw: Callable[[Axes], str]) -> None:
    text = svg.render(draw, name="one", title="A chart")
    root = ET.fromstring(text)
    assert "DOCTYPE" not in text
    assert {local(each.tag) for each in root.iter()} <= {
        *("svg", "title", "desc", "g", "path", "text", "tspan", "use", "defs", "clipPath", "rect")
    }
    for each in root.iter():
        assert not {"style", "class"} & set(each.attrib)
        assert not any(name.startswith(("on", "{")) for name in each.attrib)


@pytest.mark.parametrize("draw", [names, roc, distribution, path_of_loss])
def test_all_colours_are_variables_of_the_page(draw: Callable[[Axes], str]) -> None:
    root = ET.fromstring(svg.render(draw, name="one", title="A chart"))
    used = {each.get(key, "none") for each in root.iter() for key in ("fill", "stroke")}
    known = {f"var({name}, {colour})" for name, colour in svg.LIGHT.items()}
    assert used - {"none"} <= known
    assert "var(--chart-ink, #1f2328)" in used
    assert set(svg.LIGHT) == set(svg.DARK)


def test_ids_of_two_charts_differ_and_all_references_are_met() -> None:
    ids: list[str] = []
    for name in ("one", "two"):
        root = ET.fromstring(svg.render(roc, name=name, title="A chart"))
        of_chart = [each.attrib["id"] for each in root.iter() if "id" in each.attrib]
        assert all(each.startswith(f"{name}-") for each in of_chart)
        values = " ".join(value for each in root.iter() for value in each.attrib.values())
        assert set(re.findall(r"#([a-z][\w-]*)\)", values)) <= set(of_chart)
        assert {each.attrib["href"][1:] for each in root.iter() if "href" in each.attrib} <= set(of_chart)
        ids += of_chart
    assert len(ids) == len(set(ids)) > 4


def test_a_chart_has_a_title_and_says_what_it_shows() -> None:
    root = ET.fromstring(svg.render(roc, name="one", title="ROC <curve> & more"))
    assert root.get("role") == "img"
    title, description = root[0], root[1]
    assert (root.get("aria-labelledby"), root.get("aria-describedby")) == (title.get("id"), description.get("id"))
    assert title.text == "ROC <curve> & more"
    assert description.text is not None
    assert description.text.startswith("ROC curve, AUC 0.900. Above one threshold are")


def test_names_from_data_are_shown_as_they_are() -> None:
    text = svg.render(names, name="one", title="Terms")
    assert set(NASTY) <= set(texts(ET.fromstring(text)))
    assert "<script" not in text
    assert "onload='" not in text.replace("' onload='alert", "")


def test_control_characters_and_changes_of_direction_are_replaced() -> None:
    def draw(axes: Axes) -> str:
        return charts.draw_stability(axes, {"a\x00b\x1b[31m\nc\ud800": 0.2, "\u202eevil": 0.1})

    shown = texts(ET.fromstring(svg.render(draw, name="one", title="Shift")))
    assert "a\ufffdb\ufffd[31m c\ufffd" in shown
    assert "\ufffdevil" in shown


def test_a_chart_is_the_same_each_time_whatever_the_style_of_the_program() -> None:
    first = svg.render(distribution, name="one", title="A chart")
    with mpl.rc_context({"text.color": "red", "axes.facecolor": "black", "svg.fonttype": "path", "font.size": 30}):
        assert svg.render(distribution, name="one", title="A chart") == first
        assert mpl.rcParams["text.color"] == "red"
        assert mpl.rcParams["font.size"] == 30


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


@pytest.mark.parametrize("theme", [svg.LIGHT, svg.DARK])
def test_names_in_all_colours_can_be_read(theme: Mapping[str, str]) -> None:
    paper = luminance(theme["--chart-paper"])
    for name, colour in theme.items():
        low, high = sorted((luminance(colour), paper))
        assert name == "--chart-paper" or (high + 0.05) / (low + 0.05) >= 4.5, name
