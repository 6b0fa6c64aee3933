"""Processes that are killed in the step of inference, in a search or in a bins job end it with the same result."""

import asyncio
import random
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.faults.killing import Fault, Victims, Way
from tests.integration.test_bins_job import BINS, PERMITTED, bins_of, check_counts, configured, joined
from tests.integration.test_choose_by_auc import JOB as BY_AUC
from tests.integration.test_choose_by_auc import configs_in as choosing_by_auc
from tests.integration.test_inference import permitting
from tests.integration.test_search import JOB as SEARCH
from tests.support.three_servers import DATASET, load_tables, make_configs, trained_coef, write_tables
from tests.support.waiting import SECONDS
from trilateral.common.base.errors import TrilateralError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.model.inference import infer
from trilateral.common.data.model.model_file import load_model
from trilateral.common.jobs.account import Account
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.journal import JOURNAL
from trilateral.common.jobs.ledger import Ledger
from trilateral.common.jobs.party_record import _asked
from trilateral.common.jobs.states import ENDED
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED, JobStatus
from trilateral.common.process.job_client import JobClient
from trilateral.common.protocol.logistic import slope
from trilateral.common.protocol.messages import BeginRound
from trilateral.common.shares.information import pack
from trilateral.coordinator.numpy_training import train_plain

INFERENCE = JobConfig(name="inferred", dataset=DATASET, protocol="shares", inference=True)
Configs = Mapping[Role, ProcessConfig]
IsDue = Callable[[JobStatus], bool]


def run_and_kill(job: JobConfig, configs: Configs, folder: Path, role: Role, is_due: IsDue) -> JobStatus:
    """Start a job, kill a process as soon as it is due, start it again, and return the status at the end."""
    with Victims(configs, folder) as processes:
        try:
            return asyncio.run(_follow(job, configs[Role.COORDINATOR], processes, role, is_due))
        except (AssertionError, TimeoutError, TrilateralError) as error:
            raise AssertionError(f"{error}\n{processes.log_tails()}") from error


async def _follow(job: JobConfig, config: ProcessConfig, processes: Victims, role: Role, is_due: IsDue) -> JobStatus:
    async with JobClient(config) as client, asyncio.timeout(SECONDS):
        await client.start(job)
        while not is_due(status := await client.status(job.name)):
            assert status.state not in ENDED, f"the job ended before: {status.detail}"
            await asyncio.sleep(0.002)
        await processes.strike(Fault(status.round, Way.KILLED, (role,)), random.Random(0))
        while True:
            try:
                status = await client.status(job.name)
            except TrilateralError:  # The coordinator is not back yet.
                status = JobStatus()
            if status.state in ENDED:
                break
            await asyncio.sleep(0.05)
    assert status.state == JOB_STATE_FINISHED, status.detail
    assert any("another session" in note for note in status.notes), "the job had ended before"
    return status


def newest_round(config: ProcessConfig) -> BeginRound | None:
    """Return the newest round that a party's journal has."""
    with closing(sqlite3.connect(config.state / JOURNAL)) as database:
        found = database.execute("SELECT content FROM round ORDER BY number DESC LIMIT 1").fetchone()
    asked = None if found is None else _asked(found[0])
    return asked if isinstance(asked, BeginRound) else None


def has_begun_inference(config: ProcessConfig) -> bool:
    """Return whether a party's journal has the step of inference."""
    newest = newest_round(config)
    return newest is not None and newest.information


def opens_scores(config: ProcessConfig) -> bool:
    """Return whether the newest round of a party's journal is about the last fold alone."""
    newest = newest_round(config)
    return newest is not None and newest.batch.held_out and newest.batch.fold == BY_AUC.folds


