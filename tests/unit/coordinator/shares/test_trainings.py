"""Whole trainings on shares with simulated parties: they end at the optimum of the logistic loss."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.simulated_parties import SimulatedParties, make_table, train_with
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, Lbfgs, Sgd
from trilateral.common.protocol.messages import BeginRound, FinishJob, RoundKey
from trilateral.coordinator.shares import dealing

JOB = JobConfig(name="job", dataset="data", protocol="shares", tolerance=1e-7)
LOSS_NOISE = 3e-5
"""The low bits that parties drop, and columns of 8 to 12 fraction bits, change a loss by a tenth of this."""
EXCESS = 1e-6
"""How far above the optimum a training may end."""
HOLDOUT_NOISE = 5e-4
"""A few hundred hold-out rows average the rounding of their columns out less well."""


def test_lbfgs_reaches_newtons_optimum() -> None:
    table = make_table(n_train=5000, n_holdout=500)
    trained = train_with(JOB, SimulatedParties(JOB, table))

    optimum = table.optimum()
    assert trained.ended.loss is not None
    assert table.loss(trained.coef) - table.loss(optimum) < EXCESS
    assert trained.ended.loss == pytest.approx(table.loss(trained.coef), abs=LOSS_NOISE)


def test_each_observation_is_that_of_plain_numpy_at_the_rounds_point() -> None:
    table = replace(make_table(n_train=3000, n_holdout=400), penalty=np.array([1.0, 2.0, 0.5, 1.0, 1.5, 0.0]))
    job = JOB.model_copy(update={"epochs": 5, "tolerance": 0.0, "l2": 0.01, "evaluate_every": 2})
    parties = SimulatedParties(job, table)
    trained = train_with(job, parties)

    seen = trained.observations
    assert len(seen) == 5
    assert seen[0].loss == pytest.approx(np.log(2), rel=1e-15)
    for each in seen:
        point = parties.point(RoundKey(each.round, 1))
        assert each.loss == pytest.approx(table.loss(point, 0.01), abs=LOSS_NOISE)
        assert each.gradient == pytest.approx(table.gradient(point, 0.01), abs=1e-4)
        assert (each.holdout_loss is not None) == (each.round in {3, 5})
        if each.holdout_loss is not None:
            point = parties.point(RoundKey(each.round, 1), holdout=True)
            assert each.holdout_loss == pytest.approx(table.holdout_loss(point), abs=HOLDOUT_NOISE)


def test_a_penalty_moves_the_optimum() -> None:
    table = replace(make_table(n_train=2000), penalty=np.array([1.0, 2.0, 0.5, 1.0, 1.5, 0.0]))
    job = JOB.model_copy(update={"l2": 0.1})
    trained = train_with(job, SimulatedParties(job, table))

    assert table.loss(trained.coef, 0.1) - table.loss(table.optimum(0.1), 0.1) < EXCESS
    assert trained.ended.loss == pytest.approx(table.loss(trained.coef, 0.1), abs=LOSS_NOISE)


@pytest.mark.parametrize(("weight_bits", "low", "high"), [(0, 1, 5), (6, 16, 96)])
def test_sample_weights_move_the_optimum(weight_bits: int, low: int, high: int) -> None:
    whole = np.random.default_rng(2).integers(low, high, 2000).astype(float)
    table = make_table(n_train=2000, n_holdout=200)
    table = replace(table, sample_weights=np.ldexp(whole, -weight_bits), weight_bits=weight_bits)
    job = JOB.model_copy(update={"evaluate_every": 1})
    parties = SimulatedParties(job, table)
    trained = train_with(job, parties)

    assert trained.reports[-1].evaluation is not None
    point = parties.point(trained.reports[-1].key, holdout=True)
    assert trained.reports[-1].evaluation.log_loss == pytest.approx(table.holdout_loss(point), abs=HOLDOUT_NOISE)
    assert table.loss(trained.coef) - table.loss(table.optimum()) < 3 * EXCESS
    assert trained.ended.loss == pytest.approx(table.loss(trained.coef), abs=10 * LOSS_NOISE)


def test_no_loss_reaches_a_party_before_the_end_and_none_has_more_than_six_decimals() -> None:
    table = make_table(n_train=1000, n_holdout=100)
    job = JOB.model_copy(update={"evaluate_every": 1})
    trained = train_with(job, SimulatedParties(job, table))

    told = [envelope.message for envelope in trained.sent]
    assert all(message.loss is None for message in told if isinstance(message, BeginRound))
    assert all(message.round_loss is None for message in told if isinstance(message, FinishJob))
    losses = [report.loss for report in trained.reports] + [trained.ended.loss]
    losses += [message.loss for message in told if isinstance(message, FinishJob)]
    assert all(loss is not None and loss == round(loss, 6) for loss in losses)


def test_evaluations_are_reported_without_an_auc() -> None:
    table = make_table(n_train=1500, n_holdout=300)
    job = JOB.model_copy(update={"evaluate_every": 1, "patience": 2})
    trained = train_with(job, SimulatedParties(job, table))

    evaluations = [report.evaluation for report in trained.reports if report.evaluation is not None]
    assert evaluations
    assert all(one.auc is None and one.log_loss == round(one.log_loss, 6) for one in evaluations)


def test_sgd_trains_in_batches_and_ends_near_the_optimum() -> None:
    table = make_table(n_train=1000, n_holdout=100)
    job = JOB.model_copy(
        update={"algorithm": Sgd(learning_rate=1.0), "batch": 150, "epochs": 20, "evaluate_every": 5, "tolerance": 0.0}
    )
    parties = SimulatedParties(job, table)
    trained = train_with(job, parties)

    assert trained.ended.loss == pytest.approx(table.loss(trained.coef), abs=LOSS_NOISE)
    assert table.loss(trained.coef) - table.loss(table.optimum()) < 1e-2
    for begins, each in zip(parties.begun.values(), trained.observations, strict=True):
        if each.gradient is not None:
            rows = parties.rows.batches.rows(begins[Role.HOST].batch)
            point = parties.point(RoundKey(each.round, 1))
            assert each.gradient == pytest.approx(table.gradient(point, rows=rows), abs=5e-4)


@pytest.mark.parametrize("n_host", [1, 5])
def test_a_party_may_have_one_column(n_host: int) -> None:
    table = make_table(n_train=400, n_host=n_host, n_guest=1)
    trained = train_with(JOB, SimulatedParties(JOB, table))
    assert table.loss(trained.coef) - table.loss(table.optimum()) < EXCESS


def test_rows_of_several_windows_are_dealt_as_the_parties_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealing, "window_rows", lambda *_: 8192)
    table = make_table(n_train=20_000, n_holdout=9000, n_host=1, n_guest=2)
    job = JOB.model_copy(update={"epochs": 3, "evaluate_every": 1, "algorithm": Lbfgs()})
    trained = train_with(job, SimulatedParties(job, table))

    assert trained.ended.loss == pytest.approx(table.loss(trained.coef), abs=1e-3)
