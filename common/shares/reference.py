"""The kernels in numpy. `kernels` says what they compute; the native ones give the same bits.

Arrays of rows have the shape (n_rows / 8, 8) here, and tables (n_rows / 8, n_columns, 8).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import ElementVector
from trilateral.common.base.roles import Role
from trilateral.common.shares import stream
from trilateral.common.shares.format import OFFSET, PERIOD_BITS, WAVE_BITS, Format
from trilateral.common.shares.keys import Purpose
from trilateral.common.shares.layout import GROUP, grouped
from trilateral.common.shares.series import COEF_BITS, LOSS_COEF_BITS

Elements = NDArray[np.uint64]
Integers = NDArray[np.int64]
Columns = NDArray[np.int32] | ElementVector
"""A table in the layout: the integers of a party's own columns, or ring elements, shape (n_rows * n_columns,)."""

ANGLE_BITS = 16
"""Bits of each half of an angle: a turn is 2^32."""
COS_2 = 1324675879
"""(2 pi / 2^32)^2 / 2, with 90 fraction bits."""
SIN_1 = 1727108826179
"""2 pi / 2^32, with 70 fraction bits."""
SIN_3 = 2646
"""(2 pi / 2^32)^3 / 6, with 102 fraction bits."""
DIGEST_FACTOR = np.uint64(0x9E3779B97F4A7C15)
ONE = np.uint64(1)


@dataclass(frozen=True, eq=False)
class Weights:
    """What a party multiplies the three tables of a row by."""

    own: ElementVector = field(repr=False)
    """Its own columns: its share of its own weights, shape (n_own,)."""
    opened: ElementVector = field(repr=False)
    """Its mask U: the other party's share of its own weights, minus a mask, shape (n_own,)."""
    other: ElementVector = field(repr=False)
    """The other party's masked columns: its share of the other's weights, shape (n_other,)."""


@dataclass(frozen=True)
class DealerKeys:
    """The keys of the streams that the coordinator has in common with each party."""

    host_session: bytes = field(repr=False)
    guest_session: bytes = field(repr=False)
    host_round: bytes = field(repr=False)
    guest_round: bytes = field(repr=False)


@dataclass(frozen=True, eq=False)
class DealerSums:
    """The coordinator's own shares of the sums, to which `deal` adds."""

    host: ElementVector = field(repr=False)
    """Of the gradient of the host's columns, shape (n_host,)."""
    guest: ElementVector = field(repr=False)
    """Of the gradient of the guest's columns, shape (n_guest,)."""
    loss: ElementVector = field(repr=False)
    """Of the loss, shape (1,). It stays 0 without sample weights."""

    @classmethod
    def zeros(cls, n_host: int, n_guest: int) -> "DealerSums":
        """Return sums of nothing."""
        return cls(np.zeros(n_host, np.uint64), np.zeros(n_guest, np.uint64), np.zeros(1, np.uint64))


@dataclass(frozen=True, eq=False)
class Residual:
    """What a party computes from the scores and the dealt values of some rows."""

    d: ElementVector = field(repr=False)
    """Its share of sigma(u) - 1/2 with f_d fraction bits, shape (n_rows,); empty if no gradient was asked for."""
    loss: ElementVector = field(repr=False)
    """Its share of each row's part of the loss, with 2 f_v fraction bits, shape (n_rows,)."""
    digest: bytes
    """64 bytes, a digest of z and of all integers by which it has multiplied the dealt values."""
    v: ElementVector = field(default_factory=lambda: np.zeros(0, np.uint64), repr=False)
    """With sample weights: its share of U_c e, shape (n_rows,); else empty."""


def elements(key: bytes, purpose: Purpose, first_row: int, n_rows: int, n_columns: int) -> ElementVector:
    """See `kernels.stream`."""
    return stream.elements(key, purpose, first_row, n_rows, n_columns)


def mask(table: Columns, key: bytes, purpose: Purpose, first_row: int, n_columns: int) -> ElementVector:
    """See `kernels.mask`."""
    n_rows = len(table) // n_columns if n_columns else 0
    return _ring(table) - elements(key, purpose, first_row, n_rows, n_columns)


def score_part(
    columns: NDArray[np.int32],
    other: ElementVector,
    weights: Weights,
    keys: tuple[bytes, bytes],
    first_row: int,
    *,
    offset: bool,
) -> ElementVector:
    """See `kernels.score_part`."""
    n_own = len(weights.own)
    n_rows = len(columns) // n_own if n_own else len(other) // len(weights.other)
    z = elements(keys[1], Purpose.SCORES, first_row, n_rows, 1)
    z += _products(columns, weights.own, n_rows)
    z += _products(elements(keys[0], Purpose.COLUMNS, first_row, n_rows, n_own), weights.opened, n_rows)
    z += _products(other, weights.other, n_rows)
    return z + np.uint64(OFFSET if offset else 0)


