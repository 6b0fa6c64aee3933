"""The audit logs of a whole training, and of refusals, over real servers."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.three_servers import (
    DATASET,
    LENIENT,
    lenient,
    make_configs,
    serving,
    train_over_localhost,
    write_tables,
)
from trilateral.common.base.errors import ConfigError, ProtocolError
from trilateral.common.base.outcome import Outcome
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, Sgd
from trilateral.common.config.process import Policy, ProcessConfig
from trilateral.common.jobs.journal import Journal
from trilateral.common.jobs.quota import COUNTER
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_FINISHED, JOB_STATE_STOPPED

KEY_REASON = "the guest refuses the job under policy.min_key_bits: the minimum is 512; the job has 256"
Configs = dict[Role, ProcessConfig]
JOB = JobConfig(name="audited", dataset=DATASET, key_bits=512)


@pytest.fixture
def configs(tmp_path: Path) -> Configs:
    write_tables(tmp_path)
    return make_configs(tmp_path)


def audit_lines(configs: Configs, role: Role) -> list[dict[str, Any]]:
    path = configs[role].state / "audit.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def decisions(configs: Configs, role: Role) -> list[tuple[str, str | None]]:
    return [(line["decision"], line.get("method")) for line in audit_lines(configs, role)]


async def test_a_whole_training_is_recorded(configs: Configs) -> None:
    async with serving(configs) as client:
        status = await train_over_localhost(client, JOB)
    assert status.state == JOB_STATE_FINISHED
    ends = {}
    for role, method in ((Role.COORDINATOR, "StartJob"), (Role.HOST, "OpenJob"), (Role.GUEST, "OpenJob")):
        alignment = [("allowed", "OpenAlignment"), ("closed", "OpenAlignment")] if role is Role.HOST else []
        assert decisions(configs, role) == [("allowed", method), *alignment, ("ended", None)]
        allowed, *between, ends[role] = audit_lines(configs, role)
        assert {line["run"] for line in between} <= {allowed["run"]}
        assert (allowed["job"], allowed["dataset"], allowed["run"]) == ("audited", DATASET, ends[role]["run"])
        assert ends[role]["result"] == "finished"
    assert audit_lines(configs, Role.HOST)[0]["role"] == "coordinator"
    assert audit_lines(configs, Role.GUEST)[0]["key_bits"] == 512
    assert audit_lines(configs, Role.HOST)[1]["n_ids"] == {"host": 120, "guest": 120}
    assert audit_lines(configs, Role.HOST)[2]["n_common"] == 120
    host, guest, coordinator = (ends[role] for role in (Role.HOST, Role.GUEST, Role.COORDINATOR))
    history = configs[Role.HOST].state / "jobs/audited/history.jsonl"
    n_rounds = len(history.read_text().splitlines())
    assert {end["rounds"] for end in ends.values()} == {n_rounds}
    assert host["sent"]["guest"]["holdout_scores"] == {"values": 24}
    for sender, receiver, kinds in (
        (host, guest, {"scores", "squares", "holdout_scores"}),
        (guest, host, {"residual"}),
        (host, coordinator, {"gradient"}),
        (guest, coordinator, {"gradient", "loss"}),
    ):
        (to,) = (role for role, end in ends.items() if end is receiver)
        (by,) = (role for role, end in ends.items() if end is sender)
        assert sender["sent"][to] == receiver["received"][by]
        assert set(sender["sent"][to]) == kinds
    assert host["sent"]["coordinator"]["gradient"]["ciphertexts"] == 3 * n_rounds
    assert coordinator["sent"] == {}


async def test_a_refusal_is_in_the_partys_log_and_in_the_coordinators_status(configs: Configs) -> None:
    policy = Policy(**lenient(Role.GUEST, min_key_bits=512, min_batch=97))
    configs[Role.GUEST] = configs[Role.GUEST].model_copy(update={"policy": policy})
    refusals: dict[str, tuple[dict[str, Any], str]] = {
        "key": (
            {"key_bits": 256},
            "the guest refuses the job under policy.min_key_bits: the minimum is 512; the job has 256",
        ),
        "rows": (
            {"holdout": 0.2},
            "the guest refuses the job under policy.min_batch: the minimum is 97; a batch has 96",
        ),
    }
    async with serving(configs) as client:
        for name, (settings, reason) in refusals.items():
            status = await train_over_localhost(client, JOB.model_copy(update={"name": name, **settings}))
            assert (status.state, status.detail) == (JOB_STATE_FAILED, reason)
    lines = audit_lines(configs, Role.GUEST)
    assert [line["reason"] for line in lines if line["decision"] == "refused"] == [
        reason for _, reason in refusals.values()
    ]
    # The key is refused before the job opens, the rows only after they have been counted.
    assert decisions(configs, Role.GUEST) == [
        ("refused", "OpenJob"),
        ("allowed", "OpenJob"),
        ("refused", "OpenJob"),
        ("ended", None),
    ]
    assert lines[-1]["reason"] == refusals["rows"][1]
    for role in (Role.HOST, Role.COORDINATOR):
        ends = [line for line in audit_lines(configs, role) if line["decision"] == "ended"]
        assert [end["reason"] for end in ends] == [reason for _, reason in refusals.values()]


async def test_a_job_that_an_operator_stops_is_stopped_at_all_three_in_the_audit_log_and_the_journal(
    configs: Configs,
) -> None:
    endless = JOB.model_copy(update={"algorithm": Sgd(), "batch": 24, "epochs": 10_000, "tolerance": 0.0})
    async with serving(configs) as client:
        await client.start(endless)
        async for status in client.watch(endless.name):
            if status.round >= 3:
                break
        await client.stop(endless.name)
        assert (await client.status(endless.name)).state == JOB_STATE_STOPPED
    for role, config in configs.items():
        end = audit_lines(configs, role)[-1]
        assert (end["decision"], end["result"], end["reason"]) == ("ended", "stopped", "stopped by the operator")
        journal = Journal(config.state, role, kept_days=1)
        assert [record.outcome for record in journal.all()] == [Outcome.STOPPED]
        journal.close()


async def test_scores_of_hold_out_rows_are_counted_before_they_leave(configs: Configs) -> None:
    policy = Policy(min_key_bits=256, max_scores_a_day=30, **LENIENT)
    configs[Role.HOST] = configs[Role.HOST].model_copy(update={"policy": policy})
    async with serving(configs) as client:
        assert (await train_over_localhost(client, JOB)).state == JOB_STATE_FINISHED
        status = await train_over_localhost(client, JOB.model_copy(update={"name": "one-more"}))
    said = "the host refuses the job under policy.max_scores_a_day: the maximum is 30 scores a day; 6 left until "
    assert status.detail.startswith(said)
    assert " UTC, 24 needed; " in status.detail
    (refused,) = (line for line in audit_lines(configs, Role.HOST) if line["decision"] == "refused")
    assert (refused["method"], refused["reason"]) == ("OpenJob", status.detail)
    assert json.loads((configs[Role.HOST].state / COUNTER).read_text())["given"] == 24


async def test_operators_are_named_whether_they_are_refused_or_not(configs: Configs) -> None:
    coordinator = configs[Role.COORDINATOR]
    operators = coordinator.operators.model_copy(update={"stop": ["guest"]})
    configs[Role.COORDINATOR] = coordinator.model_copy(update={"operators": operators})
    async with serving(configs) as client:
        await train_over_localhost(client, JOB)
        with pytest.raises(ProtocolError, match="may not stop jobs"):
            await client.stop("audited")
    (refused,) = (line for line in audit_lines(configs, Role.COORDINATOR) if line["decision"] == "refused")
    assert (refused["role"], refused["method"], refused["job"]) == ("host", "StopJob", "audited")


async def test_no_job_opens_without_an_audit_log(configs: Configs) -> None:
    blocked = configs[Role.GUEST].state / "audit.jsonl"
    blocked.mkdir(parents=True)
    async with serving(configs) as client:
        status = await train_over_localhost(client, JOB)
        assert status.state == JOB_STATE_FAILED
        assert "the audit log in the folder cannot be written" in status.detail
        assert not (configs[Role.GUEST].state / "jobs/audited").exists()
        (configs[Role.COORDINATOR].state / "audit.jsonl").unlink()
        (configs[Role.COORDINATOR].state / "audit.jsonl").mkdir()
        with pytest.raises(ConfigError, match="the audit log in the folder cannot be written"):
            await client.start(JOB.model_copy(update={"name": "other"}))
        blocked.rmdir()
        (configs[Role.COORDINATOR].state / "audit.jsonl").rmdir()
        assert (await train_over_localhost(client, JOB)).state == JOB_STATE_FINISHED
