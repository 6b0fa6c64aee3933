"""The products of the columns with the labels, once in a session.

With q = 1 - 2y in {-1, +1}, y in {0, 1}, and sample weights c, the products h = X'(c q) of a batch give two things.
Half of h is the gradient at w = 0. And w.h / 2 is the part of the loss that is linear in the scores, since

    log(1 + exp(-(2y - 1) u)) = log(2 cosh(u / 2)) + q u / 2.

h stays in shares. The coordinator learns h / 2 at w = 0, as a gradient. For the loss it gets G = h + N, under a mask N
that only the parties have, and learns w.h / 2 as a part of one number, the loss: each party subtracts its share of w
times N. Nothing here grows with the rows: a section has one number for each column.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np

from trilateral.common.base.arrays import ElementVector
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.protocol.messages import ElementPiece
from trilateral.common.protocol.shares.rows import RowPlan, RowRange
from trilateral.common.protocol.shares.session import StreamKeys
from trilateral.common.shares import kernels
from trilateral.common.shares.keys import Purpose
from trilateral.common.shares.layout import grouped
from trilateral.coordinator.shares.arriving import ArrivingVector


class LabelProducts:
    """The coordinator's own shares of h, and G, of every vector: of each section, or of each class.

    Args:
        rows: the job's rows.
        n_columns: columns of each party.
        keys: of the streams that the coordinator has in common with each party.
    """

    def __init__(self, rows: RowPlan, n_columns: Mapping[Role, int], keys: Mapping[Role, StreamKeys]) -> None:
        self._rows = rows
        self._n_host = n_columns[Role.HOST]
        self._n_columns = sum(n_columns.values())
        self._keys = keys
        self._n_vectors = rows.n_vectors
        total = self._n_vectors * self._n_columns
        self._masked = {party: ArrivingVector(party, "products with the labels", total) for party in PARTIES}
        self._own = np.zeros(total, np.uint64)
        """U_host' U_q of every section: the share of the host's columns. Of the guest's, the guest knows h."""
        self._work = self._add_own()

    def add(self, sender: Role, piece: ElementPiece) -> None:
        """Add the next of a party's masked shares; see `ArrivingVector.add`."""
        self._masked[sender].add(piece)

    def is_complete(self, sender: Role) -> bool:
        """Whether a party has sent all of its masked shares."""
        return self._masked[sender].is_complete

    def prepare(self) -> bool:
        """Work on one more block of the coordinator's own shares; return False if all blocks are done."""
        return next(self._work, None) is not None

    def own(self, numbers: Sequence[int]) -> ElementVector:
        """Return the coordinator's share of h, summed over some sections, shape (n_columns,)."""
        while self.prepare():
            pass
        return self._sum(self._own, numbers)

    def masked(self, numbers: Sequence[int]) -> ElementVector:
        """Return G = h + N, summed over some sections, shape (n_columns,)."""
        host, guest = (self._masked[party].elements for party in PARTIES)
        return self._sum(host, numbers) + self._sum(guest, numbers) + self.own(numbers)

    @property
    def holdout(self) -> range:
        """The number of the hold-out rows among the sections."""
        return range(self._rows.n_sections, self._n_vectors)

    def _sum(self, vectors: ElementVector, numbers: Sequence[int]) -> ElementVector:
        chosen = vectors.reshape(self._n_vectors, self._n_columns)[list(numbers)]
        total: ElementVector = chosen.sum(axis=0, dtype=np.uint64)
        return total

    def _add_own(self) -> Iterator[RowRange]:
        """Add the products of each block, and yield it."""
        host, guest = self._keys[Role.HOST].session, self._keys[Role.GUEST].session
        sections = chain(self._rows.sections, [self._rows.holdout])
        n_models = self._rows.batches.n_classes or 1
        vectors = self._own.reshape(self._n_vectors, self._n_columns)
        for number, section in enumerate(sections):
            if not self._rows.vectors_of(number):
                continue
            for block in section.blocks():
                masks = kernels.stream(guest, Purpose.LABELS, block.first, block.n_rows, n_models)
                for model, vector in enumerate(self._rows.vectors_of(number)):
                    labels = grouped(masks, n_models)[:, model].ravel()
                    sums = vectors[vector, : self._n_host]
                    kernels.add_mask_products(host, Purpose.COLUMNS, block.first, self._n_host, labels, sums)
                yield block
