"""Whole trainings on shares in one process: what each round shows, and the model that comes of it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.shares_rounds import SharedRound, cut_small, read_rounds
from tests.support.three_machines import Outcome, Tables, make_machines, make_tables, run_machines
from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig, Sgd
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.protocol.batches import Batches
from trilateral.common.protocol.messages import BeginRound, ElementPiece, FinishJob, Kind, RowsDone, StepTaken
from trilateral.common.protocol.shares.rows import RowPlan
from trilateral.common.shares.format import Format

SETTINGS: dict[str, dict[str, Any]] = {
    "lbfgs": {},
    "lbfgs with a penalty": {"l2": 0.1},
    "lbfgs without an intercept": {"intercept": False},
    "sgd": {"algorithm": Sgd(learning_rate=0.5, decay=0.05), "batch": 30, "epochs": 4},
    "sgd with a penalty": {"algorithm": Sgd(learning_rate=0.5), "batch": 41, "epochs": 3, "l2": 0.02},
    "sgd with evaluations": {"algorithm": Sgd(learning_rate=0.5), "batch": 30, "epochs": 4, "evaluate_every": 1},
    "evaluations": {"evaluate_every": 2},
    "no hold-out rows": {"holdout": 0.0},
    "small scores": {"max_score": 8},
    "large scores": {"max_score": 24, "evaluate_every": 3},
}
WEIGHTS = {"none": None, "whole": 0, "fractions": 6}


def make_job(**settings: Any) -> JobConfig:
    return JobConfig(**{"name": "shares", "dataset": "made", "protocol": "shares", "seed": 5, "epochs": 12} | settings)


def weigh(tables: Tables, weight_bits: int | None) -> Tables:
    """Give the guest's rows sample weights: some rows count nothing, some much."""
    if weight_bits is None:
        return tables
    block = tables.guest.block
    drawn = np.random.default_rng(3).exponential(1.5, len(block.columns))
    weights = np.rint(np.minimum(drawn, 4) * 2**weight_bits) / 2**weight_bits
    weighted = replace(block, sample_weights=weights, weight_bits=weight_bits)
    return Tables(tables.host, replace(tables.guest, block=weighted))


def train(job: JobConfig, tables: Tables, key: PrivateKey) -> Outcome:
    return run_machines(make_machines(job, replace(tables, start=None), key))


def sample_weights(tables: Tables) -> FloatVector:
    weights = tables.guest.block.sample_weights
    return np.ones(len(tables.joined.labels)) if weights is None else weights


def mean_loss(tables: Tables, job: JobConfig, w: FloatVector, rows: Any = slice(None)) -> float:
    joined, c = tables.joined, sample_weights(tables)
    losses = np.logaddexp(0.0, -joined.labels[rows] * (joined.columns[rows] @ w))
    mean = float(c[rows] @ losses) / (c.mean() * len(losses))
    return float(mean + job.l2 / 2 * (w @ joined.penalty @ w))


def mean_gradient(tables: Tables, job: JobConfig, w: FloatVector, rows: Any = slice(None)) -> FloatVector:
    joined, c = tables.joined, sample_weights(tables)
    X, y = joined.columns[rows], joined.labels[rows]
    residual = c[rows] * (1 / (1 + np.exp(-(X @ w))) - (y > 0))
    gradient: FloatVector = X.T @ residual / (c.mean() * len(y)) + job.l2 * joined.penalty @ w
    return gradient


def optimum(tables: Tables, job: JobConfig) -> FloatVector:
    """Newton's method on the joined columns."""
    joined, c = tables.joined, sample_weights(tables)
    w = np.zeros(joined.columns.shape[1])
    for _ in range(30):
        p = 1 / (1 + np.exp(-(joined.columns @ w)))
        hessian = (joined.columns * (c * p * (1 - p))[:, np.newaxis]).T @ joined.columns / c.sum()
        w = w - np.linalg.solve(hessian + job.l2 * joined.penalty, mean_gradient(tables, job, w))
    return w


def format_of(job: JobConfig, tables: Tables) -> Format:
    n_rows = max(len(tables.joined.labels), len(tables.joined.holdout_labels))
    return Format.of(n_rows, job.max_score, tables.guest.block.weight_bits)


def loss_step(fmt: Format, n_rows: int) -> float:
    """Give the smallest difference between two opened sums of losses: the parties drop the bits below it."""
    return fmt.loss_unit * 2.0 ** (fmt.loss_drop(n_rows) - fmt.loss_bits)


