"""A party's place in a job: rounds, attempts and steps, and what the coordinator may ask for at each.

Every round shows the coordinator one more sum over this party's rows. So the place lets the coordinator ask for no more
rounds, attempts and evaluations than the job has, and only for the same sums at each attempt.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import Protocol

import numpy as np

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.batches import WHOLE_SET
from trilateral.common.protocol.bounds import (
    MAX_ATTEMPTS,
    MAX_INFERENCE_STEPS,
    is_beyond,
    max_curvature_draws,
    max_evaluations,
    max_rounds,
)
from trilateral.common.protocol.messages import BeginRound, FinishJob, RoundKey


class State(Enum):
    """The state of a party between two messages of the coordinator."""

    RESTORED = auto()
    """After earlier sessions of the job, and before this session's first round, which may be a round of the past."""
    WAITING = auto()
    """No round is open."""
    IN_ROUND = auto()
    """The newest attempt is open."""
    VOID = auto()
    """This party has declared the newest attempt void: a value did not fit its range."""
    FINISHED = auto()
    """The last step is taken."""


class Weights(Protocol):
    """The weights that the steps move: a party's part of w."""

    def apply(self, step: FloatVector) -> None:
        """Take the step of the next round."""
        ...

    def reset(self) -> None:
        """Return to the start, as before any step."""
        ...


