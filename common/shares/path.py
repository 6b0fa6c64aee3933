"""The arithmetic of shares in this process: the kernel at a level of the processor, or numpy, with the same bits."""

import logging

log = logging.getLogger(__name__)

NUMPY = 0
"""The level without the kernel. The others are constants of the kernel."""


class _Choice:
    """The level of this process; None until something needs it or the process chooses."""

    level: int | None = None


def choose_shares_arithmetic(*, portable: bool = False) -> int:
    """Choose the arithmetic of shares of this process, for all jobs from now on, and log it if it is new.

    Args:
        portable: use numpy, even if the kernel can run.

    Returns:
        The level in use.
    """
    best, why_not = best_level()
    level = NUMPY if portable else best
    if level != _Choice.level:
        if level != NUMPY:
            log.info("arithmetic of shares: the kernel, with %s", instructions(level))
        elif portable:
            log.info("arithmetic of shares: numpy, as chosen")
        else:
            log.warning("arithmetic of shares: numpy, about forty times slower, because %s", why_not)
    _Choice.level = level
    return level


def shares_level() -> int:
    """Return the level of this process: the chosen one, or by default the best that the machine can run."""
    return choose_shares_arithmetic() if _Choice.level is None else _Choice.level


def instructions(level: int) -> str:
    """Return the name of the instructions that a level of the kernel uses."""
    return "AVX-512" if level > 1 else "AVX2"


def use_level(level: int) -> None:
    """Use a level that the machine has, for tests and benchmarks that compare them."""
    _Choice.level = level


def best_level() -> tuple[int, str]:
    """Return the best level of this machine, and why it is not the kernel; empty if it is."""
    try:
        from trilateral.common.shares.native import _kernel
    except ImportError:
        return NUMPY, "it was not built, which takes a C compiler and Python's headers (Debian: gcc, python3-dev)"
    return _kernel.level, "" if _kernel.level else "the processor has no AVX2 or no AES instructions"