def check_round(each: SharedRound, job: JobConfig, tables: Tables) -> None:
    """Compare with numpy, up to the rounding of columns and the bits of the sums that the parties drop."""
    joined, fmt = tables.joined, format_of(job, tables)
    batches = Batches.of(job, len(joined.labels), tables.host.block.folds)
    plan = RowPlan.of(batches, len(joined.holdout_labels))
    rows = batches.rows(each.asked.batch)
    total = sample_weights(tables).mean() * len(rows)
    size = 1 + float(np.linalg.norm(each.point))
    rounding = 4 * 2.0**-fmt.f_x * size * float(sample_weights(tables).max()) / np.sqrt(len(rows))
    assert each.seen.loss is not None
    dropped = loss_step(fmt, plan.training.n_rows) / total
    expected = mean_loss(tables, job, each.point, rows)
    if each.asked.shares is not None and each.asked.shares.weights is None:
        expected = np.log(2)  # The coordinator does not know the weight of a batch.
    assert each.seen.loss == pytest.approx(expected, abs=rounding + 3 * dropped + 2e-6)
    if each.asked.gradient:
        assert each.seen.gradient is not None
        dropped = 2.0 ** (fmt.gradient_drop(plan.training.n_rows) - fmt.gradient_bits) / total
        expected_gradient = mean_gradient(tables, job, each.point, rows)
        np.testing.assert_allclose(each.seen.gradient, expected_gradient, rtol=0, atol=rounding + 3 * dropped)
    assert (each.seen.holdout_loss is None) == (each.holdout_point is None)
    if each.holdout_point is not None and each.seen.holdout_loss is not None:
        n_holdout, holdout = len(joined.holdout_labels), fmt.holdout
        dropped = loss_step(holdout, plan.holdout.n_rows) / n_holdout
        expected = np.logaddexp(0.0, -joined.holdout_labels * (joined.holdout_columns @ each.holdout_point)).mean()
        noise = 4 * 2.0**-fmt.f_x * (1 + np.linalg.norm(each.holdout_point)) / np.sqrt(n_holdout) + 3 * dropped
        assert each.seen.holdout_loss == pytest.approx(expected, abs=noise + 2e-6)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("n_rows", [150, 331])
