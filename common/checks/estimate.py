"""What a job would cost under each protocol, on lines of some bandwidths: see `trilateral.common.cost`."""

from collections.abc import Iterator

from trilateral.common.base.roles import PARTIES
from trilateral.common.checks.finding import Finding, note
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.cost.constants import load_constants
from trilateral.common.cost.estimate import Machines, estimate_job
from trilateral.common.cost.workload import Workload

LINES = (1000, 100, 20)
"""Bandwidths, in Mbit/s in each direction, for which a check prints seconds."""


def check_cost(config: ProcessConfig, job: JobConfig, n_rows: int, n_columns: int) -> Iterator[Finding]:
    """Estimate what a job costs under each protocol, if the other party has as many columns.

    Args:
        config: the configuration of the party's process.
        job: the job, whose own `protocol` does not matter.
        n_rows: training rows of the party.
        n_columns: training columns of the party.
    """
    constants = load_constants()
    at_most = "" if job.algorithm.name == "lbfgs" else "at most "
    for protocol in _protocols(job):
        work = Workload.of(job.model_copy(update={"protocol": protocol}), n_rows, dict.fromkeys(PARTIES, n_columns))
        costs = {
            mbit: estimate_job(work, Machines.like_this(constants, mbit, memory_mb=config.scratch.memory_mb), constants)
            for mbit in LINES
        }
        seconds = ", ".join(f"{_short(cost.seconds)} s at {mbit} Mbit/s" for mbit, cost in costs.items())
        megabytes = _short(costs[LINES[0]].bytes / 1e6)
        here = costs[LINES[0]].processes[config.role]
        yield note(
            f"protocol {protocol}",
            f"{at_most}about {seconds}; {megabytes} MB in {at_most}{work.rounds:,} rounds; here "
            f"{_short(here.memory_mb)} MB of memory and {_short(here.scratch_mb)} MB of scratch space",
        )


def _protocols(job: JobConfig) -> Iterator[str]:
    if job.cipher == "packed":
        yield "paillier"
    if job.algorithm.name != "sqn":
        yield "shares"


def _short(number: float) -> str:
    return f"{number:.1f}" if number < 10 else f"{number:,.0f}"
