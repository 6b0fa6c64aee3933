"""Check of the running process: whether it uses the settings that its file has now."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.roles import Role
from trilateral.common.checks.finding import Finding, note, ok, problem, warning
from trilateral.common.config.live import Difference, differences, plain, shown, without_labels
from trilateral.common.config.process import ProcessConfig
from trilateral.common.config.settings import Keys
from trilateral.common.process.live_settings import LOOK_SECONDS, RunningSettings, settings_of
from trilateral.common.process.state_folder import holder

MAX_LISTED = 5
"""The most differences with a finding each. More of them become one finding, as after a start with another file."""
MAX_NAMED = 20
"""The most settings that such a finding names."""
TURNS = 5
"""How often to look for a change that the process has not noticed yet. It notices one at its second look."""


def check_running(config: ProcessConfig, overridden: Mapping[Keys, str]) -> Iterator[Finding]:
    """Compare the settings of the running process with the configuration.

    Args:
        config: the configuration of the process.
        overridden: for each setting that an environment variable of this shell set, the name of the variable.

    Yields:
        What was found; nothing if no process runs.
    """
    try:
        process = holder(config.state, config.role)
    except ConfigError:  # The check of the state folder reports it.
        return
    if process is None:
        return
    here = {".".join(keys): name for keys, name in overridden.items()}
    compared = _compare(config, process, here)
    if compared is None:
        yield note(
            "settings",
            f"it is unknown which settings the running {config.role}, process {process}, uses: this user cannot read "
            "its notes in the state folder, or it is of an older release",
        )
        return
    running, found = compared
    if not found:
        yield ok("settings", f"the running {config.role}, process {process}, uses the settings of the file")
    live, later = list[Difference](), list[Difference]()
    for each in found:
        uses = f"the running {config.role} uses {shown(each.before)}"
        if name := _variable_of(each, here):
            yield warning(
                each.setting,
                f"{uses}, but the variable {name} of this shell says {shown(each.after)}: unset it, or set it for the "
                "server too, and restart the server",
            )
            continue
        if name := _variable_of(each, running.variables):
            yield note(
                each.setting,
                f"{uses}, which comes from {name} of the server; this shell does not set it, so this check uses "
                f"{shown(each.after)}",
            )
            continue
        (live if each.is_live else later).append(each)
    reload = f"run `systemctl reload trilateral` or `kill -HUP {process}`; if that changes nothing, see the"
    yield from _listed(live, config.role, f": {reload} {config.role}'s log", problem)
    restart = ", which counts only after a restart: run `systemctl restart trilateral`"
    yield from _listed(later, config.role, restart, warning)


def _listed(
    found: Sequence[Difference], role: Role, remedy: str, finding: Callable[[str, str], Finding]
) -> Iterator[Finding]:
    """Yield a finding for each of a few differences, or one for all of many."""
    if len(found) <= MAX_LISTED:
        for each in found:
            text = f"the running {role} uses {shown(each.before)}, but the file says {shown(each.after)}"
            yield finding(each.setting, f"{text}{remedy}")
        return
    names = ", ".join(each.setting for each in found[:MAX_NAMED])
    more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    text = f"the running {role} uses other values of {len(found)} settings than the file, {names}{more}"
    yield finding("settings", f"{text}{remedy}")


def _compare(
    config: ProcessConfig, process: str, here: Mapping[str, str]
) -> tuple[RunningSettings, list[Difference]] | None:
    """Return what differs between the running process and the file, once the process has had time to notice."""
    found = None
    for turn in range(TURNS):
        if turn:
            time.sleep(LOOK_SECONDS)
        running = settings_of(process, config.state)
        if running is None:
            continue
        found = running, differences(running.settings, without_labels(plain(config)))
        if not any(each.is_live and not _variable_of(each, {**running.variables, **here}) for each in found[1]):
            break
    return found


def _variable_of(difference: Difference, variables: Mapping[str, str]) -> str | None:
    """Return the variable that has set a setting, a section with it, or a part of it."""
    setting = f"{difference.setting}."
    return next(
        (name for keys, name in variables.items() if setting.startswith(f"{keys}.") or keys.startswith(setting)), None
    )