def test_each_round_shows_what_numpy_computes(
    settings: str, weights: str, n_rows: int, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_small(monkeypatch)
    job = make_job(**SETTINGS[settings])
    tables = weigh(make_tables(job, n_rows=n_rows, n_host=2, n_guest=3), WEIGHTS[weights])
    outcome = train(job, tables, private_key)
    assert outcome.ended.loss is not None, outcome.ended.reason
    rounds = list(read_rounds(outcome, format_of(job, tables)))
    assert rounds
    for each in rounds:
        check_round(each, job, tables)
    assert any(each.holdout_point is not None for each in rounds) == (job.evaluate_every is not None)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("l2", [0.0, 0.05])
def test_the_model_is_that_of_newtons_method(weights: str, l2: float, private_key: PrivateKey) -> None:
    job = make_job(l2=l2, epochs=40, tolerance=1e-6)
    tables = weigh(make_tables(job, n_rows=3000), WEIGHTS[weights])
    outcome = train(job, tables, private_key)
    best = mean_loss(tables, job, optimum(tables, job))
    n_rows = len(tables.joined.labels)
    step = loss_step(format_of(job, tables), n_rows) / (sample_weights(tables).mean() * n_rows)
    # The opened loss is a whole number of steps, with a standard deviation of 0.6 of them. Sample weights widen a step.
    assert outcome.ended.loss == pytest.approx(best, abs=4 * step + 3e-6)
    assert mean_loss(tables, job, outcome.coef) <= best + 3e-6


def test_one_host_column_and_a_guest_with_the_intercept_alone(private_key: PrivateKey) -> None:
    job = make_job()
    tables = make_tables(job, n_rows=500, n_host=1, n_guest=1)
    block = replace(
        tables.guest.block,
        columns=np.asarray(tables.guest.block.columns)[:, -1:],
        holdout_columns=np.asarray(tables.guest.block.holdout_columns)[:, -1:],
        penalty=np.zeros((1, 1)),
    )
    tables = Tables(tables.host, replace(tables.guest, block=block))
    outcome = train(job, tables, private_key)
    assert mean_loss(tables, job, outcome.coef) <= mean_loss(tables, job, optimum(tables, job)) + 2e-5


def test_the_guest_gets_the_scores_of_the_holdout_rows_once_and_no_metrics_before(private_key: PrivateKey) -> None:
    job = make_job(holdout=0.25, evaluate_every=1)
    tables = make_tables(job)
    outcome = train(job, tables, private_key)
    host, guest = (np.asarray(each.block.holdout_columns) for each in (tables.host, tables.guest))
    scores = outcome.results[Role.GUEST].holdout_scores
    assert scores is not None
    rounded = np.rint(host @ outcome.coef[: host.shape[1]] * 2**12) / 2**12
    np.testing.assert_allclose(scores, rounded + guest @ outcome.coef[host.shape[1] :], atol=1e-12)
    assert not outcome.results[Role.GUEST].evaluations
    assert outcome.results[Role.HOST].holdout_scores is None


def test_many_more_holdout_rows_than_training_rows_narrow_no_range_and_wrap_no_loss(private_key: PrivateKey) -> None:
    job = make_job(holdout=0.98, evaluate_every=1, max_score=8)
    tables = make_tables(job, n_rows=100_000, n_host=2, n_guest=2)
    outcome = train(job, tables, private_key)
    assert outcome.ended.loss is not None, outcome.ended.reason
    assert not [report.note for report in outcome.reports if report.note]
    rounds = list(read_rounds(outcome, format_of(job, tables)))
    for each in rounds:
        check_round(each, job, tables)
    assert sum(each.holdout_point is not None for each in rounds) >= 3


def test_sgd_in_small_batches_with_a_few_heavy_rows_trains_a_model(private_key: PrivateKey) -> None:
    """The loss of a batch then depends on how many heavy rows it has more than on the model."""
    job = make_job(algorithm=Sgd(learning_rate=0.2), batch=20, epochs=6, tolerance=0)
    tables = make_tables(job, n_rows=1500)
    block = tables.guest.block
    weights = np.where(np.arange(len(block.columns)) % 60 == 0, 24.0, 0.25)
    tables = replace(tables, guest=replace(tables.guest, block=replace(block, sample_weights=weights, weight_bits=6)))
    outcome = train(job, tables, private_key)
    assert outcome.ended.loss is not None, outcome.ended.reason
    assert not [report.note for report in outcome.reports if report.note]
    assert mean_loss(tables, job, outcome.coef) <= mean_loss(tables, job, optimum(tables, job)) + 0.1


def test_patience_ends_a_training_at_the_best_point(private_key: PrivateKey) -> None:
    job = make_job(algorithm=Sgd(learning_rate=0.5), batch=20, epochs=200, evaluate_every=1, patience=2, tolerance=0)
    tables = make_tables(job, n_rows=60)
    outcome = train(job, tables, private_key)
    assert outcome.ended.epochs < 200
    rounds = [each for each in read_rounds(outcome, format_of(job, tables)) if each.seen.holdout_loss is not None]
    best = min(rounds, key=lambda each: each.seen.holdout_loss or 0)
    assert best.holdout_point is not None
    np.testing.assert_allclose(outcome.coef, best.holdout_point, atol=1e-6)


# --- what travels


def test_no_party_is_told_a_step_a_loss_or_a_point(private_key: PrivateKey) -> None:
    outcome = train(make_job(evaluate_every=1), make_tables(make_job()), private_key)
    for _, to, message in outcome.traffic:
        if to in PARTIES and isinstance(message, BeginRound):
            assert not message.step.size
            assert (message.loss, message.evaluate_at, message.direction) == (None, None, None)
        if to in PARTIES and isinstance(message, FinishJob):
            assert not message.step.size
            assert message.round_loss is None
        if isinstance(message, StepTaken):
            asked = message.asked
            assert (asked.shares if isinstance(asked, BeginRound) else asked.share) is None


def test_pieces_under_way_stay_within_the_window(private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_small(monkeypatch, block_rows=16, window=3)
    tables = make_tables(make_job(), n_rows=700)
    outcome = train(make_job(epochs=3), tables, private_key)
    scored: dict[Any, int] = {}
    done: dict[Any, int] = {}
    reports = 0
    for sender, _, message in outcome.traffic:
        reports += isinstance(message, RowsDone)
        if isinstance(message, ElementPiece) and message.kind is Kind.MASKED_SCORES:
            key = sender, message.key
            scored[key] = scored.get(key, 0) + 1
        elif isinstance(message, ElementPiece) and message.kind is Kind.MASKED_RESIDUAL:
            key = Role.GUEST if sender is Role.HOST else Role.HOST, message.key
            done[key] = done.get(key, 0) + 1
            assert scored[key] - done[key] <= 3
    assert max(scored.values()) == 35
    assert reports > 35


def test_the_masks_of_two_sessions_have_nothing_in_common(private_key: PrivateKey) -> None:
    job, tables = make_job(epochs=2), make_tables(make_job())
    sent: list[set[bytes]] = []
    for _ in range(2):
        pieces = [message for _, _, message in train(job, tables, private_key).traffic]
        sent.append({piece.elements.tobytes() for piece in pieces if isinstance(piece, ElementPiece)} - {b""})
    assert not sent[0] & sent[1]
