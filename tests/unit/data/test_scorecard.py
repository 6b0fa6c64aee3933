"""Points of a scorecard, and figures of terms, from a party's part of a model."""

import csv
import io
import json
import math

import numpy as np
import pandas as pd
import pytest

from tests.support.frames import features_of
from trilateral.common.base.errors import DataError
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import PreprocessingConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.model.calibration import Uncalibrated
from trilateral.common.data.model.model_file import DataSummary, PartyModel
from trilateral.common.data.model.scorecard import Scale, candidates, scorecard, scorecard_csv, scorecard_json
from trilateral.common.data.preprocessing import Preprocessing
from trilateral.common.data.preprocessing.bins import BinnedNumber

SCALE = Scale(600, 50, 20)


def make_part(
    role: Role, names: list[str], *, binned: bool = True, woe: bool = True, l2: float = 0.0
) -> tuple[PartyModel, pd.DataFrame]:
    rng = np.random.default_rng(len(names))
    frame = pd.DataFrame({name: rng.normal(size=900) for name in names})
    frame[names[-1]] += 0.8 * frame[names[0]]
    labels = np.where(rng.random(900) < 1 / (1 + np.exp(-frame.sum(axis=1))), 1.0, -1.0)
    config = PreprocessingConfig.model_validate({"binning": {"max_bins": 4, "woe": woe} if binned else None})
    steps = Preprocessing.fit(features_of(frame), config, role is Role.GUEST, l2, labels=labels)
    coef = rng.normal(size=steps.n_columns)
    weights, intercept = steps.to_features(coef)
    part = PartyModel(
        role=role,
        job=JobConfig(name="card", dataset="made", protocol="shares", l2=l2),
        run_id="0" * 32,
        versions={},
        data=DataSummary(sha256="", n_rows=900, n_train=900, n_holdout=0),
        weights=dict(zip(steps.terms, weights.tolist(), strict=True)),
        intercept=intercept,
        standardised_weights=dict(zip(steps.terms, steps.to_standardised(coef).tolist(), strict=True)),
        training_weights=coef.tolist(),
        preprocessing=steps.to_dict(),
        loss=0.5,
        rounds=1,
        epochs=1,
        reason="done",
        metrics=None,
        calibration=Uncalibrated(reason="no hold-out rows") if role is Role.GUEST else None,
        calibration_report=None,
        evaluations=[],
    )
    return part, frame


@pytest.mark.parametrize("woe", [True, False])
def test_the_points_of_both_parties_add_up_to_the_total(woe: bool) -> None:
    host, host_rows = make_part(Role.HOST, ["a", "b", "c"], woe=woe)
    guest, guest_rows = make_part(Role.GUEST, ["d", "e"], woe=woe)
    u, total, n_rounded = np.zeros(900), np.zeros(900), 0
    whole = np.zeros(900)
    for part, frame in ((host, host_rows), (guest, guest_rows)):
        u += part.steps.transform(features_of(frame)) @ np.array(part.training_weights)
        rows = scorecard(part, SCALE)
        if part.role is Role.GUEST:
            assert rows[0].column == "(base)"
            total += rows[0].points
            whole += rows[0].rounded
            n_rounded += 1
        for column in part.steps.columns:
            n_rounded += 1
            values = frame[column.name].to_numpy()
            assert isinstance(column, BinnedNumber)
            place = np.searchsorted(column.bounds, values, side="right")
            own = [row for row in rows if row.column == column.name]
            total += np.array([row.points for row in own])[place]
            whole += np.array([row.rounded for row in own])[place]
    expected = SCALE.offset - SCALE.factor * u
    assert total == pytest.approx(expected)
    assert np.abs(whole - expected).max() <= n_rounded / 2


def test_the_scale_doubles_the_odds() -> None:
    assert SCALE.offset - SCALE.factor * -math.log(50) == pytest.approx(600)
    assert SCALE.offset - SCALE.factor * -math.log(100) == pytest.approx(620)


def test_a_scorecard_is_written_as_csv_and_json() -> None:
    part, _ = make_part(Role.GUEST, ["d", "e"])
    rows = scorecard(part, SCALE)
    read = list(csv.DictReader(io.StringIO(scorecard_csv(rows))))
    assert [float(row["points"]) for row in read] == [row.points for row in rows]
    content = json.loads(scorecard_json(part, SCALE, rows))
    assert content["pdo"] == 20
    assert [row["rounded"] for row in content["points"]] == [row.rounded for row in rows]


def test_columns_without_bins_have_no_points() -> None:
    part, _ = make_part(Role.HOST, ["a", "b"], binned=False)
    with pytest.raises(DataError, match="these have none: 'a', 'b'"):
        scorecard(part, SCALE)


@pytest.mark.parametrize("l2", [0.0, 0.01])
def test_correlations_and_vif_are_those_of_the_training_rows(l2: float) -> None:
    part, frame = make_part(Role.GUEST, ["d", "e", "f"], l2=l2)
    terms = part.steps.expand(features_of(frame))
    correlations = np.asarray(np.corrcoef(terms, rowvar=False))
    vif = np.diag(np.linalg.inv(correlations))
    for place, row in enumerate(candidates(part)):
        assert row.vif == pytest.approx(vif[place], rel=1e-6)
        others = np.delete(np.arange(3), place)
        most = others[np.abs(correlations[place, others]).argmax()]
        assert row.partner == part.steps.terms[most]
        assert row.correlation == pytest.approx(correlations[place, most], abs=1e-9)
        assert row.iv is not None
        assert row.iv > 0


def test_without_bins_and_whitening_the_figures_are_not_known() -> None:
    part, _ = make_part(Role.HOST, ["a", "b"], binned=False)
    assert all(row.iv is None and row.vif is not None for row in candidates(part))
