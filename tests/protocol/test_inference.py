"""The step of inference in whole trainings on shares: what the parties are told, again after a fault, and refusals."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.protocol.test_shares_training import WEIGHTS, make_job, weigh
from tests.support.shares_rounds import cut_small
from tests.support.three_machines import REAL, Outcome, Tables, make_tables, run_machines, seeds_of
from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.base.errors import DataError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.jobs.journal import Journal
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.pb.v1.jobs_pb2 import JobStatus
from trilateral.common.protocol import logistic
from trilateral.common.protocol.batches import Batch
from trilateral.common.protocol.bounds import MAX_INFERENCE_STEPS
from trilateral.common.protocol.messages import (
    Began,
    BeginRound,
    ElementPiece,
    Envelope,
    FinishJob,
    Kind,
    Machine,
    ObservationRecord,
    OwnCovariance,
    RoundKey,
    RoundTimedOut,
    RowsDone,
)
from trilateral.common.protocol.separation import Sign
from trilateral.common.shares.information import WEIGHT_LIMIT_BITS, unpack
from trilateral.coordinator.job_record import JobRecord
from trilateral.coordinator.machine import Past
from trilateral.coordinator.numpy_training import train_plain

JOB = make_job(inference=True, tolerance=1e-8, epochs=30)
N_ROWS = 600


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_small(monkeypatch, block_rows=64)


def machines_of(job: JobConfig, tables: Tables, key: PrivateKey, past: Past | None = None) -> dict[Role, Machine]:
    coordinator = REAL.coordinator(job, key, past)
    seeds = seeds_of(coordinator)
    return {
        Role.COORDINATOR: coordinator,
        Role.HOST: REAL.host(job, tables.host, key, seed=seeds[Role.HOST]),
        Role.GUEST: REAL.guest(job, tables.guest, key, seed=seeds[Role.GUEST]),
    }


def tables_of(job: JobConfig = JOB, n_host: int = 3, n_guest: int = 2, weight_bits: int | None = None) -> Tables:
    return weigh(make_tables(job, n_rows=N_ROWS, n_host=n_host, n_guest=n_guest), weight_bits)


def exact_covariance(tables: Tables, coef: FloatVector) -> FloatMatrix:
    """The inverse of the Fisher information in floating point, for sample weights of mean 1."""
    X, c = tables.joined.columns, tables.joined.sample_weights
    slopes = logistic.slope(X @ coef) * (1 if c is None else c / c.mean())
    return np.asarray(np.linalg.inv(X.T @ (X * slopes[:, np.newaxis])), dtype=np.float64)


def errors_of(outcome: Outcome) -> FloatVector:
    """The standard errors of both parties, the host's first."""
    errors = []
    for party in PARTIES:
        told = outcome.results[party].inference
        assert told is not None
        errors.append(np.sqrt(np.diag(unpack(told.covariance, len(outcome.results[party].coef)))))
    return np.concatenate(errors)


@pytest.mark.parametrize("sizes", [(3, 2), (2, 4), (1, 1)])
@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS.keys())
def test_both_parties_learn_the_standard_errors_of_their_own_weights(
    sizes: tuple[int, int], weights: int | None, private_key: PrivateKey
) -> None:
    tables = tables_of(n_host=sizes[0], n_guest=sizes[1], weight_bits=weights)
    outcome = run_machines(machines_of(JOB, tables, private_key))
    exact = np.sqrt(np.diag(exact_covariance(tables, outcome.coef)))
    # The columns of a table with so few rows are rounded so much. tests/oracles has larger tables.
    assert errors_of(outcome) == pytest.approx(exact, rel={None: 2e-4, 0: 5e-4, 6: 1.5e-3}[weights])
    host, guest = (outcome.results[party] for party in PARTIES)
    assert (host.n_peer_columns, guest.n_peer_columns) == (len(guest.coef), len(host.coef))
    data = {Role.HOST: tables.host, Role.GUEST: tables.guest}
    parts = {party: np.asarray(data[party].block.columns) @ outcome.results[party].coef for party in PARTIES}
    wide = {party: np.abs(part).max() > JOB.max_score / 2 for party, part in parts.items()}
    assert host.signs == guest.signs == {party: Sign.WIDE if is_wide else Sign(0) for party, is_wide in wide.items()}


@pytest.mark.parametrize("settings", [{"intercept": False}, {"max_score": 8}, {"max_score": 24}, {"holdout": 0.0}])
def test_other_settings_give_the_standard_errors_as_well(settings: dict[str, Any], private_key: PrivateKey) -> None:
    job = make_job(**{"inference": True, "tolerance": 1e-8, "epochs": 30} | settings)
    tables = tables_of(job)
    outcome = run_machines(machines_of(job, tables, private_key))
    assert errors_of(outcome) == pytest.approx(np.sqrt(np.diag(exact_covariance(tables, outcome.coef))), rel=2e-4)


