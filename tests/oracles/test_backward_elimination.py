"""Backward elimination from one training, against statsmodels, which trains again after each column left out."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy.special import expit

from tests.support.inferred import Case, train_with_inference
from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.dataset import PreprocessingConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.model.elimination import Criterion, eliminate
from trilateral.common.paillier.keys import PrivateKey

JOB = JobConfig(name="job", dataset="data", protocol="shares", inference=True, holdout=0.0, tolerance=0.0)
N_ROWS = 4000


@pytest.fixture(scope="module")
def case(private_key: PrivateKey) -> Case:
    """Both parties have columns that count, columns that do not, and columns that depend on each other."""
    rng = np.random.default_rng(3)
    common = rng.normal(size=N_ROWS)
    frames = []
    for _ in PARTIES:
        frame = pd.DataFrame(rng.normal(size=(N_ROWS, 4)) + 0.7 * common[:, np.newaxis], columns=["a", "b", "c", "d"])
        frame["branch"] = rng.choice(["north", "south", "west"], N_ROWS)
        frame["kind"] = rng.choice(["x", "y", "z"], N_ROWS)
        frames.append(frame)
    host, guest = frames
    score = 0.5 * host["a"] - 0.12 * host["b"] + 0.06 * host["c"] + 0.5 * (host["branch"] == "west")
    score += -0.4 * guest["a"] + 0.1 * guest["d"] - 0.4 * (guest["kind"] == "y") - 1
    labels = np.where(rng.random(N_ROWS) < expit(score), 1.0, -1.0)
    return train_with_inference(JOB, PreprocessingConfig(clip=None), (host, guest), labels, private_key)


def refitted(case: Case, party: Role, by: Criterion) -> list[tuple[str, float, float]]:
    """The columns in the order of an elimination that trains again, with their p-values and the change of AIC."""
    start = 0 if party is Role.HOST else len(case.inference[Role.HOST].terms)
    places: dict[str, list[int]] = {}
    for number, term in enumerate(case.inference[party].terms):
        places.setdefault(term.partition("=")[0], []).append(start + number)
    kept, found = list(range(case.design.shape[1])), []
    fit = _fit(case, kept)
    while places:
        tests = []
        for name, columns in places.items():
            wald = fit.wald_test(np.eye(len(kept))[[kept.index(each) for each in columns]], scalar=True)
            statistic = float(wald.statistic)
            tests.append((name, float(wald.pvalue), statistic - 2 * len(columns)))
        worst = max(tests, key=lambda test: test[1] if by == "p_value" else -test[2])
        kept = [each for each in kept if each not in places[worst[0]]]
        del places[worst[0]]
        found.append(worst)
        fit = _fit(case, kept)
    return found


def _fit(case: Case, columns: list[int]) -> Any:
    design: FloatVector = case.design[:, columns]
    return sm.GLM(case.positive, design, family=sm.families.Binomial()).fit(tol=1e-12)


@pytest.mark.parametrize("party", PARTIES)
@pytest.mark.parametrize("by", ["p_value", "aic"])
def test_the_order_and_the_tests_are_those_of_refitted_models(case: Case, party: Role, by: Criterion) -> None:
    steps, wanted = case.inference[party].elimination[by], refitted(case, party, by)

    assert [step.column for step in steps] == [name for name, _, _ in wanted]
    # The columns in doubt. Without one that counts, the others change by more than the covariance says.
    for step, (_, p_value, aic_change) in zip(steps, wanted, strict=True):
        if p_value > 1e-3:
            assert step.p_value == pytest.approx(p_value, rel=0.02, abs=1e-4)
            assert step.aic_change == pytest.approx(aic_change, rel=0.02, abs=0.02)
    n_left_out = sum(p_value > 0.05 for _, p_value, _ in wanted)
    assert 2 <= n_left_out <= 4


def _stepwise(design: FloatVector, positive: FloatVector, kept: list[int], *, drop: bool) -> set[int]:
    """Choose columns by AIC as R's `step` does: add or, if `drop`, also leave out the best one, and train again."""
    known: dict[tuple[int, ...], float] = {}

    def aic(columns: list[int]) -> float:
        key = tuple(sorted(columns))
        if key not in known:
            with_intercept = [*key, design.shape[1] - 1]
            known[key] = float(sm.GLM(positive, design[:, with_intercept], family=sm.families.Binomial()).fit().aic)
        return known[key]

    while True:
        others = [each for each in range(design.shape[1] - 1) if each not in kept]
        choices = [[*kept, each] for each in others]
        if drop:
            choices += [[other for other in kept if other != each] for each in kept]
        best = min(choices, key=aic, default=kept)
        if aic(best) >= aic(kept):
            return set(kept)
        kept = best


def test_selections_in_other_directions_find_the_same_columns() -> None:
    """Stepwise selection from all columns, and forward selection, with a training for each choice."""
    n_columns = 6
    same = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        X = 0.5 * rng.normal(size=(1500, n_columns)) + 0.8 * rng.normal(size=(1500, 1))
        score = X @ [1.0, -0.9, 0.4, -0.25, 0.1, 0.0] - 1
        positive = (rng.random(1500) < expit(score)).astype(np.float64)
        design = np.column_stack([X, np.ones(1500)])
        fit = sm.GLM(positive, design, family=sm.families.Binomial()).fit(tol=1e-12)
        columns = [(str(number), 1) for number in range(n_columns)]
        steps = eliminate(fit.params, np.asarray(fit.cov_params()), columns, "aic")
        first = next((place for place, step in enumerate(steps) if step.aic_change > 0), n_columns)
        backward = {int(step.column) for step in steps[first:]}
        both = _stepwise(design, positive, list(range(n_columns)), drop=True)
        forward = _stepwise(design, positive, [], drop=False)
        same.append((backward == both, backward == forward))
    n_both, n_forward = np.sum(same, axis=0)
    assert n_both >= 19
    assert n_forward >= 19


def test_far_from_all_columns_the_covariance_understates_what_a_strong_column_adds() -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(3000, 3))
    positive = (rng.random(3000) < expit(X @ [2.5, 1.5, 0.8] - 1)).astype(np.float64)
    design = np.column_stack([X, np.ones(3000)])

    def fit(columns: list[int]) -> Any:
        return sm.GLM(positive, design[:, columns], family=sm.families.Binomial()).fit(tol=1e-12)

    everything = fit([0, 1, 2, 3])
    columns = [(str(number), 1) for number in range(3)]
    last = eliminate(everything.params, np.asarray(everything.cov_params()), columns, "aic")[-1]
    assert last.column == "0"
    alone = 2 * (fit([0, 3]).llf - fit([3]).llf)
    assert last.statistic < 0.5 * alone
