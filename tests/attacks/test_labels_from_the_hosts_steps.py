"""The host knows its features and its own steps, which are sums over the guest's labels.

It follows the protocol. Three ways to find the labels of the rarer kind, under any policy that it may write in its own
file: from its first step, which at w = 0 is a multiple of X_A'y; from all of its steps in a batch, of which only as
many directions as the guest has columns depend on the guest's weights; and from the losses that it is told, which give
the guest's start away if there are enough batches.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import linprog

import trilateral.common.protocol.label_secrecy
from tests.support.frames import features_of
from tests.support.three_machines import Outcome, run_machines
from tests.support.transparent import TRANSPARENT
from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import PreprocessingConfig
from trilateral.common.config.job import JobConfig, Lbfgs, Sgd
from trilateral.common.config.process import Policy
from trilateral.common.data.party_data import PreparedData, make_party_data
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.data.tables.table import PartyTable
from trilateral.common.jobs.policy import check_label_secrecy, check_peer, label_secrecy
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.protocol.batches import Batches
from trilateral.common.protocol.label_secrecy import draw_start
from trilateral.common.protocol.messages import BeginRound
from trilateral.common.protocol.party import CheckPeer

DEFAULT = Policy()
WITHOUT_RULE = Policy(min_label_bits=0)
LAXEST = Policy(min_rows_per_feature=2, min_batch=1, max_epochs=10**9, max_rounds=10**9)
"""What a hostile host may write in its own file."""
HOSTS = pytest.mark.parametrize("host_policy", [DEFAULT, LAXEST], ids=["default host", "lax host"])


@pytest.fixture(autouse=True)
def repeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the same secret starts in each run, so that no attack fails by chance."""
    monkeypatch.setattr(trilateral.common.protocol.label_secrecy, "token_bytes", np.random.default_rng(1).bytes)


def make_job(**settings: Any) -> JobConfig:
    return JobConfig(**{"name": "attacked", "dataset": "d", "key_bits": 512, "holdout": 0.0, "slots": 1, **settings})


@dataclass
class Attacked:
    """A training, and the host's and the guest's data."""

    job: JobConfig
    host: PreparedData
    guest: PreparedData
    outcome: Outcome

    @property
    def columns(self) -> FloatMatrix:
        """The host's training columns."""
        return np.asarray(self.host.block.columns)

    @property
    def positives(self) -> set[int]:
        assert self.guest.block.labels is not None
        return set(np.flatnonzero(self.guest.block.labels > 0).tolist())

    @property
    def steps(self) -> dict[int, BeginRound]:
        """What the host receives from the coordinator, by round."""
        return {
            message.key.round: message
            for _, to, message in self.outcome.traffic
            if to is Role.HOST and isinstance(message, BeginRound)
        }

    @property
    def refusal(self) -> str:
        """Why the guest has refused, before the host has received a step."""
        assert self.outcome.ended.loss is None
        assert not self.steps
        return self.outcome.ended.reason


