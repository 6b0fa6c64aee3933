"""What the documents promise about files, about the code, and about each other."""

import importlib
import inspect
import json
import re
import typing
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
import typer
from pydantic import BaseModel

from trilateral.cli.main import app
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.job import JobConfig, Lbfgs, Sgd, Sqn
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.model.assessment import CalibrationReport, Reliability, ReliabilityBin
from trilateral.common.data.model.calibration import InterceptOnly, Isotonic, Platt, Uncalibrated
from trilateral.common.data.model.model_file import ComparedPenaltyRow, DataSummary, EvaluatedEpoch, PartyModel
from trilateral.common.data.preprocessing import Preprocessing
from trilateral.common.data.preprocessing.splines import Spline
from trilateral.common.data.preprocessing.terms import CategoryColumn, EncodedColumn, InteractionColumn, NumberColumn
from trilateral.common.protocol import messages
from trilateral.common.protocol.evaluation import HoldoutMetrics
from trilateral.common.protocol.messages import Kind

COLUMNS = (NumberColumn, CategoryColumn, EncodedColumn, InteractionColumn, Spline)
ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/*.md"),
    *ROOT.glob("docs/deployment/*.md"),
    *ROOT.glob("benchmarks/*.md"),
]
HISTORY = [
    "round",
    "attempt",
    "epoch",
    "batch",
    "loss",
    "complete",
    "evaluation",
    "seconds.all",
    "seconds.*",
    "sent",
    "received",
    *Kind,
]


def anchors(text: str) -> set[str]:
    """Of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for file, _, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(#([^)]*))?\)", path.read_text()):
        target = path.parent / file if file else path
        assert target.exists(), file
        assert not anchor or anchor in anchors(target.read_text()), anchor


def test_the_readme_is_short_and_each_of_its_sources_is_given_and_used() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    assert set(re.findall(r"\[\[(\d+)\]\]", text)) == set(re.findall(r"^\[(\d+)\]: https://", text, re.MULTILINE))


@pytest.mark.parametrize(
    "names",
    [
        [name for name in PartyModel.model_fields if name != "data"],
        [f"data.{name}" for name in DataSummary.model_fields],
        list(EvaluatedEpoch.model_fields),
        list(ComparedPenaltyRow.model_fields),
        [field.name for field in fields(Preprocessing)],
        [name for each in COLUMNS for name in each.model_fields],
        [field.name for field in fields(HoldoutMetrics)],
        [name for each in (Platt, Isotonic, InterceptOnly, Uncalibrated) for name in each.model_fields],
        [name for each in (CalibrationReport, Reliability, ReliabilityBin) for name in each.model_fields],
        HISTORY,
    ],
    ids=[
        "model",
        "data",
        "evaluations",
        "search",
        "preprocessing",
        "columns",
        "metrics",
        "calibration",
        "report",
        "history",
    ],
)
def test_every_field_of_a_jobs_files_is_described(names: list[str]) -> None:
    rows = [line for line in (ROOT / "docs/files.md").read_text().split("\n") if line.startswith("| `")]
    described = {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    assert set(names) <= described


# --- options and commands


def option_rows() -> dict[str, str]:
    """The options of docs/jobs.md, with the default that it states."""
    lines = (ROOT / "docs/jobs.md").read_text().partition("## Options")[2].partition("\n## ")[0].split("\n")
    cells = [re.split(r"(?<!\\)\|", line) for line in lines if line.startswith("| `")]
    return {cell[1].strip(" `"): cell[2].strip(" `") for cell in cells}


def test_every_option_of_a_job_is_described() -> None:
    algorithms = {f"algorithm.{name}" for each in (Sgd, Sqn, Lbfgs) for name in each.model_fields}
    assert set(option_rows()) == (set(JobConfig.model_fields) - {"algorithm"}) | algorithms


@pytest.mark.parametrize("name", [name for name in JobConfig.model_fields if name not in {"algorithm", "slots"}])
def test_the_default_of_an_option_is_the_one_that_is_described(name: str) -> None:
    field = JobConfig.model_fields[name]
    described = option_rows()[name]
    if field.is_required():
        assert described == "required"
    else:
        default = field.get_default()
        number = isinstance(default, float)
        assert (float(described) if number else described) == (default if number or default == "all" else said(default))


def said(default: object) -> str:
    return default if isinstance(default, str) else json.dumps(default)


def command_names(prefix: str, group: typer.Typer) -> Iterator[str]:
    for command in group.registered_commands:
        assert command.callback is not None
        yield f"{prefix}{command.name or command.callback.__name__}"
    for entry in group.registered_groups:
        assert entry.typer_instance is not None
        yield from command_names(f"{prefix}{entry.name} ", entry.typer_instance)


def test_every_command_is_described() -> None:
    rows = re.findall(r"^\| `([^`]*)`", (ROOT / "docs/commands.md").read_text(), re.MULTILINE)
    names = set(command_names("", app))
    described = {name for name in names for row in rows if f"{row} ".startswith(f"{name} ")}
    assert described == names
    assert len(rows) == len(names)


# --- names of code


NAMED = ["docs/paper.md", "docs/protocol.md", "docs/shares.md"]
WORDS = {"trilateral", "predict", "lbfgs", "sgd", "sqn", "condition", "condition_without_whitening", "sensitivity"}
"""The package itself, a command, algorithms, and figures that benchmarks print."""


def names_in(document: str) -> list[tuple[int, str]]:
    """What stands in code in a document and looks like a name: line and name."""
    found = []
    fenced = False
    for number, line in enumerate((ROOT / document).read_text().split("\n"), start=1):
        fenced ^= line.startswith("```")
        for code in re.findall(r"`([^`]+)`", "" if fenced else line):
            if re.fullmatch(r"[A-Za-z_][\w./-]*", code) and code not in WORDS:
                found.append((number, code))
    return found


@cache
def option_names() -> set[str]:
    def walk(model: type[BaseModel], prefix: str) -> Iterator[str]:
        for name, field in model.model_fields.items():
            yield f"{prefix}{name}"
            yield name
            for inner in re.findall(r"trilateral\.[\w.]+", repr(field.annotation)):
                module, _, kind = inner.rpartition(".")
                found = getattr(importlib.import_module(module), kind)
                if isinstance(found, type) and issubclass(found, BaseModel):
                    yield from walk(found, f"{prefix}{name}.")

    return {name for model in (JobConfig, ProcessConfig, DatasetConfig) for name in walk(model, "")}


@cache
def wire_names() -> set[str]:
    """Messages between the state machines, their fields, kinds of vectors, and the methods of all services."""
    names: set[str] = set(Kind)
    for name, kind in inspect.getmembers(messages, inspect.isclass):
        names |= {name, *typing.get_type_hints(kind)}
    for path in ROOT.glob("protos/trilateral/**/*.proto"):
        names |= set(re.findall(r"^\s*rpc (\w+)", path.read_text(), re.MULTILINE))
    return names