def deal(
    fmt: Format,
    keys: DealerKeys,
    masks: tuple[ElementVector, ElementVector],
    first_row: int,
    n_rows: int,
    sums: DealerSums | None,
) -> tuple[ElementVector, ElementVector]:
    """See `kernels.deal`."""

    def stream(key: bytes, purpose: Purpose, n_columns: int = 1) -> ElementVector:
        return elements(key, purpose, first_row, n_rows, n_columns)

    a, b = masks
    host_columns = stream(keys.host_session, Purpose.COLUMNS, len(a))
    guest_columns = stream(keys.guest_session, Purpose.COLUMNS, len(b))
    r = stream(keys.host_round, Purpose.SCORES) + stream(keys.guest_round, Purpose.SCORES)
    r -= _products(host_columns, a, n_rows) + _products(guest_columns, b, n_rows)
    opened = grouped(stream(keys.host_round, Purpose.OPENED, fmt.n_opened), fmt.n_opened)
    e_1 = np.ascontiguousarray(opened[:, 0]).ravel()
    values = _dealt(fmt, r.reshape(-1, GROUP))
    if fmt.weighted:
        weight_masks = stream(keys.guest_session, Purpose.WEIGHTS)
        values[:, -1] = (weight_masks * e_1).reshape(-1, GROUP)
    if sums is not None:
        add_products(host_columns, stream(keys.guest_round, Purpose.OPENED), sums.host)
        if fmt.weighted:
            guest_columns = stream(keys.guest_session, Purpose.WEIGHTED, len(b))
            sums.loss[:] += (weight_masks.reshape(-1, GROUP) * opened[:, 1]).sum(dtype=np.uint64)
        add_products(guest_columns, e_1, sums.guest)
    for_guest = values[:, 0::2].ravel() - stream(keys.host_round, Purpose.DEALT, fmt.n_even)
    for_host = values[:, 1::2].ravel() - stream(keys.guest_round, Purpose.DEALT, fmt.n_odd)
    return for_host, for_guest


