"""The public numbers of a job on shares: the fraction bits of each kind of value, and which bits leave the parties.

The three processes compute them from the same three numbers, in integer arithmetic, so all have the same.

**Scores.** u' = u 32 / P has SCORE_BITS fraction bits, so the period of the series is 2^PERIOD_BITS in the ring.
Columns are multiplied by a whole number, `column_scale` = 2^f_x, and weights have f_w = SCORE_BITS - f_x bits. A score
fits if |u'| < 2^18.

**Gradient.** A sum has f_x + f_d + f_c fraction bits, and those are at most 63 - log2 n for the n rows of the training
set. Columns have a root mean square of at most 1 over these rows. The square of a residual is at most the loss of its
row, so by Cauchy's inequality a sum over all rows is at most n times the square root of their mean loss. It is in the
range of the ring, 2^63, while the mean loss is below 1, and a sum over a batch of b rows while its mean loss is below
n / b. At w = 0 it is log 2 = 0.69, so a step out of the range is one that its loss refuses.

**Loss.** A sum has 2 f_v + f_c fraction bits in units of P / 2048, in which u^2 / (2 P) is u'^2. If the root mean
square of u is below MAX_MEAN_SCORE P, the mean of u'^2 is below 48^2 = 2304, and the rest of the loss below 2048 / P
(1.5 P / 2 + 2) < 1770 for the P in use, together below 2^12. So 2 f_v + f_c <= 51 - log2 n keeps the sum below 2^63.

**Sample weights** have f_c bits. Both sums have two bits less then: the root mean square of the weights may be up to 4,
and the bounds hold if the weighted mean of u'^2 is not above four times the plain one.

**Noise.** Waves and cuts are rounded, which gives every row an error that depends on r, and the coordinator knows r. So
the parties drop as many low bits of a sum as give COVER_BITS bits more than the deviation of its noise. What they drop
is the noise of the gradient. `column_scale` and f_d share the bits of a gradient such that this noise and that of
rounded columns are together the smallest, and what is dropped is COVER_BITS more than the noise, and not up to twice as
much.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import ElementVector, FloatVector
from trilateral.common.shares.layout import pad
from trilateral.common.shares.ring import encode
from trilateral.common.shares.series import COEF_BITS, LOSS_COEF_BITS, SERIES, Series

SCORE_BITS = 44
"""Fraction bits of u'."""
PERIOD_BITS = SCORE_BITS + 5
"""The period of the waves is 2^PERIOD_BITS in the ring: u' = 32."""
WAVE_BITS = 30
"""Fraction bits of the waves before they are cut."""
OFFSET = 1 << 62
"""Added to the scores, so that they are positive."""
SCORE_LIMIT = 2.0**18
"""Every |u'| must be smaller."""
MAX_MEAN_SCORE = 1.5
"""The root mean square of the scores u must be below so many periods P. Means are over n_train rows."""
MIN_COLUMN_SCALE, MAX_COLUMN_SCALE, MAX_RESIDUAL_BITS = 2**5, 2**13, 40
COVER_BITS = 8
MODEL_FRACTION_BITS = 40
"""Fraction bits of the shares of the final weights."""
GRADIENT_BITS, LOSS_BITS = 63, 51
"""What the fraction bits of a sum and log2 n may amount to; see the module."""
WEIGHT_ROOM = 2
"""Bits of the root mean square of sample weights, which is at most 4. The guest scales them to more than 2."""


