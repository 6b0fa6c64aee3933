"""A journal keeps what is written into it, and a journal that cannot be used is left unchanged."""

import shutil
import sqlite3
import stat
import time
from contextlib import closing
from pathlib import Path

import pytest

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.outcome import Outcome
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.jobs.journal import JOURNAL, VERSION, Journal, examine_journal, read_fact

JOB = JobConfig(name="credit", dataset="made", seed=3)
ID, OTHER = bytes(16), bytes(15) + b"\1"
KEPT_DAYS = 20.0


def test_a_fact_can_be_read_beside_the_process_and_after_it(tmp_path: Path) -> None:
    assert read_fact(tmp_path, "credit", "table") is None
    journal = Journal(tmp_path, Role.HOST, KEPT_DAYS)
    journal.add(ID, JOB)
    journal.set_facts(ID, {"table": b"old"})
    assert read_fact(tmp_path, "credit", "table") == b"old"
    journal.close()
    files = sorted(tmp_path.iterdir())
    assert read_fact(tmp_path, "credit", "table") == b"old"
    assert read_fact(tmp_path, "credit", "other") is None
    assert read_fact(tmp_path, "other", "table") is None
    assert sorted(tmp_path.iterdir()) == files


def reopened(journal: Journal, folder: Path) -> Journal:
    journal.close()
    return Journal(folder, Role.HOST, KEPT_DAYS)


def test_a_job_its_facts_and_its_rounds_are_there_when_it_is_opened_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path, Role.HOST, KEPT_DAYS)
    journal.add(ID, JOB)
    journal.set_facts(ID, {"table": b"old"})
    journal.set_facts(ID, {"table": b"new"})
    assert [journal.write_round(ID, number, b"%d" % number) for number in (2, 1, 2, 2)] == [1, 1, 2, 3]
    journal = reopened(journal, tmp_path)
    record = journal.find(ID)
    assert record is not None
    assert (record.job, record.outcome) == (JOB, None)
    assert record.facts == {"table": b"new"}
    assert list(record.rounds.items()) == [(1, b"1"), (2, b"2")]
    assert journal.find(OTHER) is None
    journal.close()


def test_the_first_content_of_a_round_stays(tmp_path: Path) -> None:
    journal = Journal(tmp_path, Role.HOST, KEPT_DAYS)
    journal.add(ID, JOB)
    for content in (b"first", b"second"):
        journal.write_round(ID, 1, content)
    record = journal.find(ID)
    assert record is not None
    assert record.rounds == {1: b"first"}
    journal.close()


def test_a_job_that_has_finished_stays_so(tmp_path: Path) -> None:
    journal = Journal(tmp_path, Role.HOST, KEPT_DAYS)
    journal.add(ID, JOB)
    journal.set_outcome(ID, Outcome.FAILED, "no disk")
    journal.set_running(ID)
    journal.set_outcome(ID, Outcome.FINISHED)
    journal.set_outcome(ID, Outcome.FAILED, "late")
    journal.set_running(ID)
    (record,) = journal.all()
    assert (record.outcome, record.reason) == (Outcome.FINISHED, "")
    journal.close()


@pytest.mark.parametrize("outcome", [Outcome.FINISHED, Outcome.STOPPED, Outcome.FAILED])
def test_how_a_job_ended_is_there_when_it_is_opened_again(outcome: Outcome, tmp_path: Path) -> None:
    journal = Journal(tmp_path, Role.HOST, KEPT_DAYS)
    journal.add(ID, JOB)
    journal.set_outcome(ID, outcome, "for some reason", {"status": b"last"})
    journal = reopened(journal, tmp_path)
    (record,) = journal.all()
    assert (record.outcome, record.reason, record.facts) == (outcome, "for some reason", {"status": b"last"})
    journal.set_running(ID)
    (record,) = journal.all()
    assert record.outcome is (Outcome.FINISHED if outcome is Outcome.FINISHED else None)
    journal.close()


