"""The guest's state machine in a bins job: it opens the counts, and merges. See `common.protocol.shares.bins`."""

import math
from collections.abc import Iterator, Sequence
from secrets import token_bytes
from typing import ClassVar

import numpy as np

from trilateral.common.base.arrays import ElementVector
from trilateral.common.base.errors import DataError, ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.protocol.binning import Counts, FineBins, find_groups, sum_groups
from trilateral.common.protocol.ids import NONCE_BYTES, check_id_digest, id_digest
from trilateral.common.protocol.messages import (
    BinSizes,
    BinsResult,
    CountsDue,
    ElementPiece,
    Envelope,
    Finished,
    IdChallenge,
    IdConfirmation,
    IdProof,
    MergedBins,
    MergedColumn,
    Message,
)
from trilateral.common.protocol.scales import GRADIENT_BITS
from trilateral.common.protocol.shares.bins import MIN_BIN_ROWS, BinsData, BinsMachine, Release
from trilateral.common.protocol.shares.counting import (
    MAX_FINE,
    are_valid,
    count_bits,
    first_bins,
    open_counts,
    positive_counts,
)
from trilateral.common.protocol.shares.rows import RowRange
from trilateral.common.protocol.shares.session import draw_seed
from trilateral.common.shares import kernels
from trilateral.common.shares.keys import Purpose

_EQUATIONS_OF_A_CHECK = 1
"""Whether the counts fit the sizes of the bins is visible to the host, and is a bit about labels if the host lies."""


def released_equations(bins: Sequence[FineBins], merged: Sequence[MergedColumn], n_train: int) -> int:
    """Return how many equations about the labels the merged bins are, in the units of the ledger, rounded up.

    A count has log2(n + 1) bits, whatever the host's columns are. Which fine bins were merged follows from the labels
    as well: one bit for each pair of neighbours, or for bins without an order the choice of a group for each.

    Args:
        bins: the fine bins of each column.
        merged: how they were merged.
        n_train: training rows.
    """
    bits = 0.0
    for fine, each in zip(bins, merged, strict=True):
        n_groups = len(each.n_positive)
        choices = len(fine.n_rows) - 1 if fine.ordered else len(fine.n_rows) * math.log2(max(n_groups, 2))
        bits += choices + n_groups * math.log2(n_train + 1)
    return math.ceil(bits / GRADIENT_BITS)


class GuestBins(BinsMachine):
    """The guest in a bins job. It opens the counts of the host's bins, which have no names.

    Args:
        data: see the base.
        seed: see the base.
        release: what it merges and tells the host.
    """

    role: ClassVar[Role] = Role.GUEST
    peer: ClassVar[Role] = Role.HOST

    def __init__(self, data: BinsData, seed: bytes, release: Release) -> None:
        super().__init__(data, seed)
        self._release = release
        self._nonce = token_bytes(NONCE_BYTES)
        self._bins: tuple[FineBins, ...] = ()
        self._sums = np.zeros(0, np.uint64)
        self._counts: dict[Role, ElementVector] = {}

    def start(self) -> Iterator[Envelope]:
        """Ask the host to prove that it holds the same IDs."""
        # The guest has one column, its labels. The message has a place for a seed that a bins job does not use.
        yield Envelope(Role.HOST, IdChallenge(self._nonce, self._data.n_rows, 1, draw_seed()))

    def _handle_own(self, sender: Role, message: Message) -> Iterator[Envelope]:
        match message:
            case IdProof() if sender is Role.HOST:
                yield from self._check_proof(message)
            case BinSizes() if sender is Role.HOST:
                yield from self._take_sizes(message)
            case _:
                yield from super()._handle_own(sender, message)

    def _check_proof(self, proof: IdProof) -> Iterator[Envelope]:
        nonces = self._nonce, proof.nonce
        check_id_digest(proof.digest, self._data.list_digest, *nonces, Role.HOST)
        if not 0 < proof.n_columns <= MAX_FINE:
            raise ProtocolError(f"the host has {proof.n_columns} fine bins; expected 1 to {MAX_FINE}")
        if not self._n_fine:
            self._expect(proof.n_columns)
            self._sums = np.zeros(self._n_fine, np.uint64)
        yield Envelope(Role.HOST, IdConfirmation(id_digest(self._data.list_digest, *nonces, Role.GUEST)))

    def _take_sizes(self, sizes: BinSizes) -> Iterator[Envelope]:
        if self._bins:
            return
        bins = list(sizes.columns)
        if first_bins(bins)[-1] != self._n_fine or not are_valid(bins, self._data.n_train, MIN_BIN_ROWS):
            raise ProtocolError(
                f"the host's bins are not those of {self._data.n_train} training rows with at least {MIN_BIN_ROWS} rows"
                " in each bin"
            )
        self._bins = sizes.columns
        yield self._ready()

    def _take_masked(self, piece: ElementPiece) -> Iterator[Envelope]:
        if not self._bins:
            raise ProtocolError("the host sent masked columns before the sizes of its bins")
        rows = self._next_piece(piece, self._n_fine)
        if rows is None:
            return
        labels = self._signs(rows)
        kernels.add_products(piece.elements, labels, self._sums)
        yield self._masked(rows, kernels.mask(labels, self._dealer.session, Purpose.LABELS, rows.first, 1))
        yield from self._go_on()

    def _signs(self, rows: RowRange) -> ElementVector:
        """Return q of some rows, 0 at padding."""
        part = -self._data.labels[rows.first : rows.end]
        return np.concatenate([part, np.zeros(rows.n_rows - len(part))]).astype(np.int64).view(np.uint64)

    def _take_counts(self, sender: Role, piece: ElementPiece) -> Iterator[Envelope]:
        if not self._bins or len(piece.elements) != self._n_fine:
            raise ProtocolError(f"the {sender} sent {len(piece.elements)} counts, but {self._n_fine} are expected")
        self._counts.setdefault(sender, piece.elements)
        yield from self._go_on()

    def _go_on(self) -> Iterator[Envelope]:
        """Open the counts once everything has come."""
        if self._n_taken < len(self._pieces) or len(self._counts) < 2:
            return
        bits = count_bits(self._data.n_train)
        h = open_counts(self._sums, self._counts[Role.HOST], self._counts[Role.COORDINATOR], bits)
        n_positive = int((self._data.labels > 0).sum())
        labels = n_positive, self._data.n_train - n_positive
        positive = positive_counts(list(self._bins), h, labels)
        if positive is None:
            yield Envelope(Role.GUEST, CountsDue(_EQUATIONS_OF_A_CHECK))
            raise DataError(
                "the counts of labels contradict the sizes of the host's bins: install the same release of trilateral"
                " at all three, and start the job again"
            )
        merged = tuple(self._merge(fine, each) for fine, each in zip(self._bins, positive, strict=True))
        self._done = True
        # With few rows of a label, even a single bin of all rows would tell their number.
        released = merged if self._release.to_host and min(labels) >= self._release.rule.min_of_label else ()
        equations = released_equations(self._bins[: len(released)], released, self._data.n_train)
        yield Envelope(Role.GUEST, CountsDue(equations + _EQUATIONS_OF_A_CHECK))
        yield Envelope(Role.HOST, MergedBins(released))
        yield Envelope(Role.GUEST, BinsResult(self._bins, merged))
        yield Envelope(Role.COORDINATOR, Finished())

    def _merge(self, fine: FineBins, n_positive: Counts) -> MergedColumn:
        groups = find_groups(fine, n_positive, self._release.rule)
        return MergedColumn(tuple(groups), tuple(sum_groups(n_positive, groups).tolist()))
