"""Pages of an audit log show the newest lines first, over all of its files, without a gap."""

import json
from pathlib import Path

import pytest

from trilateral.common.base.roles import Role
from trilateral.common.observe import audit_page
from trilateral.common.observe.audit import Audit
from trilateral.common.observe.audit_page import read_audit_page
from trilateral.common.rpc.access import Caller

N_LINES = 300


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of several files."""
    path = tmp_path / "audit.jsonl"
    audit = Audit(path, max_bytes=20_000)
    for number in range(N_LINES):
        audit.allowed(Caller(Role.GUEST if number % 3 else Role.HOST), "OpenJob", job=f"job-{number}", of="x" * 40)
    assert len(list(tmp_path.iterdir())) > 3
    return path


def numbers(path: Path, before: int | None = None, n_lines: int = 50) -> tuple[list[int], int | None]:
    page = read_audit_page(path, lambda line: True, before=before, n_lines=n_lines)
    return [line["number"] for line in page.lines], page.before


@pytest.mark.parametrize("block", [100, 64 * 1024])
def test_all_pages_together_have_each_line_once(block: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_page, "BLOCK_BYTES", block)
    found, before = numbers(path, n_lines=70)
    while before is not None:
        more, before = numbers(path, before, n_lines=70)
        assert more
        found += more
    assert found == list(range(N_LINES, 0, -1))


def test_the_last_page_says_that_there_is_no_other(path: Path) -> None:
    assert numbers(path, before=4) == ([3, 2, 1], None)
    assert numbers(path, before=1) == ([], None)


def test_a_filter_shows_its_lines_only(path: Path) -> None:
    page = read_audit_page(path, lambda line: line["role"] == "host", n_lines=2)
    assert [line["job"] for line in page.lines] == ["job-297", "job-294"]
    assert "previous" not in page.lines[0]


def test_a_long_search_ends_and_can_go_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_page, "MAX_LOOKED_AT", 100)
    before: int | None = None
    found = []
    for _ in range(3):
        page = read_audit_page(path, lambda line: line["job"] == "job-0", before=before)
        found += [line["number"] for line in page.lines]
        before = page.before
    assert (found, before) == ([1], None)


def test_a_line_that_is_being_written_is_left_out(path: Path) -> None:
    with path.open("a") as file:
        file.write('{"time": "2026')
    assert numbers(path, n_lines=1)[0] == [N_LINES]


def test_lines_without_a_number_and_of_other_programs_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text(json.dumps({"time": "2026-01-01", "decision": "allowed"}) + "\n")
    Audit(path).allowed(Caller(None), "OpenJob")
    with path.open("a") as file:
        file.write('{x "number": 2, "previous": "' + "0" * 64 + '"}\n')
    assert numbers(path) == ([1], None)


def test_there_may_be_no_log(tmp_path: Path) -> None:
    assert numbers(tmp_path / "audit.jsonl") == ([], None)


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_line_that_no_process_writes_is_left_out_and_read_in_little_memory(
    is_whole: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_page, "BLOCK_BYTES", 100)
    monkeypatch.setattr(audit_page, "MAX_LINE_BYTES", 1000)
    end = b'"number": 999, "previous": "' + b"0" * 64 + b'"}\n'
    with path.open("ab") as file:
        file.write(bytes(5000) + (end if is_whole else b""))
    assert numbers(path, n_lines=3)[0] == [N_LINES, N_LINES - 1, N_LINES - 2]


def test_a_line_that_is_nested_too_deeply_is_left_out(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"[" * 100_000 + b'{"number": 999, "previous": "' + b"0" * 64 + b'"}\n')
    assert numbers(path, n_lines=1)[0] == [N_LINES]
