"""Train a logistic regression on the joint columns of two organisations without showing them to each other.

Example:
    >>> import trilateral
    >>> with trilateral.connect("guest.yaml") as session:  # doctest: +SKIP
    ...     run = session.train({"name": "churn", "dataset": "customers"})
    ...     for progress in run:
    ...         print(progress.epoch, progress.loss)
    ...     print(run.model().coef)

`trilateral.aio` has the same for programs that run an event loop of their own.
"""

from importlib import import_module
from typing import TYPE_CHECKING

# Names are imported when they are first used, so that the command line starts fast and no organisation needs the code
# of the others.
if TYPE_CHECKING:
    from trilateral.client.asynchronous import Prediction, Score, load_config
    from trilateral.client.comparison import ScoreComparison, Stability, calibration_drift, compare_scores
    from trilateral.client.errors import JobFailedError, JobStoppedError
    from trilateral.client.job import Job
    from trilateral.client.model import Model, load_model
    from trilateral.client.session import Run, Session, connect
    from trilateral.common.base.errors import (
        BadCiphertextError,
        BadKeyError,
        ConfigError,
        DataError,
        OutOfRangeError,
        PeerError,
        PolicyError,
        ProtocolError,
        TrilateralError,
    )
    from trilateral.common.base.roles import Role
    from trilateral.common.config.process import ProcessConfig
    from trilateral.common.process.job_client import LostContactError
    from trilateral.common.process.job_progress import JobState, Progress
    from trilateral.common.rpc.errors import AccessError, NameTakenError, UnknownJobError
    from trilateral.demo import Demo
    from trilateral.guest_party.alignment import Stage
    from trilateral.guest_party.dataset_alignment import DatasetAlignment
    from trilateral.guest_party.prediction import PredictionCounts

__all__ = [
    "AccessError",
    "BadCiphertextError",
    "BadKeyError",
    "ConfigError",
    "DataError",
    "DatasetAlignment",
    "Demo",
    "Job",
    "JobFailedError",
    "JobState",
    "JobStoppedError",
    "LostContactError",
    "Model",
    "NameTakenError",
    "OutOfRangeError",
    "PeerError",
    "PolicyError",
    "Prediction",
    "PredictionCounts",
    "ProcessConfig",
    "Progress",
    "ProtocolError",
    "Role",
    "Run",
    "Score",
    "ScoreComparison",
    "Session",
    "Stability",
    "Stage",
    "TrilateralError",
    "UnknownJobError",
    "calibration_drift",
    "compare_scores",
    "connect",
    "load_config",
    "load_model",
]

_HOMES = {
    "client.asynchronous": ["Prediction", "Score", "load_config"],
    "client.comparison": ["ScoreComparison", "Stability", "calibration_drift", "compare_scores"],
    "client.errors": ["JobFailedError", "JobStoppedError"],
    "client.job": ["Job"],
    "client.model": ["Model", "load_model"],
    "client.session": ["Run", "Session", "connect"],
    "common.base.errors": [
        "BadCiphertextError",
        "BadKeyError",
        "ConfigError",
        "DataError",
        "OutOfRangeError",
        "PeerError",
        "PolicyError",
        "ProtocolError",
        "TrilateralError",
    ],
    "common.base.roles": ["Role"],
    "common.config.process": ["ProcessConfig"],
    "common.process.job_client": ["LostContactError"],
    "common.process.job_progress": ["JobState", "Progress"],
    "common.rpc.errors": ["AccessError", "NameTakenError", "UnknownJobError"],
    "demo": ["Demo"],
    "guest_party.alignment": ["Stage"],
    "guest_party.dataset_alignment": ["DatasetAlignment"],
    "guest_party.prediction": ["PredictionCounts"],
}
_PLACES = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
