"""The estimate of what a job costs on given machines: its phases, and what each process needs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.process import ScratchConfig
from trilateral.common.cost.arrays import place_arrays, place_table
from trilateral.common.cost.constants import Constants, CountingConstants, ProtocolConstants, Terms, total
from trilateral.common.cost.counting import Counting
from trilateral.common.cost.workload import Traffic, Workload
from trilateral.common.jobs.arithmetic import processors, use_arithmetic
from trilateral.common.protocol.shares.arithmetic import MIN_AWAY_COLUMNS
from trilateral.common.shares.path import NUMPY, shares_level

PRODUCT_EXPONENT = 1.77
"""How the time of a product modulo n^2 grows with the bits of the key: 2.4 at 3072 bits, 4.1 at 4096."""
DECRYPTION_EXPONENT = 2.7
"""The same for a decryption: 2.9 at 3072 bits, 6.5 at 4096."""
MEASURED_BITS = 2048
MEGABYTE = 10**6
PATH_FACTORS = {"ifma": 1.0, "avx2": 2.6, "gmpy2": 13.0}
"""How long products take with each path of the kernel, relative to AVX-512 IFMA (docs/kernel.md)."""
SHARES_WITHOUT_KERNEL = 40
"""Factor of the arithmetic of shares if numpy computes in place of the kernel."""
PROCESS_THREADS = 2
"""Processors that a process uses beyond its products: the thread of the job, and the event loop with TLS."""
ENGINE_EFFICIENCY = 0.8
"""The least share of a worker's time that goes into a task, rather than into moving data: see docs/scaling.md."""

Limit = Literal["processors", "line", "waiting"]
Seconds = Mapping[str, float]
"""Processor seconds of one process, by what they are spent on."""


@dataclass(frozen=True)
class Machines:
    """What a job runs on."""

    cores: int
    """Processors of each organisation's machine, or of all three processes together if they share one."""
    mbit: float | None = None
    """Bandwidth of each organisation's line in each direction, in Mbit/s; None for no limit."""
    shared: bool = False
    """Whether the three processes share one machine."""
    workers: int = 0
    """Machines with `cores` processors each that compute for a party, besides its own; 0 without a cluster."""
    product_factor: float = 1
    """Factor of the time of encrypted products, compared with where the constants were measured."""
    shares_factor: float = 1
    """The same for the arithmetic of shares."""
    memory_mb: int = ScratchConfig().memory_mb
    """How much of a party's arrays may lie in memory: `scratch.memory_mb`."""

    @classmethod
    def like_this(
        cls,
        constants: Constants,
        mbit: float | None = None,
        *,
        cores: int = 0,
        shared: bool = False,
        workers: int = 0,
        memory_mb: int = ScratchConfig().memory_mb,
    ) -> Self:
        """Return machines with the arithmetic of this one.

        Args:
            constants: the constants, whose arithmetic may be another one.
            mbit: see `Machines`.
            cores: see there; 0 for as many processors as this process may use.
            shared: see there.
            workers: see there.
            memory_mb: see there.
        """
        return cls(
            cores or processors(),
            mbit,
            shared=shared,
            workers=workers,
            memory_mb=memory_mb,
            product_factor=PATH_FACTORS[use_arithmetic()] / PATH_FACTORS[constants.arithmetic],
            shares_factor=SHARES_WITHOUT_KERNEL if shares_level() == NUMPY else 1,
        )


@dataclass(frozen=True)
class Phase:
    """One part of a job, or all its rounds."""

    name: str
    seconds: float
    bytes: int
    """Bytes of all vectors together."""
    limited_by: Limit


@dataclass(frozen=True)
class ProcessCost:
    """What one process needs for the whole job."""

    processor_seconds: float
    sent_bytes: int
    received_bytes: int
    memory_mb: float
    """Peak memory."""
    scratch_mb: float
    """Peak size of the scratch space."""


@dataclass(frozen=True)
class Estimate:
    """What a job costs."""

    rounds: int
    """0 for a bins job."""
    seconds: float
    bytes: int
    phases: tuple[Phase, ...]
    processes: Mapping[Role, ProcessCost]


