"""Check of the engine: whether the workers of the cluster can be reached and can do this process's work."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from trilateral.common.base.errors import ConfigError, Counted
from trilateral.common.checks.finding import Finding, faults, note, ok, problem, warning
from trilateral.common.config.process import ProcessConfig
from trilateral.common.paillier.native.path import arithmetic_path
from trilateral.common.process.engine import open_cluster
from trilateral.common.shares.path import shares_level

if TYPE_CHECKING:
    from trilateral.common.compute.worker import WorkerFacts

SUBJECT = "engine"
PATIENCE = 10.0
"""Seconds to wait for the scheduler."""


def check_engine(config: ProcessConfig) -> Iterator[Finding]:
    """Connect to the scheduler, and ask each worker about itself; nothing if the process computes in itself.

    Args:
        config: the configuration of the process.
    """
    if config.engine.kind == "local":
        return
    try:
        cluster = open_cluster(config, PATIENCE)
    except ConfigError as error:
        yield from faults(SUBJECT, error)
        return
    try:
        workers = cluster.inspect()
        n_slots = cluster.n_slots
    except ConfigError as error:
        yield from faults(SUBJECT, error)
        return
    finally:
        cluster.close()
    yield from judge(str(config.engine.scheduler), workers, n_slots)


def judge(scheduler: str, workers: "Mapping[str, WorkerFacts | str]", n_slots: int) -> Iterator[Finding]:
    """Say what is wrong with the workers, if anything.

    Args:
        scheduler: the address of the scheduler.
        workers: for each worker by its address, its facts, or why it may not be used.
        n_slots: tasks that run at a time on all workers.
    """
    usable = {address: facts for address, facts in workers.items() if not isinstance(facts, str)}
    for why in workers.values():
        if isinstance(why, str):
            yield problem(SUBJECT, why)
    if not usable:
        if not workers:
            yield problem(SUBJECT, f"{scheduler} has no worker: start one with `dask worker`")
        return
    yield ok(
        SUBJECT,
        f"{scheduler} has {Counted(len(usable)):worker|workers} with this release, and runs"
        f" {Counted(n_slots):task|tasks} at a time",
    )
    here = arithmetic_path(), shares_level()
    others = Counter(
        (facts.arithmetic, facts.shares_level)
        for facts in usable.values()
        if (facts.arithmetic, facts.shares_level) != here
    )
    for (arithmetic, level), count in sorted(others.items()):
        slower = arithmetic == "gmpy2" or level == 0
        text = (
            f"{Counted(count):worker has|workers have} another arithmetic than this process ({arithmetic} and level"
            f" {level} for shares, not {here[0]} and level {here[1]}): the model is the same, but tasks take another"
            " time"
        )
        yield warning(SUBJECT, f"{text}; build the kernel there, see docs/kernel.md") if slower else note(SUBJECT, text)
    if spilling := [address for address, facts in usable.items() if facts.may_spill]:
        yield warning(
            SUBJECT,
            f"{Counted(len(spilling)):worker may|workers may} write columns to disk when memory is full, such as"
            f" {spilling[0]}: set distributed.worker.memory.target and .spill to false, as configs/cluster/dask.yaml"
            " does",
        )
