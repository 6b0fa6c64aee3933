"""What does not count when IDs are compared, rule by rule."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trilateral.common.config.dataset import IdForm
from trilateral.common.data.tables.id_form import RULES, describe_changes, normalise, rules_of

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
    ],
)
def test_each_rule_does_what_it_says_and_no_other_does(rule: str, written: str, normal: str) -> None:
    alone = normalise([written], IdForm.model_validate(NONE | {rule: True}))
    assert alone.ids == [normal]
    assert alone.changed == {rule: int(written != normal)}
    assert normalise([written], IdForm.model_validate(NONE)).ids == [written]


def test_by_default_case_and_leading_zeros_count() -> None:
    assert rules_of(IdForm()) == ["spaces", "unicode", "decimals"]
    normal = normalise([" 007.0", "AbC", "abc", "007"], IdForm())
    assert normal.ids == ["007", "AbC", "abc", "007"]
    assert normal.changed == {"spaces": 1, "unicode": 0, "decimals": 1}
    assert describe_changes(normal.changed) == "spaces: 1, decimals: 1"


@given(st.lists(st.text()))
def test_a_normal_form_stays_as_it_is(ids: list[str]) -> None:
    form = IdForm.model_validate(dict.fromkeys(RULES, True))
    once = normalise(ids, form)
    assert normalise(once.ids, form).ids == once.ids
    assert all(unicodedata.is_normalized("NFC", one) for one in once.ids)
