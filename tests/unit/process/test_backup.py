"""A copy of a state folder is whole and of one moment, and a restore lowers no count of what was disclosed."""

import json
import os
import socket
import sqlite3
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, date, datetime
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.three_processes import write_configs
from trilateral.cli.main import app
from trilateral.common.base.errors import ConfigError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.jobs.journal import JOURNAL, Journal
from trilateral.common.jobs.quota import COUNTER, IdQuota, ScoreQuota
from trilateral.common.jobs.used_folds import USED_FOLDS
from trilateral.common.observe.audit import LOG, Audit
from trilateral.common.observe.audit_chain import verify_chain
from trilateral.common.process import backup as backup_module
from trilateral.common.process.backup import MANIFEST, back_up, restore
from trilateral.common.process.live_settings import NOTE
from trilateral.common.process.state_folder import held_state

JOB = JobConfig(name="credit", dataset="made")
ID = bytes(16)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def config(tmp_path: Path) -> ProcessConfig:
    peers = {role: "127.0.0.1:1" for role in Role if role is not Role.HOST}
    return ProcessConfig(role=Role.HOST, listen="127.0.0.1:2", peers=peers, state=tmp_path / "state", plaintext=True)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return tmp_path / "copies" / "host.tar"


@pytest.fixture(autouse=True)
def _folder_of_copies(copy: Path) -> None:
    copy.parent.mkdir()


@pytest.fixture
def journal(config: ProcessConfig) -> Iterator[Journal]:
    """The journal of a process that runs: its newest rounds are in the -wal file."""
    with held_state(config.state, Role.HOST), closing(Journal(config.state, Role.HOST, 90)) as journal:
        journal.add(ID, JOB)
        journal.write_round(ID, 1, b"one")
        yield journal


def fill(config: ProcessConfig) -> None:
    """Leave what a process leaves: a finished job, counts, an audit log, and what is of use to nobody else."""
    state = config.state
    job = state / "jobs" / "credit"
    job.mkdir(parents=True, exist_ok=True)
    (job / "model.json").write_text("{}")
    (state / ".scratch" / "1").mkdir(parents=True, exist_ok=True)
    (state / ".scratch" / "1" / "rows").write_text("secret")
    (state / ".scores-given.lock").touch()
    (state / ".model.json-x.new").write_text("half")
    ScoreQuota(state, 100, lambda: NOON).spend(7)
    Audit(state / LOG).allowed(Asking(), "OpenJob", job="credit")


class Asking:
    role = Role.COORDINATOR
    names: frozenset[str] = frozenset()


def rounds(folder: Path) -> dict[int, bytes]:
    with closing(Journal(folder, Role.HOST, 90)) as journal:
        record = journal.find(ID)
    return {} if record is None else record.rounds


def names_in(copy: Path) -> set[str]:
    with tarfile.open(copy) as tar:
        return set(tar.getnames())


def test_a_running_process_is_copied_with_what_is_in_its_wal_file_only(
    config: ProcessConfig, copy: Path, journal: Journal
) -> None:
    fill(config)
    made = back_up(config, copy)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert names_in(copy) == {JOURNAL, "jobs/credit/model.json", COUNTER, LOG, MANIFEST}
    assert set(made.files) == names_in(copy) - {MANIFEST}
    journal.write_round(ID, 2, b"two")
    journal.close()
    elsewhere = config.model_copy(update={"state": copy.parent / "elsewhere"})
    restore(elsewhere, copy)
    assert rounds(elsewhere.state) == {1: b"one"}
    assert [path.name for path in copy.parent.iterdir() if path.name.startswith(".backup-")] == []


def test_a_killed_process_is_copied_with_its_wal_file(config: ProcessConfig, copy: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from trilateral.common.jobs.journal import Journal\n"
        "from trilateral.common.base.roles import Role; from trilateral.common.config.job import JobConfig\n"
        "journal = Journal(Path(sys.argv[1]), Role.HOST, 90)\n"
        "journal.add(bytes(16), JobConfig(name='credit', dataset='made'))\n"
        "journal.write_round(bytes(16), 1, b'one'); os.kill(os.getpid(), 9)"
    )
    config.state.mkdir()
    subprocess.run([sys.executable, "-c", code, str(config.state)], check=False)
    assert (config.state / f"{JOURNAL}-wal").stat().st_size
    back_up(config, copy)
    fresh = config.model_copy(update={"state": copy.parent / "fresh"})
    restore(fresh, copy)
    assert rounds(fresh.state) == {1: b"one"}


def test_links_and_sockets_are_left_out(config: ProcessConfig, copy: Path) -> None:
    fill(config)
    (config.state / "link").symlink_to("/etc/passwd")
    with closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(str(config.state / "socket"))
        back_up(config, copy)
    assert not names_in(copy) & {"link", "socket"}


