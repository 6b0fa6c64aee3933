"""Directions in which a party's own columns are orthogonal, and its own block of the Hessian a multiple of one."""

from collections.abc import Iterable

import numpy as np

from trilateral.common.base.arrays import FloatMatrix

_RANK = 1e-6
"""Directions shorter than this share of the longest are dropped.

They are what rounding leaves of linearly dependent columns. Scaled up, their rounding errors
of about 1e-16 / 1e-6 stay below the 1e-9 that a training column's mean square may be above 1.
"""


def fit_whitening(blocks: Iterable[FloatMatrix], l2: float) -> FloatMatrix:
    """T, shape (n_terms, rank), such that T' (Z'Z/n + 4 l2 I) T = I, of centred columns Z, shape (n_rows, n_terms).

    Z comes in blocks of rows, so that it need not be in memory as a whole.

    For Z = U S V' that is T = V (S^2/n + 4 l2)^-1/2. Which directions are kept is decided on columns that all have
    mean square 1, Z = Z_1 D, so that a column of small values is none of little weight: with Z_1 = U S V', restricted
    to what is kept, B = D^-1 V S^-1 n^1/2 makes Z B orthonormal but for n^1/2, and with B = P Q R' the penalty is
    diagonal in T = B R (1 + 4 l2 Q^2)^-1/2. Without D that is the same T.

    S and V are those of the small triangle of a QR decomposition, made block by block. The largest entry of each
    column of T is made positive, so that the same table always gives the same columns.
    """
    n_rows = 0
    triangle: FloatMatrix | None = None
    for block in blocks:
        n_rows += len(block)
        stacked: FloatMatrix = block if triangle is None else np.vstack([triangle, block])
        triangle = np.asarray(np.linalg.qr(stacked, mode="r"), dtype=np.float64)
    if triangle is None:
        raise ValueError("whitening needs rows")
    size = np.sqrt(np.sum(triangle**2, axis=0) / n_rows)
    _, s, Vt = np.linalg.svd(triangle / size, full_matrices=False)
    kept = s > _RANK * s[0]
    B = Vt[kept].T / s[kept] * np.sqrt(n_rows) / size[:, np.newaxis]
    _, q, Rt = np.linalg.svd(B, full_matrices=False)
    # Ascending q: what the rows vary in most comes first.
    q, R = q[::-1], Rt[::-1].T
    T: FloatMatrix = B @ R / np.sqrt(1 + 4 * l2 * q**2)
    largest = T[np.abs(T).argmax(axis=0), np.arange(T.shape[1])]
    T *= np.sign(largest)
    return T
