"""Whoever changes, removes or inserts a line of an audit log breaks its chain, and honest accidents do not."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.outcome import Outcome
from trilateral.common.observe.audit import Audit
from trilateral.common.observe.audit_chain import REPAIRED, log_files, verify_chain

OLD = '{"time": "2026-01-01T00:00:00.000+00:00", "decision": "ended", "job": "old"}\n'
"""A line of release 0.1.0."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def write(path: Path, *jobs: str, max_bytes: int = 1 << 20) -> None:
    audit = Audit(path, max_bytes=max_bytes)
    audit.open()
    for job in jobs:
        audit.ended(Outcome.FINISHED, job=job)


def jobs(path: Path) -> list[str]:
    texts = [line for file in log_files(path) for line in file.read_text().splitlines()]
    return [fields["job"] for fields in map(json.loads, texts) if "job" in fields]


def test_the_chain_continues_over_restarts(path: Path) -> None:
    write(path, "one", "two")
    write(path, "three")
    found = verify_chain(path)
    assert (found.first, found.end.number, found.n_unchained, found.n_repaired) == (1, 3, 0, 0)


Tamper = Callable[[list[str]], list[str]]
TAMPERING: dict[str, tuple[Tamper, str]] = {
    "changed": (lambda lines: [lines[0], lines[1].replace("two", "six"), *lines[2:]], "line 3 .*that line was changed"),
    "reformatted": (lambda lines: [lines[0], lines[1].replace(": ", ":"), *lines[2:]], "line 3 .*was changed"),
    "removed": (lambda lines: [lines[0], *lines[2:]], "line 2 has the number 3, and the line before it 1"),
    "swapped": (lambda lines: [lines[0], lines[2], lines[1], lines[3]], "line 2 has the number 3"),
    "repeated": (lambda lines: [*lines[:2], lines[1], *lines[2:]], "line 3 has the number 2"),
    "inserted": (lambda lines: [lines[0], OLD.strip(), *lines[1:]], "line 2 is not a line that the process"),
    "garbage": (lambda lines: [*lines, "garbage"], "line 5 is not a line that the process"),
    "first line changed": (lambda lines: [lines[0].replace("one", "six"), *lines[1:]], "line 2 .*was changed"),
    "prepended": (lambda lines: [OLD.strip(), *lines], "line 2 does not continue what is before it"),
}


@pytest.mark.parametrize("how", TAMPERING)
def test_tampering_is_found_at_the_first_broken_line(path: Path, how: str) -> None:
    write(path, "one", "two", "three", "four")
    tamper, text = TAMPERING[how]
    path.write_text("\n".join(tamper(path.read_text().splitlines())) + "\n")
    with pytest.raises(ConfigError, match=f"audit.jsonl, {text}"):
        verify_chain(path)


def test_a_rewritten_end_is_found_by_a_hash_that_was_kept_elsewhere(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        write(path, "one", "two")
    kept = caplog.messages[-1].split()[-1]
    assert "the audit log has 2 lines" in caplog.messages[-1]
    verify_chain(path, kept)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0])
    write(path, "another")
    assert verify_chain(path).end.number == 2  # the chain alone does not show it
    with pytest.raises(ConfigError, match=f"has no line with the hash {kept}"):
        verify_chain(path, kept)


def test_lines_of_an_older_release_are_accepted_before_the_chain_and_fixed_by_it(path: Path) -> None:
    path.write_text(OLD * 3)
    write(path, "one")
    found = verify_chain(path)
    assert (found.n_unchained, found.first, found.end.number) == (3, 1, 1)
    path.write_text(path.read_text().replace('"old"', '"odd"', 1))
    with pytest.raises(ConfigError, match="line 4 does not continue what is before it"):
        verify_chain(path)


def test_a_log_of_an_older_release_alone_has_no_chain(path: Path) -> None:
    path.write_text(OLD)
    assert verify_chain(path).first == 0


def test_an_empty_or_missing_log_is_whole(path: Path) -> None:
    assert verify_chain(path).end.number == 0
    path.touch()
    assert verify_chain(path).end.number == 0


