"""The base class of all settings, and conversions between settings and plain values.

Validation errors name the setting, the expected value and, where there is one, the remedy.
"""

import difflib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from trilateral.common.base.errors import ConfigError

JOB_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
JobName = Annotated[str, Field(pattern=JOB_NAME)]
"""A name of a job or table. It is safe to use as a file name."""


class Settings(BaseModel):
    """Base of all settings: immutable, and an unknown key is an error, so that no misspelt option goes unnoticed."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Keys = tuple[str, ...]
"""The path of a setting: the keys that lead to it."""
NOT_OVERRIDDEN: Mapping[Keys, str] = MappingProxyType({})
NO_LINES: Mapping[Keys, int] = MappingProxyType({})
SettingsT = TypeVar("SettingsT", bound=Settings)


def parse_settings(
    model: type[SettingsT],
    values: Mapping[str, object],
    source: str,
    overridden: Mapping[Keys, str] | None = None,
    lines: Mapping[Keys, int] | None = None,
) -> SettingsT:
    """Validate plain values and build the settings from them.

    Args:
        model: the class of the settings.
        values: plain values, as YAML or JSON yields them.
        source: where the values come from, such as a file name; errors begin with it.
        overridden: for each key that an environment variable set, the name of the variable.
        lines: for each key in the source, the number of its line.

    Returns:
        The settings.

    Raises:
        ConfigError: a setting is invalid; the text has one line for each such setting.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise settings_error(model, values, error, source, overridden=overridden or {}, lines=lines or {}) from None


def settings_error(
    model: type[BaseModel],
    values: Mapping[str, object],
    error: ValidationError,
    source: str,
    *,
    overridden: Mapping[Keys, str] = NOT_OVERRIDDEN,
    lines: Mapping[Keys, int] = NO_LINES,
) -> ConfigError:
    """Return an error with a line for each invalid setting; for the arguments see `parse_settings`."""
    problems: dict[Keys, list[ErrorDetails]] = {}
    for details in error.errors():
        problems.setdefault(_keys(values, details), []).append(details)
    texts = []
    for keys, alternatives in problems.items():
        # A value may be text or a list. If an entry of the list is wrong, "expected text" would mislead.
        if any(other[: len(keys)] == keys and other != keys for other in problems if keys):
            continue
        variable = next((overridden[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in overridden), None)
        origin = source if variable is None else f"environment variable {variable}"
        where = f"{origin}: {'.'.join(keys)}" if keys else origin
        line = f" (line {lines[keys]})" if keys in lines and keys not in overridden else ""
        texts.append(f"{where}: {_problem(model, alternatives)}{line}")
    return ConfigError("\n".join(texts))


def faulty_keys(model: type[SettingsT], values: Mapping[str, object]) -> set[Keys]:
    """Return the paths of the settings that `parse_settings` would refuse.

    Args:
        model: the class of the settings.
        values: plain values, as YAML or JSON yields them.
    """
    try:
        model.model_validate(values)
    except ValidationError as error:
        return {_keys(values, details) for details in error.errors()}
    return set()


def commented_yaml(comment: str, settings: Mapping[str, object]) -> str:
    """Format settings as YAML for people to read and edit.

    Args:
        comment: one line that becomes a comment at the top.
        settings: plain values; their order is kept.

    Returns:
        The text of a YAML file.
    """
    return f"# {comment}\n" + yaml.safe_dump(dict(settings), sort_keys=False)


# --- validation errors


def _keys(settings: Any, details: ErrorDetails) -> Keys:
    """Return the keys that lead to the error: pydantic's location without the tags that it inserts for unions."""
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
    """Describe the error at one key. A union yields one error for each of its members."""
    details = alternatives[0]
    # Two lists in a union expect the same.
    expectations = dict.fromkeys(text for each in alternatives if (text := _expectation(each)))
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
    """Describe the expected value in terms of YAML, or return None for errors of other kinds."""
    context = details.get("ctx", {})
    match details["type"]:
        case "int_parsing" | "int_type" | "int_from_float":
            return "a whole number"
        case "float_parsing" | "float_type" | "finite_number":
            return "a number"
        case "bool_parsing" | "bool_type":
            return "true or false"
        case "string_type":
            return "text (put a number, or a word such as yes, in quotes)"
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
        case "too_short":
            return f"at least {context['min_length']} in the list"
        case "too_long":
            return f"at most {context['max_length']} in the list"
        case "literal_error" | "enum":
            return str(context["expected"]).replace("'", "")
        case "union_tag_invalid":
            tags = str(context["expected_tags"]).replace("'", "")
            return f"{context['discriminator']} to be one of {tags}".replace("'", "`")
        case "union_tag_not_found":
            return f"a nested key {context['discriminator']}".replace("'", "`")
        case "model_attributes_type" if isinstance(details["input"], str):
            return f"nested keys with values, such as {{name: {details['input']:.40}}}"
        case "dict_type" | "model_type" | "model_attributes_type":
            return "nested keys with values"
        case "list_type" | "tuple_type":
            return "a list, such as [a, b]"
        case _:
            return None


def _unknown_key(model: type[BaseModel], location: Sequence[str | int]) -> str:
    *parents, unknown = location
    models = [model]
    outer: list[list[type[BaseModel]]] = []
    for key in parents:
        outer.append(models)
        inner = [found for each in models if key in each.model_fields for found in _models(each.model_fields[str(key)])]
        # A key that is not a field is either a key of a dict or the tag of a union, which selects one of its members.
        tagged = [each for each in models if "name" in each.model_fields and each.model_fields["name"].default == key]
        models = inner or tagged or models
    for depth in reversed(range(len(parents))):
        if any(unknown in each.model_fields for each in outer[depth]):
            place = ".".join(map(str, parents[:depth]))
            return f"unknown key; it belongs {f'to {place}' if place else 'at the top level'}"
    nested = {
        f"{name}.NAME" if get_origin(field.annotation) is dict else name
        for each in models
        for name, field in each.model_fields.items()
        if _has(field, unknown)
    }
    if len(nested) == 1:
        return f"unknown key; it belongs to {'.'.join([*map(str, parents), *nested])}"
    known = sorted({name for each in models for name in each.model_fields})
    close = difflib.get_close_matches(str(unknown), known, n=1, cutoff=0.7)
    return f"unknown key; did you mean {close[0]}?" if close else f"unknown key; valid keys are {', '.join(known)}"


def _has(field: FieldInfo, key: str | int) -> bool:
    return any(key in each.model_fields for each in _models(field))


def _models(field: FieldInfo) -> list[type[BaseModel]]:
    """Return the settings classes in a field's type, which may be a dict or a union."""

    def collect(annotation: object) -> list[type[BaseModel]]:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return [annotation]
        return [found for each in get_args(annotation) for found in collect(each)]

    return collect(field.annotation)
