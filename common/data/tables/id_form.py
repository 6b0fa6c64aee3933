"""The normal form of IDs, in which different spellings of one ID are equal.

Both parties must use the same rules, so each tells the other which ones it applies; see `IdForm`.

An ID of several columns is one text: its parts, joined by `SEPARATOR`. No part holds the separator, so ("a", "bc") and
("ab", "c") are different IDs.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import ne
from types import MappingProxyType
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trilateral.common.config.dataset import DatasetConfig, IdForm
from trilateral.common.data.tables.arrow_arrays import bytes_of, from_booleans, from_texts, to_booleans
from trilateral.common.data.tables.id_list import Ids

SEPARATOR = "\x1f"
"""Between the parts of an ID of several columns: the unit separator of ASCII, which no keyboard writes."""

SEPARATOR_TEXT = from_texts([SEPARATOR]).cast(pa.large_string())[0]
"""The same as a value of Arrow."""

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

_ASCII_SPACES = "\t\n\v\f\r\x1c\x1d\x1e\x1f "
"""The white space of ASCII, as Python's `str.strip` defines it."""
_FIRST_VISIBLE, _LAST_VISIBLE = ord("!"), ord("~")
_SPACE_BYTES, _OTHER_BYTES = np.zeros(256, dtype=bool), np.zeros(256, dtype=bool)
_SPACE_BYTES[[*_ASCII_SPACES.encode()]] = True
_OTHER_BYTES[128:] = True


@dataclass(frozen=True)
class NormalIds:
    """IDs in their normal form.

    Attributes:
        ids: the IDs, in the order of the original ones.
        changed: for each rule of the form, by name, how many IDs it has changed.
    """

    ids: Ids
    changed: dict[str, int]

    @classmethod
    def join(cls, parts: Sequence["NormalIds"]) -> Self:
        """Return the IDs of all parts, one part after the other. There must be a part."""
        changed = {rule: sum(part.changed[rule] for part in parts) for rule in parts[0].changed}
        return cls(Ids.join([part.ids for part in parts]), changed)


def form_of(dataset: DatasetConfig) -> list[str]:
    """Describe the form of a dataset's IDs to the other party, whose form must be the same.

    Returns:
        The names of the rules, in order, and the number of columns if there are several.
    """
    n_columns = len(dataset.id_columns)
    return _rules(dataset.id_form) + ([f"{n_columns}_columns"] if n_columns > 1 else [])


def normalise(ids: Ids, form: IdForm, n_columns: int = 1) -> NormalIds:
    """Bring IDs to their normal form.

    Args:
        ids: the IDs as they are written, their parts joined by `SEPARATOR` if there are several columns.
        form: the rules, which apply to each part.
        n_columns: the number of columns of an ID.
    """
    texts, changed = ids.texts, {}
    parts = pc.split_pattern(texts, SEPARATOR) if n_columns > 1 else None
    if parts is not None:
        texts = parts.flatten()
    for rule in _rules(form):
        before, texts = texts, _APPLY[rule](texts)
        changed[rule] = 0 if texts is before else int(np.count_nonzero(to_booleans(pc.not_equal(before, texts))))
    if parts is not None:
        texts = pc.binary_join(pa.ListArray.from_arrays(parts.offsets, texts), SEPARATOR_TEXT)
    return NormalIds(Ids(texts), changed)


def are_blank(texts: pa.LargeStringArray) -> NDArray[np.bool_]:
    """Return which texts are empty or hold only white space, shape (n_texts,)."""
    starts, _ = bytes_of(_trim(texts))
    blank: NDArray[np.bool_] = starts[1:] == starts[:-1]
    return blank


# --- the rules, for many IDs at a time
#
# Each gives what the function of `RULES` gives for each ID. Most tables need no change, so each looks first for bytes
# without which the rule changes nothing, and then returns the array that it was given. Letters beyond ASCII are left to
# Python, because Arrow knows another version of Unicode.


def _trim(texts: pa.LargeStringArray) -> pa.LargeStringArray:
    _, content = bytes_of(texts)
    if not (content - np.uint8(_FIRST_VISIBLE) > _LAST_VISIBLE - _FIRST_VISIBLE).any():
        return texts
    if _edges_in(texts, _SPACE_BYTES).any():
        texts = pc.ascii_trim(texts, _ASCII_SPACES)
    return _by_hand(texts, _edges_in(texts, _OTHER_BYTES), RULES["spaces"])


def _compose(texts: pa.LargeStringArray) -> pa.LargeStringArray:
    return _by_hand(texts, _beyond_ascii(texts), RULES["unicode"])


def _fold(texts: pa.LargeStringArray) -> pa.LargeStringArray:
    _, content = bytes_of(texts)
    has_capitals = ((content >= ord("A")) & (content <= ord("Z"))).any()
    lower = pc.ascii_lower(texts) if has_capitals else texts
    others = _beyond_ascii(texts)
    if not others.any():
        return lower
    folded = from_texts([RULES["case"](one) for one in texts.filter(from_booleans(others)).to_pylist()])
    return pc.replace_with_mask(lower, from_booleans(others), folded.cast(lower.type))


def _drop_decimals(texts: pa.LargeStringArray) -> pa.LargeStringArray:
    if not (bytes_of(texts)[1] == ord(".")).any():
        return texts
    return pc.replace_substring_regex(texts, rf"\A{_DECIMALS.pattern}\z", r"\1")


def _drop_zeros(texts: pa.LargeStringArray) -> pa.LargeStringArray:
    starts, content = bytes_of(texts)
    if not (content[starts[:-1][starts[:-1] < len(content)]] == ord("0")).any():
        return texts
    return pc.replace_substring_regex(texts, rf"\A{_ZEROS.pattern}\z", r"\1")


_APPLY: Mapping[str, Callable[[pa.LargeStringArray], pa.LargeStringArray]] = MappingProxyType(
    {"spaces": _trim, "unicode": _compose, "case": _fold, "decimals": _drop_decimals, "zeros": _drop_zeros}
)


def _by_hand(texts: pa.LargeStringArray, which: NDArray[np.bool_], apply: Callable[[str], str]) -> pa.LargeStringArray:
    """Apply a rule to some of the texts, one by one."""
    if not which.any():
        return texts
    mask = from_booleans(which)
    before = texts.filter(mask).to_pylist()
    after = list(map(apply, before))
    if not any(map(ne, before, after)):
        return texts
    return pc.replace_with_mask(texts, mask, from_texts(after).cast(texts.type))


def _beyond_ascii(texts: pa.LargeStringArray) -> NDArray[np.bool_]:
    if not (bytes_of(texts)[1] > 127).any():
        return np.zeros(len(texts), dtype=bool)
    return ~to_booleans(pc.string_is_ascii(texts))


def _edges_in(texts: pa.LargeStringArray, table: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which texts begin or end with a byte for which the table, shape (256,), has True."""
    starts, content = bytes_of(texts)
    found = np.zeros(len(texts), dtype=bool)
    filled = np.flatnonzero(np.diff(starts))
    found[filled] = table[content[starts[filled]]] | table[content[starts[filled + 1] - 1]]
    return found


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
