"""The outcome of an alignment, at either party."""

from dataclasses import dataclass

from trilateral.common.base.arrays import Rows


@dataclass(frozen=True)
class Aligned:
    """The common rows of one party's table.

    Attributes:
        rows: row numbers, ascending. At both parties they refer to the same IDs in the same order.
        n_host: total number of the host's IDs.
        n_guest: total number of the guest's IDs.
    """

    rows: Rows
    n_host: int
    n_guest: int


@dataclass(frozen=True)
class AlignmentProgress:
    """The progress of an alignment, as counts. The guest sends it to the coordinator, so that an operator sees it.

    Attributes:
        done: number of shards that have been intersected.
        n_shards: total number of shards.
        n_host: total number of the host's IDs.
        n_guest: total number of the guest's IDs.
        n_common: common IDs found so far.
    """

    done: int
    n_shards: int
    n_host: int
    n_guest: int
    n_common: int
