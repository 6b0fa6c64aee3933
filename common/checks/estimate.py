"""What a training would cost under each protocol: processor time, bytes, and seconds on a line of some bandwidth.

The constants are measured. `benchmarks/sizing.py` prints the formulas beside measured trainings, and
docs/deployment.md has its figures.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from trilateral.common.checks.finding import Finding, note
from trilateral.common.config.job import JobConfig
from trilateral.common.jobs.arithmetic import processors, use_arithmetic
from trilateral.common.paillier.native.path import Path
from trilateral.common.protocol.batches import Batches
from trilateral.common.protocol.scales import round_scale
from trilateral.common.shares.format import Format
from trilateral.common.shares.path import NUMPY, shares_level

LINES = (1000, 100, 20)
"""Bandwidths, in Mbit/s in each direction, for which a check prints seconds."""
TYPICAL_ROUNDS = {"paillier": 6, "shares": 7}
"""Rounds of `lbfgs` on whitened columns with a tolerance of 1e-6 (benchmarks/credit.py)."""

# --- Paillier: one thread, a key of 2048 bits, the kernel with AVX2

PRODUCT_MICROSECONDS = 1.2
"""Time of one product modulo n^2 in the kernel (docs/kernel.md)."""
PRODUCT_EXPONENT = 1.77
"""How that time grows with the bits of the key: 2.4 at 3072 bits, 4.1 at 4096."""
DECRYPTION_SECONDS = 0.0017
DECRYPTION_EXPONENT = 2.7
"""0.0050 at 3072 bits, 0.011 at 4096."""
OVERHEAD = 1.9
"""Factor for the work beyond products: memory, packing, checks, messages. Measured on a busy machine. A core with the
architecture Zen 5 needs about a third of the resulting seconds (docs/deployment.md)."""
PATH_FACTORS: dict[Path, float] = {"ifma": 0.2, "avx2": 1, "gmpy2": 5}
"""Factor of all seconds, by what computes. For `ifma`, 0.12 was measured on Zen 5 (docs/deployment.md), which begins
two multiply-adds in a cycle. Other processors begin one."""
PAILLIER_SETUP_SECONDS = 1.0
"""For a key, tables, the proof of the IDs and randomness."""

# --- shares

BYTE_NANOSECONDS = 0.8
"""Processor time for each byte that a process sends or receives, with TLS."""
VALUE_NANOSECONDS = 0.7
"""Processor time of each process for each dealt value."""
COLUMN_NANOSECONDS = 0.35
"""Processor time of each process for each training column of either party in each row."""
SHARES_WITHOUT_KERNEL = 40
"""Factor of both if numpy computes in place of the kernel."""
ROUND_SECONDS = 0.02
"""What a round takes beyond this: three event loops and messages without rows."""
SHARES_SETUP_SECONDS = 0.7
"""For tables and the proof of the IDs."""
ELEMENT_BYTES = 8


@dataclass(frozen=True)
class RoundCost:
    """The cost of one round. Bytes are those of vectors; seconds are those of one processor."""

    between_parties: int
    """Bytes in each direction."""
    to_coordinator: int
    """Bytes from both parties together."""
    from_coordinator: int
    """Bytes to both parties together."""
    host_seconds: float
    guest_seconds: float
    coordinator_seconds: float

    @property
    def bytes(self) -> int:
        """Bytes of all processes together."""
        return 2 * self.between_parties + self.to_coordinator + self.from_coordinator

    @property
    def line_bytes(self) -> int:
        """Bytes on the busiest direction of any organisation's line."""
        party = self.between_parties + max(self.to_coordinator, self.from_coordinator) // 2
        return max(party, self.to_coordinator, self.from_coordinator)


@dataclass(frozen=True)
class TrainingCost:
    """The cost of a training in which each organisation has a machine of its own."""

    rounds: int
    setup_seconds: float
    setup_between_parties: int
    """Bytes in each direction before the first round."""
    round: RoundCost
    round_seconds: float
    """Seconds of a round on a line without limit."""

    @property
    def bytes(self) -> int:
        """Bytes of all processes together."""
        return 2 * self.setup_between_parties + self.rounds * self.round.bytes

    def seconds(self, mbit: float) -> float:
        """Return the seconds on a line of `mbit` Mbit/s in each direction: work and transfer overlap."""
        second = mbit * 1e6 / 8
        of_a_round = max(self.round_seconds, self.round.line_bytes / second)
        return self.setup_seconds + self.setup_between_parties / second + self.rounds * of_a_round


def check_cost(job: JobConfig, n_rows: int, n_columns: int) -> Iterator[Finding]:
    """Estimate what a job costs under each protocol, if the other party has as many columns.

    Args:
        job: the job, whose own `protocol` does not matter.
        n_rows: training rows of the party.
        n_columns: training columns of the party.
    """
    costs = {}
    if job.cipher == "packed":
        costs["paillier"] = paillier_training(job, n_rows, n_columns, PATH_FACTORS[use_arithmetic()])
    if job.algorithm.name != "sqn":
        slow_down = SHARES_WITHOUT_KERNEL if shares_level() == NUMPY else 1
        costs["shares"] = shares_training(job, n_rows, n_columns, slow_down)
    at_most = "" if job.algorithm.name == "lbfgs" else "at most "
    for protocol, cost in costs.items():
        seconds = ", ".join(f"{_short(cost.seconds(mbit))} s at {mbit} Mbit/s" for mbit in LINES)
        yield note(
            f"protocol {protocol}",
            f"{at_most}about {seconds}; {_short(cost.bytes / 1e6)} MB in {at_most}{cost.rounds:,} rounds",
        )


