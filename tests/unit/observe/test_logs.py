"""Each line says to which job and round it belongs, and nothing that the error itself says."""

import asyncio
import json
import logging
from collections.abc import Iterator
from io import StringIO

import pytest

from trilateral.common.base.roles import Role
from trilateral.common.observe.logs import JsonFormatter, LogContext, LogFormat, TextFormatter

log = logging.getLogger("tests.logs")


class Written:
    """What has been logged in one of the formats."""

    def __init__(self, formatter: logging.Formatter) -> None:
        self.stream = StringIO()
        self.handler = logging.StreamHandler(self.stream)
        self.handler.setFormatter(formatter)

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()


@pytest.fixture(params=list(LogFormat))
def written(request: pytest.FixtureRequest) -> Iterator[Written]:
    written = Written(TextFormatter(Role.HOST) if request.param is LogFormat.TEXT else JsonFormatter(Role.HOST))
    log.addHandler(written.handler)
    log.setLevel(logging.INFO)
    yield written
    log.removeHandler(written.handler)


def place_of(line: str) -> tuple[str | None, str | None]:
    """Job and round of a line in either format."""
    if line.startswith("{"):
        fields = json.loads(line)
        return fields.get("job"), None if "round" not in fields else str(fields["round"])
    words = dict(word.split("=") for word in line.partition(": ")[0].split() if "=" in word)
    return words.get("job"), words.get("round")


def test_a_line_belongs_where_it_is_written(written: Written) -> None:
    log.info("outside")
    place = LogContext("credit")
    with place.current():
        log.info("before the first round")
        place.round = 3
        log.info("in a round")
        with LogContext("other").current():
            log.info("elsewhere")
        log.info("back")
    log.info("outside")
    assert [place_of(line) for line in written.lines] == [
        (None, None),
        ("credit", None),
        ("credit", "3"),
        ("other", None),
        ("credit", "3"),
        (None, None),
    ]


async def test_a_task_stays_where_it_was_begun_and_sees_the_round_change(written: Written) -> None:
    place, go = LogContext("credit"), asyncio.Event()

    async def work() -> None:
        await go.wait()
        log.info("working")
        await asyncio.to_thread(log.info, "in a thread")

    with place.current():
        task = asyncio.create_task(work())
    place.round = 7
    go.set()
    await task
    assert [place_of(line) for line in written.lines] == [("credit", "7")] * 2


def test_an_error_tells_where_it_came_from_and_not_what_it_says(written: Written) -> None:
    try:
        raise ValueError("alice is 4711")
    except ValueError:
        log.exception("it failed")
    whole = written.stream.getvalue()
    assert "4711" not in whole
    assert "ValueError" in whole
    assert "test_logs.py" in whole


def test_time_is_utc_and_the_role_is_on_each_line(written: Written) -> None:
    record = logging.LogRecord("tests.logs", logging.WARNING, __file__, 1, "%d rows", (3,), None)
    record.created = 1_800_000_000.25
    line = written.handler.format(record)
    if line.startswith("{"):
        assert json.loads(line) == {
            "time": "2027-01-15T08:00:00.250Z",
            "level": "WARNING",
            "role": "host",
            "logger": "tests.logs",
            "message": "3 rows",
        }
    else:
        assert line == "2027-01-15T08:00:00.250Z WARNING host tests.logs: 3 rows"


def test_a_strangers_words_make_no_line_of_their_own_and_no_colours(written: Written) -> None:
    log.info("refused: %s", "x\n2027-01-15T08:00:00.250Z INFO host tests.logs: all is well\x1b[31m\u2028y")
    first, *others = written.stream.getvalue().split("\n")[:-1]
    assert "\x1b" not in written.stream.getvalue()
    assert "\u2028" not in written.stream.getvalue()
    if first.startswith("{"):
        assert others == []
    else:
        assert [line[:4] for line in others] == ["    "]
