"""Which arithmetic this process uses: the kernel, or gmpy2 where the kernel cannot run. Both give the same numbers."""

import logging
from typing import Literal

from gmpy2 import mpz

from trilateral.common.base.errors import ConfigError
from trilateral.common.paillier.native.modulus import MAX_BITS, MIN_BITS, KernelPath, fits

log = logging.getLogger(__name__)

Path = KernelPath | Literal["gmpy2"]

INSTRUCTIONS: dict[KernelPath, str] = {"ifma": "AVX-512 IFMA", "avx2": "AVX2"}
"""The paths of the kernel, the fastest first, and what they use."""
_NEEDS: dict[KernelPath, str] = {
    "ifma": "AVX-512 with its integer multiply-add (IFMA)",
    "avx2": "AVX2 and fused multiply-add",
}


class _Choice:
    """The path of this process; None until something needs it or the process chooses."""

    path: Path | None = None


def choose_arithmetic(name: str = "") -> Path:
    """Choose the path of this process, for all jobs from now on, and log it if it is new.

    Args:
        name: "ifma", "avx2" or "gmpy2"; empty for the fastest that this machine can run.

    Returns:
        The path in use.

    Raises:
        ConfigError: no path has this name, or this machine cannot run it.
    """
    names = [*INSTRUCTIONS, "gmpy2"]
    if name and name not in names:
        raise ConfigError(
            f"there is no arithmetic {name[:40]!r}: set {', '.join(names[:-1])} or {names[-1]}, or leave it empty"
        )
    path: Path = "gmpy2"
    for each in INSTRUCTIONS:
        if name == each and (why_not := obstacle(each)):
            raise ConfigError(f"the arithmetic {name} was chosen, but {why_not}")
        if path == "gmpy2" and name in {"", each} and not obstacle(each):
            path = each
    if path != _Choice.path:
        if path != "gmpy2":
            log.info("encrypted arithmetic: the kernel, with %s", INSTRUCTIONS[path])
        elif name:
            log.info("encrypted arithmetic: gmpy2, as chosen")
        else:
            log.warning("encrypted arithmetic: gmpy2, 5 to 15 times slower, because %s", obstacle())
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
    if arithmetic_path() == "gmpy2":
        return False
    if fits(n, number_bits):
        return True
    log.warning(
        "a modulus of %d bits: gmpy2, 5 to 15 times slower, because the kernel takes odd moduli of %d to %d bits,"
        " and primes of about equal length",
        n.bit_length(),
        MIN_BITS,
        MAX_BITS,
    )
    return False


def obstacle(path: KernelPath = "avx2") -> str:
    """Return why a path of the kernel cannot run on this machine; empty if it can."""
    try:
        from trilateral.common.paillier.native import _kernel
    except ImportError:
        return "the kernel was not built, which takes a C compiler and Python's headers (Debian: gcc, python3-dev)"
    return "" if path in _kernel.paths else f"the processor has no {_NEEDS[path]}"


def kernel_path() -> KernelPath:
    """Return the path of the kernel that this process uses; the default one if it uses gmpy2."""
    path = arithmetic_path()
    return next(each for each in INSTRUCTIONS if not obstacle(each)) if path == "gmpy2" else path