@dataclass
class Problem:
    """Correlated features on both sides, and the rows with the highest scores as the positive ones."""

    job: JobConfig
    n_rows: int
    n_host: int
    n_guest: int
    n_positive: int
    key: PrivateKey
    seed: int = 0
    in_each_batch: bool = False
    """Whether each batch has the same number of positive rows."""

    def train(self, guest_policy: Policy, host_policy: Policy, *, secret_start: bool) -> Attacked:
        """Train under both policies; without a secret start, the guest starts at zero as 0.1.0 did."""
        rng = np.random.default_rng(self.seed)
        n_columns = self.n_host + self.n_guest
        X = rng.normal(size=(self.n_rows, n_columns)) @ (np.eye(n_columns) + 0.2 * rng.normal(size=(n_columns,) * 2))
        score = X @ rng.normal(size=n_columns)
        order = np.argsort(-score / score.std() - rng.gumbel(size=self.n_rows))
        y = -np.ones(self.n_rows)
        y[order[: self.n_positive]] = 1
        if self.in_each_batch:
            parts = Batches.of(self.job, self.n_rows)._parts
            y[:] = -1
            y[[row for rows in parts for row in rng.choice(rows, self.n_positive // len(parts), replace=False)]] = 1
        host, guest = self._party(X[:, : self.n_host], None), self._party(X[:, self.n_host :], y)
        start = draw_start(guest.block.columns) if secret_start else None

        def check(data: PreparedData, policy: Policy, role: Role) -> CheckPeer:
            # Those that compare the starts lift the rule; a guest that starts at zero must not count on secret numbers.
            secrecy = label_secrecy(self.job, data.block, secret_start=secret_start)
            return lambda n: check_peer(self.job, policy, len(data.block.columns), n, role, secrecy=secrecy)

        outcome = run_machines(
            {
                Role.COORDINATOR: TRANSPARENT.coordinator(self.job, self.key),
                Role.HOST: TRANSPARENT.host(self.job, host, self.key, check_peer=check(host, host_policy, Role.HOST)),
                Role.GUEST: TRANSPARENT.guest(
                    self.job, guest, self.key, start, check_peer=check(guest, guest_policy, Role.GUEST)
                ),
            }
        )
        return Attacked(self.job, host, guest, outcome)

    def _party(self, X: FloatMatrix, y: FloatVector | None) -> PreparedData:
        features = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])])
        table = PartyTable(Ids.of(f"id-{row:06d}" for row in range(self.n_rows)), features_of(features), y)
        return make_party_data(table, PreprocessingConfig(clip=None), self.job)


# --- from the first step


def first_sums(attacked: Attacked) -> FloatVector:
    """Return X_A'z with z = 1 for the positive rows, as if the guest had started at zero: the step is then 4 g."""
    X = attacked.columns
    sums: FloatVector = (X.sum(axis=0) - len(X) * attacked.steps[2].step / 2) / 2
    return sums


def fewest_rows(X: FloatMatrix, sums: FloatVector) -> set[int]:
    """Find the rows that add up to the sums, by a linear programme that relaxes their number."""
    n_rows = len(X)
    bounds = np.concatenate([sums, -sums]) + 2e-5
    found = linprog(np.ones(n_rows), A_ub=np.vstack([X.T, -X.T]), b_ub=bounds, bounds=(0, 1), method="highs")
    return set() if found.x is None else set(np.flatnonzero(found.x > 0.5).tolist())


def sets_of_rows(X: FloatMatrix, sums: FloatVector, tolerance: float = 1e-4) -> list[set[int]]:
    """Find all sets of four rows that add up to the sums: two pairs meet in the middle."""
    one, other = np.triu_indices(len(X), 1)
    pairs = X[one] + X[other]
    key = pairs @ (w := np.random.default_rng(5).normal(size=X.shape[1]))
    order = np.argsort(key)
    wanted, reach = sums @ w - key, tolerance * np.abs(w).sum()
    low, high = (np.searchsorted(key[order], wanted + side * reach) for side in (-1, 1))
    found: set[frozenset[int]] = set()
    for pair in np.flatnonzero(high > low):
        partners = order[low[pair] : high[pair]]
        fits = np.abs(pairs[partners] + pairs[pair] - sums).max(axis=1) < tolerance
        found |= {frozenset(map(int, (one[pair], other[pair], one[p], other[p]))) for p in partners[fits]}
    return [set(rows) for rows in found if len(rows) == 4]


ALL_LABELS = "many host columns"
RARE_LABELS = "rare labels"
FIRST_STEP = {
    # n_rows, n_host, n_guest, n_positive: by fewest_rows
    ALL_LABELS: (320, 150, 3, 64),
    RARE_LABELS: (3000, 100, 4, 10),
}


