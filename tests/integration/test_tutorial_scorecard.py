"""The tutorial of the scorecard: every command of the page runs, on a small table with the columns of Credit 2."""

import csv
import math
import re
import shlex
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from tests.support.credit import N_ROWS, write_credit2
from tests.support.waiting import eventually_in_thread
from trilateral.cli import data
from trilateral.cli.main import app
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.data.model.model_file import load_model
from trilateral.common.trial.catalogue import PUBLISHED, PublishedName
from trilateral.common.trial.localhost import LocalProcesses, free_addresses

PAGE = Path(__file__).parents[2] / "docs" / "tutorial-scorecard.md"
PROGRAM = ".venv/bin/trilateral "
APPLIED = "uses the settings of the file"


def steps() -> list[tuple[str, str]]:
    """The page in order: ("yaml" | "python", the block) and ("command", the line)."""
    block = r"^```(yaml|python)\n((?s:.*?))^```$"
    command = rf"^    ((?:{re.escape(PROGRAM)}|sha256sum ).*)$"
    found = re.finditer(f"{block}|{command}", PAGE.read_text(), re.MULTILINE)
    return [(match[1], match[2]) if match[1] else ("command", match[3]) for match in found]


class Reader:
    """Somebody who follows the page."""

    def __init__(self, servers: ExitStack) -> None:
        self._servers = servers
        self._to_serve: dict[Role, Path] = {}
        self.output: dict[str, str] = {}
        """What each command has printed."""

    def follow(self, kind: str, text: str) -> None:
        """Do what one block or command says."""
        if kind == "python":
            exec(compile(text, PAGE.name, "exec"), {})
        elif kind == "yaml":
            self._edit(text)
        elif text.startswith("sha256sum"):
            done = subprocess.run(shlex.split(text), check=True, capture_output=True, text=True)
            self.output[text] = done.stdout
        else:
            self._run(text.removeprefix(PROGRAM))

    def _edit(self, text: str) -> None:
        """Write a file, or replace sections of it; its name is in the first line of the block."""
        path = Path(text.splitlines()[0].removeprefix("# "))
        before = yaml.safe_load(path.read_text()) if path.exists() else {}
        path.write_text(yaml.safe_dump(before | yaml.safe_load(text)))

    def _run(self, command: str) -> None:
        words = shlex.split(command)
        if words[0] == "serve":
            self._to_serve[Role(words[1])] = Path(words[3])
            return
        if len(self._to_serve) == len(Role):
            logs = {role: Path(f"{role}.log") for role in Role}
            self._servers.enter_context(LocalProcesses(self._to_serve, logs))
            self._to_serve = {}
        if words[0] == "check":  # A server takes over a changed file within two seconds.
            eventually_in_thread(lambda: APPLIED in self._invoke(words))
        self.output[command] = self._invoke(words)

    def _invoke(self, words: list[str]) -> str:
        result = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
        assert result.exit_code == 0, f"{words}\n{result.output}"
        return result.output


@pytest.mark.slow
def test_every_command_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    published = write_credit2(Path("cs-training.csv"))
    monkeypatch.setitem(PUBLISHED, PublishedName.CREDIT2, published)
    monkeypatch.setattr(data, "ADDRESSES", free_addresses())
    with ExitStack() as servers:
        reader = Reader(servers)
        for kind, text in steps():
            reader.follow(kind, text)

    ran = {command.split(" --")[0] for command in reader.output}
    assert {"check", "model bins bins-1", "model show scorecard-1", "audit verify"} <= ran
    assert all("no problems, no warnings" in text for each, text in reader.output.items() if each.startswith("check"))
    models = {role: load_model(Path(f"credit2/state/{role}/jobs/scorecard-1/model.json")) for role in PARTIES}
    assert len({model.run_id for model in models.values()}) == 1
    assert models[Role.GUEST].data.sets == {"valid": N_ROWS // 5, "test": N_ROWS // 10}
    assert all(model.inference is not None for model in models.values())
    assert "NumberOfOpenCreditLinesAndLoans WOE" not in models[Role.HOST].weights

    # The two tables of points give the total that the page computes from the score.
    scores = pd.read_csv("credit2/scores.csv").set_index("id")
    total = points_of(Role.HOST, scores.index) + points_of(Role.GUEST, scores.index)
    expected = 600 - 20 / math.log(2) * (scores["score"] + math.log(50))
    assert (total - expected).abs().max() < 0.01


def points_of(role: Role, ids: "pd.Index[int]") -> "pd.Series[float]":
    """The points of one party for later applicants, looked up in its table of points by hand."""
    table = pd.read_csv(f"credit2/{role}-later.csv").set_index("id").loc[ids]
    total = pd.Series(0.0, ids)
    with Path(f"credit2/points-{role}.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        column, points = row["column"], float(row["points"])
        if column == "(base)":
            total += points
            continue
        values, label = table[column], row["bin"].removeprefix(f"{column} ")
        numbers = [float(each) for each in re.findall(r"-?[\d.]+(?:e[+-]\d+)?", label)]
        if label == "is missing":
            within = values.isna()
        elif label.startswith("<"):
            within = values < numbers[0]
        elif label.startswith(">="):
            within = values >= numbers[0]
        else:
            within = (values >= numbers[0]) & (values < numbers[1])
        total[within] += points
    return total
