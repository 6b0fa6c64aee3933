"""What a guest's process does for its labels: a start of its own, a refusal, and a training without features."""

import json
import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.support.new_rows import NEW, plain_scores, with_new_rows, write_new_rows
from tests.support.three_servers import (
    DATASET,
    check_coef,
    check_model,
    lenient,
    load_tables,
    make_configs,
    serving,
    train_over_localhost,
    trained_coef,
    write_tables,
)
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig, Sgd
from trilateral.common.config.process import Policy, ProcessConfig
from trilateral.common.data.model.export import scikit_learn_json, weights_csv
from trilateral.common.data.model.model_file import load_model
from trilateral.common.jobs import party_jobs
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.journal import Journal
from trilateral.common.jobs.party_record import read_start
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_FINISHED, JOB_STATE_TRAINING
from trilateral.common.rpc.channel import Peer, new_channel
from trilateral.coordinator.numpy_training import train_plain
from trilateral.guest_party.prediction import PredictionPlan, predict

Configs = dict[Role, ProcessConfig]
JOB = JobConfig(name="first", dataset=DATASET, key_bits=512)


@pytest.fixture
def configs(tmp_path: Path) -> Configs:
    write_tables(tmp_path)
    return make_configs(tmp_path)


def with_policy(configs: Configs, role: Role, policy: Policy) -> Configs:
    return configs | {role: configs[role].model_copy(update={"policy": policy})}


# --- the start


async def test_each_training_has_a_start_of_its_own_and_the_same_optimum(configs: Configs) -> None:
    jobs = [JOB.model_copy(update={"name": name, "tolerance": 0.0, "epochs": 12}) for name in ("first", "second")]
    async with serving(configs) as client:
        for job in jobs:
            assert (await train_over_localhost(client, job)).state == JOB_STATE_FINISHED
    starts = [read_start(configs[Role.GUEST].state, job.name) for job in jobs]
    assert starts[0] is not None
    assert starts[1] is not None
    assert (starts[0] != starts[1]).all()
    for job in jobs:
        check_model(configs, job)
        assert read_start(configs[Role.HOST].state, job.name) is None
    coefs = [trained_coef(configs, job) for job in jobs]
    np.testing.assert_allclose(coefs[0], coefs[1], rtol=0, atol=1e-5)


async def test_the_start_is_in_the_guests_journal_and_nowhere_else(configs: Configs) -> None:
    async with serving(configs) as client:
        assert (await train_over_localhost(client, JOB)).state == JOB_STATE_FINISHED
    start = read_start(configs[Role.GUEST].state, JOB.name)
    assert start is not None
    digits = [repr(float(weight))[1:12].lstrip("-").encode() for weight in start]
    for role in Role:
        for path in configs[role].state.rglob("*"):
            found = path.is_file() and any(one in path.read_bytes() for one in digits)
            assert not found or (role is Role.GUEST and path.name.startswith("journal.sqlite")), path


async def interrupt_and_forget_the_start(configs: Configs, job: JobConfig) -> None:
    """Begin a job and stop it, and remove the start from the guest's journal."""
    async with serving(configs) as client:
        await client.start(job)
        async for status in client.watch(job.name):
            if status.state == JOB_STATE_TRAINING and status.round >= 3:
                break
        await client.stop(job.name)
    change_journal(configs, Role.GUEST, "DELETE FROM fact WHERE name = 'start'")


def change_journal(configs: Configs, role: Role, statement: str) -> None:
    journal = Journal(configs[role].state, role, kept_days=1)
    with journal._changing() as database:
        database.execute(statement)
    journal.close()


async def resume(configs: Configs, job: JobConfig) -> None:
    async with serving(configs) as client:
        await client.resume(job.name)
        async for status in client.watch(job.name):
            last = status
    assert last.state == JOB_STATE_FINISHED, last.detail


LONG = JOB.model_copy(update={"algorithm": Sgd(learning_rate=0.3), "batch": 30, "epochs": 40, "tolerance": 0.0})


