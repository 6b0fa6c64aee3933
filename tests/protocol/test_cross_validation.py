"""Penalties compared by cross-validation on shares in one process: what each round shows, and what each role learns."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.oracles.test_elastic_net import objective, theirs
from tests.protocol.test_shares_training import (
    WEIGHTS,
    check_round,
    format_of,
    loss_step,
    make_job,
    sample_weights,
    train,
    weigh,
)
from tests.support.late_engine import LateEngine
from tests.support.shares_rounds import cut_small, read_rounds
from tests.support.three_machines import Outcome, Tables, Workshop, make_machines, make_tables, run_machines, with_folds
from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.compute.engine import OpenEngine
from trilateral.common.compute.local import LocalEngine
from trilateral.common.config.job import JobConfig, Penalty, PenaltyPath
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.protocol.batches import Batch, Batches
from trilateral.common.protocol.bounds import max_rounds
from trilateral.common.protocol.messages import (
    BeginRound,
    ElementPiece,
    Envelope,
    Evaluation,
    FinishJob,
    Kind,
    RoundKey,
    RoundShares,
    ScoresDue,
    WeightShares,
)
from trilateral.common.protocol.place import Place
from trilateral.common.protocol.row_roles import RoleVector
from trilateral.coordinator.numpy_training import PlainResult, train_plain

JOBS: dict[str, dict[str, Any]] = {
    "one penalty": {"l2": 0.05, "folds": 3},
    "path of l2": {"l2": 0.5, "path": PenaltyPath(points=4), "folds": 3},
    "path of l1": {"l1": 0.2, "path": PenaltyPath(points=4, smallest=0.01), "folds": 3},
    "elastic net": {"l1": 0.1, "l2": 0.2, "path": PenaltyPath(points=3), "folds": 2, "one_standard_error": True},
    "search": {"search": [Penalty(l2=0.001), Penalty(l1=0.01), Penalty(l1=0.02, l2=0.1)], "folds": 4},
    "no intercept": {"l1": 0.2, "path": PenaltyPath(points=3), "folds": 2, "intercept": False},
}


def in_numpy(job: JobConfig, tables: Tables) -> PlainResult:
    joined = tables.joined
    return train_plain(
        job,
        joined.columns,
        joined.labels,
        joined.penalty,
        sample_weights=joined.sample_weights,
        folds=tables.host.block.folds,
    )


def uneven(n_rows: int, n_folds: int = 4) -> RoleVector:
    """Folds of which each has about twice the rows of the one before, in no order."""
    shares = 2.0 ** np.arange(n_folds) / (2.0**n_folds - 1)
    return np.random.default_rng(n_rows).choice(n_folds, n_rows, p=shares).astype(np.uint8)


@pytest.mark.parametrize("weights", ["none", "fractions"])
@pytest.mark.parametrize("settings", JOBS)
def test_it_ends_as_in_numpy(settings: str, weights: str, private_key: PrivateKey) -> None:
    job = make_job(**JOBS[settings], epochs=30, tolerance=1e-6)
    tables = weigh(make_tables(job, n_rows=3000), WEIGHTS[weights])

    outcome, expected = train(job, tables, private_key), in_numpy(job, tables)

    n_rows = len(tables.joined.labels)
    step = loss_step(format_of(job, tables), n_rows) / (sample_weights(tables).mean() * n_rows)
    noise = 3e-5 + 4 * step * (job.folds or 1)  # A fold drops the same bits of fewer rows.
    assert outcome.ended.loss == pytest.approx(expected.loss, abs=noise), outcome.ended.reason
    compared = outcome.results[Role.GUEST].compared
    assert [each.is_chosen for each in compared] == [each.is_chosen for each in expected.compared]
    for seen, plain in zip(compared, expected.compared, strict=True):
        assert (seen.l1, seen.l2) == (plain.l1, plain.l2)
        assert seen.loss == pytest.approx(plain.loss, abs=noise)
        assert seen.standard_error == pytest.approx(plain.standard_error, abs=noise)
    np.testing.assert_allclose(outcome.coef, expected.coef, atol=2e-2)
    assert np.array_equal(outcome.coef == 0, expected.coef == 0)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("n_rows", [151, 331])
def test_each_round_shows_the_rows_outside_or_inside_of_a_fold(
    weights: str, n_rows: int, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_small(monkeypatch)
    job = make_job(**JOBS["search"])
    tables = weigh(make_tables(job, n_rows=n_rows, n_host=2, n_guest=3), WEIGHTS[weights])
    outcome = train(job, tables, private_key)
    assert outcome.ended.loss is not None, outcome.ended.reason
    rounds = list(read_rounds(outcome, format_of(job, tables)))
    for each in rounds:
        check_round(each, job, tables)
    kinds = Counter((each.asked.batch.fold, each.asked.batch.held_out) for each in rounds)
    assert set(kinds) == {(0, False)} | {(fold, alone) for fold in range(1, 5) for alone in (True, False)}
    assert all(kinds[fold, True] == 3 for fold in range(1, 5))


@pytest.mark.parametrize("weights", ["none", "fractions"])
def test_folds_of_unequal_size_end_as_in_numpy(weights: str, private_key: PrivateKey) -> None:
    job = make_job(**JOBS["search"], fold_by="group", epochs=30, tolerance=1e-6)
    tables = make_tables(job, n_rows=3000)
    tables = weigh(with_folds(tables, uneven(len(tables.joined.labels))), WEIGHTS[weights])
    outcome, expected = train(job, tables, private_key), in_numpy(job, tables)
    compared = outcome.results[Role.GUEST].compared
    assert [each.is_chosen for each in compared] == [each.is_chosen for each in expected.compared]
    for seen, plain in zip(compared, expected.compared, strict=True):
        assert seen.loss == pytest.approx(plain.loss, abs=2e-4)
        assert seen.standard_error == pytest.approx(plain.standard_error, abs=2e-4)
    np.testing.assert_allclose(outcome.coef, expected.coef, atol=2e-2)


@pytest.mark.parametrize("n_rows", [151, 331])
def test_each_round_shows_the_rows_of_folds_of_unequal_size(
    n_rows: int, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_small(monkeypatch)
    job = make_job(**JOBS["search"], fold_by="time")
    tables = make_tables(job, n_rows=n_rows, n_host=2, n_guest=3)
    tables = with_folds(tables, uneven(len(tables.joined.labels)))
    outcome = train(job, tables, private_key)
    assert outcome.ended.loss is not None, outcome.ended.reason
    for each in read_rounds(outcome, format_of(job, tables)):
        check_round(each, job, tables)


def test_the_parties_must_report_the_folds_of_the_job(private_key: PrivateKey) -> None:
    job = make_job(**JOBS["search"], fold_by="group")
    tables = make_tables(job, n_rows=400)
    folds = uneven(len(tables.joined.labels))
    other = with_folds(tables, (folds + 1) % 4)
    for each, problem in [
        (tables, "size of a fold that is not possible"),
        (replace(with_folds(tables, folds), guest=other.guest), "folds of different sizes"),
    ]:
        with pytest.raises(ProtocolError, match=problem):
            train(job, each, private_key)
    with pytest.raises(ProtocolError, match="size of a fold that is not possible"):
        train(make_job(**JOBS["search"]), with_folds(tables, folds), private_key)


def test_a_weight_is_0_in_the_model_itself(private_key: PrivateKey) -> None:
    job = make_job(l1=0.1, epochs=30)
    tables = make_tables(job, n_rows=2000, n_host=5, n_guest=4)
    outcome = train(job, tables, private_key)
    zeros = outcome.coef[:-1] == 0
    assert 0 < np.count_nonzero(zeros) < len(zeros)
    assert np.array_equal(outcome.coef == 0, in_numpy(job, tables).coef == 0)


def test_all_columns_have_a_weight_without_a_penalty(private_key: PrivateKey) -> None:
    job = make_job(folds=2)
    outcome = train(job, make_tables(job, n_rows=600, n_host=3, n_guest=2), private_key)
    assert [each.n_terms for each in outcome.ended.compared] == [5]


def test_the_host_is_not_told_which_penalty_is_chosen(private_key: PrivateKey) -> None:
    job = make_job(**JOBS["path of l1"])
    outcome = train(job, make_tables(job, n_rows=600), private_key)
    finishes = {to: message for _, to, message in outcome.traffic if isinstance(message, FinishJob)}
    assert len(finishes[Role.GUEST].compared) == 4
    assert len(outcome.ended.compared) == 4
    assert not finishes[Role.HOST].compared
    assert not outcome.results[Role.HOST].compared
    assert finishes[Role.HOST].reason == finishes[Role.GUEST].reason
    reported = [report.fits_done for report in outcome.reports]
    assert reported == sorted(reported)
    assert reported[-1] == job.n_fits - 1


def test_no_party_is_told_a_loss_or_a_point_before_the_end(private_key: PrivateKey) -> None:
    job = make_job(**JOBS["elastic net"])
    outcome = train(job, make_tables(job), private_key)
    begins = [m for _, to, m in outcome.traffic if to in PARTIES and isinstance(m, BeginRound)]
    assert begins
    assert all((m.loss, m.evaluate_at, m.direction, m.step.size) == (None, None, None, 0) for m in begins)


def test_a_search_where_values_leave_the_range_names_the_way_out(private_key: PrivateKey) -> None:
    """Columns that separate the labels have no largest score, so weak penalties run away."""
    job = make_job(search=[Penalty(l2=0.1), Penalty()], folds=2, epochs=60, max_score=8)
    tables = make_tables(job, n_rows=400)
    block = tables.guest.block
    columns = np.array(block.columns)
    columns[:, 0] = np.where(np.asarray(block.labels) > 0, 1.0, -1.0)
    outcome = train(
        job, replace(tables, guest=replace(tables.guest, block=replace(block, columns=columns))), private_key
    )
    compared = outcome.results[Role.GUEST].compared
    assert len(compared) == 2
    assert compared[0].loss is not None


def test_a_search_on_shares_finds_what_scikit_learn_finds(private_key: PrivateKey) -> None:
    """The whole protocol in one process, on columns of two parties."""
    job = make_job(l1=0.1, path=PenaltyPath(points=5, smallest=0.01), folds=3, epochs=40, tolerance=1e-6, holdout=0.0)
    tables = make_tables(job, n_rows=6000, n_host=4, n_guest=4)
    outcome = train(job, tables, private_key)
    Z, y = tables.joined.columns[:, :-1], tables.joined.labels
    chosen = next(each for each in outcome.ended.compared if each.is_chosen)
    penalty = Penalty(l1=chosen.l1, l2=chosen.l2)
    reference = theirs(penalty, Z, y)
    expected = np.append(reference.coef_[0], reference.intercept_)

    step = loss_step(format_of(job, tables), len(y)) / len(y)
    assert objective(penalty, outcome.coef, Z, y) <= objective(penalty, expected, Z, y) + 3e-6
    assert outcome.ended.loss == pytest.approx(objective(penalty, expected, Z, y), abs=4 * step + 3e-6)


# --- what a party refuses


class Nothing:
    def apply(self, step: Any) -> None:
        pass

    def reset(self) -> None:
        pass


def begin(number: int, batch: Batch, *, gradient: bool) -> BeginRound:
    shares = RoundShares(WeightShares(*(np.zeros(n, np.uint64) for n in (3, 2, 3))))
    return BeginRound(RoundKey(number, 1), np.zeros(0), batch, gradient, shares=shares)


@pytest.mark.parametrize(
    ("batch", "gradient"),
    [
        (Batch(1, fold=1, held_out=True), True),
        (Batch(1, fold=1), False),
        (Batch(1, held_out=True), False),
        (Batch(1, fold=4), True),
        (Batch(13, fold=1), True),
        (Batch(1, 1, fold=1), True),
    ],
    ids=str,
)
def test_a_party_refuses_other_sums(batch: Batch, gradient: bool) -> None:
    place = Place(Role.HOST, make_job(l2=1.0, folds=3), 1, 0, Nothing())
    with pytest.raises(ProtocolError, match="this job has"):
        place.begin(begin(1, batch, gradient=gradient))


def test_a_party_takes_no_more_rounds_than_the_fits_have() -> None:
    job = make_job(**JOBS["search"])
    most = max_rounds(job, 1)
    assert most == (3 * 4 + 1) * job.epochs + 3 * 4
    place = Place(Role.HOST, job, 1, 0, Nothing())
    for number in range(1, most + 1):
        assert place.begin(begin(number, Batch(1, fold=1), gradient=True))
    with pytest.raises(ProtocolError, match=f"{most} rounds|round {most + 1}"):
        place.begin(begin(most + 1, Batch(1, fold=1), gradient=True))


def test_a_fold_in_a_job_without_folds_is_refused() -> None:
    place = Place(Role.HOST, make_job(), 1, 0, Nothing())
    with pytest.raises(ProtocolError, match="0 folds"):
        place.begin(begin(1, Batch(1, fold=1), gradient=True))


def test_folds_do_not_depend_on_anything_but_the_seed() -> None:
    one, other = (Batches.of(make_job(folds=5, seed=seed), 100) for seed in (1, 2))
    again = Batches.of(make_job(folds=5, seed=1, l2=3.0, name="again"), 100)
    assert np.array_equal(one.part_rows(2), again.part_rows(2))
    assert not np.array_equal(one.part_rows(2), other.part_rows(2))


# --- the choice by AUC


def fold_scores(outcome: Outcome) -> list[ScoresDue]:
    return [message for *_, message in outcome.traffic if isinstance(message, ScoresDue) and message.fold]


@pytest.mark.parametrize("weights", ["none", "fractions"])
def test_the_auc_of_each_fold_is_that_of_numpy(weights: str, private_key: PrivateKey) -> None:
    job = make_job(**JOBS["search"], choose="auc", epochs=30, tolerance=1e-6)
    tables = weigh(make_tables(job, n_rows=1000), WEIGHTS[weights])
    outcome, expected = train(job, tables, private_key), in_numpy(job, tables)
    compared = outcome.results[Role.GUEST].compared
    assert [each.is_chosen for each in compared] == [each.is_chosen for each in expected.compared]
    for seen, plain in zip(compared, expected.compared, strict=True):
        assert seen.auc == pytest.approx(plain.auc, abs=5e-4)
        assert seen.auc_error == pytest.approx(plain.auc_error, abs=5e-4)
        assert seen.loss == pytest.approx(plain.loss, abs=2e-4)
    assert not outcome.results[Role.HOST].compared
    np.testing.assert_allclose(outcome.coef, expected.coef, atol=2e-2)
    # Each fold is opened once for each penalty.
    assert Counter(each.fold for each in fold_scores(outcome)) == dict.fromkeys(range(1, 5), 3)


@pytest.mark.parametrize("open_engine", [LocalEngine, LateEngine])
def test_blocks_and_workers_do_not_matter_for_an_auc(
    open_engine: OpenEngine, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_small(monkeypatch)
    job = make_job(**JOBS["search"], choose="auc", fold_by="time")
    tables = make_tables(job, n_rows=331, n_host=2, n_guest=3)
    tables = with_folds(tables, uneven(len(tables.joined.labels)))
    outcome = run_machines(make_machines(job, tables, private_key, Workshop(open_engine=open_engine)))
    for seen, plain in zip(outcome.results[Role.GUEST].compared, in_numpy(job, tables).compared, strict=True):
        assert seen.auc == pytest.approx(plain.auc, abs=2e-3)


def test_a_fold_of_one_label_favours_no_penalty(private_key: PrivateKey) -> None:
    job = make_job(**JOBS["search"], choose="auc", fold_by="group")
    tables = make_tables(job, n_rows=400)
    labels = np.asarray(tables.joined.labels)
    folds = np.arange(len(labels)).astype(np.uint8) % 3
    folds[np.flatnonzero(labels > 0)[:50]] = 3
    outcome = train(job, with_folds(tables, folds), private_key)
    told = [message for *_, message in outcome.traffic if isinstance(message, Evaluation)]
    assert [each.auc for each in told[-3:]] == [0.5] * 3
    assert all(each.auc > 0.5 for each in told[:-3] if each.auc is not None)


@pytest.mark.parametrize("auc", [None, -0.1, 1.1])
def test_the_coordinator_takes_an_auc_alone(auc: float | None, private_key: PrivateKey) -> None:
    job = make_job(**JOBS["search"], choose="auc")
    tables = make_tables(job, n_rows=400)

    def tamper(sender: Role, envelope: Envelope) -> list[Envelope]:
        message = envelope.message
        return [replace(envelope, message=replace(message, auc=auc)) if isinstance(message, Evaluation) else envelope]

    with pytest.raises(ProtocolError, match="the guest sent an evaluation that this round does not ask for"):
        run_machines(make_machines(job, tables, private_key), tamper=tamper)


def test_of_a_choice_by_loss_the_coordinator_takes_no_auc(private_key: PrivateKey) -> None:
    job = make_job(**JOBS["search"])
    tables = make_tables(job, n_rows=400)

    def tamper(sender: Role, envelope: Envelope) -> list[Envelope]:
        message = envelope.message
        if sender is not Role.GUEST or not isinstance(message, ElementPiece) or message.kind is not Kind.SUMS:
            return [envelope]
        told = [Envelope(Role.COORDINATOR, Evaluation(message.key, 0.0, 0.7))] if message.key.round else []
        return [*told, envelope]

    with pytest.raises(ProtocolError, match="does not ask for"):
        run_machines(make_machines(job, tables, private_key), tamper=tamper)
