"""What an operator sees of a job under way."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from trilateral.cli.progress import BarView, LinesView, facts, progress_view
from trilateral.cli.wording import decimal
from trilateral.common.base.progress import duration
from trilateral.common.process.job_progress import JobState, Pace, Progress


def training(epoch: int, batch: int, seconds: float, *notes: str) -> Progress:
    return Progress(
        job="first",
        state=JobState.TRAINING,
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
        view.show(Progress(job="first", state=JobState.STARTING, detail="making the key"))
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


@pytest.mark.parametrize("state", [JobState.STARTING, JobState.TRAINING])
def test_a_wait_takes_one_line_however_long_it_lasts(state: JobState) -> None:
    console, clock = text_console(), Clock()
    waiting = replace(training(1, 1, 3), state=state, detail="waiting for the host until 10:32")
    with LinesView(console, clock) as view:
        for second in range(60):
            view.show(replace(waiting, seconds=3.0 + second, notes=("a note",) if second == 30 else ()))
            clock.now += 1
        view.show(replace(waiting, detail="waiting for the host until 10:33"))
    wait, note, longer = written(console).splitlines()
    assert wait.endswith("waiting for the host until 10:32")
    assert note == "note: a note"
    assert longer.endswith("until 10:33")


def test_the_bar_shows_the_numbers_and_keeps_notes_above_it() -> None:
    console = terminal_console()
    view = BarView(console)
    with view:
        view.show(Progress(job="first", state=JobState.STARTING, detail="making the key"))
        view.show(training(1, 1, 3, "a note [1]"))
        view.show(training(5, 4, 22))
    text = written(console)
    assert "note: a note [1]\n" in text
    assert "epoch 5/10  round 20  loss 0.50000  22 s  at most 20 s left" in text


def terminal_lines(width: int, *statuses: Progress, seconds_later: float = 0) -> list[str]:
    """What stands on a terminal in the end."""
    console, clock = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None), Clock()
    view = BarView(console, clock)
    with view:
        for status in statuses:
            view.show(status)
        clock.now += seconds_later
    *_, last = re.split(r"\x1b\[2K", written(console))
    return [line.rstrip() for line in last.replace("\x1b[?25h", "").splitlines() if line.strip()]


@pytest.mark.parametrize("width", [20, 30, 45, 60, 79, 80, 119])
def test_a_bar_keeps_its_size_and_loses_whole_facts_on_a_narrow_terminal(width: int) -> None:
    for n_seconds in (3.0, 4000.0):
        first, last = training(9, 1, 1), training(10, 2, n_seconds)

        lines = terminal_lines(width, first, last)

        assert len(lines) == 1
        assert len(lines[0]) <= width
        name, bar, text = f"{lines[0]} ".split(" ", 2)
        assert (name, len(bar)) == ("training", 10)
        shown = text.rstrip().split("  ") if text else []
        assert shown == facts(last, 2 / 5 * (n_seconds - 1))[: len(shown)]


def test_the_bars_line_at_eighty_columns() -> None:
    assert terminal_lines(80, training(9, 1, 3), training(10, 4, 22.0)) == [
        "training " + "━" * 10 + " epoch 10/10  round 40  loss 0.50000  22 s  at most 0 s left"
    ]


def waiting(seconds: float = 12.0) -> Progress:
    detail = "waiting until 14:04:20 UTC for the host at 127.0.0.1:50051, silent since 14:03:20"
    return replace(training(3, 2, seconds), detail=detail)


def test_a_peer_that_is_waited_for_is_named_in_the_place_of_the_time_left() -> None:
    lines = terminal_lines(80, training(1, 1, 2), training(3, 2, 12), waiting())

    assert lines[0].endswith("epoch 3/10  round 10  loss 0.50000  12 s")
    assert " ".join(lines[1:]) == "waiting until 14:04:20 UTC for the host at 127.0.0.1:50051, silent since 14:03:20"


def test_the_bar_says_what_is_done_before_training() -> None:
    status = Progress(job="first", state=JobState.STARTING, detail="making the job's key", seconds=2)
    assert terminal_lines(80, status)[-1] == "making the job's key"


def test_what_a_job_says_at_its_end_is_left_to_the_command() -> None:
    status = replace(training(3, 2, 12), state=JobState.FINISHED, detail="converged")
    assert len(terminal_lines(80, training(1, 1, 2), status)) == 1


def test_the_seconds_go_on_between_two_statuses_until_the_job_has_ended() -> None:
    assert terminal_lines(80, waiting(), seconds_later=63)[0].endswith("  1 min 15 s")
    ended = replace(training(3, 2, 12), state=JobState.FINISHED)
    assert terminal_lines(80, ended, seconds_later=63)[0].endswith("  12 s")


def test_lines_name_a_peer_that_is_waited_for_at_once_and_guess_no_time_then() -> None:
    console, clock = text_console(), Clock()
    view = LinesView(console, clock)
    with view:
        view.show(training(1, 1, 3))
        clock.now += 2
        view.show(training(3, 2, 12))
        view.show(waiting(75))
        clock.now += 0.5
        view.show(waiting(75.5))
    *_, before, last, _ = written(console).split("\n")
    assert before == "training  epoch 3/10  round 10  loss 0.50000  12 s  at most 30 s left"
    assert last.startswith(
        "training  epoch 3/10  round 10  loss 0.50000  1 min 15 s  waiting until 14:04:20 UTC for the"
    )


def test_the_bar_is_full_when_training_ends_before_its_last_epoch() -> None:
    console = terminal_console()
    view = BarView(console)
    with view:
        view.show(training(2, 1, 3))
        view.show(replace(training(2, 4, 4), state=JobState.FINISHED))
    assert "finished " + "━" * 40 in written(console)


def test_the_time_left_is_counted_from_the_first_round_seen() -> None:
    pace = Pace()
    # 60 s went into keys and data, which tell nothing about the rounds.
    assert pace.seconds_left(Progress(job="first", state=JobState.STARTING, seconds=60)) is None
    assert pace.seconds_left(training(1, 1, 62)) is None
    assert pace.seconds_left(training(1, 3, 66)) == pytest.approx(2 * 37)
    assert pace.seconds_left(training(10, 4, 140)) == 0


def test_a_round_in_which_a_party_was_away_tells_nothing_of_the_others() -> None:
    pace = Pace()
    pace.seconds_left(training(1, 1, 10))
    pace.seconds_left(training(3, 2, 19))  # 9 rounds of 1 s
    assert pace.seconds_left(waiting(1000)) is None
    back = training(3, 2, 1001)
    assert pace.seconds_left(back) == pytest.approx(30)
    assert pace.seconds_left(training(3, 3, 1002)) == pytest.approx(29)
    pace.seconds_left(replace(training(3, 3, 1700), attempt=2))
    assert pace.seconds_left(training(3, 4, 1701)) == pytest.approx(28)
    assert pace.seconds_left(training(4, 1, 1702)) == pytest.approx(27)


def test_there_is_no_guess_before_the_first_round() -> None:
    assert Pace().seconds_left(Progress(job="first", state=JobState.TRAINING, seconds=5)) is None


def test_a_line_leaves_out_what_is_not_known() -> None:
    assert facts(Progress(job="first", state=JobState.STARTING, seconds=0.2)) == ["0 s"]
    assert facts(replace(training(2, 3, 10), attempt=2, loss=None)) == ["epoch 2/10", "round 7", "attempt 2", "10 s"]


def test_a_long_round_says_how_far_it_has_come_and_how_long_it_takes() -> None:
    within = replace(training(2, 3, 10), rows_done=430, n_rows=1000)
    assert facts(within)[1] == "round 7 (43%)"
    assert facts(replace(within, seconds_left=75))[1] == "round 7 (43%, 1 min 15 s left)"
    assert facts(replace(within, seconds_left=75, state=JobState.FAILED))[1] == "round 7"
    assert facts(replace(within, step="standard errors"))[1] == "round 7, standard errors (43%)"


def test_the_progress_of_a_long_round_takes_a_line_every_ten_seconds() -> None:
    console, clock = text_console(), Clock()
    with LinesView(console, clock) as view:
        for second in range(31):
            view.show(replace(training(1, 1, 3.0 + second), rows_done=second, n_rows=100))
            clock.now += 1
        view.show(training(1, 2, 34))
    assert [line.split("  ")[2] for line in written(console).splitlines()] == [
        "round 1 (0%)",
        "round 1 (10%)",
        "round 1 (20%)",
        "round 1 (30%)",
        "round 2",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (125, "2 min 05 s"), (7322, "2 h 02 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.69315, "0.6932"),
        (1.0, "1.0000"),
        (-12345.678, "-12345.6780"),
        (1.234e200, "1.234e+200"),
        (-0.00004, "0.0000"),
    ],
)
def test_huge_numbers_do_not_fill_the_line_and_zero_has_no_sign(value: float, text: str) -> None:
    assert decimal(value, 4) == text
