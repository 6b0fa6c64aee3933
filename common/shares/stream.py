"""The elements of a stream, by AES-128 in counter mode.

The 128-bit counter is big-endian: its upper half is the purpose, its lower half counts blocks of 16 bytes. A block has
two elements, little-endian. Element (row, column) of a stream of n_columns columns is number (row // 8 * n_columns +
column) * 8 + row % 8, as in `layout`. So the stream of any run of rows can be made by itself.
"""

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from trilateral.common.base.arrays import ElementVector
from trilateral.common.shares.keys import Purpose


def elements(key: bytes, purpose: Purpose, first_row: int, n_rows: int, n_columns: int) -> ElementVector:
    """Return the elements of consecutive rows of a stream.

    Args:
        key: 16 bytes.
        purpose: what they are used for.
        first_row: a multiple of 8.
        n_rows: a multiple of 8.
        n_columns: columns of the stream.

    Returns:
        Shape (n_rows * n_columns,).
    """
    block = first_row // 2 * n_columns
    counter = int(purpose).to_bytes(8, "big") + block.to_bytes(8, "big")
    encryptor = Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * n_rows * n_columns)), np.dtype("<u8")).astype(np.uint64)
