"""Loading jobs and configurations from YAML files and the environment."""

import os
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.permissions import explain
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.config.settings import Keys, Settings, SettingsT, parse_settings

ENVIRONMENT_PREFIX = "TRILATERAL_"
NOT_SETTINGS = frozenset({"TRILATERAL_DEBUG", "TRILATERAL_ARITHMETIC", "TRILATERAL_AUTHORITY_PASSPHRASE"})
"""Variables with the prefix that are not settings: the command line and the arithmetic read them."""


def load_process_config(path: Path, environment: Mapping[str, str] | None = None) -> ProcessConfig:
    """Load the configuration of a process. Environment variables override the file.

    ``TRILATERAL_POLICY__MIN_KEY_BITS`` sets ``policy.min_key_bits``: ``__`` separates levels. Relative paths start at
    the folder of the file, even if they come from a variable.

    Args:
        path: the YAML file.
        environment: the environment variables; those of this process by default.

    Returns:
        The configuration, with absolute paths.

    Raises:
        ConfigError: the file cannot be read, or a setting is invalid; the text has one line for each such setting.
    """
    return load_with_overrides(path, environment)[0]


def load_with_overrides(
    path: Path, environment: Mapping[str, str] | None = None
) -> tuple[ProcessConfig, Mapping[Keys, str]]:
    """Load a configuration and report which settings the environment overrides.

    Args:
        path: the YAML file.
        environment: the environment variables; those of this process by default.

    Returns:
        The configuration, as from `load_process_config`, and the name of the variable for each overridden setting.

    Raises:
        ConfigError: as for `load_process_config`.
    """
    settings, lines = _read_mapping(path)
    overridden = _override(settings, os.environ if environment is None else environment)
    config = parse_settings(ProcessConfig, settings, str(path), overridden, lines)
    return _resolve_paths(config, path.absolute().parent), overridden


def load_job(path: Path) -> JobConfig:
    """Load a job.

    Args:
        path: the YAML file.

    Raises:
        ConfigError: the file cannot be read, or a setting is invalid; the text has one line for each such setting.
    """
    settings, lines = _read_mapping(path)
    return parse_settings(JobConfig, settings, str(path), lines=lines)


# --- reading


class _StrictLoader(yaml.SafeLoader):
    """A YAML loader that rejects duplicate keys. The standard loader silently keeps the last of them."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.MarkedYAMLError(problem="a key must be a word", problem_mark=key_node.start_mark)
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"duplicate key `{key}`", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _read_mapping(path: Path) -> tuple[dict[str, Any], dict[Keys, int]]:
    """Return the content of a YAML file, and the line of each key in it."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {explain(error, path)}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text; expected a YAML file") from None
    try:
        loader = _StrictLoader(text)
        root = loader.get_single_node()
        content = None if root is None else loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(f"{path}: {where}not valid YAML: {error.problem}") from error
    except yaml.reader.ReaderError as error:
        raise ConfigError(f"{path}: character {error.position + 1}: not valid YAML: {error.reason}") from error
    except (ValueError, RecursionError):  # 2020-13-45 looks like a date and 0x_ like a number, but neither is valid
        raise ConfigError(f"{path}: not valid YAML: invalid date or number, or nested too deeply") from None
    if content is None:
        raise ConfigError(f"{path}: the file is empty; see configs/ for examples")
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected `key: value` lines; see configs/ for examples")
    return content, {} if root is None else dict(_lines(root, set()))


def _lines(node: yaml.Node, seen: set[int], keys: Keys = ()) -> Iterator[tuple[Keys, int]]:
    """Yield the keys of a node and those below it, each with its line.

    A node that several aliases name is visited once: a short file can name a node exponentially often.
    """
    if id(node) in seen:
        return
    seen.add(id(node))
    match node:
        case yaml.MappingNode():
            for key, value in node.value:
                below = (*keys, str(key.value))
                yield below, key.start_mark.line + 1
                yield from _lines(value, seen, below)
        case yaml.SequenceNode():
            for place, value in enumerate(node.value):
                below = (*keys, str(place))
                yield below, value.start_mark.line + 1
                yield from _lines(value, seen, below)


def _override(settings: dict[str, Any], environment: Mapping[str, str]) -> dict[Keys, str]:
    """Put values of environment variables into `settings`; return the variable that set each key."""
    overridden = {}
    for variable, value in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in NOT_SETTINGS:
            continue
        level = settings
        keys: Keys = ()
        *parents, last = variable.removeprefix(ENVIRONMENT_PREFIX).split("__")
        for parent in parents:
            key = _same_key(level, parent)
            keys += (key,)
            if not isinstance(level.get(key), dict):
                level[key] = {}
            level = level[key]
        key = _same_key(level, last)
        level[key] = value
        overridden[(*keys, key)] = variable
    return overridden


def _same_key(level: dict[str, Any], name: str) -> str:
    """Return the existing key that equals `name` without regard to case: a dataset's name may contain capitals."""
    return next((key for key in level if str(key).upper() == name.upper()), name.lower())


def _resolve_paths(settings: SettingsT, folder: Path) -> SettingsT:
    def resolve(value: object) -> object:
        if isinstance(value, Path):
            return (folder / value.expanduser()).resolve()
        if isinstance(value, Settings):
            return _resolve_paths(value, folder)
        if isinstance(value, dict):
            return {key: resolve(each) for key, each in value.items()}
        return value

    return settings.model_copy(update={name: resolve(getattr(settings, name)) for name in type(settings).model_fields})
