"""Without a terminal, a long stage tells now and then how much is done and how long the rest takes."""

from trilateral.cli.guest import LINE_SECONDS, StageLines
from trilateral.guest_party.alignment import Stage


def test_a_stage_is_named_once_and_then_tells_the_time_left() -> None:
    now = 100.0
    lines = StageLines(lambda: now)
    assert lines.line(Stage("reading IDs", 0)) == "reading IDs"
    now += 2 * LINE_SECONDS
    assert lines.line(Stage("reading IDs", 0)) is None
    assert lines.line(Stage("intersecting IDs", 0, 4000)) == "intersecting IDs"
    now += LINE_SECONDS - 1
    assert lines.line(Stage("intersecting IDs", 900, 4000)) is None
    now += 1
    assert lines.line(Stage("intersecting IDs", 1000, 4000)) == "intersecting IDs: 1,000 of 4,000, about 30 s left"
    assert lines.line(Stage("intersecting IDs", 1001, 4000)) is None
    now += 3 * LINE_SECONDS
    assert lines.line(Stage("intersecting IDs", 4000, 4000)) is None
