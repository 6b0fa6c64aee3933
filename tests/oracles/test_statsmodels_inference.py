"""Standard errors, tests and the fit of a training on shares, against statsmodels on the joined table.

statsmodels gets the terms of both parties as they are after filling and clipping, with the host's terms centred: the
guest's constant is that at the mean of the host's terms.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from statsmodels.iolib.summary import forg

from tests.support.frames import features_of
from tests.support.inferred import Case, train_with_inference
from trilateral.cli.wording import in_statsmodels
from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import PreprocessingConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.model.inference import infer
from trilateral.common.data.party_data import make_party_data
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.data.tables.table import PartyTable
from trilateral.common.paillier.keys import PrivateKey

JOB = JobConfig(name="job", dataset="data", protocol="shares", inference=True, holdout=0.2, seed=4)
PERSONS = ("student", "employed", "retired", "other")
REGIONS = ("north", "south", "west")


@dataclass(frozen=True)
class Bounds:
    """What a training may differ by from statsmodels: about three times the largest difference in sixty trainings.

    The random numbers of a training come from the operating system.
    """

    coef: float
    """In standard errors."""
    errors: float
    """Relative, of standard errors."""
    p_values: float
    """Relative, of p-values above 0.001."""
    loss: float
    """Relative, of the deviance."""
    wald: float
    """Relative, of the statistic of a column."""


BOUNDS = {
    "none": Bounds(coef=1e-4, errors=4e-5, p_values=5e-4, loss=2e-6, wald=5e-5),
    "whole": Bounds(coef=1e-4, errors=4e-5, p_values=5e-4, loss=5e-6, wald=5e-5),
    "fractions": Bounds(coef=1e-4, errors=5e-5, p_values=5e-4, loss=2e-5, wald=1e-4),
}


def credit_like(n_rows: int, rate: float, seed: int) -> tuple[pd.DataFrame, pd.DataFrame, FloatVector]:
    """Amounts with heavy tails, counts, ages, categories and missing values, like those of the credit data sets."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=n_rows)
    bills = {f"bill_{k}": np.exp(common + 0.6 * rng.normal(size=n_rows)) * 3000 for k in range(4)}
    host = pd.DataFrame(
        bills | {"late": rng.poisson(np.exp(0.5 * common - 1.5)), "region": rng.choice(REGIONS, n_rows)}
    )
    income = np.exp(0.5 * common + 0.8 * rng.normal(size=n_rows)) * 5000
    income[rng.random(n_rows) < 0.15] = np.nan
    guest = pd.DataFrame(
        {
            "age": rng.normal(45, 12, n_rows).round(),
            "income": income,
            "person": rng.choice(PERSONS, n_rows, p=[0.1, 0.6, 0.2, 0.1]),
        }
    )
    u = 0.9 * np.minimum(host["late"], 3) - 0.03 * guest["age"] - 0.3 * common + 0.4 * (guest["person"] == "student")
    u += 0.3 * (host["region"] == "west")
    u += np.log(rate / (1 - rate)) - np.average(u)
    return host, guest, np.where(rng.random(n_rows) < 1 / (1 + np.exp(-u)), 1.0, -1.0)


def run_case(n_rows: int, rate: float, key: PrivateKey, weights: FloatVector | None = None) -> Case:
    host, guest, labels = credit_like(n_rows, rate, seed=1)
    return train_with_inference(JOB, PreprocessingConfig(), (host, guest), labels, key, weights)


