"""Trainings on shares whose messages come late, twice or never, and whose sessions break off anywhere."""

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol import test_classes
from tests.protocol.test_restarts import Journals, Trouble, run_session, run_sessions
from tests.protocol.test_schedules import run_shuffled
from tests.protocol.test_shares_training import make_job, train, weigh
from tests.support.shares_rounds import cut_small
from tests.support.three_machines import Tables, make_machines, make_tables, run_machines
from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import Penalty, Sgd
from trilateral.common.paillier.keys import generate_private_key
from trilateral.common.protocol.messages import (
    ELEMENT_KINDS,
    SLOPE_KINDS,
    BeginRound,
    ElementPiece,
    Envelope,
    JobEnded,
    Kind,
    Ready,
    Result,
    RoundKey,
    RoundTimedOut,
)

KEY = generate_private_key(384)
"""The jobs here have no key. The helpers ask for one."""
LBFGS = make_job(epochs=5, evaluate_every=2)
SEARCH = make_job(epochs=20, tolerance=1e-7, folds=2, search=[Penalty(l1=0.3), Penalty(l1=0.001, l2=0.02)])
"""The second penalty is far better, so rounding errors do not change the choice."""
SGD = make_job(algorithm=Sgd(learning_rate=0.5), batch=25, epochs=2, evaluate_every=1)


INFERENCE = make_job(epochs=5, inference=True)
CLASSES = test_classes.make_job(epochs=15, tolerance=1e-7)
JOBS = {"lbfgs": LBFGS, "sgd": SGD, "search": SEARCH, "inference": INFERENCE, "classes": CLASSES}
CASES = [(name, bits) for name in JOBS for bits in (None, 6) if name != "classes" or bits is None]


def make_tables_of(name: str, bits: int | None) -> Tables:
    if name == "classes":
        tables = test_classes.make_tables(CLASSES, n_rows=200)
    else:
        tables = weigh(make_tables(JOBS[name], n_rows=150, n_host=2, n_guest=2), bits)
    tables.start = None
    return tables


TABLES = {(name, bits): make_tables_of(name, bits) for name, bits in CASES}
EXPECTED: dict[tuple[str, int | None], FloatVector] = {}
EXPECTED_VARIANCES: dict[int | None, FloatVector] = {}
TOLERANCE = 5e-3
"""The bits that the parties drop from sums of a hundred rows move the weights by a tenth of this."""

VARIANCE_TOLERANCE = 0.02
"""The same for the covariances, relative to the largest."""
OF_SESSIONS = {Kind.MASKED_COLUMNS, Kind.WEIGHTS, Kind.SEPARATION, Kind.COUNTS}
"""Kinds that belong to no round. `test_bins` loses the counts."""


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        cut_small(patch)
        for name, bits in CASES:
            outcome = train(JOBS[name], TABLES[name, bits], KEY)
            EXPECTED[name, bits] = outcome.coef
            if JOBS[name].inference:
                EXPECTED_VARIANCES[bits] = variances(outcome.results)
        yield


def variances(results: dict[Role, Result]) -> FloatVector:
    """The covariances that both parties are told, the host's first."""
    told = [results[party].inference for party in PARTIES]
    return np.concatenate([each.covariance for each in told if each is not None])


def check(ended: JobEnded | None, results: dict[Role, Result], case: tuple[str, int | None]) -> None:
    assert ended is not None, "the machines stopped talking"
    assert ended.loss is not None, ended.reason
    coef = np.concatenate([results[Role.HOST].coef, results[Role.GUEST].coef])
    np.testing.assert_allclose(coef, EXPECTED[case], rtol=0, atol=TOLERANCE)
    assert all((result.inference is not None) == JOBS[case[0]].inference for result in results.values())
    if JOBS[case[0]].inference:
        expected = EXPECTED_VARIANCES[case[1]]
        np.testing.assert_allclose(variances(results), expected, rtol=0, atol=VARIANCE_TOLERANCE * expected.max())


@pytest.mark.parametrize(("name", "bits"), CASES)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=12)
def test_any_order_of_arrival_gives_the_same_model(name: str, bits: int | None, seed: int) -> None:
    ended, results = run_shuffled(make_machines(JOBS[name], TABLES[name, bits], KEY), random.Random(seed))
    check(ended, results, (name, bits))


@pytest.mark.parametrize(("name", "bits"), CASES)
@given(seed=st.integers(0, 2**32), cuts=st.lists(st.integers(1, 400), max_size=6))
@settings(max_examples=12)
def test_sessions_that_break_off_anywhere_lead_to_the_same_model(
    name: str, bits: int | None, seed: int, cuts: list[int]
) -> None:
    journals: Journals = run_sessions(seed, cuts, job=JOBS[name], tables=TABLES[name, bits])
    check(journals.ended, journals.results, (name, bits))


