"""The tables by which a modeller chooses penalties and columns, from a model file alone."""

import numpy as np
import pytest

import trilateral
from tests.unit.data.test_scorecard import make_part
from trilateral.client.model import Model
from trilateral.common.base.roles import Role
from trilateral.common.data.model.elimination import EliminatedColumn
from trilateral.common.data.model.inference import Inference
from trilateral.common.data.model.model_file import ComparedPenaltyRow


def test_the_penalties_of_a_cross_validation_are_a_table() -> None:
    part, _ = make_part(Role.GUEST, ["age", "debt"])
    assert Model(part).penalties().empty
    rows = [
        ComparedPenaltyRow(l1=0.1, l2=0, loss=0.5, standard_error=0.01, n_terms=1.5, chosen=False),
        ComparedPenaltyRow(l1=0.01, l2=0, loss=0.4, standard_error=0.02, n_terms=2, chosen=True),
    ]
    table = Model(part.model_copy(update={"search": rows})).penalties()
    assert table["loss"].tolist() == [0.5, 0.4]
    assert table.loc[table["chosen"], "l1"].tolist() == [0.01]
    assert table["auc"].isna().all()


def test_the_terms_have_figures_by_which_to_choose() -> None:
    part, frame = make_part(Role.GUEST, ["age", "debt"], binned=False)
    table = Model(part).candidates()
    assert table.index.tolist() == ["age", "debt"]
    r = np.corrcoef(frame["age"].clip(*frame["age"].quantile([0.01, 0.99])), frame["debt"])[0, 1]
    assert table["correlation"].tolist() == pytest.approx([r, r], abs=0.02)
    assert table["vif"].tolist() == pytest.approx([1 / (1 - r**2)] * 2, rel=0.05)
    assert table["partner"].tolist() == ["debt", "age"]
    assert table["iv"].isna().all()
    binned, _ = make_part(Role.GUEST, ["age", "debt"])
    of_bins = Model(binned)
    iv = of_bins.bins().groupby("column", sort=False)["iv"].sum()
    assert of_bins.candidates()["iv"].tolist() == pytest.approx(iv.tolist())


def test_an_elimination_is_a_table() -> None:
    part, _ = make_part(Role.GUEST, ["age", "debt"])
    with pytest.raises(trilateral.ConfigError, match="no standard errors"):
        Model(part).elimination()
    tests = [
        EliminatedColumn(column="debt", statistic=2.5, df=1, p_value=0.11, aic_change=0.5),
        EliminatedColumn(column="age", statistic=40.0, df=1, p_value=1e-9, aic_change=38.0),
    ]
    inference = Inference(terms={}, elimination={"p_value": tests, "aic": tests})
    model = Model(part.model_copy(update={"inference": inference}))
    assert model.elimination()["stays"].to_dict() == {"debt": False, "age": True}
    assert model.elimination(alpha=0.2)["stays"].all()
    assert model.elimination("aic")["stays"].all()
    with pytest.raises(trilateral.ConfigError, match="`by` must be one of p_value, aic, not 'iv'"):
        model.elimination("iv")  # type: ignore[arg-type]
