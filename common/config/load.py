"""Loading jobs and configurations from YAML files and the environment."""

import os
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.permissions import explain
from trilateral.common.config.job import JobConfig, Task
from trilateral.common.config.process import ProcessConfig
from trilateral.common.config.settings import Keys, Settings, SettingsT, faulty_keys, parse_settings

ENVIRONMENT_PREFIX = "TRILATERAL_"
NOT_SETTINGS = frozenset(
    {
        "TRILATERAL_DEBUG",
        "TRILATERAL_ARITHMETIC",
        "TRILATERAL_AUTHORITY_PASSPHRASE",
        "TRILATERAL_DATA",
        "TRILATERAL_MEMORY",
        "TRILATERAL_CPUS",
    }
)
"""Variables with the prefix that are not settings: the command, the arithmetic, the benchmarks and
`docker-compose.yml` read them."""
_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?$")
"""Variables that Kubernetes sets for each service, in case the name of a service begins with `trilateral`."""


def load_process_config(path: Path, environment: Mapping[str, str] | None = None) -> ProcessConfig:
    """Load the configuration of a process. Environment variables override the file.

    ``TRILATERAL_POLICY__MIN_KEY_BITS`` sets ``policy.min_key_bits``: ``__`` separates levels. Relative paths start at
    the folder of the file, even if they come from a variable.

    A value is text where the setting takes text, and YAML otherwise. A value that begins with a bracket, a brace or a
    quotation mark is YAML if the setting accepts that. So ``null`` and ``1e3`` stay text in a setting of text, and
    ``[a, b]`` is a list where a list is allowed.

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
    variables = _override(settings, os.environ if environment is None else environment)
    _choose_readings(settings, variables)
    overridden = {variable.keys: variable.name for variable in variables}
    config = parse_settings(ProcessConfig, settings, str(path), overridden, lines)
    return _resolve_paths(config, path.absolute().parent), overridden


def overrides(config: ProcessConfig, environment: Mapping[str, str] | None = None) -> Mapping[Keys, str]:
    """Return the name of the variable for each setting of a loaded configuration that the environment has set.

    Args:
        config: the configuration.
        environment: the environment variables with which it was loaded; those of this process by default.
    """
    variables = _override(config.model_dump(mode="json"), os.environ if environment is None else environment)
    return {variable.keys: variable.name for variable in variables}


def load_job(path: Path, *, task: Task | None = None) -> JobConfig:
    """Load a job.

    Args:
        path: the YAML file.
        task: what the job does, whatever the file says; None for what the file says.

    Raises:
        ConfigError: the file cannot be read, or a setting is invalid; the text has one line for each such setting.
    """
    settings, lines = _read_mapping(path)
    if task is not None:
        settings["task"] = task
    return parse_settings(JobConfig, settings, str(path), lines=lines)


def read_job(text: str, source: str) -> JobConfig:
    """Read a job from the text of a YAML file.

    Args:
        text: the text.
        source: where it comes from; errors begin with it.

    Raises:
        ConfigError: the text is not YAML, or a setting is invalid; the error has one line for each such setting.
    """
    settings, lines = _parse_mapping(text, source)
    return parse_settings(JobConfig, settings, source, lines=lines)


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


def _date(loader: _StrictLoader, node: yaml.ScalarNode) -> object:
    try:
        return loader.construct_yaml_timestamp(node)
    except ValueError:
        problem = f"there is no date {node.value}: correct it, or put text in quotation marks"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None


_StrictLoader.add_constructor("tag:yaml.org,2002:timestamp", _date)


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
    return _parse_mapping(text, str(path))


def _parse_mapping(text: str, source: str) -> tuple[dict[str, Any], dict[Keys, int]]:
    """Return the content of a YAML text, and the line of each key in it."""
    try:
        loader = _StrictLoader(text)
        root = loader.get_single_node()
        content = None if root is None else loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(f"{source}: {where}not valid YAML: {error.problem}") from error
    except yaml.reader.ReaderError as error:
        raise ConfigError(f"{source}: character {error.position + 1}: not valid YAML: {error.reason}") from error
    except (ValueError, RecursionError):
        raise ConfigError(f"{source}: not valid YAML: invalid number, or nested too deeply") from None
    if content is None:
        raise ConfigError(f"{source}: the file is empty; see configs/ for examples")
    if not isinstance(content, dict):
        raise ConfigError(f"{source}: expected `key: value` lines; see configs/ for examples")
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


def _parse_yaml(text: str) -> Any:
    """Parse YAML.

    Raises:
        yaml.YAMLError: the text is not YAML.
        ValueError: 2020-13-45 looks like a date and 0x_ like a number, but neither is valid.
        RecursionError: it is nested too deeply.
    """
    return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 (a SafeLoader)


# --- environment variables


@dataclass
class _Variable:
    """An environment variable and the setting that it overrides."""

    name: str
    keys: Keys
    """The path of the setting."""
    level: dict[str, Any]
    """The mapping that holds the setting."""
    text: str
    yaml: Any
    """The value as YAML; the text itself if it is not YAML."""

    def use(self, value: object) -> None:
        self.level[self.keys[-1]] = value

    @property
    def is_structure(self) -> bool:
        """Whether the value is a list or a mapping in YAML."""
        return isinstance(self.yaml, list | dict)


def _override(settings: dict[str, Any], environment: Mapping[str, str]) -> list[_Variable]:
    """Put the values of environment variables into `settings`."""
    found: list[_Variable] = []
    for name, text in sorted(environment.items()):
        if not name.startswith(ENVIRONMENT_PREFIX) or name in NOT_SETTINGS or _is_service_link(name, text):
            continue
        level = settings
        keys: Keys = ()
        *parents, last = name.removeprefix(ENVIRONMENT_PREFIX).split("__")
        for parent in parents:
            key = _same_key(level, parent)
            keys += (key,)
            if not isinstance(level.get(key), dict):
                level[key] = {}
            level = level[key]
        keys += (_same_key(level, last),)
        if not text.strip():
            raise ConfigError(
                f"environment variable {name}: {'.'.join(keys)}: is empty: give a value, such as [] for an empty list, "
                "or unset the variable"
            )
        variable = _Variable(name, keys, level, text, _yaml_of(text))
        # Later variables may set keys within a mapping, so it must be in place now.
        variable.use(variable.yaml if text.lstrip()[0] in "[{\"'" else text)
        found.append(variable)
    return found


def _is_service_link(name: str, text: str) -> bool:
    return _SERVICE_LINK.search(name) is not None or (name.endswith("_PORT") and "://" in text)


def _yaml_of(text: str) -> Any:
    try:
        return _parse_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text


def _choose_readings(settings: dict[str, Any], variables: Sequence[_Variable]) -> None:
    """Read a variable that its setting refuses in the other way: as YAML in place of text, or the reverse."""
    refused = _refused(settings, variables)
    for variable in refused:
        is_text = variable.level[variable.keys[-1]] is variable.text
        variable.use(variable.yaml if is_text else variable.text)
    # If the setting refuses both readings, its error should be about the one that was meant.
    for variable in _refused(settings, refused):
        variable.use(variable.yaml if variable.is_structure else variable.text)


def _refused(settings: dict[str, Any], variables: Sequence[_Variable]) -> list[_Variable]:
    """Return the variables whose values are refused. If variables set a mapping and a key in it, the key's counts."""
    refused: dict[Keys, _Variable] = {}
    if not variables:
        return []
    for keys in faulty_keys(ProcessConfig, settings):
        inner = [variable for variable in variables if keys[: len(variable.keys)] == variable.keys]
        if inner:
            variable = max(inner, key=lambda variable: len(variable.keys))
            refused[variable.keys] = variable
    return list(refused.values())


def _same_key(level: dict[str, Any], name: str) -> str:
    """Return the existing key that a part of a variable's name means.

    A dataset's name may have capitals, and `-` and `.`, which a shell does not allow in the name of a variable.
    """
    for spelling in (str.upper, lambda key: re.sub("[-.]", "_", key.upper())):
        found = [key for key in level if spelling(str(key)) == spelling(name)]
        if len(found) == 1:
            return str(found[0])
        if found:
            raise ConfigError(
                f"environment variables: {name} means each of {', '.join(map(str, found))}: rename one of them"
            )
    return name.lower()


def _resolve_paths(settings: SettingsT, folder: Path) -> SettingsT:
    def resolve(value: object) -> object:
        if isinstance(value, Path):
            return (folder / value.expanduser()).resolve()
        if isinstance(value, Settings):
            return _resolve_paths(value, folder)
        if isinstance(value, dict):
            return {key: resolve(each) for key, each in value.items()}
        return value

    # An option that is not given stays so: a column then takes it from the settings of all columns.
    return settings.model_copy(update={name: resolve(getattr(settings, name)) for name in settings.model_fields_set})
