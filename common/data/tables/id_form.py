"""IDs in their normal form: what two ways of writing one ID have in common.

Both parties must bring their IDs to the same form, so each says by which rules it does; see `IdForm`.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from trilateral.common.config.dataset import IdForm

_DECIMALS = re.compile(r"([+-]?[0-9]+)\.0+")
_ZEROS = re.compile(r"0+(?=[0-9])")
_DIGITS = re.compile(r"[0-9]+")


def _without_zeros(one: str) -> str:
    return _ZEROS.sub("", one, count=1) if _DIGITS.fullmatch(one) else one


def _without_decimals(one: str) -> str:
    found = _DECIMALS.fullmatch(one)
    return found[1] if found else one


def _composed(one: str) -> str:
    return one if one.isascii() else unicodedata.normalize("NFC", one)


RULES: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {
        "spaces": str.strip,
        "unicode": _composed,
        # Folding can take a letter apart, so what it makes is composed again.
        "case": lambda one: _composed(one.casefold()),
        "decimals": _without_decimals,
        "zeros": _without_zeros,
    }
)
"""By the name of the setting, in the order in which they apply."""


@dataclass(frozen=True)
class NormalIds:
    """IDs in their normal form, in the order given.

    Attributes:
        ids: the IDs.
        changed: how many each rule has changed, by its name, for all rules of the form.
    """

    ids: list[str]
    changed: dict[str, int]


def rules_of(form: IdForm) -> list[str]:
    """Names of the rules that a form applies, in their order: what a party tells the other."""
    return [rule for rule in RULES if getattr(form, rule)]


def normalise(ids: Iterable[str], form: IdForm) -> NormalIds:
    """Bring IDs to their normal form."""
    result, changed = list(ids), {}
    for rule in rules_of(form):
        apply = RULES[rule]
        after = [apply(one) for one in result]
        changed[rule] = sum(one != other for one, other in zip(result, after, strict=True))
        result = after
    return NormalIds(result, changed)


def describe_changes(changed: Mapping[str, int]) -> str:
    """Which rules have changed how many IDs, for people; empty if none did."""
    return ", ".join(f"{rule}: {count:,}" for rule, count in changed.items() if count)