def test_inference_adds_steps_of_newtons_method_to_the_same_training(private_key: PrivateKey) -> None:
    without = JOB.model_copy(update={"inference": False})
    tables = tables_of()
    one, other = (run_machines(machines_of(job, tables, private_key)) for job in (JOB, without))
    assert one.coef == pytest.approx(other.coef, abs=1e-3)
    joined = tables.joined
    plain = [
        train_plain(job, joined.columns, joined.labels, joined.penalty, n_host=joined.n_host) for job in (JOB, without)
    ]
    n_rounds = len(plain[1].losses)
    assert plain[0].losses[:n_rounds] == plain[1].losses
    slopes = [
        np.abs(logistic.gradient(joined.columns, logistic.residual(joined.columns @ each.coef, joined.labels))).max()
        for each in plain
    ]
    assert slopes[0] < 1e-9 < 1e-6 < slopes[1]
    asked = [message for _, to, message in one.traffic if isinstance(message, BeginRound) and to is Role.HOST]
    n_steps = sum(each.information for each in asked)
    assert 1 <= n_steps <= MAX_INFERENCE_STEPS
    assert [each.information for each in asked] == [False] * (len(asked) - n_steps) + [True] * n_steps
    assert other.results[Role.HOST].inference is None


def test_the_step_is_repeated_if_an_answer_is_lost(private_key: PrivateKey) -> None:
    lost: list[ElementPiece] = []

    def lose(sender: Role, envelope: Envelope) -> list[Envelope]:
        piece = envelope.message
        if not lost and isinstance(piece, ElementPiece) and piece.kind is Kind.ROUNDED_SLOPES:
            lost.append(piece)
            return [Envelope(Role.COORDINATOR, RoundTimedOut(piece.key))]
        return [] if isinstance(piece, ElementPiece) and lost and piece.key == lost[0].key else [envelope]

    tables = tables_of(weight_bits=6)
    outcome = run_machines(machines_of(JOB, tables, private_key), tamper=lose)
    assert [report.key.attempt for report in outcome.reports if report.key.round == lost[0].key.round] == [2]
    exact = np.sqrt(np.diag(exact_covariance(tables, outcome.coef)))
    assert errors_of(outcome) == pytest.approx(exact, rel=1.5e-3)


@pytest.mark.parametrize("n_lost", [0, 1])
def test_a_later_session_takes_the_information_from_the_journal(
    n_lost: int, private_key: PrivateKey, tmp_path: Path
) -> None:
    """The coordinator is stopped after the step, or before the step has ended."""
    tables = tables_of()
    first = run_machines(machines_of(JOB, tables, private_key))
    journal = Journal(tmp_path, Role.COORDINATOR, 90)
    journal.add(bytes(16), JOB)
    record = JobRecord(journal, bytes(16), JOB.name)
    kept = [message for _, _, message in first.traffic if isinstance(message, Began | ObservationRecord)]
    for message in kept[: len(kept) - n_lost]:
        record.write(message, JobStatus())

    second = run_machines(machines_of(JOB, tables, private_key, record.past()))
    # A repeated step may end just beyond what counts as exact, and another one follows.
    assert (1 if n_lost else 0) <= len(second.reports) <= n_lost * MAX_INFERENCE_STEPS
    # A repeated step reads the gradient with other roundings.
    assert np.abs(second.coef - first.coef).max() < (1e-9 if not n_lost else 1e-3)
    assert errors_of(second) == pytest.approx(errors_of(first), rel=1e-12 if not n_lost else 3e-4)


def test_the_coordinator_deals_no_further_ahead_than_a_window(private_key: PrivateKey) -> None:
    dealt: dict[Role, int] = dict.fromkeys(PARTIES, 0)
    done: dict[Role, int] = dict.fromkeys(PARTIES, 0)
    largest = 0

    def watch(sender: Role, envelope: Envelope) -> list[Envelope]:
        nonlocal largest
        message = envelope.message
        if isinstance(message, ElementPiece) and message.kind is Kind.DEALT_SLOPES:
            dealt[envelope.to] = message.offset + message.n_rows
            largest = max(largest, dealt[envelope.to] - min(done.values()))
        elif isinstance(message, RowsDone) and max(dealt.values()) > 0:
            done[sender] = message.n_rows
        return [envelope]

    run_machines(machines_of(JOB, tables_of(), private_key), tamper=watch)
    assert 0 < largest <= 2 * 64
    assert min(done.values()) > 0


# --- refusals


def reason(tamper: Callable[[Role, Envelope], list[Envelope]], key: PrivateKey, job: JobConfig = JOB) -> str:
    outcome = run_machines(machines_of(job, tables_of(job, weight_bits=6), key), tamper=tamper)
    assert outcome.ended.loss is None
    return outcome.ended.reason


def changing(kind: Kind, change: Callable[[ElementPiece], ElementPiece]) -> Callable[[Role, Envelope], list[Envelope]]:
    def tamper(sender: Role, envelope: Envelope) -> list[Envelope]:
        message = envelope.message
        if isinstance(message, ElementPiece) and message.kind is kind:
            return [Envelope(envelope.to, change(message))]
        return [envelope]

    return tamper


