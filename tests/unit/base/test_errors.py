"""Errors name numbers of things with the right words."""

from trilateral.common.base.errors import Counted


def test_one_thing_and_several_things_have_words_of_their_own() -> None:
    said = [f"{Counted(number):row repeats|rows repeat} an ID" for number in (0, 1, 2, 12_345)]
    assert said == ["0 rows repeat an ID", "1 row repeats an ID", "2 rows repeat an ID", "12,345 rows repeat an ID"]
    assert f"in {Counted(1)} of 9 rows" == "in 1 of 9 rows"
