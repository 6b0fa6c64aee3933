"""``trilateral data``: from a publisher's server on this machine, from files, and what comes with scikit-learn."""

import hashlib
import os
import shlex
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.support.file_server import Answer, answer, file_server
from tests.support.published import CSV, SMALL
from trilateral.cli import data
from trilateral.cli.main import app
from trilateral.common.base.roles import Role
from trilateral.common.config.load import load_job, load_process_config
from trilateral.common.data.tables.table import read_table
from trilateral.common.trial import published
from trilateral.common.trial.catalogue import PUBLISHED, PublishedDataSet, PublishedName

COMMANDS = ("certs", "serve", "train")
FILES = ["coordinator.yaml", "guest.csv", "guest.yaml", "host.csv", "host.yaml", "job.yaml"]


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the files are to go, with a small data set published in the place of credit1."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    publish(monkeypatch, SMALL)
    return tmp_path / "out"


def publish(monkeypatch: pytest.MonkeyPatch, data_set: PublishedDataSet) -> None:
    monkeypatch.setitem(PUBLISHED, PublishedName.CREDIT1, data_set)


def get(*arguments: object, name: str = "credit1") -> Result:
    return CliRunner().invoke(app, ["data", "get", name, *map(str, arguments)])


def save(folder: Path, content: str = CSV) -> Path:
    path = folder / "saved.csv"
    path.write_text(content)
    return path


# --- what comes of it


def test_two_tables_from_a_download(out: Path) -> None:
    with file_server(answer(CSV.encode())) as (address, requests):
        result = get("--out", out, "--url", f"{address}/table.csv")
    assert result.exit_code == 0, result.stderr
    assert requests == ["GET /table.csv HTTP/1.1"]
    assert sorted(path.name for path in out.iterdir()) == FILES
    assert (out / "host.csv").read_text() == "id,income,debt\n1,1500,8e-05\n2,,-2.5\n3,0,1000000.0\n"
    assert (out / "guest.csv").read_text() == "id,age,label\n1,30,0\n2,41,1\n3,57,0\n"
    assert "three people: 3 rows, as published" in result.stdout
    assert hashlib.sha256(CSV.encode()).hexdigest() in result.stdout
    assert SMALL.sha256 in result.stdout


def test_a_file_that_is_there_needs_no_network(out: Path, tmp_path: Path) -> None:
    packed = tmp_path / "table.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("table.csv", CSV)
    for file in (save(tmp_path), packed):
        result = get("--out", out / file.stem, "--file", file)
        assert result.exit_code == 0, result.stderr
        assert (out / file.stem / "guest.csv").read_text().startswith("id,age,label\n1,30,0\n")


def test_the_folder_is_called_as_the_data_set(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert get("--file", save(tmp_path)).exit_code == 0
    assert sorted(path.name for path in (tmp_path / "credit1").iterdir()) == FILES


def test_what_is_written_can_be_trained_on(out: Path, tmp_path: Path) -> None:
    result = get("--out", out, "--file", save(tmp_path))
    job = load_job(out / "job.yaml")
    configs = {role: load_process_config(out / f"{role}.yaml", {}) for role in Role}
    for role, config in configs.items():
        assert config.role is role
        assert {peer.address for peer in config.peers.values()} == {
            other.listen for other in configs.values() if other is not config
        }
    host, guest = (read_table(configs[role].datasets[job.dataset]) for role in (Role.HOST, Role.GUEST))
    assert host.ids == guest.ids == ["1", "2", "3"]
    assert guest.labels is not None
    assert list(guest.labels) == [-1, 1, -1]

    told = [shlex.split(line) for line in result.stdout.splitlines() if " --config " in line or " certs " in line]
    certificates, *serve, train = (words[words.index(next(w for w in words if w in COMMANDS)) :] for words in told)
    assert certificates == ["certs", "development", "--out", str(out / "certs")]
    assert serve == [["serve", str(role), "--config", str(out / f"{role}.yaml")] for role in Role]
    assert train == ["train", str(out / "job.yaml"), "--config", str(out / "guest.yaml")]
    made = CliRunner().invoke(app, certificates)
    assert made.exit_code == 0, made.stderr
    for config in configs.values():
        assert config.tls is not None
        assert config.tls.certificate.exists()

    again = get("--out", out, "--file", save(tmp_path), "--force")
    assert "certs development" not in again.stdout  # it would refuse: they are there


def test_nothing_is_replaced_without_being_asked_to(out: Path, tmp_path: Path) -> None:
    out.mkdir()
    (out / "guest.csv").write_text("precious")
    with file_server(answer(CSV.encode())) as (address, requests):
        result = get("--out", out, "--url", address)
        assert requests == []
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: --out {out}: guest.csv exists: choose a new folder, or replace the files with --force\n"
    )
    assert [path.name for path in out.iterdir()] == ["guest.csv"]
    assert (out / "guest.csv").read_text() == "precious"
    assert get("--out", out, "--file", save(tmp_path), "--force").exit_code == 0
    assert (out / "guest.csv").read_text() != "precious"


