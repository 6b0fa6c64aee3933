"""Where a training begins that starts from an earlier model: the weights that give its scores of the new rows."""

import numpy as np

from trilateral.common.base.arrays import FloatMatrix, FloatRows, FloatVector, Rows, blocks_of
from trilateral.common.base.errors import DataError
from trilateral.common.data.features import Features
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.model.scoring import score_features

_STEP = 2.0**-12
"""A start is rounded to multiples of this before it leaves a party. A start is near the minimum at best, so further
digits save no round. They would tell the coordinator, which knows the earlier weights in the earlier units, exactly how
the units have changed."""


def warm_start(
    model: PartyModel, features: Features, rows: Rows, columns: FloatRows, *, intercept: bool
) -> FloatVector:
    """Find the weights of new training columns that come closest to an earlier model's scores.

    They minimise the sum over the training rows of (X w - u)^2, where u are this party's parts of the scores by the
    earlier model. If the new terms can express the earlier ones, X w equals u. That holds whatever means, scales,
    directions and reference categories are. A constant cannot be expressed by a party without an intercept: the host's
    fit has a constant that is left out afterwards. So a shift of the mean of the host's part is lost, which the first
    rounds make up for.

    Args:
        model: this party's part of the earlier model.
        features: this party's table.
        rows: its training rows, in ascending order.
        columns: X, the new training columns of these rows, shape (n_train, n_columns).
        intercept: whether the last column consists of ones.

    Returns:
        w, rounded to multiples of 2^-12, shape (n_columns,).

    Raises:
        DataError: the model is of a job with another protocol, or the table lacks a column of the earlier model or
            holds other values there.
    """
    name = model.job.name
    if model.job.protocol != "shares":
        raise DataError(
            f"job {name} was trained with `protocol: {model.job.protocol}`, which hides the guest's weights from the"
            " coordinator, and a start would show them: start from a job with `protocol: shares`, or leave out"
            " `start_from`"
        )
    if model.classes is not None:
        raise DataError(f"job {name} has a model for each class: start from a job with a label of two values")
    steps, earlier = model.steps, np.array(model.training_weights)
    lacking = [column for column in steps.features if column not in features.columns]
    if lacking:
        raise DataError(
            f"the table lacks columns of the model of job {name}: {', '.join(map(repr, lacking))}: add them as"
            " features, or leave out `start_from`"
        )
    n_columns = columns.shape[1]
    width = n_columns + (not intercept)
    gram, products = np.zeros((width, width)), np.zeros(width)
    for part in blocks_of(len(columns)):
        block: FloatMatrix = np.ones((len(rows[part]), width))
        block[:, :n_columns] = columns[part]
        gram += block.T @ block
        products += block.T @ score_features(steps, earlier, features.take(rows[part]))
    fitted = np.linalg.lstsq(gram, products)[0][:n_columns]
    start: FloatVector = np.rint(fitted / _STEP) * _STEP + 0.0
    return start