@cache
def names_of_tests() -> set[str]:
    return {name for path in ROOT.glob("tests/**/*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}


def resolves(name: str) -> bool:
    """Whether there is a module, class, function or constant of this name, or a file, option, message or test."""
    if "/" in name:
        return (ROOT / name).exists()
    if name in option_names() | wire_names() | names_of_tests() or name.startswith("trilateral-"):
        return True
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(["trilateral", *parts[:length]]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part, None)  # type: ignore[assignment]
        return found is not None
    return False


@pytest.mark.parametrize("document", NAMED)
def test_every_name_of_code_leads_somewhere(document: str) -> None:
    dangling = [f"{document}:{line}: `{name}`" for line, name in names_in(document) if not resolves(name)]
    assert not dangling, "\n".join(["there is nothing of these names:", *dangling])


def test_names_that_lead_nowhere_are_found() -> None:
    assert not resolves("common.protocol.taylor.no_such_name")
    assert not resolves("common.no_such_module.name")
    assert not resolves("NoSuchMessage")
    assert not resolves("tests/no_such_file.py")
    assert len(names_in("docs/paper.md")) > 20


@pytest.mark.parametrize("number", range(1, 9))
def test_each_equation_of_the_paper_has_its_code(number: int) -> None:
    text = (ROOT / "docs/paper.md").read_text().partition("## Where each equation is")[2].partition("\n## ")[0]
    rows = [line for line in text.split("\n") if line.startswith(f"| ({number})")]
    assert rows
    for row in rows:
        code = [name for name in re.findall(r"`([^`]+)`", row.split("|", 3)[3]) if "." in name]
        assert code, row
        assert all(resolves(name) for name in code), row
