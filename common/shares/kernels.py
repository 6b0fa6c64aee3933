"""The inner loops of the three roles, over tables in the layout of `layout`.

Numbers of rows are multiples of 16, first rows multiples of 8. Equations are in the ring of integers modulo 2^64. u' =
x'w is the score of a row at the scale of `format`; C, A and B are the coordinator, the host and the guest.

- **Scores.** A has z_1 = X_A w_A1 + U_A (w_A2 - a) + D_B w_B1 + s_1 + OFFSET, and B has z_2 likewise, without OFFSET.
  C knows r = s_1 + s_2 - U_A a - U_B b. So z = z_1 + z_2 = u' + r + OFFSET.
- **Dealt values** of a row, in this order: cos and sin of k r for each term k; r without the low bits that the residual
  drops; W, the top bit of r; R, which is r without the low bits that the square drops; R^2; W^2 - 2 R W; with sample
  weights, U_c e. The even-numbered ones, from 0, are the host's stream and corrections for the guest. The others are
  the guest's stream and corrections for the host.
- **Residual.** sigma(u) - 1/2 = z - OFFSET - r + (W if the top bit of z is clear), cut, plus sum_k b_k sin(k (z - r)).
- **Loss** of a row, without its linear and constant parts: u'^2 - sum_k 2048 L_k / P cos(k (z - r)).

The kernels run in C where the processor can, else in numpy, with the same bits; see `path`. In C they release the
interpreter's lock.
"""

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import ElementVector
from trilateral.common.base.roles import Role
from trilateral.common.shares import reference
from trilateral.common.shares.format import Format
from trilateral.common.shares.keys import Purpose
from trilateral.common.shares.path import shares_level
from trilateral.common.shares.reference import Columns, DealerKeys, DealerSums, Elements, Residual, Weights

__all__ = [
    "Columns",
    "DealerKeys",
    "DealerSums",
    "Residual",
    "Weights",
    "add_mask_products",
    "add_products",
    "add_waves",
    "deal",
    "deal_waves",
    "mask",
    "residual",
    "scale",
    "score_part",
    "stream",
]


def stream(key: bytes, purpose: Purpose, first_row: int, n_rows: int, n_columns: int) -> ElementVector:
    """Return the elements of consecutive rows of a stream, which `stream` defines.

    Args:
        key: 16 bytes.
        purpose: what they are used for.
        first_row: a multiple of 8.
        n_rows: a multiple of 8.
        n_columns: columns of the stream.

    Returns:
        Shape (n_rows * n_columns,).
    """
    if shares_level():
        from trilateral.common.shares.native import operations

        return operations.elements(key, purpose, first_row, n_rows, n_columns)
    return reference.elements(key, purpose, first_row, n_rows, n_columns)


def mask(table: Columns, key: bytes, purpose: Purpose, first_row: int, n_columns: int) -> ElementVector:
    """Return a table minus a stream.

    Args:
        table: integers or elements, shape (n_rows * n_columns,).
        key: 16 bytes.
        purpose: what the stream is used for.
        first_row: row of the stream that belongs to the first row of the table.
        n_columns: columns of both.

    Returns:
        Shape (n_rows * n_columns,).

    Raises:
        ValueError: sizes do not match.
    """
    if shares_level():
        from trilateral.common.shares.native import operations

        return operations.mask(table, key, purpose, first_row, n_columns)
    return reference.mask(table, key, purpose, first_row, n_columns)


def score_part(
    columns: NDArray[np.int32],
    other: ElementVector,
    weights: Weights,
    keys: tuple[bytes, bytes],
    first_row: int,
    *,
    offset: bool,
) -> ElementVector:
    """Return a party's share of z.

    Args:
        columns: its own columns, shape (n_rows * n_own,).
        other: the other party's masked columns, shape (n_rows * n_other,).
        weights: what it multiplies them by, and its own mask.
        keys: of the streams that it has in common with the coordinator: of the session, and of the round.
        first_row: the first of the rows.
        offset: whether to add OFFSET. The host does.

    Returns:
        Shape (n_rows,).

    Raises:
        ValueError: sizes do not match.
    """
    if shares_level():
        from trilateral.common.shares.native import operations

        return operations.score_part(columns, other, weights, keys, first_row, offset=offset)
    return reference.score_part(columns, other, weights, keys, first_row, offset=offset)


