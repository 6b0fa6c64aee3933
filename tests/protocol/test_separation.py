"""Features that separate the labels, in whole trainings on shares with inference: what both parties are told.

Whether labels are separated is decided by a linear programme on the joined table, which knows nothing of the training.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import linprog

from tests.support.frames import features_of
from tests.support.three_machines import Outcome, Tables, make_machines, run_machines
from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.dataset import DatasetConfig, LabelConfig, PreprocessingConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.model.inference import Inference
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.party_data import PreparedData, make_party_data
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.data.tables.table import PartyTable
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.protocol.messages import ElementPiece, Envelope, Kind
from trilateral.common.protocol.separation import OF_BOTH, SEPARATION, Sign

Tamper = Callable[[Role, Envelope], list[Envelope]]
JOB = JobConfig(name="job", dataset="data", protocol="shares", inference=True, holdout=0.2, seed=4)
WAY_OUT = "leave out the feature, merge its categories, or set `l2` and leave out `inference`"


@dataclass
class Case:
    frames: dict[Role, pd.DataFrame]
    labels: FloatVector
    """-1 and 1."""


def noisy(n_rows: int, seed: int = 0) -> Case:
    """Two features of each party, and labels that overlap."""
    rng = np.random.default_rng(seed)
    host, guest = (
        pd.DataFrame({f"{name}1": rng.normal(size=n_rows), f"{name}2": rng.normal(size=n_rows)}) for name in "hg"
    )
    u = 0.5 * host["h1"] - 0.4 * guest["g1"] + 0.3
    labels = np.where(rng.random(n_rows) < 1 / (1 + np.exp(-u)), 1.0, -1.0)
    return Case({Role.HOST: host, Role.GUEST: guest}, labels)


def with_separating_number(party: Role, n_rows: int) -> Case:
    case, sizes = noisy(n_rows), np.random.default_rng(1).exponential(size=n_rows)
    case.frames[party]["income"] = case.labels * (0.1 + sizes)
    return case


def with_label_as_feature(party: Role, n_rows: int) -> Case:
    case = noisy(n_rows)
    case.frames[party]["flag"] = (case.labels > 0).astype(float)
    return case


def with_separating_half(party: Role, n_rows: int) -> Case:
    """Rows above a limit are positive, and the others overlap."""
    case, x = noisy(n_rows), np.abs(np.random.default_rng(1).normal(size=n_rows))
    case.frames[party]["above"] = np.where((case.labels > 0) & (x > 0.7), x, 0)
    return case


def with_separating_category(party: Role, n_rows: int, share: float = 0.1) -> Case:
    """One category has positive rows only."""
    case = noisy(n_rows)
    towns = np.random.default_rng(1).choice(["a", "b", "c"], n_rows, p=[0.5, 0.5 - share, share])
    case.frames[party]["town"] = np.where((towns == "c") & (case.labels < 0), "a", towns)
    return case


def separated_together(n_rows: int) -> Case:
    """Neither party's features separate the labels alone."""
    case = noisy(n_rows)
    host, guest = (case.frames[party] for party in PARTIES)
    u = host["h1"] + guest["g1"]
    apart = (np.abs(u - 0.2) > 0.05).to_numpy()
    frames = {party: frame[apart].reset_index(drop=True) for party, frame in case.frames.items()}
    return Case(frames, np.where(u > 0.2, 1.0, -1.0)[apart])


def flagged_by_both(n_rows: int) -> Case:
    """Rows with the flags of both parties are positive, those with none negative, and the others overlap."""
    case, rng = noisy(n_rows), np.random.default_rng(1)
    flags = {party: rng.random(n_rows) < 0.3 for party in PARTIES}
    for party, flag in flags.items():
        case.frames[party]["flag"] = flag.astype(float)
    n_flags = sum(flag.astype(int) for flag in flags.values())
    return Case(case.frames, np.select([n_flags == 2, n_flags == 0], [1.0, -1.0], case.labels))


SEPARATED = {
    **{f"a number of the {party}": with_separating_number(party, 500) for party in PARTIES},
    **{f"the label as a feature of the {party}": with_label_as_feature(party, 500) for party in PARTIES},
    **{f"rows above a limit of the {party}": with_separating_half(party, 500) for party in PARTIES},
    **{f"a category of the {party}": with_separating_category(party, 3000) for party in PARTIES},
    **{f"a rare category of the {party}": with_separating_category(party, 1500, share=0.02) for party in PARTIES},
    "a combination of both": separated_together(500),
    "flags of both": flagged_by_both(1500),
}


def are_separated(X: FloatMatrix, labels: FloatVector) -> bool:
    """Return whether some weights w have y x'w >= 0 in all rows, and more in some of them."""
    margins = X * labels[:, np.newaxis]
    best = linprog(-margins.sum(axis=0), A_ub=-margins, b_ub=np.zeros(len(margins)), bounds=(-1, 1), method="highs")
    return bool(-best.fun > 1e-6)


@dataclass
class Trained:
    outcome: Outcome
    inference: dict[Role, Inference]
    """What the models of both parties say; empty if the job has failed."""
    are_separated: bool
    """What the linear programme says."""


