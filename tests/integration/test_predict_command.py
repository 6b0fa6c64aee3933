"""`trilateral predict` as the guest's operator runs it, on servers that restarted after the training."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from tests.support.frames import features_of
from tests.support.new_rows import NEW, with_new_rows, write_new_rows
from tests.support.three_processes import write_configs
from tests.support.three_servers import (
    DATASET,
    LENIENT,
    check_coef,
    load_tables,
    make_configs,
    plain_model,
    train_over_localhost,
    trained_coef,
    write_tables,
)
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import Policy, ProcessConfig
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.quota import COUNTER
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED
from trilateral.common.process.job_client import JobClient
from trilateral.common.protocol.evaluation import round_scores
from trilateral.common.trial.development import write_development_files
from trilateral.common.trial.localhost import LocalProcesses

JOB = JobConfig(name="credit", dataset=DATASET, key_bits=2048)
OTHER = JOB.model_copy(update={"name": "churn", "holdout": 0.0, "key_bits": 512})
N_COMMON, N_ONLY = 60, 15


def with_policy(config: ProcessConfig, **settings: bool | int) -> ProcessConfig:
    return config.model_copy(update={"policy": Policy.model_validate({"min_key_bits": 256} | LENIENT | settings)})


def plain_scores(configs: Mapping[Role, ProcessConfig], rows: Mapping[Role, pd.DataFrame]) -> pd.Series:
    """Compare the model with plain numpy; return the scores of the joined new rows, in the guest's order."""
    tables, coef = load_tables(configs, JOB), trained_coef(dict(configs), JOB)
    check_coef(coef, plain_model(configs, JOB).coef, tables.joined, JOB)
    joined = rows[Role.GUEST].merge(rows[Role.HOST], on="id")
    columns = [party.preprocessing.transform(features_of(joined)) for party in (tables.host, tables.guest)]
    n_host = tables.joined.n_host
    scores = round_scores(columns[0] @ coef[:n_host]) + columns[1] @ coef[n_host:]
    return pd.Series(scores, index=joined["id"])


def test_restarted_servers_score_new_rows_and_every_refusal_has_a_reason(tmp_path: Path) -> None:
    tables = write_tables(tmp_path)
    rows = write_new_rows(tmp_path, tables, n_common=N_COMMON, n_only=N_ONLY)
    write_development_files(tmp_path / "certs")
    configs = make_configs(tmp_path, certificates=tmp_path / "certs")
    trained = dict(configs)
    for role in rows:
        configs[role] = with_new_rows(configs[role], tmp_path)
    # After a training with a hold-out of 24 rows, the limit allows one prediction.
    configs[Role.HOST] = with_policy(configs[Role.HOST], allow_prediction=True, max_scores_a_day=24 + N_COMMON)
    paths = write_configs(configs, tmp_path)
    logs = {role: tmp_path / f"{role}.log" for role in Role}
    out = tmp_path / "scores.csv"

    def train() -> None:
        async def run() -> None:
            async with JobClient(configs[Role.GUEST]) as client:
                for job in (JOB, OTHER):
                    assert (await train_over_localhost(client, job)).state == JOB_STATE_FINISHED

        asyncio.run(run())

    def predict() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "trilateral.cli.main", "predict", JOB.name, "--dataset", NEW]
        command += ["--config", str(paths[Role.GUEST]), "--out", str(out)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    with LocalProcesses(paths, logs):
        train()
    expected = plain_scores(trained, rows)
    with LocalProcesses(paths, logs):
        done = predict()
        assert done.returncode == 0, done.stderr
        beyond = predict()
        state = configs[Role.HOST].state
        JobFolder(state, OTHER.name).model.replace(JobFolder(state, JOB.name).model)
        (state / COUNTER).unlink()
        other_half = predict()
    scores = pd.read_csv(out).set_index("id")["score"]
    assert scores.index.tolist() == expected.index.tolist()
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-9)
    missing = tmp_path / "scores.missing.csv"
    assert done.stdout.splitlines() == [
        f"scored {N_COMMON} rows: {out}",
        "probabilities: calibrated by Platt scaling on the hold-out rows; 10 to 99 of the model's rows have the rarer "
        "label",
        f"not at the host: {N_ONLY} of the guest's rows: {missing}",
        f"not at the guest: {N_ONLY} of the host's rows",
    ]
    assert done.stderr.splitlines() == ["reading", "aligning", "scoring", "writing"]
    assert len(pd.read_csv(missing)) == N_ONLY

    assert (beyond.returncode, other_half.returncode) == (1, 1)
    assert "Traceback" not in beyond.stderr + other_half.stderr
    assert (
        "error: the host refuses the prediction under policy.max_scores_a_day: the maximum is 84 scores a day; 0 left"
        in beyond.stderr
    )
    assert f"holds the host's part of job {OTHER.name}, run " in other_half.stderr

    audit = [json.loads(line) for line in (state / "audit.jsonl").read_text().splitlines()]
    asked = [line["decision"] for line in audit if line.get("method") == "OpenPrediction"]
    assert asked == ["allowed", "ended", "refused", "refused"]
    ids = {one for table in rows.values() for one in table["id"]}
    texts = [*(path.read_text() for path in logs.values()), (state / "audit.jsonl").read_text()]
    assert not any(one in text for text in texts for one in ids)
