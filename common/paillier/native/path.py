"""Which arithmetic this process uses: the kernel, or gmpy2 where the kernel cannot run. Both give the same numbers."""

import logging
from typing import Literal

from gmpy2 import mpz

from trilateral.common.base.errors import ConfigError
from trilateral.common.paillier.native.modulus import MAX_BITS, MIN_BITS, fits

log = logging.getLogger(__name__)

Path = Literal["avx2", "gmpy2"]


class _Choice:
    """The path of this process; None until something needs it or the process chooses."""

    path: Path | None = None


def choose_arithmetic(name: str = "") -> Path:
    """Choose the path of this process, for all jobs from now on, and log it if it is new.

    Args:
        name: "avx2" or "gmpy2"; empty for the kernel where it can run, and gmpy2 elsewhere.

    Returns:
        The path in use.

    Raises:
        ConfigError: no path has this name, or this machine cannot run it.
    """
    if name not in {"", "avx2", "gmpy2"}:
        raise ConfigError(f"there is no arithmetic {name:.40}: set avx2 or gmpy2, or leave it empty")
    why_not = obstacle()
    if name == "avx2" and why_not:
        raise ConfigError(f"the arithmetic avx2 was chosen, but {why_not}")
    path: Path = "gmpy2" if name == "gmpy2" or why_not else "avx2"
    if path != _Choice.path:
        if path == "avx2":
            log.info("encrypted arithmetic: the kernel, with AVX2")
        elif name:
            log.info("encrypted arithmetic: gmpy2, as chosen")
        else:
            log.warning("encrypted arithmetic: gmpy2, about five times slower, because %s", why_not)
    _Choice.path = path
    return path


def arithmetic_path() -> Path:
    """Return the path of this process: the chosen one, or by default the fastest that the machine can run."""
    return _Choice.path or choose_arithmetic()


def takes(n: mpz, number_bits: int = 0) -> bool:
    """Return whether the kernel computes the products modulo n^2.

    If the process uses the kernel but the kernel has no room for n, the log says so; see `modulus.fits`.

    Args:
        n: the modulus.
        number_bits: length of the longest numbers that come from outside, in bits; 0 for that of n^2.
    """
    if arithmetic_path() != "avx2":
        return False
    if fits(n, number_bits):
        return True
    log.warning(
        "a modulus of %d bits: gmpy2, about five times slower, because the kernel takes odd moduli of %d to %d bits,"
        " and primes of about equal length",
        n.bit_length(),
        MIN_BITS,
        MAX_BITS,
    )
    return False


def obstacle() -> str:
    """Return why the kernel cannot run on this machine; empty if it can."""
    try:
        from trilateral.common.paillier.native import _kernel
    except ImportError:
        return "the kernel was not built, which takes a C compiler and Python's headers (Debian: gcc, python3-dev)"
    return "" if _kernel.supported else "the processor has no AVX2 and fused multiply-add"
