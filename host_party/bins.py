"""The host's state machine in a bins job: its bins are counted. See `common.protocol.shares.bins`."""

from collections.abc import Iterator
from secrets import token_bytes
from typing import ClassVar

import numpy as np

from trilateral.common.base.errors import DataError, ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.protocol.binning import FineBins
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
    Kind,
    MergedBins,
    Message,
)
from trilateral.common.protocol.shares.bins import BinsData, BinsMachine, Release
from trilateral.common.protocol.shares.counting import (
    WINDOW_BYTES,
    add_host_share,
    count_bits,
    first_bins,
    one_hot,
    piece_rows,
    sent_share,
)
from trilateral.common.protocol.shares.session import SESSION, draw_seed
from trilateral.common.shares import kernels
from trilateral.common.shares.keys import Purpose


class HostBins(BinsMachine):
    """The host in a bins job. It sends the guest its masked columns, and its part of the counts."""

    role: ClassVar[Role] = Role.HOST
    peer: ClassVar[Role] = Role.GUEST

    def __init__(self, data: BinsData, seed: bytes, release: Release) -> None:
        super().__init__(data, seed)
        del release  # The guest merges.
        self._expect(first_bins(data.bins)[-1])
        self._sums = np.zeros(self._n_fine, np.uint64)
        self._nonces: tuple[bytes, bytes] | None = None
        self._is_confirmed = False
        self._n_sent = 0
        self._ahead = max(2, WINDOW_BYTES // (8 * self._n_fine * piece_rows(self._n_fine)))

    def _handle_own(self, sender: Role, message: Message) -> Iterator[Envelope]:
        match message:
            case IdChallenge() if sender is Role.GUEST:
                yield self._prove_ids(message)
            case IdConfirmation() if sender is Role.GUEST:
                yield from self._begin(message)
            case MergedBins() if sender is Role.GUEST:
                yield from self._end(message)
            case _:
                yield from super()._handle_own(sender, message)

    def _prove_ids(self, challenge: IdChallenge) -> Envelope:
        n_rows = self._data.n_rows
        if challenge.n_rows != n_rows:
            raise DataError(f"the host has {n_rows} rows and the guest {challenge.n_rows}: both must hold the same IDs")
        if self._nonces is None or self._nonces[0] != challenge.nonce:
            self._nonces = challenge.nonce, token_bytes(NONCE_BYTES)
        digest = id_digest(self._data.list_digest, *self._nonces, Role.HOST)
        # The parties need no stream of their own, but the message has a place for its seed.
        return Envelope(Role.GUEST, IdProof(self._nonces[1], digest, self._n_fine, draw_seed()))

    def _begin(self, confirmation: IdConfirmation) -> Iterator[Envelope]:
        if self._nonces is None:
            raise ProtocolError("the guest confirmed the IDs before it asked for a proof of them")
        if self._is_confirmed:
            return
        check_id_digest(confirmation.digest, self._data.list_digest, *self._nonces, Role.GUEST)
        self._is_confirmed = True
        # The guest gets two numbers for each fine bin: its rows, and its labels. They count by column.
        yield Envelope(Role.HOST, CountsDue(2 * max(len(each.n_rows) for each in self._data.bins)))
        yield Envelope(Role.GUEST, BinSizes(tuple(self._data.bins)))
        yield self._ready()
        yield from self._send()

    def _send(self) -> Iterator[Envelope]:
        """Send masked columns, as far as the window allows."""
        while self._n_sent < min(len(self._pieces), self._n_taken + self._ahead):
            rows = self._pieces[self._n_sent]
            self._n_sent += 1
            table = one_hot(self._data.codes, self._data.bins, rows)
            yield self._masked(
                rows, kernels.mask(table, self._dealer.session, Purpose.COLUMNS, rows.first, self._n_fine)
            )

    def _take_masked(self, piece: ElementPiece) -> Iterator[Envelope]:
        if self._n_taken >= self._n_sent and piece.offset >= (
            self._pieces[self._n_sent - 1].end if self._n_sent else 0
        ):
            raise ProtocolError("the guest sent masked labels of rows whose masked columns it does not have")
        rows = self._next_piece(piece, 1)
        if rows is None:
            return
        add_host_share(self._dealer.session, rows, piece.elements, self._sums)
        yield from self._send()
        if self._n_taken == len(self._pieces):
            share = sent_share(self._dealer.session, self._sums, count_bits(self._data.n_train), subtract=False)
            yield Envelope(Role.GUEST, ElementPiece(SESSION, Kind.COUNTS, 0, len(share), len(share), share))

    def _end(self, merged: MergedBins) -> Iterator[Envelope]:
        bins = tuple(self._data.bins)
        if self._n_taken < len(self._pieces) or not _fit(merged, bins):
            raise ProtocolError("the guest sent merged bins that do not fit the host's fine bins")
        self._done = True
        yield Envelope(Role.HOST, BinsResult(bins, merged.columns))
        yield Envelope(Role.COORDINATOR, Finished())


def _fit(merged: MergedBins, bins: tuple[FineBins, ...]) -> bool:
    if not merged.columns:
        return True
    return len(merged.columns) == len(bins) and all(
        len(each.groups) == len(fine.n_rows) for each, fine in zip(merged.columns, bins, strict=True)
    )