def estimate_job(work: Workload, machines: Machines, constants: Constants) -> Estimate:
    """Estimate a training.

    Args:
        work: the sizes of the job. If the job is not `aligned`, each party has as many IDs as training rows.
        machines: what it runs on.
        constants: the measured constants.
    """
    own = constants.shares if work.job.protocol == "shares" else constants.paillier
    setup = {role: _seconds(_terms(own, role)[0], work.whole.counts(role), work, machines) for role in Role}
    first, later = (
        {role: _seconds(_terms(own, role)[1], work.counts(role, is_first=is_first), work, machines) for role in Role}
        for is_first in (True, False)
    )
    processor_seconds = {
        role: math.fsum((*setup[role].values(), *first[role].values()))
        + (work.rounds - 1) * math.fsum(later[role].values())
        for role in Role
    }
    memory, scratch = {}, {}
    for role in Role:
        memory[role], scratch[role] = _memory(work, role, machines, own)
    phases = [_set_up(setup, work.exchange(), machines, own), _rounds(work, first, later, machines, own)]
    found = _Found(work.rounds, phases, work.training(), processor_seconds, memory, scratch)
    return found.estimate(work, machines, constants)


def estimate_counting(work: Counting, machines: Machines, constants: Constants) -> Estimate:
    """Estimate a bins job; see `estimate_job`."""
    own = constants.counting
    setup = {role: total(_counting_terms(own, role)[0], work.counts(role)) for role in Role}
    count = {role: total(_counting_terms(own, role)[1], work.counts(role)) * machines.shares_factor for role in Role}
    phases = []
    # A party sends while it masks, and the other answers while it receives.
    for name, seconds, traffic, wait in (
        ("setup", setup, Traffic(), own.wait),
        ("counting", count, work.traffic(), 0.0),
    ):
        busy = max(seconds.values())
        if machines.shared:
            busy = max(busy, math.fsum(seconds.values()) / machines.cores)
        phases.append(_phase(name, traffic, wait, own.overlap * busy, machines))
    memory = {Role.COORDINATOR: total(own.coordinator_memory, work.counts(Role.COORDINATOR))}
    scratch = {Role.COORDINATOR: 0.0}
    for role in PARTIES:
        arrays = place_table(work, role, machines.memory_mb * MEGABYTE)
        memory[role] = total(own.party_memory, work.counts(role)) + arrays.in_memory / MEGABYTE
        scratch[role] = arrays.on_disk / MEGABYTE
    seconds_of = {role: setup[role] + count[role] for role in Role}
    return _Found(0, phases, work.traffic(), seconds_of, memory, scratch).estimate(work, machines, constants)


@dataclass
class _Found:
    """What a job costs without its alignment."""

    rounds: int
    phases: list[Phase]
    traffic: Traffic
    processor_seconds: dict[Role, float]
    memory: dict[Role, float]
    scratch: dict[Role, float]

    def estimate(self, work: Workload | Counting, machines: Machines, constants: Constants) -> Estimate:
        """Add the alignment, unless the job is aligned."""
        if not work.job.aligned:
            ids = {"once": 1, "ids": len(PARTIES) * work.rows}
            seconds, ids_mb = total(constants.alignment.party, ids), total(constants.alignment.party_memory, ids)
            of_ids = work.alignment()
            self.phases.insert(0, _align(len(PARTIES) * seconds, of_ids, machines, constants))
            self.traffic += of_ids
            for role in PARTIES:
                self.processor_seconds[role] += seconds
                self.memory[role] = max(self.memory[role], ids_mb)
        return Estimate(
            rounds=self.rounds,
            seconds=math.fsum(phase.seconds for phase in self.phases),
            bytes=self.traffic.all,
            phases=tuple(self.phases),
            processes={
                role: ProcessCost(
                    processor_seconds=self.processor_seconds[role],
                    sent_bytes=self.traffic.sent(role),
                    received_bytes=self.traffic.received(role),
                    memory_mb=self.memory[role],
                    scratch_mb=self.scratch[role],
                )
                for role in Role
            },
        )


def _terms(own: ProtocolConstants, role: Role) -> tuple[Terms, Terms]:
    """Return the constants of a process for the setup and for a round."""
    if role in PARTIES:
        return own.party_setup, own.party_round
    return own.coordinator_setup, own.coordinator_round


def _counting_terms(own: CountingConstants, role: Role) -> tuple[Terms, Terms]:
    """Return the constants of a process for the setup of a bins job and for counting."""
    if role is Role.COORDINATOR:
        return own.coordinator_setup, own.coordinator_count
    return own.party_setup, own.host_count if role is Role.HOST else own.guest_count


def _seconds(terms: Terms, counts: Mapping[str, float], work: Workload, machines: Machines) -> Seconds:
    """Return the processor seconds of a process, by what they are spent on."""
    return {name: constant * counts.get(name, 0) * _factor(name, work, machines) for name, constant in terms.items()}