def test_a_process_cannot_start_while_it_is_copied(
    config: ProcessConfig, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_state(config.state, Role.HOST):
        fill(config)

    def start(*_: object) -> None:
        with pytest.raises(ConfigError, match="is in use"), held_state(config.state, Role.HOST):
            pass
        raise KeyboardInterrupt

    monkeypatch.setattr(backup_module, "_add", start)
    with pytest.raises(KeyboardInterrupt):
        back_up(config, copy)
    assert not copy.exists()


def test_a_file_that_a_job_renames_meanwhile_is_copied_under_its_new_name(
    config: ProcessConfig, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.state.mkdir()
    partial = config.state / "history.jsonl.partial"
    partial.write_text("line\n")
    walk = backup_module._walk

    def finish(folder: Path) -> Iterator[Path]:
        yield from list(walk(folder))
        if partial.exists():
            partial.rename(config.state / "history.jsonl")

    monkeypatch.setattr(backup_module, "_walk", finish)
    back_up(config, copy)
    assert names_in(copy) == {"history.jsonl", MANIFEST}


def test_a_damaged_journal_is_not_copied_silently(config: ProcessConfig, copy: Path) -> None:
    with closing(Journal(make(config.state), Role.HOST, 90)) as journal:
        journal.add(ID, JOB)
    damage(config.state / JOURNAL)
    with pytest.raises(ConfigError, match="journal.sqlite is damaged"):
        back_up(config, copy)
    assert not copy.exists()


def make(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096 : 4096 + 3000] = os.urandom(3000)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("out", "text"),
    [("state/x.tar", "in the state folder"), ("there", "exists"), ("none/x.tar", "none does not exist")],
)
def test_a_place_that_cannot_be_used_is_named(config: ProcessConfig, tmp_path: Path, out: str, text: str) -> None:
    (tmp_path / "there").touch()
    fill(config)
    with pytest.raises(ConfigError, match=f"^--out {tmp_path / out}: .*{text}"):
        back_up(config, tmp_path / out)


def test_without_a_state_folder_there_is_nothing_to_copy(config: ProcessConfig, copy: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        back_up(config, copy)


# --- restore


def test_a_restore_puts_everything_back_and_keeps_what_was_there(config: ProcessConfig, copy: Path) -> None:
    fill(config)
    with closing(Journal(config.state, Role.HOST, 90)) as journal:
        journal.add(ID, JOB)
        back_up(config, copy)
        journal.write_round(ID, 1, b"one")
    (config.state / "jobs/credit/model.json").write_text("changed")
    (config.state / "later").mkdir()
    done = restore(config, copy)
    assert (config.state / "jobs/credit/model.json").read_text() == "{}"
    assert rounds(config.state) == {}
    assert done.forgotten == {"credit": (1, 0)}
    assert done.replaced is not None
    assert (done.replaced / "jobs/credit/model.json").read_text() == "changed"
    assert (done.replaced / "later").is_dir()
    assert not (config.state / "later").exists()
    with held_state(config.state, Role.HOST):
        pass


def test_every_folder_that_a_restore_makes_is_for_its_owner_only(config: ProcessConfig, copy: Path) -> None:
    """Whatever the umask of the administrator who runs it."""
    fill(config)
    back_up(config, copy)
    before = os.umask(0o022)
    try:
        restore(config, copy)
    finally:
        os.umask(before)
    made = [config.state / "jobs", config.state / "jobs/credit"]
    assert [path.stat().st_mode & 0o777 for path in made] == [0o700, 0o700]


def test_counts_are_never_lowered(config: ProcessConfig, copy: Path) -> None:
    fill(config)
    scores, ids = ScoreQuota(config.state, 100, lambda: NOON), IdQuota(config.state, 100, lambda: NOON)
    back_up(config, copy)
    scores.spend(20)
    ids.spend(5)
    assert not restore(config, copy).undercounts
    assert (scores.today().given, ids.today().given) == (27, 5)
    assert scores.today().day == date(2026, 3, 1)


def test_the_counts_of_the_copy_count_if_the_folder_has_lower_ones_or_none(config: ProcessConfig, copy: Path) -> None:
    fill(config)
    scores = ScoreQuota(config.state, 100, lambda: NOON)
    back_up(config, copy)
    (config.state / COUNTER).unlink()
    assert restore(config, copy).undercounts
    assert scores.today().given == 7
    (config.state / COUNTER).write_text(json.dumps({"day": "2026-03-01", "given": 2}))
    restore(config, copy)
    assert scores.today().given == 7


def test_the_union_of_entries_of_a_ledger_counts(config: ProcessConfig, copy: Path) -> None:
    fill(config)
    ledger = config.state / ".ledger.json"
    entry = {"trainings": 2, "points": ["a", "b"]}
    ledger.write_text(json.dumps({"version": 1, "datasets": {"one": entry, "two": entry}}))
    back_up(config, copy)
    later = {"trainings": 3, "points": ["b", "c"]}
    ledger.write_text(json.dumps({"version": 1, "datasets": {"one": later, "three": later}}))
    restore(config, copy)
    assert json.loads(ledger.read_text()) == {
        "version": 1,
        "datasets": {"one": {"trainings": 3, "points": ["a", "b", "c"]}, "two": entry, "three": later},
    }


def test_the_folds_that_are_there_stay_and_those_of_the_copy_come_back_if_there_are_none(
    config: ProcessConfig, copy: Path
) -> None:
    fill(config)
    folds = config.state / USED_FOLDS
    folds.write_bytes(b"\xffof the copy")
    back_up(config, copy)
    folds.write_bytes(b"\xffof the copy and of a later job")
    assert not restore(config, copy).undercounts
    assert folds.read_bytes() == b"\xffof the copy and of a later job"
    folds.unlink()
    assert restore(config, copy).undercounts
    assert folds.read_bytes() == b"\xffof the copy"


def test_a_damaged_count_is_reported(config: ProcessConfig, copy: Path) -> None:
    scores = ScoreQuota(make(config.state), 100, lambda: NOON)
    scores.spend(7)
    back_up(config, copy)
    (config.state / COUNTER).write_text("{")
    assert restore(config, copy).damaged == [COUNTER]
    assert scores.today().given == 7


def test_the_note_of_the_settings_in_force_is_neither_copied_nor_counted(config: ProcessConfig, copy: Path) -> None:
    """The settings of two times cannot be merged: one may be null before and a text afterwards."""
    fill(config)
    note = config.state / NOTE
    note.write_text(json.dumps({"process": 1, "settings": {"state_key": None}}))
    manifest = back_up(config, copy)
    assert NOTE not in manifest.files
    note.write_text(json.dumps({"process": 2, "settings": {"state_key": "key.pem"}}))
    done = restore(config, copy)
    assert (done.damaged, done.undercounts) == ([], False)
    assert not note.exists()


def test_the_audit_log_goes_on_and_says_that_the_state_was_restored(config: ProcessConfig, copy: Path) -> None:
    fill(config)
    back_up(config, copy)
    Audit(config.state / LOG).allowed(Asking(), "OpenJob", job="later")
    restore(config, copy)
    assert verify_chain(config.state / LOG).end.number == 3
    *_, later, last = map(json.loads, (config.state / LOG).read_text().splitlines())
    assert (later["job"], last["decision"]) == ("later", "restored")


def test_the_audit_log_of_the_copy_comes_back_to_a_folder_with_another_log(config: ProcessConfig, copy: Path) -> None:
    fill(config)
    back_up(config, copy)
    (config.state / LOG).unlink()
    Audit(config.state / LOG).allowed(Asking(), "OpenJob", job="of a new machine")
    done = restore(config, copy)
    first, _ = map(json.loads, (config.state / LOG).read_text().splitlines())
    assert first["job"] == "credit"
    assert done.replaced is not None
    assert done.undercounts
    assert "of a new machine" in (done.replaced / LOG).read_text()


def test_the_state_of_a_running_process_is_not_replaced(config: ProcessConfig, copy: Path, journal: Journal) -> None:
    fill(config)
    back_up(config, copy)
    with pytest.raises(ConfigError, match=f"in use by process {os.getpid()}: stop the host first"):
        restore(config, copy)


def test_the_copy_of_another_role_is_refused(config: ProcessConfig, copy: Path) -> None:
    fill(config)
    back_up(config, copy)
    peers = {role: "127.0.0.1:1" for role in Role if role is not Role.GUEST}
    guest = ProcessConfig(
        role=Role.GUEST, listen="127.0.0.1:2", peers=peers, state=copy.parent / "guest", plaintext=True
    )
    with pytest.raises(ConfigError, match="a copy of the host's state folder, not of the guest's"):
        restore(guest, copy)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def cut(content: bytes) -> bytes:
    return content[: content.rindex(MANIFEST.encode())]


def flip(content: bytes) -> bytes:
    changed = bytearray(content)
    changed[content.index(b"{}")] ^= 1
    return bytes(changed)


@pytest.mark.parametrize("spoil", [cut, flip, lambda _: b"", lambda _: b"not a copy" * 1000, lambda c: c[:512]])
def test_a_damaged_copy_changes_nothing(config: ProcessConfig, copy: Path, spoil: object) -> None:
    fill(config)
    back_up(config, copy)
    (config.state / "jobs/credit/model.json").write_text("newer")
    before = snapshot(config.state)
    copy.write_bytes(spoil(copy.read_bytes()))  # type: ignore[operator]
    with pytest.raises(ConfigError, match="is damaged"):
        restore(config, copy)
    assert snapshot(config.state) == before


def forge(copy: Path, name: str, kind: bytes = tarfile.REGTYPE) -> None:
    text = json.dumps(
        {"role": "host", "version": "1", "time": NOON.isoformat(), "files": {name: "0" * 64}, "format": 1}
    )
    with tarfile.open(copy, "w") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc/passwd"
        tar.addfile(member)
        last = tarfile.TarInfo(MANIFEST)
        last.size = len(text)
        tar.addfile(last, BytesIO(text.encode()))


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "a/../../x", "a//b", "."])
def test_a_copy_writes_nowhere_else(config: ProcessConfig, copy: Path, name: str) -> None:
    forge(copy, name)
    with pytest.raises(ConfigError, match="is damaged"):
        restore(config, copy)
    assert not (copy.parents[1] / "x").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_a_copy_has_only_files(config: ProcessConfig, copy: Path, kind: bytes) -> None:
    forge(copy, "x", kind)
    with pytest.raises(ConfigError, match="is damaged"):
        restore(config, copy)


