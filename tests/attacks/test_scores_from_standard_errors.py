"""The host reads the score of one row in the covariance of its own weights, which the standard errors come from.

Two of the host's categories have one row in common. Their element of the information X'WX is the slope W of that row
alone, and W = sigma(u) sigma(-u) gives |u|. From the covariance that it is told, the host gets its block of the
information, less what the guest's columns explain of it. Of rare categories, that is next to nothing.
"""

from pathlib import Path

import numpy as np
import pytest

from tests.attacks.test_labels_from_the_hosts_steps import LAXEST
from tests.support.three_machines import Tables, make_machines, run_machines
from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import PolicyError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.dataset import DatasetConfig, PreprocessingConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import Policy
from trilateral.common.data.features import Features
from trilateral.common.data.party_data import PreparedData, make_party_data
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.data.tables.table import PartyTable
from trilateral.common.jobs.account import Account, training_equations
from trilateral.common.jobs.ledger import Ledger
from trilateral.common.jobs.policy import check_job, label_secrecy
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.protocol.logistic import probability, slope
from trilateral.common.shares.information import unpack

JOB = JobConfig(
    name="job", dataset="data", protocol="shares", inference=True, holdout=0.0, tolerance=1e-9, epochs=60, max_score=24
)
N_ROWS, N_OF_CATEGORY, N_PAIRS = 4000, 30, 20


def attacked() -> tuple[PreparedData, PreparedData]:
    """A host with pairs of categories, each of which has one row in common, and a guest with a feature."""
    rng = np.random.default_rng(3)
    flags = np.zeros((N_ROWS, 2 * N_PAIRS))
    others = N_PAIRS + rng.permutation(N_ROWS - N_PAIRS)[: 2 * N_PAIRS * N_OF_CATEGORY].reshape(-1, N_OF_CATEGORY)
    for column, rows in enumerate(others):
        flags[[column // 2, *rows], column] = 1  # Row p is in both categories of pair p.
    hidden = rng.normal(size=N_ROWS)
    labels = np.where(rng.random(N_ROWS) < probability(1.5 * hidden - 0.3), 1.0, -1.0)
    ids = Ids.of([f"id-{row:06d}" for row in range(N_ROWS)])
    config = PreprocessingConfig(clip=None)
    host = Features({f"c{column:02d}": flags[:, column] for column in range(2 * N_PAIRS)}, N_ROWS)
    return (
        make_party_data(PartyTable(ids, host, None), config, JOB),
        make_party_data(PartyTable(ids, Features({"hidden": hidden}, N_ROWS), labels), config, JOB),
    )


def read_slopes(host: PreparedData, covariance: FloatVector) -> FloatVector:
    """What the host reads as W of the row that each pair of its categories has in common."""
    steps = host.preprocessing
    assert steps.directions is not None
    to_terms = np.diag(1 / steps.scale) @ steps.directions
    block = np.linalg.inv(to_terms @ unpack(covariance, len(host.block.penalty)) @ to_terms.T)
    # The intercept explains A B / (n W), with A and B the sums of W over the rows of each.
    total = np.trace(block) / (2 * N_PAIRS * N_OF_CATEGORY) * N_ROWS
    return np.array([block[k, k + 1] + block[k, k] * block[k + 1, k + 1] / total for k in range(0, 2 * N_PAIRS, 2)])


def test_a_covariance_shows_the_scores_of_rows_that_two_categories_share(private_key: PrivateKey) -> None:
    host, guest = attacked()
    outcome = run_machines(make_machines(JOB, Tables(host, guest), private_key))
    told = outcome.results[Role.HOST].inference
    assert told is not None
    read = read_slopes(host, told.covariance)

    scores = sum(
        np.asarray(data.block.columns) @ outcome.results[party].coef
        for party, data in zip(PARTIES, (host, guest), strict=True)
    )
    true = slope(np.asarray(scores))[:N_PAIRS]
    assert np.corrcoef(read, true)[0, 1] > 0.99
    assert np.abs(read - true).max() < 0.01


@pytest.mark.parametrize("role", PARTIES)
def test_no_party_lets_the_other_learn_the_accuracy_of_its_weights_by_default(role: Role) -> None:
    table = DatasetConfig(path=Path("never-read.csv"))
    with pytest.raises(PolicyError, match=r"policy\.share_inference: .* set `inference: false`"):
        check_job(JOB, Policy(), table, role)
    check_job(JOB.model_copy(update={"inference": False}), Policy(), table, role)
    check_job(JOB, Policy(share_inference=True), table, role)


def test_the_laxest_file_of_the_host_does_not_help_it_at_the_guest(tmp_path: Path) -> None:
    """The guest counts an equation for each pair of the host's columns, under its own policy."""
    host, guest = attacked()
    secrecy = label_secrecy(JOB, guest.block, secret_start=False)
    n_host = host.block.columns.shape[1]
    shape = len(guest.block.columns), guest.block.columns.shape[1]

    check_job(JOB, LAXEST.model_copy(update={"share_inference": True}), DatasetConfig(path=Path("t.csv")), Role.HOST)
    account = Account(Ledger(tmp_path, Role.GUEST), Policy(share_inference=True), "data", Role.GUEST)
    most = account.max_equations(len(guest.block.columns), secrecy)
    n_equations = training_equations(JOB, shape, n_host, secrecy)
    assert n_equations == n_host + 1 + n_host * (n_host + 1) // 2
    with pytest.raises(PolicyError, match=r"policy\.min_label_bits"):
        account.check_training(n_equations, most)
    # A host with six columns that uses the permission once has used half of it.
    account.spend_training(training_equations(JOB, shape, 6, secrecy), most)
    account.spend_training(training_equations(JOB, shape, 6, secrecy), most)
    with pytest.raises(PolicyError, match=r"policy\.min_label_bits"):
        account.spend_training(training_equations(JOB, shape, 6, secrecy), most)