@pytest.fixture(params=FIRST_STEP)
def solvable(request: pytest.FixtureRequest, private_key: PrivateKey) -> Problem:
    return Problem(make_job(algorithm=Lbfgs(), epochs=2), *FIRST_STEP[request.param], key=private_key, seed=10)


NO_RULES = LAXEST.model_copy(update={"min_label_bits": 0.0})


@HOSTS
def test_a_start_at_zero_gives_the_labels_away_at_once(solvable: Problem, host_policy: Policy) -> None:
    attacked = solvable.train(NO_RULES, host_policy, secret_start=False)
    assert fewest_rows(attacked.columns, first_sums(attacked)) == attacked.positives


def test_a_secret_start_does_not_protect_from_a_host_with_far_more_columns(private_key: PrivateKey) -> None:
    problem = Problem(make_job(algorithm=Lbfgs(), epochs=2), *FIRST_STEP[ALL_LABELS], key=private_key, seed=10)
    attacked = problem.train(NO_RULES, LAXEST, secret_start=True)
    assert len(fewest_rows(attacked.columns, first_sums(attacked)) ^ attacked.positives) < 32


@HOSTS
@pytest.mark.parametrize("secret_start", [True, False])
def test_the_rule_refuses_the_job_before_the_first_step(
    solvable: Problem, host_policy: Policy, secret_start: bool
) -> None:
    rule_alone = LAXEST.model_copy(update={"min_label_bits": DEFAULT.min_label_bits})
    attacked = solvable.train(rule_alone, host_policy, secret_start=secret_start)
    assert "the guest refuses the job under policy.min_label_bits" in attacked.refusal


@pytest.fixture
def few_positives(private_key: PrivateKey) -> Problem:
    return Problem(make_job(algorithm=Lbfgs(), epochs=2), 390, 13, 13, 4, key=private_key)


@HOSTS
def test_the_rest_of_the_default_policy_does_not_protect_four_rows(few_positives: Problem, host_policy: Policy) -> None:
    attacked = few_positives.train(WITHOUT_RULE, host_policy, secret_start=False)
    assert sets_of_rows(attacked.columns, first_sums(attacked)) == [attacked.positives]


def test_a_secret_start_protects_four_rows_from_the_first_step(few_positives: Problem) -> None:
    attacked = few_positives.train(WITHOUT_RULE, LAXEST, secret_start=True)
    assert sets_of_rows(attacked.columns, first_sums(attacked)) == []


@HOSTS
def test_the_default_policy_protects_four_rows(few_positives: Problem, host_policy: Policy) -> None:
    attacked = few_positives.train(DEFAULT, host_policy, secret_start=True)
    assert "policy.min_label_bits" in attacked.refusal


# --- from all steps, in the directions that the guest's weights do not move

RATE = 0.15
IN_BATCHES: dict[str, Any] = {"algorithm": Sgd(learning_rate=RATE), "tolerance": 0.0}


def sums_by_batch(attacked: Attacked) -> dict[int, FloatMatrix]:
    """Return X_A'(u_B - 2y) of each batch in each of its rounds; shape (n_rounds, n_host)."""
    X, steps = attacked.columns, attacked.steps
    batches = Batches.of(attacked.job, len(X))
    coef = np.zeros(X.shape[1])
    sums: dict[int, list[FloatVector]] = {}
    for number in range(1, attacked.job.epochs * batches.count + 1):
        coef = coef - steps[number].step
        rows = batches.rows(steps[number].batch)
        gradient = 4 * len(rows) * steps[number + 1].step / RATE
        sums.setdefault(batches.part(steps[number].batch), []).append(gradient - X[rows].T @ (X[rows] @ coef))
    return {part: np.array(each) for part, each in sums.items()}


