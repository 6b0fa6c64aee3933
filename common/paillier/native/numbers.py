"""Converts lists of numbers modulo n^2 to the form that the kernel computes with, and back.

An *element* is a row of digits, those of lo and hi with x = lo - hi n; see operations.h. The type of a digit depends
on the path. Every element here is in Montgomery form, x R in place of x.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from trilateral.common.paillier.native import _kernel
from trilateral.common.paillier.native.modulus import FORMS, KernelPath, Modulus
from trilateral.common.paillier.native.path import kernel_path
from trilateral.common.paillier.native.threads import in_parallel

Elements = NDArray[np.number[Any]]
"""Shape (count, 2 D), one number per row, contiguous and aligned for vectors."""

_ALIGNMENT = 64
"""Bytes of a vector of 512 bits, and of a line of the cache."""
_LEAST = 16
"""Vectors that a thread must have to convert or multiply, about 0.1 ms: to hand them over takes 0.02 ms."""


class Numbers:
    """The kernel's operations on lists of numbers modulo n^2.

    Args:
        n: an odd number that `path.takes` accepts.
        width: bytes of the longest numbers to convert; by default the bytes of n^2.
        path: the path that computes; by default that of the process.
        digits: the number of digits of n, if it is to have more than it needs.
    """

    def __init__(self, n: mpz, width: int = 0, path: KernelPath | None = None, digits: int = 0) -> None:
        self.path = path or kernel_path()
        modulus = Modulus(n, self.path, 8 * width, digits)
        self.lanes = FORMS[self.path].lanes
        self.dtype = np.dtype(FORMS[self.path].typecode)
        self.n, self.n_squared = n, n * n
        self.constants = modulus.constants
        self.size = modulus.element_size
        self._width_in = width or modulus.width
        self.width = modulus.width
        """Bytes of a number modulo n^2."""

    def empty(self, *shape: int) -> Elements:
        """Return an array for elements that are yet to be computed."""
        size = math.prod(shape) * self.size * self.dtype.itemsize
        memory = np.empty(size + _ALIGNMENT, np.uint8)
        start = -memory.__array_interface__["data"][0] % _ALIGNMENT
        return memory[start : start + size].view(self.dtype).reshape(*shape, self.size)

    def in_parallel(self, work: Callable[[int, int], None], count: int, least: int = 1) -> None:
        """Call `work(start, stop)` for parts of a list of `count` elements, in parallel; see threads.in_parallel."""
        in_parallel(work, count, self.lanes, least)

    def enter(self, numbers: Sequence[mpz]) -> Elements:
        """Convert numbers of at most `width` bytes to elements."""
        return self.enter_bytes(b"".join([number.to_bytes(self._width_in, "big") for number in numbers]))

    def enter_bytes(self, data: bytes | memoryview) -> Elements:
        """Convert big-endian numbers of `width` bytes each, one after the other, to elements."""
        width, data = self._width_in, memoryview(data)
        out = self.empty(len(data) // width)
        self.in_parallel(
            lambda start, stop: _kernel.enter(
                self.constants, out[start:stop], data[start * width : stop * width], True
            ),
            len(out),
            _LEAST,
        )
        return out

    def leave(self, elements: Elements, plaintexts: Sequence[mpz] | None = None) -> list[mpz]:
        """Convert elements to numbers, each times (1 + m n) if there are plaintexts m, which may be negative."""
        data, width = self.leave_bytes(elements, plaintexts), self.width
        return [mpz.from_bytes(data[start : start + width], "big") for start in range(0, len(data), width)]

    def leave_bytes(self, elements: Elements, plaintexts: Sequence[mpz] | None = None) -> bytes:
        """Convert elements like `leave`, to big-endian numbers of the width of n^2, one after the other."""
        width, half, count = self.width, self.width // 2, len(elements)
        out = memoryview(bytearray(count * width))
        plain = b"" if plaintexts is None else self._plain(plaintexts, count)

        def work(start: int, stop: int) -> None:
            numbers, plain_part = out[start * width : stop * width], plain[start * half : stop * half]
            _kernel.leave(self.constants, numbers, elements[start:stop], plain_part)

        self.in_parallel(work, count, _LEAST)
        return bytes(out)

    def add_plaintexts(self, elements: Elements, plaintexts: Sequence[mpz]) -> Elements:
        """Multiply each element by (1 + m n)."""
        half, count = self.width // 2, len(elements)
        plain, out = self._plain(plaintexts, count), self.empty(count)
        self.in_parallel(
            lambda start, stop: _kernel.add_plaintexts(
                self.constants, out[start:stop], elements[start:stop], plain[start * half : stop * half]
            ),
            count,
            _LEAST,
        )
        return out

    def _plain(self, plaintexts: Sequence[mpz], count: int) -> memoryview:
        """Return plaintexts, which may be negative, as the kernel reads them."""
        if len(plaintexts) != count:
            raise ValueError("there must be a plaintext for each element, one by one")
        n, half = self.n, self.width // 2
        return memoryview(b"".join([(m % n).to_bytes(half, "big") for m in plaintexts]))

    def multiply(self, a: Elements, b: Elements) -> Elements:
        """Multiply element by element."""
        if len(a) != len(b):
            raise ValueError(f"{len(a)} numbers cannot be multiplied with {len(b)}, one by one")
        out = self.empty(len(a))
        self.in_parallel(
            lambda start, stop: _kernel.multiply(self.constants, out[start:stop], a[start:stop], b[start:stop]),
            len(a),
            _LEAST,
        )
        return out

    def square(self, elements: Elements, times: int) -> Elements:
        """Square each `times` times over."""
        out = self.empty(len(elements))
        self.in_parallel(
            lambda start, stop: _kernel.square(self.constants, out[start:stop], elements[start:stop], times),
            len(elements),
        )
        return out

    def product(self, elements: Elements) -> Elements:
        """Multiply all elements of a list; shape (1, 2 D). The product of none is 1."""
        out = self.empty(1)
        _kernel.product(self.constants, out, elements)
        return out
