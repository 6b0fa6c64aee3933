"""Backward elimination: by hand for two columns, and against regressions without the columns."""

import numpy as np
import pytest

from trilateral.common.data.model.elimination import eliminate


def test_without_a_column_the_others_get_their_weights_of_a_regression_without_it() -> None:
    """For least squares with known variance, the weights and their covariance after each step are exact."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5)) @ (np.eye(5) + 0.4)
    y = X @ np.array([0.0, 0.05, 0.3, 0.0, 0.1]) + rng.normal(size=200)
    columns = {"pair": [0, 1], "x": [2], "y": [3]}  # The last weight always stays.
    C = np.asarray(np.linalg.inv(X.T @ X), np.float64)

    steps = eliminate(C @ X.T @ y, C, [("pair", 2), ("x", 1), ("y", 1)], "p_value")

    kept = list(range(5))
    for step in steps:
        covariance = np.linalg.inv(X[:, kept].T @ X[:, kept])
        b = covariance @ X[:, kept].T @ y
        places = [kept.index(each) for each in columns[step.column]]
        statistic = b[places] @ np.linalg.inv(covariance[np.ix_(places, places)]) @ b[places]
        assert step.statistic == pytest.approx(statistic, rel=1e-9)
        assert step.df == len(places)
        assert step.aic_change == pytest.approx(statistic - 2 * len(places), rel=1e-9)
        kept = [each for each in kept if each not in columns[step.column]]
    assert kept == [4]


def test_a_column_of_many_terms_goes_by_aic_where_its_p_value_would_keep_another() -> None:
    values, columns = np.array([1.0, 1.2, 1.2, 1.2, 1.2, 1.2]), [("one", 1), ("many", 5)]
    by_p_value, by_aic = (eliminate(values, np.eye(6), columns, by) for by in ("p_value", "aic"))
    assert by_p_value[0].column == "one"
    assert by_aic[0].column == "many"


def test_terms_that_depend_on_each_other_count_once() -> None:
    C = np.array([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0], [0.0, 0.0, 0.25]])
    steps = eliminate(np.array([0.5, -0.5, 1.0]), C, [("two levels", 2), ("x", 1)], "p_value")
    assert [(step.column, step.df) for step in steps] == [("two levels", 1), ("x", 1)]
    assert [step.statistic for step in steps] == pytest.approx([0.25, 4])


def test_a_column_without_any_variance_is_left_out_of_the_order() -> None:
    C = np.diag([1.0, 0.0])
    assert [step.column for step in eliminate(np.array([2.0, 0.0]), C, [("x", 1), ("flat", 1)], "aic")] == ["x"]


def test_a_party_without_columns_has_nothing_to_leave_out() -> None:
    assert eliminate(np.array([0.3]), np.eye(1), [], "aic") == []
