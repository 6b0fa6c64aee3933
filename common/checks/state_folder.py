"""Check of the state folder: its owner, whether it is writable, and the journal in it."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from trilateral.common.base.errors import ConfigError
from trilateral.common.checks.finding import Finding, Level, faults, note, ok, problem, warning
from trilateral.common.config.process import ProcessConfig
from trilateral.common.jobs.journal import JOURNAL, examine_journal, examine_key
from trilateral.common.jobs.sealing import load_sealer
from trilateral.common.observe.audit import LOG
from trilateral.common.observe.audit_chain import verify_chain
from trilateral.common.process.live_settings import settings_of
from trilateral.common.process.state_folder import TRIAL_BYTES, holder, how_to_make

MIN_BYTES = 2**30
"""The least free space. A day of ten thousand rounds adds some tens of MB to the journal and history, and a prediction
needs about the size of its table."""


def check_state(config: ProcessConfig) -> Iterator[Finding]:
    """Check the state folder, which a running process may be using.

    Args:
        config: the configuration of the process.
    """
    folder = config.state
    try:
        place = next(each for each in (folder, *folder.parents) if each.exists())
        owner = place.stat().st_uid
    except OSError as error:
        yield problem(
            "state",
            f"cannot access {folder}: {error.strerror}: run this check as the user of the process, and give "
            "that user access to each parent folder",
        )
        return
    if not place.is_dir():
        yield problem("state", f"{place} is not a folder: choose another path for `state`")
        return
    if owner != os.geteuid() and place == folder:
        yield warning(
            "state",
            f"{folder} belongs to another user, number {owner}: run this check as that user, because it tests the "
            "permissions of the user who runs it",
        )
    try:
        process = holder(folder, config.role)
    except ConfigError as error:
        yield from faults("state", error)
        return
    if not os.access(place, os.W_OK | os.X_OK):
        if place == folder:
            yield problem("state", f"this user cannot write to {place}: make the user of the process its owner")
        else:
            yield problem("state", f"{folder} does not exist: {how_to_make(folder)}")
        return
    yield from _room(place)
    if folder != place:
        yield ok("state", f"{folder} does not exist yet and will be created")
    elif process is not None:
        yield note("state", f"{folder} is in use by the running {config.role}, process {process}")
    else:
        yield ok("state", f"{folder} is writable and not in use by another process")
    yield from _journal(config, process)
    try:
        found = verify_chain(folder / LOG)
    except ConfigError as error:
        yield from faults("audit log", error, Level.WARNING)
    else:
        if found.first:
            yield ok("audit log", f"lines {found.first} to {found.end.number} are whole")


def _journal(config: ProcessConfig, process: str | None) -> Iterator[Finding]:
    # The running process may have the path of its key from a variable that this shell does not set.
    running = None if process is None else settings_of(process, config.state)
    used = running.settings.get("state_key") if running is not None else None
    key = config.state_key if used is None else Path(used)
    try:
        examine_journal(config.state)
        try:
            sealer = load_sealer(key)
        except ConfigError as error:
            if key == config.state_key:
                raise
            yield note("state", f"the running {config.role} has its key, which this user cannot check: {error}")
            return
        is_encrypted = examine_key(config.state, sealer)
    except ConfigError as error:
        yield from faults("state", error)
    else:
        if (config.state / JOURNAL).exists():
            yield ok("state", f"{JOURNAL} is intact{' and encrypted' if is_encrypted else ''}")


def _room(place: Path) -> Iterator[Finding]:
    try:
        with tempfile.TemporaryFile(dir=place) as trial:
            trial.write(bytes(TRIAL_BYTES))
    except OSError as error:
        yield problem("state", f"cannot write to {place}: {error.strerror}: free some space, or choose another folder")
        return
    free = shutil.disk_usage(place).free
    if free < MIN_BYTES:
        yield warning(
            "state", f"{free / 2**20:,.0f} MiB are free in {place}: a job without space fails; free at least 1 GiB"
        )
    else:
        yield ok("state", f"{free / 2**30:,.0f} GiB are free in {place}")