@pytest.mark.parametrize("role", Role)
def test_a_kill_in_the_step_of_inference_changes_no_standard_error(role: Role, tmp_path: Path) -> None:
    # With so many rows, the step is still going on when it is seen in the journal.
    write_tables(tmp_path, n_rows=25_000)
    configs = permitting(make_configs(tmp_path), *PARTIES)
    watched = configs[Role.HOST if role is Role.COORDINATOR else role]
    run_and_kill(INFERENCE, configs, tmp_path, role, lambda status: status.round > 2 and has_begun_inference(watched))

    table, coef = load_tables(configs, INFERENCE).joined, trained_coef(configs, INFERENCE)
    X = table.columns
    exact = np.asarray(np.linalg.inv(X.T @ (X * slope(X @ coef)[:, np.newaxis])), dtype=np.float64)
    for party, part in ((Role.HOST, slice(table.n_host)), (Role.GUEST, slice(table.n_host, None))):
        model = load_model(JobFolder(configs[party].state, INFERENCE.name).model)
        assert model.inference is not None
        wanted = infer(model.steps, coef[part], pack(exact[part, part]), []).terms
        for name, each in model.inference.terms.items():
            assert each.std_error == pytest.approx(wanted[name].std_error, rel=3e-4)


@pytest.mark.parametrize("role", [Role.COORDINATOR, Role.HOST])
def test_a_search_whose_process_is_killed_goes_on_and_chooses_the_same_penalty(role: Role, tmp_path: Path) -> None:
    write_tables(tmp_path, n_rows=1500)
    configs = make_configs(tmp_path)
    status = run_and_kill(SEARCH, configs, tmp_path, role, lambda status: status.fits_done >= 5)
    assert (status.fits_done, status.n_fits) == (12, 13)
    models = [load_model(JobFolder(configs[party].state, SEARCH.name).model) for party in PARTIES]
    table = load_tables(configs, SEARCH).joined
    plain = train_plain(SEARCH, table.columns, table.labels, table.penalty, n_host=table.n_host)
    search = models[1].search
    assert [each.chosen for each in search].count(True) == 1
    coef = np.concatenate([model.training_weights for model in models])
    np.testing.assert_allclose(coef, plain.coef, rtol=0, atol=5e-3)
    np.testing.assert_array_equal(coef == 0, plain.coef == 0)


@pytest.mark.parametrize("role", list(Role))
def test_a_kill_while_scores_of_a_fold_are_opened_needs_no_further_point(role: Role, tmp_path: Path) -> None:
    configs = choosing_by_auc(tmp_path, n_rows=20_000, min_columns_per_point=2)
    account = Account(Ledger(configs[Role.HOST].state, Role.HOST), configs[Role.HOST].policy, DATASET, Role.HOST)
    assert account.max_points(6) == len(BY_AUC.penalties)
    watched = configs[Role.HOST if role is Role.COORDINATOR else role]
    run_and_kill(BY_AUC, configs, tmp_path, role, lambda _: opens_scores(watched))
    assert len(account.ledger.entry(DATASET).points) == len(BY_AUC.penalties)
    table = load_tables(configs, BY_AUC).joined
    plain = train_plain(BY_AUC, table.columns, table.labels, table.penalty)
    search = load_model(JobFolder(configs[Role.GUEST].state, BY_AUC.name).model).search
    assert [each.auc for each in search] == pytest.approx([each.auc for each in plain.compared], abs=1e-3)
    assert [each.chosen for each in search] == [each.is_chosen for each in plain.compared]


@pytest.mark.parametrize("role", PARTIES)
def test_a_bins_job_whose_process_is_killed_starts_again_and_counts_twice(role: Role, tmp_path: Path) -> None:
    tables = write_tables(tmp_path, n_rows=8000)
    configs = configured(make_configs(tmp_path), PERMITTED)
    ledger = Ledger(configs[Role.HOST].state, Role.HOST)
    run_and_kill(BINS, configs, tmp_path, role, lambda _: ledger.entry(DATASET).equations > 0)

    train = joined(tables)
    for party in PARTIES:
        found = bins_of(configs, party)
        assert found.columns
        for column in found.columns:
            check_counts(column, train)
    # Two sessions, and two numbers for each of 20 bins and that of missing values.
    assert ledger.entry(DATASET).equations == 2 * 2 * 21
