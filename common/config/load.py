"""From a YAML file and the environment to checked settings."""

import os
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from trilateral.common.base.errors import ConfigError
from trilateral.common.config.check import Keys, SettingsT, check_settings
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.config.settings import Settings

ENVIRONMENT_PREFIX = "TRILATERAL_"
NOT_SETTINGS = frozenset({"TRILATERAL_DEBUG", "TRILATERAL_ARITHMETIC"})
"""Variables with the prefix that are no settings: they mean something to the command line and to the arithmetic."""


def load_process_config(path: Path, environment: Mapping[str, str] | None = None) -> ProcessConfig:
    """Read a process's configuration; environment variables override what the file says.

    ``TRILATERAL_POLICY__MIN_KEY_BITS`` sets ``policy.min_key_bits``: ``__`` stands between levels. Paths that
    are not absolute are relative to the file's folder, wherever they are written.

    Raises:
        ConfigError: one line for each setting that cannot be used.
    """
    return load_with_overrides(path, environment)[0]


def load_with_overrides(
    path: Path, environment: Mapping[str, str] | None = None
) -> tuple[ProcessConfig, Mapping[Keys, str]]:
    """As `load_process_config`; also return which settings the environment has overridden, and by which variable."""
    settings = _read_mapping(path)
    overridden = _override(settings, os.environ if environment is None else environment)
    config = check_settings(ProcessConfig, settings, str(path), overridden)
    return _resolve_paths(config, path.absolute().parent), overridden


def load_job(path: Path) -> JobConfig:
    """Read a job.

    Raises:
        ConfigError: one line for each setting that cannot be used.
    """
    return check_settings(JobConfig, _read_mapping(path), str(path))


# --- reading


class _StrictLoader(yaml.SafeLoader):
    """YAML where a key given twice is an error, not a silent choice of the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.MarkedYAMLError(problem="a key must be a word", problem_mark=key_node.start_mark)
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"the key `{key}` is given twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _read_mapping(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text; a configuration is a YAML file") from None
    try:
        content = yaml.load(text, Loader=_StrictLoader)  # noqa: S506 (a SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(f"{path}: {where}not valid YAML: {error.problem}") from error
    except yaml.reader.ReaderError as error:
        raise ConfigError(f"{path}: character {error.position + 1}: not valid YAML: {error.reason}") from error
    except (ValueError, RecursionError):  # 2020-13-45 looks like a date, 0x_ like a number, and neither is one
        raise ConfigError(f"{path}: not valid YAML: a date or number that is none, or nested too deeply") from None
    if content is None:
        raise ConfigError(f"{path}: is empty; see configs/ for examples")
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected `key: value` lines; see configs/ for examples")
    return content


def _override(settings: dict[str, Any], environment: Mapping[str, str]) -> dict[Keys, str]:
    """Put the environment's values into `settings`; return which variable set which key."""
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
    """Return the key that `name`, in capitals, stands for: names of datasets may have capitals of their own."""
    return next((key for key in level if str(key).upper() == name.upper()), name.lower())


def _resolve_paths(settings: SettingsT, folder: Path) -> SettingsT:
    def resolve(value: Any) -> Any:
        if isinstance(value, Path):
            return (folder / value.expanduser()).resolve()
        if isinstance(value, Settings):
            return _resolve_paths(value, folder)
        if isinstance(value, dict):
            return {key: resolve(each) for key, each in value.items()}
        return value

    return settings.model_copy(update={name: resolve(getattr(settings, name)) for name in type(settings).model_fields})