def test_a_journal_that_cannot_be_used_changes_nothing(config: ProcessConfig, copy: Path) -> None:
    config.state.mkdir()
    with closing(sqlite3.connect(config.state / JOURNAL)) as other:
        other.execute("CREATE TABLE x (y)")
    back_up(config, copy)
    (config.state / JOURNAL).unlink()
    with pytest.raises(ConfigError, match="belongs to another program"):
        restore(config, copy)
    assert not (config.state / JOURNAL).exists()


@pytest.mark.parametrize("steps", range(1, 8))
def test_an_interrupted_restore_starts_no_process_and_can_be_repeated(
    config: ProcessConfig, copy: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    fill(config)
    with closing(Journal(config.state, Role.HOST, 90)) as journal:
        journal.add(ID, JOB)
    back_up(config, copy)
    ScoreQuota(config.state, 100, lambda: NOON).spend(20)
    (config.state / "jobs/credit/model.json").write_text("newer")
    moves = 0
    with monkeypatch.context() as power:
        rename, replace = os.rename, Path.replace

        def move(how: Callable[..., Any], *paths: Path) -> Any:
            nonlocal moves
            moves += 1
            if moves > steps:
                raise KeyboardInterrupt
            return how(*paths)

        power.setattr(os, "rename", partial(move, rename))
        power.setattr(Path, "replace", lambda *paths: move(replace, *paths))
        with pytest.raises(KeyboardInterrupt):
            restore(config, copy)
    with pytest.raises(ConfigError, match="was interrupted"), held_state(config.state, Role.HOST):
        pass
    done = restore(config, copy)
    assert done.replaced is not None
    assert (done.replaced / "jobs/credit/model.json").read_text() == "newer"
    assert (config.state / "jobs/credit/model.json").read_text() == "{}"
    assert ScoreQuota(config.state, 100, lambda: NOON).today().given == 27
    assert rounds(config.state) == {}
    verify_chain(config.state / LOG)
    with held_state(config.state, Role.HOST):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")
def test_root_restores_for_the_user_of_the_process(config: ProcessConfig, copy: Path) -> None:
    fill(config)
    os.chown(config.state, 65534, 65534)
    back_up(config, copy)
    assert restore(config, copy).owner == "nobody"
    assert {path.lstat().st_uid for path in (config.state, *config.state.rglob("*"))} == {65534}


# --- the commands


def run(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*map(str, words)])
    return result.exit_code, result.output


