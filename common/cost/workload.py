"""The sizes of a job, and the counts that its cost is made of: rows, values, products, bytes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.curve25519.points import POINT_BYTES
from trilateral.common.data.alignment.dealing import TAG_BYTES, Dealing
from trilateral.common.protocol.batches import Batches
from trilateral.common.protocol.scales import round_scale
from trilateral.common.rpc.codec import MAX_TOTAL
from trilateral.common.shares.format import Format

TYPICAL_ROUNDS = {"paillier": 6, "shares": 7}
"""Rounds of `lbfgs` on whitened columns with a tolerance of 1e-6 (benchmarks/credit.py)."""
INFERENCE_ROUNDS = 4
"""With `inference`, two steps, each of which takes as long as two rounds."""
ROUNDS_OF_A_FIT = 3
"""Rounds for each fit of a cross-validation, its loss on the fold included (benchmarks/search.py)."""
ELEMENT_BYTES = 8
GROUP_ROWS = 1_000_000
"""Rows of a group of a Parquet file, which is read at once. pyarrow writes 1,048,576 by default."""
CIPHERTEXT_PRODUCTS = 160
"""Products modulo n^2 to encrypt a ciphertext or make it look like a new one, and to convert it from bytes."""
AHEAD_BYTES = 14_000_000
"""Bytes of dealt values that the coordinator sends to a party before the party needs them: as many as the queues of
both hold."""
Line = tuple[Role, Role]
"""Sender and receiver."""


@dataclass(frozen=True)
class Workload:
    """A job without curvature and sample weights, in numbers."""

    job: JobConfig
    rows: int
    """Training rows of each party."""
    columns: Mapping[Role, int]
    """Training columns of each party. The guest's intercept is one."""
    rounds: int
    round_rows: int
    """Rows of a round."""

    @classmethod
    def of(cls, job: JobConfig, rows: int, columns: Mapping[Role, int], rounds: int | None = None) -> Self:
        """Count the rounds of a job.

        Args:
            job: the job.
            rows: training rows of each party.
            columns: training columns of each party.
            rounds: how many rounds the job will have. By default those that are usual with `lbfgs`, and all epochs with
                another algorithm.

        Raises:
            ConfigError: there are too many rows.
        """
        if rows > MAX_TOTAL:
            raise ConfigError(f"{rows:,} rows are too many for a job: the most are {MAX_TOTAL:,}")
        if job.algorithm.name == "lbfgs":
            typical = min(TYPICAL_ROUNDS[job.protocol] + INFERENCE_ROUNDS * job.inference, job.epochs)
            if job.folds is not None:
                typical = ROUNDS_OF_A_FIT * job.n_fits
            return cls(job, rows, columns, rounds or job.n_models * typical, rows)
        n_batches = Batches.of(job, rows).count
        return cls(job, rows, columns, rounds or job.epochs * n_batches, math.ceil(rows / n_batches))

    @property
    def n_columns(self) -> int:
        """Training columns of both parties."""
        return sum(self.columns.values())

    @property
    def slots(self) -> int:
        """Samples in one ciphertext."""
        return round_scale(self.job, self.round_rows, self.rows).layout.slots

    @property
    def ciphertexts(self) -> int:
        """Ciphertexts of a vector of one round."""
        return math.ceil(self.round_rows / self.slots)

    @property
    def dealt_values(self) -> int:
        """Values that the coordinator deals for each row of a round under `shares`."""
        return Format.of(self.rows, self.job.max_score).n_values

    @property
    def own_products(self) -> float:
        """Products modulo n^2 with which a party encrypts and hides in a round under `paillier`, without workers."""
        return CIPHERTEXT_PRODUCTS * self.ciphertexts

    def column_products(self, role: Role) -> float:
        """Return the products modulo n^2 of a party's columns in a round under `paillier`.

        The columns of a piece of ciphertexts are powers with small exponents, by windows of w bits.
        """
        scale = round_scale(self.job, self.round_rows, self.rows)
        k, slot_bits, e = scale.layout.slots, scale.layout.slot_bits, scale.column_fraction_bits
        # The guest multiplies by one column more, for the loss.
        columns = self.columns[role] + (role is Role.GUEST)

        def of_a_ciphertext(window: int) -> float:
            return 5 + (1 << window - 1) + k * columns * (e + 1) / (window + 1)

        at_the_end = columns * (0.74 * (slot_bits * (k - 1) + e) + k * e)
        return self.ciphertexts * min(map(of_a_ciphertext, range(2, 11))) + at_the_end

    @property
    def whole(self) -> Self:
        """The same job with all rows in a round."""
        return replace(self, round_rows=self.rows)

    def counts(self, role: Role, *, is_first: bool = False) -> dict[str, float]:
        """Return what the constants of a process are multiplied by, by name.

        Args:
            role: the process.
            is_first: whether to count the first round. Under `shares`, all scores are 0 in it, so it needs no dealt
                values; but the coordinator sends some for the second round.
        """
        rows = self.round_rows
        counts: dict[str, float] = {"once": 1, "rows": rows, "values": rows * self.n_columns}
        if role in PARTIES:
            counts["own_values"] = rows * self.columns[role]
            counts["group_values"] = min(rows, GROUP_ROWS) * self.columns[role]
            counts["own_squares"] = rows * self.columns[role] ** 2
        if self.job.protocol == "shares":
            sizes = (self.round().sent(Role.COORDINATOR), self.round(is_first=True).sent(Role.COORDINATOR))
            counts["dealt"] = rows * self.dealt_values * (sizes[1] / sizes[0] if is_first else 1)
            counts["dealt_ahead"] = sizes[1]
        elif role in PARTIES:
            counts |= {"products": self.column_products(role) + self.own_products, "ciphertexts": self.ciphertexts}
        else:
            counts["sums"] = self.n_columns + 1
        return counts

    def alignment(self) -> "Traffic":
        """Return the bytes of the search for common rows: each party has as many IDs as training rows, all common."""
        return of_alignment(self.rows)

    def exchange(self) -> "Traffic":
        """Return the vectors that the parties exchange before the first round: their columns under masks."""
        if self.job.protocol == "paillier":
            return Traffic()
        host, guest = PARTIES
        masked = {role: ELEMENT_BYTES * self.columns[role] * self.rows for role in PARTIES}
        return Traffic({(host, guest): masked[host], (guest, host): masked[guest]})

    def round(self, *, is_first: bool = False) -> "Traffic":
        """Return the vectors of a round. Under `shares`, all scores are 0 in the first round, so none travel."""
        host, guest = PARTIES
        if self.job.protocol == "paillier":
            width = self.job.key_bits // 4
            between = width * self.ciphertexts
            sums = {role: width * (self.columns[role] + (role is Role.GUEST)) for role in PARTIES}
            return Traffic(
                {
                    (host, guest): between,
                    (guest, host): between,
                    **{(role, Role.COORDINATOR): sums[role] for role in PARTIES},
                }
            )
        fmt = Format.of(self.rows, self.job.max_score)
        vector = ELEMENT_BYTES * self.round_rows
        dealt = {host: vector * fmt.n_odd, guest: vector * fmt.n_even}
        if is_first:
            dealt = {role: min(size, AHEAD_BYTES) for role, size in dealt.items()}
        # Each party sends the other its part of the scores, and its share of the residual under a mask. The host needs
        # no residual in the first round.
        return Traffic(
            {
                (host, guest): 0 if is_first else 2 * vector,
                (guest, host): vector if is_first else 2 * vector,
                **{(role, Role.COORDINATOR): ELEMENT_BYTES * (self.n_columns + 1) for role in PARTIES},
                **{(Role.COORDINATOR, role): dealt[role] for role in PARTIES},
            }
        )

    def training(self) -> "Traffic":
        """Return all vectors of the training."""
        return self.exchange() + self.round(is_first=True) + self.round() * (self.rounds - 1) + self.fold_scores()

    def fold_scores(self) -> "Traffic":
        """Return what the host opens with `choose: auc`: the score of each row, once for each penalty."""
        if self.job.choose != "auc":
            return Traffic()
        host, guest = PARTIES
        return Traffic({(host, guest): ELEMENT_BYTES * self.rows * len(self.job.penalties)})


