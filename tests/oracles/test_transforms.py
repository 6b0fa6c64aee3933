"""Transforms of numbers against those of scikit-learn."""

import numpy as np
import pandas as pd
import pytest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import PowerTransformer

from tests.support.frames import features_of
from trilateral.common.config.dataset import PreprocessingConfig
from trilateral.common.data.preprocessing import Preprocessing

N_ROWS = 3000


def made(seed: int) -> pd.DataFrame:
    """Columns of different shape: skewed to either side, of both signs, of counts, of large and of small values."""
    rng = np.random.default_rng(seed)
    income = np.exp(rng.normal(10, 0.7, N_ROWS))
    income[rng.random(N_ROWS) < 0.1] = np.nan
    return pd.DataFrame(
        {
            "income": income,
            "balance": rng.gamma(2, 300, N_ROWS) - 400,
            "score": 850 - rng.gamma(2, 40, N_ROWS),
            "children": rng.poisson(1.2, N_ROWS).astype(float),
            "ratio": rng.beta(2, 5, N_ROWS),
        }
    )


@pytest.mark.parametrize("seed", range(3))
def test_fitted_powers_are_those_of_scikit_learn(seed: int) -> None:
    frame = made(seed)
    config = PreprocessingConfig(transform="yeo_johnson", clip=None, whiten=False)

    fitted = Preprocessing.fit(features_of(frame), config, intercept=False)

    transformer = PowerTransformer()
    expected = transformer.fit_transform(SimpleImputer(strategy="median").fit_transform(frame))
    powers = [column["power"] for column in fitted.to_dict()["columns"]]
    np.testing.assert_allclose(powers, transformer.lambdas_, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(fitted.transform(features_of(frame)), expected, atol=1e-4)
    rows = features_of(made(seed + 10))
    expected = transformer.transform(SimpleImputer(strategy="median").fit(frame).transform(made(seed + 10)))
    np.testing.assert_allclose(fitted.transform(rows), expected, atol=1e-4)
