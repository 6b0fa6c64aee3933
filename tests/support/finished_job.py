"""The files that a job leaves at the three processes, without a training; names and categories have markup in them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from trilateral.common.base.outcome import Outcome
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.model.inference import Inference, ModelFit, TermInference
from trilateral.common.data.model.model_file import ComparedPenaltyRow, PartyModel, save_model
from trilateral.common.data.party_data import load_party_data
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.ledger import LEDGER
from trilateral.common.observe.audit import LOG, Audit
from trilateral.common.protocol.messages import Result

JOB = "credit-1"
RUN = "ab" * 16
N_ROWS = 2000
MARKUP = "<img src=x onerror=alert(1)>"
SCRIPT = "</script><script>alert(1)</script>"
FORMULA = "$x_1^2$ & a_b"
POSITIVE, NEGATIVE = "has-defaulted", "has-repaid"
ID = "person-4711"
"""Begins each ID."""
SECRET = 987654.321
"""The largest value of a column; in one row."""


class Caller:
    """Whoever asks, for the audit log."""

    role = Role.COORDINATOR
    names = frozenset({"coordinator.test"})


def table_of(role: Role, n_rows: int = N_ROWS, seed: int = 1) -> pd.DataFrame:
    """Return a party's table. Both parties have the same columns under other names."""
    rng = np.random.default_rng(seed)
    latent = rng.normal(size=n_rows)
    table = pd.DataFrame(
        {
            "id": [f"{ID}{row}" for row in range(n_rows)],
            f"{role} {MARKUP}": latent + rng.normal(size=n_rows),
            f"{role} {FORMULA}": np.exp(rng.normal(size=n_rows)),
            f"{role} branch": rng.choice([MARKUP, SCRIPT, FORMULA, "north"], n_rows),
            "constant": 1.0,
        }
    )
    table.loc[7, f"{role} {FORMULA}"] = SECRET
    if role is Role.GUEST:
        table["label"] = np.where(rng.random(n_rows) < 1 / (1 + np.exp(1 - latent)), POSITIVE, NEGATIVE)
    return table


def write_job(
    folder: Path, *, preprocessing: dict[str, Any] | None = None, protocol: str = "shares", **job: Any
) -> dict[Role, ProcessConfig]:
    """Write the files of a finished job and return the configurations of the processes.

    Args:
        folder: for tables and state folders.
        preprocessing: settings of the guest's dataset.
        protocol: of the job.
        **job: further options of the job.
    """
    configs = {role: _config(folder, role, preprocessing or {}) for role in Role}
    settings = JobConfig(name=JOB, dataset="people", protocol=protocol, holdout=0.5, **job)
    for role, config in configs.items():
        if role in PARTIES:
            _write_model(config, settings)
        _write_history(config)
        audit = Audit(config.state / LOG)
        audit.allowed(Caller(), "OpenJob", job=JOB, run=RUN, dataset="people")
        audit.refused(Caller(), "OpenJob", f"the policy refuses it: {MARKUP}", job=JOB, run=RUN)
        audit.allowed(Caller(), "OpenJob", job="another", run="cd" * 16, dataset="people")
        peer = "host" if role is Role.GUEST else "guest"
        moved = {peer: {"masked_columns": {"bytes": 123_456}, "holdout_scores": {"values": 1000}}}
        audit.ended(Outcome.FINISHED, job=JOB, run=RUN, rounds=3, sent=moved, received=moved)
        if role in PARTIES:
            entry = {"trainings": 1, "equations": 28, "points": ["00"]}
            (config.state / LEDGER).write_text(json.dumps({"version": 1, "datasets": {"people": entry}}))
    return configs


def _config(folder: Path, role: Role, preprocessing: dict[str, Any]) -> ProcessConfig:
    peers = {other.value: f"127.0.0.1:{port}" for port, other in enumerate(Role, 2) if other is not role}
    settings: dict[str, Any] = {
        "role": role,
        "plaintext": True,
        "listen": "127.0.0.1:1",
        "peers": peers,
        "state": folder / "state" / role,
    }
    if role in PARTIES:
        path = folder / f"{role}.csv"
        table_of(role).to_csv(path, index=False)
        dataset: dict[str, Any] = {
            "path": path,
            "preprocessing": preprocessing if role is Role.GUEST else {},
            "categorical": [f"{role} branch"],
        }
        if role is Role.GUEST:
            dataset["label"] = {"positive": POSITIVE, "negative": NEGATIVE}
        settings["datasets"] = {"people": dataset}
    return ProcessConfig.model_validate(settings)


def _write_model(config: ProcessConfig, job: JobConfig) -> None:
    is_guest = config.role is Role.GUEST
    dataset = config.datasets["people"]
    data = load_party_data(dataset, job, labelled=is_guest)
    steps = data.preprocessing
    rng = np.random.default_rng(3)
    coef = np.zeros(steps.n_columns)
    coef[: min(3, len(coef))] = [1.0, -0.4, 0.1][: len(coef)]
    scores = None
    if is_guest:
        assert data.block.holdout_labels is not None
        scores = np.asarray(data.block.holdout_columns) @ coef + 0.5 * data.block.holdout_labels
        scores += rng.normal(size=len(scores))
    model = PartyModel.of(config.role, job, data, dataset, Result(coef, 0.5, 3, 3, "it converged", scores), run_id=RUN)
    accuracy = {term: TermInference.of(weight, 0.1) for term, weight in model.weights.items()}
    fit = ModelFit(
        n_rows=1000,
        n_parameters=7,
        deviance=900.0,
        null_deviance=1000.0,
        aic=914.0,
        bic=950.0,
        mcfadden_r2=0.1,
        likelihood_ratio=None,
    )
    search = [
        ComparedPenaltyRow(l1=l1, l2=0, loss=0.5, standard_error=0.01, n_terms=3, chosen=l1 == 0.1)
        for l1 in (0.1, 0.01)
    ]
    update = {
        "inference": Inference(terms=accuracy, fit=fit if is_guest else None, warnings=[f"look at {MARKUP}"]),
        "search": search if is_guest else [],
    }
    save_model(JobFolder(config.state, JOB).model, model.model_copy(update=update))


def _write_history(config: ProcessConfig) -> None:
    lines = [
        {
            "round": number,
            "attempt": attempt,
            "epoch": number,
            "batch": 1,
            "loss": None if config.role in PARTIES else 0.6 / number,
            "seconds": {"all": 1.5, "product": 1.0, "deal": 0.25},
            "sent": {"sums": {"bytes": 100}},
            "received": {"dealt": {"bytes": 2_000_000}},
        }
        for number, attempt in ((1, 1), (2, 1), (2, 2), (3, 1))
    ]
    path = JobFolder(config.state, JOB).history
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