def residual(
    fmt: Format,
    role: Role,
    key: bytes,
    dealt: ElementVector,
    z: ElementVector,
    first_row: int,
    *,
    gradient: bool,
) -> Residual:
    """See `kernels.residual`."""
    n_rows, K, is_host = len(z), fmt.n_terms, role is Role.HOST
    own = elements(key, Purpose.DEALT, first_row, n_rows, fmt.n_even if is_host else fmt.n_odd)
    even, odd = (own, dealt) if is_host else (dealt, own)
    shares = np.empty((n_rows // GROUP, fmt.n_values, GROUP), np.uint64)
    shares[:, 0::2], shares[:, 1::2] = grouped(even, fmt.n_even), grouped(odd, fmt.n_odd)
    linear, wrap, square_0, square, square_wrap = (shares[:, 2 * K + i] for i in range(5))
    zs = z.reshape(-1, GROUP)
    wraps = ONE - (zs >> np.uint64(63))
    t, tq = fmt.residual_cut, fmt.square_cut
    zeta = (zs >> np.uint64(tq)) - np.uint64(1 << (62 - tq))
    d = (wraps * wrap << np.uint64(tq - t)) - linear
    loss = square + wraps * square_wrap - np.uint64(2) * zeta * (square_0 - wraps * wrap)
    if is_host:
        d += (zs >> np.uint64(t)) - np.uint64(1 << (62 - t))
        loss += zeta * zeta
    hashes = zs
    loss_coef = fmt.series.loss_coef
    for k, (cos, sin) in enumerate(waves(zs, K)):
        wave_bits = fmt.wave_bits[k]
        dealt_cos, dealt_sin = shares[:, 2 * k], shares[:, 2 * k + 1]
        if gradient:
            cut, b = WAVE_BITS + COEF_BITS - (fmt.f_d - wave_bits), fmt.series.coef[k]
            by_cos, by_sin = rounded(sin * b, cut), rounded(cos * b, cut)
            d += by_cos * dealt_cos - by_sin * dealt_sin
            hashes = hashes ^ (by_cos + (by_sin << np.uint64(32)))
        cut = WAVE_BITS + LOSS_COEF_BITS - (2 * fmt.f_v - wave_bits)
        by_cos, by_sin = rounded(cos * loss_coef[k], cut), rounded(sin * loss_coef[k], cut)
        loss -= by_cos * dealt_cos + by_sin * dealt_sin
        hashes = (hashes << np.uint64(13) | hashes >> np.uint64(51)) + (by_cos + (by_sin << np.uint64(32)))
    v = shares[:, -1] if fmt.weighted and gradient else shares[:0, 0]
    digest = digest_of(hashes)
    return Residual((d if gradient else d[:0]).ravel(), loss.ravel(), digest, np.ascontiguousarray(v).ravel())


def deal_waves(r: ElementVector, n_terms: int, cut: int, even: ElementVector, odd: ElementVector) -> None:
    """See `kernels.deal_waves`."""
    cosines, sines = (table[: n_terms * len(r)].reshape(n_terms, -1, GROUP) for table in (even, odd))
    for k, (cos, sin) in enumerate(waves(r.reshape(-1, GROUP), n_terms)):
        np.subtract(rounded(cos, cut), cosines[k], out=cosines[k])
        np.subtract(rounded(sin, cut), sines[k], out=sines[k])


def add_waves(
    z: ElementVector,
    coef: Integers,
    even: ElementVector,
    odd: ElementVector,
    slope: ElementVector,
    residual: ElementVector,
    entropy: ElementVector,
) -> bytes:
    """See `kernels.add_waves`."""
    n_terms = len(coef) // 3
    hashes = z.reshape(-1, GROUP)
    cosines, sines = (table[: n_terms * len(z)].reshape(n_terms, -1, GROUP) for table in (even, odd))
    shares = [share.reshape(-1, GROUP) for share in (slope, residual, entropy)]
    for k, (cos, sin) in enumerate(waves(hashes, n_terms)):
        g, b, h = coef[k::n_terms]
        of_slope, of_entropy = ((rounded(cos * each, WAVE_BITS), rounded(sin * each, WAVE_BITS)) for each in (g, h))
        of_residual = rounded(sin * b, WAVE_BITS), np.negative(rounded(cos * b, WAVE_BITS))
        for share, (by_cos, by_sin) in zip(shares, (of_slope, of_residual, of_entropy), strict=True):
            np.add(share, by_cos * cosines[k] + by_sin * sines[k], out=share)
            hashes = (hashes << np.uint64(13) | hashes >> np.uint64(51)) + (by_cos + (by_sin << np.uint64(32)))
    return digest_of(hashes)


def add_products(columns: Columns, d: Elements, sums: Elements) -> None:
    """See `kernels.add_products`."""
    n_columns = sums.shape[-1]
    if sums.size:
        vectors = d.reshape(*sums.shape[:-1], -1, GROUP)
        sums += np.einsum("gcr,...gr->...c", grouped(_ring(columns), n_columns), vectors)


def scale(columns: Columns, factors: ElementVector, n_columns: int) -> ElementVector:
    """See `kernels.scale`."""
    if not n_columns:
        return np.zeros(0, np.uint64)
    by_column = grouped(_ring(columns), n_columns).transpose(1, 0, 2)
    return np.ascontiguousarray(by_column * factors.reshape(-1, GROUP)).ravel()


def add_mask_products(
    key: bytes, purpose: Purpose, first_row: int, n_columns: int, o: ElementVector, sums: ElementVector
) -> None:
    """See `kernels.add_mask_products`."""
    add_products(elements(key, purpose, first_row, len(o), n_columns), o, sums)


def _ring(table: Columns) -> ElementVector:
    """Return the elements of a table."""
    return table.astype(np.int64).view(np.uint64) if table.dtype == np.int32 else table.view(np.uint64)


def _products(columns: Columns, weights: ElementVector, n_rows: int) -> ElementVector:
    """Return the sum over the columns of each row times a weight, shape (n_rows,)."""
    if not len(weights):
        return np.zeros(n_rows, np.uint64)
    products: Elements = np.einsum("gcr,c->gr", grouped(_ring(columns), len(weights)), weights)
    return products.ravel()


def _dealt(fmt: Format, r: Elements) -> Elements:
    """Return all values of the rows that are dealt in shares, but for the last one of a weighted row."""
    K, tq = fmt.n_terms, fmt.square_cut
    values = np.empty((len(r), fmt.n_values, GROUP), np.uint64)
    for k, (cos, sin) in enumerate(waves(r, K)):
        cut = WAVE_BITS - fmt.wave_bits[k]
        values[:, 2 * k], values[:, 2 * k + 1] = rounded(cos, cut), rounded(sin, cut)
    wrap, square = (r >> np.uint64(63)) << np.uint64(64 - tq), r >> np.uint64(tq)
    values[:, 2 * K] = r >> np.uint64(fmt.residual_cut)
    values[:, 2 * K + 1] = wrap
    values[:, 2 * K + 2] = square
    values[:, 2 * K + 3] = square * square
    values[:, 2 * K + 4] = wrap * wrap - np.uint64(2) * square * wrap
    return values


def rounded(values: Integers, bits: int) -> Elements:
    """Return some integers without their low bits, rounded."""
    half = (1 << bits) >> 1
    return ((values + half) >> bits).view(np.uint64)


@cache
def wave_table() -> NDArray[np.int32]:
    """Return cos and sin of 2 pi h / 2^16 for all h, with WAVE_BITS fraction bits, shape (2^16, 2).

    It comes from integers alone, so it is the same on every machine: powers of one root of unity up to a quarter of a
    turn, with 96 fraction bits, and the other three quarters by symmetry.
    """
    bits, quarter = 96, 1 << (ANGLE_BITS - 2)
    one = 1 << bits

    def arctan(n: int) -> int:
        term, total, k = (one << 32) // n, 0, 1
        while term:
            total += term // k if k % 4 == 1 else -(term // k)
            term, k = term // (n * n), k + 2
        return total

    angle = (4 * (4 * arctan(5) - arctan(239)) * 2) >> (32 + ANGLE_BITS)
    root = [0, 0]
    term, k = one, 0
    while term:
        root[k % 2] += term if k % 4 < 2 else -term
        k += 1
        term = term * angle // (one * k)
    first = np.empty((quarter + 1, 2), np.int32)
    cos, sin = one, 0
    half = 1 << (bits - WAVE_BITS - 1)
    for h in range(quarter + 1):
        first[h] = (cos + half) >> (bits - WAVE_BITS), (sin + half) >> (bits - WAVE_BITS)
        cos, sin = (cos * root[0] - sin * root[1]) >> bits, (cos * root[1] + sin * root[0]) >> bits
    table = np.empty((4 * quarter, 2), np.int32)
    for turn in range(4):
        part = first[:quarter]
        for _ in range(turn):
            part = np.stack([-part[:, 1], part[:, 0]], axis=1)
        table[turn * quarter : (turn + 1) * quarter] = part
    table.flags.writeable = False
    return table


def waves(values: Elements, n_terms: int) -> Iterator[tuple[Integers, Integers]]:
    """Yield cos and sin of 2 pi k v / 2^PERIOD_BITS for k = 1 and up, as integers with WAVE_BITS fraction bits.

    The first wave is the product of one from a table, for the upper half of the angle, and one from two terms of
    Taylor's series for the lower half; the others follow by multiplication. The error stays below 3e-8.
    """
    table, half = wave_table(), 1 << (WAVE_BITS - 1)
    turn = values >> np.uint64(PERIOD_BITS - 2 * ANGLE_BITS)
    upper = table[(turn >> np.uint64(ANGLE_BITS)) & np.uint64(0xFFFF)].astype(np.int64)
    low = (turn & np.uint64(0xFFFF)).view(np.int64)
    square = low * low
    low_cos = (1 << WAVE_BITS) - ((square * COS_2 + (1 << 59)) >> 60)
    low_sin = (low * SIN_1 - (((square >> 16) * low * SIN_3) >> 16) + (1 << 39)) >> 40
    high_cos, high_sin = upper[..., 0], upper[..., 1]
    cos_1 = (high_cos * low_cos - high_sin * low_sin + half) >> WAVE_BITS
    sin_1 = (high_cos * low_sin + high_sin * low_cos + half) >> WAVE_BITS
    cos, sin = cos_1, sin_1
    yield cos, sin
    for _ in range(1, n_terms):
        cos, sin = (cos * cos_1 - sin * sin_1 + half) >> WAVE_BITS, (cos * sin_1 + sin * cos_1 + half) >> WAVE_BITS
        yield cos, sin


def digest_of(hashes: Elements) -> bytes:
    """Return the digest of the hashes of groups of rows: a polynomial in DIGEST_FACTOR for each row of a group."""
    powers = np.ones(len(hashes), np.uint64)
    np.multiply.accumulate(np.full(len(hashes) - 1, DIGEST_FACTOR), out=powers[1:])
    digest: Elements = (hashes * powers[::-1, None]).sum(axis=0, dtype=np.uint64)
    return digest.astype("<u8").tobytes()