def test_a_job_is_never_suspended(tmp_path: Path) -> None:
    journal = Journal(tmp_path, Role.HOST, KEPT_DAYS)
    journal.add(ID, JOB)
    with pytest.raises(ValueError, match="suspended"):
        journal.set_outcome(ID, Outcome.SUSPENDED)
    (record,) = journal.all()
    assert record.outcome is None
    journal.close()


def test_a_round_and_its_facts_are_kept_both_or_not_at_all(tmp_path: Path) -> None:
    journal = Journal(tmp_path, Role.HOST, KEPT_DAYS)
    journal.add(ID, JOB)
    journal.write_round(ID, 1, b"1", {"status": b"in round 1"})
    journal._database.execute("CREATE TRIGGER no_fact BEFORE INSERT ON fact BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(ConfigError):
        journal.write_round(ID, 2, b"2", {"status": b"in round 2"})
    record = journal.find(ID)
    assert record is not None
    assert (record.facts, record.rounds) == ({"status": b"in round 1"}, {1: b"1"})
    journal.close()


def test_a_journal_of_release_0_1_0_is_read(tmp_path: Path) -> None:
    """As that release wrote it, with a job in each state that it knew."""
    old = sqlite3.connect(tmp_path / JOURNAL)
    old.executescript(
        """
        CREATE TABLE job (
            id BLOB PRIMARY KEY, name TEXT NOT NULL UNIQUE, settings TEXT NOT NULL, state TEXT NOT NULL,
            reason TEXT NOT NULL, changed REAL NOT NULL
        );
        CREATE TABLE fact (
            job BLOB NOT NULL REFERENCES job ON DELETE CASCADE, name TEXT NOT NULL, content BLOB NOT NULL,
            PRIMARY KEY (job, name)
        );
        CREATE TABLE round (
            job BLOB NOT NULL REFERENCES job ON DELETE CASCADE, number INTEGER NOT NULL, content BLOB NOT NULL,
            begun INTEGER NOT NULL, PRIMARY KEY (job, number)
        );
        PRAGMA application_id = 1953655148;
        PRAGMA user_version = 1;
        """
    )
    ends = {
        "running": (None, ""),
        "finished": (Outcome.FINISHED, ""),
        "stopped": (Outcome.STOPPED, "stopped by the operator"),
        "failed": (Outcome.FAILED, "no disk"),
    }
    for number, (state, (_, reason)) in enumerate(ends.items()):
        job_id, settings = bytes([number]), JOB.model_copy(update={"name": state}).model_dump_json()
        old.execute("INSERT INTO job VALUES (?, ?, ?, ?, ?, ?)", (job_id, state, settings, state, reason, time.time()))
        old.execute("INSERT INTO fact VALUES (?, 'table', ?)", (job_id, state.encode()))
        old.execute("INSERT INTO round VALUES (?, 1, ?, 2)", (job_id, b"first"))
    old.commit()
    old.close()
    journal = Journal(tmp_path, Role.HOST, KEPT_DAYS)
    records = journal.all()
    assert {record.job.name: (record.outcome, record.reason) for record in records} == ends
    assert [record.facts["table"] for record in records] == [state.encode() for state in ends]
    assert journal.write_round(records[0].id, 1, b"again") == 3
    journal.close()
    with closing(sqlite3.connect(tmp_path / JOURNAL)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (2,)  # which 0.1.0 refuses


def test_a_new_job_takes_the_place_of_one_of_its_name(tmp_path: Path) -> None:
    journal = Journal(tmp_path, Role.HOST, KEPT_DAYS)
    journal.add(ID, JOB)
    journal.set_facts(ID, {"table": b"digest"})
    journal.add(OTHER, JOB)
    assert [record.id for record in journal.all()] == [OTHER]
    assert journal.find(ID) is None
    journal.close()


def test_the_rounds_of_a_job_that_was_replaced_stay(tmp_path: Path) -> None:
    journal = Journal(tmp_path, Role.HOST, KEPT_DAYS)
    third = bytes(reversed(range(16)))
    for job_id in (ID, OTHER, third):
        journal.add(job_id, JOB)
        journal.write_round(job_id, 1, b"asked", {"scores counted": b""})
    journal = reopened(journal, tmp_path)
    assert [record.id for record in journal.all()] == [third]
    for job_id in (ID, OTHER, third):
        record = journal.find(job_id)
        assert record is not None
        assert (record.job, record.rounds, record.facts) == (JOB, {1: b"asked"}, {"scores counted": b""})
        assert record.replaced is (job_id != third)
    journal.close()


def test_no_job_is_added_over_its_own_rounds(tmp_path: Path) -> None:
    journal = Journal(tmp_path, Role.HOST, KEPT_DAYS)
    journal.add(ID, JOB)
    journal.write_round(ID, 1, b"asked")
    with pytest.raises(ConfigError):
        journal.add(ID, JOB)
    record = journal.find(ID)
    assert record is not None
    assert (record.rounds, record.replaced) == ({1: b"asked"}, False)
    journal.close()


def test_jobs_that_have_not_changed_for_long_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path, Role.HOST, KEPT_DAYS)
    now = time.time()
    for job_id, days in ((ID, KEPT_DAYS + 1), (OTHER, KEPT_DAYS - 1)):
        monkeypatch.setattr(time, "time", lambda days=days: now - days * 86_400)
        journal.add(job_id, JOB.model_copy(update={"name": f"job{days}"}))
    monkeypatch.undo()
    journal = reopened(journal, tmp_path)
    assert [record.id for record in journal.all()] == [OTHER]
    monkeypatch.setattr(time, "time", lambda: now + 2 * 86_400)  # the process goes on for two days
    journal.add(ID, JOB)
    assert [record.id for record in journal.all()] == [ID]
    journal.close()


def test_only_its_user_can_read_the_files(tmp_path: Path) -> None:
    journal = Journal(tmp_path, Role.HOST, KEPT_DAYS)
    journal.add(ID, JOB)
    files = list(tmp_path.glob(f"{JOURNAL}*"))
    assert len(files) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    journal.close()


def test_a_journal_of_another_program_is_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL
    with sqlite3.connect(path) as foreign:
        foreign.execute("CREATE TABLE tunes (name TEXT)")
    foreign.close()
    content = path.read_bytes()
    with pytest.raises(ConfigError, match="belongs to another program"):
        Journal(tmp_path, Role.HOST, KEPT_DAYS)
    assert path.read_bytes() == content


def test_a_journal_of_a_newer_version_is_left_unchanged(tmp_path: Path) -> None:
    Journal(tmp_path, Role.HOST, KEPT_DAYS).close()
    with sqlite3.connect(tmp_path / JOURNAL) as newer:
        newer.execute(f"PRAGMA user_version = {VERSION + 1}")
    newer.close()
    content = (tmp_path / JOURNAL).read_bytes()
    with pytest.raises(ConfigError, match="newer version of trilateral"):
        Journal(tmp_path, Role.HOST, KEPT_DAYS)
    assert (tmp_path / JOURNAL).read_bytes() == content


@pytest.mark.parametrize("keep", [0, 50, 5000])
def test_a_journal_that_was_cut_off_is_left_unchanged(keep: int, tmp_path: Path) -> None:
    journal = Journal(tmp_path, Role.HOST, KEPT_DAYS)
    journal.add(ID, JOB)
    for number in range(200):
        journal.write_round(ID, number, bytes(1000))
    journal.close()
    path = tmp_path / JOURNAL
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ConfigError, match="the journal of the host is damaged: see its log"):
        Journal(tmp_path, Role.HOST, KEPT_DAYS)
    with pytest.raises(ConfigError, match="is damaged"):
        examine_journal(tmp_path)
    assert path.stat().st_size == keep


