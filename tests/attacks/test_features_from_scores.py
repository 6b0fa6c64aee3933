"""The guest gets scores of the same rows for many weights of the host, and solves for the host's features.

It knows the features of some rows from elsewhere, more rows than the host has columns. On these it fits the map from
scores to features. With as many different scores of a row as the host has columns, the map fits every other row too.
Every job is an ordinary one that the host's other limits permit. The guest's own file permits everything.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.attacks.wire import recording
from tests.support.three_servers import DATASET, load_tables, make_configs, serving, train_over_localhost, write_tables
from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.base.errors import PolicyError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import Algorithm, JobConfig, Lbfgs, Sgd
from trilateral.common.config.process import Policy, ProcessConfig
from trilateral.common.data.model.model_file import load_model
from trilateral.common.data.party_data import read_party_table
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_FINISHED
from trilateral.common.protocol.messages import HoldoutScores
from trilateral.common.rpc.channel import Peer, new_channel
from trilateral.guest_party.prediction import PredictionPlan, predict

N_ROWS, N_HOST, N_KNOWN = 600, 6, 40
ALLOWED = 2
"""Points for six columns under the default policy."""
WITHOUT_LEDGER = {"min_columns_per_point": 0.01}
SMALL_KEYS = {"min_key_bits": 256}


@pytest.fixture(autouse=True)
def exact_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rounding, so that what stops the attack is the ledger alone."""
    for module in ("machine", "score_release"):
        monkeypatch.setattr(f"trilateral.host_party.{module}.round_scores", lambda scores: scores)


def configs_in(folder: Path, **of_host: float) -> dict[Role, ProcessConfig]:
    write_tables(folder, N_ROWS, N_HOST)
    configs = make_configs(folder)
    policy = Policy.model_validate({"allow_prediction": True} | SMALL_KEYS | of_host)
    return configs | {Role.HOST: configs[Role.HOST].model_copy(update={"policy": policy})}


def make_job(number: int, algorithm: Algorithm, l2: float, **settings: float) -> JobConfig:
    options = {"name": f"job-{number}", "dataset": DATASET, "aligned": True, "algorithm": algorithm, "l2": l2}
    return JobConfig.model_validate(options | {"key_bits": 256, "tolerance": 0, "seed": 7} | settings)


def share_of_features_found(scores: list[FloatVector], features: FloatMatrix) -> float:
    """Return the share of the features of the unknown rows that the guest finds to a hundredth of their deviation."""
    known = np.column_stack([*scores, np.ones(len(features))])
    fitted = np.linalg.lstsq(known[:N_KNOWN], features[:N_KNOWN])[0]
    errors = np.abs(known[N_KNOWN:] @ fitted - features[N_KNOWN:]) / features.std(axis=0)
    return float(np.mean(errors < 0.01))


# --- hold-out scores


async def holdout_scores(
    configs: dict[Role, ProcessConfig], jobs: list[JobConfig], patch: pytest.MonkeyPatch
) -> tuple[list[FloatVector], list[str]]:
    """Train, and return the scores of the hold-out rows at each point, and why jobs were refused."""
    scores: list[FloatVector] = []
    refusals = []
    with recording(patch) as recorded:
        async with serving(configs) as client:
            for job in jobs:
                status = await train_over_localhost(client, job)
                if status.state == JOB_STATE_FAILED:
                    refusals.append(status.detail)
    for message in recorded.messages():
        if isinstance(message, HoldoutScores):
            scores.append(message.scores)
    return scores, refusals


def evaluated_jobs(evaluate_every: int) -> list[JobConfig]:
    settings = {"holdout": 0.5, "epochs": 6, "evaluate_every": evaluate_every}
    steps: list[tuple[Algorithm, float]] = [(Lbfgs(), 0.0), (Sgd(learning_rate=0.5), 0.1), (Sgd(), 1.0)]
    return [make_job(number, algorithm, l2, **settings) for number, (algorithm, l2) in enumerate(steps)]


