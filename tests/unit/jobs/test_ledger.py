"""The ledger counts over all jobs what the other party learns about the rows of a dataset, and forgets nothing."""

import json
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.support.frames import features_of
from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import ConfigError, PolicyError, notes
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import PreprocessingConfig
from trilateral.common.config.job import JobConfig, PenaltyPath, Sgd, Sqn
from trilateral.common.config.process import Policy
from trilateral.common.data.preprocessing import Preprocessing
from trilateral.common.jobs.account import Account, training_equations
from trilateral.common.jobs.ledger import LEDGER, Entry, Ledger, point_of
from trilateral.common.jobs.policy import JOB, PREDICTION, label_secrecy
from trilateral.common.protocol.block import TrainingBlock
from trilateral.common.protocol.label_secrecy import LabelSecrecy


def account(state: Path, role: Role = Role.HOST, dataset: str = "customers", **settings: float) -> Account:
    return Account(Ledger(state, role), Policy.model_validate(settings), dataset, role)


# --- points


@pytest.mark.parametrize(("n_columns", "most"), [(1, 1), (2, 1), (3, 1), (4, 2), (13, 5), (30, 10)])
def test_rows_may_be_scored_at_a_third_as_many_points_as_they_have_columns_and_at_one_at_least(
    n_columns: int, most: int, tmp_path: Path
) -> None:
    ours = account(tmp_path)
    assert ours.max_points(n_columns) == most
    for number in range(most):
        ours.spend_point(f"{number}", n_columns, JOB)
    with pytest.raises(PolicyError, match=f"at most {most} different sets of weights; {most} given so far, 1 more"):
        ours.spend_point("further", n_columns, PREDICTION)


def test_the_same_point_counts_once_also_after_a_restart(tmp_path: Path) -> None:
    for _ in range(3):
        account(tmp_path).spend_point("same", 3, PREDICTION)
        account(tmp_path).check_further(["same"], 3, PREDICTION)
    assert account(tmp_path).ledger.entry("customers").points == ("same",)
    with pytest.raises(PolicyError):
        account(tmp_path).check_further(["other"], 3, PREDICTION)


def test_datasets_count_apart(tmp_path: Path) -> None:
    account(tmp_path).spend_point("a", 3, JOB)
    account(tmp_path, dataset="customers-march").spend_point("b", 3, JOB)
    assert account(tmp_path).ledger.entry("customers-march").points == ("b",)


def test_a_running_job_keeps_its_points_from_other_jobs_and_from_predictions(tmp_path: Path) -> None:
    ours = account(tmp_path)
    ours.reserve_points(b"first", 4, 13)
    with pytest.raises(PolicyError, match="0 given so far and 4 reserved for running jobs, 2 more needed"):
        ours.reserve_points(b"second", 2, 13)
    ours.spend_point("prediction", 13, PREDICTION)
    with pytest.raises(PolicyError):
        ours.spend_point("another", 13, PREDICTION)
    for number in range(4):
        ours.spend_point(f"first {number}", 13, JOB, b"first")
    with pytest.raises(PolicyError):
        ours.spend_point("first 5", 13, JOB, b"first")


def test_a_job_that_ends_early_gives_back_what_it_has_not_used(tmp_path: Path) -> None:
    ours = account(tmp_path)
    ours.reserve_points(b"first", 5, 13)
    ours.spend_point("a", 13, JOB, b"first")
    ours.spend_point("a", 13, JOB, b"first")
    assert ours.ledger.n_reserved("customers") == 4
    ours.ledger.release(b"first")
    ours.reserve_points(b"second", 4, 13)


def test_a_session_that_continues_reserves_again_in_place_of_the_earlier_one(tmp_path: Path) -> None:
    ours = account(tmp_path)
    ours.reserve_points(b"job", 5, 13)
    ours.reserve_points(b"job", 5, 13)
    assert ours.ledger.n_reserved("customers") == 5


