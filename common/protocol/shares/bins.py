"""A party's state machine in a bins job: the common part of the host and the guest. `counting` has the arithmetic.

After the proof of the IDs, the host tells the guest the sizes of its fine bins. Then the host sends its masked columns,
piece by piece, and the guest answers each with the masked labels of the same rows. At the end host and coordinator send
the guest their parts of the counts. The guest merges bins under its own policy, and tells the host what that releases.

A session that breaks off begins again from the start, with new seeds: counting takes seconds.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.progress import Stage, report_progress
from trilateral.common.base.roles import Role
from trilateral.common.protocol.binning import FineBins, MergeRule
from trilateral.common.protocol.messages import ElementPiece, Envelope, Kind, Message, Ready, SharesReady
from trilateral.common.protocol.shares.counting import pieces
from trilateral.common.protocol.shares.rows import RowRange
from trilateral.common.protocol.shares.session import SESSION, StreamKeys, draw_seed

MIN_BIN_ROWS = 10
"""The fewest training rows of a fine bin. The host makes no smaller ones, and the guest counts no labels in them."""


@dataclass(frozen=True, eq=False)
class BinsData:
    """What a party brings to a bins job."""

    n_rows: int
    """Rows that both parties have."""
    list_digest: bytes
    """Digest of the list of their IDs."""
    n_train: int
    """Training rows, which alone are counted."""
    bins: list[FineBins] = field(default_factory=list)
    """Host: its columns in fine bins."""
    codes: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, 0), np.uint8), repr=False)
    """Host: the fine bin of each training row in each column, shape (n_train, n_columns)."""
    labels: FloatVector = field(default_factory=lambda: np.zeros(0), repr=False)
    """Guest: of the training rows, in {-1, +1}, shape (n_train,)."""


@dataclass(frozen=True)
class Release:
    """What the guest merges, and whether it tells the host."""

    rule: MergeRule
    """What a merged bin needs."""
    to_host: bool
    """Whether the host is told the merged bins and their labels."""


class BinsMachine(ABC):
    """The common part. See the module.

    Args:
        data: this party's rows, in canonical order of their IDs.
        seed: the coordinator's part of the seed of the streams that it has in common with this party.
    """

    role: ClassVar[Role]
    peer: ClassVar[Role]

    def __init__(self, data: BinsData, seed: bytes) -> None:
        self._data = data
        self._dealer_seed = draw_seed()
        self._dealer = StreamKeys.agreed(seed, self._dealer_seed)
        """Streams that this party has in common with the coordinator."""
        self._n_fine = 0
        self._pieces: list[RowRange] = []
        self._n_taken = 0
        """Pieces of the other party's masked table that have come."""
        self._done = False

    def start(self) -> Iterator[Envelope]:
        """See `Machine.start`."""
        yield from ()

    @property
    def under_way(self) -> bool:
        """See `Machine.under_way`."""
        return False

    def settle(self) -> Iterator[Envelope]:
        """See `Machine.settle`."""
        yield from ()

    def prepare(self) -> bool:
        """See `Machine.prepare`."""
        return False

    @property
    def prepared(self) -> int:
        """See `Machine.prepared`."""
        return 0

    def handle(self, sender: Role, message: Message) -> Iterator[Envelope]:
        """See `Machine.handle`. After the end, messages that were sent twice are ignored."""
        if self._done:
            return
        if isinstance(message, ElementPiece) and message.key == SESSION:
            if message.kind is Kind.MASKED_COLUMNS and sender is self.peer:
                yield from self._take_masked(message)
                return
            if message.kind is Kind.COUNTS:
                yield from self._take_counts(sender, message)
                return
        yield from self._handle_own(sender, message)

    def _expect(self, n_fine: int) -> None:
        self._n_fine = n_fine
        self._pieces = pieces(self._data.n_train, n_fine)

    def _ready(self) -> Envelope:
        shares = SharesReady(self._dealer_seed, 0, 0, 0, np.zeros(0))
        return Envelope(Role.COORDINATOR, Ready(self._data.n_train, self._n_fine, shares=shares))

    def _next_piece(self, piece: ElementPiece, n_columns: int) -> RowRange | None:
        """Return the rows of the next piece of the other party's table; None if it has come before.

        Raises:
            ProtocolError: it is not the next piece.
        """
        if self._n_taken < len(self._pieces):
            rows = self._pieces[self._n_taken]
            if (piece.offset, piece.n_rows, len(piece.elements)) == (rows.first, rows.n_rows, rows.n_rows * n_columns):
                self._n_taken += 1
                report_progress(Stage.COUNTING, rows.end, self._pieces[-1].end)
                return rows
        if piece.offset in {rows.first for rows in self._pieces[: self._n_taken]}:
            return None
        raise ProtocolError(
            f"the {self.peer} sent {len(piece.elements)} elements for rows from {piece.offset} of masked columns, which"
            " are not the next ones of a bins job"
        )

    def _masked(self, rows: RowRange, elements: NDArray[np.uint64]) -> Envelope:
        total = self._pieces[-1].end
        piece = ElementPiece(SESSION, Kind.MASKED_COLUMNS, rows.first, total, rows.n_rows, elements)
        return Envelope(self.peer, piece)

    @abstractmethod
    def _take_masked(self, piece: ElementPiece) -> Iterator[Envelope]:
        """Use a piece of the other party's masked table."""

    def _take_counts(self, sender: Role, piece: ElementPiece) -> Iterator[Envelope]:
        """Take a part of the counts. Only the guest is sent any."""
        raise ProtocolError(f"the {self.role} does not take {piece.kind} from the {sender}")

    @abstractmethod
    def _handle_own(self, sender: Role, message: Message) -> Iterator[Envelope]:
        """Handle a message that only this role accepts."""
        raise ProtocolError(f"the {self.role} does not take a {type(message).__name__} from the {sender} in a bins job")