@pytest.mark.parametrize("is_there", [True, False])
def test_the_log_of_an_emptied_or_removed_journal_is_left_unchanged(is_there: bool, tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    journal = Journal(tmp_path, Role.HOST, KEPT_DAYS)
    journal.add(ID, JOB)
    killed.mkdir()
    for name in (JOURNAL, f"{JOURNAL}-wal"):
        shutil.copy(tmp_path / name, killed)
    journal.close()
    log = killed / f"{JOURNAL}-wal"
    content = log.read_bytes()
    assert content
    if is_there:
        (killed / JOURNAL).write_bytes(b"")
    else:
        (killed / JOURNAL).unlink()
    with pytest.raises(ConfigError, match="the journal of the host is damaged: see its log"):
        Journal(killed, Role.HOST, KEPT_DAYS)
    with pytest.raises(ConfigError, match="is damaged"):
        examine_journal(killed)
    assert log.read_bytes() == content


def test_a_half_made_journal_does_not_prevent_a_new_one(tmp_path: Path) -> None:
    (tmp_path / f"{JOURNAL}.new").write_bytes(b"half")
    Journal(tmp_path, Role.HOST, KEPT_DAYS).close()
    assert [path.name for path in tmp_path.iterdir()] == [JOURNAL]


def test_a_write_for_a_forgotten_job_is_not_reported_as_damage(tmp_path: Path) -> None:
    journal = Journal(tmp_path, Role.HOST, KEPT_DAYS)
    with pytest.raises(ConfigError, match="the journal of the host no longer has the job"):
        journal.set_facts(ID, {"table": b""})
    journal.close()


def test_a_folder_in_place_of_the_journal_is_reported(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).mkdir()
    with pytest.raises(ConfigError, match="the journal of the host cannot be written: Is a directory"):
        Journal(tmp_path, Role.HOST, KEPT_DAYS)


def test_a_full_disk_is_reported_and_earlier_entries_stay(tmp_path: Path) -> None:
    journal = Journal(tmp_path, Role.HOST, KEPT_DAYS)
    journal.add(ID, JOB)
    journal._database.execute("PRAGMA max_page_count = 12")

    def fill() -> None:
        for number in range(100):
            journal.write_round(ID, number, bytes(4000))

    with pytest.raises(ConfigError, match="the journal of the host cannot be read or written: .*full"):
        fill()
    journal = reopened(journal, tmp_path)
    record = journal.find(ID)
    assert record is not None
    assert list(record.rounds) == list(range(len(record.rounds)))
    assert journal.write_round(ID, 1000, b"") == 1
    journal.close()


def test_a_read_only_journal_is_reported(tmp_path: Path) -> None:
    journal = Journal(tmp_path, Role.HOST, KEPT_DAYS)
    journal._database.execute("PRAGMA query_only = ON")
    with pytest.raises(ConfigError, match="the journal of the host cannot be read or written: .*readonly"):
        journal.add(ID, JOB)
    journal.close()


# --- examining a journal while another process may use it


def test_looking_at_a_journal_leaves_nothing_behind_whether_it_is_open_or_not(tmp_path: Path) -> None:
    examine_journal(tmp_path)
    assert list(tmp_path.iterdir()) == []
    journal = Journal(tmp_path, Role.HOST, KEPT_DAYS)
    journal.add(ID, JOB)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".sqlite-shm"}
    examine_journal(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".sqlite-shm"} == before
    journal.write_round(ID, 1, b"goes on")
    journal.close()
    examine_journal(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [JOURNAL]


def test_looking_at_the_journal_of_a_process_that_was_killed_sees_its_log(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    journal = Journal(tmp_path / "first", Role.HOST, KEPT_DAYS)
    journal.add(ID, JOB)
    shutil.copytree(tmp_path / "first", tmp_path / "killed")
    journal.close()
    examine_journal(tmp_path / "killed")
    reopened = Journal(tmp_path / "killed", Role.HOST, KEPT_DAYS)
    assert reopened.find(ID) is not None
    reopened.close()


def test_damage_in_the_middle_of_a_journal_is_found(tmp_path: Path) -> None:
    journal = Journal(tmp_path, Role.HOST, KEPT_DAYS)
    for number in range(200):
        journal.add(number.to_bytes(16), JOB.model_copy(update={"name": f"job{number}"}))
    journal.close()
    path = tmp_path / JOURNAL
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 4096] = bytes(4096)
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is damaged"):
        examine_journal(tmp_path)
