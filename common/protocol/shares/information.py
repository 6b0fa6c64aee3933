"""A step of inference at a party: from shares of a point to its shares of the Fisher information.

The step also gives shares of a gradient and a loss that are finer than those of the rounds.

It is a round of its own after the last one, over all training rows, in blocks. For each block

1. the parties exchange their columns under new masks, rounded more finely than for the rounds;
2. from these they compute and exchange their parts of the masked scores, as in every round;
3. with sample weights, the host opens its shares of the slopes and of the entropies to the guest, which multiplies them
   by the weights;
4. each opens its shares of the slopes and of the residual under a mask, and rounds them;
5. with sample weights, the host opens its share of the rounded residual to the guest, which multiplies it, too;
6. each opens its rounded shares under other masks, and adds its products;
7. the party with fewer columns opens its products of slopes and columns to the other one.

`shares.information` has the mathematics. At the end, each party sends its shares of the three sums to the coordinator,
masked by a stream that only the parties have, and without their low bits.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np

from trilateral.common.base.arrays import ElementVector
from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.protocol.intake import Expected
from trilateral.common.protocol.messages import ElementPiece, Envelope, Kind, RoundKey, RowsDone
from trilateral.common.protocol.phases import Phase
from trilateral.common.protocol.shares.blocks import BlockTables, Tile, Work
from trilateral.common.protocol.shares.bounds import MAX_INFERENCE_COLUMNS, WINDOW_BYTES
from trilateral.common.protocol.shares.rows import RowPlan, RowRange
from trilateral.common.shares import kernels
from trilateral.common.shares.format import OFFSET
from trilateral.common.shares.information import (
    DealtSlopes,
    Information,
    Masks,
    SlopeFormat,
    add_block,
    add_cross,
    halves,
    masks_of_products,
    n_packed,
    scaled,
    wide_shares,
)
from trilateral.common.shares.keys import Purpose
from trilateral.common.shares.layout import BLOCK_ROWS, GROUP, ROWS, pad
from trilateral.common.shares.reference import Elements
from trilateral.common.shares.ring import cut_share

PIECE_ELEMENTS = 2**18
"""Elements that travel together: 2 MiB."""
MIN_WINDOW = 2
"""Blocks."""
REPORTS_PER_WINDOW = 4
"""How often a party tells the coordinator within a window how many rows it is done with."""


@dataclass(frozen=True)
class InformationPlan:
    """What the three roles know about the step."""

    slopes: SlopeFormat
    rows: RowPlan
    n_host: int
    n_guest: int

    @classmethod
    def of(cls, slopes: SlopeFormat, rows: RowPlan, n_host: int, n_guest: int) -> "InformationPlan":
        """Return the plan of a job.

        Raises:
            ProtocolError: a party has too many columns.
        """
        if max(n_host, n_guest) > MAX_INFERENCE_COLUMNS:
            raise ProtocolError(
                f"`inference` takes at most {MAX_INFERENCE_COLUMNS} training columns of a party, and the parties have"
                f" {n_host} and {n_guest}: leave out columns, or set `inference: false` in the job"
            )
        return cls(slopes, rows, n_host, n_guest)

    @property
    def opener(self) -> Role:
        """The party with fewer columns, which opens its products of slopes and columns."""
        return Role.HOST if self.n_host < self.n_guest else Role.GUEST

    @property
    def n_opened(self) -> int:
        """Columns of the opener."""
        return min(self.n_host, self.n_guest)

    @property
    def n_dealt(self) -> Mapping[Role, int]:
        """How many elements of a row the coordinator sends each party."""
        n_even, n_odd = halves(self.slopes.n_values(self.n_host, self.n_guest))
        return {Role.HOST: n_odd, Role.GUEST: n_even}

    @property
    def n_exchanged(self) -> int:
        """How many times the parties exchange each column in the step."""
        return 1 + self.slopes.has_own_columns

    @property
    def n_sums(self) -> int:
        """Numbers that each party sends to the coordinator."""
        n_columns = self.n_host + self.n_guest
        return n_packed(n_columns) + n_columns + 1

    @cached_property
    def block_rows(self) -> int:
        """Rows of a block: so many that a block of no kind has more than `PIECE_ELEMENTS`."""
        widest = max(*self.n_dealt.values(), self.n_exchanged * max(self.n_host, self.n_guest))
        return min(BLOCK_ROWS, max(ROWS, PIECE_ELEMENTS // widest // ROWS * ROWS))

    @property
    def window(self) -> int:
        """Blocks that are under way at a time."""
        return max(MIN_WINDOW, WINDOW_BYTES // (8 * self.block_rows * max(self.n_dealt.values())))

    @property
    def n_rows(self) -> int:
        """Rows of the step: all training rows, with those of padding."""
        return self.rows.training.n_rows

    @property
    def n_blocks(self) -> int:
        """Blocks of the step."""
        return -(-self.n_rows // self.block_rows)

    def block(self, number: int) -> RowRange:
        """Return a block, from 0 up."""
        first = number * self.block_rows
        return RowRange(first, min(self.block_rows, self.n_rows - first))

    @property
    def drops(self) -> tuple[int, int, int]:
        """How many low bits the parties drop of the sums of `parts_of`."""
        slopes, n_rows = self.slopes, self.n_rows
        return slopes.drop(n_rows), slopes.gradient_drop(n_rows), slopes.entropy_drop(n_rows)


def parts_of(sums: Information) -> tuple[ElementVector, ElementVector, ElementVector]:
    """Return the sums in the order in which a party sends them: the information, the gradient, and the entropy."""
    return sums.packed(), sums.joint_gradient(), sums.entropy


@dataclass(frozen=True, eq=False)
class _Columns:
    """The columns of both parties of one block, those of the other party under its masks."""

    fine: Tile = field(repr=False)
    """This party's columns for the gradient."""
    fine_peers: ElementVector = field(repr=False)
    own: Tile = field(repr=False)
    """This party's columns for the information."""
    D: ElementVector = field(repr=False)
    """The same under its masks."""
    peers: ElementVector = field(repr=False)