def train(job: JobConfig, case: Case, folder: Path, key: PrivateKey, tamper: Tamper | None = None) -> Trained:
    """Train on a case, and make the models."""
    ids = Ids.of([f"{row:05d}" for row in range(len(case.labels))])
    labels = {Role.GUEST: case.labels}
    path = folder / "table.csv"
    path.touch()
    data: dict[Role, PreparedData] = {
        party: make_party_data(PartyTable(ids, features_of(frame), labels.get(party)), PreprocessingConfig(), job)
        for party, frame in case.frames.items()
    }
    machines = make_machines(job, Tables(data[Role.HOST], data[Role.GUEST]), key)
    outcome = run_machines(machines) if tamper is None else run_machines(machines, tamper=tamper)
    inference = {}
    for party, result in outcome.results.items():
        dataset = DatasetConfig(path=path, label=LabelConfig() if party is Role.GUEST else None)
        found = PartyModel.of(party, job, data[party], dataset, result, run_id="0" * 32).inference
        assert found is not None
        inference[party] = found
    X, y = np.hstack([np.asarray(data[party].block.columns) for party in PARTIES]), data[Role.GUEST].block.labels
    assert y is not None
    return Trained(outcome, inference, are_separated(X, y))


@pytest.mark.parametrize("max_score", [12, 24])
@pytest.mark.parametrize("name", SEPARATED)
def test_both_parties_are_told_of_separation_and_of_the_way_out(
    name: str, max_score: int, tmp_path: Path, private_key: PrivateKey
) -> None:
    trained = train(JOB.model_copy(update={"max_score": max_score}), SEPARATED[name], tmp_path, private_key)
    assert trained.are_separated
    found = trained.inference
    assert all(each.may_be_separated for each in found.values())
    # A party may in addition name its own terms.
    host, guest = ({each for each in found[party].warnings if SEPARATION in each} for party in PARTIES)
    shared = host & guest
    assert any(WAY_OUT in each and "the likelihood has no maximum" in each for each in shared)
    fit = found[Role.GUEST].fit
    assert fit is not None
    assert fit.deviance >= 0
    for party in PARTIES:
        if f"category of the {party}" in name:
            # Rounding errors decide how far the weights go. Either text names the party.
            by_score = f"the {party}'s part of the score of a training row exceeds"
            assert any(f"features of the {party} separate" in each or by_score in each for each in shared)


@pytest.mark.parametrize("party", PARTIES)
def test_a_party_is_told_which_of_its_terms_separate_and_the_other_party_is_not(
    party: Role, tmp_path: Path, private_key: PrivateKey
) -> None:
    found = train(JOB, SEPARATED[f"a rare category of the {party}"], tmp_path, private_key).inference
    told = {each: " ".join(said.warnings) for each, said in found.items()}
    assert "of 'town=c' is so large that the term probably separates the labels" in told[party]
    (other,) = set(PARTIES) - {party}
    assert "town" not in told[other]


def test_both_parties_know_the_same_signs(tmp_path: Path, private_key: PrivateKey) -> None:
    outcome = train(JOB, SEPARATED["a number of the guest"], tmp_path, private_key).outcome
    host, guest = (outcome.results[party].signs for party in PARTIES)
    assert host == guest == {Role.HOST: Sign(0), Role.GUEST: Sign.WIDE | Sign.BEYOND}


@pytest.mark.parametrize(("n_rows", "seed"), [(200, 1), (500, 2), (3000, 3)])
def test_labels_that_overlap_have_no_warning(n_rows: int, seed: int, tmp_path: Path, private_key: PrivateKey) -> None:
    trained = train(JOB, noisy(n_rows, seed), tmp_path, private_key)
    assert not trained.are_separated
    for said in trained.inference.values():
        assert not said.may_be_separated
        assert not said.warnings


def test_a_category_with_one_row_of_the_other_label_has_no_warning(tmp_path: Path, private_key: PrivateKey) -> None:
    case = with_separating_category(Role.HOST, 3000)
    case.labels[int(np.flatnonzero(case.frames[Role.HOST]["town"] == "c")[0])] = -1
    trained = train(JOB.model_copy(update={"holdout": 0.0}), case, tmp_path, private_key)
    assert not trained.are_separated
    assert not any(said.warnings for said in trained.inference.values())


def test_a_training_that_ends_early_has_a_warning_that_separation_may_be_why(
    tmp_path: Path, private_key: PrivateKey
) -> None:
    """Scores are within the range, and standard errors are not large yet."""
    job = JOB.model_copy(update={"epochs": 4})
    trained = train(job, with_separating_number(Role.HOST, 500), tmp_path, private_key)
    for said in trained.inference.values():
        assert f"unless features separate the labels ({SEPARATION})" in said.warnings[0]


def test_columns_that_both_parties_have_may_be_that_or_separation(tmp_path: Path, private_key: PrivateKey) -> None:
    """The information is alike in both cases, so the warning has both."""
    case = noisy(500)
    noise = np.random.default_rng(1).normal(size=500)
    case.frames[Role.GUEST]["g2"] = case.frames[Role.HOST]["h1"] + 0.01 * noise
    trained = train(JOB, case, tmp_path, private_key)
    assert not trained.are_separated
    for said in trained.inference.values():
        assert OF_BOTH in said.warnings
        assert said.may_be_separated


@pytest.mark.parametrize(("elements", "n_told"), [([8], 1), ([2**63], 1), ([0, 0], 2)])
@pytest.mark.parametrize("sender", PARTIES)
def test_signs_that_do_not_exist_end_the_job(
    sender: Role, elements: list[int], n_told: int, tmp_path: Path, private_key: PrivateKey
) -> None:
    def tamper(of: Role, envelope: Envelope) -> list[Envelope]:
        piece = envelope.message
        if of is sender and isinstance(piece, ElementPiece) and piece.kind is Kind.SEPARATION:
            return [Envelope(envelope.to, replace(piece, elements=np.array(elements, np.uint64)))]
        return [envelope]

    ended = train(JOB, noisy(200), tmp_path, private_key, tamper).outcome.ended
    assert f"the {sender} sent {n_told} elements that are no signs of separation" in ended.reason
