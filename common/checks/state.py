"""The state folder: whose it is, whether it can be written, and what is in it."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from trilateral.common.base.errors import ConfigError
from trilateral.common.checks.finding import Finding, faults, note, ok, problem, warning
from trilateral.common.config.process import ProcessConfig
from trilateral.common.jobs.journal import JOURNAL, examine_journal
from trilateral.common.process.state_folder import TRIAL_BYTES, holder

MIN_BYTES = 2**30
"""A day of ten thousand rounds leaves some tens of MB in journal and history, and a prediction as much as its table."""


def check_state(config: ProcessConfig) -> Iterator[Finding]:
    """Check the state folder, which a process may hold meanwhile."""
    folder = config.state
    try:
        place = next(each for each in (folder, *folder.parents) if each.exists())
        owner = place.stat().st_uid
    except OSError as error:
        yield problem(
            "state",
            f"{folder} cannot be reached: {error.strerror}: run this check as the user of the process, and let that "
            "user enter each folder above it",
        )
        return
    if not place.is_dir():
        yield problem("state", f"{place} is no folder: choose another one for `state`")
        return
    if owner != os.geteuid() and place == folder:
        yield warning(
            "state",
            f"{folder} is another user's, number {owner}: run this check as the user of the process, since it tells "
            "what you may do",
        )
    try:
        process = holder(folder, config.role)
    except ConfigError as error:
        yield from faults("state", error)
        return
    if not os.access(place, os.W_OK | os.X_OK):
        yield problem("state", f"{place} cannot be written by this user: give it to the process's user")
        return
    yield from _room(place)
    if folder != place:
        yield ok("state", f"{folder} is not there yet, and will be made")
    elif process is not None:
        yield note("state", f"{folder} is held by process {process}, a {config.role} that runs")
    else:
        yield ok("state", f"{folder} can be written, and no process holds it")
    try:
        examine_journal(folder)
    except ConfigError as error:
        yield from faults("state", error)
    else:
        if (folder / JOURNAL).exists():
            yield ok("state", f"{JOURNAL} is whole")


def _room(place: Path) -> Iterator[Finding]:
    try:
        with tempfile.TemporaryFile(dir=place) as trial:
            trial.write(bytes(TRIAL_BYTES))
    except OSError as error:
        yield problem("state", f"{place} cannot be written: {error.strerror}: make room, or choose another folder")
        return
    free = shutil.disk_usage(place).free
    if free < MIN_BYTES:
        yield warning(
            "state", f"{free / 2**20:,.0f} MiB are free in {place}: a job that finds none fails; make room for 1 GiB"
        )
    else:
        yield ok("state", f"{free / 2**30:,.0f} GiB are free in {place}")
