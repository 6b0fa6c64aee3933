"""JSON in place of text: every command that prints figures has it, and any JSON parser reads it."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer

from tests.support.json_fields import documented_fields
from trilateral.cli.json_output import plain, print_json
from trilateral.cli.main import app
from trilateral.common.base.roles import Role
from trilateral.common.checks.finding import Level
from trilateral.common.data.model.intervals import Intervals

PRINTS_FIGURES = {
    *("check", "estimate", "status", "align", "predict", "score", "audit verify", "certs show"),
    *(f"model {name}" for name in ("show", "bins", "scorecard", "select", "compare", "drift")),
}


@dataclass(frozen=True)
class Record:
    number: float
    names: tuple[str, ...]


def test_numbers_that_json_lacks_become_null(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": math.nan, "b": [math.inf, -math.inf, 1.5], "c": Record(math.nan, ("x", "$\u202e"))})
    text = capsys.readouterr().out
    assert json.loads(text) == {"a": None, "b": [None, None, 1.5], "c": {"number": None, "names": ["x", "$\u202e"]}}
    assert text.isascii()


def test_records_of_all_kinds_become_json() -> None:
    intervals = Intervals(auc=(0.1, math.nan), gini=None, ks=None, log_loss=(1, 2), brier=(0, 1))
    assert plain({Role.HOST: Level.PROBLEM, "path": Path("/a"), "time": datetime(2026, 3, 1, tzinfo=UTC)}) == {
        "host": "problem",
        "path": "/a",
        "time": "2026-03-01T00:00:00+00:00",
    }
    assert plain(intervals)["auc"] == [0.1, None]
    with pytest.raises(TypeError, match="JSON has no object"):
        plain(object())


def commands(prefix: str, found: typer.Typer) -> Iterator[tuple[str, typer.models.CommandInfo]]:
    for each in found.registered_commands:
        name = each.name or (each.callback.__name__ if each.callback is not None else "")
        yield f"{prefix}{name}", each
    for group in found.registered_groups:
        assert group.typer_instance is not None
        yield from commands(f"{prefix}{group.name} ", group.typer_instance)


def test_every_command_that_prints_figures_has_the_option() -> None:
    have = {
        name
        for name, command in commands("", app)
        if command.callback is not None and "as_json" in command.callback.__annotations__
    }
    assert have == PRINTS_FIGURES == set(documented_fields())
