"""Type names for numpy arrays."""

import numpy as np
from numpy.typing import NDArray

FloatVector = NDArray[np.float64]
"""Floating-point numbers, shape (n,)."""
FloatMatrix = NDArray[np.float64]
"""Floating-point numbers, shape (n_rows, n_columns)."""
IntMatrix = NDArray[np.int64]
"""Integers, shape (n_rows, n_columns)."""
Rows = NDArray[np.int64]
"""Row numbers, shape (n,)."""
ElementVector = NDArray[np.uint64]
"""Elements of the ring of integers modulo 2^64, shape (n,)."""
