"""The audit log has a line for each decision, and nothing is permitted that it cannot take down."""

import json
import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.outcome import Outcome
from trilateral.common.base.roles import Role
from trilateral.common.observe import audit as audit_module
from trilateral.common.observe.audit import MAX_REFUSALS, Audit
from trilateral.common.observe.audit_chain import verify_chain


@dataclass(frozen=True)
class Asking:
    role: Role | None
    names: frozenset[str] = frozenset()


COORDINATOR = Asking(Role.COORDINATOR, frozenset({"coordinator.example.org"}))


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 2, 3, 4, 5, 678_900, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_chain(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in ("number", "previous")}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def test_a_line_says_when_who_what_and_what_was_decided(path: Path) -> None:
    audit = Audit(path, Clock())
    audit.allowed(COORDINATOR, "OpenJob", job="credit", run="00ff")
    audit.refused(Asking(None), "StartJob", "a caller\nwithout a role")
    audit.ended(Outcome.FINISHED, job="credit")
    time = "2026-01-02T03:04:05.678+00:00"
    assert list(map(without_chain, lines(path))) == [
        {
            "time": time,
            "decision": "allowed",
            "role": "coordinator",
            "certificate": ["coordinator.example.org"],
            "method": "OpenJob",
            "job": "credit",
            "run": "00ff",
        },
        {
            "time": time,
            "decision": "refused",
            "role": None,
            "certificate": [],
            "method": "StartJob",
            "reason": "a caller without a role",
        },
        {"time": time, "decision": "ended", "job": "credit", "result": "finished"},
    ]


def test_only_its_user_reads_it_and_it_is_only_added_to(path: Path) -> None:
    Audit(path).ended(Outcome.FINISHED, job="one")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    Audit(path).ended(Outcome.FINISHED, job="two")
    assert [line["job"] for line in lines(path)] == ["one", "two"]


def test_what_cannot_be_taken_down_is_not_permitted(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "none" / "audit.jsonl")
    with pytest.raises(
        ConfigError, match="the audit log in the folder cannot be written .No such file or directory."
    ) as refusal:
        audit.allowed(COORDINATOR, "OpenJob", job="credit")
    assert str(tmp_path) not in str(refusal.value)
    audit.refused(COORDINATOR, "OpenJob", "no")  # is refused all the same
    audit.ended(Outcome.FAILED, job="credit")


def test_a_line_cut_short_by_a_full_disk_spoils_no_other(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = Audit(path)
    with monkeypatch.context() as full:
        write = os.write
        full.setattr(os, "write", lambda handle, data: write(handle, data[:10]))
        with pytest.raises(ConfigError, match="only a part of a line"):
            audit.allowed(COORDINATOR, "OpenJob", job="one")
    audit.allowed(COORDINATOR, "OpenJob", job="two")
    torn, repaired, line = path.read_text().splitlines()
    assert len(torn) == 10
    assert json.loads(repaired)["decision"] == "repaired"
    assert json.loads(line)["job"] == "two"
    assert verify_chain(path).n_repaired == 1


def test_a_flood_of_refusals_fills_no_disk_and_hides_no_other_callers(path: Path) -> None:
    clock = Clock()
    audit = Audit(path, clock)
    for _ in range(1000):
        audit.refused(Asking(None), "OpenJob", "no")
    audit.refused(COORDINATOR, "OpenJob", "policy.min_batch")
    assert len(lines(path)) == MAX_REFUSALS + 1
    assert lines(path)[-1]["reason"] == "policy.min_batch"
    clock.now += timedelta(minutes=1)
    audit.refused(Asking(None), "OpenJob", "no")
    assert lines(path)[-1]["suppressed"] == 1000 - MAX_REFUSALS
    audit.refused(Asking(None), "OpenJob", "no")
    assert "suppressed" not in lines(path)[-1]


class Slow(dict[Any, Any]):
    """Lets other threads run after an entry was taken out."""

    def pop(self, *given: Any) -> Any:
        found = super().pop(*given)
        time.sleep(1e-4)
        return found


def test_refusals_in_several_threads_are_counted_together(path: Path) -> None:
    """Each job records its refusals in its own thread."""
    audit = Audit(path)
    audit._refusals = Slow()
    with ThreadPoolExecutor(8) as threads:
        for _ in range(200):
            threads.submit(audit.refused, COORDINATOR, "OpenJob", "no")
    (window,) = audit._refusals.values()
    assert (len(lines(path)), window.suppressed) == (MAX_REFUSALS, 200 - MAX_REFUSALS)


def test_callers_without_number_are_not_all_remembered(path: Path) -> None:
    audit = Audit(path)
    for number in range(3 * audit_module.MAX_CALLERS):
        audit.refused(Asking(None, frozenset({f"{number}.example.org"})), "OpenJob", "no" * 1000)
    assert len(audit._refusals) == audit_module.MAX_CALLERS
    assert len(lines(path)[0]["reason"]) == audit_module.MAX_REASON
