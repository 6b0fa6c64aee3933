"""Where a training begins that starts from an earlier model: its weights in the units of the new training columns."""

import numpy as np

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import DataError
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.preprocessing import Preprocessing

_STEP = 2.0**-12
"""A start is rounded to multiples of this before it leaves a party. A start is near the minimum at best, so further
digits save no round. They would tell the coordinator, which knows the earlier weights in the earlier units, exactly how
the units have changed."""


def warm_start(model: PartyModel, steps: Preprocessing) -> FloatVector:
    """Convert the weights of an earlier model to the units of new training columns.

    With the weight v of each term in score per unit of the table, the new weights of the standardised terms are beta =
    v * scale, and w = T^+ beta, because T has full column rank. A term that the earlier model lacks begins at 0. The
    constant of the guest's score moves into its weight of the column of ones: the part that v @ mean adds again when
    the new means are subtracted. The host has no such column. So a shift of the mean of its own score is lost, which
    the first rounds make up for.

    Args:
        model: this party's part of the earlier model.
        steps: this party's preprocessing, fitted on the new training rows.

    Returns:
        w, rounded to multiples of 2^-12, shape (n_columns,).

    Raises:
        DataError: the model is of a job with another protocol, or its features are others.
    """
    name = model.job.name
    if model.job.protocol != "shares":
        raise DataError(
            f"job {name} was trained with `protocol: {model.job.protocol}`, which hides the guest's weights from the"
            " coordinator, and a start would show them: start from a job with `protocol: shares`, or leave out"
            " `start_from`"
        )
    _check_features(model, steps)
    v = np.array([model.weights.get(term, 0.0) for term in steps.terms])
    beta = v * steps.scale
    own = beta if steps.directions is None else np.linalg.lstsq(steps.directions, beta)[0]
    if steps.intercept:
        own = np.append(own, model.intercept + float(steps.mean @ v))
    start: FloatVector = np.rint(own / _STEP) * _STEP + 0.0
    return start


def _check_features(model: PartyModel, steps: Preprocessing) -> None:
    """Check that the same columns of the table are used. A column may be left out on one side for lack of values."""
    before, now = set(model.steps.features), set(steps.features)
    unknown = sorted(now - before - set(model.left_out))
    gone = sorted(before - now - set(steps.left_out))
    if unknown or gone:
        error = DataError(
            f"the features are not those of job {model.job.name}, from which the job starts: use the same columns, or"
            " leave out `start_from`; the log of this party names the columns"
        )
        error.add_note(f"new: {', '.join(unknown) or 'none'}; gone: {', '.join(gone) or 'none'}")
        raise error
