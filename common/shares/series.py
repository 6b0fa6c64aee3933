"""The sigmoid as a linear part and a short sine series, with public coefficients that are integers.

    sigma(u) = 1/2 + u / P + sum_k b_k sin(2 pi k u / P)      for |u| <= max_score

The b_k come from `benchmarks/series.py`, which fits them by Remez exchange. Beyond max_score the right side goes on as
a rising staircase around 1/2 + u / P. Its slope is nowhere below -5e-9, so the loss that belongs to it,

    sum u^2 / (2 P) - sum_k L_k cos(2 pi k u / P) + log 2 + sum_k L_k - (y - 1/2) u,      L_k = b_k P / (2 pi k),

is convex, and equals log(1 + exp(u)) - y u up to about the largest error for |u| <= max_score.
"""

import math
from dataclasses import dataclass

COEF_BITS = 32
"""Fraction bits of b_k."""
LOSS_COEF_BITS = 23
"""Fraction bits of 2048 L_k / P."""
MAX_TERMS = 40


@dataclass(frozen=True)
class Series:
    """One series."""

    period: float
    """P, a multiple of 1/16, so that it is exact."""
    coef: tuple[int, ...]
    """b_k for k = 1 and up, with COEF_BITS fraction bits; each is below 1/2 and none is 0."""

    @property
    def loss_coef(self) -> tuple[int, ...]:
        """2048 L_k / P = 1024 b_k / (pi k), with LOSS_COEF_BITS fraction bits."""
        scale = 2.0 ** (LOSS_COEF_BITS - COEF_BITS) * 1024 / math.pi
        return tuple(round(b * scale / k) for k, b in enumerate(self.coef, 1))

    @property
    def loss_at_zero(self) -> float:
        """Sum of L_k: what the waves of a row with u = 0 take from its loss."""
        return self.period / 2048 * math.ldexp(sum(self.loss_coef), -LOSS_COEF_BITS)


SERIES = {
    8: Series(
        18.0625,
        (1128638915, 340216026, 112720159, 37800156, 12624280, 4270001, 1402644, 492022, 149206, 61124, 13147, 9408),
    ),
    12: Series(
        24.625,
        (
            1230999210,
            459723878,
            199509543,
            88921265,
            39836898,
            17868703,
            8013858,
            3596802,
            1612013,
            724593,
            323767,
            146429,
            64610,
            29973,
            12541,
            7780,
        ),
    ),
    24: Series(
        48.5,
        (
            1330104564,
            613532926,
            359489859,
            227236262,
            147956097,
            97542837,
            64654664,
            42956781,
            28570433,
            19010884,
            12652501,
            8421500,
            5605565,
            3731264,
            2483671,
            1653227,
            1100466,
            732562,
            487713,
            324741,
            216195,
            143819,
            95555,
            63478,
            42302,
            28366,
            19076,
            12699,
            8235,
            5186,
            3287,
            2276,
            1806,
            1504,
            1137,
            701,
            330,
            110,
            23,
            2,
        ),
    ),
}
"""By `JobConfig.max_score`. The largest errors of the probability are 4.1e-7, 7.5e-7 and 6.9e-7."""