@dataclass(frozen=True)
class Format:
    """The public numbers of a job. See `of`."""

    series: Series
    column_scale: int
    """What columns are multiplied by before they are rounded: 2^f_x."""
    f_d: int
    """Fraction bits of the residual."""
    f_v: int
    """Fraction bits of u' in its square."""
    f_c: int = 0
    """Fraction bits of the sample weights."""
    weighted: bool = False
    """Whether rows have sample weights."""

    @classmethod
    def of(cls, n_train: int, max_score: int, weight_bits: int | None = None) -> "Format":
        """Return the numbers of a job.

        Args:
            n_train: rows of the training set.
            max_score: `JobConfig.max_score`.
            weight_bits: fraction bits of the sample weights, whose root mean square is at most 4; None without weights.
                Integer weights may have any number: with f bits, the integer c stands for c / 2^f.

        Raises:
            ValueError: no series has this max_score, or so many rows and weight bits leave no bits for the residual.
        """
        if max_score not in SERIES:
            raise ValueError(f"max_score {max_score}: expected one of {', '.join(map(str, SERIES))}")
        return _format(max(1000, n_train), max_score, weight_bits)

    @property
    def n_terms(self) -> int:
        """K."""
        return len(self.series.coef)

    @property
    def f_x(self) -> float:
        """Fraction bits of the columns."""
        return math.log2(self.column_scale)

    @property
    def f_w(self) -> float:
        """Fraction bits of weights for scores, which are w 32 / P."""
        return SCORE_BITS - self.f_x

    @property
    def f_wl(self) -> float:
        """Fraction bits of weights for the linear part of the loss, which are w 1024 / P."""
        return 2 * self.f_v - self.f_x

    @property
    def gradient_bits(self) -> float:
        """Fraction bits of a sum that belongs to a gradient."""
        return self.f_x + self.f_d + self.f_c

    @property
    def loss_bits(self) -> int:
        """Fraction bits of a sum that belongs to a loss, which is in units of `loss_unit`."""
        return 2 * self.f_v + self.f_c

    @property
    def loss_unit(self) -> float:
        """P / 2048."""
        return self.series.period / 2048

    @property
    def residual_cut(self) -> int:
        """How many bits of u' the residual drops."""
        return PERIOD_BITS - self.f_d

    @property
    def square_cut(self) -> int:
        """How many bits of u' its square drops; at least `residual_cut`."""
        return SCORE_BITS - self.f_v

    @property
    def n_values(self) -> int:
        """Dealt values of a row."""
        return 2 * self.n_terms + 5 + self.weighted

    @property
    def n_even(self) -> int:
        """Even-numbered ones: the host's stream, the guest's corrections."""
        return (self.n_values + 1) // 2

    @property
    def n_odd(self) -> int:
        """Odd-numbered ones: the guest's stream, the host's corrections."""
        return self.n_values // 2

    @property
    def n_opened(self) -> int:
        """Columns that the host opens: its residual, and with sample weights its loss."""
        return 1 + self.weighted

    @cached_property
    def wave_bits(self) -> tuple[int, ...]:
        """Fraction bits of the dealt waves of each term."""
        return _wave_bits(self.series, self.f_d)

    @cached_property
    def kernel_numbers(self) -> NDArray[np.int64]:
        """The numbers as the kernel in C reads them: see `read_format` in native/bindings.c."""
        waves = self.wave_bits
        return np.array(
            [
                self.n_terms,
                self.residual_cut,
                self.square_cut,
                self.weighted,
                *(WAVE_BITS - wave for wave in waves),
                *(WAVE_BITS + COEF_BITS - (self.f_d - wave) for wave in waves),
                *(WAVE_BITS + LOSS_COEF_BITS - (2 * self.f_v - wave) for wave in waves),
                *self.series.coef,
                *self.series.loss_coef,
            ],
            np.int64,
        )

    @cached_property
    def holdout(self) -> "Format":
        """The numbers for hold-out rows, which have no sample weights."""
        return replace(self, f_c=0, weighted=False)

    def encode_score_weights(self, w: FloatVector) -> ElementVector:
        """Return w at the scale of the scores, shape (n,)."""
        return encode(w * (32 / self.series.period), self.f_w)

    def encode_loss_weights(self, w: FloatVector) -> ElementVector:
        """Return w / 2 at the scale of the loss: times X'(c q), it is the linear part."""
        return encode(w * (1024 / self.series.period), self.f_wl)

    def loss_offset(self, total_weight: float, n_padding: int) -> ElementVector:
        """Return what the guest adds to its share of the loss: its constant part.

        Args:
            total_weight: sum of the sample weights of the rows; without weights their number.
            n_padding: rows of padding in the tables, which have u = 0; 0 with sample weights, which are 0 there.

        Returns:
            Shape (1,).
        """
        real = total_weight * (math.log(2) + self.series.loss_at_zero) + n_padding * self.series.loss_at_zero
        return encode(np.array([real / self.loss_unit]), self.loss_bits)

    def gradient_drop(self, n_rows: int) -> int:
        """Return how many low bits of a gradient over so many rows the parties drop."""
        return cover(self.gradient_variance(n_rows))

    def gradient_noise(self, n_rows: int) -> float:
        """Return the standard deviation of an element of a gradient over so many rows: of the sum, not of the mean."""
        return math.pow(2, self.gradient_drop(n_rows) - self.gradient_bits) / math.sqrt(6)

    def loss_noise(self, n_rows: int) -> float:
        """Return the standard deviation of a loss over so many rows: of the sum, not of the mean."""
        return math.pow(2, self.loss_drop(n_rows) - self.loss_bits) * self.loss_unit / math.sqrt(6)

    def gradient_variance(self, n_rows: int) -> Fraction:
        """Return the variance of the noise of an element of a gradient over so many rows, in units of its last bit."""
        return self._row_variance * n_rows * self.column_scale**2

    @cached_property
    def _row_variance(self) -> Fraction:
        """Variance of the noise of a row's residual, in units of its last bit, times a squared sample weight."""
        # A rounding has a variance of 1/12, the cut of u' of 1/6 on average.
        variance = Fraction(1, 6)
        for b, wave in zip(self.series.coef, self.wave_bits, strict=True):
            variance += (4**wave + Fraction(b * b, 4**COEF_BITS) * 4 ** (self.f_d - wave)) / 12
        return variance * (1 << 2 * (self.f_c + WEIGHT_ROOM * self.weighted))

    def loss_drop(self, n_rows: int) -> int:
        """Return how many low bits of a loss over so many rows the parties drop."""
        # A square's error is 2 u' times that of u', 1/6. For u' the formula takes a root mean square of 8: a quarter of
        # a period.
        variance = Fraction(4 * 8**2 * 4**self.f_v, 6)
        for b, wave in zip(self.series.loss_coef, self.wave_bits, strict=True):
            variance += (4**wave + Fraction(b * b, 4**LOSS_COEF_BITS) * 4 ** (2 * self.f_v - wave)) / 12
        return cover(variance * n_rows * 4 ** (self.f_c + WEIGHT_ROOM * self.weighted))


