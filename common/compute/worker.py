"""What a worker says about itself. It runs on the worker."""

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import dask

from trilateral.common.paillier.native.path import arithmetic_path
from trilateral.common.shares.path import shares_level

_SPILL = ("distributed.worker.memory.target", "distributed.worker.memory.spill")


@dataclass(frozen=True)
class WorkerFacts:
    """A process that runs tasks.

    Attributes:
        version: its release of trilateral.
        arithmetic: its encrypted arithmetic, as `arithmetic_path` returns it.
        shares_level: its arithmetic of shares, as `shares_level` returns it.
        may_spill: whether it may write columns to its disk when its memory is full.
    """

    version: str
    arithmetic: str
    shares_level: int
    may_spill: bool


def describe(dask_worker: Any = None) -> WorkerFacts:
    """Describe the process that calls it.

    Args:
        dask_worker: the worker, which Dask fills in there.
    """
    has_limit = dask_worker is not None and bool(dask_worker.memory_manager.memory_limit)
    may_spill = has_limit and any(dask.config.get(setting, False) for setting in _SPILL)
    return WorkerFacts(version("trilateral"), arithmetic_path(), shares_level(), may_spill)
