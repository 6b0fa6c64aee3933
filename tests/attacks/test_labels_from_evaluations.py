"""A log loss is a sum over hold-out rows. A host that chooses its part of the scores can make it spell out labels."""

import numpy as np
import pytest

from trilateral.common.base.arrays import FloatVector
from trilateral.common.protocol.evaluation import disclosed_log_loss, log_loss

N_ROWS, N_TARGETS = 1000, 40
UNIT = 2.0**14
"""Far above all that the guest's part of the scores and the other rows add up to."""


def labels_from(figure: float) -> FloatVector:
    """Read the labels of the first rows: a negative row with score z adds z to the sum, and a positive one nothing."""
    total = int(figure * N_ROWS / UNIT)
    return np.array([-1.0 if total >> bit & 1 else 1.0 for bit in range(N_TARGETS)])


@pytest.fixture(scope="module")
def rows() -> tuple[FloatVector, FloatVector]:
    """Scores with a hostile host's part for some rows, and labels."""
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(N_ROWS) < 0.3, 1.0, -1.0)
    scores = rng.normal(scale=2, size=N_ROWS)
    scores[:N_TARGETS] += UNIT * 2.0 ** np.arange(N_TARGETS)
    return scores, labels


def test_six_decimals_of_a_log_loss_without_limit_have_all_labels(rows: tuple[FloatVector, FloatVector]) -> None:
    scores, labels = rows
    np.testing.assert_array_equal(labels_from(round(log_loss(scores, labels), 6)), labels[:N_TARGETS])


def test_a_host_that_chooses_the_rows_reads_the_label_of_the_only_one_that_it_is_not_sure_of() -> None:
    """99 rows have extreme scores, and so labels that the host knows. It follows the protocol.

    `tests/integration/test_split_column.py` shows that the guest refuses such a job under `paillier`.
    """
    rng = np.random.default_rng(1)
    scores = rng.normal(scale=3, size=20_000)
    labels = np.where(rng.random(20_000) < 1 / (1 + np.exp(-scores)), 1.0, -1.0)
    sure = np.argsort(-np.abs(scores))[:99]
    targets = rng.choice(np.flatnonzero(np.abs(scores) < 2), 50, replace=False)
    guesses = []
    for target in targets:
        chosen = np.append(sure, target)
        told = 100 * disclosed_log_loss(scores[chosen], labels[chosen])
        known = log_loss(scores[sure], np.sign(scores[sure])) * 99
        guesses.append(1.0 if abs(told - known - np.logaddexp(0, -scores[target])) < 1e-3 else -1.0)
    np.testing.assert_array_equal(guesses, labels[targets])


def test_the_log_loss_that_leaves_the_guest_has_25_bits_for_all_rows_together(
    rows: tuple[FloatVector, FloatVector],
) -> None:
    scores, labels = rows
    figure = disclosed_log_loss(scores, labels)
    assert np.mean(labels_from(figure) == labels[:N_TARGETS]) < 0.8  # 70% are negative
    # No scores and labels give a larger figure.
    assert disclosed_log_loss(-1e300 * labels, labels) == 32.0
    assert figure * 1e6 == pytest.approx(round(figure * 1e6), abs=1e-3)
    assert 32e6 < 2**25
