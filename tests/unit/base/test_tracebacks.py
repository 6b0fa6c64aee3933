"""An unexpected error is found in the log by its kind and its place, and says nothing of the data."""

import asyncio
import logging

import numpy as np
import pytest

from trilateral.common.base.tracebacks import where
from trilateral.common.process.server import log_without_text

SECRET = "4111-patient"


def fail() -> None:
    try:
        np.array([SECRET]).astype(float)
    except ValueError as error:
        raise KeyError(SECRET) from error


def test_kinds_and_places_are_told_and_no_text() -> None:
    with pytest.raises(KeyError) as raised:
        fail()
    told = where(raised.value)
    assert told.startswith("KeyError\n")
    assert "after ValueError" in told
    assert "test_tracebacks.py" in told
    assert "in fail" in told
    assert SECRET not in told


def test_an_error_that_led_to_itself_is_told_once() -> None:
    one, other = ValueError(SECRET), TypeError(SECRET)
    one.__cause__, other.__cause__ = other, one
    assert where(one) == "ValueError\n  after TypeError"


async def test_what_a_task_leaves_behind_is_logged_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.get_running_loop()
    with caplog.at_level(logging.DEBUG):
        log_without_text(loop, {"message": "Task exception was never retrieved", "exception": ValueError(SECRET)})
        log_without_text(loop, {"message": "something else"})
    assert [record.getMessage() for record in caplog.records] == [
        "Task exception was never retrieved: ValueError",
        "something else",
    ]
