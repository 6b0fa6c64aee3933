"""What a job would cost under each protocol, on lines of some bandwidths: see `trilateral.common.cost`."""

from collections.abc import Callable, Iterator
from functools import partial

from trilateral.common.base.roles import PARTIES
from trilateral.common.checks.finding import Finding, note
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.cost.constants import load_constants
from trilateral.common.cost.counting import Counting
from trilateral.common.cost.estimate import Estimate, Machines, estimate_counting, estimate_job
from trilateral.common.cost.workload import Workload

LINES = (1000, 100, 20)
"""Bandwidths, in Mbit/s in each direction, for which a check prints seconds."""


def check_cost(config: ProcessConfig, job: JobConfig, n_rows: int, n_columns: int) -> Iterator[Finding]:
    """Estimate what a job costs under each protocol that can have it, if the other party has as many columns.

    Args:
        config: the configuration of the party's process.
        job: the job, whose own `protocol` does not matter.
        n_rows: training rows of the party.
        n_columns: training columns of the party.
    """
    constants = load_constants()

    def costs_of(estimate: Callable[[Machines], Estimate]) -> tuple[str, Estimate]:
        costs = {
            mbit: estimate(Machines.like_this(constants, mbit, memory_mb=config.scratch.memory_mb)) for mbit in LINES
        }
        seconds = ", ".join(f"{_short(cost.seconds)} s at {mbit} Mbit/s" for mbit, cost in costs.items())
        return f"about {seconds}; {_short(costs[LINES[0]].bytes / 1e6)} MB", costs[LINES[0]]

    def here(cost: Estimate) -> str:
        own = cost.processes[config.role]
        return f"here {_short(own.memory_mb)} MB of memory and {_short(own.scratch_mb)} MB of scratch space"

    if job.task == "bins":
        counting = Counting.of(job, n_rows, dict.fromkeys(PARTIES, n_columns))
        text, cost = costs_of(lambda machines: estimate_counting(counting, machines, constants))
        yield note("bins job", f"{text} for {counting.n_fine:,} fine bins; {here(cost)}")
        return
    at_most = "" if job.algorithm.name == "lbfgs" else "at most "
    for protocol in _protocols(job):
        work = Workload.of(job.model_copy(update={"protocol": protocol}), n_rows, dict.fromkeys(PARTIES, n_columns))
        text, cost = costs_of(partial(estimate_job, work, constants=constants))
        yield note(f"protocol {protocol}", f"{at_most}{text} in {at_most}{work.rounds:,} rounds; {here(cost)}")


def _protocols(job: JobConfig) -> Iterator[str]:
    if job.cipher == "packed":
        yield "paillier"
    if job.algorithm.name != "sqn":
        yield "shares"


def _short(number: float) -> str:
    return f"{number:.1f}" if number < 10 else f"{number:,.0f}"
