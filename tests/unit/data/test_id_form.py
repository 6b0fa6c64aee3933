"""What does not count when IDs are compared, rule by rule."""

import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trilateral.common.config.dataset import DatasetConfig, IdForm
from trilateral.common.data.tables.id_form import RULES, SEPARATOR, describe_changes, form_of, normalise
from trilateral.common.data.tables.id_list import Ids

NONE = dict.fromkeys(RULES, False)


@pytest.mark.parametrize(
    ("rule", "written", "normal"),
    [
        ("spaces", " 17\t", "17"),
        ("spaces", "\u00a017\u2003\n", "17"),
        ("spaces", "1 7", "1 7"),
        ("unicode", "Jose\u0301", "Jos\u00e9"),
        ("unicode", "\u212b", "\u00c5"),
        ("unicode", "\uff11", "\uff11"),
        ("case", "aB-\u00c9", "ab-\u00e9"),
        ("case", "STRASSE \u00df", "strasse ss"),
        ("decimals", "17.0", "17"),
        ("decimals", "-0017.000", "-0017"),
        ("decimals", "17.50", "17.50"),
        ("decimals", "1.0.0", "1.0.0"),
        ("decimals", "a.0", "a.0"),
        ("decimals", "\u0663.0", "\u0663.0"),
        ("zeros", "0017", "17"),
        ("zeros", "0000", "0"),
        ("zeros", "00A1", "00A1"),
        ("zeros", "0", "0"),
        ("zeros", "24012", "24012"),
        ("zeros", "-0017", "-0017"),
        ("case", "\u03ac\u0345\u0301", "\u03ac\u0301\u03b9"),
    ],
)
def test_each_rule_does_what_it_says_and_no_other_does(rule: str, written: str, normal: str) -> None:
    alone = normalise(Ids.of([written]), IdForm.model_validate(NONE | {rule: True}))
    assert alone.ids == [normal]
    assert alone.changed == {rule: int(written != normal)}
    assert normalise(Ids.of([written]), IdForm.model_validate(NONE)).ids == [written]


def test_by_default_case_and_leading_zeros_count() -> None:
    assert form_of(DatasetConfig(path=Path("t.csv"))) == ["spaces", "unicode", "decimals"]
    normal = normalise(Ids.of([" 007.0", "AbC", "abc", "007"]), IdForm())
    assert normal.ids == ["007", "AbC", "abc", "007"]
    assert normal.changed == {"spaces": 1, "unicode": 0, "decimals": 1}
    assert describe_changes(normal.changed) == "spaces: 1, decimals: 1"


@given(st.lists(st.text(st.sampled_from("0a.A\0 \u00e9\u0301\x1e"), max_size=5)))
def test_many_ids_become_what_each_becomes_alone(ids: list[str]) -> None:
    for rule, apply in RULES.items():
        normal = normalise(Ids.of(ids), IdForm.model_validate(NONE | {rule: True}))
        assert normal.ids == [apply(one) for one in ids]
        assert normal.changed == {rule: sum(apply(one) != one for one in ids)}


def test_an_id_that_a_rule_changes_is_found_among_very_many() -> None:
    ids = [str(number) for number in range(200_000)]
    normal = normalise(Ids.of([*ids[:150_000], " 7.0", *ids[150_000:]]), IdForm())
    assert normal.ids == [*ids[:150_000], "7", *ids[150_000:]]
    assert normal.changed == {"spaces": 1, "unicode": 0, "decimals": 1}


@given(st.lists(st.text()))
def test_a_normal_form_stays_as_it_is(ids: list[str]) -> None:
    form = IdForm.model_validate(dict.fromkeys(RULES, True))
    once = normalise(Ids.of(ids), form)
    assert normalise(once.ids, form).ids == once.ids
    assert all(unicodedata.is_normalized("NFC", one) for one in once.ids)


# --- what each rule promises, against a definition of its own

AWKWARD = st.text(
    st.sampled_from(
        "0019+-.aAsS\u00df\u1e9e\u03c2\u03c3\u03a3"
        "\u03ac\u0386\u1fb3\u0345\u0131\u0130\u00e9\u00c5\u00c5\u031b\u0323\u0301\u0308 \t  \u0663\uff11"
    ),
    max_size=8,
)
NUMBERS = st.builds(
    lambda sign, zeros, digits, end: f"{sign}{'0' * zeros}{digits}{end}",
    st.sampled_from(["", "", "", "+", "-"]),
    st.integers(0, 3),
    st.integers(0, 30_000),
    st.sampled_from(["", "", ".0", ".000", ".", ".5", " "]),
)
IDS = st.one_of(NUMBERS, AWKWARD, st.text())


