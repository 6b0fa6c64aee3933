"""Three servers over localhost in this process, with tables in a folder."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from tests.oracles.plain import LogisticProblem
from tests.support.three_machines import Tables
from tests.support.training_driver import drive_problem, problem_of
from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.roles import Role
from trilateral.common.config.job import PAILLIER_OPTIONS, JobConfig, Sgd
from trilateral.common.config.process import HOST_POLICY, ProcessConfig
from trilateral.common.data.model.model_file import load_model
from trilateral.common.data.party_data import load_party_data
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.party_record import read_start
from trilateral.common.jobs.sealing import load_sealer
from trilateral.common.pb.v1.jobs_pb2 import JobStatus
from trilateral.common.process.job_client import JobClient
from trilateral.common.trial.localhost import free_addresses, process_settings
from trilateral.coordinator.numpy_training import JoinedTable, PlainResult, train_plain
from trilateral.coordinator.server import serve as serve_coordinator
from trilateral.guest_party.server import serve as serve_guest
from trilateral.host_party.server import serve as serve_host

SERVE = {Role.COORDINATOR: serve_coordinator, Role.HOST: serve_host, Role.GUEST: serve_guest}
DATASET = "made"
Protocol = Literal["paillier", "shares"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
LENIENT: dict[str, Any] = {
    "min_rows_per_feature": 2,
    "min_batch": 1,
    "max_epochs": 100_000,
    "max_rounds": 1_000_000,
    "min_rows_per_equation": 0.001,
    "min_columns_per_point": 0.001,
    "min_changed_rows": 0,
}
"""A policy that allows the job of every test. The guest also needs `ANY_LABELS`."""
ANY_LABELS: dict[str, Any] = {"min_label_bits": 0}
"""The guest's policy that allows tables with few labels."""


def lenient(role: Role, **settings: Any) -> dict[str, Any]:
    """Return a party's policy that allows the job of every test, with other settings than those."""
    if role is Role.HOST:
        return {**LENIENT, **settings}
    ours = {name: value for name, value in LENIENT.items() if name not in HOST_POLICY}
    return {**ours, **ANY_LABELS, **settings}


def write_tables(
    folder: Path, n_rows: int = 120, n_host: int = 3, n_guest: int = 2, seed: int = 0
) -> dict[Role, pd.DataFrame]:
    """Write two CSV files with the same IDs in different orders, some missing values, and labels 'yes' and 'no'."""
    rng = np.random.default_rng(seed)
    n_columns = n_host + n_guest
    X = rng.normal(size=(n_rows, n_columns)) @ (rng.normal(size=(n_columns, n_columns)) + 2 * np.eye(n_columns))
    score = X @ rng.normal(size=n_columns)
    label = np.where(score / np.std(score) + 0.7 * rng.normal(size=n_rows) > 0.2, "yes", "no")
    X[rng.random(size=X.shape) < 0.02] = np.nan
    table = pd.DataFrame(X, columns=[f"x{j}" for j in range(n_columns)])
    table.insert(0, "id", [f"{number:06d}" for number in rng.permutation(n_rows)])
    tables = {
        Role.HOST: table[["id", *table.columns[1 : n_host + 1]]].sample(frac=1, random_state=1),
        Role.GUEST: table[["id", *table.columns[n_host + 1 :]]].assign(label=label).sample(frac=1, random_state=2),
    }
    for role, part in tables.items():
        part.to_csv(folder / f"{role}.csv", index=False)
    return tables


def make_configs(
    folder: Path,
    *,
    min_key_bits: int = 256,
    peer_timeout: float = 10,
    round_timeout: float = 60,
    certificates: Path | None = None,
    addresses: Mapping[Role, str] | None = None,
) -> dict[Role, ProcessConfig]:
    addresses = addresses or free_addresses()
    configs = {}
    for role in Role:
        settings: dict[str, Any] = process_settings(role, addresses, folder / "state", certificates=certificates)
        settings["limits"] = {"peer_timeout": peer_timeout, "round_timeout": round_timeout}
        if role is Role.COORDINATOR:
            settings["operators"] = {"start": list(Role), "stop": list(Role)}
        else:
            dataset: dict[str, Any] = {"path": folder / f"{role}.csv"}
            if role is Role.GUEST:
                dataset["label"] = {"positive": "yes", "negative": "no"}
            settings |= {
                "datasets": {DATASET: dataset},
                "policy": lenient(role, min_key_bits=min_key_bits),
            }
        configs[role] = ProcessConfig.model_validate(settings)
    return configs


@asynccontextmanager
async def serving(
    configs: dict[Role, ProcessConfig], sources: Mapping[Role, Path] = MappingProxyType({})
) -> AsyncIterator[JobClient]:
    """Serve all of `configs`, read again from `sources`, until the block ends; yield an operator's client."""
    stop = asyncio.Event()
    ready = {role: asyncio.Event() for role in configs}
    tasks = [
        asyncio.create_task(
            SERVE[role](
                config,
                source=sources.get(role),
                stop=stop,
                on_ready=lambda _, role=role: ready[role].set(),  # type: ignore[misc]
            )
        )
        for role, config in configs.items()
    ]
    try:
        await asyncio.gather(*(event.wait() for event in ready.values()))
        async with JobClient(next(iter(configs.values()))) as client:
            yield client
    finally:
        stop.set()
        await asyncio.gather(*tasks)