# --- what is refused


@pytest.mark.parametrize(
    ("give", "told"),
    [
        (answer(CSV.replace("57", "58").encode()), "is not as published: the SHA-256 of its content is"),
        (answer(b"gone", 404), "the server answers 404 Not Found"),
        (answer(CSV.encode()[:-9], Content_Length=str(len(CSV))), "the connection ended after"),
        (answer(CSV.encode() * 100), "the file exceeds"),
        (answer(b"<html>Log in</html>"), "is a web page, not a CSV file"),
        (answer(CSV.replace("A3", "A4").encode()), "lacks columns that were published: 'A3'"),
        (answer(CSV[: CSV.rindex("\n3") + 1].encode()), "has 2 rows, but 3 were published"),
    ],
    ids=["checksum", "404", "truncated", "too large", "web page", "columns", "rows"],
)
def test_a_download_that_is_not_the_data_set_leaves_nothing(
    out: Path, monkeypatch: pytest.MonkeyPatch, give: Answer, told: str
) -> None:
    monkeypatch.setattr(published, "MAX_BYTES", 1000)
    with file_server(give) as (address, _):
        result = get("--out", out, "--url", f"{address}/table.csv")
    assert result.exit_code == 1
    error, way_out, command = result.stderr.splitlines()
    assert error.startswith(f"error: {address}/table.csv: ")
    assert told in error
    assert way_out == "  By hand: ask the author for table.csv, and then run"
    assert command.endswith(f"data get credit1 --out {out} --file table.csv")
    assert not out.exists()


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_wrong_file_leaves_what_was_there(out: Path, tmp_path: Path, force: list[str]) -> None:
    assert get("--out", out, "--file", save(tmp_path)).exit_code == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert get("--out", out, "--file", save(tmp_path, CSV.replace("57", "58")), *force).exit_code != 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_file_larger_than_any_published_one(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "MAX_BYTES", len(CSV) - 1)
    result = get("--out", out, "--file", save(tmp_path))
    assert result.exit_code == 1
    assert "so it cannot be this data set" in result.stderr


@pytest.mark.parametrize(("name", "told"), [("none.csv", "No such file or directory"), (".", "Is a directory")])
def test_a_file_that_cannot_be_read(out: Path, tmp_path: Path, name: str, told: str) -> None:
    result = get("--out", out, "--file", tmp_path / name)
    assert result.exit_code == 2
    assert result.stderr == f"error: --file {tmp_path / name}: cannot be read: {told}\n"


def test_a_data_set_that_needs_an_account_says_how_to_get_it(tmp_path: Path) -> None:
    result = get("--out", tmp_path / "new", name="credit2")
    assert result.exit_code == 2
    for told in ("account", "https://www.kaggle.com/c/GiveMeSomeCredit/data", "--file cs-training.csv"):
        assert told in result.stderr
    assert not (tmp_path / "new").exists()


def test_two_sources_are_one_too_many(out: Path) -> None:
    result = get("--out", out, "--file", "a.csv", "--url", "https://example.org/a.csv")
    assert result.exit_code == 2
    assert "give one of them" in result.stderr


def test_a_folder_that_cannot_be_made(out: Path, tmp_path: Path) -> None:
    result = get("--out", save(tmp_path) / "out", "--file", save(tmp_path))
    assert result.exit_code == 2
    assert "cannot be written: Not a directory" in result.stderr


def test_the_addresses_are_those_of_the_examples() -> None:
    configs = Path(__file__).parents[3] / "configs/demo"
    assert {role: load_process_config(configs / f"{role}.yaml", {}).listen for role in Role} == data.ADDRESSES


def test_the_demos_tables_in_a_folder_for_each_party(tmp_path: Path) -> None:
    for _ in range(2):
        result = CliRunner().invoke(app, ["data", "demo", "--out", str(tmp_path)])
        assert result.exit_code == 0, result.stderr
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert files == [tmp_path / "guest/breast-cancer.csv", tmp_path / "host/breast-cancer.csv"]
    assert all(f"{path}: 569 rows" in result.stdout for path in files)
    assert all(len(path.read_text().splitlines()) == 570 for path in files)


def test_the_demos_tables_need_a_folder_that_can_be_made(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["data", "demo", "--out", str(save(tmp_path))])
    assert result.exit_code == 2
    assert "cannot be written: Not a directory" in result.stderr
