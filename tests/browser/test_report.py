"""The reports of a finished job, in a browser."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.support.browsed_trial import CATEGORIES, FINISHED, GUEST_COLUMNS, HOST_COLUMNS, BrowsedTrial
from tests.support.browser import Visitor, visiting
from tests.unit.report.test_classes import CLASSES, folder
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig, LabelConfig
from trilateral.common.report.job_files import read_path
from trilateral.common.report.later_rows import LaterRows
from trilateral.common.report.page import html_of, report_html

__all__ = ["folder"]


@pytest.fixture(scope="module")
def reports(trial: BrowsedTrial, tmp_path_factory: pytest.TempPathFactory) -> dict[Role, Path]:
    """The three reports of the job, as files."""
    folder = tmp_path_factory.mktemp("reports")
    files = {role: folder / f"{role}.html" for role in Role}
    for role, file in files.items():
        file.write_text(report_html(trial.configs[role], FINISHED.name))
    return files


@contextmanager
def reading(browser: Browser, file: Path, *, scripts: bool = True) -> Iterator[Visitor]:
    with visiting(browser, java_script_enabled=scripts) as visitor:
        visitor.page.goto(file.as_uri())
        yield visitor


@pytest.mark.parametrize("role", list(Role))
def test_everyone_can_read_a_report(browser: Browser, reports: dict[Role, Path], role: Role) -> None:
    with reading(browser, reports[role]) as visitor:
        visitor.check_looks()
        assert visitor.page.locator("svg[role=img]").count() > 0


@pytest.mark.parametrize(
    ("role", "names"), [(Role.HOST, (*HOST_COLUMNS, *CATEGORIES[1:])), (Role.GUEST, GUEST_COLUMNS)]
)
def test_markup_in_names_stays_text(
    browser: Browser, reports: dict[Role, Path], role: Role, names: tuple[str, ...]
) -> None:
    with reading(browser, reports[role]) as visitor:
        shown = visitor.page.locator("body").inner_text()
        drawn = visitor.page.evaluate("[...document.querySelectorAll('svg text')].map(e => e.textContent).join('\\n')")
        for name in names:
            assert name in shown
        for name in set(names) & {"income", '"><b>bold</b>', "a&amp;b$x_1^2$", "age", "javascript:alert(1)"}:
            assert name in drawn  # charts shorten the longer ones
        assert visitor.page.evaluate("window.wasRun") is None
        assert visitor.page.locator("img, iframe, b, i, u").count() == 0


def test_the_threshold_moves_with_the_keyboard(browser: Browser, reports: dict[Role, Path]) -> None:
    with reading(browser, reports[Role.GUEST]) as visitor:
        page = visitor.page
        slider = page.get_by_label("Threshold on the probability")
        above, cost = page.locator("#rows-above"), page.locator("#cost")
        slider.focus()
        page.keyboard.press("Home")
        all_rows = above.inner_text()
        page.keyboard.press("End")
        expect(above).not_to_have_text(all_rows)
        before = cost.inner_text()
        page.get_by_label("Cost of a false negative").fill("25")
        expect(cost).not_to_have_text(before)
        page.get_by_role("button", name="Set to the lowest cost").click()
        expect(page.locator("#least-cost")).to_have_text(re.compile(rf"{re.escape(cost.inner_text())} at "))
        visitor.check_widths()


def test_each_class_has_a_threshold_of_its_own(browser: Browser, folder: Path, tmp_path: Path) -> None:
    dataset = DatasetConfig(path=folder / "march.csv", label=LabelConfig(column="home", classes=CLASSES))
    later = LaterRows(scores=folder / "scores.csv", labels=("march", dataset))
    file = tmp_path / "classes.html"
    file.write_text(html_of(read_path(folder / "state/jobs/homes"), later))
    with reading(browser, file) as visitor:
        visitor.check_looks()
        panels = visitor.page.get_by_role("group", name="Thresholds: class")
        expect(panels).to_have_count(3)
        values = [panels.nth(place).locator("output").first.inner_text() for place in range(3)]
        panels.nth(1).get_by_label("Threshold on the probability").focus()
        visitor.page.keyboard.press("Home")
        expect(panels.nth(1).locator("output").first).not_to_have_text(values[1])
        for place in (0, 2):
            expect(panels.nth(place).locator("output").first).to_have_text(values[place])


def test_a_report_says_the_same_without_scripts(browser: Browser, reports: dict[Role, Path]) -> None:
    with reading(browser, reports[Role.GUEST], scripts=False) as visitor:
        assert not visitor.page.locator("#confusion").is_visible()
        assert visitor.page.get_by_role("region", name="threshold").count() > 0


def test_the_first_key_skips_to_the_content(browser: Browser, reports: dict[Role, Path]) -> None:
    with reading(browser, reports[Role.GUEST]) as visitor:
        visitor.page.keyboard.press("Tab")
        skip = visitor.page.locator(":focus")
        expect(skip).to_have_class("skip")
        expect(skip).to_be_in_viewport()
        visitor.page.keyboard.press("Enter")
        expect(visitor.page.locator(":focus")).to_have_id("content")


def test_a_report_prints_on_light_pages(browser: Browser, reports: dict[Role, Path], tmp_path: Path) -> None:
    with reading(browser, reports[Role.GUEST]) as visitor:
        visitor.page.emulate_media(color_scheme="dark", media="print")
        background = visitor.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert background in {"rgb(255, 255, 255)", "rgba(0, 0, 0, 0)"}
        visitor.page.pdf(path=tmp_path / "report.pdf", format="A4")
        assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")


def test_pictures_of_a_report(browser: Browser, reports: dict[Role, Path], pictures: Path) -> None:
    with reading(browser, reports[Role.GUEST]) as visitor:
        visitor.photograph(pictures / "report.png", at="#quality", height=1100)
        visitor.photograph(pictures / "report-phone.png", at="#threshold", width=375, theme="dark")
