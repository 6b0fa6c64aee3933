"""Check of the machine: its arithmetic, processors and open files; and measurements of memory."""

import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.roles import Role
from trilateral.common.checks.finding import Finding, faults, note, ok, warning
from trilateral.common.config.process import ProcessConfig
from trilateral.common.curve25519.path import obstacle as obstacle_of_curve
from trilateral.common.curve25519.path import uses_kernel
from trilateral.common.jobs.arithmetic import processors, use_arithmetic
from trilateral.common.paillier.native.path import INSTRUCTIONS, obstacle
from trilateral.common.process.memory import has_swap
from trilateral.common.process.state_folder import holder
from trilateral.common.shares.path import NUMPY, best_level, instructions, shares_level

MIN_FILES = 1024
"""The least number of open files. A server needs about 30, and one for each connection, of which there can be hundreds
in a flood."""
CGROUP = Path("/sys/fs/cgroup")
MEMORY = Path("/proc/meminfo")


def check_machine(config: ProcessConfig) -> Iterator[Finding]:
    """Check what the machine or the container offers to the process.

    Args:
        config: the configuration of the process.
    """
    yield from _arithmetic(config.role, config.limits.threads)
    yield from _threads(config.limits.threads)
    yield from _files()
    if config.role is Role.COORDINATOR:
        yield from _swap(config)


def _arithmetic(role: Role, threads: int) -> Iterator[Finding]:
    try:
        path = use_arithmetic(threads)
    except ConfigError as error:
        yield from faults("arithmetic", error)
        return
    if path != "gmpy2":
        yield ok("arithmetic", f"the kernel, with {INSTRUCTIONS[path]}")
    else:
        why = obstacle() or "TRILATERAL_ARITHMETIC says so"
        yield warning("arithmetic", f"gmpy2, 5 to 15 times slower than the kernel, because {why}: see docs/kernel.md")
    yield from _shares_arithmetic()
    yield from _curve_arithmetic(role)


def _shares_arithmetic() -> Iterator[Finding]:
    """Say what `use_arithmetic` has chosen for shares."""
    subject, level = "arithmetic of shares", shares_level()
    if level != NUMPY:
        yield ok(subject, f"the kernel, with {instructions(level)}")
        return
    _, why = best_level()
    why = why or "TRILATERAL_ARITHMETIC says so"
    yield warning(subject, f"numpy, about forty times slower than the kernel, because {why}: see docs/kernel.md")


def _curve_arithmetic(role: Role) -> Iterator[Finding]:
    """Say what `use_arithmetic` has chosen for alignments, which the parties compute."""
    if role is Role.COORDINATOR:
        return
    subject = "arithmetic of alignments"
    if uses_kernel():
        yield ok(subject, "the kernel, with AVX-512 IFMA")
    else:
        why = obstacle_of_curve() or "TRILATERAL_ARITHMETIC says so"
        yield note(subject, f"libsodium, about five times slower than the kernel, because {why}: see docs/kernel.md")


def _threads(wanted: int) -> Iterator[Finding]:
    cores, share = processors(), cpu_share()
    threads = wanted or cores
    text = f"{threads} threads on {cores} processors"
    if share is not None and threads > share + 0.5:
        yield warning(
            "limits.threads",
            f"{text}, of which this container may use {share:g}: set `limits.threads: {max(1, int(share))}`",
        )
    elif threads > cores:
        yield warning("limits.threads", f"{text}: more threads than processors are no faster; remove `limits.threads`")
    elif threads < cores:
        yield note("limits.threads", f"{text}: the remaining processors are left to other programs")
    else:
        yield ok("limits.threads", text)


def _files() -> Iterator[Finding]:
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < MIN_FILES:
        yield warning(
            "open files",
            f"at most {most}, and each connection needs one: allow {MIN_FILES} with `ulimit -n` or with LimitNOFILE of "
            "the systemd unit",
        )
    else:
        yield ok("open files", "no limit" if most == resource.RLIM_INFINITY else f"at most {most}")


def _swap(config: ProcessConfig) -> Iterator[Finding]:
    """Check that private keys stay out of swap space."""
    if not has_swap():
        yield ok("swap", "this machine has no swap space")
        return
    with suppress(OSError, ValueError, KeyError, ConfigError):
        process = holder(config.state, config.role)
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
        if int(lines["VmLck"].split()[0]):
            yield ok("swap", "the memory of the running coordinator is locked")
        else:
            yield warning(
                "swap",
                "parts of private keys may reach this machine's swap space: set LimitMEMLOCK=infinity in the systemd "
                "unit, or memlock: -1 under ulimits of the container, and restart the coordinator",
            )


def cpu_share() -> float | None:
    """Return the number of processors that this container may use, possibly a fraction; None without a limit."""
    try:
        quota, period = (CGROUP / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def free_memory() -> int | None:
    """Return the memory in bytes that this process can still allocate; None if the system does not tell."""
    free = []
    with suppress(OSError, ValueError, KeyError):
        lines = dict(line.split(":", 1) for line in MEMORY.read_text().splitlines())
        free.append(int(lines["MemAvailable"].split()[0]) * 1024)
    with suppress(OSError, ValueError):  # There is no control group, or it has no limit.
        most, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        free.append(most - used + _reclaimable())
    return min(free, default=None)


def _reclaimable() -> int:
    """Return the bytes of file cache that the control group counts as used but frees on demand."""
    with suppress(OSError, ValueError, KeyError):
        fields = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        return int(fields["inactive_file"])
    return 0


def peak_memory() -> int:
    """Return the peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
