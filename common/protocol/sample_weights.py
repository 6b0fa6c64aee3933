"""How much each training row counts: the guest's weights, scaled to the fixed-point numbers of the protocol on shares.

The loss is sum(c_i loss_i) / sum(c_i), so only the ratios of the weights matter. The sums of the protocol hold weights
whose root mean square is at most `MAX_RMS`, and rounding errors weigh least if it is not much less. So the weights are
scaled to a root mean square between half of `MAX_RMS` and `MAX_RMS`, in one of two ways:

- Weights that are whole numbers are multiplied by a whole number, without fraction bits or, if they are too large for
  that, with 6. They are exact.
- Other weights are scaled to a mean that is a power of two, and rounded to 6 fraction bits. A rounded weight is off by
  up to 1/64. The error cancels over the rows of each label: both sums of weights are right to 1/64.

The number of fraction bits is told to both other organisations, and the sum of the scaled weights to the coordinator.
Weights that are `balanced` always have 6 fraction bits, so that the number does not tell whether the labels are. For
whole numbers it tells one bit: whether their root mean square exceeds `MAX_RMS`. Only the sum of whole numbers has more
than a few bits.
"""

import math
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

import numpy as np

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import DataError
from trilateral.common.protocol.batches import rounding_order

ByLabel: TypeAlias = Literal["balanced"] | tuple[float, float]
"""Weights of a positive and of a negative row, both above 0; `balanced` gives both labels the same total."""

MAX_RMS = 4.0
"""The largest root mean square of the scaled weights. It costs the sums of a round 2 bits: by the Cauchy-Schwarz
inequality, weights make a sum over m rows of mean square 1 at most `MAX_RMS` times as large as m."""
MAX_UNEVENNESS = 32.0
"""The largest ratio of the root mean square of the weights to their mean. The mean is then at least 1/8."""
WEIGHT_BITS = 6
"""Fraction bits of weights that are not small whole numbers."""


@dataclass(frozen=True, eq=False)
class SampleWeights:
    """Scaled weights of the training rows."""

    values: FloatVector
    """At least 0, multiples of 2^-bits, shape (n_train,)."""
    bits: int
    """Fraction bits: 0 or `WEIGHT_BITS`."""

    @classmethod
    def of(
        cls,
        weights: FloatVector | None,
        class_weight: ByLabel | None,
        labels: FloatVector,
        seed: int,
    ) -> Self | None:
        """Scale the weights of the training rows.

        Args:
            weights: the weights in the table, at least 0, shape (n_train,); None without such a column.
            class_weight: weights by label, which multiply the others.
            labels: -1 or +1, shape (n_train,).
            seed: the job's seed, which decides which rows are rounded up.

        Returns:
            The scaled weights; None if neither kind of weights is given.

        Raises:
            DataError: all weights are zero, or they are too uneven.
        """
        if weights is None and class_weight is None:
            return None
        # Of many rows each array takes much memory, so what can be is computed in place.
        of_rows = np.ones(len(labels)) if weights is None else weights
        if not of_rows.any():
            raise DataError(
                "every training row has the weight 0: correct the column of `label.weight`, or set another `seed`"
            )
        relative = of_rows / of_rows.max()
        by_label = _by_label(class_weight, labels, relative)
        relative *= by_label / by_label.max()
        relative /= relative.mean()
        unevenness = _rms(relative)
        if unevenness > MAX_UNEVENNESS:
            error = DataError(
                f"the weights of the training rows are too uneven: their root mean square is more than"
                f" {MAX_UNEVENNESS:g} times their mean; set an upper limit to the column of `label.weight`, or a less"
                " extreme `label.class_weight`; the guest's log has the numbers"
            )
            error.add_note(f"the root mean square is {unevenness:.1f} times the mean")
            raise error
        if class_weight != "balanced" and _is_whole(of_rows) and _is_whole(by_label):
            whole = of_rows * by_label
            whole /= np.gcd.reduce(whole.astype(np.int64))
            for bits in (0, WEIGHT_BITS):
                times = math.floor(MAX_RMS * 2**bits / _rms(whole))
                if times >= 1:
                    return cls(whole * times / 2**bits, bits)
        del of_rows, by_label
        # Powers of two, so the products are exact.
        relative *= 2.0 ** (math.floor(math.log2(MAX_RMS / unevenness)) + WEIGHT_BITS)
        _round(relative, labels, seed)
        relative /= 2**WEIGHT_BITS
        return cls(relative, WEIGHT_BITS)


def n_effective(weights: FloatVector) -> float:
    """Return how many rows of equal weight have the same variance of a mean: (sum c)^2 / sum c^2.

    Source: L. Kish, Survey Sampling, 1965, section 11.7.

    Args:
        weights: at least 0, shape (n_rows,).
    """
    squares = float(np.square(weights).sum())
    return float(weights.sum()) ** 2 / squares if squares > 0 else 0.0


def _by_label(class_weight: ByLabel | None, labels: FloatVector, of_rows: FloatVector) -> FloatVector:
    """Return the weight of each row by its label, before it is multiplied by the weight in the table."""
    positive = negative = 1.0
    if class_weight == "balanced":
        # `party_data.check_labels` refuses rows of one label alone.
        positive, negative = (1 / (of_rows[labels == label].sum() or 1.0) for label in (1, -1))
    elif class_weight is not None:
        positive, negative = class_weight
    return np.where(labels > 0, positive, negative)


def _is_whole(weights: FloatVector) -> bool:
    # Products of two such weights are exact.
    return bool((weights == np.rint(weights)).all() and weights.max() < 2**26)


def _rms(values: FloatVector) -> float:
    return float(np.sqrt(np.square(values).mean()))


def _round(values: FloatVector, labels: FloatVector, seed: int) -> None:
    """Round to integers so that the sum over the rows of each label is right, in rows that are drawn by a seed.

    Rounding the cumulative sums carries the error of each row on to the next. The drawn order keeps the rounding apart
    from any order of the table.
    """
    order = rounding_order(len(values), seed)
    are_positive = labels[order] > 0
    order = np.concatenate([order[~are_positive], order[are_positive]])
    sums = values[order]
    np.cumsum(sums, out=sums)
    np.rint(sums, out=sums)
    sums[1:] -= sums[:-1]
    values[order] = sums
