"""The history has a line for each round, in a file that gets its final name only once the job has finished."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.roles import Role
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.history import History, Stopwatch, Traffic
from trilateral.common.observe.events import Event, RoundOver
from trilateral.common.protocol.batches import Batch
from trilateral.common.protocol.evaluation import measure
from trilateral.common.protocol.messages import (
    BeginRound,
    Evaluation,
    EvaluationRecord,
    FinishJob,
    Kind,
    RoundKey,
    RoundReport,
)

STEP = np.zeros(2)


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    return JobFolder(tmp_path / "state", "credit")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def begin(round_number: int, attempt: int = 1, loss: float | None = None, index: int = 0) -> BeginRound:
    return BeginRound(RoundKey(round_number, attempt), STEP, Batch(1, index), gradient=True, loss=loss)


def test_a_party_learns_the_loss_of_a_round_with_the_next(folder: JobFolder) -> None:
    history = History(folder, Role.HOST)
    history.sent.count(Role.GUEST, RoundKey(1, 1), Kind.SCORES, 1040, 2)
    history.sent.count(Role.GUEST, RoundKey(1, 1), Kind.SCORES, 1040, 2)
    history.received.count(Role.GUEST, RoundKey(2, 1), Kind.RESIDUAL, 520, 1)  # early: it belongs to the next round
    with history.stopwatch.phase("encrypt"):
        pass
    history.begin_round(begin(1))
    history.begin_round(begin(1))
    history.begin_round(begin(2, loss=0.6, index=1))
    history.finish(FinishJob(3, STEP, 0.4, 1, "converged", round_loss=0.5))
    history.complete()
    first, second = lines(folder.history)
    seconds = first.pop("seconds")
    assert set(seconds) == {"all", "encrypt"}
    assert first == {
        "round": 1,
        "attempt": 1,
        "epoch": 1,
        "batch": 1,
        "loss": 0.6,
        "sent": {"scores": {"bytes": 2080, "ciphertexts": 4}},
        "received": {},
    }
    assert (second["round"], second["batch"], second["loss"]) == (2, 2, 0.5)
    assert second["received"] == {"residual": {"bytes": 520, "ciphertexts": 1}}
    assert set(second["seconds"]) == {"all"}


def test_a_round_whose_line_an_earlier_session_wrote_has_one_line(folder: JobFolder) -> None:
    """That session ended when the next round had begun, and before it was in the journal."""
    earlier = History(folder, Role.HOST)
    earlier.begin_round(begin(1))
    earlier.begin_round(begin(2, loss=0.7))
    history = History(folder, Role.HOST, resumed=True)
    history.restore(begin(1))
    history.begin_round(begin(2, loss=0.7))
    history.begin_round(begin(3, loss=0.6))
    assert [(line["round"], line["loss"]) for line in lines(folder.unfinished_history)] == [(1, 0.7), (2, 0.6)]


def test_a_round_that_an_earlier_session_left_in_an_attempt_gets_its_line(folder: JobFolder) -> None:
    earlier = History(folder, Role.HOST)
    earlier.begin_round(begin(1))
    earlier.begin_round(begin(1, attempt=2))
    history = History(folder, Role.HOST, resumed=True)
    history.restore(begin(1))
    history.begin_round(begin(2, loss=0.7))
    assert [(line["round"], line["loss"]) for line in lines(folder.unfinished_history)] == [(1, None), (1, 0.7)]


@pytest.mark.parametrize("content", ["null\n", "no JSON\n", "{}\n"])
def test_a_damaged_line_does_not_stop_a_new_session(content: str, folder: JobFolder) -> None:
    History(folder, Role.HOST)
    folder.unfinished_history.write_text(content)
    history = History(folder, Role.HOST, resumed=True)
    history.begin_round(begin(1))
    history.begin_round(begin(2, loss=0.7))
    assert len(folder.unfinished_history.read_text().splitlines()) == 2


def test_ring_elements_are_counted_in_bytes_and_those_of_the_session_for_no_round(folder: JobFolder) -> None:
    history = History(folder, Role.GUEST)
    history.received.count(Role.HOST, RoundKey(0, 0), Kind.MASKED_COLUMNS, 8000, 0)
    history.received.count(Role.HOST, RoundKey(1, 1), Kind.MASKED_SCORES, 800, 0)
    assert history.received.pop_round(RoundKey(1, 1)) == {"masked_scores": {"bytes": 800}}
    assert history.received.totals == {"host": {"masked_columns": {"bytes": 8000}, "masked_scores": {"bytes": 800}}}


def test_a_peer_that_sends_for_many_rounds_does_not_fill_the_memory(folder: JobFolder) -> None:
    history = History(folder, Role.GUEST)
    for number in range(1, 1001):
        history.received.count(Role.HOST, RoundKey(number, 1), Kind.SCORES, 520, 1)
    assert history.received.pop_round(RoundKey(1, 1)) == {}
    assert history.received.pop_round(RoundKey(1000, 1)) == {"scores": {"bytes": 520, "ciphertexts": 1}}
    assert history.received.totals == {"host": {"scores": {"bytes": 520_000, "ciphertexts": 1000}}}


def test_an_overtaken_attempt_has_a_line_without_a_loss(folder: JobFolder) -> None:
    history = History(folder, Role.HOST)
    history.begin_round(begin(1))
    history.begin_round(begin(1, attempt=2, loss=0.7))
    history.begin_round(begin(2, loss=0.6))
    losses = [(line["attempt"], line["loss"]) for line in lines(folder.unfinished_history)]
    assert losses == [(1, None), (2, 0.6)]


def test_the_coordinator_writes_what_its_reports_say(folder: JobFolder) -> None:
    history = History(folder, Role.HOST)
    history.report(RoundReport(RoundKey(3, 2), 2, 4, 5, 0.25, loss_only=False, note=None))
    history.complete()
    (line,) = lines(folder.history)
    assert [line[name] for name in ("round", "attempt", "epoch", "batch", "loss")] == [3, 2, 2, 4, 0.25]


def test_an_evaluation_is_in_the_line_of_its_round_and_attempt(folder: JobFolder) -> None:
    metrics = measure(np.array([1.0, -1.0]), np.array([1.0, -1.0]))
    history = History(folder, Role.GUEST)
    history.begin_round(begin(1))
    history.evaluate(EvaluationRecord(RoundKey(1, 1), 0, metrics))
    history.begin_round(begin(1, attempt=2))
    history.evaluate(EvaluationRecord(RoundKey(1, 2), 0, metrics))
    history.begin_round(begin(2, loss=0.6))
    history.begin_round(begin(3, loss=0.5))
    first, second, third = lines(folder.unfinished_history)
    assert first["evaluation"] == second["evaluation"] == asdict(metrics) | {"lift": [2.0, 0.0]}
    assert "evaluation" not in third


def test_a_void_round_has_no_evaluation(folder: JobFolder) -> None:
    metrics = measure(np.array([1.0, -1.0]), np.array([1.0, -1.0]))
    history = History(folder, Role.GUEST)
    for number in (1, 2):
        history.begin_round(begin(number))
        history.evaluate(EvaluationRecord(RoundKey(number, 1), 0, metrics))
    history.finish(FinishJob(3, np.zeros(1), 0.5, 1, "given up", None))
    assert ["evaluation" in line for line in lines(folder.unfinished_history)] == [False, False]


def test_the_coordinator_writes_the_two_numbers_that_it_receives(folder: JobFolder) -> None:
    history = History(folder, Role.COORDINATOR)
    evaluation = Evaluation(RoundKey(3, 1), 0.5, None)
    history.report(RoundReport(RoundKey(3, 1), 2, 4, 5, 0.25, loss_only=False, note=None, evaluation=evaluation))
    (line,) = lines(folder.unfinished_history)
    assert line["evaluation"] == {"log_loss": 0.5, "auc": None}


def test_the_file_is_for_its_owner_and_has_its_name_at_the_end(folder: JobFolder) -> None:
    History(folder, Role.HOST).begin_round(begin(1))
    history = History(folder, Role.HOST)  # a second job of the name, after the first has failed
    assert [path.name for path in folder.path.iterdir()] == ["history.jsonl.partial"]
    history.complete()
    (path,) = folder.path.iterdir()
    assert path.name == "history.jsonl"
    assert path.stat().st_mode & 0o777 == 0o600
    assert folder.path.stat().st_mode & 0o777 == 0o700


def test_an_error_about_a_full_disk_is_public_but_only_the_own_log_has_the_path(
    folder: JobFolder, caplog: pytest.LogCaptureFixture
) -> None:
    history = History(folder, Role.GUEST)
    folder.unfinished_history.unlink()
    folder.unfinished_history.symlink_to("/dev/full")
    with pytest.raises(ConfigError) as failed:
        history.report(RoundReport(RoundKey(1, 1), 1, 1, 1, 0.5, loss_only=False, note=None))
    assert str(failed.value) == "the state folder of the guest cannot be written: No space left on device"
    assert str(folder.unfinished_history) in caplog.text


def test_a_history_that_is_gone_cannot_be_completed(folder: JobFolder) -> None:
    history = History(folder, Role.HOST)
    folder.unfinished_history.unlink()
    with pytest.raises(ConfigError, match="^the state folder of the host cannot be written: No such file"):
        history.complete()


def test_old_rounds_are_forgotten_and_later_ones_kept() -> None:
    traffic = Traffic("sent")
    for number in (1, 2, 3):
        traffic.count(Role.GUEST, RoundKey(number, 1), Kind.LOSS, 100, 1)
    assert traffic.pop_round(RoundKey(2, 1)) == {"loss": {"bytes": 100, "ciphertexts": 1}}
    assert traffic.pop_round(RoundKey(1, 1)) == {}
    assert traffic.pop_round(RoundKey(3, 1)) != {}


def test_a_stopwatch_adds_up_by_name_and_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 1.0, 3.0, 3.0, 8.0, 10.0, 11.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    stopwatch = Stopwatch()
    with stopwatch.phase("encrypt"):
        pass
    with pytest.raises(ZeroDivisionError), stopwatch.phase("encrypt"):
        raise ZeroDivisionError
    assert stopwatch.lap() == {"all": 10.0, "encrypt": 7.0}
    assert stopwatch.lap() == {"all": 1.0}


def test_the_time_before_the_first_round_is_set_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 4.0, 6.0, 9.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    stopwatch = Stopwatch()
    stopwatch.end_setup()
    assert stopwatch.lap() == {"all": 6.0, "setup": 4.0}
    stopwatch.end_setup()
    assert stopwatch.lap() == {"all": 3.0}


def test_a_whole_job_is_counted_by_peer_and_kind() -> None:
    traffic = Traffic("sent")
    for number in (1, 2):
        traffic.count(Role.GUEST, RoundKey(number, 1), Kind.GRADIENT, 100, 2)
        traffic.count(Role.HOST, RoundKey(number, 1), Kind.GRADIENT, 50, 1)
        traffic.pop_round(RoundKey(number, 1))
    traffic.count_scores(Role.GUEST, 7)
    assert traffic.totals == {
        "guest": {"gradient": {"bytes": 200, "ciphertexts": 4}, "holdout_scores": {"values": 7}},
        "host": {"gradient": {"bytes": 100, "ciphertexts": 2}},
    }


@pytest.mark.parametrize("written", [1, 2])
@pytest.mark.parametrize("loss", [0.7, None], ids=["told", "hidden"])
def test_a_resumed_history_has_each_round_once(folder: JobFolder, written: int, loss: float | None) -> None:
    before = History(folder, Role.HOST, hides_loss=loss is None)
    for number in range(1, written + 2):
        before.begin_round(begin(number, loss=loss))  # writes the line of the round before

    # The journal has the second round as the last one begun, whether or not that round's line was written.
    resumed = History(folder, Role.HOST, resumed=True, hides_loss=loss is None)
    resumed.restore(begin(2, loss=loss))
    resumed.begin_round(begin(2, loss=loss))
    resumed.begin_round(begin(3, loss=loss))
    resumed.finish(FinishJob(4, STEP, 0.4, 1, "converged", round_loss=loss))
    resumed.complete()

    assert [line["round"] for line in lines(folder.history)] == [1, 2, 3]


def test_a_round_whose_loss_is_hidden_is_complete_and_keeps_its_evaluation(folder: JobFolder) -> None:
    """With shares, no party learns the loss of a round."""
    events: list[Event] = []
    history = History(folder, Role.GUEST, hides_loss=True, on_event=events.append)
    history.begin_round(begin(1))
    history.begin_round(begin(1, attempt=2))
    metrics = measure(np.array([-1.0, 0.5, 2.0]), np.array([-1, 1, 1]))
    history.evaluate(EvaluationRecord(RoundKey(1, 2), 1, metrics))
    history.begin_round(begin(2))
    first, second = lines(folder.unfinished_history)
    assert (first["attempt"], first["loss"], "complete" in first) == (1, None, False)
    assert (second["attempt"], second["loss"], second["complete"]) == (2, None, True)
    assert second["evaluation"]["log_loss"] == metrics.log_loss
    assert [(event.key, event.is_void) for event in events if isinstance(event, RoundOver)] == [(RoundKey(1, 2), False)]


def test_a_resumed_history_has_the_attempt_that_was_in_progress(folder: JobFolder) -> None:
    before = History(folder, Role.HOST)
    before.begin_round(begin(1))
    before.begin_round(begin(1, attempt=2))

    resumed = History(folder, Role.HOST, resumed=True)
    resumed.restore(begin(1, attempt=2))
    resumed.begin_round(begin(1, attempt=1))
    resumed.begin_round(begin(2, loss=0.6))

    assert [(line["attempt"], line["loss"]) for line in lines(folder.unfinished_history)] == [(1, None), (2, 0.6)]
