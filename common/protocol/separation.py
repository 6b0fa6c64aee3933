"""What shows that features separate the labels, and what both parties are told about it.

If some combination of features separates the labels of all rows, or of some rows without an error elsewhere, then the
likelihood has no maximum: see A. Albert and J. A. Anderson, Biometrika 71 (1984). A training on shares ends all the
same, because its loss rises again beyond `max_score` and its gradients are rounded. Neither the coordinator nor a
party alone sees every case, so each party tells the other the signs that its own part of the model has (`Sign`).
"""

from collections.abc import Mapping
from enum import IntFlag

from trilateral.common.base.roles import PARTIES, Role

MAX_ERROR = 5.0
"""The largest standard error of a party's part of the score of a training row that is no sign. The odds of the row
are then uncertain by a factor of e^10 = 22,000 to both sides. If both labels occur among the rows that determine a
weight, it has the information of half a row or more, and a standard error below 2."""

SEPARATION = "complete or quasi-complete separation"
"""What every warning about separation contains."""
_WAY_OUT = "leave out the feature, merge its categories, or set `l2` and leave out `inference`"
_NO_MAXIMUM = "the likelihood has no maximum, and weights, standard errors, p-values and the fit say nothing"


class Sign(IntFlag):
    """What a party's own part of the model shows."""

    WIDE = 1
    """Its part of the score of a training row exceeds half of `max_score`."""
    BEYOND = 2
    """Its part of the score of a training row exceeds `max_score`."""
    UNCERTAIN = 4
    """The standard error of its part of the score of a training row exceeds `MAX_ERROR`."""


ALL_SIGNS = Sign.WIDE | Sign.BEYOND | Sign.UNCERTAIN


def signs_of(largest_score: float, largest_error: float, max_score: float) -> Sign:
    """Return the signs of a party's part.

    Args:
        largest_score: the largest size of its part of the score of a training row.
        largest_error: the largest standard error of that part, without the intercept; 0 if it is not known.
        max_score: of the job.
    """
    found = Sign(0)
    if largest_score > max_score / 2:
        found |= Sign.WIDE
    if largest_score > max_score:
        found |= Sign.BEYOND
    if largest_error > MAX_ERROR:
        found |= Sign.UNCERTAIN
    return found


def separated_by(features: str) -> str:
    """Return the warning that some features separate the labels.

    Args:
        features: which ones, as the subject of a sentence.
    """
    return (
        f"{SEPARATION}: {features} separate the labels of some or all training rows, or nearly so. If they do,"
        f" {_NO_MAXIMUM}; {_WAY_OUT}"
    )


OF_BOTH = (
    "columns of the host and of the guest almost depend on each other: either they say nearly the same (collinearity),"
    f" so leave out a feature that both have; or features of one or both separate labels ({SEPARATION}), and"
    f" {_NO_MAXIMUM}; {_WAY_OUT}"
)


def of_party(party: Role) -> str:
    """Return the warning that a party's features separate the labels."""
    return separated_by(f"features of the {party}")


def warnings_of(
    signs: Mapping[Role, Sign], *, max_score: float, is_known: bool, depends: bool
) -> tuple[list[str], bool]:
    """Return the warnings that follow from the signs of both parties, the same ones for both.

    Args:
        signs: of each party.
        max_score: of the job.
        is_known: whether the coordinator has warned of separation, so that large errors need no further warning.
        depends: whether columns of the parties depend on each other. Then the parts of both parties may be large and
            uncertain, and cancel in the score of every row.

    Returns:
        The warnings, and whether features may separate the labels.
    """
    found: list[str] = []
    beyond = [party for party in PARTIES if Sign.BEYOND in signs[party]]
    uncertain = [party for party in PARTIES if Sign.UNCERTAIN in signs[party]]
    if depends:
        # Large parts of both cancel if the columns say the same, and add up if they separate labels.
        if beyond or uncertain or all(Sign.WIDE in each for each in signs.values()):
            found.append(OF_BOTH)
        beyond = []
    elif not is_known:
        found += map(of_party, uncertain)
    for party in beyond:
        found.append(
            f"{SEPARATION}, most likely: the {party}'s part of the score of a training row exceeds `max_score`,"
            f" {max_score:g}. If features separate the labels, {_NO_MAXIMUM}; {_WAY_OUT}. If they do not, set a larger"
            " `max_score`"
        )
    may_be_separated = is_known or bool(found)
    for party in PARTIES:
        if Sign.WIDE in signs[party] and party not in beyond:
            found.append(
                f"the {party}'s part of a score exceeds half of `max_score`, {max_score:g}: standard errors are wrong"
                " if scores of both parties together exceed it; set a larger `max_score`, or leave out features that"
                " separate the labels"
            )
    return found, may_be_separated
