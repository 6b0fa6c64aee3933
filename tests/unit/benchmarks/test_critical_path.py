"""The critical path of a round, from notes that are written here by hand."""

import subprocess
import sys
from typing import Any

import pytest

from benchmarks.critical_path import CriticalPath, Piece, Process, critical_path, pieces, profile, table
from trilateral.common.base.roles import Role

MS = 1_000_000


def _span(start: float, end: float, kind: str, busy: float = 1.0) -> tuple[int, int, int, int, str]:
    return round(start * MS), round(end * MS), 0, round((end - start) * busy * MS), kind


def _notes(
    job: str,
    spans: list[tuple[int, int, int, int, str]],
    crossings: list[tuple[float, str, Role, str]],
    exchanges: list[tuple[float, float, Role, str]],
) -> dict[str, Any]:
    return {
        "spans": {job: spans, "MainThread 1": []},
        "crossings": [(round(time * MS), moment, peer, message) for time, moment, peer, message in crossings],
        "exchanges": [(round(start * MS), round(end * MS), peer, message) for start, end, peer, message in exchanges],
    }


def _sent(peer: Role, message: str, made: float) -> list[tuple[float, str, Role, str]]:
    return [(made, "made", peer, message), (made + 1, "queued", peer, message), (made + 2, "sending", peer, message)]


def _processes() -> dict[str, Process]:
    """A round in which the host answers after 20 ms and the guest after 40 ms, of which 30 ms are arithmetic."""
    begin, following, ready = "BeginRound 1 1 0", "BeginRound 2 1 0", "BeginRound 0 1 0"
    coordinator = _notes(
        "coordinator-job_0",
        [_span(95, 99, "state machine", 0.5)],
        [
            *_sent(Role.HOST, begin, 10),
            *_sent(Role.GUEST, begin, 11),
            (35, "arrived", Role.HOST, "gradient 1 1 0"),
            (90, "arrived", Role.GUEST, "gradient 1 1 0"),
            *_sent(Role.HOST, following, 99),
        ],
        [
            (5, 12, Role.GUEST, ready),
            (36, 40, Role.HOST, "gradient 1 1 0"),
            (95, 100, Role.GUEST, "gradient 1 1 0"),
        ],
    )
    host = _notes(
        "host-job_0",
        [_span(20, 30, "arithmetic")],
        [(15, "arrived", Role.COORDINATOR, begin), *_sent(Role.COORDINATOR, "gradient 1 1 0", 30)],
        [(16, 31, Role.COORDINATOR, begin)],
    )
    guest = _notes(
        "guest-job_0",
        [_span(30, 70, "packing"), _span(35, 65, "arithmetic")],
        [(25, "arrived", Role.COORDINATOR, begin), *_sent(Role.COORDINATOR, "gradient 1 1 0", 80)],
        [(28, 81, Role.COORDINATOR, begin)],
    )
    return {
        Role.COORDINATOR: Process(Role.COORDINATOR, coordinator),
        Role.HOST: Process(Role.HOST, host),
        Role.GUEST: Process(Role.GUEST, guest),
    }


@pytest.fixture
def path() -> CriticalPath:
    return critical_path(_processes(), 1)


def test_the_path_goes_through_the_process_that_the_coordinator_waited_for(path: CriticalPath) -> None:
    assert [(sender, receiver) for sender, receiver, *_ in path.messages] == [
        (Role.GUEST, Role.COORDINATOR),
        (Role.COORDINATOR, Role.GUEST),
    ]


def test_the_parts_of_a_path_add_up_to_the_round(path: CriticalPath) -> None:
    assert path.nanoseconds == 89 * MS  # from 10 to 99
    assert sum(part.nanoseconds for part in path.parts) == path.nanoseconds


def test_a_call_within_a_call_is_not_counted_twice() -> None:
    assert pieces([_span(0, 10, "packing"), _span(2, 6, "arithmetic")]) == [
        Piece(0, 2 * MS, "packing", 1.0),
        Piece(2 * MS, 6 * MS, "arithmetic", 1.0),
        Piece(6 * MS, 10 * MS, "packing", 1.0),
    ]


def test_what_is_computed_ahead_is_randomness() -> None:
    found = pieces([_span(0, 10, "prepare"), _span(2, 6, "arithmetic")])
    assert [piece.kind for piece in found] == ["prepare", "randomness", "prepare"]


def test_the_profile_tells_arithmetic_from_the_rest(path: CriticalPath) -> None:
    found = profile([path])
    assert found["parts"]["arithmetic"][Role.GUEST] == 30
    assert found["parts"]["packing"][Role.GUEST] == 10
    assert found["not_arithmetic"] == round(1 - 30 / 89, 3)


def test_the_profile_shows_how_long_threads_had_no_processor(path: CriticalPath) -> None:
    assert profile([path])["waiting"]["state machine"] == 2


def test_the_table_names_the_messages_on_the_path(path: CriticalPath) -> None:
    assert "gradient from the guest to the coordinator" in table(profile([path]))


def test_the_recorder_finds_the_functions_that_it_replaces() -> None:
    subprocess.run([sys.executable, "-c", "from benchmarks.recorder import start; start()"], check=True)
