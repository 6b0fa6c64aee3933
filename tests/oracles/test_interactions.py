"""Interactions against those of patsy."""

import numpy as np
import pandas as pd
from patsy import dmatrix

from tests.support.frames import features_of
from trilateral.common.config.dataset import PreprocessingConfig
from trilateral.common.data.preprocessing import Preprocessing

N_ROWS = 3000


def test_products_are_those_of_patsy() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.uniform(18, 90, N_ROWS),
            "income": rng.uniform(1, 5, N_ROWS),
            "branch": pd.Series(rng.choice(["north", "south", "west"], N_ROWS, p=[0.5, 0.3, 0.2]), dtype="str"),
        }
    )
    config = PreprocessingConfig(clip=None, whiten=False, interactions=[("age", "income"), ("branch", "age")])

    steps = Preprocessing.fit(features_of(frame), config, intercept=False)

    formula = "age + income + C(branch, Treatment('north')) + age:income + age:C(branch, Treatment('north'))"
    basis = np.asarray(dmatrix(formula, frame))
    # patsy writes constants first, then categories, then numbers, and the slope of the reference as a slope of its own.
    terms = np.column_stack([np.ones(N_ROWS), steps.expand(features_of(frame))])
    assert steps.terms[-3:] == ("age:income", "age:branch=south", "age:branch=west")
    np.testing.assert_allclose(terms[:, 5], frame["age"] * frame["income"])
    np.testing.assert_allclose(terms[:, 6], frame["age"] * (frame["branch"] == "south"))
    assert np.linalg.matrix_rank(basis) == np.linalg.matrix_rank(terms) == 8
    np.testing.assert_allclose(terms @ np.linalg.lstsq(terms, basis)[0], basis, atol=1e-7)
