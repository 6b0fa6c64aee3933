"""The same job gives the same model by plain numpy and by three state machines, whatever the packing."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.three_machines import make_tables, train
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, Lbfgs, Sgd, Sqn
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.protocol.messages import Kind, VectorPiece
from trilateral.coordinator.numpy_training import train_plain

ALGORITHMS: dict[str, dict[str, Any]] = {
    "sgd": {"algorithm": Sgd(learning_rate=0.5, decay=0.05), "batch": 30},
    "sqn": {"algorithm": Sqn(learning_rate=0.3, interval=2, memory=3), "batch": 30},
    "sqn with its own curvature batch": {"algorithm": Sqn(learning_rate=0.3, curvature_batch=41), "batch": 24},
    "lbfgs": {"algorithm": Lbfgs()},
}


def make_job(**settings: Any) -> JobConfig:
    return JobConfig(**{"name": "test", "dataset": "made", "key_bits": 1024, "seed": 5, "epochs": 6} | settings)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("slots", [None, 1, 3])
def test_machines_give_the_model_of_plain_numpy(name: str, slots: int | None, private_key: PrivateKey) -> None:
    job = make_job(**ALGORITHMS[name], slots=slots, l2=0.02)
    tables = make_tables(job)
    outcome = train(job, tables, private_key)
    plain = train_plain(job, tables.joined.columns, tables.joined.labels, tables.joined.penalty, start=tables.start)
    np.testing.assert_allclose(outcome.coef, plain.coef, rtol=0, atol=1e-6)
    np.testing.assert_allclose(
        tables.joined.columns @ outcome.coef, tables.joined.columns @ plain.coef, rtol=0, atol=1e-5
    )
    assert outcome.ended.loss == pytest.approx(plain.loss, abs=1e-6)
    assert outcome.ended.epochs == plain.epochs


@pytest.mark.parametrize("whiten", [True, False])
def test_the_intercept_may_be_left_out(whiten: bool, private_key: PrivateKey) -> None:
    job = make_job(intercept=False)
    tables = make_tables(job, whiten=whiten)
    assert tables.joined.columns.shape[1] == 5
    outcome = train(job, tables, private_key)
    plain = train_plain(job, tables.joined.columns, tables.joined.labels, tables.joined.penalty, start=tables.start)
    np.testing.assert_allclose(outcome.coef, plain.coef, rtol=0, atol=1e-6)


def test_the_penalty_means_the_same_with_whitening_and_without(private_key: PrivateKey) -> None:
    weights = []
    for whiten in (True, False):
        job = make_job(l2=0.1, tolerance=1e-12, epochs=30)
        tables = make_tables(job, whiten=whiten)
        outcome = train(job, tables, private_key)
        for data, role in ((tables.host, Role.HOST), (tables.guest, Role.GUEST)):
            weights.append(data.preprocessing.to_features(outcome.results[role].coef)[0])
    np.testing.assert_allclose(np.concatenate(weights[:2]), np.concatenate(weights[2:]), rtol=0, atol=1e-5)


def test_the_reference_cipher_gives_the_same_model() -> None:
    from trilateral.common.paillier.keys import generate_private_key

    job = make_job(cipher="reference", key_bits=512, epochs=3)
    tables = make_tables(job, n_rows=40)
    outcome = train(job, tables, generate_private_key(512))
    plain = train_plain(job, tables.joined.columns, tables.joined.labels, tables.joined.penalty, start=tables.start)
    np.testing.assert_allclose(outcome.coef, plain.coef, rtol=0, atol=1e-6)


def test_a_round_sends_the_ciphertexts_that_the_paper_counts(private_key: PrivateKey) -> None:
    """With k = 1: 2|S| + 1 between the parties and 2 |S_H| more when curvature is due; n + 1 and n to C."""
    job = make_job(algorithm=Sqn(interval=2), batch=30, slots=1, epochs=4, holdout=0.0)
    outcome = train(job, make_tables(job, n_rows=90), private_key)
    counts: dict[tuple[int, Kind], int] = {}
    for _, _, message in outcome.traffic:
        if isinstance(message, VectorPiece):
            key = message.key.round, message.kind
            counts[key] = counts.get(key, 0) + len(message.ciphertexts)
    n_columns = len(outcome.coef)
    first = {kind: count for (number, kind), count in counts.items() if number == 1}
    assert first == {Kind.SCORES: 30, Kind.SQUARES: 1, Kind.RESIDUAL: 30, Kind.GRADIENT: n_columns, Kind.LOSS: 1}
    fourth = {kind: count for (number, kind), count in counts.items() if number == 4}
    assert fourth == first | {Kind.SCORE_CHANGE: 30, Kind.TOTAL_CHANGE: 30, Kind.CURVATURE: n_columns}


def test_the_guest_gets_the_scores_of_the_holdout_rows_with_the_hosts_part_rounded(private_key: PrivateKey) -> None:
    job = make_job(holdout=0.25)
    tables = make_tables(job)
    outcome = train(job, tables, private_key)
    host, guest = (np.asarray(each.block.holdout_columns) for each in (tables.host, tables.guest))
    scores = outcome.results[Role.GUEST].holdout_scores
    assert scores is not None
    host_part = host @ outcome.coef[: host.shape[1]]
    assert np.abs(host_part).max() < 16
    rounded = np.rint(host_part * 2**12) / 2**12
    np.testing.assert_allclose(scores, rounded + guest @ outcome.coef[host.shape[1] :], atol=1e-12)
    assert outcome.results[Role.HOST].holdout_scores is None


def test_lbfgs_reports_the_loss_that_its_exact_steps_reach(private_key: PrivateKey) -> None:
    """Not that of the trial points, which may be worse than where it stands."""
    outcome = train(make_job(), replace(make_tables(make_job()), start=None), private_key)
    losses = [report.loss for report in outcome.reports if report.loss is not None]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] == pytest.approx(np.log(2))
    assert losses[-1] == outcome.ended.loss


def test_divergence_goes_back_and_ends_in_a_model(private_key: PrivateKey) -> None:
    """A rate so high that scores leave their fixed-point range, not only the loss its."""
    job = make_job(algorithm=Sgd(learning_rate=60.0), batch=30, epochs=20)
    tables = make_tables(job)
    outcome = train(job, tables, private_key)
    notes = [report.note for report in outcome.reports if report.note]
    assert notes
    assert outcome.ended.loss is not None
    assert outcome.ended.loss < np.log(2)


def test_giving_up_fails_the_job_with_the_way_out(private_key: PrivateKey) -> None:
    job = make_job(algorithm=Sgd(learning_rate=1e9), batch=30, epochs=20)
    outcome = train(job, make_tables(job), private_key)
    assert outcome.ended.loss is None
    assert "learning rate" in outcome.ended.reason
    assert not outcome.results
