"""JSON in place of tables: the option ``--json``, and how records become JSON."""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON in place of text.")]


def print_json(record: Mapping[str, object]) -> None:
    """Print a record as JSON in ASCII, which any terminal and program can read.

    Args:
        record: plain values, dataclasses and settings, nested in any way. A number that is not finite becomes null,
            because JSON has no such numbers.
    """
    typer.echo(json.dumps(plain(record), indent=2, allow_nan=False))


def plain(value: object) -> Any:
    """Return a value as JSON has it; see `print_json`."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case IntEnum():
            return value.name.lower()
        case None | str() | bool() | int():
            return value
        case datetime():
            return value.isoformat()
        case Path():
            return str(value)
        case Mapping():
            return {str(key): plain(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(each) for each in value]
    # Settings, which are pydantic's: importing it would slow down `--help`.
    names = list(getattr(type(value), "model_fields", ()))
    if is_dataclass(value):
        names = [field.name for field in fields(value)]
    if not names:
        raise TypeError(f"JSON has no {type(value).__name__}")
    return {name: plain(getattr(value, name)) for name in names}
