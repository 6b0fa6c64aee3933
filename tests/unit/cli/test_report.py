"""``trilateral report``: the file that it writes, and its refusals."""

import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner
from typer.testing import Result as Ran

from tests.unit.cli.test_stability import folder
from trilateral.cli.main import app

__all__ = ["folder"]


def run(*arguments: object) -> Ran:
    return CliRunner().invoke(app, ["report", *map(str, arguments)], env={"COLUMNS": "120"})


def test_the_report_has_shift_and_quality_of_later_rows(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    arguments = ("--dataset", "march", "--scores", folder / "first.csv", "--labels", "outcomes", "--out", out)
    done = run("first", "--config", folder / "guest.yaml", *arguments)
    assert done.exit_code == 0, done.output
    assert f"{out}: report of the guest about job first" in done.output
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    page = out.read_text()
    for text in ('id="stability"', 'id="quality-later"', "scored rows of outcomes", "Hosmer-Lemeshow", "Large shift"):
        assert text in page
    assert "person-" not in page


def test_scores_alone_give_the_shift_of_the_score(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    done = run("first", "--config", folder / "guest.yaml", "--scores", folder / "first.csv", "--out", out)
    assert done.exit_code == 0, done.output
    assert 'id="stability"' in out.read_text()
    assert "score of the whole model" in out.read_text()
    assert 'id="quality-later"' not in out.read_text()


def test_the_shift_of_few_rows_is_not_shown(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "march.csv").read_text().splitlines()
    (folder / "march.csv").write_text("\n".join(lines[:900]))
    out = tmp_path / "report.html"
    done = run("first", "--config", folder / "host.yaml", "--dataset", "march", "--out", out)
    assert done.exit_code == 0, done.output
    assert "A shift is shown for at least 1,000 rows" in out.read_text()


def test_a_model_file_needs_no_configuration(folder: Path, tmp_path: Path) -> None:
    for name, path in (("a", folder / "state/host/jobs/first"), ("b", folder / "state/host/jobs/first/model.json")):
        out = tmp_path / f"{name}.html"
        assert run(path, "--out", out).exit_code == 0
        assert "report of the host" in out.read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--labels", "outcomes"], "--labels needs the scores"),
        (["--dataset", "april"], "datasets has no april"),
        (["--scores", "nothing.csv"], "there is no file of scores"),
        (["--out", "taken.html"], "the file exists"),
        (["--out", "."], "this is a folder: name a file in it"),
        (["--out", "taken.html/report.html"], "cannot be written"),
    ],
)
def test_refusals_name_the_option(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(folder)
    (folder / "taken.html").touch()
    done = run(
        "first", "--config", "guest.yaml", *(arguments if "--out" in arguments else [*arguments, "--out", "new.html"])
    )
    assert done.exit_code in (1, 2)
    assert says in done.output
    assert not (folder / "new.html").exists()


def test_without_a_configuration_a_name_or_an_empty_folder_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for argument, says in (("first", "if this is the name of a job, give --config too"), (folder, "has no model.json")):
        done = run(argument, "--out", tmp_path / "report.html")
        assert done.exit_code == 1
        assert says in " ".join(done.output.split())


def test_the_host_has_no_scores_of_both_parties(folder: Path, tmp_path: Path) -> None:
    done = run(
        "first", "--config", folder / "host.yaml", "--scores", folder / "first.csv", "--out", tmp_path / "report.html"
    )
    assert done.exit_code == 2
    assert "only the guest has scores of both parties" in done.output
