"""The checks of tests.support.browser find what they are for, on small pages served on this machine."""

from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import Browser

from tests.support.browser import Visitor, violations, visiting

GOOD = """<p>Everything on this page is in order.</p>
<div style="overflow-x: auto" tabindex="0" role="group" aria-label="wide"><p style="width: 3000px">scrolls</p></div>
<svg role="img" width="100" height="20"><title>A long title that nobody sees</title><text y="15">0.5</text></svg>"""
LONG = "long" * 200


@pytest.fixture(scope="module")
def site() -> Iterator[tuple[str, dict[str, str]]]:
    """A server, and the pages by path that it serves."""
    pages = {"/favicon.ico": "<svg xmlns='http://www.w3.org/2000/svg'/>"}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages.get(self.path, "").encode()
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Security-Policy", "default-src 'self'; style-src 'unsafe-inline'")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", pages
        server.shutdown()


@pytest.fixture
def show(browser: Browser, site: tuple[str, dict[str, str]]) -> Iterator[Callable[[str], Visitor]]:
    """Show a page with this body."""
    origin, pages = site
    with visiting(browser, origin) as visitor:

        def open_page(body: str) -> Visitor:
            style = ":root {color-scheme: light dark; background: Canvas}"
            pages["/"] = f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>a page</title>
                <meta name="viewport" content="width=device-width"><style>{style}</style>
                </head><body><main><h1>A page</h1>{body}</main></body></html>"""
            visitor.page.goto(origin)
            return visitor

        yield open_page
        visitor.expect_errors("")
        visitor.strangers.clear()


def test_a_page_in_order_passes_all_checks(show: Callable[[str], Visitor], tmp_path: Path) -> None:
    visitor = show(GOOD)
    visitor.check_looks()
    visitor.photograph(tmp_path / "page.png", width=375, theme="dark")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (f"<p>{LONG}</p>", "outside its box"),
        (f'<p style="width: max-content">{LONG}</p>', "outside the window"),
        (f'<div style="overflow: hidden"><p style="width: max-content">{LONG}</p></div>', "cut off"),
        (f'<div style="overflow-x: auto"><button style="width: 50px">{LONG}</button></div>', "outside its box"),
        ('<p style="position: relative; left: -50px">moved out</p>', "outside the window"),
        (f'<svg width="100" height="20"><text y="15">{LONG}</text></svg>', "outside its box"),
        ('<div style="width: 400px; height: 10px"></div>', "needs 408 pixels"),
        (
            '<svg viewBox="0 0 9 9" width="9" height="9"><text y="9" font-size="6">x</text></svg>',
            "smaller than 8 pixels",
        ),
    ],
)
def test_what_cannot_be_seen_whole_is_found(show: Callable[[str], Visitor], body: str, fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        show(body).check_widths()


def test_poor_contrast_is_found_in_each_theme(show: Callable[[str], Visitor]) -> None:
    visitor = show('<p style="color: light-dark(black, #333)">dark on dark</p>')
    visitor.page.emulate_media(color_scheme="light")
    assert not violations(visitor.page)
    with pytest.raises(AssertionError, match="color-contrast"):
        visitor.check_looks()


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ('<img src="missing.png" alt="">', "404"),
        ("<script>alert(1)</script>", "Content Security Policy"),
        ('<img src="data:," alt="">', "Content Security Policy"),
    ],
)
def test_an_error_in_the_console_is_found(show: Callable[[str], Visitor], body: str, error: str) -> None:
    visitor = show(body)
    with pytest.raises(AssertionError, match=error):
        visitor.check()


def test_a_request_to_another_host_is_found(show: Callable[[str], Visitor]) -> None:
    visitor = show('<a href="http://example.test/page">away</a>')
    visitor.check()
    with visitor.page.expect_event("requestfailed"):  # the browser resolves no name
        visitor.page.click("a")
    with pytest.raises(AssertionError, match=r"example\.test"):
        visitor.check()