def core(one: str) -> str:
    inner = [place for place, letter in enumerate(one) if not letter.isspace()]
    return one[inner[0] : inner[-1] + 1] if inner else ""


def is_number(one: str) -> bool:
    return one != "" and all(letter in "0123456789" for letter in one)


def whole(one: str) -> str:
    """The part before a decimal point that only zeros follow."""
    before, point, after = one.partition(".")
    unsigned = before[1:] if before[:1] in {"+", "-"} else before
    return before if point and is_number(unsigned) and is_number(after) and not int(after) else one


def caseless(one: str) -> str:
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", one).casefold())


SAME: Mapping[str, Callable[[str, str], bool]] = {
    "spaces": lambda one, other: core(one) == core(other),
    "unicode": lambda one, other: unicodedata.normalize("NFD", one) == unicodedata.normalize("NFD", other),
    "case": lambda one, other: caseless(one) == caseless(other),
    "decimals": lambda one, other: whole(one) == whole(other),
    "zeros": lambda one, other: one == other or (is_number(one) and is_number(other) and int(one) == int(other)),
}
"""When two IDs are the same by one rule alone."""


@st.composite
def pairs(draw: st.DrawFn) -> tuple[str, str]:
    """Two IDs that may be one ID in two spellings."""
    one = draw(IDS)
    respelt = st.sampled_from(
        [
            one,
            f"0{one}",
            f"{one[:1]}0{one[1:]}",
            one.replace("0", ""),
            one.lstrip("0"),
            f"{one}.0",
            f"{one}0",
            f" {one}\u2003",
            one.swapcase(),
            unicodedata.normalize("NFC", one),
            unicodedata.normalize("NFD", one),
        ]
    )
    return one, draw(st.one_of(respelt, IDS))


@pytest.mark.parametrize("rule", RULES)
@given(pair=pairs())
def test_two_ids_are_equal_by_a_rule_only_if_they_are_the_same_as_it_defines(rule: str, pair: tuple[str, str]) -> None:
    one, other = pair
    normal = normalise(Ids.of(pair), IdForm.model_validate(NONE | {rule: True})).ids
    assert (normal[0] == normal[1]) == SAME[rule](one, other)


@given(st.lists(IDS), st.fixed_dictionaries({rule: st.booleans() for rule in RULES}))
def test_every_form_of_a_normal_form_is_itself(ids: list[str], rules: dict[str, bool]) -> None:
    form = IdForm.model_validate(rules)
    once = normalise(Ids.of(ids), form)
    twice = normalise(once.ids, form)
    assert twice.ids == once.ids
    assert not any(twice.changed.values())


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.integers(0, 4), st.integers(0, 4))
def test_padding_never_joins_two_numbers(one: int, other: int, first: int, second: int) -> None:
    form = IdForm(zeros=True)
    normal = normalise(Ids.of([f"{'0' * first}{one}", f"{'0' * second}{other}"]), form).ids
    assert normal == [str(one), str(other)]


@pytest.mark.parametrize("written", ["24012", "100", "10", "1001", "90909"])
def test_a_zero_within_a_number_stays(written: str) -> None:
    assert normalise(Ids.of([written, f"00{written}"]), IdForm(zeros=True)).ids == [written, written]


def test_the_form_says_how_many_columns_an_id_has() -> None:
    dataset = DatasetConfig(path=Path("t.csv"), id=["country", "number"])
    assert form_of(dataset) == ["spaces", "unicode", "decimals", "2_columns"]
    assert form_of(DatasetConfig(path=Path("t.csv"), id=["number"])) == ["spaces", "unicode", "decimals"]


PART = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=SEPARATOR))
PARTS = st.lists(st.tuples(PART, PART), unique=True)


@given(PARTS)
def test_ids_of_several_columns_are_equal_only_if_all_parts_are(parts: list[tuple[str, str]]) -> None:
    form = IdForm.model_validate(NONE)
    assert len(set(normalise(Ids.of(map(SEPARATOR.join, parts)), form, 2).ids)) == len(parts)


@given(PARTS)
def test_the_rules_apply_to_each_part(parts: list[tuple[str, str]]) -> None:
    form = IdForm.model_validate(dict.fromkeys(RULES, True))
    columns = [normalise(Ids.of(column), form).ids for column in zip(*parts, strict=True)]
    assert normalise(Ids.of(map(SEPARATOR.join, parts)), form, 2).ids == [
        SEPARATOR.join(each) for each in zip(*columns, strict=True)
    ]
