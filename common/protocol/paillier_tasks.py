"""The heavy work on a piece of an encrypted vector, as pure functions that an engine runs.

Values come as integers and leave as ciphertexts, so that the result does not depend on the machine that computes it:
what needs floating-point arithmetic is done where the columns are. All ciphertexts that a function returns have fresh
randomness, which the machine that runs it draws itself.
"""

from collections.abc import Sequence

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatMatrix
from trilateral.common.paillier.cipher import PartyCipher
from trilateral.common.paillier.ciphertexts import Ciphertexts, joined
from trilateral.common.protocol.bounds import PIECE
from trilateral.common.protocol.scales import RoundScale


def encrypted(
    cipher: PartyCipher, scale: RoundScale, values: NDArray[np.int64], further: Sequence[mpz] = ()
) -> Ciphertexts:
    """Encrypt a piece of a vector.

    Args:
        cipher: the party's cipher.
        scale: how the vector is packed.
        values: the piece, in fixed point.
        further: plaintexts to encrypt with it.

    Returns:
        The ciphertexts of the piece, then those of the further plaintexts.
    """
    return cipher.encrypt([*scale.layout.pack(values), *further])


def multiplied(
    cipher: PartyCipher,
    scale: RoundScale,
    received: Ciphertexts,
    columns: FloatMatrix | None,
    further: NDArray[np.int64] | None,
) -> Ciphertexts:
    """Compute inner products of consecutive pieces of a vector with the same rows of columns.

    Args:
        cipher: the party's cipher.
        scale: how the vector is packed.
        received: the pieces, joined.
        columns: these rows of training columns, shape (n, n_columns), or None.
        further: these rows of columns in fixed point, which come last, or None.

    Returns:
        One ciphertext for each column, at least one.

    Raises:
        BadCiphertextError: a ciphertext is not safe to compute with.
    """
    product = cipher.start_product(scale.layout, _exponents(scale, columns, further))
    for first in range(0, len(received), PIECE):
        product.update(cipher.open(received[first : first + PIECE]))
    return cipher.rerandomise(product.result())


def summed(  # noqa: PLR0917 (an engine calls it with positions alone)
    cipher: PartyCipher,
    scale: RoundScale,
    received: Ciphertexts,
    values: NDArray[np.int64],
    columns: FloatMatrix | None,
    further: NDArray[np.int64] | None,
    answered: bool,
) -> tuple[Ciphertexts | None, Ciphertexts]:
    """Add a party's own values to consecutive pieces from its peer, and compute inner products of the sums.

    One task does both, so that the sums need not travel a second time, and need not be checked again.

    Args:
        cipher: the party's cipher.
        scale: how both vectors are packed.
        received: the pieces, joined.
        values: the same rows of the party's own vector, in fixed point.
        columns: see `multiplied`.
        further: see `multiplied`.
        answered: whether the sums are needed, too.

    Returns:
        The sums or None, and the inner products.

    Raises:
        BadCiphertextError: a ciphertext is not safe to compute with.
    """
    product = cipher.start_product(scale.layout, _exponents(scale, columns, further))
    fresh: list[Ciphertexts] = []
    for first in range(0, len(received), PIECE):
        opened = cipher.open(received[first : first + PIECE])
        own = values[first * scale.layout.slots : (first + PIECE) * scale.layout.slots]
        sums = cipher.add_plaintexts(opened, scale.layout.pack(own))
        if answered:
            fresh.append(cipher.rerandomise(sums))
        product.update(sums)
    return joined(fresh) if answered else None, cipher.rerandomise(product.result())


def _exponents(scale: RoundScale, columns: FloatMatrix | None, further: NDArray[np.int64] | None) -> NDArray[np.int64]:
    tables = [] if columns is None else [scale.encode_columns(columns)]
    tables += [] if further is None else [further]
    return np.column_stack(tables)
