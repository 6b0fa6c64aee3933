"""The host knows its features, and gets a product of its columns with the labels from each training.

Trainings of one dataset with other seeds are about other rows, and trainings with other columns of the host about other
sums: each gives as many new equations as the host has columns. Two attacks look for the labels that solve all of them.
A linear programme relaxes the labels to numbers between the two possible ones. It needs equations for about half of the
rows, and far fewer for rare labels. Reduction of a lattice uses that the labels are whole numbers and that the sums are
known to some 28 bits. It needs an equation for every three bits of the labels. In principle, one for every 28 bits
determines them.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flint import fmpz_mat
from scipy.optimize import linprog

from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.base.errors import PolicyError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import Policy
from trilateral.common.jobs.account import Account, training_equations
from trilateral.common.jobs.ledger import Ledger
from trilateral.common.protocol.batches import holdout_split
from trilateral.common.protocol.label_secrecy import LabelSecrecy, subset_bits
from trilateral.common.protocol.scales import GRADIENT_BITS


def account(folder: Path, policy: Policy) -> Account:
    return Account(Ledger(folder, Role.GUEST), policy, "customers", Role.GUEST)


def labels_of(n_rows: int, n_positive: int) -> FloatVector:
    labels = np.zeros(n_rows)
    labels[np.random.default_rng(1).choice(n_rows, n_positive, replace=False)] = 1
    return labels


def sums_of_trainings(X: FloatMatrix, labels: FloatVector, account: Account) -> Iterator[FloatVector]:
    """Yield X'y of each training that the guest's ledger permits. The guest has no features, so nothing is covered."""
    secrecy = LabelSecrecy([subset_bits(len(labels), int(labels.sum()))], 0)
    job = JobConfig(name="job", dataset=account.dataset)
    n_equations = training_equations(job, (len(X), 1), X.shape[1], secrecy)
    while True:
        try:
            account.spend_training(n_equations, account.max_equations(len(X), secrecy))
        except PolicyError:
            return
        yield X.T @ labels


# --- a linear programme, from trainings on different rows

N_ROWS, N_HOST, N_TRAININGS = 390, 2, 125
"""The default of `min_rows_per_feature` permits each of these trainings."""


def share_of_positives_found(share_of_positives: float, account: Account) -> float:
    X = np.random.default_rng(0).normal(size=(N_ROWS, N_HOST))
    labels = labels_of(N_ROWS, round(share_of_positives * N_ROWS))
    equations, sums = [np.ones((1, N_ROWS))], [labels.sum(keepdims=True)]
    for seed in range(N_TRAININGS):
        train, _ = holdout_split(N_ROWS, 0.2, seed)
        if (found := next(sums_of_trainings(X[train], labels[train], account), None)) is None:
            break
        equation = np.zeros((N_HOST, N_ROWS))
        equation[:, train] = X[train].T
        equations.append(equation)
        sums.append(found)
    solved = linprog(np.zeros(N_ROWS), A_eq=np.vstack(equations), b_eq=np.concatenate(sums), bounds=(0, 1))
    most_likely = np.argsort(-solved.x, kind="stable")[: int(labels.sum())]
    return float(labels[most_likely].mean())


@pytest.mark.parametrize("share_of_positives", [0.5, 0.2, 0.05])
def test_many_trainings_give_the_labels_away(share_of_positives: float, tmp_path: Path) -> None:
    unbounded = account(tmp_path, Policy(min_label_bits=0))
    assert share_of_positives_found(share_of_positives, unbounded) == 1


@pytest.mark.parametrize(("share_of_positives", "n_allowed", "most"), [(0.5, 2, 0.6), (0.2, 1, 0.3), (0.05, 0, 0.15)])
def test_the_guests_ledger_ends_trainings_before_a_linear_programme_finds_labels(
    share_of_positives: float, n_allowed: int, most: float, tmp_path: Path
) -> None:
    default = account(tmp_path, Policy())
    assert share_of_positives_found(share_of_positives, default) < most
    assert default.ledger.entry("customers").trainings == n_allowed


# --- a lattice, from trainings with different columns of the host

LABELS = labels_of(100, 20)
MAX_TRAININGS = 22
ONE = 10
"""Length that a label of 1 has in the lattice."""
WEIGHT = 8
"""Length that an error as large as that of a sum has in the lattice."""


def labels_found(account: Account) -> FloatVector | None:
    """Train with one column at a time, and find the labels by lattice reduction (embedding of the closest vector)."""
    n_rows, n_positive = len(LABELS), int(LABELS.sum())
    rng = np.random.default_rng(0)
    columns, sums = [np.ones(n_rows)], [float(n_positive)]
    error = 4 * n_rows / 2.0**GRADIENT_BITS
    for _ in range(MAX_TRAININGS):
        column = rng.normal(size=n_rows)
        if (found := next(sums_of_trainings(column[:, None], LABELS, account), None)) is None:
            break
        columns.append(column)
        sums.append(float(found[0]) + rng.uniform(-error, error))
    # A row for each label: its own coordinate, and its part of each sum. The last row leads to the labels' mean.
    equations = np.rint(np.transpose(columns) * WEIGHT / error).astype(object)
    target = np.rint(np.array(sums) * WEIGHT / error).astype(object)
    mean = round(ONE * n_positive / n_rows)
    basis = [[ONE * (i == j) for j in range(n_rows)] + [0, *map(int, equations[i])] for i in range(n_rows)]
    basis.append([mean] * n_rows + [mean, *map(int, target)])
    reduced = fmpz_mat(basis).lll(False, 0.999, 0.501)
    for row in np.array([[int(each) for each in row] for row in reduced.tolist()], dtype=object):
        if abs(row[n_rows]) == mean:
            labels = np.asarray(mean - np.sign(row[n_rows]) * row[:n_rows], dtype=np.float64) / ONE
            if set(labels.tolist()) == {0.0, 1.0}:
                return labels
    return None


def test_a_lattice_gives_all_labels_away_after_an_equation_for_every_three_bits(tmp_path: Path) -> None:
    lax = account(tmp_path, Policy(min_label_bits=3))
    found = labels_found(lax)
    assert found is not None
    assert np.array_equal(found, LABELS)
    assert lax.ledger.entry("customers").equations == MAX_TRAININGS


def test_the_guests_ledger_ends_trainings_before_a_lattice_gives_labels_away(tmp_path: Path) -> None:
    default = account(tmp_path, Policy())
    assert labels_found(default) is None
    assert default.ledger.entry("customers").equations == 1
