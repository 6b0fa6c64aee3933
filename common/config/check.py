"""Checked settings out of plain values; every error says where, what was expected and the way out."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from trilateral.common.base.errors import ConfigError
from trilateral.common.config.settings import Settings

Keys = tuple[str, ...]
"""Where a setting is: the keys that lead to it."""
SettingsT = TypeVar("SettingsT", bound=Settings)


def check_settings(
    model: type[SettingsT], settings: dict[str, Any], source: str, overridden: Mapping[Keys, str] | None = None
) -> SettingsT:
    """Make a model of plain values.

    Args:
        model: the settings to make.
        settings: the values, as YAML or JSON has them.
        source: of the values, for people.
        overridden: keys whose values came from an environment variable, and its name.

    Raises:
        ConfigError: one line for each setting that cannot be used.
    """
    overridden = overridden or {}
    try:
        return model.model_validate(settings)
    except ValidationError as error:
        problems: dict[Keys, list[ErrorDetails]] = {}
        for details in error.errors():
            problems.setdefault(_keys(settings, details), []).append(details)
        lines = []
        for keys, alternatives in problems.items():
            origin = f"environment variable {overridden[keys]}" if keys in overridden else source
            where = f"{origin}: {'.'.join(keys)}" if keys else origin
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
