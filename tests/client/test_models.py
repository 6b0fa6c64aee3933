"""Alignments, predictions and models by the Python API, at three real servers."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import trilateral
from tests.client.conftest import DATASET, N_COMMON, N_ONLY, NEW, TRAINED, World
from trilateral.common.base.roles import Role
from trilateral.common.protocol.evaluation import round_scores


def scored(world: World, role: Role) -> "pd.Series[float]":
    """A party's part of the score of each of its new rows, by ID."""
    with trilateral.connect(world.files[role]) as session:
        rows = world.rows[role]
        return session.model(TRAINED).score(rows.set_index("id"))


def test_an_alignment_counts(session: trilateral.Session) -> None:
    stages: list[trilateral.Stage] = []
    counts = session.align(NEW, on_stage=stages.append)
    assert (counts.n_common, counts.n_guest, counts.n_host) == (N_COMMON, N_COMMON + N_ONLY, N_COMMON + N_ONLY)
    assert stages[0].doing == "reading IDs"


def test_both_parties_scores_in_memory_add_up_to_those_of_a_prediction(
    world: World, session: trilateral.Session
) -> None:
    prediction = session.predict(TRAINED, NEW)
    scores = prediction.scores.set_index("id")
    assert list(scores.columns) == ["score", "probability"]
    parts = [scored(world, role).reindex(scores.index) for role in (Role.HOST, Role.GUEST)]
    # The host rounds its part before it gives it to the guest.
    received = round_scores(np.asarray(parts[0], dtype=np.float64))
    np.testing.assert_allclose(received + parts[1], scores["score"], rtol=0, atol=1e-9)

    probabilities = session.model(TRAINED).probabilities(scores["score"])
    np.testing.assert_allclose(probabilities, scores["probability"], rtol=0, atol=1e-12)
    assert len(prediction.missing) == N_ONLY
    assert prediction.counts.n_scored == len(scores) == N_COMMON
    assert prediction.counts.calibration == session.model(TRAINED).calibration
    assert prediction.counts.calibration.startswith("calibrated ")


def test_a_prediction_to_a_file_has_the_same_scores(session: trilateral.Session, tmp_path: Path) -> None:
    out = tmp_path / "scores.csv"
    counts = session.predict_to_file(TRAINED, NEW, out)
    assert counts.n_scored == N_COMMON
    pd.testing.assert_frame_equal(
        pd.read_csv(out), session.predict(TRAINED, NEW).scores, check_dtype=False, rtol=0, atol=1e-12
    )
    assert len(pd.read_csv(tmp_path / "scores.missing.csv")) == N_ONLY


def test_a_prediction_gives_reasons_of_the_guest_alone(session: trilateral.Session, tmp_path: Path) -> None:
    features = session.model(TRAINED).features
    prediction = session.predict(TRAINED, NEW, reasons=len(features) + 1)
    names = [f"reason_{place}" for place in range(1, len(features) + 2)]
    assert list(prediction.scores.columns) == ["id", "score", "probability", *names]
    reasons = prediction.scores[names]
    assert set(reasons.stack().dropna()) == set(features)
    # No column is named twice, and none comes after the last reason.
    assert all(row.dropna().is_unique for _, row in reasons.iterrows())
    assert (reasons.isna().cummax(axis=1) == reasons.isna()).all(axis=None)
    assert len(prediction.missing) == N_ONLY
    out = tmp_path / "scores.csv"
    session.predict_to_file(TRAINED, NEW, out, reasons=1)
    pd.testing.assert_series_equal(pd.read_csv(out)["reason_1"], reasons["reason_1"], check_dtype=False)
    with pytest.raises(trilateral.ConfigError, match="reasons: expected 0 to 10, not 11"):
        session.predict(TRAINED, NEW, reasons=11)


def test_only_the_guest_aligns_and_predicts(world: World) -> None:
    with trilateral.connect(world.files[Role.HOST]) as host:
        with pytest.raises(trilateral.ConfigError, match="role: is host, but only the guest"):
            host.align(NEW)
        with pytest.raises(trilateral.ConfigError, match="role: is host, but only the guest can predict"):
            host.predict(TRAINED, NEW)
    with (
        trilateral.connect(world.files[Role.COORDINATOR]) as coordinator,
        pytest.raises(trilateral.ConfigError, match="the coordinator has no part of a model"),
    ):
        coordinator.model(TRAINED)


def test_bins_are_those_of_a_party_and_of_a_bins_job(world: World, session: trilateral.Session) -> None:
    with (
        trilateral.connect(world.files[Role.COORDINATOR]) as coordinator,
        pytest.raises(trilateral.ConfigError, match="the coordinator has no"),
    ):
        coordinator.bins(TRAINED)
    with pytest.raises(trilateral.DataError):
        session.bins(TRAINED)  # A training writes none.


