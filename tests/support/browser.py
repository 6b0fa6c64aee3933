"""Pages in a real Chromium: a visitor that notes what goes wrong, and checks of what a person would notice."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Request, sync_playwright

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
WIDTHS = (375, 1440)
"""Widths of a telephone and of a desktop screen, in pixels."""
HEIGHT = 900
THEMES = ("light", "dark")
LOCAL_SCHEMES = ("data", "blob", "about")
"""URLs of these schemes cause no request over the network."""

DRAWN = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"
"""Waits until the page is drawn, and until a script that watches the size of a part has drawn this part anew."""

CUT_OFF = """() => {
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const range = document.createRange();
    const say = (node, why) => found.push(`${why}: ${node.textContent.trim().slice(0, 80)}`);
    // In a box of a pixel, or outside of the window as long as it has no focus.
    const isForScreenReaders = (element) => {
        for (let each = element; each; each = each.parentElement) {
            const [box, style] = [each.getBoundingClientRect(), getComputedStyle(each)];
            if (["absolute", "fixed"].includes(style.position)) {
                if (box.right <= 0 || box.bottom + scrollY <= 0) return true;
                if (box.width <= 1 && box.height <= 1 && style.overflowX === "hidden") return true;
            }
        }
        return false;
    };
    const isSvg = (element) => element instanceof SVGElement;
    while (walker.nextNode()) {
        const node = walker.currentNode;
        const parent = node.parentElement;
        if (!node.textContent.trim() || !parent.checkVisibility({visibilityProperty: true})) continue;
        if (["SCRIPT", "STYLE", "NOSCRIPT", "TEMPLATE", "OPTION"].includes(parent.tagName)) continue;
        if (isSvg(parent) && ["title", "desc", "style"].includes(parent.tagName)) continue;
        range.selectNodeContents(node);
        const box = range.getBoundingClientRect();
        if (box.width === 0) continue;
        // What holds the text: the drawing that it stands in, or the nearest element that is not part of a line.
        let holder = parent;
        if (isSvg(parent)) holder = parent.farthestViewportElement || parent.closest("svg");
        else while (["inline", "contents"].includes(getComputedStyle(holder).display)) holder = holder.parentElement;
        const own = holder.getBoundingClientRect();
        if (isForScreenReaders(holder)) continue;
        const matrix = isSvg(parent) ? parent.getScreenCTM() : {a: 1, b: 0};
        const scale = Math.hypot(matrix.a, matrix.b);
        if (parseFloat(getComputedStyle(parent).fontSize) * scale < 7.9) say(node, "smaller than 8 pixels");
        let scrolls = false;
        for (let each = holder; each && !scrolls; each = each.parentElement) {
            const style = getComputedStyle(each);
            scrolls = ["auto", "scroll"].includes(style.overflowX) && each !== document.documentElement;
            if (scrolls) break;
            const edge = each.getBoundingClientRect();
            const isOutside = box.right > edge.right + 1 || box.left < edge.left - 1;
            if (isOutside && ["hidden", "clip"].includes(style.overflowX)) {
                say(node, "cut off");
                break;
            }
        }
        const holds = getComputedStyle(holder).overflowX;
        if (["auto", "scroll"].includes(holds)) continue;
        if (box.right > own.right + 1 || box.left < own.left - 1) say(node, "outside its box");
        else if (!scrolls && (box.right > document.documentElement.clientWidth + 1 || box.left < -1)) {
            say(node, "outside the window");
        }
    }
    return found;
}"""
"""Returns the texts that are too small, or that a reader cannot see whole: outside their box or the window, and not in
a part that scrolls."""


class Visitor:
    """A page of a browser, and what went wrong on it.

    Args:
        page: the page.
        origin: scheme, host and port that the page may ask, such as `http://127.0.0.1:8080`; "" for none.
    """

    def __init__(self, page: Page, origin: str = "") -> None:
        self.page = page
        self.origin = origin
        self.errors: list[str] = []
        """Errors in the console and in scripts, a refusal by the content security policy among them."""
        self.strangers: list[str] = []
        """URLs of other hosts that the page asked for."""
        page.on("console", self._note_console)
        page.on("pageerror", self._note_error)
        page.context.on("request", self._note_request)

    def expect_errors(self, *parts: str) -> None:
        """Forget the errors that contain one of `parts`, which a test has caused on purpose."""
        self.errors = [error for error in self.errors if not any(part in error for part in parts)]

    def check(self) -> None:
        """Check that there was no error and no request to another host."""
        found = [*self.errors, *(f"asks another host: {url}" for url in self.strangers)]
        assert not found, "\n".join(found)

    def check_looks(self) -> None:
        """Check accessibility in both themes, and that every text can be read at all widths."""
        for theme in THEMES:
            self.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            found = violations(self.page)
            assert not found, "\n".join([f"in the {theme} theme:", *found])
        self.page.emulate_media(color_scheme="light")
        self.check_widths()
        self.check()

    def check_widths(self) -> None:
        """Check that the page needs no scrolling to the side, and that no text is cut off, at all widths."""
        before = self.page.viewport_size
        for width in WIDTHS:
            self.page.set_viewport_size({"width": width, "height": HEIGHT})
            self.page.evaluate(DRAWN)
            found = self.page.evaluate(CUT_OFF)
            assert not found, "\n".join([f"in a window of {width} pixels:", *found])
            needed = self.page.evaluate("document.documentElement.scrollWidth")
            assert needed <= width, f"the page needs {needed} pixels of {width}"
        if before:
            self.page.set_viewport_size(before)

    def photograph(
        self, path: Path, *, at: str = "body", width: int = 1440, height: int = HEIGHT, theme: str = "light"
    ) -> None:
        """Write a picture of the window, in few colours, from the element that the selector `at` names."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        self.page.evaluate(DRAWN)
        self.page.evaluate("at => document.querySelector(at).scrollIntoView()", at)
        content = self.page.screenshot(animations="disabled")
        Image.open(BytesIO(content)).convert("RGB").quantize(96).save(path, optimize=True)

    def _note_console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.errors.append(f"{message.type}: {message.text}")

    def _note_error(self, error: Error) -> None:
        self.errors.append(f"exception: {error}")

    def _note_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in LOCAL_SCHEMES or (parts.scheme == "file" and request.is_navigation_request()):
            return
        if f"{parts.scheme}://{parts.netloc}" != self.origin:
            self.strangers.append(request.url)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start Chromium, which can resolve no host name.

    Raises:
        FileNotFoundError: Chromium is not installed.
    """
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        raise FileNotFoundError(f"none of {', '.join(PROGRAMS)} is installed: on Debian, apt install chromium")
    # A sandbox of Chromium's own needs rights that containers and root lack. The pages are ours.
    options = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=options)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visiting(browser: Browser, origin: str = "", **options: Any) -> Iterator[Visitor]:
    """Open a page in a profile of its own, with `options` of Playwright's `new_context`.

    On exit, check that there was no error and no request to another host.
    """
    options.setdefault("viewport", {"width": 1440, "height": HEIGHT})
    options.setdefault("reduced_motion", "reduce")
    with browser.new_context(**options) as context:
        visitor = Visitor(context.new_page(), origin)
        yield visitor
        visitor.check()


def violations(page: Page) -> list[str]:
    """Return what axe-core finds wrong with the accessibility of a page, one line for each element."""
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {each['help']}: {' '.join(map(str, node['target']))}: {node['failureSummary']}"
        for each in found
        for node in each["nodes"]
    ]
