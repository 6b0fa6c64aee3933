"""The columns that raise a score most."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.support.frames import features_of
from trilateral.common.base.errors import ProtocolError
from trilateral.common.config.dataset import DatasetConfig, PreprocessingConfig
from trilateral.common.data.model.reasons import NONE, Reasons, decode_places, encode_places, reason_names
from trilateral.common.data.preprocessing import Preprocessing
from trilateral.guest_party.reasons import check_labels

N_ROWS = 300
RNG = np.random.default_rng(4)
TABLE = pd.DataFrame(
    {
        "age": RNG.normal(40, 10, N_ROWS),
        "branch": pd.Series(RNG.choice(["north", "south", "west"], N_ROWS, p=[0.5, 0.3, 0.2]), dtype="str"),
        "debt": RNG.exponential(2, N_ROWS),
    }
)


@pytest.mark.parametrize("whiten", [True, False])
def test_the_columns_come_in_the_order_of_what_they_add_to_the_score(whiten: bool) -> None:
    features = features_of(TABLE)
    steps = Preprocessing.fit(features, PreprocessingConfig(whiten=whiten), intercept=True)
    assert steps.terms == ("age", "branch=south", "branch=west", "debt")
    beta = np.array([0.5, 1.0, -1.0, -0.7])
    added = (steps.expand(features) - steps.mean) / steps.scale * beta
    by_column = np.stack([added[:, 0], added[:, 1] + added[:, 2], added[:, 3]], axis=1)
    found = Reasons(("age", "branch", "debt"), (0, 1, 2), 4, steps, beta).find(features)
    for row, places in zip(by_column, found, strict=True):
        expected = sorted((place for place in range(3) if row[place] > 0), key=lambda place: -row[place])
        assert places.tolist() == expected + [NONE] * (4 - len(expected))
    first = Reasons(("age", "branch", "debt"), (0, 1, 2), 1, steps, beta).find(features)[:, 0]
    np.testing.assert_array_equal(first, found[:, 0])


def test_columns_of_one_label_count_together_and_a_column_without_one_is_never_a_reason() -> None:
    features = features_of(TABLE)
    steps = Preprocessing.fit(features, PreprocessingConfig(), intercept=True)
    beta = np.array([0.5, 1.0, -1.0, -0.7])
    added = (steps.expand(features) - steps.mean) / steps.scale * beta
    together = added[:, 0] + added[:, 3]
    found = Reasons(("age and debt",), (0, NONE, 0), 2, steps, beta).find(features)
    np.testing.assert_array_equal(found[:, 0] == 0, together > 0)
    assert (found[:, 1] == NONE).all()


def test_reasons_are_a_byte_each_on_the_wire() -> None:
    places = np.array([[0, NONE], [199, 3]], np.int16)
    content = encode_places(places).tobytes()
    assert content == bytes([1, 0, 200, 4])
    np.testing.assert_array_equal(decode_places(content, (2, 2), 200), places)
    assert reason_names(["a", "b"], [1, NONE]) == ("b",)
    for wrong in (content[:3], bytes([201, 0])):
        with pytest.raises(ValueError, match="reason|reshape"):
            decode_places(wrong, (len(wrong) // 2, 2), 200)


@pytest.mark.parametrize("label", ["", "=HYPERLINK(1)", "+1", "-1", "@SUM(1)", "two\nlines", "a" * 101])
def test_a_label_that_may_harm_whoever_reads_the_file_is_refused_by_both_parties(label: str) -> None:
    with pytest.raises(ValueError, match="expected a label of 1 to 100 characters"):
        DatasetConfig(path=Path("people.csv"), reason_labels={"age": label})
    with pytest.raises(ProtocolError, match="labels of reasons that cannot be used: expected a label"):
        check_labels(["Income", label])


def test_a_party_without_columns_has_no_reasons() -> None:
    steps = Preprocessing((), np.zeros(0), np.ones(0), None, True)
    assert (Reasons((), (), 2, steps, np.zeros(0)).find(features_of(TABLE)) == NONE).all()
