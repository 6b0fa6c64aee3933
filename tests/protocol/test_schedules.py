"""The model is the same if messages arrive in any order, twice or late, or if rounds time out."""

import random
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.three_machines import make_machines, make_tables, train
from tests.support.transparent import TRANSPARENT
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, Sgd, Sqn
from trilateral.common.paillier.keys import generate_private_key
from trilateral.common.protocol.messages import (
    ELEMENT_KINDS,
    Began,
    BeginRound,
    Envelope,
    EvaluationRecord,
    JobEnded,
    Kind,
    Machine,
    Message,
    ObservationRecord,
    OpenJob,
    Result,
    RoundKey,
    RoundProgress,
    RoundReport,
    RoundTimedOut,
    ScoresDue,
    StepTaken,
    VectorPiece,
)
from trilateral.coordinator.numpy_training import train_plain

JOB = JobConfig(
    name="schedules", dataset="made", algorithm=Sqn(interval=2), batch=12, epochs=2, key_bits=384, slots=1, seed=1
)
OWN = RoundReport | RoundProgress | OpenJob | EvaluationRecord | Began | ObservationRecord | StepTaken | ScoresDue
"""What a machine tells its own process."""
KEY = generate_private_key(384)
TABLES = make_tables(JOB, n_rows=45, n_host=2, n_guest=1)
EXPECTED = train_plain(JOB, TABLES.joined.columns, TABLES.joined.labels, TABLES.joined.penalty, start=TABLES.start).coef


def run_shuffled(machines: dict[Role, Machine], chance: random.Random) -> tuple[JobEnded, dict[Role, Result]]:
    """Each pair of roles is a queue of its own, as a connection is; which delivers next is drawn.

    A message may be delivered twice, and the coordinator's clock may strike at any time.
    """
    queues: dict[tuple[Role, Role], deque[Message]] = {}
    results: dict[Role, Result] = {}
    timeouts = 3
    begun = RoundKey(0, 0)
    ended: JobEnded | None = None

    def post(sender: Role, envelope: Envelope) -> None:
        nonlocal begun, ended
        message = envelope.message
        if isinstance(message, JobEnded):
            ended = message
        elif isinstance(message, Result):
            results[sender] = message
        elif not isinstance(message, OWN):
            if isinstance(message, BeginRound):
                begun = max(begun, message.key)
            queues.setdefault((sender, envelope.to), deque()).append(message)

    for role, machine in machines.items():
        for envelope in machine.start():
            post(role, envelope)
    for _ in range(20_000):
        waiting = [pair for pair, queue in queues.items() if queue]
        if not waiting:
            break
        sender, to = chance.choice(waiting)
        message = queues[sender, to][0]
        if timeouts and chance.random() < 0.01:
            timeouts -= 1
            sender, to, message = Role.COORDINATOR, Role.COORDINATOR, RoundTimedOut(begun)
        elif chance.random() > 0.1:
            queues[sender, to].popleft()
        for answer in machines[to].handle(sender, message):
            post(to, answer)
        if ended is not None:
            return ended, results
    raise AssertionError("the machines stopped talking")


@pytest.mark.slow
@pytest.mark.no_cover  # It reaches no line that the others do not.
@given(seed=st.integers(0, 2**32))
@settings(max_examples=700)
def test_any_order_of_arrival_gives_the_same_model(seed: int) -> None:
    ended, results = run_shuffled(make_machines(JOB, TABLES, KEY, TRANSPARENT), random.Random(seed))
    check(ended, results)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=15)
def test_any_order_of_arrival_gives_the_same_model_under_encryption(seed: int) -> None:
    check(*run_shuffled(make_machines(JOB, TABLES, KEY), random.Random(seed)))


def check(ended: JobEnded, results: dict[Role, Result]) -> None:
    assert ended.loss is not None, ended.reason
    coef = np.concatenate([results[Role.HOST].coef, results[Role.GUEST].coef])
    np.testing.assert_allclose(coef, EXPECTED, rtol=0, atol=1e-6)


@given(seed=st.integers(0, 2**32), patience=st.sampled_from([None, 1]))
@settings(max_examples=200)
def test_any_order_of_arrival_gives_the_same_evaluations_and_the_same_end(seed: int, patience: int | None) -> None:
    job = JOB.model_copy(update={"evaluate_every": 1, "patience": patience, "epochs": 3})
    joined = TABLES.joined
    holdout = joined.holdout_columns, joined.holdout_labels
    expected = train_plain(
        job, joined.columns, joined.labels, joined.penalty, holdout, n_host=joined.n_host, start=TABLES.start
    )

    ended, results = run_shuffled(make_machines(job, TABLES, KEY, TRANSPARENT), random.Random(seed))

    assert ended.reason == expected.reason
    coef = np.concatenate([results[Role.HOST].coef, results[Role.GUEST].coef])
    np.testing.assert_allclose(coef, expected.coef, rtol=0, atol=1e-6)
    epochs = [each.epochs for each in results[Role.GUEST].evaluations]
    assert epochs == list(range(1, len(epochs) + 1))


@given(seed=st.integers(0, 2**32))
@settings(max_examples=200)
def test_rounds_that_the_host_declares_void_let_it_run_ahead_of_the_guest(seed: int) -> None:
    """They need nothing of the guest, whose messages may all be late. In the end the training is given up."""
    job = JOB.model_copy(update={"algorithm": Sgd(learning_rate=1e9), "epochs": 5, "evaluate_every": 1})
    ended, results = run_shuffled(make_machines(job, TABLES, KEY, TRANSPARENT), random.Random(seed))
    assert "learning_rate" in ended.reason
    assert not results


class _Deaf:
    """Drops the first messages of one kind: the vector never arrives, until the clock strikes."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.dropped = 0

    def __call__(self, sender: Role, envelope: Envelope) -> list[Envelope]:
        message = envelope.message
        if isinstance(message, VectorPiece) and message.kind is self.kind and self.dropped < 2:
            self.dropped += 1
            return [Envelope(Role.COORDINATOR, RoundTimedOut(message.key))]
        return [envelope]


@pytest.mark.parametrize("kind", sorted(set(Kind) - ELEMENT_KINDS))
def test_a_lost_vector_costs_an_attempt_and_not_the_model(kind: Kind) -> None:
    deaf = _Deaf(kind)

    outcome = train(JOB, TABLES, KEY, tamper=deaf)
    assert deaf.dropped == 2
    assert max(report.key.attempt for report in outcome.reports) > 1
    np.testing.assert_allclose(outcome.coef, EXPECTED, rtol=0, atol=1e-6)


def test_a_round_that_never_finishes_fails_the_job() -> None:
    def tamper(sender: Role, envelope: Envelope) -> list[Envelope]:
        message = envelope.message
        if isinstance(message, VectorPiece) and message.kind is Kind.RESIDUAL:
            return [Envelope(Role.COORDINATOR, RoundTimedOut(message.key))]
        return [envelope]

    outcome = train(JOB, TABLES, KEY, tamper=tamper)
    assert outcome.ended.loss is None
    assert "5 attempts" in outcome.ended.reason