def test_a_point_is_the_function_from_a_row_to_its_score() -> None:
    features = pd.DataFrame(np.random.default_rng(0).normal(size=(50, 3)), columns=["a", "b", "c"])
    steps = Preprocessing.fit(features_of(features), PreprocessingConfig(), intercept=False)
    again = Preprocessing.from_dict(json.loads(json.dumps(steps.to_dict())))
    weights = np.array([0.5, 0.0, -1.25])
    assert point_of(again, np.array([0.5, -0.0, -1.25])) == point_of(steps, weights)
    assert point_of(steps, np.nextafter(weights, 1)) != point_of(steps, weights)
    others = Preprocessing.fit(features_of(features[1:]), PreprocessingConfig(), intercept=False)
    assert point_of(others, weights) != point_of(steps, weights)


def test_a_row_has_as_many_values_as_columns_of_the_table_or_directions() -> None:
    random = np.random.default_rng(0)
    number, kind = random.normal(size=200), random.choice(["x", "y", "z"], size=200)
    features = pd.DataFrame({"a": number, "same": 2 * number, "kind": kind})
    config = PreprocessingConfig(missing_indicator=True)
    steps = Preprocessing.fit(features_of(features[["a", "kind"]]), config, intercept=False)
    assert len(steps.terms) == 3
    assert steps.n_row_values == 2
    assert Preprocessing.fit(features_of(features[["a", "same"]]), config, intercept=False).n_row_values == 1


def test_a_refusal_of_scores_names_the_ways_out(tmp_path: Path) -> None:
    ours = account(tmp_path)
    ours.spend_point("a", 13, JOB)
    for what, ways in (
        (JOB, "set `holdout: 0`, `choose: log_loss` or a larger `evaluate_every` in the job, lower the setting"),
        (PREDICTION, "lower the setting"),
    ):
        with pytest.raises(PolicyError) as refusal:
            ours.check_points(5, 13, what)
        assert str(refusal.value) == (
            f"the host refuses {what} under policy.min_columns_per_point: rows of customers with 13 columns may be"
            f" scored with at most 5 different sets of weights; 1 given so far, 5 more needed; 2.166 would"
            f" allow it: {ways}, or name the"
            " dataset anew if its rows or their values are new"
        )


# --- trainings


def test_a_training_gives_the_guest_one_equation_for_each_of_its_columns_in_each_batch() -> None:
    job = JobConfig(name="job", dataset="customers")
    assert training_equations(job, (300, 5), 4, None) == 4
    assert training_equations(job.model_copy(update={"algorithm": Sgd(), "batch": 90}), (300, 5), 4, None) == 3 * 4


