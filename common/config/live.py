"""Which settings a running process takes from a changed file, and how two configurations differ.

A process takes over what decides who may ask and what may leave. For the other settings it must be restarted.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trilateral.common.config.process import ProcessConfig

_LIVE_SECTIONS = ("policy", "datasets", "operators")
_LIVE_OF_A_PEER = "fingerprint"
_LIVE_ONLINE = "precompute"
_LIVE_UI = ("clients", "allow_changes")
_LABEL_VALUES = ("positive", "negative", "classes")
HIDDEN = "(not shown)"
"""Stands for the values of a label, which no log or note may contain."""
MAX_SHOWN = 200
"""Maximum characters of a value in a text."""


@dataclass(frozen=True)
class Difference:
    """A setting with different values in two configurations.

    Attributes:
        setting: its keys, joined by dots.
        before: its value in the first configuration, as JSON has it, with `HIDDEN` for the values of a label; None also
            if it is absent there.
        after: its value in the second one.
    """

    setting: str
    before: Any
    after: Any

    @property
    def is_live(self) -> bool:
        """Whether a running process takes the setting from a changed file."""
        keys = self.setting.split(".")
        if keys[0] == "online":
            return keys[1:2] == [_LIVE_ONLINE]
        if keys[0] == "ui":
            return keys[1] in _LIVE_UI
        return keys[0] in _LIVE_SECTIONS or (keys[0] == "peers" and keys[-1] == _LIVE_OF_A_PEER)

    def __str__(self) -> str:
        return f"{self.setting}: from {shown(self.before)} to {shown(self.after)}"


def shown(value: object) -> str:
    """Return a value as text, as a YAML file could have it."""
    text = json.dumps(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """Compare two configurations, each as `plain` returns it."""
    return list(_compare("", before, after))


def plain(config: ProcessConfig) -> dict[str, Any]:
    """Return a configuration in the types of JSON."""
    return config.model_dump(mode="json")


def without_labels(value: Any) -> Any:
    """Return a configuration, or a part of one, with `HIDDEN` in place of the values of labels."""
    if not isinstance(value, Mapping):
        return value
    hidden = {name: HIDDEN for name in _LABEL_VALUES if "column" in value and name in value}
    return {key: without_labels(each) for key, each in value.items()} | hidden


def with_live_settings(running: ProcessConfig, changed: ProcessConfig) -> ProcessConfig:
    """Return the configuration of a running process after a change of its file: the new live settings and the old rest.

    Args:
        running: the settings with which the process runs.
        changed: the settings in the file, for the same role.
    """
    peers = {
        role: peer.model_copy(update={_LIVE_OF_A_PEER: changed.peers[role].fingerprint})
        for role, peer in running.peers.items()
    }
    sections = {name: getattr(changed, name) for name in _LIVE_SECTIONS}
    online = running.online.model_copy(update={_LIVE_ONLINE: changed.online.precompute})
    ui = running.ui.model_copy(update={name: getattr(changed.ui, name) for name in _LIVE_UI})
    return running.model_copy(update={**sections, "peers": peers, "online": online, "ui": ui})


def _compare(setting: str, before: Any, after: Any) -> Iterator[Difference]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in {**before, **after}:
            yield from _compare(f"{setting}.{key}" if setting else key, before.get(key), after.get(key))
    elif before != after:
        if setting.endswith(tuple(f".label.{name}" for name in _LABEL_VALUES)):
            before = after = HIDDEN
        yield Difference(setting, without_labels(before), without_labels(after))
