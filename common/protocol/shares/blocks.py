"""What a party computes on a run of blocks in a round: pure functions, which an engine runs anywhere.

A run goes through three functions: `score`, `open_blocks` and `close_blocks`. Each returns this party's part of the
sums over the rows of the run. Sums are exact modulo 2^64, so they do not depend on how the rows are divided into runs.
Masks depend on the row and the attempt alone, and tables do not change, so a second call returns the same bits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import ElementVector
from trilateral.common.base.roles import Role
from trilateral.common.protocol.shares.rows import RowRange
from trilateral.common.shares import kernels
from trilateral.common.shares.format import Format
from trilateral.common.shares.kernels import Residual, Weights
from trilateral.common.shares.layout import GROUP, grouped
from trilateral.common.shares.scores import score_share

Tile: TypeAlias = NDArray[np.int32]
"""A party's own columns as integers, in the layout of `shares.layout`."""


@dataclass(frozen=True, eq=False)
class BlockTables:
    """A party's tables of one block, in the layout of `shares.layout`."""

    rows: RowRange
    own: Tile = field(repr=False)
    """Its own columns."""
    peers: ElementVector = field(repr=False)
    """The other party's masked columns: D_A or D_B."""
    signs: NDArray[np.int8] | None = field(default=None, repr=False)
    """At the guest, q = 1 - 2y, shape (n_rows,); 0 at padding."""
    weights: ElementVector | None = field(default=None, repr=False)
    """With sample weights: c at the guest, D_c at the host, shape (n_rows,)."""
    weighted: ElementVector | None = field(default=None, repr=False)
    """With sample weights, D_Y at the host."""


@dataclass(frozen=True, eq=False)
class Work:
    """What a party needs beside its tables, for all runs of training rows, or of hold-out rows, of an attempt."""

    role: Role
    fmt: Format
    n_host: int
    n_guest: int
    session_key: bytes = field(repr=False)
    """Of the streams that the party has in common with the coordinator, for the session."""
    round_key: bytes = field(repr=False)
    """The same for the attempt."""
    weights: Weights
    """Shares of the point."""
    gradient: bool
    """Whether the gradient is asked for, and not the loss alone."""
    is_holdout: bool
    opens_scores: bool = False
    """Whether the guest is told the scores. Then the host opens one more element of each row; see `shares.scores`."""

    @property
    def n_opened(self) -> dict[Role, int]:
        """How many elements of each row the parties open."""
        if self.is_holdout:
            return {Role.HOST: 0, Role.GUEST: 0}
        return {Role.HOST: self.gradient + self.fmt.n_opened - 1, Role.GUEST: int(self.gradient)}


@dataclass(frozen=True, eq=False)
class Sums:
    """A party's shares of the sums over some rows."""

    host: ElementVector = field(repr=False)
    """Of the gradient of the host's columns, shape (n_host,)."""
    guest: ElementVector = field(repr=False)
    """Of the gradient of the guest's columns, shape (n_guest,)."""
    loss: ElementVector = field(repr=False)
    """Of the loss, shape (1,)."""

    @classmethod
    def zeros(cls, n_host: int, n_guest: int) -> Self:
        """Return sums of nothing."""
        return cls(np.zeros(n_host, np.uint64), np.zeros(n_guest, np.uint64), np.zeros(1, np.uint64))

    def add(self, other: "Sums") -> None:
        """Add the sums over other rows."""
        for total, part in ((self.host, other.host), (self.guest, other.guest), (self.loss, other.loss)):
            np.add(total, part, out=total)


@dataclass(frozen=True, eq=False)
class Opened:
    """What follows from the scores of a block."""

    digest: bytes
    """Of z and of the coefficients, as in `Residual`."""
    elements: ElementVector | None = field(repr=False)
    """What the party opens to the other; None if that needs what the other opens."""
    residual: Residual | None = field(repr=False)
    """What closing the block needs; None if it needs nothing."""
    scores: ElementVector | None = field(default=None, repr=False)
    """At the guest, its shares of the scores, if they are opened, shape (n_rows,)."""


OpenBlock: TypeAlias = Callable[[Work, BlockTables, Residual, Sums], ElementVector | None]
"""Adds what follows from this party's shares of a block to its sums, and returns `Opened.elements`."""
CloseBlock: TypeAlias = Callable[[Work, BlockTables, Residual | None, ElementVector, Sums], ElementVector | None]
"""Adds what follows from what the other party has opened, and returns what this party opens, if `OpenBlock` has not
returned it."""


def score(work: Work, tables: Sequence[BlockTables]) -> list[ElementVector]:
    """Return this party's parts of the masked scores of each block, shape (n_rows,) each."""
    keys, is_host = (work.session_key, work.round_key), work.role is Role.HOST
    return [
        kernels.score_part(each.own, each.peers, work.weights, keys, each.rows.first, offset=is_host) for each in tables
    ]


def open_blocks(
    work: Work,
    tables: Sequence[BlockTables],
    z: Sequence[ElementVector],
    dealt: Sequence[ElementVector],
    open_block: OpenBlock,
) -> tuple[list[Opened], Sums]:
    """Compute the residuals of each block, and what follows from them.

    Args:
        work: see `Work`.
        tables: of each block.
        z: the masked scores of each block, shape (n_rows,) each.
        dealt: what the coordinator has dealt for each block.
        open_block: the role's part.
    """
    opened, sums = [], Sums.zeros(work.n_host, work.n_guest)
    gradient = work.gradient and not work.is_holdout
    for each, scores, values in zip(tables, z, dealt, strict=True):
        first = each.rows.first
        residual = kernels.residual(work.fmt, work.role, work.round_key, values, scores, first, gradient=gradient)
        elements = open_block(work, each, residual, sums)
        kept = residual if elements is None else None
        shares = score_share(work.fmt, work.role, work.round_key, values, scores, first) if work.opens_scores else None
        if shares is not None and work.role is Role.HOST and elements is not None:
            elements, shares = _with_column(elements, shares), None
        opened.append(Opened(residual.digest, elements, kept, shares))
    return opened, sums


def _with_column(table: ElementVector, column: ElementVector) -> ElementVector:
    """Return a table in the layout with one more column, the last one."""
    n_columns = len(table) // len(column)
    columns = [table.reshape(-1, n_columns, GROUP), column.reshape(-1, 1, GROUP)] if n_columns else [column]
    return np.concatenate(columns, axis=1 if n_columns else 0).ravel()


def without_column(table: ElementVector, n_rows: int) -> tuple[ElementVector, ElementVector]:
    """Return a table in the layout without its last column, and that column."""
    columns = grouped(table, len(table) // n_rows)
    return columns[:, :-1].ravel(), columns[:, -1].ravel()


def close_blocks(
    work: Work,
    tables: Sequence[BlockTables],
    residuals: Sequence[Residual | None],
    opened: Sequence[ElementVector],
    close_block: CloseBlock,
) -> tuple[list[ElementVector | None], Sums]:
    """Use what the other party has opened of each block; for the arguments see `open_blocks`."""
    sums = Sums.zeros(work.n_host, work.n_guest)
    replies = [
        close_block(work, each, residual, elements, sums)
        for each, residual, elements in zip(tables, residuals, opened, strict=True)
    ]
    return replies, sums
