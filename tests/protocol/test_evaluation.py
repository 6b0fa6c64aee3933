"""Evaluations on the hold-out rows during a training: the same by plain numpy and by three machines, and what they
refuse."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.three_machines import Outcome, Tables, make_machines, make_tables, prove_ids, train
from trilateral.common.base.errors import DataError, ProtocolError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig, Lbfgs, Sgd, Sqn
from trilateral.common.paillier.keys import PrivateKey, generate_private_key
from trilateral.common.protocol.batches import Batch
from trilateral.common.protocol.evaluation import log_loss, measure
from trilateral.common.protocol.messages import (
    BeginRound,
    Envelope,
    Evaluation,
    EvaluationRecord,
    FinishJob,
    HoldoutScores,
    Message,
    OutOfRange,
    Ready,
    Result,
    RoundKey,
    RoundTimedOut,
    ScoresDue,
    StepTaken,
)
from trilateral.coordinator.numpy_training import PlainResult, train_plain
from trilateral.guest_party.machine import GuestMachine
from trilateral.host_party.machine import HostMachine

SMALL_KEY = generate_private_key(512)
ALGORITHMS: dict[str, dict[str, Any]] = {
    "sgd": {"algorithm": Sgd(learning_rate=0.5), "batch": 30},
    "sqn": {"algorithm": Sqn(learning_rate=0.3, interval=2), "batch": 30},
    "lbfgs": {"algorithm": Lbfgs()},
}
CIPHERS: dict[str, dict[str, Any]] = {
    "packed": {"key_bits": 1024},
    "one-slot": {"key_bits": 512, "slots": 1},
    "reference": {"key_bits": 512, "cipher": "reference"},
}


def make_job(**settings: Any) -> JobConfig:
    defaults = {"name": "test", "dataset": "made", "key_bits": 1024, "seed": 5, "epochs": 5, "evaluate_every": 2}
    return JobConfig(**defaults | settings)


def plainly(job: JobConfig, tables: Tables) -> PlainResult:
    joined = tables.joined
    holdout = joined.holdout_columns, joined.holdout_labels
    return train_plain(
        job,
        joined.columns,
        joined.labels,
        joined.penalty,
        holdout,
        n_host=joined.n_host,
        start=tables.start,
    )


def overfitting(job: JobConfig) -> Tables:
    """Nearly as many columns as rows, and labels with noise."""
    return make_tables(job, n_rows=60, n_host=14, n_guest=14, seed=3)


def evaluations(outcome: Outcome) -> list[Evaluation]:
    return [report.evaluation for report in outcome.reports if report.evaluation is not None]


@pytest.mark.parametrize("cipher", CIPHERS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_machines_give_the_model_of_plain_numpy_with_evaluations_on(
    name: str, cipher: str, private_key: PrivateKey
) -> None:
    job = make_job(**ALGORITHMS[name], **CIPHERS[cipher], evaluate_every=1, patience=1, l2=0.01)
    tables = make_tables(job, n_rows=60 if cipher == "reference" else 120)
    outcome = train(job, tables, private_key if job.key_bits == 1024 else SMALL_KEY)
    plain = plainly(job, tables)
    np.testing.assert_allclose(outcome.coef, plain.coef, rtol=0, atol=1e-6)
    assert outcome.ended.reason == plain.reason
    assert evaluations(outcome)


def test_an_evaluation_has_the_figures_of_the_point_in_the_round(private_key: PrivateKey) -> None:
    job = make_job(algorithm=Sgd(learning_rate=0.5), batch=30)
    tables = make_tables(job)
    outcome = train(job, tables, private_key)
    first, second = evaluations(outcome)
    assert (first.key.round, second.key.round) == (7, 13)
    # What a training of two epochs ends with, if it ends with the last point, has been evaluated after two epochs.
    steps = [message for _, to, message in outcome.traffic if isinstance(message, BeginRound) and to is Role.HOST]
    guest = [message for _, to, message in outcome.traffic if isinstance(message, BeginRound) and to is Role.GUEST]
    coef = -np.concatenate([sum(begin.step for begin in side[:7]) for side in (steps, guest)])
    assert tables.start is not None
    coef[-len(tables.start) :] += tables.start
    expected = measure(tables.joined.holdout_scores(coef), tables.joined.holdout_labels)
    assert first.log_loss == pytest.approx(expected.log_loss, abs=1e-6)
    assert expected.auc is not None
    assert first.auc == round(expected.auc, 6)
    kept = outcome.results[Role.GUEST].evaluations
    assert [(each.key.round, each.epochs) for each in kept] == [(7, 2), (13, 4)]
    assert kept[0].metrics.lift == pytest.approx(expected.lift)
    assert not outcome.results[Role.HOST].evaluations


def test_the_coordinator_receives_two_numbers_and_the_host_receives_none(private_key: PrivateKey) -> None:
    outcome = train(make_job(), make_tables(make_job()), private_key)
    told = [(to, message) for _, to, message in outcome.traffic if isinstance(message, Evaluation)]
    assert told
    assert {to for to, _ in told} == {Role.COORDINATOR}
    assert not any(isinstance(message, EvaluationRecord) and to is not Role.GUEST for _, to, message in outcome.traffic)


def test_disclosed_figures_have_six_decimals_and_the_guest_keeps_all_digits(private_key: PrivateKey) -> None:
    """A log loss of known scores with 53 bits would be an equation that tells the labels of few rows."""
    outcome = train(make_job(evaluate_every=1), make_tables(make_job()), private_key)
    told = [message for _, _, message in outcome.traffic if isinstance(message, Evaluation)]
    kept = outcome.results[Role.GUEST].evaluations
    assert len(told) == len(kept) > 0
    for evaluation, own in zip(told, kept, strict=True):
        assert evaluation.log_loss == round(evaluation.log_loss, 6) != own.metrics.log_loss
        assert evaluation.log_loss == pytest.approx(own.metrics.log_loss, abs=1e-6)
        assert evaluation.auc is not None
        assert evaluation.auc == round(evaluation.auc, 6)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_early_stopping_ends_on_an_overfitting_set_at_its_best_point(name: str, private_key: PrivateKey) -> None:
    settings = ALGORITHMS[name] | ({} if name == "lbfgs" else {"batch": 40})
    job = make_job(**settings, epochs=60, evaluate_every=1, patience=3, tolerance=1e-9)
    tables = overfitting(job)
    outcome = train(job, tables, private_key)
    assert outcome.ended.epochs < 60
    assert "the hold-out loss did not fall in 3 evaluations" in outcome.ended.reason

    seen = [each.log_loss for each in evaluations(outcome)]
    joined = tables.joined
    reached = log_loss(joined.holdout_scores(outcome.coef), joined.holdout_labels)
    assert reached == pytest.approx(min(seen), abs=1e-6)
    assert seen[-4] == min(seen)
    # And without it the training goes on into worse.
    further = plainly(job.model_copy(update={"patience": None}), tables)
    assert log_loss(joined.holdout_scores(further.coef), joined.holdout_labels) > reached + 0.01


@pytest.mark.parametrize("kind", [HoldoutScores, Evaluation])
def test_a_lost_message_costs_an_attempt_and_not_the_model(kind: type[Message], private_key: PrivateKey) -> None:
    job = make_job(patience=1)
    tables = make_tables(job)
    lost: list[RoundKey] = []

    def tamper(sender: Role, envelope: Envelope) -> list[Envelope]:
        message = envelope.message
        if isinstance(message, kind) and len(lost) < 2:
            lost.append(message.key)  # type: ignore[union-attr]
            return [Envelope(Role.COORDINATOR, RoundTimedOut(lost[-1]))]
        return [envelope]

    outcome = train(job, tables, private_key, tamper=tamper)
    assert [key.attempt for key in lost] == [1, 2]
    np.testing.assert_allclose(outcome.coef, plainly(job, tables).coef, rtol=0, atol=1e-6)
    kept = outcome.results[Role.GUEST].evaluations
    assert len({each.key.round for each in kept}) == len(kept)


# --- what is refused


def begun(machine: HostMachine | GuestMachine, *rounds: BeginRound) -> list[Message]:
    said = (each.message for begin in rounds for each in machine.handle(Role.COORDINATOR, begin))
    return [message for message in said if not isinstance(message, StepTaken | ScoresDue)]


def begin(machine: HostMachine | GuestMachine, number: int, attempt: int = 1, **fields: Any) -> BeginRound:
    zeros = np.zeros_like(machine.coef)
    batch = Batch(min(number, 5))
    return BeginRound(RoundKey(number, attempt), zeros, batch, gradient=False, evaluate_at=zeros, **fields)


def machines(job: JobConfig) -> tuple[HostMachine, GuestMachine]:
    tables = make_tables(job)
    made = make_machines(job, tables, SMALL_KEY)
    host, guest = made[Role.HOST], made[Role.GUEST]
    assert isinstance(host, HostMachine)
    assert isinstance(guest, GuestMachine)
    prove_ids(host, tables.host)
    prove_ids(guest, tables.guest)
    return host, guest


def test_a_party_evaluates_no_more_often_than_the_job_says() -> None:
    for machine in machines(make_job(key_bits=512)):
        begun(machine, begin(machine, 1), begin(machine, 2), begin(machine, 2, attempt=2))
        with pytest.raises(
            ProtocolError, match="round 3, attempt 1, with an evaluation: this job has at most 2 of them"
        ):
            begun(machine, begin(machine, 3))


def test_a_party_does_not_evaluate_in_a_job_without_it() -> None:
    for machine in machines(make_job(key_bits=512, evaluate_every=None)):
        with pytest.raises(ProtocolError, match="at most 0 of them"):
            begun(machine, begin(machine, 1))


def test_another_attempt_must_evaluate_at_the_same_point() -> None:
    for machine in machines(make_job(key_bits=512)):
        other = replace(begin(machine, 1, attempt=2), evaluate_at=np.ones_like(machine.coef))
        with pytest.raises(ProtocolError, match="but its request differs"):
            begun(machine, begin(machine, 1), other)


def test_a_point_of_the_wrong_length_is_refused() -> None:
    for machine in machines(make_job(key_bits=512)):
        with pytest.raises(ProtocolError, match=r"an evaluation at 9 numbers: the (host|guest) has"):
            begun(machine, replace(begin(machine, 1), evaluate_at=np.zeros(9)))


def test_the_host_sends_scores_in_clear_only_in_rounds_that_evaluate() -> None:
    host, _ = machines(make_job(key_bits=512))
    sent = begun(host, replace(begin(host, 1), evaluate_at=None), begin(host, 2))
    assert [message.key.round for message in sent if isinstance(message, HoldoutScores)] == [2]


def test_unrequested_scores_end_the_job() -> None:
    _, guest = machines(make_job(key_bits=512))
    begun(guest, replace(begin(guest, 1), evaluate_at=None))
    with pytest.raises(ProtocolError, match="hold-out scores in round 1, which does not ask for them"):
        list(guest.handle(Role.HOST, HoldoutScores(RoundKey(1, 1), 0, 24, np.zeros(24))))


@pytest.mark.parametrize("key", [RoundKey(9, 1), RoundKey(2, 6)])
def test_scores_for_a_round_beyond_the_job_end_it(key: RoundKey) -> None:
    _, guest = machines(make_job(key_bits=512))
    with pytest.raises(ProtocolError, match="this job has at most 7 rounds"):
        list(guest.handle(Role.HOST, HoldoutScores(key, 0, 24, np.zeros(24))))


def test_scores_that_come_before_the_round_wait_for_it() -> None:
    _, guest = machines(make_job(key_bits=512))
    assert not list(guest.handle(Role.HOST, HoldoutScores(RoundKey(1, 1), 0, 24, np.zeros(24))))
    assert [type(message) for message in begun(guest, begin(guest, 1))] == [EvaluationRecord, Evaluation]
    # And what comes again is not answered again.
    assert not list(guest.handle(Role.HOST, HoldoutScores(RoundKey(1, 1), 0, 24, np.zeros(24))))


def test_a_score_out_of_range_makes_the_round_void(private_key: PrivateKey) -> None:
    job = make_job(algorithm=Sgd(learning_rate=0.5), batch=30)
    tables = make_tables(job)
    np.asarray(tables.host.block.holdout_columns)[0, 0] = 1e120
    outcome = train(job, tables, private_key)
    assert any(report.loss is None for report in outcome.reports)


def holdout_scores(number: int) -> HoldoutScores:
    return HoldoutScores(RoundKey(number, 1), 0, 24, np.zeros(24))


def kept_rounds(guest: GuestMachine, number: int, round_loss: float | None) -> list[int]:
    """The rounds whose evaluations are in the result, where this one finishes the job."""
    finish = FinishJob(number, np.zeros_like(guest.coef), 0.5, 1, "converged", round_loss)
    messages = [each.message for each in guest.handle(Role.COORDINATOR, finish)]
    messages += [each.message for each in guest.handle(Role.HOST, holdout_scores(number))]
    (result,) = (message for message in messages if isinstance(message, Result))
    return [each.key.round for each in result.evaluations]


def begin_out_of_range(guest: GuestMachine, number: int) -> BeginRound:
    """A round whose step leads to scores of training rows that have no room."""
    return replace(begin(guest, number), step=np.full_like(guest.coef, 1e6))


def test_a_round_that_the_guest_declares_void_evaluates_nothing_that_comes_later() -> None:
    _, guest = machines(make_job(key_bits=512))
    assert [type(message) for message in begun(guest, begin_out_of_range(guest, 1))] == [OutOfRange]
    assert not list(guest.handle(Role.HOST, holdout_scores(1)))
    back = replace(begin(guest, 2), step=np.full_like(guest.coef, -1e6), loss=None)
    begun(guest, back)
    # The next round evaluates again.
    assert [type(each.message) for each in guest.handle(Role.HOST, holdout_scores(2))] == [EvaluationRecord, Evaluation]
    assert kept_rounds(guest, 3, round_loss=0.5) == [2]


@pytest.mark.parametrize(("losses", "kept"), [((0.5, 0.5), [1, 2]), ((None, 0.5), [2]), ((0.5, None), [1])])
def test_evaluations_of_rounds_that_were_void_for_the_host_are_dropped(
    losses: tuple[float | None, float | None], kept: list[int]
) -> None:
    _, guest = machines(make_job(key_bits=512))
    for number, loss in ((1, None), (2, losses[0])):
        begun(guest, begin(guest, number, loss=loss))
        assert list(guest.handle(Role.HOST, holdout_scores(number)))
    assert kept_rounds(guest, 3, round_loss=losses[1]) == kept


def test_an_evaluation_that_the_round_does_not_ask_for_ends_the_job(private_key: PrivateKey) -> None:
    job, evaluation = make_job(evaluate_every=None), Evaluation(RoundKey(1, 1), 0.5, 0.5)
    coordinator = make_machines(job, make_tables(job), private_key)[Role.COORDINATOR]
    with pytest.raises(ProtocolError, match="before both parties were ready|not begun"):
        list(coordinator.handle(Role.GUEST, evaluation))
    for party in PARTIES:
        list(coordinator.handle(party, Ready(96, 3)))
    with pytest.raises(ProtocolError, match="an evaluation for round 1, which does not ask for one"):
        list(coordinator.handle(Role.GUEST, evaluation))


def test_a_job_that_evaluates_on_no_rows_is_refused() -> None:
    job = make_job(holdout=0.001, key_bits=512)
    with pytest.raises(DataError, match="`holdout` leaves no such rows"):
        make_machines(job, make_tables(job), SMALL_KEY)


def test_the_final_scores_are_distinguished_from_those_of_the_last_round(private_key: PrivateKey) -> None:
    job = make_job(evaluate_every=4)
    outcome = train(job, make_tables(job), private_key)
    keys = [message.key for _, _, message in outcome.traffic if isinstance(message, HoldoutScores)]
    result = outcome.results[Role.GUEST]
    assert isinstance(result, Result)
    assert keys[-1] == RoundKey(result.rounds + 1, 1)
