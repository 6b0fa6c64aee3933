"""A vector of a party, as its pieces arrive."""

import numpy as np

from trilateral.common.base.arrays import ElementVector
from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.protocol.messages import ElementPiece


class ArrivingVector:
    """Puts the pieces of one vector together.

    Args:
        sender: the party that sends it.
        name: what it is, for the text of an error.
        total: its length.
    """

    def __init__(self, sender: Role, name: str, total: int) -> None:
        self._sender = sender
        self._name = name
        self.elements: ElementVector = np.zeros(total, np.uint64)
        """What has arrived; zeros from there on."""
        self._n_received = 0

    @property
    def is_complete(self) -> bool:
        """Whether all of it has arrived."""
        return self._n_received == len(self.elements)

    def add(self, piece: ElementPiece) -> None:
        """Add the next piece. Ignore a piece that has arrived before.

        Raises:
            ProtocolError: the piece is not the next one, or the vector has another length.
        """
        received, total, n = self._n_received, len(self.elements), len(piece.elements)
        if piece.total != total:
            raise ProtocolError(f"the {self._sender} sent {piece.total} {self._name}, but {total} are expected")
        if piece.offset < received:
            return
        if piece.offset != received or n != piece.n_rows or n > total - received:
            raise ProtocolError(f"the {self._sender} sent {self._name} out of order")
        self.elements[received : received + n] = piece.elements
        self._n_received += n