def test_drawn_curvature_batches_add_equations_about_one_combination_of_the_hosts_columns() -> None:
    sqn = Sqn(interval=4, curvature_batch=100)
    job = JobConfig(name="job", dataset="customers", algorithm=sqn, batch=90, epochs=10)
    n_draws = (10 * 3 + 2) // 4
    assert training_equations(job, (300, 5), 4, None) == 3 * 4 + -(-n_draws * 4 // 5)
    without = job.model_copy(update={"algorithm": Sqn(interval=4)})
    assert training_equations(without, (300, 5), 4, None) == 3 * 4


def test_a_training_gives_the_host_only_the_equations_that_the_secret_start_does_not_cover() -> None:
    job = JobConfig(name="job", dataset="customers")
    secrecy = LabelSecrecy([1000.0], 9)
    assert training_equations(job, (300, 10), 13, secrecy) == secrecy.n_equations(13) == 6


@pytest.mark.parametrize("settings", [{}, {"algorithm": Sgd(), "batch": 90}])
def test_on_shares_a_training_shows_a_party_its_weights_and_the_loss_once(settings: dict[str, Any]) -> None:
    job = JobConfig(name="job", dataset="customers", protocol="shares").model_copy(update=settings)
    assert training_equations(job, (300, 5), 4, None) == 4 + 1
    secrecy = LabelSecrecy.of_result(np.repeat([-1.0, 1.0], 150), None)
    assert training_equations(job, (300, 10), 13, secrecy) == 13 + 1


def test_a_search_counts_the_rounds_of_its_fits_and_at_the_host_the_table_of_penalties() -> None:
    """51 fits of 1 to 30 rounds are 251 bits: 9 equations of 28. The guest is told 3 numbers for each penalty."""
    job = JobConfig(name="job", dataset="customers", protocol="shares", l2=1, folds=5, path=PenaltyPath(points=10))
    assert training_equations(job, (300, 5), 4, None) == 4 + 1 + 9 + 30
    secrecy = label_secrecy(job, block_of(np.repeat([-1.0, 1.0], 150)), secret_start=True)
    assert secrecy is not None
    assert training_equations(job, (300, 10), 13, secrecy) == 13 + 1 + 9


@pytest.mark.parametrize(
    ("settings", "at_host", "at_guest"),
    [
        ({"inference": True}, 4 + 1 + 4 * 5 // 2, 13 + 1 + 13 * 14 // 2),
        ({"start_from": "earlier"}, 4 + 1, 13 + 1),
        ({"l2": 0.1, "folds": 19}, 19, 13 + 1 + 4),  # 20 fits of log2 30 bits; the host counts each fold.
        ({"l2": 0.1, "folds": 5, "fold_by": "label"}, 4 + 1 + 2 + 3, 13 + 1 + 2 + 5),
    ],
)
def test_what_a_job_on_shares_tells_beside_the_weights_counts(
    settings: dict[str, Any], at_host: int, at_guest: int
) -> None:
    job = JobConfig(name="job", dataset="data", protocol="shares", **settings)
    assert training_equations(job, (300, 5), 4, None) == at_host
    secrecy = label_secrecy(job, block_of(np.repeat([-1.0, 1.0], 150)), secret_start=True)
    assert training_equations(job, (300, 10), 13, secrecy) == at_guest


def test_each_class_counts_as_a_training_but_for_the_loss() -> None:
    job = JobConfig(name="job", dataset="data", protocol="shares", classes=3)
    assert training_equations(job, (300, 5), 4, None) == 3 * 4 + 1
    block = replace(block_of(np.repeat([0.0, 1.0, 2.0], 100)), n_classes=3)
    assert training_equations(job, (300, 10), 13, label_secrecy(job, block, secret_start=True)) == 3 * 13 + 1


def block_of(labels: FloatVector) -> TrainingBlock:
    columns = np.zeros((len(labels), 1))
    return TrainingBlock(columns, columns[:0], labels, labels[:0], np.zeros((1, 1)))


def test_the_host_gives_an_equation_for_three_rows_and_the_guest_one_for_56_bits(tmp_path: Path) -> None:
    assert account(tmp_path, Role.HOST).max_equations(1000, None) == 333
    labels = LabelSecrecy([1000.0], 9)
    assert account(tmp_path, Role.GUEST).max_equations(1000, labels) == 17
    assert account(tmp_path, Role.GUEST, min_label_bits=28).max_equations(1000, labels) == 35
    assert account(tmp_path, Role.GUEST, min_label_bits=0).max_equations(1000, labels) >= 2**53


REFUSED = {
    Role.HOST: (
        "the host refuses the job under policy.min_rows_per_equation: all trainings on customers together would give"
        " the other party too many equations about its rows: the maximum is 100; 100 given so far (trainings: 4), 1"
        " more needed; 2.97 would allow it: train in larger batches (`paillier` only), lower the setting, or name the"
        " dataset anew if its rows or their values are new"
    ),
    Role.GUEST: (
        "the guest refuses the job under policy.min_label_bits: all trainings on customers together would give the"
        " other party too many equations about the labels: train in larger batches (`paillier` only), lower the"
        " setting, or name the dataset anew if its rows or their values are new; the guest's log has the numbers"
    ),
}


@pytest.mark.parametrize("role", [Role.HOST, Role.GUEST])
def test_trainings_are_refused_once_their_equations_reach_the_maximum(role: Role, tmp_path: Path) -> None:
    for _ in range(4):
        ours = account(tmp_path, role)
        ours.check_training(25, 100)
        ours.spend_training(25, 100)
    ours = account(tmp_path, role)
    assert ours.ledger.entry("customers") == Entry(trainings=4, equations=100)
    for refuse in (ours.check_training, ours.spend_training):
        with pytest.raises(PolicyError) as refusal:
            refuse(1, 100)
        assert str(refusal.value) == REFUSED[role]
    ours.spend_training(1, 101)


def test_a_refusal_does_not_tell_how_many_labels_are_positive(tmp_path: Path) -> None:
    refusals = []
    for most in (25, 100):
        with pytest.raises(PolicyError) as refusal:
            account(tmp_path, Role.GUEST).check_training(101, most)
        refusals.append(refusal.value)
    assert len({str(refusal) for refusal in refusals}) == 1
    assert [notes(refusal) for refusal in refusals] == [
        [
            f"policy.min_label_bits allows {most} equations about the labels; 0 given so far (trainings: 0), 101 more"
            " needed"
        ]
        for most in (25, 100)
    ]


# --- the file


def test_concurrent_threads_stay_within_the_limit(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        counted = list(pool.map(lambda n: Ledger(tmp_path, Role.HOST).add_point("d", str(n), 7), range(40)))
    assert sum(counted) == len(Ledger(tmp_path, Role.HOST).entry("d").points) == 7


def _count_in_a_process(state: Path) -> int:
    return sum(Ledger(state, Role.HOST).add_training("d", 2, 100) for _ in range(40))


def test_concurrent_processes_stay_within_the_limit(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert sum(pool.map(_count_in_a_process, [tmp_path, tmp_path])) == 50
    assert Ledger(tmp_path, Role.HOST).entry("d") == Entry(50, 100)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"version": 1}',
        '{"version": 2, "datasets": {}}',
        '{"version": 1, "datasets": []}',
        '{"version": 1, "datasets": {"d": 1}}',
        '{"version": 1, "datasets": {"d": {"points": ["a"], "more": 1}}}',
        '{"version": 1, "datasets": {"d": {"trainings": 1, "equations": -1, "points": []}}}',
        '{"version": 1, "datasets": {"d": {"trainings": 1, "equations": 1.5, "points": []}}}',
        '{"version": 1, "datasets": {"d": {"trainings": true, "equations": 1, "points": []}}}',
        '{"version": 1, "datasets": {"d": {"trainings": 1, "equations": 1, "points": [1]}}}',
    ],
)
def test_a_damaged_ledger_gives_nothing_and_is_left_alone(tmp_path: Path, content: str) -> None:
    (tmp_path / LEDGER).write_text(content)
    ours = account(tmp_path)
    uses: list[Callable[[], None]] = [
        lambda: ours.check_points(1, 13, JOB),
        lambda: ours.reserve_points(b"job", 1, 13),
        lambda: ours.spend_point("a", 13, JOB),
        lambda: ours.spend_training(1, 300),
    ]
    for use in uses:
        with pytest.raises(ConfigError, match="the host accepts no job and gives no scores, because the ledger is dam"):
            use()
    assert (tmp_path / LEDGER).read_text() == content


def test_a_ledger_that_cannot_be_written_gives_nothing(tmp_path: Path) -> None:
    (tmp_path / LEDGER).mkdir()
    with pytest.raises(ConfigError, match="because the ledger cannot be read or written"):
        account(tmp_path).spend_training(1, 300)
    with pytest.raises(ConfigError, match="because the ledger cannot be read or written"):
        account(tmp_path / "not there").spend_point("a", 13, JOB)


def test_the_file_is_for_this_user_alone_and_holds_no_weight(tmp_path: Path) -> None:
    account(tmp_path).spend_training(13, 300)
    account(tmp_path).spend_point("ab12", 13, JOB)
    content = {"version": 1, "datasets": {"customers": {"trainings": 1, "equations": 13, "points": ["ab12"]}}}
    assert json.loads((tmp_path / LEDGER).read_text()) == content
    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}