def cover(variance: Fraction) -> int:
    """Return the least q with 2^q at least 2^COVER_BITS deviations of a noise: how many low bits of a sum to drop."""
    wanted, q = variance * 4**COVER_BITS, 0
    while 4**q < wanted:
        q += 1
    return q


@cache
def _wave_bits(series: Series, f_d: int) -> tuple[int, ...]:
    """Return for each term how f_d bits are divided between the dealt wave and its coefficient: the least variance."""

    def best(b: int) -> int:
        variances = [
            (1 << 2 * (wave + COEF_BITS)) + (b * b << 2 * (f_d - wave)) for wave in range(min(f_d, WAVE_BITS) + 1)
        ]
        return variances.index(min(variances))

    return tuple(best(b) for b in series.coef)


@cache
def _format(n_rows: int, max_score: int, weight_bits: int | None) -> Format:
    """Return the numbers for some rows: of all that fit, those with the least noise."""
    series, weighted, f_c = SERIES[max_score], weight_bits is not None, weight_bits or 0
    room = f_c + WEIGHT_ROOM * weighted
    f_v = 0
    while n_rows << 2 * (f_v + 1) + room <= 1 << LOSS_BITS:
        f_v += 1
    choices = [
        fmt
        for f_d in range(max(16, f_v + 5), MAX_RESIDUAL_BITS + 1)
        for scale in _column_scales(Format(series, 1, f_d, f_v, f_c, weighted), n_rows, room)
        if (fmt := Format(series, scale, f_d, f_v, f_c, weighted)).f_wl >= 1
    ]
    if not choices:
        raise ValueError(f"{n_rows} rows with {f_c} bits of sample weights do not fit 64 bits")
    return min(choices, key=lambda fmt: _error(fmt, n_rows))


def _column_scales(fmt: Format, n_rows: int, room: int) -> list[int]:
    """Return the scales of columns that may be the best for the residual of `fmt`.

    One is the largest. The other is the largest whose noise has a cover of exactly COVER_BITS.
    """
    largest = min((1 << GRADIENT_BITS - room - fmt.f_d) // n_rows, MAX_COLUMN_SCALE)
    variance = fmt.gradient_variance(pad(n_rows)) * 4**COVER_BITS
    exact, q = 0, 0
    while (scale := math.isqrt(int(4**q / variance))) <= largest:
        exact, q = scale, q + 1
    return [scale for scale in {largest, exact} if scale >= MIN_COLUMN_SCALE]


def _error(fmt: Format, n_rows: int) -> Fraction:
    """Return the variance of a weight in units of its own sampling variance, for sigma' = 1/12, times 6.

    Columns are rounded at random, with a mean variance of 1/6. The dropped bits have 4^q / 6. The mean square of sample
    weights is between 4 and 16: 8 is in the middle.
    """
    squared_weight = 8 if fmt.weighted else 1
    dropped = Fraction(12 * 4 ** fmt.gradient_drop(pad(n_rows)), 4 ** (fmt.f_d + fmt.f_c) * n_rows * squared_weight)
    return (1 + dropped) / fmt.column_scale**2