async def test_evaluations_of_some_jobs_give_the_features_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs, jobs = configs_in(tmp_path, **WITHOUT_LEDGER), evaluated_jobs(1)
    scores, refusals = await holdout_scores(configs, jobs, monkeypatch)
    assert refusals == []
    assert share_of_features_found(scores, np.asarray(load_tables(configs, jobs[0]).host.block.holdout_columns)) > 0.99


@pytest.mark.parametrize(("evaluate_every", "n_scores"), [(1, 0), (3, ALLOWED)])
async def test_the_ledger_ends_evaluations_at_a_third_of_the_columns(
    evaluate_every: int, n_scores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs, jobs = configs_in(tmp_path), evaluated_jobs(evaluate_every)
    scores, refusals = await holdout_scores(configs, jobs, monkeypatch)
    assert len(scores) == n_scores
    assert len(refusals) == (3 if n_scores == 0 else 2)
    assert all("the host refuses the job under policy.min_columns_per_point" in refusal for refusal in refusals)
    assert share_of_features_found(scores, np.asarray(load_tables(configs, jobs[0]).host.block.holdout_columns)) < 0.05


# --- predictions by many models


async def predicted_scores(
    configs: Mapping[Role, ProcessConfig], jobs: list[JobConfig]
) -> tuple[list[FloatVector], list[str]]:
    """Train and predict the same rows with each model; return the host's parts, and why predictions were refused."""
    guest = configs[Role.GUEST]
    scores: list[FloatVector] = []
    refusals = []
    async with serving(dict(configs)) as client, new_channel(configs[Role.HOST].listen, None, "") as channel:
        host = Peer(Role.HOST, configs[Role.HOST].listen, channel)
        for job in jobs:
            assert (await train_over_localhost(client, job)).state == JOB_STATE_FINISHED
        for job in [*jobs, jobs[0]]:
            out = guest.state / f"{job.name}.csv"
            missing = out.with_stem("missing")
            plan = PredictionPlan(job=job.name, dataset=DATASET, out=out, missing=missing, aligned=True)
            try:
                await predict(guest, host, plan)
            except PolicyError as error:
                refusals.append(str(error))
                continue
            table = await asyncio.to_thread(read_party_table, guest.datasets[DATASET], job, labelled=True)
            model = load_model(JobFolder(guest.state, job.name).model)
            own = model.steps.transform(table.features) @ np.array(model.training_weights)
            total = pd.read_csv(out, dtype={"id": str}).set_index("id")["score"]
            scores.append(total.reindex([*table.ids]).to_numpy() - own)
    return scores, refusals


def models_without_holdout() -> list[JobConfig]:
    return [
        make_job(number, Sgd(learning_rate=0.3), 0.05 * number, holdout=0, epochs=1 + number) for number in range(8)
    ]


async def test_predictions_by_many_models_give_the_features_away(tmp_path: Path) -> None:
    configs, jobs = configs_in(tmp_path, **WITHOUT_LEDGER), models_without_holdout()
    scores, refusals = await predicted_scores(configs, jobs)
    assert refusals == []
    assert share_of_features_found(scores, np.asarray(load_tables(configs, jobs[0]).host.block.columns)) > 0.99


async def test_the_ledger_ends_predictions_by_further_models_and_repeats_those_of_the_first(tmp_path: Path) -> None:
    configs, jobs = configs_in(tmp_path), models_without_holdout()
    scores, refusals = await predicted_scores(configs, jobs)
    assert len(scores) == ALLOWED + 1
    np.testing.assert_array_equal(scores[0], scores[-1])
    assert len(refusals) == len(jobs) - ALLOWED
    assert all("the host refuses the prediction under policy.min_columns_per_point" in each for each in refusals)
    assert share_of_features_found(scores, np.asarray(load_tables(configs, jobs[0]).host.block.columns)) < 0.05