def test_the_commands(config: ProcessConfig, copy: Path, tmp_path: Path) -> None:
    fill(config)
    path = write_configs({Role.HOST: config}, tmp_path)[Role.HOST]
    code, text = run("backup", "--config", path, "--out", copy)
    assert code == 0
    assert f"{copy}: 3 files of the host's state folder" in text
    (config.state / COUNTER).unlink()
    code, text = run("restore", copy, "--config", path)
    assert code == 0
    assert "3 files as of" in text
    assert "What this process disclosed since then is no longer counted" in text
    assert f"the previous files are in {config.state}/.replaced-" in text
    code, text = run("audit", "verify", "--config", path)
    assert code == 0
    digest = text.split()[-1]
    assert run("audit", "verify", "--config", path, "--contains", digest.upper())[0] == 0
    assert json.loads(run("audit", "verify", "--config", path, "--json")[1])["hash"] == digest
    code, text = run("audit", "verify", "--config", path, "--contains", "abc")
    assert code == 2
    assert text == "error: --contains abc: expected 64 hexadecimal digits, as the process logs them\n"
    log = config.state / LOG
    log.write_text(log.read_text().replace("credit", "credjt"))
    code, text = run("audit", "verify", "--config", path)
    assert code == 1
    assert "audit.jsonl, line 2 does not continue the line before it" in text
