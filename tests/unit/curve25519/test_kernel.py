"""The kernel refuses buffers that do not fit each other."""

import pytest

from trilateral.common.curve25519 import path
from trilateral.common.curve25519.native import _kernel

SIZES = [(32, 31, 32), (32, 33, 32), (32, 64, 32), (32, 0, 32), (96, 64, 96), (31, 32, 31), (31, 31, 31)]


@pytest.mark.parametrize(("out", "keys", "points"), [*SIZES, (64, 32, 32), (32, 32, 64), (0, 32, 32)])
def test_sizes_that_do_not_match_are_refused(out: int, keys: int, points: int) -> None:
    with pytest.raises(ValueError, match="32 bytes|no AVX-512 IFMA"):
        _kernel.multiply(bytearray(out), bytes(keys), bytes(points))
    if out != points or out % 32:
        with pytest.raises(ValueError, match="32 bytes|no AVX-512 IFMA"):
            _kernel.map_to_curve(bytearray(out), bytes(points))


def test_a_buffer_that_cannot_be_written_is_refused() -> None:
    with pytest.raises((TypeError, BufferError)):
        _kernel.multiply(bytes(32), bytes(32), bytes(32))  # type: ignore[arg-type]


def test_the_kernel_does_not_run_without_its_instructions() -> None:
    assert bool(_kernel.available) is not bool(path.obstacle())
