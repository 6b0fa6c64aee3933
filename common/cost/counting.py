"""The sizes of a bins job, and the counts that its cost is made of."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.cost.workload import ELEMENT_BYTES, Traffic, of_alignment
from trilateral.common.protocol.binning import MAX_FINE_BINS
from trilateral.common.protocol.shares.counting import MAX_FINE
from trilateral.common.rpc.codec import MAX_TOTAL
from trilateral.common.shares.layout import pad


@dataclass(frozen=True)
class Counting:
    """A bins job, in numbers."""

    job: JobConfig
    rows: int
    """Training rows of each party."""
    features: Mapping[Role, int]
    """Features of each party."""

    @classmethod
    def of(cls, job: JobConfig, rows: int, features: Mapping[Role, int]) -> Self:
        """Check the sizes of a job.

        Raises:
            ConfigError: there are too many rows or features.
        """
        if rows > MAX_TOTAL:
            raise ConfigError(f"{rows:,} rows are too many for a job: the most are {MAX_TOTAL:,}")
        found = cls(job, rows, features)
        if found.n_fine > MAX_FINE:
            raise ConfigError(
                f"{features[Role.HOST]:,} features of the host have {found.n_fine:,} fine bins, and a bins job takes"
                f" {MAX_FINE:,}: {MAX_FINE // MAX_FINE_BINS} features"
            )
        return found

    @property
    def n_fine(self) -> int:
        """Fine bins of all the host's features, if each has as many as it can have."""
        return MAX_FINE_BINS * self.features[Role.HOST]

    def counts(self, role: Role) -> dict[str, float]:
        """Return what the constants of a process are multiplied by, by name."""
        counts: dict[str, float] = {"once": 1, "rows": self.rows, "fine_values": self.rows * self.n_fine}
        if role in PARTIES:
            counts["own_values"] = self.rows * self.features[role]
        return counts

    def alignment(self) -> Traffic:
        """Return the bytes of the search for common rows: each party has as many IDs as training rows, all common."""
        return of_alignment(self.rows)

    def traffic(self) -> Traffic:
        """Return the vectors of the job without the alignment: masked tables, and shares of the counts."""
        host, guest = PARTIES
        rows, counts = pad(self.rows), ELEMENT_BYTES * self.n_fine
        return Traffic(
            {
                (host, guest): ELEMENT_BYTES * rows * self.n_fine + counts,
                (guest, host): ELEMENT_BYTES * rows,
                (Role.COORDINATOR, guest): counts,
            }
        )
