"""Which rows the coordinator deals for, and when.

For each row of a round, the coordinator deals shares of the waves of r, the mask of the row's score: half of a share is
a correction that travels, the other half comes from the stream that the receiver has in common with the coordinator.
What is dealt does not depend on the point w: only the masks of the scores of an attempt must be known. So the
coordinator deals ahead of the round, as far as the window of the job allows. It works block by block and keeps no row.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.protocol.messages import ElementPiece, Envelope, Kind, RoundKey, RowsDone
from trilateral.common.protocol.phases import Phase, no_phase
from trilateral.common.protocol.shares.bounds import window_rows
from trilateral.common.protocol.shares.rows import RowPlan, RowRange, Section, Selection
from trilateral.common.protocol.shares.session import StreamKeys
from trilateral.common.shares import kernels
from trilateral.common.shares.format import Format
from trilateral.common.shares.kernels import DealerKeys, DealerSums
from trilateral.coordinator.shares.points import ScoreMasks


@dataclass
class Deal:
    """What is dealt for one attempt."""

    key: RoundKey
    masks: ScoreMasks
    """Of the scores of training rows."""
    holdout_masks: ScoreMasks
    """Of the scores of hold-out rows."""
    sums: DealerSums
    """The coordinator's own part of the sums over the training rows that were dealt for."""
    blocks: Iterator[RowRange]
    """The blocks that are left, in order."""
    n_rows: int
    """Rows of the whole attempt."""
    holdout: Section | None = None
    """The hold-out rows, if the attempt evaluates them."""
    n_dealt: int = 0
    """Rows that were dealt for."""
    n_done: dict[Role, int] = field(default_factory=lambda: dict.fromkeys(PARTIES, 0))
    """Of these, the rows for which a party needs no more."""

    @property
    def is_complete(self) -> bool:
        """Whether every row was dealt for."""
        return self.n_dealt == self.n_rows