def _factor(name: str, work: Workload, machines: Machines) -> float:
    """Return by how much longer something takes than where it was measured."""
    if name in ("products", "ciphertexts"):
        return machines.product_factor * math.pow(work.job.key_bits / MEASURED_BITS, PRODUCT_EXPONENT)
    if name == "sums":
        return machines.product_factor * math.pow(work.job.key_bits / MEASURED_BITS, DECRYPTION_EXPONENT)
    return machines.shares_factor if name == "dealt" else 1


def _align(processor_seconds: float, traffic: Traffic, machines: Machines, constants: Constants) -> Phase:
    own = constants.alignment
    # Every shard is computed by both parties in turn, and all shards are under way at the same time.
    cores = machines.cores if machines.shared else 2 * _party_cores(machines)
    return _phase("alignment", traffic, own.wait, own.overlap * processor_seconds / cores, machines)


def _set_up(seconds: Mapping[Role, Seconds], traffic: Traffic, machines: Machines, own: ProtocolConstants) -> Phase:
    of_processes = [math.fsum(parts.values()) for parts in seconds.values()]
    # Tables are read and prepared in one thread.
    busy = max(of_processes)
    if machines.shared:
        busy = max(busy, math.fsum(of_processes) / machines.cores)
    prepared = _phase("setup", Traffic(), own.setup_wait, own.setup_overlap * busy, machines)
    # The columns travel when they are ready.
    sent = _phase("setup", traffic, 0, 0, machines)
    longest = max(prepared, sent, key=lambda phase: phase.seconds)
    return replace(longest, seconds=prepared.seconds + sent.seconds, bytes=traffic.all)


def _rounds(
    work: Workload,
    first: Mapping[Role, Seconds],
    later: Mapping[Role, Seconds],
    machines: Machines,
    own: ProtocolConstants,
) -> Phase:
    name = f"{work.rounds:,} round{'s' * (work.rounds != 1)}"
    phases = []
    for seconds, traffic in ((first, work.round(is_first=True)), (later, work.round())):
        if machines.shared:
            busy = math.fsum(math.fsum(parts.values()) for parts in seconds.values()) / machines.cores
        else:
            busy = max(_own_seconds(role, parts, work, machines) for role, parts in seconds.items())
        phases.append(_phase(name, traffic, own.round_wait, own.round_overlap * busy, machines))
    opened = _phase(name, work.fold_scores(), 0, 0, machines)
    return replace(
        phases[1],
        seconds=phases[0].seconds + (work.rounds - 1) * phases[1].seconds + opened.seconds,
        bytes=phases[0].bytes + (work.rounds - 1) * phases[1].bytes + opened.bytes,
    )


def _own_seconds(role: Role, parts: Seconds, work: Workload, machines: Machines) -> float:
    """Return the seconds that a process on a machine of its own works in a round."""
    all_together = math.fsum(parts.values())
    here = away = 0.0
    if role in PARTIES and work.job.protocol == "paillier":
        products = parts.get("products", 0.0)
        here = products * work.own_products / (work.own_products + work.column_products(role))
        away = products - here
    elif role in PARTIES and machines.workers and work.n_columns >= MIN_AWAY_COLUMNS:
        away = parts.get("values", 0.0)
    alone = (all_together - here - away) / min(machines.cores, PROCESS_THREADS)
    return away / _party_cores(machines) + here / machines.cores + alone


def _party_cores(machines: Machines) -> float:
    """Return the processors that work on a party's parallel part."""
    if machines.workers:
        return ENGINE_EFFICIENCY * machines.workers * machines.cores
    return machines.cores


def _phase(name: str, traffic: Traffic, wait: float, busy: float, machines: Machines) -> Phase:
    """Return a phase in which work and transfer overlap."""
    line = _line_seconds(traffic, machines)
    limits: dict[Limit, float] = {"waiting": wait, "processors": busy, "line": line}
    return Phase(name, wait + max(busy, line), traffic.all, max(limits, key=lambda each: limits[each]))


def _line_seconds(traffic: Traffic, machines: Machines) -> float:
    if machines.mbit is None or machines.shared:
        return 0.0
    return 8 * traffic.busiest / (machines.mbit * 1e6)


def _memory(work: Workload, role: Role, machines: Machines, own: ProtocolConstants) -> tuple[float, float]:
    """Return the peak memory of a process and its peak scratch space, in megabytes."""
    if role not in PARTIES:
        return total(own.coordinator_memory, work.counts(role)), 0.0
    arrays = place_arrays(work, role, machines.memory_mb * MEGABYTE)
    memory = total(own.party_memory, work.whole.counts(role)) + arrays.in_memory / MEGABYTE
    return memory, arrays.on_disk / MEGABYTE
