"""Real numbers as integers, at a scale that is fixed for each kind of message.

A separate exponent for each value would travel in clear and reveal the size of the value.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from gmpy2 import mpz
from numpy.typing import ArrayLike, NDArray

from trilateral.common.base.errors import OutOfRangeError


def encode(values: ArrayLike, fraction_bits: int, limit_bits: int) -> NDArray[np.int64]:
    """Round values to multiples of 2^-fraction_bits, halves to even.

    Args:
        values: the values, of any shape.
        fraction_bits: bits after the binary point.
        limit_bits: the range is +-2^limit_bits.

    Returns:
        The values times 2^fraction_bits, of the same shape.

    Raises:
        OutOfRangeError: a value is out of range, or not finite. Values never wrap around.
        ValueError: the range does not fit 63 bits.
    """
    if fraction_bits + limit_bits > 62:
        raise ValueError(f"{limit_bits} integer and {fraction_bits} fraction bits do not fit an int64")
    values = np.asarray(values, dtype=np.float64)
    # In this form a NaN, which compares false with everything, fails too.
    if not np.all(np.abs(values) <= 2.0**limit_bits):
        raise OutOfRangeError(
            f"a value is outside the fixed-point range of +-2^{limit_bits}: "
            "if training diverged, lower the learning rate; else standardise or clip the columns"
        )
    # A power of two scales without rounding, so each value is rounded once.
    scaled: NDArray[np.float64] = np.rint(np.ldexp(values, fraction_bits))
    return scaled.astype(np.int64)


def encode_wide(values: ArrayLike, fraction_bits: int) -> list[int]:
    """Round values of shape (n,) like `encode`, but to integers of any size.

    Raises:
        OutOfRangeError: a value is not finite.
    """
    values = np.asarray(values, dtype=np.float64)
    if not np.all(np.isfinite(values)):
        raise OutOfRangeError("a value is not finite: if training diverged, lower the learning rate")
    return [round(Fraction(value) * 2**fraction_bits) for value in values.tolist()]


def decode(integers: Sequence[int | mpz] | NDArray[np.int64], fraction_bits: int) -> NDArray[np.float64]:
    """Divide integers of any size by 2^fraction_bits, rounded to the nearest float; shape (n,)."""
    return np.ldexp(np.array(integers, dtype=np.float64), -fraction_bits)