async def train_over_localhost(client: JobClient, job: JobConfig) -> JobStatus:
    """Start a job and wait for its end."""
    await client.start(job)
    status = JobStatus()
    async for changed in client.watch(job.name):
        status = changed
    return status


def load_tables(configs: Mapping[Role, ProcessConfig], job: JobConfig) -> Tables:
    """Return the training data of both parties, for plain numpy."""
    parts = {
        role: load_party_data(configs[role].datasets[job.dataset], job, labelled=role is Role.GUEST)
        for role in (Role.HOST, Role.GUEST)
    }
    return Tables(parts[Role.HOST], parts[Role.GUEST])


def trained_coef(configs: Mapping[Role, ProcessConfig], job: JobConfig) -> FloatVector:
    models = [load_model(JobFolder(configs[role].state, job.name).model) for role in (Role.HOST, Role.GUEST)]
    return np.concatenate([model.training_weights for model in models])


def plain_model(configs: Mapping[Role, ProcessConfig], job: JobConfig, tables: Tables | None = None) -> PlainResult:
    """Train in plain numpy on the joined columns, from the start that the guest has drawn for the job."""
    joined = (tables or load_tables(configs, job)).joined
    holdout = joined.holdout_columns, joined.holdout_labels
    guest = configs[Role.GUEST]
    start = read_start(guest.state, job.name, load_sealer(guest.state_key))
    if job.protocol == "shares":  # No step is disclosed, so none needs the protection of a start.
        assert start is None
    else:
        assert start is not None
        assert start.any()
    return train_plain(job, joined.columns, joined.labels, joined.penalty, holdout, n_host=joined.n_host, start=start)


def check_model(configs: Mapping[Role, ProcessConfig], job: JobConfig, tables: Tables | None = None) -> None:
    """Check that the coefficients match those of plain numpy on the joined columns; see `check_coef`.

    On shares, `lbfgs` ends where the noise of the sums ends it, as close to the minimum as the job asks.
    """
    tables = tables or load_tables(configs, job)
    coef, joined = trained_coef(configs, job), tables.joined
    if job.protocol == "paillier":
        check_coef(coef, plain_model(configs, job, tables).coef, joined, job)
    elif job.algorithm.name == "sgd":
        nearest = min(_candidates(job, joined), key=lambda point: float(np.linalg.norm(coef - point)))
        check_coef(coef, nearest, joined, job)
    else:
        problem = problem_of(job, joined.columns, joined.labels, joined.penalty)
        assert isinstance(problem, LogisticProblem)
        assert problem.gap(coef) < 3 * job.tolerance


def _candidates(job: JobConfig, joined: JoinedTable) -> list[FloatVector]:
    """Return the points between which `sgd` chooses at its end, by losses whose difference may be below their noise."""
    job = job.model_copy(update={"evaluate_every": None})
    run = drive_problem(problem_of(job, joined.columns, joined.labels, joined.penalty))
    return [point for plan, point in zip(run.plans, run.points, strict=False) if not plan.gradient]


def check_coef(coef: FloatVector, plain: FloatVector, joined: JoinedTable, job: JobConfig) -> None:
    """Check that two vectors of coefficients differ by no more than rounding.

    The bound is one on the loss: what it would rise by between the two if `plain` was its minimum. In a direction in
    which the loss is flat, rounding moves the coefficients further than in others. Under the short keys of the tests,
    which leave 22 fraction bits for a row's value, 180 random starts gave at most 2.7e-13.

    Shares round the columns of so few rows to 12 fraction bits, at random. A gradient over 100 rows is then off by some
    2^-12 / sqrt(6 * 100) = 1e-5, and a coefficient by that over the curvature.
    """
    gap = coef - plain
    curvature = joined.columns.T @ joined.columns / (4 * len(joined.columns)) + job.l2 * joined.penalty
    loss, each = (1e-7, 5e-3) if job.protocol == "shares" else (1e-12, 1e-5)
    assert gap @ curvature @ gap / 2 < loss, gap
    np.testing.assert_allclose(coef, plain, rtol=0, atol=each)


def under(protocol: Protocol, job: JobConfig) -> JobConfig:
    """Return the job under a protocol, without the options of the other one; shares take `sgd` in place of `sqn`."""
    if protocol == "paillier":
        return job
    ours = {name: JobConfig.model_fields[name].default for name in PAILLIER_OPTIONS}
    algorithm = Sgd() if job.algorithm.name == "sqn" else job.algorithm
    return job.model_copy(update={**ours, "protocol": protocol, "algorithm": algorithm})