async def test_a_job_that_an_older_release_began_resumes_from_zero(
    configs: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its journal has rounds but no start, and the steps that its parties have taken began at zero."""
    with monkeypatch.context() as older:
        older.setattr(party_jobs, "draw_start", lambda columns: np.zeros(columns.shape[1]))
        await interrupt_and_forget_the_start(configs, LONG)
    await resume(configs, LONG)
    assert read_start(configs[Role.GUEST].state, LONG.name) is None
    joined = load_tables(configs, LONG).joined
    plain = train_plain(LONG, joined.columns, joined.labels, joined.penalty)
    check_coef(trained_coef(configs, LONG), plain.coef, joined, LONG)


async def test_a_job_without_a_round_gets_a_secret_start_whatever_is_said_of_earlier_sessions(configs: Configs) -> None:
    """A coordinator could otherwise say that a job has begun, to have it begin at zero."""
    await interrupt_and_forget_the_start(configs, LONG)
    for role in Role:
        change_journal(configs, role, "DELETE FROM round")
    await resume(configs, LONG)
    check_model(configs, LONG)  # which asserts that there is a start


# --- the refusal


async def test_a_refusal_names_the_setting_to_all_and_the_numbers_to_the_guest_alone(
    configs: Configs, caplog: pytest.LogCaptureFixture
) -> None:
    configs = with_policy(configs, Role.GUEST, Policy(**lenient(Role.GUEST, min_key_bits=256, min_label_bits=56)))
    job = JOB.model_copy(update={"algorithm": Sgd(), "batch": 30})
    with caplog.at_level(logging.WARNING):
        async with serving(configs) as client:
            status = await train_over_localhost(client, job)
    assert status.state == JOB_STATE_FAILED
    assert status.detail == (
        "the guest refuses the job under policy.min_label_bits: from its steps, a host with 3 columns could learn too"
        " much about the labels: try larger batches, `batch: all` or fewer columns; the guest's log has the"
        " numbers"
    )
    assert "allows the host 0 columns" in caplog.text
    lines = [json.loads(line) for line in (configs[Role.GUEST].state / "audit.jsonl").read_text().splitlines()]
    assert any(line["decision"] == "refused" and line["reason"] == status.detail for line in lines)
    # No other process has more than the public text.
    for role in (Role.HOST, Role.COORDINATOR):
        for path in configs[role].state.rglob("*"):
            assert not path.is_file() or b"bits of entropy" not in path.read_bytes()


# --- a guest without features


async def test_a_job_that_cannot_weight_rows_is_refused_before_any_table_is_read(configs: Configs) -> None:
    guest = configs[Role.GUEST]
    dataset = guest.datasets[JOB.dataset]
    label = dataset.label
    assert label is not None
    dataset = dataset.model_copy(
        update={"path": Path("gone.csv"), "label": label.model_copy(update={"class_weight": "balanced"})}
    )
    weighted = {**configs, Role.GUEST: guest.model_copy(update={"datasets": {JOB.dataset: dataset}})}
    async with serving(weighted) as client:
        status = await train_over_localhost(client, JOB)
    assert status.state == JOB_STATE_FAILED
    assert status.detail == (
        f"the guest refuses the job under datasets.{JOB.dataset}.label.class_weight: a ciphertext holds many rows and"
        " can only be multiplied as a whole, so all rows count alike: set `protocol: shares` in the job, or remove the"
        " setting"
    )


async def test_a_guest_with_labels_and_no_features_trains_predicts_and_exports(
    tmp_path: Path,
) -> None:
    tables = write_tables(tmp_path, n_rows=400)
    tables[Role.GUEST] = tables[Role.GUEST][["id", "label"]]
    tables[Role.GUEST].to_csv(tmp_path / "guest.csv", index=False)
    rows = write_new_rows(tmp_path, tables)
    configs = make_configs(tmp_path)
    guests = Policy(**lenient(Role.GUEST, min_key_bits=256, min_label_bits=Policy().min_label_bits))
    hosts = Policy(**lenient(Role.HOST, min_key_bits=256, allow_prediction=True))
    configs = with_policy(with_policy(configs, Role.GUEST, guests), Role.HOST, hosts)
    configs |= {role: with_new_rows(configs[role], tmp_path) for role in PARTIES}
    async with serving(configs) as client:
        status = await train_over_localhost(client, JOB)
        assert status.state == JOB_STATE_FINISHED, status.detail
        host = configs[Role.HOST].listen
        async with new_channel(host, None, "") as channel:
            plan = PredictionPlan(
                job=JOB.name, dataset=NEW, out=tmp_path / "scores.csv", missing=tmp_path / "missing.csv"
            )
            counts = await predict(configs[Role.GUEST], Peer(Role.HOST, host, channel), plan)
    check_model(configs, JOB)
    model = load_model(JobFolder(configs[Role.GUEST].state, JOB.name).model)
    assert model.weights == {}
    assert len(model.training_weights) == 1
    assert json.loads(scikit_learn_json(model))["coef_"] == [[]]
    assert weights_csv(model).count("\n") == 2  # the names of the columns, and the intercept
    assert counts.n_scored == 60
    scores = pd.read_csv(tmp_path / "scores.csv", dtype={"id": str}).set_index("id")["score"]
    expected = plain_scores(configs, JOB.name, rows)
    np.testing.assert_allclose(scores[expected.index], expected, atol=1e-9)


async def test_a_guest_without_features_needs_the_intercept(tmp_path: Path) -> None:
    tables = write_tables(tmp_path, n_rows=400)
    tables[Role.GUEST][["id", "label"]].to_csv(tmp_path / "guest.csv", index=False)
    async with serving(make_configs(tmp_path)) as client:
        status = await train_over_localhost(client, JOB.model_copy(update={"intercept": False}))
    assert status.detail == (
        "the guest: the table has no features, so a model needs the intercept: remove `intercept: false`"
    )
