"""Check of the running process: whether it uses the settings that its file has now."""

import time
from collections.abc import Iterator

from trilateral.common.base.errors import ConfigError
from trilateral.common.checks.finding import Finding, note, ok, problem, warning
from trilateral.common.config.live import Difference, differences, plain, shown, without_labels
from trilateral.common.config.process import ProcessConfig
from trilateral.common.process.live_settings import LOOK_SECONDS, settings_of
from trilateral.common.process.state_folder import holder

TURNS = 5
"""How often to look for a change that the process has not noticed yet. It notices one at its second look."""


def check_running(config: ProcessConfig) -> Iterator[Finding]:
    """Compare the settings of the running process with the configuration.

    Args:
        config: the configuration of the process.

    Yields:
        What was found; nothing if no process runs.
    """
    try:
        process = holder(config.state, config.role)
    except ConfigError:  # The check of the state folder reports it.
        return
    if process is None:
        return
    found = _differences(config, process)
    if found is None:
        yield note(
            "settings",
            f"it is unknown which settings the running {config.role}, process {process}, uses: this user cannot read "
            "its notes in the state folder, or it is of an older release",
        )
        return
    if not found:
        yield ok("settings", f"the running {config.role}, process {process}, uses the settings of the file")
    for each in found:
        text = f"the running {config.role} uses {shown(each.before)}, but the file says {shown(each.after)}"
        if each.is_live:
            yield problem(
                each.setting,
                f"{text}: run `systemctl reload trilateral` or `kill -HUP {process}`; if that changes nothing, see the "
                f"{config.role}'s log",
            )
        else:
            yield warning(
                each.setting, f"{text}, which counts only after a restart: run `systemctl restart trilateral`"
            )


def _differences(config: ProcessConfig, process: str) -> list[Difference] | None:
    """Return what differs between the running process and the file, once the process has had time to notice."""
    found = None
    for turn in range(TURNS):
        if turn:
            time.sleep(LOOK_SECONDS)
        running = settings_of(process, config.state)
        if running is None:
            continue
        found = differences(running, without_labels(plain(config)))
        if not any(each.is_live for each in found):
            break
    return found
