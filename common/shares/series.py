"""The sigmoid as a linear part and a short sine series, with public coefficients that are integers.

    sigma(u) = 1/2 + u / P + sum_k b_k sin(2 pi k u / P)      for |u| <= max_score

The b_k come from `benchmarks/series.py`, which fits them by Remez exchange. Beyond max_score the right side goes on as
a rising staircase around 1/2 + u / P. Its slope is nowhere below -5e-9, so the loss that belongs to it,

    sum u^2 / (2 P) - sum_k L_k cos(2 pi k u / P) + log 2 + sum_k L_k - (y - 1/2) u,      L_k = b_k P / (2 pi k),

is convex, and equals log(1 + exp(u)) - y u up to about the largest error for |u| <= max_score.

**The step of inference** has series of its own. A training has few steps, so they can afford a smaller error: 1e-7 in
each probability moves a weight by some 1e-5 of its standard error, and the 1e-6 of the other series by 1e-4. Its b_k
are the Fourier coefficients of sum_j sigma(u - j P) with the jumps taken away. With w_k = 2 pi k / P,

    b_k = 2 pi / (P sinh(pi w_k))

These series are off by some 2 exp(-pi w_{K+1}) everywhere, and by exp(-(P - |u|)) more near the end of the range. The
entropy of a row, H(u) = log(1 + exp(u)) - u sigma(u), falls off on both sides, so it needs no linear part:

    H(u) = pi^2 / (3 P) + sum_k h_k cos(w_k u),      h_k = b_k (pi coth(pi w_k) - 1 / w_k)
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


@dataclass(frozen=True)
class InferenceSeries(Series):
    """A series of the step of inference."""

    entropy_coef: tuple[int, ...]
    """h_k for k = 1 and up, with COEF_BITS fraction bits."""

    @property
    def mean_entropy(self) -> float:
        """The part of H without waves, pi^2 / (3 P)."""
        return math.pi**2 / (3 * self.period)


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

_SHORT = InferenceSeries(
    25.0,
    (
        1234774711,
        464815015,
        203861838,
        91916636,
        41674036,
        18916117,
        8588164,
        3899327,
        1770449,
        803856,
        364983,
        165717,
        75242,
        34163,
        15511,
        7043,
        3198,
        1452,
        659,
        299,
    ),
    (
        980893262,
        665167726,
        381392258,
        198378463,
        97857235,
        46891718,
        22099765,
        10310812,
        4779327,
        2205543,
        1014608,
        465669,
        213352,
        97617,
        44616,
        20374,
        9298,
        4240,
        1933,
        881,
    ),
)
_LONG = InferenceSeries(
    40.0,
    (
        1313179629,
        584023452,
        323780232,
        191121249,
        115256581,
        70045621,
        42690739,
        26046273,
        15897483,
        9704537,
        5924409,
        3616796,
        2208037,
        1348000,
        822951,
        502410,
        306720,
        187252,
        114317,
        69790,
        42607,
        26011,
        15880,
        9695,
        5919,
        3613,
        2206,
        1347,
        822,
        502,
        306,
        187,
    ),
    (
        667845772,
        567728770,
        441179464,
        319874098,
        220585927,
        146916969,
        95559770,
        61160772,
        38712112,
        24312757,
        15184073,
        9443893,
        5855497,
        3621901,
        2236107,
        1378465,
        848728,
        522043,
        320834,
        197038,
        120937,
        74190,
        45493,
        27885,
        17087,
        10467,
        6410,
        3925,
        2402,
        1470,
        900,
        550,
    ),
)
INFERENCE_SERIES = {8: _SHORT, 12: _SHORT, 24: _LONG}
"""By `JobConfig.max_score`. The largest errors of the probability are 7e-8 up to |u| = 8, and 3e-6 up to 12. The series
for 24 is off by 7e-8 up to 20, and by 2e-7 up to 24."""


def inference_series(series: Series) -> InferenceSeries:
    """Return the series of the step of inference in a job whose rounds have this one."""
    return next(INFERENCE_SERIES[score] for score, each in SERIES.items() if each == series)
