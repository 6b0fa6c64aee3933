"""What the documents promise about files and about each other."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from trilateral.common.data.model.assessment import CalibrationReport, Reliability, ReliabilityBin
from trilateral.common.data.model.calibration import Isotonic, Platt, Uncalibrated
from trilateral.common.data.model.model_file import DataSummary, EvaluatedEpoch, PartyModel
from trilateral.common.data.preprocessing import Preprocessing
from trilateral.common.data.preprocessing.terms import CategoryColumn, NumberColumn
from trilateral.common.protocol.evaluation import HoldoutMetrics
from trilateral.common.protocol.messages import Kind

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")]
HISTORY = [
    "round",
    "attempt",
    "epoch",
    "batch",
    "loss",
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


@pytest.mark.parametrize(
    "names",
    [
        [name for name in PartyModel.model_fields if name != "data"],
        [f"data.{name}" for name in DataSummary.model_fields],
        list(EvaluatedEpoch.model_fields),
        [field.name for field in fields(Preprocessing)],
        [*NumberColumn.model_fields, *CategoryColumn.model_fields],
        [field.name for field in fields(HoldoutMetrics)],
        [name for each in (Platt, Isotonic, Uncalibrated) for name in each.model_fields],
        [name for each in (CalibrationReport, Reliability, ReliabilityBin) for name in each.model_fields],
        HISTORY,
    ],
    ids=["model", "data", "evaluations", "preprocessing", "columns", "metrics", "calibration", "report", "history"],
)
def test_every_field_of_a_jobs_files_is_described(names: list[str]) -> None:
    rows = [line for line in (ROOT / "docs/files.md").read_text().split("\n") if line.startswith("| `")]
    described = {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    assert set(names) <= described
