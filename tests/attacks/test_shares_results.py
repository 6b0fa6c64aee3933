"""The host finds the rare labels in the result of a training on shares, which is all that it learns.

At the optimum, X'(sigma(u) - y) + m lambda P w = 0 for the host's columns X. If the guest has no features, u = X w + b,
where b follows from the number of positive rows. So the host knows X'y, the sum of its own rows that are positive.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

from tests.attacks.test_labels_from_the_hosts_steps import LAXEST
from tests.support.frames import features_of
from tests.support.three_machines import REAL, Outcome, run_machines, seeds_of
from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import PreprocessingConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import Policy
from trilateral.common.data.party_data import PreparedData, make_party_data
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.data.tables.table import PartyTable
from trilateral.common.jobs.policy import check_peer, label_secrecy
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.protocol.logistic import probability
from trilateral.common.protocol.messages import BeginRound, Machine

JOB = JobConfig(name="job", dataset="data", protocol="shares", epochs=40, tolerance=1e-9, l2=1e-3, holdout=0.0)
N_ROWS = 3000
WITHOUT_RULE = Policy(min_label_bits=0)


@dataclass
class Attacked:
    host: PreparedData
    guest: PreparedData
    outcome: Outcome

    @property
    def positives(self) -> set[int]:
        assert self.guest.block.labels is not None
        return set(np.flatnonzero(self.guest.block.labels > 0).tolist())


def attacked(n_host: int, n_positive: int, private_key: PrivateKey, guest: Policy, host: Policy = LAXEST) -> Attacked:
    """Train with a guest that has no features, under the policies of both."""
    rng = np.random.default_rng(1)
    labels = np.full(N_ROWS, -1.0)
    labels[rng.choice(N_ROWS, n_positive, replace=False)] = 1.0
    ids = [f"id-{row:06d}" for row in range(N_ROWS)]
    features = pd.DataFrame(rng.normal(size=(N_ROWS, n_host)), columns=[f"x{j}" for j in range(n_host)])
    preprocessing = PreprocessingConfig(clip=None)
    data = {
        Role.HOST: make_party_data(PartyTable(Ids.of(ids), features_of(features), None), preprocessing, JOB),
        Role.GUEST: make_party_data(PartyTable(Ids.of(ids), features_of(features[[]]), labels), preprocessing, JOB),
    }
    policies = {Role.HOST: host, Role.GUEST: guest}

    def check(role: Role, n_columns: int) -> None:
        secrecy = label_secrecy(JOB, data[role].block, secret_start=True)
        check_peer(JOB, policies[role], N_ROWS, n_columns, role, secrecy=secrecy)

    coordinator = REAL.coordinator(JOB, private_key)
    seeds = seeds_of(coordinator)
    machines: dict[Role, Machine] = {
        Role.COORDINATOR: coordinator,
        Role.HOST: REAL.host(
            JOB, data[Role.HOST], private_key, seed=seeds[Role.HOST], check_peer=lambda n: check(Role.HOST, n)
        ),
        Role.GUEST: REAL.guest(
            JOB, data[Role.GUEST], private_key, seed=seeds[Role.GUEST], check_peer=lambda n: check(Role.GUEST, n)
        ),
    }
    return Attacked(data[Role.HOST], data[Role.GUEST], run_machines(machines))


def find_positives(host: PreparedData, coef: FloatVector, n_positive: int) -> set[int]:
    """Return the rows whose sum is closest to X'y: greedily, then with single exchanges."""
    columns = np.asarray(host.block.columns)
    scores = columns @ coef
    low, high = -30.0, 30.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if probability(scores + middle).sum() < n_positive else (low, middle)
    penalty = N_ROWS * JOB.l2 * (host.block.penalty @ coef)
    return _rows_of_sum(columns, columns.T @ probability(scores + low) + penalty, n_positive)


def _rows_of_sum(columns: FloatMatrix, target: FloatVector, count: int) -> set[int]:
    chosen: list[int] = []
    rest = target.copy()
    for _ in range(count):
        fit = columns @ rest / np.square(columns).sum(axis=1)
        fit[chosen] = -np.inf
        chosen.append(int(fit.argmax()))
        rest -= columns[chosen[-1]]
    for _ in range(3):
        for place in range(count):
            rest += columns[chosen[place]]
            chosen[place] = int(np.square(columns - rest).sum(axis=1).argmin())
            rest -= columns[chosen[place]]
    return set(chosen)


@pytest.mark.parametrize("host_policy", [Policy(), LAXEST], ids=["default host", "lax host"])
def test_without_the_rule_the_result_gives_rare_labels_away(host_policy: Policy, private_key: PrivateKey) -> None:
    training = attacked(100, 10, private_key, WITHOUT_RULE, host_policy)
    coef = training.outcome.results[Role.HOST].coef
    assert find_positives(training.host, coef, 10) == training.positives


@pytest.mark.parametrize("host_policy", [Policy(), LAXEST], ids=["default host", "lax host"])
def test_the_guests_default_policy_refuses_the_job_before_the_first_round(
    host_policy: Policy, private_key: PrivateKey
) -> None:
    training = attacked(100, 10, private_key, Policy(), host_policy)
    assert training.outcome.ended.loss is None
    assert "policy.min_label_bits" in training.outcome.ended.reason
    assert not any(isinstance(message, BeginRound) for _, _, message in training.outcome.traffic)


def test_the_most_columns_that_the_default_policy_allows_find_no_labels(private_key: PrivateKey) -> None:
    n_positive = 300
    training = attacked(1, n_positive, private_key, WITHOUT_RULE)
    secrecy = label_secrecy(JOB, training.guest.block, secret_start=True)
    assert secrecy is not None
    bits = Policy().min_label_bits
    n_host = secrecy.max_equations(bits) - secrecy.n_told
    assert n_host > 20
    assert secrecy.n_equations(n_host) <= secrecy.max_equations(bits) < secrecy.n_equations(n_host + 1)

    training = attacked(n_host, n_positive, private_key, Policy())
    found = find_positives(training.host, training.outcome.results[Role.HOST].coef, n_positive)
    # By chance, 10% of the rows that it names are positive.
    assert len(found & training.positives) / len(found) < 0.3
