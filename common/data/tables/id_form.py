"""The normal form of IDs, in which different spellings of one ID are equal.

Both parties must use the same rules, so each tells the other which ones it applies; see `IdForm`.

An ID of several columns is one text: its parts, joined by `SEPARATOR`. No part holds the separator, so ("a", "bc") and
("ab", "c") are different IDs.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import ne
from types import MappingProxyType

from trilateral.common.config.dataset import DatasetConfig, IdForm

SEPARATOR = "\x1f"
"""Between the parts of an ID of several columns: the unit separator of ASCII, which no keyboard writes."""

_DECIMALS = re.compile(r"([+-]?[0-9]+)\.0+")
_ZEROS = re.compile(r"0+([0-9]+)")


def _without_zeros(one: str) -> str:
    found = _ZEROS.fullmatch(one)
    # The expression takes all leading zeros but leaves at least one digit.
    return found[1] if found else one


def _without_decimals(one: str) -> str:
    found = _DECIMALS.fullmatch(one)
    return found[1] if found else one


def _composed(one: str) -> str:
    return one if one.isascii() else unicodedata.normalize("NFC", one)


def _folded(one: str) -> str:
    """Apply the canonical caseless form of the Unicode standard, definition D145 in section 3.13, then compose it."""
    if one.isascii():
        return one.lower()
    # Folding a composed letter can reorder its marks, and then the result would change if it were folded again.
    return _composed(unicodedata.normalize("NFD", one).casefold())


RULES: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {
        "spaces": str.strip,
        "unicode": _composed,
        "case": _folded,
        "decimals": _without_decimals,
        "zeros": _without_zeros,
    }
)
"""The rules by the name of their setting, in the order in which they apply."""

_HAS_NONE: Mapping[str, Callable[[str], bool]] = MappingProxyType(
    {
        "spaces": lambda text: text.split(maxsplit=1) == [text],
        "unicode": str.isascii,
        "case": lambda text: text.isascii() and text == text.lower(),
        "decimals": lambda text: "." not in text,
        "zeros": lambda text: not text.startswith("0") and "\0" + "0" not in text,
    }
)
"""For each rule, a quick look at many IDs, with NUL between them. If it returns True, the rule changes none of them."""
_IDS_AT_A_TIME = 65_536


@dataclass(frozen=True)
class NormalIds:
    """IDs in their normal form.

    Attributes:
        ids: the IDs, in the order of the original ones.
        changed: for each rule of the form, by name, how many IDs it has changed.
    """

    ids: list[str]
    changed: dict[str, int]


def form_of(dataset: DatasetConfig) -> list[str]:
    """Describe the form of a dataset's IDs to the other party, whose form must be the same.

    Returns:
        The names of the rules, in order, and the number of columns if there are several.
    """
    n_columns = len(dataset.id_columns)
    return _rules(dataset.id_form) + ([f"{n_columns}_columns"] if n_columns > 1 else [])


def normalise(ids: Iterable[str], form: IdForm, n_columns: int = 1) -> NormalIds:
    """Bring IDs to their normal form.

    Args:
        ids: the IDs as they are written, their parts joined by `SEPARATOR` if there are several columns.
        form: the rules, which apply to each part.
        n_columns: the number of columns of an ID.
    """
    result, changed = list(ids), {}
    if n_columns > 1:
        result = [part for one in result for part in one.split(SEPARATOR)]
    for rule in _rules(form):
        result, changed[rule] = _apply(rule, result)
    if n_columns > 1:
        parts = (result[column::n_columns] for column in range(n_columns))
        result = list(map(SEPARATOR.join, zip(*parts, strict=True)))
    return NormalIds(result, changed)


def _apply(rule: str, ids: list[str]) -> tuple[list[str], int]:
    """Apply a rule to each ID, and count the IDs that it changes."""
    apply, has_none = RULES[rule], _HAS_NONE[rule]
    result: list[str] = []
    n_changed = 0
    for first in range(0, len(ids), _IDS_AT_A_TIME):
        part = ids[first : first + _IDS_AT_A_TIME]
        if not has_none("\0".join(part)):
            before, part = part, [apply(one) for one in part]
            n_changed += sum(map(ne, before, part))
        result += part
    return result, n_changed


def _rules(form: IdForm) -> list[str]:
    return [rule for rule in RULES if getattr(form, rule)]


def describe_changes(changed: Mapping[str, int]) -> str:
    """Describe how many IDs each rule has changed, for people.

    Args:
        changed: counts by rule, as in `NormalIds`.

    Returns:
        The rules with their counts, separated by commas; empty if no rule has changed an ID.
    """
    return ", ".join(f"{rule}: {count:,}" for rule, count in changed.items() if count)
