"""What a job of several classes tells beyond a job of two: a vector of labels, and a score of each row, for each class.

The attackers follow the protocol, so no policy of their own matters.
"""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.attacks.test_shares_streams import numbers_with_two_values
from tests.protocol.test_classes import N_CLASSES, make_job, make_tables
from tests.support.share_views import Randomness, run_session
from tests.support.three_machines import make_machines, run_machines
from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.base.errors import PolicyError
from trilateral.common.base.roles import Role
from trilateral.common.config.process import Policy
from trilateral.common.jobs.account import Account
from trilateral.common.jobs.ledger import Ledger
from trilateral.common.jobs.policy import PREDICTION, check_label_secrecy, label_secrecy, scored_points
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.protocol.messages import ElementPiece, Kind
from trilateral.common.shares import kernels
from trilateral.common.shares.keys import Purpose
from trilateral.common.shares.layout import untile

# --- the host subtracts the masked labels of two classes


def differences_of_labels(key: PrivateKey) -> tuple[NDArray[np.int64], FloatVector]:
    """Return D_q of the first class minus that of the second for each training row, and the true classes."""
    job = make_job(epochs=1, holdout=0.0)
    tables = make_tables(job)
    traffic = run_machines(make_machines(job, tables, key)).traffic
    sent = [
        message.elements
        for sender, _, message in traffic
        if sender is Role.GUEST and isinstance(message, ElementPiece) and message.kind is Kind.MASKED_COLUMNS
    ]
    n_guest = tables.guest.block.columns.shape[1]
    masked = np.concatenate([untile(piece, n_guest + N_CLASSES) for piece in sent])
    classes = tables.guest.block.labels
    assert classes is not None
    labels = masked[: len(classes), n_guest:].view(np.int64)
    return labels[:, 0] - labels[:, 1], classes


def with_one_mask(*arguments: Any) -> NDArray[np.uint64]:
    """Mask the labels of all classes of a row by the same number."""
    table, key, purpose, first_row, n_columns = arguments
    if purpose is not Purpose.LABELS:
        return MASK(*arguments)
    stream = kernels.stream(key, purpose, first_row, len(table) // n_columns, 1).reshape(-1, 1, 8)
    return np.asarray(table.reshape(-1, n_columns, 8) - stream).ravel()


MASK = kernels.mask


def test_the_difference_of_two_masked_labels_is_a_label_if_a_row_has_one_mask(
    private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "mask", with_one_mask)
    found, classes = differences_of_labels(private_key)
    assert (found == np.select([classes == 0, classes == 1], [-2, 2], 0)).all()


def test_each_class_has_a_mask_of_its_own_so_no_difference_is_a_label(private_key: PrivateKey) -> None:
    found, _ = differences_of_labels(private_key)
    assert (np.abs(found) > 2**32).mean() > 0.99


def test_no_number_of_a_stream_masks_two_values_of_all_classes(private_key: PrivateKey) -> None:
    job = make_job(epochs=4)
    tables = make_tables(job, n_rows=200)
    sessions = [run_session(job, tables, private_key, Randomness(None)) for _ in range(2)]
    assert numbers_with_two_values(*sessions) == 0


# --- the guest solves for the host's columns, by the scores of one job


def columns_from_scores(scores: FloatMatrix, weights: FloatMatrix) -> FloatMatrix:
    """Return what the scores of all classes say of the host's columns, if the guest knows the host's weights.

    It finds these from some rows that it knows; see test_features_from_scores.py.
    """
    return np.asarray(scores @ np.linalg.pinv(weights))


@pytest.mark.parametrize(("n_columns", "policy"), [(3, {"min_columns_per_point": 0.5}), (3, {}), (9, {})])
def test_the_scores_of_as_many_classes_as_columns_give_the_columns_unless_the_ledger_counts_each_class(
    n_columns: int, policy: dict[str, float], tmp_path: Any
) -> None:
    rng = np.random.default_rng(0)
    columns, weights = rng.normal(size=(200, n_columns)), rng.normal(size=(n_columns, N_CLASSES))
    found = columns_from_scores(columns @ weights, weights)
    account = Account(Ledger(tmp_path, Role.HOST), Policy.model_validate(policy), "people", Role.HOST)
    points = [f"class {number}" for number in range(N_CLASSES)]
    assert scored_points(make_job(), 100, Role.HOST) == N_CLASSES
    if n_columns == 3:
        np.testing.assert_allclose(found, columns)
        if policy:
            account.check_further(points, n_columns, PREDICTION)  # The laxer file of a host permits it.
            return
        with pytest.raises(PolicyError, match=r"policy\.min_columns_per_point.*3 more needed"):
            account.check_further(points, n_columns, PREDICTION)
    else:
        assert np.abs(found - columns).mean() > 0.3
        account.check_further(points, n_columns, PREDICTION)


# --- the host combines its weights for all classes


def test_the_equations_of_all_classes_count_against_the_labels_of_the_rarest_one() -> None:
    """300 columns: one model would leave the labels enough entropy, and the three together would not."""
    job = make_job(holdout=0.0)
    tables = make_tables(job, n_rows=40_000)
    secrecy = label_secrecy(job, tables.guest.block, secret_start=False)
    assert secrecy is not None
    classes = tables.guest.block.labels
    assert classes is not None
    rarest = min(range(N_CLASSES), key=lambda number: np.count_nonzero(classes == number))
    block = tables.guest.block.one_vs_rest()[rarest]
    alone = label_secrecy(job.model_copy(update={"classes": None}), block, secret_start=False)
    assert alone is not None
    assert secrecy.batch_bits == alone.batch_bits
    assert secrecy.n_equations(300) == 3 * 300 + 1
    check_label_secrecy(job, Policy(), alone, 300)
    with pytest.raises(PolicyError, match=r"policy\.min_label_bits: from its weights"):
        check_label_secrecy(job, Policy(), secrecy, 300)
    check_label_secrecy(job, Policy(min_label_bits=0), secrecy, 300)