class Dealing:
    """Deals for the open attempt, and then for the first attempt at the next round.

    Args:
        fmt: the job's format.
        keys: of the streams that the coordinator has in common with each party.
        n_columns: columns of each party.
        rows: the job's rows.
        max_rounds: the most rounds of the job.
        phase: times the dealing.
    """

    def __init__(
        self,
        fmt: Format,
        keys: Mapping[Role, StreamKeys],
        n_columns: Mapping[Role, int],
        rows: RowPlan,
        *,
        max_rounds: int,
        phase: Phase = no_phase,
    ) -> None:
        self._fmt = fmt
        self._keys = keys
        self._n_columns = n_columns
        self._rows = rows
        self._max_rounds = max_rounds
        self._phase = phase
        self._window = window_rows(fmt, rows.n_rows)
        self._own_keys = StreamKeys.alone()
        self._current: Deal | None = None
        self._ahead: Deal | None = None
        self._deals_ahead = False

    def begin(self, key: RoundKey, rows: Selection | None, holdout: Section | None, *, is_last: bool = False) -> Deal:
        """Begin to deal for an attempt. Drop what was dealt for earlier ones, and ahead for any other.

        Args:
            key: the attempt.
            rows: the training rows of the attempt; None if it needs no scores of training rows.
            holdout: the hold-out rows; None if the attempt does not evaluate them.
            is_last: whether no round is expected to follow. Then nothing is dealt ahead: it would stand in the way of
                the step of inference, or of the end.
        """
        self._deals_ahead = self._rows.n_sections == 1 and key.round < self._max_rounds and not is_last
        deal, self._ahead = self._ahead, None
        if deal is None or rows is None or (deal.key, deal.n_rows) != (key, rows.n_rows):
            deal = self._new(key, rows)
        if holdout is not None:
            deal.blocks = chain(deal.blocks, holdout.blocks())
            deal.n_rows += holdout.n_rows
            deal.holdout = holdout
        self._current = deal
        return deal

    def masks(self, key: RoundKey) -> tuple[ScoreMasks, ScoreMasks]:
        """Return the masks of the scores of an attempt: of its training rows, and of its hold-out rows.

        An attempt that was dealt for ahead, dropped, and dealt for again has the same masks, and so the same bytes.
        """
        return ScoreMasks.draw(self._own_keys.of(key), self._n_columns)

    def take_done(self, sender: Role, done: RowsDone) -> None:
        """Learn for how many rows a party needs no more. Ignore an old message.

        Raises:
            ProtocolError: nothing was dealt for so many rows.
        """
        for deal in (self._current, self._ahead):
            if deal is not None and deal.key == done.key:
                if not 0 <= done.n_rows <= deal.n_dealt:
                    raise ProtocolError(
                        f"the {sender} has used {done.n_rows} dealt rows of round {done.key.round}, but"
                        f" {deal.n_dealt} were dealt"
                    )
                deal.n_done[sender] = max(deal.n_done[sender], done.n_rows)
                return
        if self._current is None or done.key > self._current.key:
            raise ProtocolError(
                f"the {sender} has used rows of round {done.key.round}, attempt {done.key.attempt}, which were not"
                " dealt"
            )

    def take_all_done(self, sender: Role) -> None:
        """Learn that a party has its sums of the open attempt, and so needs no more for it.

        Raises:
            ProtocolError: not all of its rows were dealt for.
        """
        deal = self._current
        if deal is None or not deal.is_complete:
            raise ProtocolError(f"the {sender} sent its sums before all rows of the round were dealt")
        deal.n_done[sender] = deal.n_rows

    def deal(self) -> Iterator[Envelope]:
        """Deal block by block, for both parties at once, as far as both have room."""
        while (deal := self._next()) is not None:
            yield from self._deal_block(deal, next(deal.blocks))

    def stop(self) -> None:
        """Deal no more: the training is over."""
        self._current = self._ahead = None

    # --- inside

    def _new(self, key: RoundKey, rows: Selection | None) -> Deal:
        masks, holdout_masks = self.masks(key)
        sums = DealerSums.zeros(self._n_columns[Role.HOST], self._n_columns[Role.GUEST])
        blocks, n_rows = (iter(()), 0) if rows is None else (rows.blocks(), rows.n_rows)
        return Deal(key, masks, holdout_masks, sums, blocks, n_rows)

    def _next(self) -> Deal | None:
        """Return the attempt whose next block is due; None if a party has no room for it."""
        current = self._current
        if current is None or not self._has_room():
            return None
        if not current.is_complete:
            return current
        if self._ahead is None and self._deals_ahead:
            self._ahead = self._new(RoundKey(current.key.round + 1, 1), self._rows.all_selected)
        return None if self._ahead is None or self._ahead.is_complete else self._ahead

    def _has_room(self) -> bool:
        for party in PARTIES:
            in_flight = sum(
                deal.n_dealt - deal.n_done[party] for deal in (self._current, self._ahead) if deal is not None
            )
            if in_flight >= self._window:
                return False
        return True

    def _deal_block(self, deal: Deal, block: RowRange) -> Iterator[Envelope]:
        host, guest = self._keys[Role.HOST], self._keys[Role.GUEST]
        is_holdout = deal.holdout is not None and block.first >= deal.holdout.first
        masks = deal.holdout_masks if is_holdout else deal.masks
        with self._phase("deal"):
            dealt = kernels.deal(
                self._fmt,
                DealerKeys(host.session, guest.session, host.of(deal.key), guest.of(deal.key)),
                (masks.host, masks.guest),
                block.first,
                block.n_rows,
                None if is_holdout else deal.sums,
            )
        deal.n_dealt += block.n_rows
        for party, elements in zip(PARTIES, dealt, strict=True):
            piece = ElementPiece(
                key=deal.key,
                kind=Kind.DEALT,
                offset=block.first,
                total=self._rows.n_rows,
                n_rows=block.n_rows,
                elements=elements,
            )
            yield Envelope(party, piece)
