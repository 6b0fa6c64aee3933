"""What each common row is for, if one party decides it and not the seed of the job.

The owner of the decision has one byte for each row, in canonical order of the IDs: whether the row trains or evaluates
the model (`Purpose.SPLIT`), or in which fold a training row lies (`Purpose.FOLDS`). It sends these bytes to the other
party before either prepares its columns. The guest announces first whether it is the owner, because the host has the
job by then in any case. The host announces the same in its answer, and the owner sends its bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import Rows
from trilateral.common.base.errors import DataError, ProtocolError
from trilateral.common.base.roles import Role

ROLE_PIECE = 262_144
"""Rows in one message: 256 KiB."""
MAX_FOLDS = 100
"""Maximum number of folds."""

RoleVector = NDArray[np.uint8]
"""One byte for each row, shape (n_rows,)."""


class Purpose(StrEnum):
    """What the bytes decide. A job exchanges them in this order."""

    SPLIT = "split"
    """A `RowRole` for each common row."""
    FOLDS = "folds"
    """The fold of each training row, from 0 up."""


class RowRole(IntEnum):
    """What a row is for. The evaluation sets are in the order in which a model uses and reports them."""

    TRAIN = 0
    VALID = 1
    TEST = 2
    OUT_OF_TIME = 3
    UNUSED = 255
    """The row takes no part in the job."""

    @property
    def set_name(self) -> str:
        """The name of the evaluation set, as settings and the model file have it."""
        return self.name.lower()


EVALUATION_SETS = (RowRole.VALID, RowRole.TEST, RowRole.OUT_OF_TIME)
"""The roles of rows on which a model is evaluated."""


@dataclass(frozen=True)
class RolePiece:
    """One party to the other: the bytes of consecutive rows, or an announcement without any."""

    purpose: Purpose
    is_owner: bool
    """Whether the sender decides."""
    offset: int
    """The first of these rows."""
    total: int
    """How many rows there are in all."""
    roles: bytes = field(repr=False)
    """One byte for each row; empty in the announcement."""


class RoleExchange:
    """One party's side of the exchange. It ends with the same bytes at both.

    Args:
        role: the role of this party.
        purpose: what the bytes decide.
        own: the bytes of this party, if it is the owner; shape (n_rows,).
        n_rows: how many rows there are: for `Purpose.SPLIT` the common rows, for `Purpose.FOLDS` the training rows.
        n_folds: with `Purpose.FOLDS`, how many folds there are.

    Attributes:
        n_rows: as given.
        result: the bytes of the owner, shape (n_rows,); None until all of them are known.

    Raises:
        ValueError: `own` has another shape, or bytes that are not allowed.
    """

    def __init__(self, role: Role, purpose: Purpose, own: RoleVector | None, n_rows: int, n_folds: int = 0) -> None:
        self.result: RoleVector | None = None
        self._role = role
        self._peer = Role.GUEST if role is Role.HOST else Role.HOST
        self._purpose = purpose
        self._own = own
        self.n_rows = n_rows
        self._allowed = np.zeros(256, dtype=bool)
        self._allowed[list(RowRole) if purpose is Purpose.SPLIT else list(range(n_folds))] = True
        if own is not None and (own.shape != (n_rows,) or not self._allowed[own].all()):
            raise ValueError("the roles of the rows do not fit the job")
        self._is_announced = False
        self._received = 0
        self._roles: RoleVector | None = None

    def start(self) -> Iterator[RolePiece]:
        """Yield what this party sends before it has received anything."""
        if self._role is Role.GUEST:
            yield self._announcement

    def take(self, piece: RolePiece) -> Iterator[RolePiece]:
        """Take a message of the other party, and yield what this party answers. A repeated message changes nothing.

        Args:
            piece: what the other party sent.

        Raises:
            DataError: the parties have different numbers of rows; or neither of them decides, or both do.
            ProtocolError: the message does not continue the exchange.
        """
        if list(Purpose).index(piece.purpose) < list(Purpose).index(self._purpose):
            return  # Sent again after it had arrived.
        if piece.purpose is not self._purpose:
            raise ProtocolError(f"the {self._peer} sent {piece.purpose} of rows in place of the {self._purpose}")
        if piece.total != self.n_rows:
            raise DataError(
                f"the {self._role} has {self.n_rows} rows and the {self._peer} {piece.total}: both must hold the same"
                " IDs"
            )
        if not piece.roles:
            yield from self._take_announcement(piece)
        else:
            self._take_roles(piece)

    @property
    def _announcement(self) -> RolePiece:
        return RolePiece(self._purpose, self._own is not None, 0, self.n_rows, b"")

    def _take_announcement(self, piece: RolePiece) -> Iterator[RolePiece]:
        if self._is_announced:
            return
        self._is_announced = True
        if self._role is Role.HOST:  # Also if the job fails here: then the guest fails for the same reason.
            yield self._announcement
        if piece.is_owner is (self._own is not None):
            raise DataError(_not_one_owner(self._purpose, both=piece.is_owner))
        if self._own is None:
            self._roles = np.empty(self.n_rows, dtype=np.uint8)
            return
        for first in range(0, self.n_rows, ROLE_PIECE):
            yield RolePiece(self._purpose, True, first, self.n_rows, self._own[first : first + ROLE_PIECE].tobytes())
        self.result = self._own

    def _take_roles(self, piece: RolePiece) -> None:
        if self._roles is None or not piece.is_owner:
            raise ProtocolError(f"the {self._peer} sent the {self._purpose} of rows, which it does not decide")
        if piece.offset < self._received:
            return
        end = piece.offset + len(piece.roles)
        if piece.offset != self._received or end > self.n_rows:
            raise ProtocolError(f"the {self._peer} sent the {self._purpose} of other rows than those that come next")
        roles = np.frombuffer(piece.roles, dtype=np.uint8)
        if not self._allowed[roles].all():
            raise ProtocolError(f"the {self._peer} sent a {self._purpose} of rows with values that the job lacks")
        self._roles[piece.offset : end] = roles
        self._received = end
        if end == self.n_rows:
            self.result = self._roles


def _not_one_owner(purpose: Purpose, *, both: bool) -> str:
    is_split = purpose is Purpose.SPLIT
    if both:
        setting = "`split`" if is_split else "column for the folds"
        return f"both parties' datasets have a {setting}, and one must decide: remove it at the host or at the guest"
    if is_split:
        lack, way_out = "a `split`: add one at the host or at the guest", "set `holdout` to a share of the rows"
    else:
        lack = (
            "a column for the folds, as `fold_by` asks for: set `folds: {group: COLUMN}` or `folds: {time: COLUMN}` in"
            " the dataset of the host or of the guest"
        )
        way_out = "set `fold_by: random` in the job"
    return f"neither party's dataset has {lack}, or {way_out}"


def rows_of(roles: RoleVector, role: int) -> Rows:
    """Return the rows that have a role, or lie in a fold, in ascending order."""
    return np.flatnonzero(roles == role)
