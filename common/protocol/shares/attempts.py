"""How far a party has come with an attempt at a round: what is known of each run of blocks, and what is done."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from trilateral.common.base.arrays import ElementVector, FloatVector
from trilateral.common.compute.engine import Placed
from trilateral.common.protocol.messages import BeginRound, ElementPiece, Kind
from trilateral.common.protocol.shares.blocks import BlockTables, Opened, Sums, Work
from trilateral.common.protocol.shares.rows import RowRange, Section, Selection


@dataclass(eq=False)
class RunState:
    """A run of blocks that is under way, from this party's scores to the other's answers.

    Each list has an element for each block of which a piece has come, in their order.
    """

    number: int
    blocks: Sequence[RowRange]
    work: Work = field(repr=False)
    tables: Placed[Sequence[BlockTables]] = field(repr=False)
    own_scores: Sequence[ElementVector] | None = field(default=None, repr=False)
    peer_scores: list[ElementVector] = field(default_factory=list, repr=False)
    dealt: list[ElementVector] = field(default_factory=list, repr=False)
    is_opening: bool = False
    """Whether everything has come that opening needs."""
    opened: Sequence[Opened] | None = field(default=None, repr=False)
    answers: list[ElementPiece] = field(default_factory=list, repr=False)
    """The other party's shares of the residual under a mask. They may come before this party's own are ready."""
    is_closing: bool = False


@dataclass(eq=False)
class Attempt:
    """An attempt at a round."""

    asked: BeginRound = field(repr=False)
    training: Selection | None
    """The training rows to work through; None at w = 0, where their residual is known."""
    holdout: Section | None
    sums: Sums = field(repr=False)
    """Over the training rows."""
    holdout_sums: Sums = field(repr=False)
    runs: list[Sequence[RowRange]] = field(repr=False)
    """The blocks of each run: training rows, then hold-out rows."""
    n_before: list[int] = field(repr=False)
    """Blocks before each run, and at the end their number."""
    work: Work | None = field(default=None, repr=False)
    """On training rows."""
    holdout_work: Work | None = field(default=None, repr=False)
    under_way: dict[int, RunState] = field(default_factory=dict)
    """Runs of which something is known and something is missing, by their number."""
    n_scored: int = 0
    """Blocks of whose scores this party has begun to compute its part."""
    n_runs_scored: int = 0
    n_received: dict[Kind, int] = field(default_factory=dict)
    """Blocks of which pieces of a kind have come."""
    n_done: int = 0
    """Blocks that are done. This party's sums have everything about them."""
    opened_scores: list[tuple[FloatVector, FloatVector]] = field(default_factory=list, repr=False)
    """At the guest, the scores of each block of a fold, if they are opened, and -1 or +1 by label; padding left out."""
    n_rows_done: int = 0
    n_reported: int = 0
    """Blocks that the coordinator knows to be done."""

    def run_of(self, block: int) -> int:
        """Return the number of the run of a block, which is counted from 0."""
        return bisect_right(self.n_before, block) - 1
