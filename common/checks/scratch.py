"""Check of the scratch space: whether its folder can be used, and how much room there is."""

import errno
import os
import shutil
from collections.abc import Iterator

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.permissions import explain
from trilateral.common.base.roles import Role
from trilateral.common.checks.finding import Finding, faults, note, ok, problem, warning
from trilateral.common.config.process import ProcessConfig
from trilateral.common.scratch.folders import SCRATCH, scratch_root
from trilateral.common.scratch.space import FREE_BYTES


def check_scratch(config: ProcessConfig) -> Iterator[Finding]:
    """Check the scratch space of a party, which a running process may be using. Nothing is made.

    Args:
        config: the configuration of the process.
    """
    if config.role is Role.COORDINATOR:
        return
    folder, settings = config.scratch_folder, config.scratch
    try:
        place = next(each for each in (folder, *folder.parents) if each.exists())
        if not place.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if (folder / SCRATCH).exists():
            scratch_root(folder)
    except ConfigError as error:
        yield from faults("scratch.folder", error)
        return
    except OSError as error:
        if settings.folder is not None:  # Otherwise it is the state folder, which has a check of its own.
            advice = "" if isinstance(error, PermissionError) else ": name another folder"
            yield problem("scratch.folder", f"{folder} cannot be used: {explain(error, folder)}{advice}")
        return
    free = max(shutil.disk_usage(place).free - FREE_BYTES, 0) / 1e9
    if settings.max_gb is not None and settings.max_gb > free:
        yield warning(
            "scratch.max_gb",
            f"allows {_size(settings.max_gb)} on disk, and jobs can use {_size(free)} in {place}: free some space, or"
            " choose another `scratch.folder`",
        )
    else:
        most = free if settings.max_gb is None else settings.max_gb
        yield ok(
            "scratch",
            f"rows may take {settings.memory_mb:,} MB of memory, and then {_size(most)} on disk in {place}",
        )
    if not settings.encrypt:
        yield note("scratch.encrypt", "rows on disk are not encrypted, because `scratch.encrypt` is false")


def _size(gb: float) -> str:
    return f"{gb:,.1f} GB" if gb >= 1 else f"{1000 * gb:,.0f} MB"
