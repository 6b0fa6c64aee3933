"""``trilateral align`` and ``trilateral predict`` at three real servers."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
from typer.testing import CliRunner

from tests.client.conftest import N_COMMON, N_ONLY, TRAINED, World
from tests.support.json_fields import documented_fields
from tests.support.new_rows import NEW
from trilateral.cli.main import app
from trilateral.common.base.roles import Role


def test_align_prints_the_counts_of_both_parties(world: World) -> None:
    result = CliRunner().invoke(app, ["align", NEW, "--config", str(world.files[Role.GUEST])])
    assert result.exit_code == 0, result.stderr
    total = N_COMMON + N_ONLY
    assert result.stdout.splitlines() == [
        f"{N_COMMON} common IDs",
        f"guest: {total} IDs, {N_ONLY} of them not at the host",
        f"host: {total} IDs, {N_ONLY} of them not at the guest",
        "guest's IDs changed by `id_form`: none",
    ]


def test_a_terminal_shows_a_bar_and_another_stream_a_line_for_each_stage(world: World) -> None:
    command = ["align", NEW, "--config", str(world.files[Role.GUEST])]
    lines = CliRunner().invoke(app, command)
    terminal = CliRunner(env={"FORCE_COLOR": "1", "COLUMNS": "120"}).invoke(app, command)
    assert lines.stderr.splitlines()[0] == "reading IDs"
    assert "\x1b[" not in lines.stderr
    assert "\x1b[" in terminal.stderr  # The bar moves the cursor.
    assert terminal.stdout == lines.stdout


def test_predict_writes_the_scores_and_the_ids_without_one(world: World, tmp_path: Path) -> None:
    out = tmp_path / "scores.csv"
    options = ["--dataset", NEW, "--config", str(world.files[Role.GUEST]), "--out", str(out)]
    result = CliRunner().invoke(app, ["predict", TRAINED, *options])
    assert result.exit_code == 0, result.stderr
    assert len(pd.read_csv(out)) == N_COMMON
    assert len(pd.read_csv(tmp_path / "scores.missing.csv")) == N_ONLY
    assert f"{N_COMMON} rows" in result.stdout


def test_the_host_cannot_use_the_commands_of_the_guest(world: World, tmp_path: Path) -> None:
    config = ["--config", str(world.files[Role.HOST])]
    for command in (["align", NEW], ["predict", TRAINED, "--dataset", NEW, "--out", str(tmp_path / "scores.csv")]):
        result = CliRunner().invoke(app, [*command, *config])
        assert result.exit_code == 2
        assert "role: is host, but only the guest can" in result.stderr


def test_the_commands_print_the_same_counts_as_json(world: World, tmp_path: Path) -> None:
    def found(*arguments: object) -> dict[str, Any]:
        command = [*map(str, arguments), "--json", "--config", str(world.files[Role.GUEST])]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.stderr
        return dict(json.loads(result.stdout))

    total, out = N_COMMON + N_ONLY, tmp_path / "scores.csv"
    counts = found("align", NEW)
    assert set(counts) <= documented_fields()["align"]
    assert set(counts.pop("changed")) == {"spaces", "unicode", "decimals"}
    assert counts == {"n_host": total, "n_guest": total, "n_common": N_COMMON}
    counts = found("predict", TRAINED, "--dataset", NEW, "--out", out)
    assert set(counts) <= documented_fields()["predict"]
    assert (counts["n_scored"], counts["out"]) == (N_COMMON, str(out))
    jobs = found("status")["jobs"]
    (job,) = found("status", TRAINED)["jobs"]
    assert TRAINED in [each["job"] for each in jobs]
    assert (job["state"], job["loss"]) == ("finished", next(each["loss"] for each in jobs if each["job"] == TRAINED))
