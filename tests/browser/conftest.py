"""A browser for all tests, and a folder for pictures: `pytest tests/browser --pictures docs/pictures`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.support.browser import open_browser


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pictures", type=Path, help="folder for screenshots of the pages")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="session")
def pictures(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder for screenshots; a temporary one unless the command names one."""
    chosen: Path | None = request.config.getoption("--pictures")
    return chosen or tmp_path_factory.mktemp("pictures")
