"""A party's place, without a network, a cipher or data. tests/protocol has whole trainings."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, Sgd
from trilateral.common.protocol.batches import Batch
from trilateral.common.protocol.messages import BeginRound, FinishJob, RoundKey
from trilateral.common.protocol.place import Place, State

JOB = JobConfig(name="place", dataset="made", algorithm=Sgd(), batch=10, epochs=3)
N_COLUMNS = 2


@dataclass
class Steps:
    """Weights that only remember how they were moved."""

    taken: list[FloatVector] = field(default_factory=list)

    def apply(self, step: FloatVector) -> None:
        self.taken.append(step)

    def reset(self) -> None:
        self.taken.clear()


def make_place() -> tuple[Place, Steps]:
    steps = Steps()
    return Place(Role.HOST, JOB, n_batches=2, n_columns=N_COLUMNS, weights=steps), steps


def begin(number: int, attempt: int = 1, **changes: Any) -> BeginRound:
    batch = Batch((number - 1) // 2 + 1, (number - 1) % 2)
    return replace(BeginRound(RoundKey(number, attempt), np.full(2, float(number)), batch, gradient=True), **changes)


def finish(number: int, step: float = 9.0) -> FinishJob:
    return FinishJob(number, np.full(2, step), 0.5, 1, "converged", 0.6)


def taken(steps: Steps) -> list[float]:
    return [float(step[0]) for step in steps.taken]


def test_a_job_goes_from_waiting_through_rounds_to_its_end() -> None:
    place, steps = make_place()
    assert (place.state, place.key, place.open_round) == (State.WAITING, RoundKey(0, 0), None)
    assert place.begin(begin(1))
    assert (place.state, place.key) == (State.IN_ROUND, RoundKey(1, 1))
    place.declare_void()
    assert place.state is State.VOID
    assert place.open_round is None
    assert place.begin(begin(2))
    assert place.open_round is not None
    assert place.finish(finish(3))
    assert place.state is State.FINISHED
    assert place.open_round is None
    assert taken(steps) == [1, 2, 9]


def test_a_round_moves_the_weights_once_whatever_the_number_of_attempts() -> None:
    place, steps = make_place()
    for attempt in range(1, 6):
        assert place.begin(begin(1, attempt))
    assert taken(steps) == [1]


def test_a_repeated_message_changes_nothing() -> None:
    place, steps = make_place()
    place.begin(begin(1, 2))
    for old in (begin(1, 1), begin(1, 2)):
        assert not place.begin(old)
    place.finish(finish(2))
    assert not place.finish(finish(2))
    assert not place.begin(begin(2))
    assert taken(steps) == [1, 9]


def test_a_round_that_is_over_moves_the_weights_and_is_not_open() -> None:
    place, steps = make_place()
    assert place.begin(begin(1, over=True))
    assert (place.state, place.open_round, taken(steps)) == (State.WAITING, None, [1])
    place.declare_void()
    assert place.state is State.WAITING


def test_a_restored_place_goes_on_where_it_was() -> None:
    place, steps = make_place()
    place.restore([begin(1), begin(2)])
    assert (place.state, place.key, taken(steps)) == (State.RESTORED, RoundKey(2, 0), [1, 2])
    assert place.begin(begin(2))
    assert place.begin(begin(3))
    assert taken(steps) == [1, 2, 3]


def test_a_restored_place_goes_back_once_to_where_the_coordinator_begins() -> None:
    place, steps = make_place()
    place.restore([begin(1), begin(2), begin(3)])
    assert place.begin(begin(2))
    assert (place.key, taken(steps)) == (RoundKey(2, 1), [1, 2])
    assert not place.begin(begin(1))
    assert taken(steps) == [1, 2]


def test_a_place_that_went_back_refuses_a_different_question() -> None:
    place, _ = make_place()
    place.restore([begin(1), begin(2), begin(3)])
    place.begin(begin(2))
    with pytest.raises(ProtocolError, match="round 3, attempt 1, but its request differs"):
        place.begin(begin(3, gradient=False))
    with pytest.raises(ProtocolError, match="round 4 is due"):
        place.finish(finish(3))


def test_a_restored_last_step_is_accepted_again_and_no_other() -> None:
    place, steps = make_place()
    place.restore([begin(1), finish(2)])
    with pytest.raises(ProtocolError, match="sent the last step in an earlier session"):
        place.begin(begin(2))
    with pytest.raises(ProtocolError, match="a last step that differs"):
        place.finish(finish(2, step=8.0))
    assert place.finish(finish(2))
    assert taken(steps) == [1, 9]


@pytest.mark.parametrize("wrong", [begin(3), begin(2, step=np.zeros(3))])
def test_a_step_must_be_that_of_the_next_round(wrong: BeginRound) -> None:
    place, steps = make_place()
    place.begin(begin(1))
    with pytest.raises(ProtocolError, match="the host is at round 1 with 2 columns, but was sent a step of"):
        place.begin(wrong)
    assert taken(steps) == [1]
