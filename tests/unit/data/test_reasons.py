"""The columns that raise a score most."""

import numpy as np
import pandas as pd
import pytest

from tests.support.frames import features_of
from trilateral.common.config.dataset import PreprocessingConfig
from trilateral.common.data.model.reasons import NONE, top_columns
from trilateral.common.data.preprocessing import Preprocessing

N_ROWS = 300
RNG = np.random.default_rng(4)
TABLE = pd.DataFrame(
    {
        "age": RNG.normal(40, 10, N_ROWS),
        "branch": pd.Series(RNG.choice(["north", "south", "west"], N_ROWS, p=[0.5, 0.3, 0.2]), dtype="str"),
        "debt": RNG.exponential(2, N_ROWS),
    }
)


@pytest.mark.parametrize("whiten", [True, False])
def test_the_columns_come_in_the_order_of_what_they_add_to_the_score(whiten: bool) -> None:
    features = features_of(TABLE)
    steps = Preprocessing.fit(features, PreprocessingConfig(whiten=whiten), intercept=True)
    assert steps.terms == ("age", "branch=south", "branch=west", "debt")
    beta = np.array([0.5, 1.0, -1.0, -0.7])
    added = (steps.expand(features) - steps.mean) / steps.scale * beta
    by_column = np.stack([added[:, 0], added[:, 1] + added[:, 2], added[:, 3]], axis=1)
    for row, places in zip(by_column, top_columns(steps, beta, features, 4), strict=True):
        expected = sorted((place for place in range(3) if row[place] > 0), key=lambda place: -row[place])
        assert places.tolist() == expected + [NONE] * (4 - len(expected))
    first = top_columns(steps, beta, features, 1)[:, 0]
    np.testing.assert_array_equal(first, top_columns(steps, beta, features, 4)[:, 0])


def test_a_party_without_columns_has_no_reasons() -> None:
    steps = Preprocessing((), np.zeros(0), np.ones(0), None, True)
    assert (top_columns(steps, np.zeros(0), features_of(TABLE), 2) == NONE).all()
