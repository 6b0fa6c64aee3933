"""Three servers over localhost train the model of plain numpy, with every cipher."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.three_servers import (
    DATASET,
    check_coef,
    load_tables,
    make_configs,
    plain_model,
    serving,
    train_over_localhost,
    trained_coef,
    write_tables,
)
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import LabelConfig
from trilateral.common.config.job import JobConfig, Lbfgs, Sgd, Sqn
from trilateral.common.data.model.assessment import assess
from trilateral.common.data.model.model_file import load_model
from trilateral.common.jobs.quota import COUNTER
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED
from trilateral.common.protocol import label_secrecy
from trilateral.common.protocol.messages import Kind

ALGORITHMS: dict[str, dict[str, Any]] = {
    "sgd": {"algorithm": Sgd(learning_rate=0.5), "batch": 30},
    "sqn": {"algorithm": Sqn(learning_rate=0.3, interval=2), "batch": 30},
    "lbfgs": {"algorithm": Lbfgs()},
}
CIPHERS: dict[str, dict[str, Any]] = {
    "packed": {"key_bits": 1024},
    "one-slot": {"key_bits": 1024, "slots": 1},
    "reference": {"key_bits": 512, "cipher": "reference"},
}


async def test_every_cipher_trains_the_model_of_plain_numpy(tmp_path: Path) -> None:
    write_tables(tmp_path, n_rows=90)
    configs = make_configs(tmp_path)
    async with serving(configs) as client:
        for algorithm, settings in ALGORITHMS.items():
            for cipher, cipher_settings in CIPHERS.items():
                job = JobConfig.model_validate(
                    {"name": f"{algorithm}-{cipher}", "dataset": DATASET, "epochs": 3, "l2": 0.01}
                    | settings
                    | cipher_settings
                )
                status = await train_over_localhost(client, job)
                assert status.state == JOB_STATE_FINISHED, status.detail
                tables = load_tables(configs, job)
                plain = plain_model(configs, job)
                coef = trained_coef(configs, job)
                check_coef(coef, plain.coef, tables.joined, job)
                np.testing.assert_allclose(
                    tables.joined.columns @ coef, tables.joined.columns @ plain.coef, rtol=0, atol=1e-5
                )
                assert status.loss == pytest.approx(plain.loss, abs=1e-6)


async def test_a_training_with_a_full_size_key_leaves_the_files_of_every_process(tmp_path: Path) -> None:
    write_tables(tmp_path)
    configs = make_configs(tmp_path, min_key_bits=2048)
    job = JobConfig(name="full", dataset=DATASET, algorithm=Sqn(interval=2), batch=30, epochs=2)
    async with serving(configs) as client:
        status = await train_over_localhost(client, job)
    assert status.state == JOB_STATE_FINISHED, status.detail

    tables = load_tables(configs, job)
    plain = plain_model(configs, job)
    check_coef(trained_coef(configs, job), plain.coef, tables.joined, job)

    joined = tables.joined
    scores = joined.holdout_scores(plain.coef)
    expected = assess(scores, joined.holdout_labels, LabelConfig(), joined.labels, intercept=True).metrics
    assert expected is not None
    guest_model = load_model(configs[Role.GUEST].state / "jobs/full/model.json")
    assert guest_model.metrics is not None
    assert guest_model.metrics.log_loss == pytest.approx(expected.log_loss, abs=1e-5)
    assert load_model(configs[Role.HOST].state / "jobs/full/model.json").metrics is None

    for role, config in configs.items():
        history = config.state / "jobs/full/history.jsonl"
        assert history.stat().st_mode & 0o777 == 0o600
        lines = [json.loads(line) for line in history.read_text().splitlines()]
        assert [line["round"] for line in lines] == list(range(1, len(plain.losses) + 1))
        np.testing.assert_allclose([line["loss"] for line in lines], plain.losses, atol=1e-6, err_msg=role)
        assert all(line["seconds"]["all"] > 0 for line in lines)
    sent = json.loads((configs[Role.HOST].state / "jobs/full/history.jsonl").read_text().splitlines()[0])["sent"]
    assert set(sent) == {Kind.SCORES, Kind.SQUARES, Kind.GRADIENT}
    assert sent[Kind.GRADIENT]["ciphertexts"] == 3
    assert sent[Kind.GRADIENT]["bytes"] >= 3 * 512


async def test_evaluations_and_early_stopping_work_over_three_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluations are in the notes of the job and in the guest's files, and nowhere at the host."""
    # When the training stops depends on the start.
    monkeypatch.setattr(label_secrecy, "token_bytes", np.random.default_rng(0).bytes)
    write_tables(tmp_path, n_rows=90, n_host=12, n_guest=12)
    configs = make_configs(tmp_path)
    settings = {"epochs": 6, "evaluate_every": 1, "patience": 1, "key_bits": 1024, "algorithm": Sgd(learning_rate=1.0)}
    job = JobConfig.model_validate({"name": "stops", "dataset": DATASET, "batch": 30, "tolerance": 1e-9} | settings)
    async with serving(configs) as client:
        status = await train_over_localhost(client, job)
        assert status.state == JOB_STATE_FINISHED, status.detail
        notes = list((await client.status(job.name)).notes)
        too_many = await train_over_localhost(client, job.model_copy(update={"name": "more", "epochs": 9}))
    assert too_many.detail == (
        "the host refuses the job under policy.max_evaluations: the maximum is 5; 9 epochs have 8 evaluations, "
        "and fewer with a larger `evaluate_every`; 8 would allow it"
    )

    plain = plain_model(configs, job)
    assert plain.reason.startswith("the hold-out loss did not fall in 1 evaluations")
    assert status.detail == plain.reason
    check_coef(trained_coef(configs, job), plain.coef, load_tables(configs, job).joined, job)

    model = load_model(configs[Role.GUEST].state / "jobs/stops/model.json")
    evaluated = [each.metrics.log_loss for each in model.evaluations]
    assert len(evaluated) >= 2
    told = [note.partition(": log loss")[0] for note in notes if "hold-out rows" in note]
    assert told == [f"after epoch {each.epochs}, on the hold-out rows" for each in model.evaluations]
    shown = [round(each, 6) for each in evaluated]
    for role, expected in ((Role.GUEST, evaluated), (Role.COORDINATOR, shown), (Role.HOST, [])):
        lines = map(json.loads, (configs[role].state / "jobs/stops/history.jsonl").read_text().splitlines())
        assert [line["evaluation"]["log_loss"] for line in lines if "evaluation" in line] == expected
    assert load_model(configs[Role.HOST].state / "jobs/stops/model.json").evaluations == []
    counted = json.loads((configs[Role.HOST].state / COUNTER).read_text())["given"]
    assert counted == 18 * 6