@dataclass(frozen=True)
class Traffic:
    """The bytes of something that happens, for each line."""

    lines: Mapping[Line, int] = field(default_factory=dict)

    def sent(self, role: Role) -> int:
        """Return what a process sends."""
        return sum(n for (sender, _), n in self.lines.items() if sender is role)

    def received(self, role: Role) -> int:
        """Return what a process receives."""
        return sum(n for (_, receiver), n in self.lines.items() if receiver is role)

    @property
    def all(self) -> int:
        """Bytes of all lines."""
        return sum(self.lines.values())

    @property
    def busiest(self) -> int:
        """Bytes of the busiest direction of any organisation's connection to the network."""
        return max(max(self.sent(role), self.received(role)) for role in Role)

    def __mul__(self, times: int) -> "Traffic":
        return Traffic({line: n * times for line, n in self.lines.items()})

    def __add__(self, other: "Traffic") -> "Traffic":
        lines = {**self.lines, **other.lines}
        return Traffic({line: self.lines.get(line, 0) + other.lines.get(line, 0) for line in lines})


def of_alignment(ids: int) -> Traffic:
    """Return the bytes of a search for common rows: each party has so many IDs, all common."""
    host, guest = PARTIES
    dealing = Dealing(b"", ids, ids)
    # The host returns the guest's points multiplied by its key, and the guest then tells which are common.
    return Traffic(
        {
            (guest, host): POINT_BYTES * dealing.guest_room + TAG_BYTES * ids,
            (host, guest): POINT_BYTES * (dealing.host_room + dealing.guest_room),
        }
    )