def paillier_training(job: JobConfig, n_rows: int, n_columns: int, factor: float = 1) -> TrainingCost:
    """Estimate a training under `paillier` with `n_columns` training columns at each party."""
    rounds, rows = _rounds(job, "paillier", n_rows)
    cost = paillier_round(rows, n_columns, n_columns, job)
    parties = max(cost.host_seconds, cost.guest_seconds) / processors()
    return TrainingCost(
        rounds, PAILLIER_SETUP_SECONDS, 0, cost, factor * (parties + cost.coordinator_seconds / processors())
    )


def shares_training(job: JobConfig, n_rows: int, n_columns: int, slow_down: float = 1) -> TrainingCost:
    """Estimate a training under `shares` with `n_columns` training columns at each party."""
    rounds, rows = _rounds(job, "shares", n_rows)
    cost = shares_round(rows, n_columns, n_columns, job, slow_down)
    seconds = max(cost.host_seconds, cost.guest_seconds, cost.coordinator_seconds)
    masked_columns = ELEMENT_BYTES * (n_columns + 1) * n_rows
    return TrainingCost(rounds, SHARES_SETUP_SECONDS, masked_columns, cost, ROUND_SECONDS + seconds)


def _rounds(job: JobConfig, protocol: str, n_rows: int) -> tuple[int, int]:
    """Return how many rounds a training has, at most if it has batches, and how many rows one of them has."""
    if job.algorithm.name == "lbfgs":
        return min(TYPICAL_ROUNDS[protocol], job.epochs), n_rows
    n_batches = Batches.of(job, n_rows).count
    return job.epochs * n_batches, math.ceil(n_rows / n_batches)


def paillier_round(rows: int, host_columns: int, guest_columns: int, job: JobConfig) -> RoundCost:
    """Estimate a round under `paillier` without curvature; with curvature, bytes and processor time double.

    Args:
        rows: rows of the round.
        host_columns: training columns of the host.
        guest_columns: those of the guest, with the intercept.
        job: the size of the key and of a slot.
    """
    scale = round_scale(job, rows, rows)
    k, slot_bits, e = scale.layout.slots, scale.layout.slot_bits, scale.column_fraction_bits
    ciphertexts = math.ceil(rows / k)
    width = job.key_bits // 4
    own_products = 160 * ciphertexts  # to encrypt or re-randomise, and to convert bytes to elements

    def products(columns: int) -> float:
        digits: int = min(range(2, 11), key=lambda w: (1 << w - 1) + k * columns * (e + 1) / (w + 1))
        of_a_ciphertext = 5 + (1 << digits - 1) + k * columns * (e + 1) / (digits + 1)
        at_the_end = columns * (0.74 * (slot_bits * (k - 1) + e) + k * e)
        return ciphertexts * of_a_ciphertext + at_the_end

    product = OVERHEAD * PRODUCT_MICROSECONDS / 1e6 * (job.key_bits / 2048) ** PRODUCT_EXPONENT
    decryption = DECRYPTION_SECONDS * (job.key_bits / 2048) ** DECRYPTION_EXPONENT
    # The guest multiplies by one column more, for the loss.
    return RoundCost(
        between_parties=width * ciphertexts,
        to_coordinator=width * (host_columns + guest_columns + 1),
        from_coordinator=0,
        host_seconds=product * (own_products + products(host_columns)),
        guest_seconds=product * (own_products + products(guest_columns + 1)),
        coordinator_seconds=decryption * (host_columns + guest_columns + 1),
    )


def shares_round(rows: int, host_columns: int, guest_columns: int, job: JobConfig, slow_down: float = 1) -> RoundCost:
    """Estimate a round under `shares` without sample weights.

    Args:
        rows: see `paillier_round`, also for the next three.
        host_columns: see there.
        guest_columns: see there.
        job: see there.
        slow_down: factor of the arithmetic.
    """
    values = Format.of(rows, job.max_score).n_values
    dealt = ELEMENT_BYTES * values * rows
    # Each party sends the other its part of the scores, and its share of the residual under a mask.
    between_parties = 2 * ELEMENT_BYTES * rows

    def seconds(n_bytes: int) -> float:
        columns = host_columns + guest_columns
        arithmetic = (VALUE_NANOSECONDS * values + COLUMN_NANOSECONDS * columns) * rows
        return (BYTE_NANOSECONDS * n_bytes + slow_down * arithmetic) / 1e9

    party = seconds(dealt // 2 + 2 * between_parties)
    return RoundCost(
        between_parties=between_parties,
        to_coordinator=2 * ELEMENT_BYTES * (host_columns + guest_columns + 1),
        from_coordinator=dealt,
        host_seconds=party,
        guest_seconds=party,
        coordinator_seconds=seconds(dealt),
    )


def _short(number: float) -> str:
    return f"{number:.1f}" if number < 10 else f"{number:,.0f}"
