"""The choice of a process's encrypted arithmetic: which implementation it uses, and how many threads."""

import os

from trilateral.common.base.errors import ConfigError
from trilateral.common.paillier.native.path import Path, choose_arithmetic
from trilateral.common.paillier.native.threads import set_threads

VARIABLE = "TRILATERAL_ARITHMETIC"
"""Environment variable that names the arithmetic to use, for comparisons: "avx2" or "gmpy2"."""


def use_arithmetic(threads: int = 0) -> Path:
    """Choose the arithmetic that the environment asks for, and the number of its threads.

    Args:
        threads: the number of threads; 0 for one on each processor.

    Returns:
        The name of the arithmetic.

    Raises:
        ConfigError: the environment asks for an arithmetic that does not exist, or that this machine cannot run.
    """
    set_threads(threads or processors())
    try:
        return choose_arithmetic(os.environ.get(VARIABLE, ""))
    except ConfigError as error:
        raise ConfigError(f"{VARIABLE}: {error}") from error


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
