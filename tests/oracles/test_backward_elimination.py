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
from trilateral.common.data.model.elimination import Criterion
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