@pytest.mark.parametrize(("n_rows", "rate"), [(24_000, 0.22), (60_000, 0.067)], ids=["credit 1", "credit 2"])
@pytest.mark.parametrize("weighting", ["none", "whole", "fractions"])
def test_the_table_of_a_training_is_that_of_statsmodels(
    n_rows: int, rate: float, weighting: str, private_key: PrivateKey
) -> None:
    rng = np.random.default_rng(2)
    weights = {
        "none": None,
        "whole": rng.integers(1, 4, n_rows).astype(np.float64),
        "fractions": rng.exponential(1.0, n_rows).clip(0.1, 4),
    }[weighting]
    case = run_case(n_rows, rate, private_key, weights)

    model = sm.GLM(case.positive, case.design, family=sm.families.Binomial(), freq_weights=case.weights)
    wanted = model.fit(tol=1e-12, maxiter=50)

    bounds = BOUNDS[weighting]
    assert np.abs((case.coef - wanted.params) / wanted.bse).max() < bounds.coef
    assert case.errors == pytest.approx(wanted.bse, rel=bounds.errors)
    in_doubt = wanted.pvalues > 1e-3
    assert case.p_values[in_doubt] == pytest.approx(wanted.pvalues[in_doubt], rel=bounds.p_values)
    fit = case.fit
    assert fit.deviance == pytest.approx(wanted.deviance, rel=bounds.loss)
    assert fit.null_deviance == pytest.approx(wanted.null_deviance, rel=1e-9)
    assert fit.aic == pytest.approx(wanted.aic, rel=bounds.loss)
    assert fit.bic == pytest.approx(
        -2 * wanted.llf + np.log(len(case.positive)) * case.design.shape[1], rel=bounds.loss
    )
    # Differences of two deviances have the error of one.
    assert fit.mcfadden_r2 == pytest.approx(1 - wanted.llf / wanted.llnull, abs=bounds.loss)
    assert fit.likelihood_ratio is not None
    assert fit.likelihood_ratio.statistic == pytest.approx(
        2 * (wanted.llf - wanted.llnull), abs=bounds.loss * wanted.deviance
    )
    assert fit.likelihood_ratio.df == case.design.shape[1] - 1

    for party, inference in case.inference.items():
        for column, test in inference.columns.items():
            places = _places(case, party, column)
            wald = wanted.wald_test(np.eye(case.design.shape[1])[places], scalar=True)
            assert test.df == len(places)
            assert test.statistic == pytest.approx(float(wald.statistic), rel=bounds.wald)


def _places(case: Case, party: Role, column: str) -> list[int]:
    first = 0 if party is Role.HOST else len(case.inference[Role.HOST].terms)
    names = list(case.inference[party].terms)
    return [first + number for number, name in enumerate(names) if name.startswith((f"{column}=", f"{column} "))]


def test_tests_of_given_weights_are_those_of_statsmodels() -> None:
    """The formulas alone, from the covariance that statsmodels has."""
    rng = np.random.default_rng(0)
    n_rows = 500
    features = pd.DataFrame({"x": rng.normal(size=n_rows), "y": rng.normal(size=n_rows)})
    labels = np.where(rng.random(n_rows) < 1 / (1 + np.exp(-0.3 * features["x"])), 1.0, -1.0)
    job = JOB.model_copy(update={"holdout": 0.0})
    config = PreprocessingConfig(clip=None)
    ids = Ids.of([str(row) for row in range(n_rows)])
    data = make_party_data(PartyTable(ids, features_of(features), labels), config, job)
    X = np.asarray(data.block.columns)
    trained = sm.GLM((labels > 0).astype(float), X, family=sm.families.Binomial()).fit(tol=1e-12)
    packed = np.asarray(trained.cov_params())[np.triu_indices(3)]

    found = infer(data.preprocessing, np.asarray(trained.params), packed, [])

    design = sm.add_constant(features.to_numpy(), prepend=False)
    wanted = sm.GLM((labels > 0).astype(float), design, family=sm.families.Binomial()).fit(tol=1e-12)
    assert found.intercept is not None
    each = [*found.terms.values(), found.intercept]
    assert [one.weight for one in each] == pytest.approx(wanted.params, rel=1e-8)
    assert [one.std_error for one in each] == pytest.approx(wanted.bse, rel=1e-8)
    assert [one.p_value for one in each] == pytest.approx(wanted.pvalues, rel=1e-7)
    interval = np.array([[one.lower, one.upper] for one in each])
    assert interval == pytest.approx(wanted.conf_int(), rel=1e-7)


@pytest.mark.parametrize("decimals", [3, 4])
def test_a_table_shows_numbers_as_statsmodels_does(decimals: int) -> None:
    """The weight of an income in single euros is not -0.0000."""
    sizes = [0.0, 4.2e-6, 3.1756e-5, 9.9e-5, 1e-4, 0.0123456, 2.0, 9999.9, 1e4, 12345.678]
    for value in (*sizes, *(-size for size in sizes[1:])):
        assert in_statsmodels(value, decimals) == forg(value, prec=decimals).strip()
