"""Whitening: directions in which a party's columns are orthogonal and its block of the Hessian is a quarter of I."""

from collections.abc import Iterable

import numpy as np

from trilateral.common.base.arrays import FloatMatrix

_RANK = 1e-6
"""Directions whose singular value is below this share of the largest are dropped.

Linearly dependent columns leave such directions as rounding errors. Of the directions that are kept, the rounding
errors grow to at most about 1e-16 / 1e-6, which stays below the 1e-9 by which a mean square may exceed 1.
"""


def fit_whitening(blocks: Iterable[FloatMatrix], l2: float) -> FloatMatrix:
    """Fit T such that T' (Z'Z/n + 4 l2 I) T = I for centred columns Z of shape (n_rows, n_terms).

    For Z = U S V', this is T = V (S^2/n + 4 l2 I)^-1/2. Which directions to keep is decided on columns with mean
    square 1, Z = Z_1 D, so that a column of small values counts as much as any other. With Z_1 = U S V', restricted to
    the directions that are kept, B = D^-1 V S^-1 n^1/2 makes the columns of Z B orthogonal with mean square 1. With
    B = P Q R', the penalty is diagonal in T = B R (1 + 4 l2 Q^2)^-1/2. For D = I this is the T above.

    S and V come from the triangle of a QR decomposition that is built block by block. The signs are chosen so that the
    largest entry of each column of T is positive: the same table always yields the same columns.

    Args:
        blocks: the rows of Z in blocks of shape (n_block_rows, n_terms), so that Z need not fit in memory.
        l2: the job's L2 penalty lambda.

    Returns:
        T, shape (n_terms, rank).

    Raises:
        ValueError: there are no rows.
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
    # In ascending order of q: the direction with the largest variance comes first.
    q, R = q[::-1], Rt[::-1].T
    T: FloatMatrix = B @ R / np.sqrt(1 + 4 * l2 * q**2)
    largest = T[np.abs(T).argmax(axis=0), np.arange(T.shape[1])]
    T *= np.sign(largest)
    return T
