"""The Fisher information X'(c W)X, the gradient X'(c d) and the loss in shares: what each role computes on a block.

W = sigma'(u) and d = sigma(u) - y. The names are those of `kernels`: A and B are the host and the guest, X a party's
own columns, U their masks, which the coordinator C knows, too, and D = X - U, which both parties know.

The series are those of `series.inference_series`.

**Slopes.** W is the derivative of the series of the sigmoid:

    W = 1/P + sum_k g_k cos(2 pi k u / P),      g_k = 2 pi k b_k / P

From z and dealt shares of cos kr and sin kr, each party computes a share of W with `wide_bits` bits. No sum over rows
has room for so many, so the parties round: each sends its share plus a mask e_1 or e_2. Both then know m = c W + e +
OFFSET, and from dealt shares of the upper bits of e and of its top bit each gets a share of T, which is c W with
`slope_bits` bits. T is off by less than one unit, and right on average.

The columns of the information are those of the rounds. With sample weights, those may be rounded so coarsely that the
parties exchange others under masks of the attempt: see `scales`.

**Opened slopes.** The parties open o = T - g, with a mask g = g_1 + g_2 of which A knows g_1, B knows g_2, and C knows
both. What is left of a party's own block is a sum of products of which somebody knows both factors, or which are dealt
in shares: V_A = g_2 U_A and V_B = g_1 U_B, a value for each column of a row.

    X_A'T X_A = X_A'(o + g_1) X_A + D_A'V_A1 + (D_A'V_A1)'     [A]
              + D_A' g_2 D_A      + D_A'V_A2 + (D_A'V_A2)'     [B]
              + U_A' g_2 U_A                                   [C]

and likewise for B with the roles exchanged. For the block of both, the party with fewer columns, say B, opens Y_2 - M,
where Y = T X_B has the shares Y_1 = g_1 D_B + V_B1 and Y_2 = (o + g_2) X_B + V_B2:

    X_A'T X_B = X_A'(Y_1 + Y_2 - M)   [A]  +  D_A'M   [B]  +  U_A'M   [C]

**Sample weights** c multiply W before it is rounded. A opens its share of W minus a mask e_c; B, which knows c,
multiplies it and its own share. A adds D_c e_c, and U_c e_c is dealt in shares.

**Gradient.** The weights of a training are as exact as the gradients that led to them, in which the rounding of the
columns and of the waves shows. One step of Newton's method with a finer gradient makes them exact. For it, the parties
exchange the columns once more, rounded to multiples of 1 / `fine_scale`, under masks of the attempt. Scores and
gradient come from these. From the same waves as W, each party computes a share of d with `residual_wide` bits. It is
rounded to `residual_bits` like W, to T_d. With sample weights, A then opens its share of T_d minus a mask, as it does
for W, and B multiplies by c. Last, both open o = c T_d - g, and

    X_A'(c T_d) = X_A'(o + g_1)  [A]  +  D_A' g_2  [B]  +  U_A' g_2  [C]

**Loss.** The loss of a row is its entropy and a part that the gradient knows, because sums of c x d make it up:

    log(1 + exp(u)) - y u = H(u) + d u,         sum_i c_i d_i u_i = w'X'(c d)

H has a series with the waves of W. Each party computes a share of it, with sample weights multiplied like that of W,
and adds the rows. C knows the loss to `LOSS_LIMIT` from the rounds, so a sum needs no room for more: see
`entropy_bits`. It can wrap around the ring any number of times.

**Range.** |c W| < 2^60 at `wide_bits`, since W <= 1/4 and c < 2^WEIGHT_LIMIT_BITS, which the guest checks. A sum is at
most n max(c) / 4 by Cauchy's inequality, since columns have a mean square of at most 1. `slope_bits` keeps it below
2^62, for any scores, because the series never exceeds 1/4 by more than its error. |d| < 2^62 at `residual_wide`, since
the coordinator refuses points at which a score could reach MAX_PERIODS periods. For a sum of the gradient see
`GRADIENT_LIMIT_BITS`. C uses it after a training that has converged, and not otherwise.

**Noise.** The rounding errors of T depend on e, and C knows e. So the parties drop low bits of each sum, COVER_BITS
more than its noise has, as they do for a gradient. The error of row i is multiplied by x_ij x_ik. By Cauchy's
inequality, the sum of these squares is at most n times the largest mean fourth power of a column, of which each party
reports the logarithm. The errors of T_d depend on masks, too, and a sum of the gradient drops its low bits in the same
way; its columns have a mean square of at most 1. So does the sum of the entropies.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import ElementVector, FloatMatrix, FloatVector
from trilateral.common.base.roles import Role
from trilateral.common.shares import kernels
from trilateral.common.shares.format import OFFSET, PERIOD_BITS, WAVE_BITS, WEIGHT_ROOM, Format, cover
from trilateral.common.shares.kernels import Columns, DealerKeys, Weights
from trilateral.common.shares.keys import Purpose
from trilateral.common.shares.layout import GROUP, grouped, pad
from trilateral.common.shares.reference import Elements
from trilateral.common.shares.series import COEF_BITS, InferenceSeries, inference_series

ScalarT = TypeVar("ScalarT", np.float64, np.uint64)

WEIGHT_LIMIT_BITS = 6
"""Scaled sample weights, whose root mean square is at most 4, must be below 2^WEIGHT_LIMIT_BITS for inference."""
MAX_WIDE_BITS = 60
MAX_COEF_BITS = 31
MAX_PERIODS = 62
"""The scores u of the step must be below so many periods P."""
MAX_RESIDUAL_BITS = 34
GRADIENT_LIMIT_BITS = 4
"""Each element of the mean gradient, for sample weights of mean 1, must be below 2^-GRADIENT_LIMIT_BITS: half a turn of
the ring. A training with inference ends near the maximum. Where the loss is G above its minimum, an element is at most
sqrt(2 G F_jj) by Cauchy's inequality, because G is about g'F^-1 g / 2. Without sample weights, the mean information
F_jj is at most 1/4. So G may be 8e-3, some 80 times the largest permitted tolerance, 1e-4. With sample weights of mean
m <= 4, F_jj is at most 16 / m, and half a turn is 4 / m times as much: G may be 5e-4."""
LOSS_LIMIT_BITS = 8
"""The mean loss must be known to LOSS_LIMIT before the step. It is, because the optimiser expects its last step to
lower the loss by less than half of that: by some 1e-3 with the largest permitted tolerance, and usually by far less."""
LOSS_LIMIT = 2.0**-LOSS_LIMIT_BITS
_MAX_WIDE_RESIDUAL = 56
_TYPICAL_FOURTH_BITS = 3
_TYPICAL_RESIDUAL = 0.25
_COEF_ROOM = 4
"""Bits of g_k beyond those of T. The rounding errors of all terms then have a twentieth of the variance of T's."""
_SCALE_BITS, _MAX_SCALE, _MIN_SLOPE_BITS = range(5, 17), 2**13, 8
"""The scales that are considered, the largest for the information, and the fewest bits of T."""
_MEAN_SQUARE_BITS = 4
"""Bits of the mean square of sample weights, at most 16."""
_TOP = np.uint64(63)