class InformationStep:
    """One attempt at the step.

    Args:
        key: the attempt.
        plan: see `InformationPlan`.
        work: this party's keys and its shares of the point.
        read: returns this party's tables of some rows.
        read_fine: returns its own columns of some rows, multiplied by `SlopeFormat.fine_scale` and rounded.
        read_information: the same, multiplied by `SlopeFormat.column_scale`.
        peer: the other party.
        mask_key: of the streams of the attempt that only the parties have.
        phase: times the work.
    """

    def __init__(
        self,
        key: RoundKey,
        plan: InformationPlan,
        work: Work,
        *,
        read: Callable[[RowRange], BlockTables],
        read_fine: Callable[[RowRange], Tile],
        read_information: Callable[[RowRange], Tile],
        peer: Role,
        mask_key: bytes,
        phase: Phase,
    ) -> None:
        self._key = key
        self._plan = plan
        self._work = work
        self._read = read
        self._read_fine = read_fine
        self._read_information = read_information
        self._peer = peer
        self._mask_key = mask_key
        self._phase = phase
        self._sums = Information.zeros(plan.n_host, plan.n_guest)
        self._blocks: dict[int, _BlockWork] = {}
        """The blocks under way: each waits for the piece of a kind."""
        self._waiting: dict[int, Kind] = {}
        self._arrived: defaultdict[int, dict[Kind, ElementPiece]] = defaultdict(dict)
        """Pieces that no block has used yet."""
        self._n_received: Counter[Kind] = Counter()
        self._n_begun = self._n_done = self._n_reported = 0
        role = work.role
        n_peer = self._sums.of(peer).shape[0]
        self._columns = {
            Kind.FINE_COLUMNS: n_peer * plan.n_exchanged,
            Kind.MASKED_SCORES: 1,
            Kind.DEALT_SLOPES: plan.n_dealt[role],
        }
        """What this party receives: elements of a row by kind."""
        if work.fmt.weighted and role is Role.GUEST:
            self._columns |= {Kind.UNWEIGHTED_SLOPES: 2, Kind.UNWEIGHTED_RESIDUAL: 1}
        self._columns |= {Kind.MASKED_SLOPES: 2, Kind.ROUNDED_SLOPES: 2}
        if role is not plan.opener:
            self._columns[Kind.SLOPE_COLUMNS] = plan.n_opened

    def begin(self) -> Iterator[Envelope | Expected[ElementPiece]]:
        """Begin the step; see `Arithmetic.begin`."""
        for kind in self._columns:
            yield Expected(kind, self._plan.rows.n_rows, self._take, [(0, self._plan.n_rows)])
        yield from self._begin_blocks()

    def _begin_blocks(self) -> Iterator[Envelope]:
        """Begin as many blocks as the window allows, but one only until the other party is known to have begun.

        So one block of columns may come before the request that begins the step, and no more.
        """
        window = self._plan.window if self._n_received[Kind.FINE_COLUMNS] else 1
        while self._n_begun < min(self._plan.n_blocks, self._n_done + window):
            number = self._n_begun
            self._n_begun += 1
            self._blocks[number] = self._work_on(self._plan.block(number))
            yield from self._advance(number)

    def _take(self, piece: ElementPiece, is_last: bool) -> Iterator[Envelope]:
        """Take the next piece of a kind, which is one block, and do everything that it makes possible."""
        del is_last
        kind, number = piece.kind, self._n_received[piece.kind]
        sender = Role.COORDINATOR if kind is Kind.DEALT_SLOPES else self._peer
        rows, n_columns = self._plan.block(number), self._columns[kind]
        expected = rows.first, rows.n_rows, n_columns * rows.n_rows
        if (piece.offset, piece.n_rows, len(piece.elements)) != expected:
            raise ProtocolError(
                f"the {sender} sent {len(piece.elements)} elements of {kind} for {piece.n_rows} rows, but {n_columns}"
                f" for each of {rows.n_rows} rows are expected"
            )
        # The other party may be done with all blocks that this one has begun, and begin a window of others.
        if number >= self._n_begun + self._plan.window:
            raise ProtocolError(f"the {sender} sent {kind} of block {number + 1}, which is not due")
        self._n_received[kind] += 1
        self._arrived[number][kind] = piece
        if kind is Kind.FINE_COLUMNS and number == 0:
            yield from self._begin_blocks()
        if self._waiting.get(number) is kind:
            yield from self._advance(number)

    def _advance(self, number: int) -> Iterator[Envelope]:
        """Work on a block until it waits for something that has not arrived."""
        block, arrived = self._blocks[number], self._arrived[number]
        kind = self._waiting.pop(number, None)
        try:
            with self._phase("product"):
                item = next(block) if kind is None else block.send(arrived.pop(kind))
            while True:
                if isinstance(item, Envelope):
                    yield item
                    with self._phase("product"):
                        item = next(block)
                elif item in arrived:
                    with self._phase("product"):
                        item = block.send(arrived.pop(item))
                else:
                    self._waiting[number] = item
                    return
        except StopIteration:
            del self._blocks[number], self._arrived[number]
        self._n_done += 1
        yield from self._go_on()

    def _go_on(self) -> Iterator[Envelope]:
        plan = self._plan
        if self._n_done == plan.n_blocks:
            yield self._send_sums()
            return
        yield from self._begin_blocks()
        if self._n_done - self._n_reported >= max(1, plan.window // REPORTS_PER_WINDOW):
            self._n_reported = self._n_done
            yield Envelope(Role.COORDINATOR, RowsDone(self._key, plan.block(self._n_done).first))

    def _work_on(self, rows: RowRange) -> "_BlockWork":
        """Work on one block: yield what to send, and the kind of piece that is needed next."""
        plan, role, sums = self._plan, self._work.role, self._sums
        slopes, n_rows, key = plan.slopes, rows.n_rows, self._work.round_key
        tables = self._read(rows)
        columns, z = yield from self._score(tables)
        corrections = (yield Kind.DEALT_SLOPES).elements
        n_columns = plan.n_host, plan.n_guest
        dealt = DealtSlopes.of(slopes, role, key, corrections, rows.first, n_rows, n_columns)
        masks = Masks.of(slopes, role, key, rows.first, n_rows)
        wide = wide_shares(slopes, role, dealt, z)
        if tables.signs is not None:
            # 1/2 - y = q / 2.
            signs = tables.signs.astype(np.int64).view(np.uint64)
            np.add(wide.residual, signs.reshape(-1, GROUP) << np.uint64(slopes.residual_wide - 1), out=wide.residual)
        shares = [wide.slope, wide.entropy]
        slope, entropy = yield from self._weigh(
            Kind.UNWEIGHTED_SLOPES, tables, shares, dealt.weighted[:2], masks.unweighted[:2]
        )
        np.add(sums.entropy, entropy.sum(dtype=np.uint64), out=sums.entropy)
        own = np.empty((n_rows // GROUP, 2, GROUP), np.uint64)
        np.add(slope, masks.e, out=own[:, 0])
        np.add(wide.residual, masks.e_d, out=own[:, 1])
        own += np.uint64(OFFSET if role is Role.HOST else 0)
        yield self._piece(Kind.MASKED_SLOPES, rows, own, wide.digest)
        answer = yield Kind.MASKED_SLOPES
        if answer.digest != wide.digest:
            raise ProtocolError(
                f"the {role} and the {self._peer} have computed different integers from the same scores: install the"
                " same release of trilateral at both, and run `trilateral check` on both machines"
            )
        m = own + answer.elements.reshape(own.shape)
        residual = dealt.residual.share(role, m[:, 1], slopes.residual_cut)
        (residual,) = yield from self._weigh(
            Kind.UNWEIGHTED_RESIDUAL, tables, [residual], dealt.weighted[2:], masks.unweighted[2:]
        )
        own = np.empty_like(m)
        np.subtract(dealt.slopes.share(role, m[:, 0], slopes.cut), masks.g, out=own[:, 0])
        np.subtract(residual, masks.g_d, out=own[:, 1])
        yield self._piece(Kind.ROUNDED_SLOPES, rows, own)
        o = own + (yield Kind.ROUNDED_SLOPES).elements.reshape(own.shape)
        kernels.add_products(columns.fine, (o[:, 1] + masks.g_d).ravel(), sums.gradient[role])
        kernels.add_products(columns.fine_peers, masks.g_d.ravel(), sums.gradient[self._peer])
        own_products, other_products = scaled(columns.own, o[:, 0] + masks.g), scaled(columns.peers, masks.g)
        own_V, other_V = dealt.V[role], dealt.V[self._peer]
        add_block(columns.own, columns.D, own_products, own_V, sums.of(role))
        add_block(columns.peers, columns.peers, other_products, other_V, sums.of(self._peer))
        Y, V = (own_products, own_V) if role is plan.opener else (other_products, other_V)
        for first, part in enumerate(V):
            Y[first::2] += part
        if role is plan.opener:
            M = masks_of_products(key, rows.first, n_rows, plan.n_opened)
            add_cross(columns.peers, M, sums, plan.opener)
            Y -= M
            yield self._piece(Kind.SLOPE_COLUMNS, rows, Y)
            return
        Y += (yield Kind.SLOPE_COLUMNS).elements.reshape(Y.shape)
        add_cross(columns.own, Y, sums, plan.opener)

    def _score(
        self, tables: BlockTables
    ) -> Generator["Envelope | Kind", ElementPiece, tuple["_Columns", ElementVector]]:
        """Exchange the columns of a block; return them and z."""
        work, rows = self._work, tables.rows
        key, n_own = work.round_key, self._sums.of(work.role).shape[0]
        fine, own, peers = self._read_fine(rows), tables.own, tables.peers
        masked = kernels.mask(fine, key, Purpose.COLUMNS, rows.first, n_own)
        if self._plan.slopes.has_own_columns:
            own = self._read_information(rows)
            D = kernels.mask(own, key, Purpose.INFORMATION_COLUMNS, rows.first, n_own)
            yield self._piece(Kind.FINE_COLUMNS, rows, np.concatenate([masked, D]))
            fine_peers, peers = np.split((yield Kind.FINE_COLUMNS).elements, 2)
        else:
            D = kernels.mask(own, work.session_key, Purpose.COLUMNS, rows.first, n_own)
            yield self._piece(Kind.FINE_COLUMNS, rows, masked)
            fine_peers = (yield Kind.FINE_COLUMNS).elements
        is_host = work.role is Role.HOST
        z = kernels.score_part(fine, fine_peers, work.weights, (key, key), rows.first, offset=is_host)
        yield self._piece(Kind.MASKED_SCORES, rows, z)
        return _Columns(fine, fine_peers, own, D, peers), z + (yield Kind.MASKED_SCORES).elements

    def _weigh(
        self,
        kind: Kind,
        tables: BlockTables,
        shares: Sequence[Elements],
        products: Sequence[Elements],
        masks: Sequence[Elements],
    ) -> Generator["Envelope | Kind", ElementPiece, Sequence[Elements]]:
        """Return this party's shares of c times some values, or of the values themselves without sample weights.

        Args:
            kind: of the piece in which the host opens its shares under masks.
            tables: of the block.
            shares: this party's shares of the values.
            products: this party's shares of the products of the masks with those of the weights.
            masks: at the host, those of its shares.
        """
        if not products:
            return shares
        if tables.weights is None:
            raise RuntimeError("a table without sample weights")
        c = tables.weights.reshape(-1, GROUP)
        if masks:
            opened = [share - mask for share, mask in zip(shares, masks, strict=True)]
            yield self._piece(kind, tables.rows, np.stack(opened, axis=1))
            return [c * mask + product for mask, product in zip(masks, products, strict=True)]
        opened_by_host = (yield kind).elements.reshape(-1, len(shares), GROUP)
        return [
            c * (share + opened_by_host[:, number]) + product
            for number, (share, product) in enumerate(zip(shares, products, strict=True))
        ]

    def _piece(self, kind: Kind, rows: RowRange, elements: Elements, digest: bytes = b"") -> Envelope:
        piece = ElementPiece(self._key, kind, rows.first, self._plan.rows.n_rows, rows.n_rows, elements.ravel(), digest)
        return Envelope(self._peer, piece)

    def _send_sums(self) -> Envelope:
        plan = self._plan
        masks = kernels.stream(self._mask_key, Purpose.SUMS, 0, pad(plan.n_sums), 1)[: plan.n_sums]
        parts, first = [], 0
        for share, bits in zip(parts_of(self._sums), plan.drops, strict=True):
            mask = masks[first : first + len(share)]
            parts.append(cut_share(share, mask, bits, subtract=self._work.role is Role.GUEST))
            first += len(share)
        cut = np.concatenate(parts)
        return Envelope(Role.COORDINATOR, ElementPiece(self._key, Kind.SUMS, 0, len(cut), len(cut), cut))


_BlockWork: TypeAlias = Generator[Envelope | Kind, ElementPiece, None]
