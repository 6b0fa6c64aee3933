"""An encrypted journal shows nothing of a job's values, and works only with its key."""

import secrets
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.outcome import Outcome
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.jobs.journal import JOURNAL, Journal, Record, examine_journal, examine_key, newest_rounds
from trilateral.common.jobs.sealing import Sealer, load_sealer

ID, OTHER = bytes(16), bytes(15) + b"\1"
FACT, ROUND = b"a fact that nobody may read", b"a step that nobody may read"
SEALER = Sealer(secrets.token_bytes(32))


def opened(folder: Path, sealer: Sealer | None = SEALER) -> Journal:
    return Journal(folder, Role.HOST, 90, sealer)


def fill(journal: Journal) -> None:
    for job_id, name in ((ID, "one"), (OTHER, "two")):
        journal.add(job_id, JobConfig(name=name, dataset="made"))
        journal.set_facts(job_id, {"table": FACT, "columns": FACT})
        journal.write_round(job_id, 1, ROUND, {"last": FACT})
        journal.write_round(job_id, 2, ROUND)
        journal.set_outcome(job_id, Outcome.STOPPED, "by an operator", {"end": FACT})


def found(journal: Journal) -> Record:
    record = journal.find(ID)
    assert record is not None
    return record


def check_content(journal: Journal) -> None:
    record = found(journal)
    assert record.facts == dict.fromkeys(("table", "columns", "last", "end"), FACT)
    assert record.rounds == {1: ROUND, 2: ROUND}
    assert [each.facts for each in journal.all()] == [record.facts] * 2


def shows_values(folder: Path) -> bool:
    return any(b"nobody may read" in path.read_bytes() for path in folder.iterdir())


def test_no_file_shows_a_value_while_the_process_runs_or_later(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as journal:
        fill(journal)
        check_content(journal)
        assert not shows_values(tmp_path)
    assert not shows_values(tmp_path)
    with closing(opened(tmp_path)) as journal:
        check_content(journal)


def test_the_same_value_is_never_encrypted_alike(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as journal:
        fill(journal)
    with closing(sqlite3.connect(tmp_path / JOURNAL)) as database:
        values = [row[0] for row in database.execute("SELECT content FROM fact UNION ALL SELECT content FROM round")]
    assert len(set(values)) == len(values) == 12


def test_a_journal_without_encryption_is_encrypted_at_the_next_start(tmp_path: Path) -> None:
    with closing(opened(tmp_path, None)) as journal:
        fill(journal)
    assert shows_values(tmp_path)
    with closing(opened(tmp_path)) as journal:
        check_content(journal)
        assert not shows_values(tmp_path)
    with closing(opened(tmp_path)) as journal:
        check_content(journal)


def test_an_encryption_that_is_interrupted_is_done_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(opened(tmp_path, None)) as journal:
        fill(journal)
    seal, calls = Sealer.seal, 0

    def fail(*arguments: object) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise KeyboardInterrupt
        return seal(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as power:
        power.setattr(Sealer, "seal", fail)
        with pytest.raises(KeyboardInterrupt):
            opened(tmp_path)
    with closing(opened(tmp_path, None)) as journal:
        check_content(journal)
    with closing(opened(tmp_path)) as journal:
        check_content(journal)


@pytest.mark.parametrize(
    ("sealer", "text"), [(None, "state_key: is missing, and "), (Sealer(bytes(32)), "state_key: is another key than ")]
)
def test_without_its_key_a_journal_is_refused_and_left_alone(tmp_path: Path, sealer: Sealer | None, text: str) -> None:
    with closing(opened(tmp_path)) as journal:
        fill(journal)
    before = (tmp_path / JOURNAL).read_bytes()
    with pytest.raises(ConfigError, match=text):
        opened(tmp_path, sealer)
    with pytest.raises(ConfigError, match=text):
        examine_key(tmp_path, sealer)
    assert (tmp_path / JOURNAL).read_bytes() == before


def test_a_journal_that_has_lost_its_seal_is_damaged(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as journal:
        fill(journal)
    with closing(sqlite3.connect(tmp_path / JOURNAL)) as database, database:
        database.execute("DELETE FROM seal")
    with pytest.raises(ConfigError, match="the journal of the host is damaged"):
        opened(tmp_path)
    with pytest.raises(ConfigError, match="is damaged: it has no seal"):
        examine_key(tmp_path, SEALER)


def test_whether_it_is_whole_and_how_far_its_jobs_are_shows_without_the_key(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as journal:
        fill(journal)
    examine_journal(tmp_path)
    assert newest_rounds(tmp_path) == {"one": 2, "two": 2}
    assert examine_key(tmp_path, SEALER)


def test_a_release_without_encryption_refuses_it_by_its_version(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / JOURNAL)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (3,)


SWAPS = {
    "rounds": "UPDATE round SET content = (SELECT content FROM round AS other WHERE other.job = :id AND number = 2)",
    "facts": "UPDATE fact SET content = (SELECT content FROM fact WHERE job = :id AND name = 'columns') "
    "WHERE job = :id AND name = 'table'",
    "jobs": "UPDATE round SET content = (SELECT content FROM round WHERE job = :other AND number = 1) "
    "WHERE job = :id AND number = 1",
    "kinds": "UPDATE round SET content = (SELECT content FROM fact WHERE job = :id AND name = 'table') "
    "WHERE job = :id AND number = 1",
    "bits": "UPDATE round SET content = zeroblob(60) WHERE job = :id AND number = 1",
    "length": "UPDATE round SET content = x'00' WHERE job = :id AND number = 1",
}


@pytest.mark.parametrize("what", SWAPS)
def test_values_cannot_be_changed_or_moved(tmp_path: Path, what: str) -> None:
    with closing(opened(tmp_path)) as journal:
        fill(journal)
    with closing(sqlite3.connect(tmp_path / JOURNAL)) as database:
        database.execute(SWAPS[what], {"id": ID, "other": OTHER})
        database.commit()
    with closing(opened(tmp_path)) as journal, pytest.raises(ConfigError, match="the journal of the host is damaged"):
        found(journal)


# --- the file with the key


def key_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "state.key"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440])
def test_a_key_is_64_digits_in_a_file_that_not_everyone_can_read(tmp_path: Path, mode: int) -> None:
    sealer = load_sealer(key_file(tmp_path, "0F" * 32 + "\n", mode))
    assert sealer is not None
    assert sealer.unseal(Sealer(b"\x0f" * 32).seal(b"x", ID, "y"), ID, "y") == b"x"
    assert load_sealer(None) is None


@pytest.mark.parametrize("text", ["", "0f" * 31, "0f" * 33, "0g" * 32])
def test_what_is_not_a_key_is_refused_without_being_shown(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="state_key: .*expected 64 hexadecimal digits") as refused:
        load_sealer(key_file(tmp_path, text))
    assert not text or text not in str(refused.value)


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o660])
def test_a_key_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match="chmod 600"):
        load_sealer(key_file(tmp_path, "0f" * 32, mode))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="state_key: .*No such file"):
        load_sealer(tmp_path / "none")
