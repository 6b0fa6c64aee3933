"""From a YAML file to checked settings; every error says where, what was expected and the way out."""

import difflib
import os
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from common.config.job import JobConfig
from common.config.process import ProcessConfig
from common.config.settings import Settings
from common.errors import ConfigError

ENVIRONMENT_PREFIX = "TRILATERAL_"
NOT_SETTINGS = frozenset({"TRILATERAL_DEBUG"})
"""Variables with the prefix that mean something to the command line alone."""

Keys = tuple[str, ...]
"""Where a setting is: the keys that lead to it."""
SettingsT = TypeVar("SettingsT", bound=Settings)


def load_process_config(path: Path, environment: Mapping[str, str] | None = None) -> ProcessConfig:
    """Read a process's configuration; environment variables override what the file says.

    ``TRILATERAL_POLICY__MIN_KEY_BITS`` sets ``policy.min_key_bits``: ``__`` stands between levels. Paths that
    are not absolute are relative to the file's folder, wherever they are written.

    Raises:
        ConfigError: one line for each setting that cannot be used.
    """
    settings = _read_mapping(path)
    overridden = _override(settings, os.environ if environment is None else environment)
    config = _validate(ProcessConfig, settings, str(path), overridden)
    return _resolve_paths(config, path.absolute().parent)


def load_job(path: Path) -> JobConfig:
    """Read a job.

    Raises:
        ConfigError: one line for each setting that cannot be used.
    """
    return _validate(JobConfig, _read_mapping(path), str(path), {})


# --- reading


class _StrictLoader(yaml.SafeLoader):
    """YAML where a key given twice is an error, not a silent choice of the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
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


# --- what is wrong, for people


def _validate(model: type[SettingsT], settings: dict[str, Any], file: str, overridden: Mapping[Keys, str]) -> SettingsT:
    try:
        return model.model_validate(settings)
    except ValidationError as error:
        problems: dict[Keys, list[ErrorDetails]] = {}
        for details in error.errors():
            problems.setdefault(_keys(settings, details), []).append(details)
        lines = []
        for keys, alternatives in problems.items():
            source = f"environment variable {overridden[keys]}" if keys in overridden else file
            where = f"{source}: {'.'.join(keys)}" if keys else source
            lines.append(f"{where}: {_problem(model, alternatives)}")
        raise ConfigError("\n".join(lines)) from None


def _keys(settings: Any, details: ErrorDetails) -> Keys:
    """Return the keys that lead to the error: pydantic's location without the tags of its unions."""
    keys: Keys = ()
    for position, key in enumerate(details["loc"], start=1):
        try:
            settings = settings[key]
        except (KeyError, TypeError):
            is_missing_key = details["type"] == "missing" and position == len(details["loc"])
            if not is_missing_key:
                continue
        keys += (str(key),)
    return keys


def _problem(model: type[BaseModel], alternatives: Sequence[ErrorDetails]) -> str:
    """Say what is wrong at one key; a union has an error for each of its members."""
    details = alternatives[0]
    expectations = [text for each in alternatives if (text := _expectation(each))]
    if expectations:
        value = details["input"]
        found = f", not {value!s:.40}" if isinstance(value, str | int | float) else ""
        return f"expected {' or '.join(expectations)}{found}"
    match details["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return _unknown_key(model, details["loc"])
        case "value_error":
            return str(details["ctx"]["error"])
        case _:
            return details["msg"]


def _expectation(details: ErrorDetails) -> str | None:
    """Return what belongs at the key, in the words of whoever writes YAML."""
    context = details.get("ctx", {})
    match details["type"]:
        case "int_parsing" | "int_type" | "int_from_float":
            return "a whole number"
        case "float_parsing" | "float_type" | "finite_number":
            return "a number"
        case "bool_parsing" | "bool_type":
            return "true or false"
        case "string_type":
            return "text (a number or a word such as yes becomes text in quotes)"
        case "path_type":
            return "a path"
        case "string_pattern_mismatch":
            return "1 to 64 letters, digits, `.`, `_` or `-`, beginning with a letter or digit"
        case "greater_than":
            return f"more than {context['gt']:g}"
        case "greater_than_equal":
            return f"at least {context['ge']:g}"
        case "less_than":
            return f"less than {context['lt']:g}"
        case "less_than_equal":
            return f"at most {context['le']:g}"
        case "multiple_of":
            return f"a multiple of {context['multiple_of']:g}"
        case "literal_error" | "enum":
            return str(context["expected"]).replace("'", "")
        case "union_tag_invalid":
            tags = str(context["expected_tags"]).replace("'", "")
            return f"{context['discriminator']} to be one of {tags}".replace("'", "`")
        case "union_tag_not_found":
            return f"the key {context['discriminator']} under it".replace("'", "`")
        case "model_attributes_type" if isinstance(details["input"], str):
            return f"keys with values under it, such as {{name: {details['input']:.40}}}"
        case "dict_type" | "model_type" | "model_attributes_type":
            return "keys with values under it"
        case "list_type" | "tuple_type":
            return "a list, such as [a, b]"
        case _:
            return None


def _unknown_key(model: type[BaseModel], location: Sequence[str | int]) -> str:
    *parents, unknown = location
    models = [model]
    for key in parents:
        inner = [found for each in models if key in each.model_fields for found in _models(each.model_fields[str(key)])]
        # What is no field is a key of a dict, or the tag of a union, which names one of its members.
        tagged = [each for each in models if "name" in each.model_fields and each.model_fields["name"].default == key]
        models = inner or tagged or models
    known = sorted({name for each in models for name in each.model_fields})
    close = difflib.get_close_matches(str(unknown), known, n=1, cutoff=0.7)
    return f"unknown key; did you mean {close[0]}?" if close else f"unknown key; there are {', '.join(known)}"


def _models(field: FieldInfo) -> list[type[BaseModel]]:
    """Return the settings that a field's type, a dict or union perhaps, holds."""

    def collect(annotation: object) -> list[type[BaseModel]]:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return [annotation]
        return [found for each in get_args(annotation) for found in collect(each)]

    return collect(field.annotation)