@dataclass(frozen=True)
class SlopeFormat:
    """The public numbers of the slopes of a job. See `of`."""

    fmt: Format
    n_train: int
    """Training rows."""
    fourth_bits: int
    """Ceiling of log2 of the largest mean of x^4 over the training rows, of the columns of both parties."""
    column_scale: int
    """What the columns of the information are multiplied by before they are rounded."""
    fine_scale: int
    """The same for those of the gradient and of the scores."""

    @classmethod
    def of(cls, fmt: Format, n_train: int, fourth_bits: int) -> "SlopeFormat":
        """Return the numbers of a job whose rounds have the format `fmt`."""
        scale, fine = scales(fmt, n_train)
        return cls(fmt, n_train, fourth_bits, scale, fine)

    @cached_property
    def series(self) -> InferenceSeries:
        """The series of the step."""
        return inference_series(self.fmt.series)

    @property
    def n_terms(self) -> int:
        """K."""
        return len(self.series.coef)

    @property
    def has_own_columns(self) -> bool:
        """Whether the columns of the information are not those of the rounds."""
        return self.column_scale != self.fmt.column_scale

    @property
    def _room(self) -> int:
        return WEIGHT_LIMIT_BITS if self.fmt.weighted else 0

    @property
    def wide_bits(self) -> int:
        """Fraction bits of W before it is multiplied by c and rounded."""
        return min(MAX_WIDE_BITS, 62 - self.fmt.f_c - self._room)

    @property
    def wave_bits(self) -> int:
        """Fraction bits of the dealt waves: half of those of the residual, where its noise is the least.

        There may be fewer, so that g_k have as many bits as rounding W to T needs.
        """
        most = self.wide_bits - self.slope_bits - _COEF_ROOM
        return max(min(_MAX_WIDE_RESIDUAL // 2, most), self.wide_bits - MAX_COEF_BITS)

    @property
    def slope_bits(self) -> int:
        """Fraction bits of T."""
        return 64 - self._room - (self.n_train * self.column_scale**2 - 1).bit_length()

    @property
    def cut(self) -> int:
        """How many bits of c W are rounded away."""
        return self.wide_bits + self.fmt.f_c - self.slope_bits

    @property
    def sum_bits(self) -> float:
        """Fraction bits of a sum."""
        return 2 * math.log2(self.column_scale) + self.slope_bits

    @cached_property
    def coef(self) -> tuple[int, ...]:
        """g_k, with `wide_bits - wave_bits` fraction bits."""
        bits, series = self.wide_bits - self.wave_bits, self.series
        return tuple(
            round(math.ldexp(b * 2 * math.pi * k / series.period, bits - COEF_BITS))
            for k, b in enumerate(series.coef, 1)
        )

    @cached_property
    def fine(self) -> Format:
        """The numbers of the job for the step's series and columns that are multiplied by `fine_scale`."""
        return replace(self.fmt, series=self.series, column_scale=self.fine_scale)

    @property
    def residual_wide(self) -> int:
        """Fraction bits of d before it is rounded; at least PERIOD_BITS."""
        return min(_MAX_WIDE_RESIDUAL, self.wave_bits + MAX_COEF_BITS)

    @property
    def residual_bits(self) -> int:
        """Fraction bits of T_d."""
        room = self.fmt.f_c + WEIGHT_ROOM * self.fmt.weighted
        most = 63 + GRADIENT_LIMIT_BITS - room - (self.n_train * self.fine_scale - 1).bit_length()
        return min(MAX_RESIDUAL_BITS, most)

    @property
    def residual_cut(self) -> int:
        """How many bits of d are rounded away."""
        return self.residual_wide - self.residual_bits

    @property
    def gradient_bits(self) -> int:
        """Fraction bits of a sum of the gradient."""
        return self.fine_scale.bit_length() - 1 + self.residual_bits + self.fmt.f_c

    @cached_property
    def residual_coef(self) -> tuple[int, ...]:
        """b_k, with `residual_wide - wave_bits` fraction bits."""
        bits = self.residual_wide - self.wave_bits - COEF_BITS
        return tuple(round(math.ldexp(b, bits)) for b in self.series.coef)

    @property
    def entropy_bits(self) -> int:
        """Fraction bits of H. A sum has f_c more, and then its last LOSS_LIMIT must fit into 63 bits."""
        room = self.fmt.f_c + WEIGHT_ROOM * self.fmt.weighted
        most = 63 + LOSS_LIMIT_BITS - room - (self.n_train - 1).bit_length()
        return min(self.wave_bits + MAX_COEF_BITS, most)

    @cached_property
    def entropy_coef(self) -> tuple[int, ...]:
        """h_k, with `entropy_bits - wave_bits` fraction bits."""
        bits = self.entropy_bits - self.wave_bits - COEF_BITS
        return tuple(round(math.ldexp(h, bits)) for h in self.series.entropy_coef)

    def constant_entropy(self, total_weight: float, n_padding: int) -> float:
        """Return what a sum of H has besides its waves.

        Args:
            total_weight: sum of the sample weights of the rows; without weights their number.
            n_padding: rows of padding in the tables, whose waves are in the sum; 0 with sample weights, which are 0
                there.
        """
        waves_at_zero = math.ldexp(sum(self.entropy_coef), self.wave_bits - self.entropy_bits)
        return total_weight * self.series.mean_entropy - n_padding * waves_at_zero

    @cached_property
    def kernel_coef(self) -> NDArray[np.int64]:
        """`coef`, `residual_coef` and `entropy_coef` as `kernels.add_waves` reads them."""
        return np.array(self.coef + self.residual_coef + self.entropy_coef, np.int64)

    @property
    def constant(self) -> int:
        """1/P at `wide_bits`, rounded."""
        return round(Fraction(1 << self.wide_bits) / Fraction(self.series.period))

    @property
    def n_weighted(self) -> int:
        """Values of a row that are multiplied by its sample weight: W, H and T_d. None without sample weights."""
        return 3 * self.fmt.weighted

    @property
    def n_first(self) -> int:
        """Dealt values of a row beside those for the columns."""
        return 2 * self.n_terms + 5 + self.n_weighted

    def n_values(self, n_host: int, n_guest: int) -> int:
        """Return how many values are dealt for a row."""
        return self.n_first + n_host + n_guest

    def n_masks(self, role: Role) -> int:
        """Return how many columns the stream of `Purpose.SLOPES` has: see `Masks`."""
        return 4 + (self.n_weighted if role is Role.HOST else 0)

    def drop(self, n_padded: int) -> int:
        """Return how many low bits of a sum the parties drop.

        Args:
            n_padded: rows of the sum, those of padding included, whose slopes have the same noise.
        """
        return _drop(self, n_padded)

    def gradient_drop(self, n_padded: int) -> int:
        """Return how many low bits of a sum of the gradient the parties drop; see `drop`."""
        return _gradient_drop(self, n_padded)

    def entropy_drop(self, n_padded: int) -> int:
        """Return how many low bits of a sum of the entropies the parties drop; see `drop`."""
        return _entropy_drop(self, n_padded)

    def gradient_noise(self, n_padded: int) -> float:
        """Return the standard deviation of the rounding error of a sum of the gradient.

        Beside the dropped bits, there is the error of the columns, with a variance of 1/6, times a residual whose root
        mean square is `_TYPICAL_RESIDUAL`, and with sample weights times their largest root mean square.
        """
        dropped = math.pow(2, self.gradient_drop(n_padded) - self.gradient_bits) / math.sqrt(6)
        weight = 2.0 ** (_MEAN_SQUARE_BITS / 2) if self.fmt.weighted else 1.0
        return math.hypot(dropped, weight * _TYPICAL_RESIDUAL * math.sqrt(n_padded / 6) / self.fine_scale)

    def dropped(self, n_padded: int) -> float:
        """Return the standard deviation of the error of a sum that comes from the bits that the parties drop."""
        return math.pow(2, self.drop(n_padded) - self.sum_bits) / math.sqrt(6)

    def noise(self, n_padded: int) -> float:
        """Return the standard deviation of the whole error of a sum.

        Beside the dropped bits, there is the error of columns that were rounded at random, with a variance of 1/6: of
        c W (x_j + r_j)(x_k + r_k) for W = 1/4, and with sample weights for their largest root mean square.
        """
        weight = 2.0 ** (_MEAN_SQUARE_BITS / 2) if self.fmt.weighted else 1.0
        of_columns = weight / 4 * math.sqrt(2 * n_padded / 6) / self.column_scale
        return math.hypot(self.dropped(n_padded), of_columns)


@cache
def scales(fmt: Format, n_train: int) -> tuple[int, int]:
    """Return `SlopeFormat.column_scale` and `SlopeFormat.fine_scale`.

    The scale of the rounds leaves room for the fraction bits of sample weights. If that at least doubles the noise of
    the information, its columns have another scale. The fine scale is the one with the least noise of a gradient.
    """
    n_padded = pad(n_train)
    formats = [SlopeFormat(fmt, n_train, _TYPICAL_FOURTH_BITS, 1 << bits, 1 << bits) for bits in _SCALE_BITS]
    fine = min(formats, key=lambda each: each.gradient_noise(n_padded))
    rough = [each for each in formats if each.slope_bits >= _MIN_SLOPE_BITS and each.column_scale <= _MAX_SCALE]
    best = min(rough, key=lambda each: each.noise(n_padded))
    of_rounds = replace(best, column_scale=fmt.column_scale)
    is_worth_it = fmt.weighted and of_rounds.noise(n_padded) >= 2 * best.noise(n_padded)
    return best.column_scale if is_worth_it else fmt.column_scale, fine.fine_scale


def _waves_variance(wave_bits: int, coef: Sequence[int]) -> Fraction:
    """Return a bound of the variance of a sum of waves, in units of its last bit.

    In each term, one rounding is that of the coefficient times a wave of z, the other that of the dealt wave of r. Each
    wave is off besides, by a deviation of 0.81 k 2^-WAVE_BITS: see `reference.waves`. Where u is 0, those of z and of r
    are off by the same, and those of a row are off in the same direction. (2 0.81)^2 is about 32 / 12.
    """
    roundings = sum(4**wave_bits + g * g for g in coef)
    together = sum(k * abs(g) for k, g in enumerate(coef, 1))
    return Fraction(roundings, 12) + Fraction(32 * 4**wave_bits * together**2, 12 * 4**WAVE_BITS)


@cache
def _drop(slopes: SlopeFormat, n_padded: int) -> int:
    variance = _waves_variance(slopes.wave_bits, slopes.coef)
    if slopes.fmt.weighted:
        variance *= 1 << _MEAN_SQUARE_BITS
    variance = variance / 4 ** (slopes.wide_bits - slopes.slope_bits) + Fraction(1, 6)
    return cover(variance * (n_padded << slopes.fourth_bits) * slopes.column_scale**4)


@cache
def _gradient_drop(slopes: SlopeFormat, n_padded: int) -> int:
    variance = _waves_variance(slopes.wave_bits, slopes.residual_coef)
    variance = variance / 4**slopes.residual_cut + Fraction(1, 6)
    if slopes.fmt.weighted:
        variance *= 1 << _MEAN_SQUARE_BITS + 2 * slopes.fmt.f_c
    return cover(variance * n_padded * slopes.fine_scale**2)


@cache
def _entropy_drop(slopes: SlopeFormat, n_padded: int) -> int:
    variance = _waves_variance(slopes.wave_bits, slopes.entropy_coef)
    if slopes.fmt.weighted:
        variance *= 1 << _MEAN_SQUARE_BITS + 2 * slopes.fmt.f_c
    return cover(variance * n_padded)


@dataclass(frozen=True, eq=False)
class Information:
    """A role's shares of the information, of the gradient and of the entropies."""

    host: NDArray[np.uint64] = field(repr=False)
    """Of the host's columns, shape (n_host, n_host), symmetric."""
    guest: NDArray[np.uint64] = field(repr=False)
    """Of the guest's columns, shape (n_guest, n_guest), symmetric."""
    both: NDArray[np.uint64] = field(repr=False)
    """Shape (n_host, n_guest)."""
    gradient: dict[Role, ElementVector] = field(repr=False)
    """Of each party's columns, shape (n_columns,)."""
    entropy: ElementVector = field(repr=False)
    """Shape (1,)."""

    @classmethod
    def zeros(cls, n_host: int, n_guest: int) -> "Information":
        """Return sums of nothing."""
        shapes = (n_host, n_host), (n_guest, n_guest), (n_host, n_guest)
        host, guest, both = (np.zeros(shape, np.uint64) for shape in shapes)
        gradient = {Role.HOST: np.zeros(n_host, np.uint64), Role.GUEST: np.zeros(n_guest, np.uint64)}
        return cls(host, guest, both, gradient, np.zeros(1, np.uint64))

    def of(self, role: Role) -> NDArray[np.uint64]:
        """Return the block of a party's own columns."""
        return self.host if role is Role.HOST else self.guest

    def packed(self) -> ElementVector:
        """Return the elements on and above the diagonal of the whole matrix, row by row."""
        whole = np.block([[self.host, self.both], [self.both.T, self.guest]])
        return pack(whole)

    def joint_gradient(self) -> ElementVector:
        """Return the gradient of all columns, the host's first."""
        return np.concatenate([self.gradient[Role.HOST], self.gradient[Role.GUEST]])


def pack(matrix: NDArray[ScalarT]) -> NDArray[ScalarT]:
    """Return the elements on and above the diagonal, row by row, shape (n (n + 1) / 2,)."""
    return matrix[np.triu_indices(len(matrix))]


def unpack(elements: FloatVector, n_columns: int) -> FloatMatrix:
    """Return the symmetric matrix of which `pack` has made a vector, shape (n_columns, n_columns)."""
    matrix = np.zeros((n_columns, n_columns))
    matrix[np.triu_indices(n_columns)] = elements
    return np.triu(matrix) + np.triu(matrix, 1).T


def n_packed(n_columns: int) -> int:
    """Return the number of elements of `pack`."""
    return n_columns * (n_columns + 1) // 2


@dataclass(frozen=True, eq=False)
class Masks:
    """What masks a party's values of some rows, each of shape (n_rows / 8, 8)."""

    e: Elements = field(repr=False)
    """Of its share of c W."""
    g: Elements = field(repr=False)
    """Of its share of T."""
    e_d: Elements = field(repr=False)
    """Of its share of d."""
    g_d: Elements = field(repr=False)
    """Of its share of c T_d."""
    unweighted: Sequence[Elements] = field(repr=False)
    """At the host with sample weights, of its shares of W, H and T_d before they are multiplied by c; else empty."""

    @classmethod
    def of(cls, slopes: SlopeFormat, role: Role, key: bytes, first_row: int, n_rows: int) -> "Masks":
        """Return the masks of some rows from the streams of an attempt."""
        n_masks = slopes.n_masks(role)
        stream = grouped(kernels.stream(key, Purpose.SLOPES, first_row, n_rows, n_masks), n_masks)
        e, g, e_d, g_d, *unweighted = (stream[:, number] for number in range(n_masks))
        return cls(e, g, e_d, g_d, unweighted)


# --- the coordinator


def deal_slopes(
    slopes: SlopeFormat,
    keys: DealerKeys,
    masks: tuple[ElementVector, ElementVector],
    first_row: int,
    n_rows: int,
    opener: Role,
    sums: Information,
) -> tuple[ElementVector, ElementVector]:
    """Return the corrections for the parties' streams, and add the coordinator's own parts to its sums.

    Args:
        slopes: the numbers of the job.
        keys: of the streams that the coordinator has in common with the parties.
        masks: a, shape (n_host,), and b, shape (n_guest,), of the scores.
        first_row: the first of the rows.
        n_rows: how many.
        opener: the party that opens its products of slopes and columns.
        sums: the coordinator's shares.

    Returns:
        What the host is sent and what the guest is sent: the odd-numbered and the even-numbered values. Each value has
        its rows side by side, and its elements of the streams have them, too: both ends work on the same blocks.
    """
    sessions = {Role.HOST: keys.host_session, Role.GUEST: keys.guest_session}
    rounds = {Role.HOST: keys.host_round, Role.GUEST: keys.guest_round}
    n_columns = {Role.HOST: len(masks[0]), Role.GUEST: len(masks[1])}
    own_columns = rounds, Purpose.INFORMATION_COLUMNS
    U, fine = (
        {role: kernels.stream(of[role], purpose, first_row, n_rows, n_columns[role]) for role in sessions}
        for of, purpose in (
            own_columns if slopes.has_own_columns else (sessions, Purpose.COLUMNS),
            (rounds, Purpose.COLUMNS),
        )
    )
    nothing = np.zeros(0, np.uint64)
    r = np.zeros(n_rows, np.uint64)
    for role, mask in zip(sessions, masks, strict=True):
        # s - U a: the part of a party whose columns are 0.
        weights = Weights(own=np.zeros_like(mask), opened=np.negative(mask), other=nothing)
        zeros = np.zeros(n_rows * len(mask), np.int32)
        r += kernels.score_part(zeros, nothing, weights, (rounds[role], rounds[role]), first_row, offset=False)
    opened = {role: Masks.of(slopes, role, rounds[role], first_row, n_rows) for role in sessions}
    host, guest = opened.values()
    n_even, n_odd = halves(slopes.n_values(len(masks[0]), len(masks[1])))
    # Corrections take the place of the streams: memory that is new for each block costs more than the dealing.
    for_guest = kernels.stream(keys.host_round, Purpose.DEALT_SLOPES, first_row, n_rows, n_even)
    for_host = kernels.stream(keys.guest_round, Purpose.DEALT_SLOPES, first_row, n_rows, n_odd)
    planes = for_guest.reshape(n_even, -1, GROUP), for_host.reshape(n_odd, -1, GROUP)

    def correct(number: int, value: Elements) -> None:
        plane = planes[number % 2][number // 2]
        np.subtract(value, plane, out=plane)

    K = slopes.n_terms
    kernels.deal_waves(r, K, WAVE_BITS - slopes.wave_bits, for_guest, for_host)
    correct(2 * K, r.reshape(-1, GROUP))
    for at, e, cut in (
        (2 * K + 1, host.e + guest.e, slopes.cut),
        (2 * K + 3, host.e_d + guest.e_d, slopes.residual_cut),
    ):
        correct(at, e >> np.uint64(cut))
        correct(at + 1, e >> _TOP << np.uint64(64 - cut))
    if host.unweighted:
        weight_masks = kernels.stream(keys.guest_session, Purpose.WEIGHTS, first_row, n_rows, 1)
        for at, mask in enumerate(host.unweighted, 2 * K + 5):
            correct(at, weight_masks.reshape(-1, GROUP) * mask)
    at = slopes.n_first
    for role, other in ((Role.HOST, Role.GUEST), (Role.GUEST, Role.HOST)):
        V = scaled(U[role], opened[other].g)
        for number, product in enumerate(V, at):
            correct(number, product)
        at += n_columns[role]
        kernels.add_products(U[role], V, sums.of(role))
        kernels.add_products(fine[role], opened[other].g_d.ravel(), sums.gradient[role])
    receiver = Role.GUEST if opener is Role.HOST else Role.HOST
    add_cross(U[receiver], masks_of_products(rounds[opener], first_row, n_rows, n_columns[opener]), sums, opener)
    return for_host, for_guest


def masks_of_products(key: bytes, first_row: int, n_rows: int, n_columns: int) -> Elements:
    """Return M for some rows, shape (n_columns, n_rows / 8, 8)."""
    stream = kernels.stream(key, Purpose.SLOPE_COLUMNS, first_row, n_rows, n_columns)
    return stream.reshape(n_columns, -1, GROUP)


def halves(n_values: int) -> tuple[int, int]:
    """Return how many values have even numbers, which are the host's stream, and how many odd ones, the guest's."""
    return (n_values + 1) // 2, n_values // 2


# --- a party


@dataclass(frozen=True, eq=False)
class DealtRounding:
    """A party's shares of what rounds a value that is opened under a mask e, each of shape (n_rows / 8, 8)."""

    upper: Elements = field(repr=False)
    """e without its low bits."""
    top: Elements = field(repr=False)
    """The top bit of e, in its place after rounding."""

    def share(self, role: Role, m: Elements, cut: int) -> Elements:
        """Return a party's share of a rounded value v, from m = v + e + OFFSET, shape (n_rows / 8, 8).

        Args:
            role: the party.
            m: what both parties know.
            cut: how many bits are rounded away.
        """
        # m has wrapped exactly if the top bit of e is set and that of m is not: v + OFFSET is in [0, 2^63).
        share = (np.uint64(1) - (m >> _TOP)) * self.top - self.upper
        if role is Role.HOST:
            share += (m >> np.uint64(cut)) - np.uint64(OFFSET >> cut)
        return share


@dataclass(frozen=True, eq=False)
class DealtSlopes:
    """A party's shares of what was dealt for some rows, each of shape (n_rows / 8, 8)."""

    waves: tuple[ElementVector, ElementVector] = field(repr=False)
    """The even-numbered values, of which cos kr are the first, and the odd-numbered ones, which begin with sin kr."""
    r: Elements = field(repr=False)
    slopes: DealtRounding
    residual: DealtRounding
    weighted: Sequence[Elements] = field(repr=False)
    """U_c times the host's `Masks.unweighted`."""
    V: dict[Role, tuple[Elements, Elements]] = field(repr=False)
    """V_A and V_B: of every second column from the first one on, and from the second one on, each of shape
    (n_columns / 2, n_rows / 8, 8)."""

    @classmethod
    def of(
        cls,
        slopes: SlopeFormat,
        role: Role,
        key: bytes,
        dealt: ElementVector,
        first_row: int,
        n_rows: int,
        n_columns: tuple[int, int],
    ) -> "DealtSlopes":
        """Put a party's stream and the coordinator's corrections together.

        Args:
            slopes: the numbers of the job.
            role: the party.
            key: of the streams of the attempt that it has in common with the coordinator.
            dealt: the corrections.
            first_row: the first of the rows.
            n_rows: how many.
            n_columns: columns of the host and of the guest.
        """
        n_values = slopes.n_values(*n_columns)
        n_even, n_odd = halves(n_values)
        is_host = role is Role.HOST
        own = kernels.stream(key, Purpose.DEALT_SLOPES, first_row, n_rows, n_even if is_host else n_odd)
        even, odd = (own, dealt) if is_host else (dealt, own)
        planes = even.reshape(n_even, -1, GROUP), odd.reshape(n_odd, -1, GROUP)
        values = [planes[number % 2][number // 2] for number in range(slopes.n_first)]
        K, first, n_host = slopes.n_terms, slopes.n_first, n_columns[0]

        def of_columns(start: int, end: int) -> tuple[Elements, Elements]:
            """Return the values from `start` to `end`, every second one, without copying them."""
            first, second = (planes[at % 2][at // 2 : (end + 1 - at % 2) // 2] for at in (start, start + 1))
            return first, second

        return cls(
            waves=(even, odd),
            r=values[2 * K],
            slopes=DealtRounding(values[2 * K + 1], values[2 * K + 2]),
            residual=DealtRounding(values[2 * K + 3], values[2 * K + 4]),
            weighted=values[2 * K + 5 :],
            V={
                Role.HOST: of_columns(first, first + n_host),
                Role.GUEST: of_columns(first + n_host, n_values),
            },
        )


@dataclass(frozen=True, eq=False)
class WideShares:
    """A party's shares of functions of the score of some rows, each of shape (n_rows / 8, 8)."""

    slope: Elements = field(repr=False)
    """W at `wide_bits`."""
    residual: Elements = field(repr=False)
    """sigma(u) - 1/2 at `residual_wide`. The guest adds 1/2 - y."""
    entropy: Elements = field(repr=False)
    """H without its constant, at `entropy_bits`."""
    digest: bytes
    """Of all integers that made the shares."""


def wide_shares(slopes: SlopeFormat, role: Role, dealt: DealtSlopes, z: ElementVector) -> WideShares:
    """Return a party's shares of the slopes, the residuals and the entropies.

    Args:
        slopes: the numbers of the job.
        role: the party.
        dealt: its shares of the dealt values.
        z: both parts of the masked scores together, shape (n_rows,).
    """
    zs = z.reshape(-1, GROUP)
    slope = np.full(zs.shape, slopes.constant if role is Role.HOST else 0, np.uint64)
    entropy = np.zeros(zs.shape, np.uint64)
    residual = np.negative(dealt.r)
    if role is Role.HOST:
        residual += zs - np.uint64(OFFSET)
    # u' has PERIOD_BITS fraction bits as u / P.
    residual <<= np.uint64(slopes.residual_wide - PERIOD_BITS)
    digest = kernels.add_waves(z, slopes.kernel_coef, *dealt.waves, slope.ravel(), residual.ravel(), entropy.ravel())
    return WideShares(slope, residual, entropy, digest)


def add_block(
    columns: Columns, D: ElementVector, products: Elements, V: tuple[Elements, Elements], sums: NDArray[np.uint64]
) -> None:
    """Add a party's part of the block of one party's columns: X'h X + D'V + (D'V)', or D'g D + D'V + (D'V)'.

    Args:
        columns: X for the party's own columns, and D for the other's.
        D: X - U of these columns.
        products: h X or g D, see `scaled`; h is o and the party's own part of g.
        V: its share of V, see `DealtSlopes.V`.
        sums: its shares of the block, shape (n_columns, n_columns).
    """
    kernels.add_products(columns, products, sums)
    of_masks = np.zeros_like(sums)
    for first, part in enumerate(V):
        totals = np.zeros((len(part), len(sums)), np.uint64)
        if len(part):
            kernels.add_products(D, part, totals)
        of_masks[first::2] = totals
    sums += of_masks + of_masks.T


def add_cross(columns: Columns, Y: Elements, sums: Information, opener: Role) -> None:
    """Add X'Y, with the columns X of the party that does not open and products Y of those of the party that does."""
    # `both` has the host's columns first.
    target = sums.both.T if opener is Role.GUEST else sums.both
    totals = np.zeros(target.shape, np.uint64)
    kernels.add_products(columns, Y, totals)
    target += totals


def scaled(table: Columns, factors: Elements) -> Elements:
    """Return a table times a factor for each row, column by column, shape (n_columns, n_rows / 8, 8).

    Args:
        table: shape (n_rows * n_columns,).
        factors: shape (n_rows / 8, 8).
    """
    products = kernels.scale(table, factors.ravel(), len(table) // factors.size)
    return products.reshape(-1, *factors.shape)
