"""The live pages of three real processes, in a browser, while they train."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from playwright.sync_api import Browser, Locator, Page, expect

from tests.support.browsed_trial import CONSTANT, DATASET, FINISHED, IMAGE, MARKUP, BrowsedTrial, aside
from tests.support.browser import Visitor, violations, visiting
from trilateral.common.base.roles import Role

PATIENCE = 20_000
"""Milliseconds to wait for what takes under a second on an idle machine."""
expect.set_options(timeout=PATIENCE)
ENDLESS = f"{{dataset: {DATASET}, key_bits: 512, algorithm: {{name: sqn}}, epochs: 100000, tolerance: 0}}"
"""A training of short rounds that only a person stops, without its name."""


@contextmanager
def looking(browser: Browser, trial: BrowsedTrial, role: Role, path: str = "/", **options: Any) -> Iterator[Visitor]:
    """Open the page of a process."""
    origin = f"http://{trial.configs[role].ui.listen}"
    with visiting(browser, origin, base_url=origin, **options) as visitor:
        visitor.page.set_default_timeout(PATIENCE)
        visitor.page.goto(origin + path)
        expect(connection(visitor.page)).to_have_text("connected")
        yield visitor


def connection(page: Page) -> Locator:
    return page.locator("#connection")


def fact(page: Page, name: str) -> Locator:
    """Return the value of a fact about a job."""
    return page.locator(f"dl.facts div:has(dt:text-is('{name}')) dd")


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("path", ["/#/jobs", f"/#/jobs/{FINISHED.name}", "/#/processes", "/#/audit"])
def test_everyone_can_read_every_page(browser: Browser, trial: BrowsedTrial, role: Role, path: str) -> None:
    with looking(browser, trial, role, path) as visitor:
        expect(visitor.page.get_by_role("heading", level=1)).to_be_visible()
        visitor.check_looks()


def start(page: Page, name: str) -> None:
    """Paste a job and click, as a person would."""
    page.goto("/#/jobs")
    page.get_by_text("Start a job", exact=True).click()
    page.get_by_label("or its text, in YAML").fill(ENDLESS.replace("{", f"{{name: {name}, ", 1))
    page.get_by_role("button", name="Start the job").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)


def change(page: Page, word: str) -> None:
    """Click on stopping or resuming, and confirm it."""
    page.get_by_role("button", name=f"{word} the job").click()
    page.get_by_role("dialog").get_by_role("button", name=f"{word} the job").click()


def newest_round(page: Page) -> int:
    text = fact(page, "round").inner_text()
    return int(text.partition(",")[0])


def expect_later_rounds(page: Page) -> None:
    """Wait until rounds have come since now, in the facts, the table and the chart."""
    before = newest_round(page)
    expect(fact(page, "round")).not_to_have_text(str(before))
    eventually_shown(page, lambda: newest_round(page) > before + 2)
    eventually_shown(page, lambda: int(page.locator("tbody th.name").first.inner_text()) > before)


def eventually_shown(page: Page, condition: Callable[[], bool]) -> None:
    """Wait for a condition while the page goes on."""
    for _ in range(PATIENCE // 100):
        if condition():
            return
        page.wait_for_timeout(100)
    raise AssertionError("not shown in time")


def test_a_person_starts_follows_stops_and_resumes_a_training(
    browser: Browser, trial: BrowsedTrial, pictures: Path
) -> None:
    with looking(browser, trial, Role.GUEST) as visitor:
        page = visitor.page
        start(page, "endless")
        expect(fact(page, "state")).to_have_text("training")
        expect_later_rounds(page)
        eventually_shown(page, lambda: newest_round(page) > 40)
        visitor.photograph(pictures / "live-page.png")
        visitor.photograph(pictures / "live-page-phone.png", width=375, theme="dark")
        page.set_viewport_size({"width": 1440, "height": 900})

        page.get_by_role("button", name="Stop the job").click()
        assert not violations(page)
        page.get_by_role("button", name="Cancel").click()
        expect(fact(page, "state")).to_have_text("training")
        change(page, "Stop")
        expect(fact(page, "state")).to_have_text("stopped")
        at = newest_round(page)
        change(page, "Resume")
        expect(fact(page, "state")).to_have_text("training")
        eventually_shown(page, lambda: newest_round(page) > at)

        with looking(browser, trial, Role.COORDINATOR, "/#/jobs/endless") as other:
            expect_later_rounds(other.page)
            change(other.page, "Stop")
            expect(fact(other.page, "state")).to_have_text("stopped")
        expect(fact(page, "state")).to_have_text("stopped")
        visitor.check_looks()


@pytest.mark.parametrize(
    ("job", "text"),
    [
        ({"round": 0}, ""),
        ({"round": 7, "attempt": 2}, "7, attempt 2"),
        ({"round": 7, "attempt": 1, "step": "standard errors"}, "7, standard errors"),
        ({"round": 7, "attempt": 1, "step": "standard errors", "round_done": 0.4}, "7, standard errors (40 %)"),
        ({"round": 7, "attempt": 1, "step": "", "round_done": 0.4}, "7"),
    ],
)
def test_a_round_is_named_by_what_it_is_for(
    browser: Browser, trial: BrowsedTrial, job: dict[str, Any], text: str
) -> None:
    with looking(browser, trial, Role.GUEST) as visitor:
        assert visitor.page.evaluate("async (job) => (await import('/jobs.js')).round(job)", job) == text


def test_a_page_outlives_its_process_and_catches_up(browser: Browser, trial: BrowsedTrial) -> None:
    with looking(browser, trial, Role.GUEST) as visitor, looking(browser, trial, Role.HOST) as host:
        page = visitor.page
        start(page, "endless-2")
        host.page.goto("/#/jobs/endless-2")
        expect_later_rounds(page)
        aside(trial.kill, Role.GUEST)
        expect(connection(page)).to_have_text("not connected: trying again")
        assert newest_round(page) > 0  # still shown
        at = newest_round(page)
        visitor.check_widths()
        aside(trial.restart, Role.GUEST)
        expect(connection(page)).to_have_text("connected")
        expect(fact(page, "state")).to_have_text("training")
        eventually_shown(page, lambda: newest_round(page) > at)
        visitor.expect_errors("net::ERR_CONNECTION_REFUSED", "net::ERR_INCOMPLETE_CHUNKED_ENCODING")
        expect_later_rounds(host.page)
        change(host.page, "Stop")
        expect(fact(page, "state")).to_have_text("stopped")


def test_the_focus_stays_where_it_is_while_news_arrive(browser: Browser, trial: BrowsedTrial) -> None:
    with looking(browser, trial, Role.HOST) as visitor:
        page = visitor.page
        start(page, "endless-3")
        expect_later_rounds(page)
        page.get_by_role("button", name="Stop the job").focus()
        page.wait_for_timeout(1500)  # the page shows the time anew each second
        expect(page.get_by_role("button", name="Stop the job")).to_be_focused()
        page.goto("/#/jobs")
        link = page.get_by_role("link", name="endless-3")
        link.focus()
        page.wait_for_timeout(1500)  # the page shows the time anew each second
        expect(link).to_be_focused()
        page.keyboard.press("Enter")
        change(page, "Stop")
        expect(fact(page, "state")).to_have_text("stopped")


def test_the_report_of_a_finished_job_opens(browser: Browser, trial: BrowsedTrial) -> None:
    with looking(browser, trial, Role.GUEST, f"/#/jobs/{FINISHED.name}") as visitor:
        with visitor.page.expect_popup() as popup:
            visitor.page.get_by_role("link", name="Open the report").click()
        report = Visitor(popup.value, visitor.origin)
        expect(report.page.get_by_role("heading", level=1)).to_contain_text(FINISHED.name)
        report.page.get_by_label("Threshold on the probability").press("Home")
        report.check_widths()
        report.check()
        assert report.page.evaluate("window.wasRun") is None


def test_the_check_of_a_process_shows_its_findings(browser: Browser, trial: BrowsedTrial) -> None:
    with looking(browser, trial, Role.GUEST, "/#/processes") as visitor:
        page = visitor.page
        page.get_by_role("button", name="Check this process").click()
        expect(page.get_by_text("Checked at")).to_be_visible()
        expect(page.locator(".findings")).to_contain_text(CONSTANT)
        expect(page.get_by_text("answers", exact=True)).to_have_count(2)
        visitor.check_looks()


def test_the_audit_log_is_filtered(browser: Browser, trial: BrowsedTrial) -> None:
    with looking(browser, trial, Role.COORDINATOR, "/#/audit") as visitor:
        page = visitor.page
        lines = page.locator("tbody tr")
        page.get_by_label("Job").fill(FINISHED.name)
        page.get_by_label("Job").press("Enter")
        expect(page.get_by_text("endless")).to_have_count(0)
        expect(lines.first).to_contain_text(FINISHED.name)
        page.get_by_label("Decision").select_option("refused")
        expect(page.get_by_text("no lines")).to_be_visible()
        visitor.check_looks()


def test_markup_takes_no_effect(browser: Browser, trial: BrowsedTrial) -> None:
    with looking(browser, trial, Role.GUEST) as visitor:
        page = visitor.page
        page.get_by_text("Start a job", exact=True).click()
        for name in MARKUP:
            page.get_by_label("or its text, in YAML").fill(yaml.safe_dump({"name": name, "dataset": name, name: name}))
            page.get_by_role("button", name="Start the job").click()
            expect(page.locator("#start-result")).to_contain_text("name")
            visitor.expect_errors("a status of 400")
        for section in ("jobs", "audit", "processes"):
            page.goto(f"/#/{section}/{quote(IMAGE)}")
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            assert page.locator("main img, main svg[onload], main b").count() == 0
            visitor.expect_errors("a status of 404")
        assert page.evaluate("window.wasRun") is None
