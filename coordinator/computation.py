"""What differs between the protocols at the coordinator: the offer, a round's question and its answers, and the end.

`Rounds` and `CoordinatorMachine` lead a job in the same way under both protocols. Under `paillier`, a round's question
is a step, and its answers are ciphertexts. Under `shares`, the question is a party's shares of a point, its answers
are masked sums, and the coordinator deals correlated randomness meanwhile.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.roles import Role
from trilateral.common.protocol.messages import (
    BeginRound,
    Envelope,
    Evaluation,
    FinishJob,
    OpenJob,
    Piece,
    Ready,
    RoundKey,
    RowsDone,
)
from trilateral.coordinator.plan import Conclusion, Observation, RoundPlan

NO_STEP: FloatVector = np.zeros(0)
"""The step of a message under a protocol that shows no party a step."""


class Opening(Protocol):
    """The answers to one attempt at a round, as they arrive."""

    @property
    def n_rows(self) -> int:
        """How many rows the parties work through for the attempt; see `RoundProgress`."""
        ...

    @property
    def evaluation(self) -> Evaluation | None:
        """The evaluation on the hold-out rows; None if the round has none, or it has not arrived."""
        ...

    @property
    def complete(self) -> bool:
        """Whether everything that was asked for has arrived."""
        ...

    def add_evaluation(self, evaluation: Evaluation) -> None:
        """Add the guest's evaluation on the hold-out rows. Ignore it if it has arrived before.

        Raises:
            ProtocolError: the protocol or this round does not expect it.
        """
        ...

    def observation(self) -> Observation:
        """Return what the round shows, once it is `complete`."""
        ...


class Computation(Protocol):
    """One protocol in one job, once both parties are ready."""

    @property
    def unit(self) -> str:
        """What the values are that the parties send to the coordinator, in the plural."""
        ...

    @property
    def allowed(self) -> Mapping[Role, tuple[int, int]]:
        """For each party, the most values that it sends to the coordinator in one attempt, and once in a session."""
        ...

    @property
    def gradient_error(self) -> float:
        """Standard deviation of the rounding error of a component of a mean gradient over all training rows."""
        ...

    @property
    def penalty(self) -> FloatVector | None:
        """The diagonal of P, shape (n_columns,); None under a protocol that does not tell it."""
        ...

    @property
    def fold_sizes(self) -> Sequence[int]:
        """Rows of each fold; none without folds."""
        ...

    @property
    def start(self) -> FloatVector | None:
        """The point w at which the training starts, shape (n_columns,); None for zero."""
        ...

    @property
    def is_weighted(self) -> bool:
        """Whether samples have weights. The loss of a batch then depends on how much weight its rows have, too."""
        ...

    def is_in_range(self, point: FloatVector) -> bool:
        """Return whether the parties can compute at a point w; it depends on nothing but the job and the sizes."""
        ...

    def is_measurable(self, point: FloatVector) -> bool:
        """Return whether the parties can compute the step of inference at a point w."""
        ...

    def disclose(self, loss: float) -> float:
        """Return a loss as precisely as it may leave the coordinator's process."""
        ...

    def open(self, plan: RoundPlan, key: RoundKey) -> Opening:
        """Prepare for an attempt and its answers. Earlier attempts are over."""
        ...

    def ask(self, plan: RoundPlan, begins: Mapping[Role, BeginRound]) -> Mapping[Role, BeginRound]:
        """Complete the messages that begin an attempt.

        Args:
            plan: what the round is about.
            begins: the messages without what differs between the protocols.
        """
        ...

    def prepare(self) -> bool:
        """Do one small unit of work that needs no message; return False if there is none."""
        ...

    def deal(self) -> Iterator[Envelope]:
        """Send the parties what they need from the coordinator to compute, as far as they have room for it."""
        ...

    def take_rows_done(self, sender: Role, done: RowsDone) -> None:
        """Learn that a party has room for more.

        Raises:
            ProtocolError: the party says more than can be true.
        """
        ...

    def add(self, sender: Role, piece: Piece, opening: Opening | None) -> None:
        """Take a piece of an answer.

        Args:
            sender: the party that sent it.
            piece: what it sent.
            opening: the attempt that the piece belongs to; None if it belongs to no open attempt.

        Raises:
            ProtocolError: the piece is not expected.
        """
        ...

    def finish(self, conclusion: Conclusion, finishes: Mapping[Role, FinishJob]) -> Mapping[Role, FinishJob]:
        """Complete the messages that end the training; see `ask`."""
        ...


class Offer(Protocol):
    """One protocol in one session of a job, before the parties are ready."""

    def to(self, party: Role) -> OpenJob:
        """Return the offer of the job to a party, without the place that the job has reached."""
        ...

    def agree(self, ready: Mapping[Role, Ready]) -> Computation:
        """Begin to compute with two parties whose sizes fit together.

        Raises:
            ProtocolError: what a party has reported does not fit the protocol.
        """
        ...
