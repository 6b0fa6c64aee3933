"""The host knows its features, and gets a product of its columns with the labels from each training.

Every training of one dataset with another seed is about other rows: as many new equations as the host has columns. The
host looks for labels between the two possible ones that solve all equations. With equations for about half of the rows
this linear programme has one solution, and for rare labels far fewer suffice.
"""

from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog

from trilateral.common.base.errors import PolicyError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import Policy
from trilateral.common.jobs.ledger import Ledger
from trilateral.common.jobs.policy import Account, training_equations, unknown_values
from trilateral.common.protocol.batches import holdout_split

N_ROWS, N_HOST, N_TRAININGS = 390, 10, 25
"""The default of `min_rows_per_feature` permits each of these trainings."""


def share_of_positives_found(share_of_positives: float, account: Account) -> float:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, N_HOST))
    n_positive = round(share_of_positives * N_ROWS)
    y = -np.ones(N_ROWS)
    y[rng.choice(N_ROWS, n_positive, replace=False)] = 1
    equations, sums = [], []
    for seed in range(N_TRAININGS):
        job = JobConfig(name="job", dataset=account.dataset, seed=seed)
        train, _ = holdout_split(N_ROWS, job.holdout, seed)
        try:
            account.spend_training(training_equations(job, len(train), N_HOST), unknown_values(len(train), y[train]))
        except PolicyError:
            break
        equation = np.zeros((N_HOST, N_ROWS))
        equation[:, train] = X[train].T
        equations.append(equation)
        sums.append(equation @ (y > 0))
    solved = linprog(np.ones(N_ROWS), A_eq=np.vstack(equations), b_eq=np.concatenate(sums), bounds=(0, 1))
    most_likely = np.argsort(-solved.x)[:n_positive]
    return float(np.mean(y[most_likely] > 0))


def account(folder: Path, policy: Policy) -> Account:
    return Account(Ledger(folder, Role.GUEST), policy, "customers", Role.GUEST)


@pytest.mark.parametrize("share_of_positives", [0.5, 0.2, 0.05])
def test_many_trainings_give_the_labels_away(share_of_positives: float, tmp_path: Path) -> None:
    unbounded = account(tmp_path, Policy(min_rows_per_equation=0.001))
    assert share_of_positives_found(share_of_positives, unbounded) == 1


@pytest.mark.parametrize(("share_of_positives", "n_allowed", "most"), [(0.5, 10, 0.7), (0.2, 7, 0.55), (0.05, 3, 0.3)])
def test_the_guests_ledger_ends_trainings_before_the_equations_have_one_solution(
    share_of_positives: float, n_allowed: int, most: float, tmp_path: Path
) -> None:
    default = account(tmp_path, Policy())
    assert share_of_positives_found(share_of_positives, default) < most
    assert default.ledger.entry("customers").trainings == n_allowed