class Place:
    """One party's place in one job.

    Args:
        role: the party.
        job: the job's settings.
        n_batches: batches in an epoch.
        n_columns: length of this party's steps; 0 under the protocol on shares, whose parties take no steps.
        weights: each round's step moves these once, whatever the number of attempts at the round.
    """

    def __init__(self, role: Role, job: JobConfig, n_batches: int, n_columns: int, weights: Weights) -> None:
        self._role = role
        self._job = job
        self._n_batches = n_batches * job.n_models
        self._max_rounds = max_rounds(job, n_batches)
        self._max_draws = max_curvature_draws(job, n_batches)
        self._n_columns = n_columns
        self._weights = weights
        self.state = State.WAITING
        self._newest: BeginRound | None = None
        self._known: dict[int, BeginRound] = {}
        """The rounds of earlier sessions."""
        self._known_finish: FinishJob | None = None
        self._evaluated: set[int] = set()
        self._alone: dict[int, set[int]] = {}
        """The rounds on each fold alone."""
        self._inferred: set[int] = set()
        """The steps of inference of this session, by round."""
        self._on_shares = job.protocol == "shares"

    @property
    def key(self) -> RoundKey:
        """The newest attempt that was begun; round 0, attempt 0 before the first."""
        return RoundKey(0, 0) if self._newest is None else self._newest.key

    @property
    def open_round(self) -> BeginRound | None:
        """What the coordinator asks for in the round that is open; None between rounds."""
        return self._newest if self.state is State.IN_ROUND else None

    def restore(self, steps: Sequence[BeginRound | FinishJob]) -> None:
        """Return to the place that this party had at the end of its earlier sessions.

        Args:
            steps: what the coordinator asked in those sessions, each round once, in order.

        Raises:
            ProtocolError: these are not the steps of this job on this data.
        """
        for asked in steps:
            if isinstance(asked, FinishJob):
                self._known_finish = asked  # The coordinator sends it again. Its step is taken then.
                continue
            begin = replace(asked, key=RoundKey(asked.key.round, 0))  # Attempts count within a session.
            self._check(begin)
            self._step(begin.key.round, begin.step)
            self._newest = self._known[begin.key.round] = begin
        if self._known:
            self.state = State.RESTORED

    def begin(self, begin: BeginRound) -> bool:
        """Enter an attempt at a round, and take the step that leads to it.

        Returns:
            False if the message is old. It then changes nothing.

        Raises:
            ProtocolError: the job has no such round, or another attempt asked for something different.
        """
        if self.state is State.FINISHED:
            return False
        if self.state is State.RESTORED:
            self._go_back(begin.key.round)
            self.state = State.WAITING
        if begin.key <= self.key:
            return False
        self._check(begin)
        self._check_shares(begin)
        self._step(begin.key.round, begin.step)
        self._newest = begin
        self.state = State.WAITING if begin.over else State.IN_ROUND
        return True

    def declare_void(self) -> None:
        """Close the open attempt without a result."""
        if self.state is State.IN_ROUND:
            self.state = State.VOID

    def finish(self, finish: FinishJob) -> bool:
        """Take the last step.

        Returns:
            False if it was taken before.

        Raises:
            ProtocolError: the step does not follow the newest round, or differs from the one of an earlier session.
        """
        if self.state is State.FINISHED:
            return False
        self._check_finish(finish)
        self._step(finish.round, finish.step)
        self.state = State.FINISHED
        return True

    def _go_back(self, round_number: int) -> None:
        """Go back to a round of an earlier session, because the coordinator has lost its place.

        From there on, each round either shows the same sums at the same point again, or is refused.
        """
        if not 1 <= round_number < self.key.round:
            return
        self._weights.reset()
        self._newest = None
        for number in sorted(number for number in self._known if number < round_number):
            known = self._known[number]
            self._step(number, known.step)
            self._newest = replace(known, key=RoundKey(number, MAX_ATTEMPTS))

    def _step(self, round_number: int, step: FloatVector) -> None:
        """Move to w_k = w_{k-1} - g~_{k-1}, once per round, whatever the number of attempts."""
        begun = self.key.round
        if round_number == begun:
            return
        if round_number != begun + 1 or step.shape != (self._n_columns,):
            raise ProtocolError(
                f"the {self._role} is at round {begun} with {self._n_columns} columns,"
                f" but was sent a step of {step.size} numbers for round {round_number}"
            )
        self._weights.apply(step)

    # --- the bounds on the coordinator

    def _check(self, begin: BeginRound) -> None:
        asked = f"the coordinator began round {begin.key.round}, attempt {begin.key.attempt}"
        before = self._known.get(begin.key.round)
        if self._newest is not None and self._newest.key.round == begin.key.round:
            before = self._newest
        # The sums of shares differ in their last bits from session to session, so a coordinator that has lost its place
        # may come to other requests. No party knows the points, so it could not hold the coordinator to them anyway.
        is_of_earlier_session = before is not None and before.shares is None
        may_differ = self._on_shares and is_of_earlier_session
        if before is not None and not may_differ and not _ask_alike(before, begin):
            raise ProtocolError(f"{asked}, but its request differs from that of an earlier attempt")
        if before is None and self._known_finish is not None:
            raise ProtocolError(f"{asked}, but it sent the last step in an earlier session")
        if is_beyond(begin.key, self._max_rounds):
            raise ProtocolError(
                f"{asked}: this job has at most {self._max_rounds} rounds, and at most {MAX_ATTEMPTS} attempts at each"
            )
        batch, epochs, n_folds = begin.batch, self._job.epochs, self._job.folds or 0
        if not 0 <= batch.fold <= n_folds or batch.held_out != (batch.fold > 0 and not begin.gradient):
            alone = " alone" if batch.held_out else " left out"
            raise ProtocolError(
                f"{asked}, with fold {batch.fold}{alone}: this job has {n_folds} folds, gradients of the rows outside"
                " of a fold, and losses of a fold alone"
            )
        if batch != WHOLE_SET and not (1 <= batch.epoch <= epochs and 0 <= batch.index < self._n_batches):
            raise ProtocolError(
                f"{asked}, with batch {batch.index + 1} of epoch {batch.epoch}:"
                f" this job has {epochs} epochs of {self._n_batches} batches"
            )
        self._check_alone(begin, asked)
        self._check_evaluation(begin, asked)
        self._check_direction(begin, asked)
        self._check_information(begin, asked)

    def _check_information(self, begin: BeginRound, asked: str) -> None:
        """Check a step of inference. No other round follows one, and each shows the information at one more point."""
        newest = self._newest
        if not begin.information:
            if newest is not None and newest.information and newest.key.round < begin.key.round:
                raise ProtocolError(f"{asked}, but no other round follows a step of inference")
            return
        if not self._job.inference:
            raise ProtocolError(f"{asked}, as a step of inference: set `inference: true` in the job")
        shares = begin.shares
        asks_for_more = shares is not None and (shares.weights is None or shares.holdout is not None)
        if begin.gradient or begin.batch != WHOLE_SET or asks_for_more:
            raise ProtocolError(f"{asked}, as a step of inference that asks for something else as well")
        if begin.shares is not None:
            self._inferred.add(begin.key.round)
        if len(self._inferred) > MAX_INFERENCE_STEPS:
            raise ProtocolError(f"{asked}, as one more step of inference: a session has at most {MAX_INFERENCE_STEPS}")

    def _check_alone(self, begin: BeginRound, asked: str) -> None:
        """Check a round that opens the scores of a fold to the guest and its AUC to the coordinator."""
        if self._job.choose != "auc" or not begin.batch.held_out:
            return
        rounds = self._alone.setdefault(begin.batch.fold, set())
        rounds.add(begin.key.round)
        if len(rounds) > len(self._job.penalties):
            raise ProtocolError(
                f"{asked}, with fold {begin.batch.fold} alone once more: this job compares {len(self._job.penalties)}"
                " penalties on a fold"
            )

    def _check_evaluation(self, begin: BeginRound, asked: str) -> None:
        """Check an evaluation, because each one gives the guest one more linear function of every hold-out row."""
        if not begin.evaluates:
            return
        most = max_evaluations(self._job)
        self._evaluated.add(begin.key.round)
        if len(self._evaluated) > most:
            raise ProtocolError(f"{asked}, with an evaluation: this job has at most {most} of them")
        if begin.evaluate_at is not None:
            self._check_length(begin.evaluate_at, f"{asked}, with an evaluation at {begin.evaluate_at.size} numbers")

    def _check_shares(self, begin: BeginRound) -> None:
        """Check that the request is one of the job's protocol."""
        if begin.over:
            return
        if (begin.shares is not None) != self._on_shares or (self._on_shares and begin.evaluate_at is not None):
            raise ProtocolError(
                f"the coordinator began round {begin.key.round} as a round of another protocol: this job uses"
                f" {self._job.protocol}"
            )

    def _check_direction(self, begin: BeginRound, asked: str) -> None:
        if begin.direction is None:
            return
        algorithm = self._job.algorithm.name
        if algorithm != "sqn":
            raise ProtocolError(f"{asked}, with curvature, which {algorithm} does not use")
        self._check_length(begin.direction, f"{asked}, with a direction of {begin.direction.size} numbers")
        is_drawn = begin.curvature_draw > 0
        if is_drawn != (self._job.curvature_batch is not None) or begin.curvature_draw > self._max_draws:
            raise ProtocolError(
                f"{asked}, with draw {begin.curvature_draw} of a curvature batch: this job has no such draw"
            )

    def _check_length(self, vector: FloatVector, sent: str) -> None:
        if vector.shape != (self._n_columns,):
            raise ProtocolError(f"{sent}: the {self._role} has {self._n_columns} columns")

    def _check_finish(self, finish: FinishJob) -> None:
        """Check that the host gives its scores at one point only: the point after its newest round."""
        begun = self.key.round
        if finish.round != begun + 1 or finish.round in self._known:
            newest = max([begun, *self._known])
            raise ProtocolError(
                f"the coordinator sent the last step for round {finish.round}, but round {newest + 1} is due"
            )
        known = self._known_finish
        if known is not None and not (finish.round == known.round and np.array_equal(finish.step, known.step)):
            raise ProtocolError("the coordinator sent a last step that differs from that of an earlier session")


def _ask_alike(one: BeginRound, other: BeginRound) -> bool:
    """Return whether two attempts at a round ask for the same sums. If not, each attempt would show one more sum.

    With shares, a party does not know the points, and a journal does not have the shares.
    """
    asked = [(begin.batch, begin.gradient, begin.curvature_draw, begin.information) for begin in (one, other)]
    parts = [
        (begin.shares.weights is None, begin.shares.holdout is None)
        for begin in (one, other)
        if begin.shares is not None
    ]
    return (
        asked[0] == asked[1]
        and parts[:1] == parts[-1:]
        and _are_same(one.step, other.step)
        and _are_same(one.direction, other.direction)
        and _are_same(one.evaluate_at, other.evaluate_at)
    )


def _are_same(one: FloatVector | None, other: FloatVector | None) -> bool:
    return np.array_equal([] if one is None else one, [] if other is None else other)
