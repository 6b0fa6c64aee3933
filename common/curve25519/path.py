"""The arithmetic of Curve25519 in this process: the kernel, or libsodium and gmpy2, with the same bytes."""

import logging

log = logging.getLogger(__name__)


class _Choice:
    """Whether this process uses the kernel; None until something needs it or the process chooses."""

    kernel: bool | None = None


def choose_curve_arithmetic(*, portable: bool = False) -> bool:
    """Choose the arithmetic of Curve25519 of this process, from now on, and log it if it is new.

    Args:
        portable: use libsodium, even if the kernel can run.

    Returns:
        Whether the kernel is in use.
    """
    why_not = obstacle()
    kernel = not portable and not why_not
    if kernel is not _Choice.kernel:
        if kernel:
            log.info("arithmetic of alignments: the kernel, with AVX-512 IFMA")
        elif portable:
            log.info("arithmetic of alignments: libsodium, as chosen")
        else:
            log.info("arithmetic of alignments: libsodium, about five times slower, because %s", why_not)
    _Choice.kernel = kernel
    return kernel


def uses_kernel() -> bool:
    """Return whether this process uses the kernel. By default it does if the machine can run it."""
    return choose_curve_arithmetic() if _Choice.kernel is None else _Choice.kernel


def obstacle() -> str:
    """Return why the kernel cannot run on this machine; empty if it can."""
    try:
        from trilateral.common.curve25519.native import _kernel
    except ImportError:
        return "the kernel was not built, which takes a C compiler and Python's headers (Debian: gcc, python3-dev)"
    return "" if _kernel.available else "the processor has no AVX-512 with its integer multiply-add (IFMA)"