def positives_in_free_directions(attacked: Attacked, n_moving: int) -> set[int]:
    """Find four positive rows of each batch, from sums in directions orthogonal to everything that w_B does."""
    batches = Batches.of(attacked.job, len(attacked.columns))
    found: set[int] = set()
    for part, sums in sums_by_batch(attacked).items():
        rows = batches._parts[part]
        X = attacked.columns[rows]
        free = np.linalg.svd(sums[1:] - sums[0])[2][n_moving:]
        solutions = sets_of_rows(X @ free.T, free @ (sums.mean(axis=0) / -2 + X.sum(axis=0)) / 2, 1e-5)
        for solution in solutions if len(solutions) == 1 else []:
            found |= set(rows[list(solution)].tolist())
    return found


@pytest.fixture
def three_batches(private_key: PrivateKey) -> Problem:
    return Problem(make_job(**IN_BATCHES, batch=390, epochs=12), 1170, 13, 3, 12, private_key, in_each_batch=True)


@HOSTS
@pytest.mark.parametrize("secret_start", [True, False])
def test_a_secret_start_alone_does_not_hide_what_lies_outside_the_guests_directions(
    three_batches: Problem, host_policy: Policy, secret_start: bool
) -> None:
    attacked = three_batches.train(WITHOUT_RULE, host_policy, secret_start=secret_start)
    assert positives_in_free_directions(attacked, three_batches.n_guest + 1) == attacked.positives


@HOSTS
def test_the_default_policy_protects_the_positive_rows_of_batches(three_batches: Problem, host_policy: Policy) -> None:
    attacked = three_batches.train(DEFAULT, host_policy, secret_start=True)
    assert "policy.min_label_bits" in attacked.refusal
    assert "larger batches, `batch: all`" in attacked.refusal


# --- from the losses, which give the start away


@dataclass
class Fitted:
    """What a host finds out about a guest with nothing but an intercept, except for the guest's start c."""

    attacked: Attacked
    sums: FloatMatrix
    """X_A,p'(c - 2 y_p) of each batch p."""
    starts: list[float]
    """The values of c at which the loss of a model without weights is log 2, whatever the labels are."""

    def positives(self) -> set[int]:
        """Return one row of each batch: for the better start, the row that fits best."""
        X, batches = self.attacked.columns, Batches.of(self.attacked.job, len(self.attacked.columns))
        best: tuple[float, set[int]] = np.inf, set()
        for c in self.starts:
            misfit, found = 0.0, set()
            for rows, sums in zip(batches._parts, self.sums, strict=True):
                ones = X[rows].sum(axis=0)
                distance = np.abs(X[rows] - ((ones * c - sums) / 2 + ones) / 2).max(axis=1)
                misfit += float(distance.min())
                found.add(int(rows[distance.argmin()]))
            best = min(best, (misfit, found), key=lambda each: each[0])
        return best[1]


