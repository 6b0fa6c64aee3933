"""The guest reads values of the host's columns in the reason codes of rows.

A code tells whether a column raises the score. Of a column with two values, that is the value itself.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.support.frames import features_of
from trilateral.common.base.errors import PolicyError
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig, PreprocessingConfig
from trilateral.common.config.process import Policy
from trilateral.common.data.model.reasons import NONE, Reasons
from trilateral.common.data.preprocessing import Preprocessing
from trilateral.common.jobs.account import Account
from trilateral.common.jobs.ledger import Ledger, point_of, reason_point
from trilateral.common.jobs.policy import PREDICTION, check_prediction
from trilateral.common.protocol.evaluation import round_scores

N_ROWS = 2_000
RNG = np.random.default_rng(8)
FLAG = RNG.random(N_ROWS) < 0.2
"""Whether the host knows of a debt that was not paid."""
FRAME = pd.DataFrame(RNG.normal(size=(N_ROWS, 12)), columns=[f"x{place}" for place in range(12)]).assign(
    flag=FLAG.astype(float)
)
STEPS = Preprocessing.fit(features_of(FRAME), PreprocessingConfig(whiten=False, clip=None), False)
BETA = np.array([*RNG.normal(0, 0.5, 12), 0.5])


def codes(named: list[str], n_reasons: int = 10) -> Reasons:
    names = tuple(named)
    groups = tuple(names.index(term) if term in names else NONE for term in STEPS.terms)
    return Reasons(names, groups, n_reasons, STEPS, BETA)


def accuracy(guess: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> float:
    """Return how often a guess of the flag is right, if guesses of both values count the same."""
    return float((guess[FLAG].mean() + (~guess[~FLAG]).mean()) / 2)


def test_a_code_shows_a_column_of_two_values_and_a_score_does_not() -> None:
    found = codes([*FRAME.columns]).find(features_of(FRAME))
    with_codes = (found == list(FRAME.columns).index("flag")).any(axis=1)
    scores = round_scores(STEPS.transform(features_of(FRAME)) @ BETA)
    by_score = max(accuracy(scores > limit) for limit in np.quantile(scores, np.linspace(0, 1, 101)))
    assert accuracy(with_codes) > 0.95
    assert by_score < 0.8


def test_a_column_without_a_label_shows_in_no_code() -> None:
    """Whatever else the host names, the codes of a row are the same with and without the flag."""
    named = [name for name in FRAME.columns if name != "flag"]
    other = FRAME.assign(flag=1 - FRAME["flag"])
    np.testing.assert_array_equal(codes(named).find(features_of(FRAME)), codes(named).find(features_of(other)))


@pytest.mark.parametrize("protected", [True, False])
def test_the_guest_gets_codes_only_with_the_hosts_permission(protected: bool) -> None:
    """The guest asks for all it can, whatever its own file says."""
    policy = Policy(allow_prediction=True) if protected else Policy(allow_prediction=True, max_reasons=10)
    datasets = {"people": DatasetConfig(path=Path("people.csv"), reason_labels={"flag": "Unpaid debt"})}
    if protected:
        with pytest.raises(PolicyError, match="max_reasons"):
            check_prediction("credit", "people", datasets, policy, Role.HOST, n_reasons=10)
    else:
        check_prediction("credit", "people", datasets, policy, Role.HOST, n_reasons=10)


def test_codes_of_many_models_are_bounded_like_scores_of_many_models(tmp_path: Path) -> None:
    """Each place in the order tells something new about each row: two codes of a model are two points beside it."""
    account = Account(Ledger(tmp_path, Role.HOST), Policy(), "people", Role.HOST)
    reasons = codes([*FRAME.columns])
    n_given = 0
    for model in range(10):
        point = point_of(STEPS, BETA * (1 + model))
        wanted = [point, *(reason_point(point, reasons.groups, place) for place in range(2))]
        try:
            account.check_further(wanted, STEPS.n_row_values, PREDICTION)
        except PolicyError:
            break
        for each in wanted:
            account.spend_point(each, STEPS.n_row_values, PREDICTION)
        n_given += 1
    # 13 columns permit 5 models without codes, and 1 with two codes for each row.
    assert (n_given, account.max_points(STEPS.n_row_values)) == (1, 5)
