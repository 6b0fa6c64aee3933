"""The choice of a process's arithmetic: which implementation it uses, and how many threads for the encrypted one."""

import os

from trilateral.common.base.errors import ConfigError
from trilateral.common.curve25519.path import choose_curve_arithmetic
from trilateral.common.paillier.native.path import Path, choose_arithmetic
from trilateral.common.paillier.native.threads import set_threads
from trilateral.common.shares.path import choose_shares_arithmetic

VARIABLE = "TRILATERAL_ARITHMETIC"
"""Environment variable that names the arithmetic to use, for comparisons: "ifma", "avx2" or "gmpy2". With
"gmpy2", numpy computes with shares, and libsodium aligns."""


def use_arithmetic(threads: int = 0) -> Path:
    """Choose the arithmetic that the environment asks for, and the number of its threads.

    Args:
        threads: the number of threads; 0 for one on each processor.

    Returns:
        The name of the encrypted arithmetic.

    Raises:
        ConfigError: the environment asks for an arithmetic that does not exist, or that this machine cannot run.
    """
    set_threads(threads or processors())
    name = os.environ.get(VARIABLE, "")
    try:
        path = choose_arithmetic(name)
    except ConfigError as error:
        raise ConfigError(f"{VARIABLE}: {error}") from error
    choose_shares_arithmetic(portable=name == "gmpy2")
    use_curve_arithmetic()
    return path


def use_curve_arithmetic() -> None:
    """Choose the arithmetic of alignments alone, which the guest's commands need and no other."""
    choose_curve_arithmetic(portable=os.environ.get(VARIABLE) == "gmpy2")


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