def lose_rounds(name: str, n_further: int, n_kept: int, *, with_last: bool) -> Journals:
    """Return journals after a training, as if its search had taken more rounds, and the coordinator's were an old copy.

    Args:
        name: of the job.
        n_further: rounds that the parties know and the search does not take again.
        n_kept: observations that the coordinator's copy has.
        with_last: whether the parties have reached the step of inference, which is the last round.
    """
    journals = run_sessions(0, [], job=JOBS[name], tables=TABLES[name, None])
    journals.results.clear()
    journals.ended = None
    del journals.observations[n_kept:]
    for steps in journals.steps.values():
        asked = [each for each in steps.values() if isinstance(each, BeginRound)]
        last = asked.pop() if JOBS[name].inference else None
        asked += [asked[-1]] * n_further + ([last] if last is not None and with_last else [])
        steps.clear()
        steps |= {number: replace(each, key=RoundKey(number, 1)) for number, each in enumerate(asked, 1)}
    return journals


@pytest.mark.parametrize(
    ("name", "with_last"), [("lbfgs", True), ("search", True), ("inference", True), ("inference", False)]
)
@pytest.mark.parametrize("n_kept", [0, 3])
@pytest.mark.parametrize("cut", [None, 130])
def test_a_search_that_needs_fewer_rounds_after_a_restart_ends_after_the_rounds_that_the_parties_know(
    name: str, with_last: bool, n_kept: int, cut: int | None
) -> None:
    """Sums differ in their last bits from session to session, and with them the number of rounds."""
    # A search takes 30 to 50 rounds. The other jobs have hardly more epochs than they need.
    journals = lose_rounds(name, 30 if name == "search" else 1, n_kept, with_last=with_last)
    known = max(journals.steps[Role.HOST])
    for number, n_messages in enumerate([20_000] if cut is None else [cut, cut, 20_000]):
        if journals.ended is None:
            run_session(journals, journals.machines(number), Trouble(random.Random(number)), n_messages)
    check(journals.ended, journals.results, (name, None))
    assert min(result.rounds for result in journals.results.values()) >= known


def test_a_party_that_claims_a_round_which_the_job_does_not_have_is_refused() -> None:
    """Else the coordinator would bring the other party there, with a message for each round."""
    journals = lose_rounds("lbfgs", 0, 0, with_last=True)
    machines = journals.machines(0)

    def claim(sender: Role, envelope: Envelope) -> list[Envelope]:
        message = envelope.message
        if sender is Role.GUEST and isinstance(message, Ready):
            message = replace(message, round=2**40)
        return [replace(envelope, message=message)]

    with pytest.raises(ProtocolError, match="the guest has reached round 1099511627776, but this job has at most 7"):
        run_machines(machines, tamper=claim)


class _Deaf:
    """Drops the vectors of one kind in two attempts: they never arrive, until the clock strikes."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.dropped: set[RoundKey] = set()
        self.begun = RoundKey(0, 0)

    def __call__(self, sender: Role, envelope: Envelope) -> list[Envelope]:
        message = envelope.message
        if isinstance(message, BeginRound):
            self.begun = max(self.begun, message.key)
        if not isinstance(message, ElementPiece) or message.kind is not self.kind or message.key.round == 0:
            return [envelope]
        if message.key > self.begun:
            return [envelope]  # It was dealt ahead.
        if message.key in self.dropped:
            return []
        if len(self.dropped) == 2:
            return [envelope]
        self.dropped.add(message.key)
        return [Envelope(Role.COORDINATOR, RoundTimedOut(message.key))]


@pytest.mark.parametrize(
    ("kind", "bits"),
    [
        (kind, bits)
        for kind in sorted(ELEMENT_KINDS - OF_SESSIONS)
        for bits in (None, 6)
        if kind not in {Kind.UNWEIGHTED_SLOPES, Kind.UNWEIGHTED_RESIDUAL} or bits is not None
    ],
)
def test_a_lost_vector_costs_an_attempt_and_not_the_model(kind: Kind, bits: int | None) -> None:
    deaf, case = _Deaf(kind), ("inference" if kind in SLOPE_KINDS else "lbfgs", bits)
    outcome = run_machines(make_machines(JOBS[case[0]], TABLES[case], KEY), tamper=deaf)
    assert len(deaf.dropped) == 2
    assert max(report.key.attempt for report in outcome.reports) > 1
    check(outcome.ended, outcome.results, case)
