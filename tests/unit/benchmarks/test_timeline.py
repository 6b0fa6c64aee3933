"""The timeline of a job, from notes that are written here by hand."""

from benchmarks.timeline import FIRST_ROUND, LAST_STEP, Span, Step, make_timeline
from trilateral.common.base.roles import Role

MS = 1_000_000


def note(begins: int, ms: int, step: str, processor_ms: int = 0) -> Span:
    return begins * MS, (begins + ms) * MS, 7 * MS, (7 + processor_ms) * MS, step


NOTES = {
    Role.COORDINATOR: [
        note(10, 20, "generate the key", 15),
        note(100, 2, FIRST_ROUND),
        note(150, 2, FIRST_ROUND),
        note(200, 2, LAST_STEP),
    ],
    Role.HOST: [
        note(1, 1, "of an earlier job"),
        note(40, 30, "read the table", 25),
        note(120, 1, "write to the journal", 1),
        note(205, 4, "write the model", 3),
    ],
}


def test_the_timeline_has_the_steps_before_and_after_the_rounds_in_order() -> None:
    found = make_timeline(NOTES, 5 * MS, 210 * MS)
    assert [(each.process, each.step) for each in found.steps] == [
        ("coordinator", "generate the key"),
        ("host", "read the table"),
        ("coordinator", LAST_STEP),
        ("host", "write the model"),
    ]
    assert found.steps[0] == Step("coordinator", "generate the key", 0.005, 0.02, 0.015)


def test_start_rounds_and_end_are_the_whole_job() -> None:
    found = make_timeline(NOTES, 5 * MS, 210 * MS)
    assert (found.start, found.rounds, found.end) == (0.095, 0.1, 0.01)
    assert "start 0.095 s, rounds 0.100 s, end 0.010 s" in str(found)