@pytest.mark.parametrize("before", ["", OLD])
@pytest.mark.parametrize("cut", [1, 30, -1])
def test_a_line_cut_short_by_a_crash_stays_and_the_next_start_says_so(path: Path, before: str, cut: int) -> None:
    path.write_text(before)
    write(path, "one", "two")
    content = path.read_bytes()
    whole = content[: content.rindex(b"\n", 0, -1) + 1]
    torn = content[len(whole) :][:cut]
    path.write_bytes(whole + torn)
    verify_chain(path)  # a process may be writing it
    Audit(path).open()
    assert torn in path.read_bytes().splitlines()
    *_, last = map(json.loads, path.read_text().splitlines()[-1:])
    assert last["decision"] == REPAIRED
    write(path, "three")
    assert verify_chain(path).n_repaired == 1
    path.write_bytes(path.read_bytes().replace(torn + b"\n", b"x\n"))
    with pytest.raises(ConfigError):
        verify_chain(path)


def test_a_torn_line_of_an_older_release_is_reported_too(path: Path) -> None:
    path.write_text(OLD + OLD[:20])
    write(path, "one")
    assert verify_chain(path).n_unchained == 2
    assert [json.loads(line)["decision"] for line in path.read_text().splitlines()[2:]] == [REPAIRED, "ended"]


def test_a_full_file_gets_another_name_and_the_chain_goes_on(path: Path) -> None:
    names = [f"job-{number}" for number in range(30)]
    write(path, *names[:15], max_bytes=1000)
    write(path, *names[15:], max_bytes=1000)
    files = log_files(path)
    assert len(files) == 5
    assert all(file.stat().st_size < 1300 for file in files)
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert jobs(path) == names
    assert verify_chain(path).end.number == 30
    files[3].unlink()
    with pytest.raises(ConfigError, match="lines were removed"):
        verify_chain(path)


def test_old_files_may_be_moved_away(path: Path) -> None:
    write(path, *"abcdefghijklmnop", max_bytes=1000)
    files = log_files(path)
    for file in files[:2]:
        file.unlink()
    assert verify_chain(path).first > 1


def test_the_file_may_be_moved_away_while_the_process_runs(path: Path) -> None:
    audit = Audit(path)
    audit.open()
    audit.ended(Outcome.FINISHED, job="one")
    path.rename(path.with_name("moved"))
    audit.ended(Outcome.FINISHED, job="two")
    found = verify_chain(path)
    assert (found.first, found.end.number) == (2, 2)


def test_the_last_file_may_be_empty(path: Path) -> None:
    write(path, *"abcdef", max_bytes=500)
    (*_, last), n_lines = log_files(path), verify_chain(path).end.number
    last.rename(path.with_name("audit-000000000006.jsonl"))
    path.touch()
    write(path, "later", max_bytes=500)
    assert verify_chain(path).end.number == n_lines + 1


def test_threads_write_one_chain(path: Path) -> None:
    audit = Audit(path)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: audit.ended(Outcome.FINISHED, job=str(number)), range(200)))
    assert verify_chain(path).end.number == 200


def test_a_killed_process_leaves_a_log_that_can_be_repaired(path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from trilateral.common.observe.audit import Audit\n"
        "from trilateral.common.base.outcome import Outcome\n"
        "audit = Audit(Path(sys.argv[1])); audit.open(); print(flush=True)\n"
        "while True: audit.ended(Outcome.FINISHED, job='x' * 300)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
    write(path, "after")
    verify_chain(path)


def test_a_log_that_cannot_be_read_is_named(path: Path) -> None:
    path.mkdir()
    with pytest.raises(ConfigError, match=f"the audit log {path} cannot be read: Is a directory"):
        verify_chain(path)


def test_a_log_that_cannot_be_opened_does_not_keep_the_process_from_starting(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.mkdir()
    Audit(path).open()
    assert f"cannot write the audit log {path}" in caplog.text
    os.rmdir(path)
    write(path, "one")
