"""Which arithmetic is in use: the kernel, or gmpy2 where it cannot be. Both give the same numbers."""

import logging
import os
from functools import cache
from typing import Literal

from gmpy2 import mpz

from trilateral.common.base.errors import ConfigError
from trilateral.common.paillier.native.modulus import MAX_BITS, MIN_BITS, fits

log = logging.getLogger(__name__)

VARIABLE = "TRILATERAL_ARITHMETIC"
"""Environment variable that asks for a path by its name, for comparisons: "avx2" or "gmpy2"."""
Path = Literal["avx2", "gmpy2"]


@cache
def arithmetic_path() -> Path:
    """Name the path of this process, and say it in the log, once.

    Raises:
        ConfigError: the environment asks for a path that is none, or that this machine has not.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked not in {"", "avx2", "gmpy2"}:
        raise ConfigError(f"{VARIABLE} is {asked:.40}: expected avx2 or gmpy2, or nothing")
    why_not = obstacle()
    if asked == "gmpy2":
        log.info("encrypted arithmetic: gmpy2, as %s says", VARIABLE)
        return "gmpy2"
    if why_not:
        if asked:
            raise ConfigError(f"{VARIABLE} asks for {asked}, but {why_not}")
        log.warning("encrypted arithmetic: gmpy2, about five times slower, because %s", why_not)
        return "gmpy2"
    log.info("encrypted arithmetic: the kernel, with AVX2")
    return "avx2"


def takes(n: mpz, number_bits: int = 0) -> bool:
    """Whether products modulo n^2 are the kernel's. Where it has no room for n, see `modulus.fits`, the log says so."""
    if arithmetic_path() != "avx2":
        return False
    if fits(n, number_bits):
        return True
    log.warning(
        "a modulus of %d bits: gmpy2, about five times slower, because the kernel takes odd ones of %d to %d bits, and"
        " primes of about equal length",
        n.bit_length(),
        MIN_BITS,
        MAX_BITS,
    )
    return False


def obstacle() -> str:
    """Return why the kernel cannot be used; empty if it can."""
    try:
        from trilateral.common.paillier.native import _kernel
    except ImportError:
        return "the kernel was not built, which takes a C compiler and Python's headers (Debian: gcc, python3-dev)"
    return "" if _kernel.supported else "the processor has no AVX2 and fused multiply-add"
