"""Each setting of a policy allows a job at its limit, refuses a job one beyond it, and is named in the refusal."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import PolicyError, notes
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import Policy
from trilateral.common.jobs.policy import (
    check_effective_rows,
    check_holdout,
    check_job,
    check_label_secrecy,
    check_peer_columns,
    check_prediction,
    check_sizes,
    max_peer_features,
    scored_points,
)
from trilateral.common.protocol.block import TrainingBlock
from trilateral.common.protocol.label_secrecy import LabelSecrecy

SGD, SQN = {"name": "sgd"}, {"name": "sqn", "curvature_batch": 100}
LISTED = {"features": ["a", "b"]}


def make_job(**settings: Any) -> JobConfig:
    return JobConfig.model_validate({"name": "credit-7", "dataset": "people", **settings})


def allowing(refusal: BaseException) -> float:
    """Return the value of the setting that would allow what was refused, as the refusal says."""
    said = re.search(r"; ([\d.]+) would allow it", str(refusal))
    assert said is not None, refusal
    return float(said[1])


def offer(role: Role, policy: dict[str, Any], dataset: dict[str, Any], job: dict[str, Any]) -> None:
    table = DatasetConfig.model_validate({"path": Path("never-read.csv"), **dataset})
    check_job(make_job(**job), Policy.model_validate(policy), table, role)


ON_SHARES: dict[str, Any] = {"protocol": "shares", "holdout": 0}
BY_THE_JOB: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    # policy, dataset, the job that is allowed, the one that is not, and what is said of it
    "key": (
        {"min_key_bits": 2048},
        {},
        {"key_bits": 2048},
        {"key_bits": 2046},
        "policy.min_key_bits: the minimum is 2048; the job has 2046",
    ),
    "inference": (
        {"share_inference": False},
        {},
        ON_SHARES,
        {**ON_SHARES, "inference": True},
        "policy.share_inference: the ",
    ),
    "protocol": (
        {"protocols": ["paillier"]},
        {},
        {},
        {"protocol": "shares"},
        "policy.protocols: the setting allows paillier; the job has `protocol: shares`",
    ),
    "epochs": (
        {"max_epochs": 40},
        {},
        {"epochs": 40},
        {"epochs": 41},
        "policy.max_epochs: the maximum is 40; the job has 41; 41 would allow it",
    ),
    "rounds of a job that takes all rows at once": (
        {"max_rounds": 42},
        {},
        {"epochs": 40},
        {"epochs": 41},
        "policy.max_rounds: the maximum is 42; 41 epochs of 1 batches have 43 rounds; 43 would allow it",
    ),
    "batch": (
        {},
        {},
        {"algorithm": SGD, "batch": 100},
        {"algorithm": SGD, "batch": 99},
        "policy.min_batch: the minimum is 100; the job's batch has 99",
    ),
    "curvature batch": (
        {},
        {},
        {"algorithm": SQN},
        {"algorithm": {**SQN, "curvature_batch": 99}},
        "policy.min_batch: the minimum is 100; the job's curvature batch has 99",
    ),
    "the name of the job": (
        {},
        {"jobs": ["churn-*", "credit-?"]},
        {"name": "credit-8"},
        {"name": "credit-10"},
        "datasets.people.jobs: the setting does not include a job named credit-10",
    ),
    "evaluations": (
        {"max_evaluations": 4},
        {},
        {"epochs": 10, "evaluate_every": 2},
        {"epochs": 11, "evaluate_every": 2},
        "policy.max_evaluations: the maximum is 4; 11 epochs have 5 evaluations, "
        "and fewer with a larger `evaluate_every`; 5 would allow it",
    ),
}
BY_THE_JOB["fits"] = (
    {"max_fits": 50},
    {},
    {"protocol": "shares", "l2": 1, "folds": 7, "path": {"points": 7}},
    {"protocol": "shares", "l2": 1, "folds": 5, "path": {"points": 10}},
    "policy.max_fits: the maximum is 50; 10 penalties with 5 folds: 51 fits; 51 would allow it",
)
BY_THE_JOB["rounds of fits"] = (
    {"max_rounds": 300},
    {},
    {"protocol": "shares", "folds": 8, "epochs": 32},
    {"protocol": "shares", "folds": 9, "epochs": 32},
    "policy.max_rounds: the maximum is 300; 10 fits of 32 epochs have 329 rounds; 329 would allow it",
)
AT_THE_HOST: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "hold-out": (
        {},
        {"holdout": 0.5},
        {"holdout": 0.51},
        "policy.max_holdout: the maximum is 0.5; the job has 0.51; 0.51 would allow it",
    ),
    "no hold-out": (
        {"share_holdout_scores": False},
        {"holdout": 0},
        {"holdout": 0.2},
        "policy.share_holdout_scores: the host does not share scores of hold-out rows: set `holdout: 0`",
    ),
}


@pytest.mark.parametrize("role", [Role.HOST, Role.GUEST])
@pytest.mark.parametrize("line", BY_THE_JOB)
def test_a_setting_that_needs_only_the_job(line: str, role: Role) -> None:
    policy, dataset, allowed, refused, said = BY_THE_JOB[line]
    offer(role, policy, dataset, allowed)
    with pytest.raises(PolicyError) as refusal:
        offer(role, policy, dataset, refused)
    assert str(refusal.value).startswith(f"the {role} refuses the job under {said}")


def test_the_size_of_a_key_does_not_matter_to_a_protocol_without_keys() -> None:
    offer(Role.HOST, {"min_key_bits": 4096}, {}, {"protocol": "shares"})


@pytest.mark.parametrize("weights", [{"weight": "exposure"}, {"class_weight": "balanced"}])
def test_rows_with_weights_cannot_be_trained_on_under_paillier(weights: dict[str, Any]) -> None:
    dataset = {"label": {"column": "y", **weights}}
    offer(Role.GUEST, {}, dataset, {"protocol": "shares"})
    with pytest.raises(PolicyError) as refusal:
        offer(Role.GUEST, {}, dataset, {})
    (name,) = weights
    assert str(refusal.value) == (
        f"the guest refuses the job under datasets.people.label.{name}: a ciphertext holds many rows and can only be"
        " multiplied as a whole, so all rows count alike: set `protocol: shares` in the job, or remove the setting"
    )


@pytest.mark.parametrize("line", AT_THE_HOST)
def test_a_setting_on_the_scores_that_the_host_shares(line: str) -> None:
    policy, allowed, refused, said = AT_THE_HOST[line]
    offer(Role.HOST, policy, {}, allowed)
    with pytest.raises(PolicyError, match=said):
        offer(Role.HOST, policy, {}, refused)
    offer(Role.GUEST, policy, {}, refused)  # who gives nothing away by it


@pytest.mark.parametrize(
    ("policy", "job", "allowed", "refused", "said"),
    [
        ({}, {}, 100, 99, "policy.min_batch: the minimum is 100; a batch has 99"),
        (
            {"max_rounds": 82},
            {"algorithm": SGD, "batch": 100, "epochs": 40},
            299,
            300,
            "policy.max_rounds: the maximum is 82; 40 epochs of 3 batches have 122 rounds; 122 would allow it",
        ),
    ],
)
def test_a_setting_that_needs_the_tables_size(
    policy: dict[str, Any], job: dict[str, Any], allowed: int, refused: int, said: str
) -> None:
    check_sizes(make_job(**job), Policy.model_validate(policy), allowed, Role.GUEST)
    with pytest.raises(PolicyError, match=said):
        check_sizes(make_job(**job), Policy.model_validate(policy), refused, Role.GUEST)


@pytest.mark.parametrize(
    ("job", "n_train", "most", "has"),
    [
        ({}, 150, 5, "a batch has 150"),
        ({"algorithm": SGD, "batch": 100}, 1000, 3, "a batch has 100"),
        ({"algorithm": SQN, "batch": 120}, 1000, 3, "a curvature batch has 100"),
    ],
)
def test_each_party_bounds_the_features_of_the_other(job: dict[str, Any], n_train: int, most: int, has: str) -> None:
    settings = make_job(**job)
    assert max_peer_features(settings, Policy(), n_train) == most
    check_peer_columns(settings, Policy(), n_train, most, Role.GUEST)
    check_peer_columns(settings, Policy(), n_train, most + 1, Role.HOST)  # the guest's intercept does not count
    check_peer_columns(make_job(**job, intercept=False), Policy(), n_train, most, Role.HOST)
    with pytest.raises(PolicyError, match=f"{most + 1} features of the guest"):
        check_peer_columns(make_job(**job, intercept=False), Policy(), n_train, most + 1, Role.HOST)
    needed = 30 * (most + 1)
    for role, peer, n_columns in ((Role.GUEST, Role.HOST, most + 1), (Role.HOST, Role.GUEST, most + 2)):
        with pytest.raises(PolicyError) as refusal:
            check_peer_columns(settings, Policy(), n_train, n_columns, role)
        assert str(refusal.value) == (
            f"the {role} refuses the job under policy.min_rows_per_feature: the minimum is 30 rows for each of the"
            f" {most + 1} features of the {peer}, {needed} rows; {has}, which allows {most} features;"
            f" {allowing(refusal.value):g} would allow it"
        )
        lower = Policy(min_rows_per_feature=int(allowing(refusal.value)))
        check_peer_columns(settings, lower, n_train, n_columns, role)


def test_on_shares_the_other_party_sees_no_batch_but_the_coordinator_does() -> None:
    job = make_job(protocol="shares", algorithm=SGD, batch=100)
    assert max_peer_features(job, Policy(), 1000) == 33
    check_peer_columns(job, Policy(), 1000, 33, Role.GUEST)
    with pytest.raises(PolicyError, match="the training set has 1000, which allows 33 features"):
        check_peer_columns(job, Policy(), 1000, 34, Role.GUEST)
    check_sizes(job, Policy(), 1000, Role.HOST)
    with pytest.raises(PolicyError, match="min_batch: the minimum is 101; a batch has 100"):
        check_sizes(job, Policy(min_batch=101), 1000, Role.HOST)


def test_on_shares_the_host_scores_its_hold_out_rows_once() -> None:
    often = {"epochs": 10, "evaluate_every": 2}
    assert scored_points(make_job(**often), 50, Role.HOST) == 5
    assert scored_points(make_job(**often, protocol="shares"), 50, Role.HOST) == 1
    assert scored_points(make_job(**often, protocol="shares"), 0, Role.HOST) == 0
    with pytest.raises(PolicyError, match=r"policy\.max_evaluations"):
        offer(Role.HOST, {"max_evaluations": 3}, {}, {**often, "protocol": "shares"})


def weighted(weights: FloatVector) -> TrainingBlock:
    columns, labels = np.ones((len(weights), 1)), np.where(np.arange(len(weights)) % 2, 1.0, -1.0)
    return TrainingBlock(columns, columns[:0], labels, labels[:0], np.eye(1), sample_weights=weights, weight_bits=0)


@pytest.mark.parametrize("batch", [{}, {"algorithm": SGD, "batch": 150}])
def test_the_coordinator_gets_no_mean_that_a_few_heavy_rows_dominate(batch: dict[str, Any]) -> None:
    job, policy = make_job(protocol="shares", **batch), Policy()
    check_effective_rows(job, policy, weighted(np.ones(150)), Role.GUEST)
    check_effective_rows(job, policy, weighted(np.where(np.arange(150) < 100, 1.0, 0.0)), Role.GUEST)
    with pytest.raises(PolicyError) as refusal:
        check_effective_rows(job, policy, weighted(np.where(np.arange(150) < 75, 1.0, 0.0)), Role.GUEST)
    assert str(refusal.value) == (
        "the guest refuses the job under policy.min_batch: the minimum is 100, and by the weights of its rows a batch"
        " counts as fewer rows: use larger batches or more even weights; the guest's log has the number"
    )
    assert notes(refusal.value) == ["a batch counts as 75.0 rows of equal weight"]
    check_effective_rows(job, Policy(min_batch=75), weighted(np.where(np.arange(150) < 75, 1.0, 0.0)), Role.GUEST)


def test_on_shares_the_guest_is_told_what_the_loss_costs() -> None:
    labels = LabelSecrecy.of_result(np.repeat([-1.0, 1.0], 60), None)
    job = make_job(protocol="shares", algorithm=SGD, batch=100)
    check_label_secrecy(job, Policy(), labels, 1)
    with pytest.raises(PolicyError, match="from its weights, a host with 2 columns .* try more rows or") as refusal:
        check_label_secrecy(job, Policy(), labels, 2)
    assert notes(refusal.value) == [
        "the labels have 116.2 bits of entropy, enough for 2 equations; 1 equation is the loss that the host is told:"
        " policy.min_label_bits allows the host 1 columns; 2 columns are sure to be allowed with 1.4 times as many"
        " rows in each batch"
    ]


@pytest.mark.parametrize("settings", [{}, {"algorithm": SGD, "batch": 100}])
def test_the_guest_needs_bits_of_labels_for_each_column_of_the_host(settings: dict[str, Any]) -> None:
    job, labels = make_job(**settings), LabelSecrecy([800.0, 180.0], 0)
    check_label_secrecy(job, Policy(), labels, 3)
    check_label_secrecy(job, Policy(min_label_bits=45), labels, 4)
    check_label_secrecy(job, Policy(min_label_bits=0), labels, 1000)
    with pytest.raises(PolicyError) as refusal:
        check_label_secrecy(job, Policy(), labels, 4)
    ways = "larger batches, `batch: all`" if settings else "more rows"
    text = str(refusal.value)
    assert text.startswith("the guest refuses the job under policy.min_label_bits: ")
    assert "a host with 4 columns" in text
    assert ways in text


def test_the_numbers_that_a_refusal_would_need_stay_with_the_guest() -> None:
    """How many rows have the rarer label follows from the bits."""
    refusals = []
    for bits in (0.0, 29.84, 150.0):
        with pytest.raises(PolicyError) as refusal:
            check_label_secrecy(make_job(), Policy(), LabelSecrecy([bits], 0), 13)
        refusals.append(refusal.value)
    assert len({str(refusal) for refusal in refusals}) == 1
    assert [notes(refusal) for refusal in refusals] == [
        [
            "the labels have 0.0 bits of entropy, enough for 0 equations; the secret start covers 0 further ones:"
            " policy.min_label_bits allows the host 0 columns"
        ],
        [
            "the labels have 29.8 bits of entropy, enough for 0 equations; the secret start covers 0 further ones:"
            " policy.min_label_bits allows the host 0 columns; 13 columns are sure to be allowed"
            " with 24.4 times as many rows in each batch"
        ],
        [
            "the labels have 150.0 bits of entropy, enough for 2 equations; the secret start covers 0 further ones:"
            " policy.min_label_bits allows the host 2 columns; 13 columns are sure to be allowed"
            " with 4.9 times as many rows in each batch"
        ],
    ]


def test_a_refusal_of_inference_counts_pairs_of_columns_and_says_what_to_leave_out() -> None:
    job = make_job(protocol="shares", inference=True)
    labels = LabelSecrecy([104 * 56.0], 0, n_told=1, has_inference=True)
    check_label_secrecy(job, Policy(), labels, 12)
    with pytest.raises(PolicyError, match="or fewer columns or `inference: false`; the guest's log has") as caught:
        check_label_secrecy(job, Policy(), labels, 13)
    (note,) = notes(caught.value)
    assert "with `inference`, each pair of the host's columns is one more" in note
    assert "allows the host 12 columns; 13 columns are sure to be allowed with 1.0 times as many rows" in note


def test_the_guest_does_not_evaluate_a_hold_out_smaller_than_its_minimum_batch() -> None:
    job, policy = make_job(evaluate_every=5), Policy()
    check_holdout(job, policy, 100, Role.GUEST)
    check_holdout(make_job(), policy, 99, Role.GUEST)
    check_holdout(job, policy, 99, Role.HOST)  # The host does not report an evaluation to anyone.
    said = "the guest refuses the job under policy.min_batch: the minimum is 100; the hold-out on which the job is eval"
    with pytest.raises(PolicyError, match=said):
        check_holdout(job, policy, 99, Role.GUEST)


def test_the_default_policy_allows_the_jobs_that_come_with_the_project() -> None:
    of_paillier: list[dict[str, Any]] = [
        {},
        {"algorithm": SGD, "batch": 450},
        {"algorithm": {"name": "sqn"}, "batch": 450},
    ]
    for settings in (*of_paillier, {"protocol": "shares"}):
        offer(Role.HOST, {}, {}, settings)
        check_sizes(make_job(**settings), Policy(), 455, Role.HOST)
        check_peer_columns(make_job(**settings), Policy(), 455, 15, Role.GUEST)
        check_peer_columns(make_job(**settings), Policy(), 455, 16, Role.HOST)  # 15 and the intercept


def predict(role: Role, job: str, **policy: Any) -> None:
    table = DatasetConfig(path=Path("never-read.csv"), jobs=["credit-*"])
    assert check_prediction(job, "people", {"people": table}, Policy.model_validate(policy), role) is table


def test_prediction_needs_a_separate_permission_that_is_off_by_default() -> None:
    predict(Role.HOST, "credit-7", allow_prediction=True)
    with pytest.raises(PolicyError, match="the host refuses the prediction under policy.allow_prediction: "):
        predict(Role.HOST, "credit-7")
    predict(Role.GUEST, "credit-7")


@pytest.mark.parametrize("role", [Role.HOST, Role.GUEST])
def test_only_jobs_that_may_use_a_table_may_predict_on_it(role: Role) -> None:
    with pytest.raises(PolicyError) as refusal:
        predict(role, "churn", allow_prediction=True)
    said = (
        f"the {role} refuses the prediction under datasets.people.jobs: the setting does not include a job named churn"
    )
    assert str(refusal.value) == said
    with pytest.raises(PolicyError, match=f"the {role} has no dataset named others: "):
        check_prediction("credit-7", "others", {}, Policy(allow_prediction=True), role)
