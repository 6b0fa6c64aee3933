"""The settings of a running process: it reads its file again when the file changes, and on SIGHUP.

If the changed file cannot be used, the process keeps its settings and logs why. It notes the settings with which it
runs in its state folder, where `trilateral check` compares them with the file.
"""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.files import file_stamp, write_whole
from trilateral.common.base.tracebacks import where
from trilateral.common.config.live import Difference, differences, plain, with_live_settings, without_labels
from trilateral.common.config.load import load_process_config, overrides
from trilateral.common.config.process import ProcessConfig

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Interval at which to look for a change of the file. A change counts once the file is the same at two looks, because a
part of a file can be valid: it would grant what the lines that are still missing forbid."""
NOTE = ".settings.json"
"""File in the state folder. No job has this name, because a job's name never begins with a dot."""

OnChange = Callable[[ProcessConfig, Sequence[Difference]], None]
"""Called with the new settings of the process, and what has changed in them."""


class LiveSettings:
    """The settings of one process.

    Args:
        config: the settings at the start, with which the state folder is held.
        path: the file that they come from; None for settings without a file, which stay as they are.
        on_change: see `OnChange`.

    Attributes:
        config: the settings now.
    """

    def __init__(self, config: ProcessConfig, path: Path | None, on_change: OnChange) -> None:
        self.config = config
        self._path = path
        self._on_change = on_change
        self._waiting: list[str] = []
        """Settings that have another value in the file, and count only after a restart."""
        self._complaint: tuple[object, str] | None = None
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Read the file again at once, whether or not it seems to have changed."""
        self._asked.set()

    async def watch(self) -> None:
        """Note the settings in the state folder, and read the file again whenever it changes, until cancelled."""
        await asyncio.to_thread(self._note)
        if self._path is None:
            return
        # The first look reads the file, because it may have changed since the start.
        read = before = None
        while True:
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._asked.wait()
            except TimeoutError:
                pass
            asked = self._asked.is_set()
            self._asked.clear()
            stamp = await asyncio.to_thread(file_stamp, self._path)
            if asked or read != stamp == before:
                try:
                    await self._read(self._path, stamp, asked=asked)
                except Exception as error:  # The next change must be seen, whatever this one was.
                    log.error("the configuration could not be read again: unexpected error: %s", where(error))
                read = stamp
            before = stamp

    async def _read(self, path: Path, stamp: object, *, asked: bool) -> None:
        try:
            loaded = await asyncio.to_thread(load_process_config, path)
            if loaded.role is not self.config.role:
                raise ConfigError(f"{path}: role: is {loaded.role}, but the {self.config.role} is running")
        except ConfigError as error:
            if asked or (stamp, str(error)) != self._complaint:
                self._complaint = stamp, str(error)
                log.error("the changed configuration cannot be used; the last settings stay in force: %s", error)
            return
        self._warn_of_restart(differences(plain(self.config), plain(loaded)))
        changed = with_live_settings(self.config, loaded)
        found = differences(plain(self.config), plain(changed))
        if found:
            self.config = changed
            for each in found:
                log.warning("the configuration has changed: %s", each)
            self._on_change(changed, found)
            await asyncio.to_thread(self._note)
        elif asked:
            log.info("the configuration was read again: nothing in it has changed that counts without a restart")

    def _warn_of_restart(self, found: Sequence[Difference]) -> None:
        names = [each.setting for each in found if not each.is_live]
        if names and names != self._waiting:
            log.warning("changes of these settings count only after a restart: %s", ", ".join(names))
        self._waiting = names

    def _note(self) -> None:
        variables = {} if self._path is None else overrides(self.config)
        note = {
            "process": os.getpid(),
            "settings": without_labels(plain(self.config)),
            "variables": {".".join(keys): name for keys, name in variables.items()},
        }
        try:
            write_whole(self.config.state / NOTE, json.dumps(note) + "\n")
        except OSError as error:
            log.error("the settings in force cannot be noted for `trilateral check`: %s", error.strerror)


@dataclass(frozen=True)
class RunningSettings:
    """The settings with which a process runs.

    Attributes:
        settings: in the types of JSON, without the values of labels; see `without_labels`.
        variables: the name of the environment variable for each setting that has its value from one.
    """

    settings: Mapping[str, Any]
    variables: Mapping[str, str]


def settings_of(process: str, state: Path) -> RunningSettings | None:
    """Return the settings with which a process runs.

    Args:
        process: the ID of the process, which holds the state folder.
        state: its state folder.

    Returns:
        None if it has not noted them.
    """
    try:
        note = json.loads((state / NOTE).read_bytes())
        return RunningSettings(note["settings"], note["variables"]) if str(note["process"]) == process else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
