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
from trilateral.common.paillier.ciphertexts import Ciphertexts
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


def summed(cipher: PartyCipher, scale: RoundScale, received: Ciphertexts, values: NDArray[np.int64]) -> Ciphertexts:
    """Add a party's own values to a piece from its peer, and re-randomise the sums.

    Args:
        cipher: the party's cipher.
        scale: how both are packed.
        received: the piece.
        values: the same piece of the party's own vector, in fixed point.

    Raises:
        BadCiphertextError: a ciphertext is not safe to compute with.
    """
    return cipher.rerandomise(cipher.open(received), scale.layout.pack(values))


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
    tables = [] if columns is None else [scale.encode_columns(columns)]
    tables += [] if further is None else [further]
    product = cipher.start_product(scale.layout, np.column_stack(tables))
    for first in range(0, len(received), PIECE):
        product.update(cipher.open(received[first : first + PIECE]))
    return cipher.rerandomise(product.result())
