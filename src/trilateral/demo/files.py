"""The files that the demo writes before it starts: two tables, three configurations and three jobs."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.roles import Role
from trilateral.common.config.settings import commented_yaml
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.ledger import LEDGER
from trilateral.common.trial.development import write_development_files
from trilateral.common.trial.localhost import process_settings
from trilateral.demo.tables import DATASET, demo_tables

JOB = "demo"
JOB_ON_SHARES = "demo-shares"
"""The same job with `protocol: shares`."""
JOB_BY_HAND = "by-hand"
"""A second name for the first job, to run it again after the demo."""
MARKER = ".trilateral-demo"
"""Marks the folder of a demo. The demo replaces files in such folders only."""
ALGORITHMS: dict[str, dict[str, Any]] = {
    "lbfgs": {"algorithm": {"name": "lbfgs"}},
    "sqn": {"algorithm": {"name": "sqn"}},
    "sgd": {"algorithm": {"name": "sgd"}},
}
MAX_SCORE = 24
"""Because of the separation, some rows have scores of more than 12, the default."""
ON_SHARES = {"lbfgs": "lbfgs", "sqn": "lbfgs", "sgd": "sgd"}
"""The algorithm of the job on shares, which have no `sqn`."""
PENALTY = 0.01
"""The training rows can be separated completely by diagnosis. Without a penalty, the logistic regression of
scikit-learn, with which the demo compares, would have no finite optimum."""


@dataclass(frozen=True)
class DemoFiles:
    """The files in the folder of a demo."""

    folder: Path

    @property
    def job(self) -> Path:
        """The job, for `trilateral train`."""
        return self.folder / "job.yaml"

    @property
    def job_on_shares(self) -> Path:
        """The same job with `protocol: shares`, for `trilateral train`."""
        return self.folder / "job-shares.yaml"

    @property
    def job_by_hand(self) -> Path:
        """The first job under the second name, to run it without the demo."""
        return self.folder / "by-hand.yaml"

    @property
    def marker(self) -> Path:
        """The marker."""
        return self.folder / MARKER

    @property
    def logs(self) -> Path:
        """Folder of the logs."""
        return self.folder / "logs"

    @property
    def states(self) -> Path:
        """Folder of the three state folders."""
        return self.folder / "state"

    @property
    def certificates(self) -> Path:
        """Folder of the authority's certificate and the three certificates with their keys."""
        return self.folder / "certs"

    def config(self, role: Role) -> Path:
        """The configuration of one process."""
        return self.folder / f"{role}.yaml"

    def log(self, role: Role) -> Path:
        """The log of one process."""
        return self.logs / f"{role}.log"

    @property
    def configs(self) -> dict[Role, Path]:
        """All three configurations."""
        return {role: self.config(role) for role in Role}

    @property
    def log_files(self) -> dict[Role, Path]:
        """All three logs."""
        return {role: self.log(role) for role in Role}

    def table(self, role: Role) -> Path:
        """The table of one party."""
        return self.folder / f"{role}.csv"


def write_files(folder: Path, addresses: dict[Role, str], key_bits: int, algorithm: str) -> DemoFiles:
    """Write everything that the three processes need, and replace the files of an earlier demo.

    In the state folders, only the folders of the demo's own jobs and the ledgers are removed. The other folders may
    hold models trained by hand. Ledgers would otherwise refuse the demo after some runs, and its rows are public.

    Args:
        folder: where to write.
        addresses: where each process listens.
        key_bits: bits of the Paillier modulus.
        algorithm: a key of `ALGORITHMS`.

    Returns:
        The files.

    Raises:
        ConfigError: the folder is not empty and no demo made it, or it cannot be written.
    """
    files = DemoFiles(folder)
    try:
        _claim(files)
        for role, table in demo_tables().items():
            table.to_csv(files.table(role), index=False)
        write_development_files(files.certificates)
    except OSError as error:
        raise ConfigError(f"--out {folder}: cannot be written: {error.strerror}") from error
    for role in Role:
        files.config(role).write_text(_process_yaml(files, role, addresses, key_bits))
    files.job.write_text(_job_yaml(JOB, {**ALGORITHMS[algorithm], "key_bits": key_bits}))
    on_shares = {"protocol": "shares", "max_score": MAX_SCORE, **ALGORITHMS[ON_SHARES[algorithm]]}
    files.job_on_shares.write_text(_job_yaml(JOB_ON_SHARES, on_shares))
    files.job_by_hand.write_text(_job_yaml(JOB_BY_HAND, {**ALGORITHMS[algorithm], "key_bits": key_bits}))
    return files


def _claim(files: DemoFiles) -> None:
    if not files.marker.exists():
        if files.folder.exists() and any(files.folder.iterdir()):
            raise ConfigError(
                f"--out {files.folder}: the folder has files that no demo wrote: use a new folder, or delete this one"
            )
        files.folder.mkdir(parents=True, exist_ok=True)
        files.marker.write_text("`trilateral demo` replaces the files of an earlier demo in this folder.\n")
    for role in Role:
        # Release 0.1.0 kept the folder of a job directly in the state folder.
        jobs = [JobFolder(files.states / role, name).path for name in (JOB, JOB_ON_SHARES)]
        for job in (*jobs, files.states / role / JOB):
            if job.exists():
                shutil.rmtree(job)
        (files.states / role / LEDGER).unlink(missing_ok=True)
    files.logs.mkdir(exist_ok=True)


def _process_yaml(files: DemoFiles, role: Role, addresses: dict[Role, str], key_bits: int) -> str:
    config = process_settings(role, addresses, certificates=Path(files.certificates.name))
    if role is not Role.COORDINATOR:
        dataset: dict[str, Any] = {"path": files.table(role).name, "id": "patient"}
        if role is Role.GUEST:
            dataset["label"] = {"column": "diagnosis", "positive": "malignant", "negative": "benign"}
        config["datasets"] = {DATASET: dataset}
        config["policy"] = {"min_key_bits": min(key_bits, 2048)}
        if role is Role.HOST:
            config["policy"]["allow_prediction"] = True
        if role is Role.GUEST:
            # The labels are published, so the demo's processes may train on them any number of times.
            config["policy"]["min_label_bits"] = 0
    return commented_yaml(f"The {role} of the demo. All options: configs/demo/{role}.yaml", config)


def _job_yaml(name: str, settings: dict[str, Any]) -> str:
    job = {"name": name, "dataset": DATASET, **settings, "l2": PENALTY}
    return commented_yaml("The job of the demo. All options: configs/jobs/", job)