def shorter(piece: ElementPiece) -> ElementPiece:
    return replace(piece, elements=piece.elements[:-8])


@pytest.mark.parametrize(
    "kind",
    [
        Kind.DEALT_SLOPES,
        Kind.UNWEIGHTED_SLOPES,
        Kind.MASKED_SLOPES,
        Kind.ROUNDED_SLOPES,
        Kind.SLOPE_COLUMNS,
        Kind.FINE_COLUMNS,
        Kind.UNWEIGHTED_RESIDUAL,
    ],
)
def test_a_piece_that_does_not_fit_ends_the_job(kind: Kind, private_key: PrivateKey) -> None:
    assert re.search(f"elements of {kind} for 64 rows, but", reason(changing(kind, shorter), private_key))


def test_parties_that_compute_different_integers_send_the_coordinator_nothing(private_key: PrivateKey) -> None:
    sent = []

    def tamper(sender: Role, envelope: Envelope) -> list[Envelope]:
        message = envelope.message
        if isinstance(message, ElementPiece) and message.kind is Kind.MASKED_SLOPES:
            return [Envelope(envelope.to, replace(message, digest=bytes(64)))]
        if isinstance(message, ElementPiece) and message.kind is Kind.SUMS:
            sent.append(message.key)
        return [envelope]

    assert "have computed different integers from the same scores" in reason(tamper, private_key)
    assert len(sent) == len({*sent}) * len(PARTIES)  # Of rounds before the step, and nothing of it.


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda asked: replace(asked, gradient=True), "asks for something else as well"),
        (lambda asked: replace(asked, batch=Batch(1, 0)), "asks for something else as well"),
        (lambda asked: replace(asked, shares=replace(asked.shares, weights=None)), "asks for something else as well"),
    ],
)
def test_the_step_asks_for_nothing_else(
    change: Callable[[BeginRound], BeginRound], said: str, private_key: PrivateKey
) -> None:
    def tamper(sender: Role, envelope: Envelope) -> list[Envelope]:
        message = envelope.message
        if isinstance(message, BeginRound) and message.information:
            return [Envelope(envelope.to, change(message))]
        return [envelope]

    assert said in reason(tamper, private_key)


def test_no_party_answers_a_step_that_the_job_does_not_have(private_key: PrivateKey) -> None:
    def tamper(sender: Role, envelope: Envelope) -> list[Envelope]:
        message = envelope.message
        if isinstance(message, BeginRound) and message.key.round == 3:
            return [Envelope(envelope.to, replace(message, information=True, gradient=False, batch=Batch(0, 0)))]
        return [envelope]

    without = JOB.model_copy(update={"inference": False})
    assert "as a step of inference: set `inference: true` in the job" in reason(tamper, private_key, without)


@pytest.mark.parametrize(
    ("information", "said"),
    [
        (False, "but no other round follows a step of inference"),
        (True, f"as one more step of inference: a session has at most {MAX_INFERENCE_STEPS}"),
    ],
)
def test_a_few_steps_are_the_last_rounds(information: bool, said: str, private_key: PrivateKey) -> None:
    """A coordinator could ask for the information at many points."""

    def tamper(sender: Role, envelope: Envelope) -> list[Envelope]:
        message = envelope.message
        if isinstance(message, BeginRound) and message.information is information:
            asked[envelope.to] = message
        if not isinstance(message, FinishJob):
            return [envelope]
        again = asked[envelope.to]
        further = [replace(again, key=RoundKey(message.round + k, 1)) for k in range(MAX_INFERENCE_STEPS)]
        return [Envelope(envelope.to, each) for each in further]

    asked: dict[Role, BeginRound] = {}
    assert said in reason(tamper, private_key)


@pytest.mark.parametrize(
    ("told", "said"),
    [(None, "ended the training without standard errors"), (OwnCovariance(np.zeros(2)), "2 numbers as a covariance")],
)
def test_an_end_that_does_not_fit_the_weights_is_refused(
    told: OwnCovariance | None, said: str, private_key: PrivateKey
) -> None:
    def tamper(sender: Role, envelope: Envelope) -> list[Envelope]:
        message = envelope.message
        if isinstance(message, FinishJob):
            return [Envelope(envelope.to, replace(message, inference=told))]
        return [envelope]

    assert said in reason(tamper, private_key)


def test_weights_of_rows_that_leave_the_range_are_refused(private_key: PrivateKey) -> None:
    tables = tables_of(weight_bits=6)
    weights = tables.guest.block.sample_weights
    assert weights is not None
    weights = weights.copy()
    weights[0] = 2**WEIGHT_LIMIT_BITS
    guest = replace(tables.guest, block=replace(tables.guest.block, sample_weights=weights))
    with pytest.raises(DataError, match="`inference` needs more even sample weights"):
        machines_of(JOB, Tables(tables.host, guest), private_key)
