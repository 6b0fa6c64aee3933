"""What an operator sees of a job under way."""

import io

import pytest
from rich.console import Console

from common.cli.progress import BarView, LinesView, Pace, describe, duration, progress_view
from common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED, JOB_STATE_STARTING, JOB_STATE_TRAINING, JobStatus


def training(epoch: int, batch: int, seconds: float, *notes: str) -> JobStatus:
    return JobStatus(
        state=JOB_STATE_TRAINING,
        round=(epoch - 1) * 4 + batch,
        attempt=1,
        epoch=epoch,
        n_epochs=10,
        batch=batch,
        n_batches=4,
        loss=0.5,
        seconds=seconds,
        notes=notes,
    )


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def text_console() -> Console:
    return Console(file=io.StringIO(), width=40)


def terminal_console() -> Console:
    return Console(file=io.StringIO(), width=160, force_terminal=True, color_system=None)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_terminal_gets_a_bar_and_a_log_gets_lines() -> None:
    assert isinstance(progress_view(terminal_console()), BarView)
    assert isinstance(progress_view(text_console()), LinesView)


def test_rounds_come_at_most_once_a_second_but_notes_and_states_always() -> None:
    console, clock = text_console(), Clock()
    view = LinesView(console, clock)
    with view:
        view.show(JobStatus(state=JOB_STATE_STARTING, detail="making the key"))
        view.show(training(1, 1, 3))
        clock.now += 0.5
        view.show(training(1, 2, 3.5))
        view.show(training(1, 3, 3.6, "back to the best point", "[bold]"))
        clock.now += 0.6
        view.show(training(1, 4, 4.1))
    assert written(console).split("\n") == [
        "starting  making the key",
        "training  epoch 1/10  round 1  loss 0.50000  3 s",
        "note: back to the best point",
        "note: [bold]",
        "training  epoch 1/10  round 4  loss 0.50000  4 s  at most 13 s left",
        "",
    ]


def test_the_bar_shows_the_numbers_and_keeps_notes_above_it() -> None:
    console = terminal_console()
    view = BarView(console)
    with view:
        view.show(JobStatus(state=JOB_STATE_STARTING, detail="making the key"))
        view.show(training(1, 1, 3, "a note [1]"))
        view.show(training(5, 4, 22))
    text = written(console)
    assert "note: a note [1]\n" in text
    assert "epoch 5/10  round 20  loss 0.50000  22 s  at most 20 s left" in text


def test_a_bar_keeps_its_size_on_a_narrow_terminal() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    view = BarView(console)
    with view:
        view.show(training(9, 1, 3))
        view.show(training(10, 4, 22.0))
    assert "━" * 10 + " epoch 10/10  round 40  loss 0.50000  22 s  at most 0 s left" in written(console)


def test_the_bar_is_full_when_training_ends_before_its_last_epoch() -> None:
    console = terminal_console()
    view = BarView(console)
    with view:
        view.show(training(2, 1, 3))
        finished = training(2, 4, 4)
        finished.state = JOB_STATE_FINISHED
        view.show(finished)
    assert "finished " + "━" * 40 in written(console)


def test_the_time_left_is_counted_from_the_first_round_seen() -> None:
    pace = Pace()
    # 60 s went into keys and data, which tell nothing about the rounds.
    assert pace.seconds_left(JobStatus(state=JOB_STATE_STARTING, seconds=60)) is None
    assert pace.seconds_left(training(1, 1, 62)) is None
    assert pace.seconds_left(training(1, 3, 66)) == pytest.approx(2 * 37)
    assert pace.seconds_left(training(10, 4, 140)) == 0


def test_there_is_no_guess_before_the_first_round() -> None:
    assert Pace().seconds_left(JobStatus(state=JOB_STATE_TRAINING, seconds=5)) is None


def test_a_line_leaves_out_what_is_not_known() -> None:
    assert describe(JobStatus(state=JOB_STATE_STARTING, seconds=0.2)) == "0 s"
    status = training(2, 3, 10)
    status.attempt = 2
    status.ClearField("loss")
    assert describe(status) == "epoch 2/10  round 7  attempt 2  10 s"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (125, "2 min 05 s"), (7322, "2 h 02 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