def deal(
    fmt: Format,
    keys: DealerKeys,
    masks: tuple[ElementVector, ElementVector],
    first_row: int,
    n_rows: int,
    sums: DealerSums | None,
) -> tuple[ElementVector, ElementVector]:
    """Return the corrections that turn the parties' streams into shares of the dealt values of some rows.

    Args:
        fmt: the numbers of the job; for hold-out rows `Format.holdout`.
        keys: of the streams that the coordinator has in common with the parties.
        masks: a, shape (n_host,), and b, shape (n_guest,).
        first_row: the first of the rows.
        n_rows: how many.
        sums: the coordinator's shares of the sums over the rows, to which the function adds; None if it needs none.

    Returns:
        What the host is sent, shape (n_rows * fmt.n_odd,), and the guest, shape (n_rows * fmt.n_even,).

    Raises:
        ValueError: sizes do not match.
    """
    if shares_level():
        from trilateral.common.shares.native import operations

        return operations.deal(fmt, keys, masks, first_row, n_rows, sums)
    return reference.deal(fmt, keys, masks, first_row, n_rows, sums)


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
    """Return a party's shares of the residual and of the loss of some rows.

    The labels are not in it: the guest adds 1/2 - y to d.

    Args:
        fmt: the numbers of the job; for hold-out rows `Format.holdout`.
        role: host or guest.
        key: of the streams of the round that the party has in common with the coordinator.
        dealt: what the coordinator has sent of these rows, shape (n_rows * n_columns,).
        z: both shares together, shape (n_rows,).
        first_row: the first of the rows.
        gradient: whether to compute d; without it, the round is after the loss alone.

    Raises:
        ValueError: sizes do not match.
    """
    if shares_level():
        from trilateral.common.shares.native import operations

        return operations.residual(fmt, role, key, dealt, z, first_row, gradient=gradient)
    return reference.residual(fmt, role, key, dealt, z, first_row, gradient=gradient)


def add_products(columns: Columns, d: Elements, sums: Elements) -> None:
    """Add X'd to some sums, for one vector d or for several.

    Args:
        columns: X, integers or elements, shape (n_rows * n_columns,).
        d: as many elements as vectors have rows, one vector after the other.
        sums: shape (n_columns,) for one vector, and (n_vectors, n_columns) for several.

    Raises:
        ValueError: sizes do not match.
    """
    if shares_level():
        from trilateral.common.shares.native import operations

        operations.add_products(columns, d, sums)
    else:
        reference.add_products(columns, d, sums)


def scale(columns: Columns, factors: ElementVector, n_columns: int) -> ElementVector:
    """Return each column times a factor for each row, one column after the other, shape (n_columns * n_rows,).

    Args:
        columns: integers or elements, shape (n_rows * n_columns,).
        factors: shape (n_rows,).
        n_columns: how many columns there are.

    Raises:
        ValueError: sizes do not match.
    """
    if shares_level():
        from trilateral.common.shares.native import operations

        return operations.scale(columns, factors, n_columns)
    return reference.scale(columns, factors, n_columns)


def add_mask_products(
    key: bytes, purpose: Purpose, first_row: int, n_columns: int, o: ElementVector, sums: ElementVector
) -> None:
    """Add U'o to some sums, where U is a stream, which is made again and never stored.

    Args:
        key: 16 bytes.
        purpose: what the stream is used for.
        first_row: row of the stream that belongs to the first of o.
        n_columns: columns of the stream.
        o: shape (n_rows,).
        sums: shape (n_columns,).

    Raises:
        ValueError: sizes do not match.
    """
    if shares_level():
        from trilateral.common.shares.native import operations

        operations.add_mask_products(key, purpose, first_row, n_columns, o, sums)
    else:
        reference.add_mask_products(key, purpose, first_row, n_columns, o, sums)


def deal_waves(r: ElementVector, n_terms: int, cut: int, even: ElementVector, odd: ElementVector) -> None:
    """Turn streams into the corrections of the waves of r, for the step of inference: see `information`.

    Args:
        r: what masks the scores, shape (n_rows,).
        n_terms: K.
        cut: how many bits of a wave are dropped.
        even: the stream of the even-numbered values, side by side, of which the first K become those of cos kr.
        odd: the same for the odd-numbered ones and sin kr.

    Raises:
        ValueError: sizes do not match.
    """
    if shares_level():
        from trilateral.common.shares.native import operations

        operations.deal_waves(r, n_terms, cut, even, odd)
    else:
        reference.deal_waves(r, n_terms, cut, even, odd)


def add_waves(
    z: ElementVector,
    coef: NDArray[np.int64],
    even: ElementVector,
    odd: ElementVector,
    slope: ElementVector,
    residual: ElementVector,
    entropy: ElementVector,
) -> bytes:
    """Add the waves of a row to shares of its slope, its residual, and its entropy; see `information`.

    The slope gets sum_k g_k cos k(z - r), the residual sum_k b_k sin k(z - r), and the entropy sum_k h_k cos k(z - r).

    Args:
        z: the masked scores, shape (n_rows,).
        coef: all g_k, then all b_k, then all h_k, shape (3 K,), each of at most 31 bits.
        even: shares of the even-numbered dealt values, side by side: cos kr first.
        odd: the same for the odd-numbered ones and sin kr.
        slope: shape (n_rows,).
        residual: shape (n_rows,).
        entropy: shape (n_rows,).

    Returns:
        64 bytes, a digest of z and of all integers by which it has multiplied the dealt values.

    Raises:
        ValueError: sizes do not match.
    """
    if shares_level():
        from trilateral.common.shares.native import operations

        return operations.add_waves(z, coef, even, odd, slope, residual, entropy)
    return reference.add_waves(z, coef, even, odd, slope, residual, entropy)
