"""The kernels in C: they allocate what C fills. `kernels` says what they compute, `reference` how."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import ElementVector
from trilateral.common.base.roles import Role
from trilateral.common.shares.format import Format
from trilateral.common.shares.keys import Purpose
from trilateral.common.shares.native import _kernel
from trilateral.common.shares.path import shares_level
from trilateral.common.shares.reference import Columns, DealerKeys, DealerSums, Elements, Residual, Weights, wave_table

ScalarT = TypeVar("ScalarT", bound=np.generic)

LINE = 64
"""Bytes of a line of the cache: vectors that cross two lines take twice the time."""
NOTHING: ElementVector = np.zeros(0, np.uint64)


def elements(key: bytes, purpose: Purpose, first_row: int, n_rows: int, n_columns: int) -> ElementVector:
    """See `kernels.stream`."""
    out = _empty(n_rows * n_columns)
    if n_columns:
        _kernel.stream(shares_level(), out, key, purpose, first_row, n_columns)
    return out


def mask(table: Columns, key: bytes, purpose: Purpose, first_row: int, n_columns: int) -> ElementVector:
    """See `kernels.mask`."""
    out = _empty(len(table))
    if n_columns:
        _kernel.mask(shares_level(), out, _plain(table), key, purpose, first_row, n_columns)
    return out


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
    z = _empty(len(columns) // n_own if n_own else len(other) // len(weights.other))
    _kernel.score_part(
        shares_level(),
        z,
        _plain(columns),
        _plain(other),
        _plain(weights.own),
        _plain(weights.opened),
        _plain(weights.other),
        keys[0],
        keys[1],
        first_row,
        offset,
    )
    return z


def deal(
    fmt: Format,
    keys: DealerKeys,
    masks: tuple[ElementVector, ElementVector],
    first_row: int,
    n_rows: int,
    sums: DealerSums | None,
) -> tuple[ElementVector, ElementVector]:
    """See `kernels.deal`."""
    for_host, for_guest = _empty(n_rows * fmt.n_odd), _empty(n_rows * fmt.n_even)
    a, b = masks
    _kernel.deal(
        shares_level(),
        for_host,
        for_guest,
        NOTHING if sums is None else sums.host,
        NOTHING if sums is None else sums.guest,
        NOTHING if sums is None else sums.loss,
        _plain(fmt.kernel_numbers),
        wave_table(),
        keys.host_session + keys.guest_session + keys.host_round + keys.guest_round,
        _plain(a),
        _plain(b),
        first_row,
        n_rows,
        sums is not None,
    )
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
    n_rows = len(z)
    d, loss = _empty(n_rows if gradient else 0), _empty(n_rows)
    v, digest = _empty(n_rows if gradient and fmt.weighted else 0), np.empty(8, np.uint64)
    _kernel.residual(
        shares_level(),
        d,
        loss,
        v,
        digest,
        _plain(fmt.kernel_numbers),
        wave_table(),
        key,
        _plain(dealt),
        _plain(z),
        first_row,
        role is Role.HOST,
        gradient,
    )
    return Residual(d, loss, digest.tobytes(), v)


def add_products(columns: Columns, d: Elements, sums: Elements) -> None:
    """See `kernels.add_products`."""
    n_vectors = len(sums) if sums.ndim > 1 else 1
    _kernel.add_products(shares_level(), sums, _plain(columns), _plain(d), n_vectors)


def scale(columns: Columns, factors: ElementVector, n_columns: int) -> ElementVector:
    """See `kernels.scale`."""
    out = _empty(n_columns * len(factors))
    _kernel.scale(shares_level(), out, _plain(columns), _plain(factors))
    return out


def add_mask_products(
    key: bytes, purpose: Purpose, first_row: int, n_columns: int, o: ElementVector, sums: ElementVector
) -> None:
    """See `kernels.add_mask_products`."""
    if len(sums) != n_columns:
        raise ValueError("add_mask_products: expected a sum for each column")
    _kernel.add_mask_products(shares_level(), sums, key, _plain(o), purpose, first_row)


def deal_waves(r: ElementVector, n_terms: int, cut: int, even: ElementVector, odd: ElementVector) -> None:
    """See `kernels.deal_waves`."""
    _kernel.deal_waves(shares_level(), even, odd, _plain(r), wave_table(), n_terms, cut)


def add_waves(
    z: ElementVector,
    coef: NDArray[np.int64],
    even: ElementVector,
    odd: ElementVector,
    slope: ElementVector,
    residual: ElementVector,
    entropy: ElementVector,
) -> bytes:
    """See `kernels.add_waves`."""
    digest = np.empty(8, np.uint64)
    tables = coef, wave_table(), _plain(z), _plain(even), _plain(odd)
    _kernel.add_waves(shares_level(), slope, residual, entropy, digest, *tables)
    return digest.tobytes()


def _empty(n: int) -> ElementVector:
    """Return an array that begins at a line of the cache, shape (n,)."""
    room = np.empty(8 * n + LINE, np.uint8)
    start = -room.ctypes.data % LINE
    return room[start : start + 8 * n].view(np.uint64)


def _plain(array: NDArray[ScalarT]) -> NDArray[ScalarT]:
    """Return an array that begins where its elements may begin and has no gaps: itself, if it is one.

    Arrays that have travelled lie anywhere in the bytes of a message.
    """
    return array if array.flags.c_contiguous and array.flags.aligned else np.require(array, requirements=["C", "A"])
