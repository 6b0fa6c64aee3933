"""What all tests in a browser share: the browser, three processes, and a folder for pictures (`--pictures FOLDER`)."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.support.browsed_trial import FINISHED, BrowsedTrial, aside, train
from tests.support.browser import open_browser
from trilateral.common.base.roles import Role
from trilateral.common.trial.localhost import free_addresses


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


@pytest.fixture(scope="session")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowsedTrial]:
    """Three processes, and a finished job."""
    listens = free_addresses()
    trial = BrowsedTrial(
        tmp_path_factory.mktemp("trial"), lambda role: {"ui": {"listen": listens[role], "allow_changes": True}}
    )
    aside(trial.__enter__)
    try:
        aside(train, trial.configs[Role.GUEST], FINISHED)
        yield trial
    finally:
        trial.__exit__(None, None, None)
