"""The outcome of an alignment, at either party."""

from dataclasses import dataclass

from trilateral.common.base.arrays import Rows


@dataclass(frozen=True)
class Aligned:
    """The common rows of one party's table.

    Attributes:
        rows: row numbers, ascending. They stand for the same people in the same order at both parties.
        n_host: IDs of the host in all.
        n_guest: IDs of the guest in all.
    """

    rows: Rows
    n_host: int
    n_guest: int


@dataclass(frozen=True)
class AlignmentProgress:
    """How far an alignment is, in counts. The guest tells the coordinator, so that an operator sees it.

    Attributes:
        done: shards that have been intersected.
        n_shards: shards in all.
        n_host: IDs of the host in all.
        n_guest: IDs of the guest in all.
        n_common: common IDs found so far.
    """

    done: int
    n_shards: int
    n_host: int
    n_guest: int
    n_common: int