def test_online_scores_are_asked_for_with_one_set_of_features_for_each_id(session: trilateral.Session) -> None:
    with pytest.raises(TypeError, match="ids: expected a list of IDs, not str"):
        session.score(TRAINED, NEW, "P1")
    with pytest.raises(ValueError, match="there are 2 IDs, but 1 features"):
        session.score(TRAINED, NEW, ["P1", "P2"], features=[{}])
    features = [None, {"age": float("nan"), "visits": np.int64(3)}]
    with pytest.raises(trilateral.TrilateralError):  # The host precomputes for no model.
        session.score(TRAINED, NEW, ["P1", ("P2",)], features=features)


def test_a_prediction_without_a_model_is_a_data_error(session: trilateral.Session) -> None:
    with pytest.raises(trilateral.DataError, match="there is no model file"):
        session.predict("never-trained", NEW)


def test_coefficients_are_those_of_the_model_file(world: World, session: trilateral.Session) -> None:
    state = trilateral.load_config(world.files[Role.GUEST]).state
    for model in (session.model(TRAINED), trilateral.load_model(state / "jobs" / TRAINED)):
        table = model.coefficients()
        assert list(table.columns) == ["coef", "standardised", "odds_ratio", "odds_ratio_per_sd"]
        pd.testing.assert_series_equal(table["coef"], model.coef, check_names=False)
        assert set(model.features) <= set(world.rows[Role.GUEST].columns)
        assert model.job.dataset == DATASET
        assert model.metrics is not None
        assert repr(model).startswith("<Model: the guest's part of job trained")
        assert model.role is Role.GUEST
        assert model.rounds >= model.epochs >= 1
        assert model.reason
        assert bytes.fromhex(model.run_id)
        assert model.inference is None
        assert [each.name for each in model.evaluation_sets] == ["holdout"]
        with pytest.raises(trilateral.ConfigError, match="must be above 0"):
            model.scorecard(pdo=0)
        assert model.bins().empty


def test_a_frame_that_does_not_fit_is_refused_by_column(session: trilateral.Session, world: World) -> None:
    model = session.model(TRAINED)
    rows = world.rows[Role.GUEST]
    name = model.features[0]
    with pytest.raises(trilateral.DataError, match=f"lacks columns of the model: '{name}'"):
        model.score(rows.drop(columns=name))
    with pytest.raises(trilateral.DataError, match=f"column '{name}' was numeric at training"):
        model.score(rows.assign(**{name: "a word"}))
    with pytest.raises(trilateral.DataError, match=f"several columns named '{name}'"):
        model.score(pd.concat([rows, rows[[name]]], axis=1))
    with pytest.raises(trilateral.DataError, match=f"column '{name}' mixes values"):
        model.score(rows.assign(**{name: pd.Series([object()] * len(rows))}))


def test_the_hosts_part_has_no_probabilities(world: World) -> None:
    with trilateral.connect(world.files[Role.HOST]) as host:
        model = host.model(TRAINED)
    assert model.calibration is None
    with pytest.raises(trilateral.DataError, match="has no calibration"):
        model.probabilities(pd.Series([0.5]))


def test_an_argument_of_a_wrong_type_is_named_with_what_it_takes(
    session: trilateral.Session,
) -> None:
    model = session.model(TRAINED)
    wrong: list[tuple[Callable[..., object], tuple[object, ...], str]] = [
        (trilateral.connect, ({},), "config: expected the path of a YAML file, or .*, not dict"),
        (trilateral.load_config, (None,), "config: expected the path of a YAML file, or .*, not NoneType"),
        (trilateral.load_model, (5,), "path: expected the path of a model file or of a job's folder, not int"),
        (session.train, ([1],), "job: expected a Job, a dict of its options, or the path of a YAML file, not list"),
        (session.find, (5,), "job: expected a name, not int"),
        (session.model, (None,), "job: expected a name, not NoneType"),
        (session.align, ({},), "dataset: expected a name, not dict"),
        (session.predict, (TRAINED, 5), "dataset: expected a name, not int"),
        (session.predict_to_file, (TRAINED, NEW, 5), "out: expected the path of a .csv or .parquet file, not int"),
        (model.score, ({},), "frame: expected a pandas DataFrame with the columns of `features`, not dict"),
        (model.probabilities, ([0.5],), "scores: expected a pandas Series, .*, not list"),
    ]
    for function, arguments, said in wrong:
        with pytest.raises(TypeError, match=f"^{said}$"):
            function(*arguments)