def fit_intercept(attacked: Attacked) -> Fitted:
    """Fit w_t = z_t + c, the guest's only weight, by least squares to the host's steps.

    In a round on batch p, with ones = X_A,p'1 and q_p = 1'y_p,

        w_{t+1} = w_t - rate / 4m (ones w_A + m w_t - 2 q_p)        X_A,p'(u_B - 2 y_p) = ones w_t - 2 X_A,p'y_p

    With z_0 = 0, both are linear in q_p - m c / 2 and in X_A,p'(c - 2 y_p).
    """
    X, steps = attacked.columns, attacked.steps
    batches = Batches.of(attacked.job, len(X))
    n_batches, n_host = batches.count, X.shape[1]
    coef = np.zeros(n_host)
    known, by_labels = 0.0, np.zeros(n_batches)  # z_t = known + by_labels @ (q - m c / 2)
    equations, right_sides = [], []
    for number in range(1, attacked.job.epochs * n_batches + 1):
        coef = coef - steps[number].step
        part = batches.part(steps[number].batch)
        rows = batches._parts[part]
        m, ones = len(rows), X[rows].sum(axis=0)
        seen = 4 * m * steps[number + 1].step / RATE - X[rows].T @ (X[rows] @ coef)
        equation = np.zeros((n_host, n_batches, 1 + n_host))
        equation[:, :, 0] = np.outer(ones, by_labels)
        equation[:, part, 1:] = np.eye(n_host)
        equations.append(equation.reshape(n_host, -1))
        right_sides.append(seen - ones * known)
        last = coef, known, by_labels.copy(), part, steps[number + 1].loss
        known -= RATE / (4 * m) * (float(ones @ coef) + m * known)
        by_labels = by_labels * (1 - RATE / 4)
        by_labels[part] += RATE / (2 * m)
    solution = np.linalg.lstsq(np.vstack(equations), np.concatenate(right_sides))[0].reshape(n_batches, -1)

    coef, known, by_labels, part, loss = last
    z, rows = known + float(by_labels @ solution[:, 0]), batches._parts[part]
    own, ones, m = X[rows] @ coef, X[rows].sum(axis=0), len(rows)
    assert loss is not None

    def misfit(c: float) -> float:
        """Return 8 m (f - log 2) = |u|^2 - 4 y'u for u = X_A w_A + z + c, minus what was told."""
        sums, n_more = (ones * c - solution[part, 1:]) / 2, solution[part, 0] + m * c / 2
        u = own + z + c
        return float(u @ u - 4 * (coef @ sums + (z + c) * n_more) - 8 * m * (loss - np.log(2)))

    low, middle, high = misfit(-1.0), misfit(0.0), misfit(1.0)
    roots = np.roots([(low + high) / 2 - middle, (high - low) / 2, middle])
    return Fitted(attacked, solution[:, 1:], [float(root.real) for root in roots])


@pytest.fixture
def without_features(private_key: PrivateKey) -> Problem:
    """Three batches, one positive row in each, and fewer host columns than the rule for one batch would mind."""
    return Problem(make_job(**IN_BATCHES, batch=120, epochs=12), 360, 1, 0, 3, private_key, in_each_batch=True)


@HOSTS
def test_the_losses_of_batches_give_the_start_away_and_with_it_the_labels(
    without_features: Problem, host_policy: Policy
) -> None:
    """One column of the host and one of the guest: a secret number for each equation of a batch, but not for all."""
    attacked = without_features.train(WITHOUT_RULE, host_policy, secret_start=True)
    assert fit_intercept(attacked).positives() == attacked.positives


@HOSTS
def test_the_default_policy_protects_the_labels_of_a_guest_without_features(
    without_features: Problem, host_policy: Policy
) -> None:
    attacked = without_features.train(DEFAULT, host_policy, secret_start=True)
    assert "policy.min_label_bits" in attacked.refusal


@HOSTS
def test_the_default_policy_counts_the_batches_that_share_a_start(private_key: PrivateKey, host_policy: Policy) -> None:
    """Three features would cover the three equations, if the losses of three batches did not give the start away."""
    problem = Problem(make_job(**IN_BATCHES, batch=390, epochs=2), 1170, 1, 3, 9, private_key, in_each_batch=True)
    attacked = problem.train(DEFAULT, host_policy, secret_start=True)
    assert "policy.min_label_bits" in attacked.refusal
    secrecy = label_secrecy(problem.job, attacked.guest.block, secret_start=True)
    assert secrecy is not None
    assert secrecy.n_secret == 0
    check_label_secrecy(problem.job, DEFAULT, replace(secrecy, n_secret=3), 1)


# --- what the refusal tells


def test_a_refusal_does_not_depend_on_the_number_of_rare_labels(private_key: PrivateKey) -> None:
    texts = {
        Problem(make_job(algorithm=Lbfgs()), 390, 13, 3, n_positive, key=private_key)
        .train(DEFAULT, LAXEST, secret_start=True)
        .refusal
        for n_positive in (3, 4, 30)
    }
    assert len(texts) == 1
