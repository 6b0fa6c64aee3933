"""The rounds of a job once both parties are ready: turns plans into messages, and observations into reports."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.batches import Batches
from trilateral.common.protocol.bounds import Allowance, max_rounds
from trilateral.common.protocol.messages import (
    BeginRound,
    ComparedPenalty,
    Envelope,
    FinishJob,
    RoundKey,
    RoundProgress,
    RoundReport,
)
from trilateral.common.protocol.shares.bounds import MAX_RESULT
from trilateral.coordinator.computation import NO_STEP, Computation, Opening
from trilateral.coordinator.plan import Conclusion, GivenUp, Observation, RoundPlan
from trilateral.coordinator.training import Training

MAX_NUMBERS = 2**27
"""Numbers of 8 bytes that the coordinator keeps for one job because of the sizes that the parties report: 1 GiB."""
_VECTORS = 16
"""Vectors of all columns that every algorithm keeps: points, steps, gradients and the parts of a message."""
_HESSIANS = 4
"""Matrices of all columns in a search with folds or an L1 penalty: the Hessian, its update, and the system to solve."""
_ORDERS = 3
"""Numbers for each batch, to draw the order of the batches of an epoch."""


_NOWHERE: Mapping[Role, int] = MappingProxyType(dict.fromkeys(PARTIES, 0))


def check_memory(job: JobConfig, n_train: int, n_columns: int) -> None:
    """Check the sizes that the parties report, before anything of such a size is made.

    Args:
        job: the job's settings.
        n_train: training rows.
        n_columns: columns of both parties together.

    Raises:
        ProtocolError: the training would need more than `MAX_NUMBERS`, or its models have more than `MAX_RESULT`
            weights.
    """
    if job.n_models * n_columns > MAX_RESULT:
        raise ProtocolError(
            f"the parties have {n_columns} columns, and the job has {job.n_models} models: {MAX_RESULT} weights are the"
            " most for all models together: leave out columns or merge classes"
        )
    algorithm, n_batches = job.algorithm, Batches.of(job, n_train).count
    n_vectors = _VECTORS
    if algorithm.name != "sgd":
        n_vectors += 2 * algorithm.memory
    if algorithm.name == "sqn":
        n_vectors += algorithm.interval
    if job.protocol == "shares":
        # The products with the labels of each class, or of each batch and of the hold-out rows, in three shares.
        n_vectors += 3 * max(Batches.of(job, n_train).n_parts + 1, job.n_models)
    if job.has_l1 or job.folds is not None:
        n_vectors += _HESSIANS * n_columns + len(job.penalties)
    if job.inference:
        # The information in four shares, and the matrices of its inverse.
        n_vectors += 8 * n_columns
    needed = n_vectors * n_columns + _ORDERS * n_batches
    if needed > MAX_NUMBERS:
        raise ProtocolError(
            f"the parties have {n_columns} columns and {n_batches} batches: the coordinator would need"
            f" {8 * needed // 2**20} MiB for the training, and takes at most {8 * MAX_NUMBERS // 2**20}: raise `batch`,"
            " lower `memory` or `interval`, or leave out columns"
        )


@dataclass
class Attempt:
    """One attempt at a round."""

    plan: RoundPlan
    key: RoundKey
    epoch: int
    opening: Opening
    """The answers so far."""
    rows_done: dict[Role, int] = field(default_factory=dict)
    """The rows that each party is done with, if it has reported any."""

    def advance(self, sender: Role, n_rows: int) -> RoundProgress | None:
        """Learn how many rows a party is done with.

        Returns:
            How far the attempt has come; None if the party has reported as much before.

        Raises:
            ProtocolError: the attempt does not have so many rows.
        """
        if n_rows > self.opening.n_rows:
            raise ProtocolError(
                f"the {sender} is done with {n_rows} rows of round {self.key.round}, which has {self.opening.n_rows}"
            )
        if n_rows <= self.rows_done.get(sender, 0):
            return None
        self.rows_done[sender] = n_rows
        return RoundProgress(self.key, min(self.rows_done.values()), self.opening.n_rows)


class Rounds:
    """One job's training, and the messages that each round consists of.

    Args:
        job: the job's settings.
        n_train: training rows.
        n_columns: columns of each party.
        computation: what differs between the protocols.
    """

    def __init__(self, job: JobConfig, n_train: int, n_columns: Mapping[Role, int], computation: Computation) -> None:
        self._n_columns = n_columns
        self._n_batches = Batches.of(job, n_train).count
        self._n_models = job.n_models
        self._last_loss: float | None = None
        self._plan: RoundPlan | None = None
        """The newest round, of an earlier session or of this one."""
        self._max_rounds = rounds = max_rounds(job, self._n_batches)
        self.allowances = {
            party: Allowance(party, rounds, in_a_round, computation.unit, in_a_session=in_a_session)
            for party, (in_a_round, in_a_session) in computation.allowed.items()
        }
        """What each party may still send."""
        self.training = Training(
            job,
            sum(n_columns.values()),
            self._n_batches,
            computation.is_in_range,
            computation.gradient_error,
            is_measurable=computation.is_measurable,
            is_weighted=computation.is_weighted,
            penalty=computation.penalty,
            fold_sizes=computation.fold_sizes,
            start=computation.start,
        )
        self.computation = computation

    def replay(
        self, observations: Sequence[Observation | None], places: Mapping[Role, int]
    ) -> Generator[Envelope, None, RoundPlan | Conclusion | GivenUp]:
        """Begin the training, and replay the observations of earlier sessions.

        A party that has missed one of these rounds receives its step, but does no work for it.

        Args:
            observations: the observations of the rounds of earlier sessions, in order; None for a void round.
            places: the newest round that each party has reached.

        Yields:
            The messages that bring a party up to date.

        Returns:
            The next round, or the end of the training.

        Raises:
            ProtocolError: a party has reached a round that the job does not have.
        """
        for party, place in places.items():
            if place > self._max_rounds:
                raise ProtocolError(
                    f"the {party} has reached round {place}, but this job has at most {self._max_rounds} rounds"
                )
        following: RoundPlan | Conclusion | GivenUp = self.training.begin(max(places.values()))
        for observation in observations:
            plan = following
            if not isinstance(plan, RoundPlan):
                break
            yield from self._skip_to(plan.round, places)
            self._plan = plan
            for party, place in places.items():
                if place < plan.round:
                    yield Envelope(party, replace(self._question(plan, RoundKey(plan.round, 1))[party], over=True))
            following = self.training.observe(observation)
            self._last_loss = _loss_to_report(plan, observation, following)
        return following

    def attempt(self, plan: RoundPlan, key: RoundKey) -> Attempt:
        """Prepare for the answers to a plan."""
        return Attempt(plan, key, self.training.epoch, self.computation.open(plan, key))

    def begin(self, attempt: Attempt) -> Iterator[Envelope]:
        """Send the attempt to both parties."""
        yield from self._skip_to(attempt.plan.round)
        self._plan = attempt.plan
        for party, begin in self._question(attempt.plan, attempt.key).items():
            yield Envelope(party, begin)

    def _skip_to(self, number: int, places: Mapping[Role, int] = _NOWHERE) -> Iterator[Envelope]:
        """Tell the parties whose place is before them that the rounds between the newest one and this one are over.

        The parties know these rounds from an earlier session, and the search needs them no more. They have no place of
        their own in the training and no observation, so they ask for nothing.
        """
        if self._plan is None:
            return
        for skipped in range(self._plan.round + 1, number):
            for party, begin in self._begins(self._plan, RoundKey(skipped, 1)).items():
                if places[party] < skipped:
                    yield Envelope(party, replace(begin, over=True, loss=None))

    def _question(self, plan: RoundPlan, key: RoundKey) -> Mapping[Role, BeginRound]:
        return self.computation.ask(plan, self._begins(plan, key))

    def _begins(self, plan: RoundPlan, key: RoundKey) -> Mapping[Role, BeginRound]:
        return {
            party: BeginRound(
                key=key,
                step=NO_STEP,
                batch=plan.batch,
                gradient=plan.gradient,
                information=plan.information,
                loss=self._last_loss,
                peer_columns=sum(count for other, count in self._n_columns.items() if other is not party),
            )
            for party in PARTIES
        }

    def report(
        self, attempt: Attempt, observation: Observation | None, following: RoundPlan | Conclusion | GivenUp
    ) -> Envelope:
        """Report to the process around the machine that a round is over."""
        plan = attempt.plan
        self._last_loss = _loss_to_report(plan, observation, following)
        report = RoundReport(
            key=attempt.key,
            epoch=attempt.epoch,
            batch=plan.batch.index + 1,
            n_batches=self._n_batches * self._n_models,
            loss=None if self._last_loss is None else self.computation.disclose(self._last_loss),
            loss_only=not plan.gradient,
            note=following.note if isinstance(following, RoundPlan) else None,
            evaluation=attempt.opening.evaluation if observation is not None else None,
            fits_done=self.training.fits_done,
        )
        return Envelope(Role.COORDINATOR, report)

    def compared(self, conclusion: Conclusion) -> tuple[ComparedPenalty, ...]:
        """Return the table of penalties as precisely as it may leave the coordinator: losses depend on the labels."""
        disclose = self.computation.disclose
        return tuple(
            replace(
                each,
                loss=None if each.loss is None else disclose(each.loss),
                standard_error=None if each.standard_error is None else disclose(each.standard_error),
                auc=None if each.auc is None else disclose(each.auc),
                auc_error=None if each.auc_error is None else disclose(each.auc_error),
                n_terms=round(each.n_terms, 1),
            )
            for each in conclusion.compared
        )

    def finish(self, conclusion: Conclusion) -> Iterator[Envelope]:
        """Send the result to both parties: the last step, or each party's shares of it."""
        yield from self._skip_to(conclusion.round)
        finishes = {
            party: FinishJob(
                round=conclusion.round,
                step=NO_STEP,
                loss=self.computation.disclose(conclusion.loss),
                epochs=conclusion.epochs,
                reason=conclusion.reason,
                round_loss=self._last_loss,
                compared=self.compared(conclusion) if party is Role.GUEST else (),
            )
            for party in PARTIES
        }
        for party, finish in self.computation.finish(conclusion, finishes).items():
            yield Envelope(party, finish)


def _loss_to_report(
    plan: RoundPlan, observation: Observation | None, following: RoundPlan | Conclusion | GivenUp
) -> float | None:
    """Return the batch's loss at w_k, or the loss of the point that an exact step leads to.

    Returns:
        None if the round was void.
    """
    if observation is None:
        return None
    if isinstance(following, RoundPlan) and following.reached is not None:
        return following.reached
    if isinstance(following, Conclusion) and plan.gradient:
        return following.loss
    return observation.loss
