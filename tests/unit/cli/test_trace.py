"""How a training has gone so far, in lines of text."""

import io
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from trilateral.cli.progress import BarView, LinesView
from trilateral.cli.trace import BARS, Trace, sparkline
from trilateral.common.base.roles import Role
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.process.job_progress import JobState, Progress


@pytest.mark.parametrize(
    ("values", "width", "bars"),
    [
        ([0.7], 10, "▁"),
        ([0.5, 0.5, 0.5], 10, "▁▁▁"),
        (range(8), 8, BARS),
        (range(15), 8, BARS),
        ([1.0, 10.0, 100.0], 10, "▁▅█"),
        ([0.0, 50.0, 100.0], 10, "▁▅█"),
        ([0.0, math.nan, 1.0, math.inf], 10, "▁███"),
        ([math.nan, math.inf], 10, "██"),
        ([2.0, 1.0], 1, "▁"),
        ([1e308, 1.0, 1e-308], 10, "█▅▁"),
    ],
)
def test_a_sparkline_rises_and_falls_with_its_values(values: Sequence[float], width: int, bars: str) -> None:
    assert sparkline(values, width) == bars


def test_a_sparkline_of_many_values_has_the_first_and_the_last() -> None:
    line = sparkline([1.0, *[0.5] * 9_998, 0.0], 60)
    assert (len(line), line[0], line[-1]) == (60, "█", "▁")


def training(number: int, loss: float | None) -> Progress:
    return Progress(
        "first", JobState.TRAINING, epoch=number, n_epochs=9, round=number, attempt=1, batch=1, n_batches=1, loss=loss
    )


def write(folder: JobFolder, *seconds: dict[str, float]) -> None:
    folder.make()
    with folder.unfinished_history.open("a") as file:
        for number, each in enumerate(seconds, 1):
            file.write(json.dumps({"round": number, "seconds": each}) + "\n")


def test_a_trace_has_the_losses_of_earlier_rounds_and_the_time_of_this_process(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path, "first")
    trace = Trace(folder, Role.GUEST, {1: 0.7, 2: 0.6})
    assert trace.lines(20) == ["loss 0.70000 █▁ 0.60000"]
    write(folder, {"all": 4.0, "product": 2.0, "seal": 1.0})
    trace.add(training(3, 0.5))
    assert trace.lines(20) == [
        "loss 0.70000 █▅▁ 0.50000",
        "time at the guest 4 s: product 50%, seal 25%, waiting 25%",
    ]
    write(folder, {"all": 4.0, "product": 4.0})
    trace.add(training(4, None))
    assert trace.lines(20)[1] == "time at the guest 8 s: product 75%, seal 12%, waiting 12%"


def test_a_history_that_begins_again_is_counted_once(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path, "first")
    write(folder, {"all": 9.0}, {"all": 9.0})
    trace = Trace(folder, Role.HOST)
    trace.add(training(2, None))
    folder.unfinished_history.unlink()
    write(folder, {"all": 1.0})
    trace.add(training(3, None))
    assert trace.lines(20) == ["time at the host 1 s: waiting 100%"]


def test_without_a_history_on_this_machine_there_is_no_time(tmp_path: Path) -> None:
    trace = Trace(JobFolder(tmp_path, "first"), Role.HOST)
    trace.add(training(1, None))
    assert trace.lines(20) == []


def test_a_terminal_shows_the_trace_under_the_bar_and_a_log_at_the_end(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path, "first")
    write(folder, {"all": 4.0, "product": 4.0})
    final = replace(training(3, 0.5), state=JobState.FINISHED)
    for is_terminal in (True, False):
        console = Console(file=io.StringIO(), width=100, force_terminal=is_terminal, color_system=None)
        view = (BarView if is_terminal else LinesView)(console, trace=Trace(folder, Role.GUEST))
        with view:
            view.show(training(1, 0.7))
            view.show(final)
        assert isinstance(console.file, io.StringIO)
        *_, loss, time = (
            line.strip() for line in console.file.getvalue().replace("\x1b[?25h", "").splitlines() if line.strip()
        )
        assert "loss 0.70000 █▁ 0.50000" in loss
        assert "time at the guest 4 s: product 100%" in time


def test_a_terminal_without_unicode_gets_no_bars(tmp_path: Path) -> None:
    class Ascii(io.StringIO):
        encoding = "ascii"

    console = Console(file=Ascii(), width=100, force_terminal=True, color_system=None)
    with BarView(console, trace=Trace(JobFolder(tmp_path, "first"), Role.GUEST, {1: 0.7})) as view:
        view.show(training(2, 0.5))
    assert isinstance(console.file, io.StringIO)
    assert "█" not in console.file.getvalue()
