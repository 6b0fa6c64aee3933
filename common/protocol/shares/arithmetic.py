"""What both parties compute on secret shares: the exchange of masked columns, and a round block by block.

In the symbols of `shares.kernels`: X are a party's own columns, U their masks from its stream with the coordinator, and
D = X - U is what the other party holds. A round goes through the blocks of its rows. For each block

1. the parties exchange their parts of the masked scores: z = z_1 + z_2 = u' + r + OFFSET, where only the coordinator
   knows r;
2. with the values that the coordinator deals, each computes its share of the residual and of the loss from z;
3. each opens its share of the residual under a mask to the other, and adds its products to its shares of the sums.

At the end each sends its shares of the sums to the coordinator, masked by a stream that only the parties have, and
without their low bits. A party sees no gradient, no step and no weight before the training has ended.

All blocks of a window are under way at once. The tables lie in scratch space, and are read by blocks; everything else
here has the size of a window. What is computed on a block is in `blocks`. The engine of the session does it, for a
*run* of consecutive blocks at a time: for one block in this process, and for more where a task has to travel.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import ElementVector, FloatMatrix, FloatVector
from trilateral.common.base.errors import DataError, ProtocolError
from trilateral.common.base.progress import Stage, report_progress
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.compute.engine import Placed
from trilateral.common.compute.local import LOCAL
from trilateral.common.compute.ordered import Ordered
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.arithmetic import (
    Introduction,
    SharesSession,
    check_scaled,
    holdout_scores,
    result_scores,
)
from trilateral.common.protocol.batches import Batches
from trilateral.common.protocol.block import TrainingBlock
from trilateral.common.protocol.intake import Expected, VectorBounds
from trilateral.common.protocol.messages import (
    SLOPE_KINDS,
    BeginRound,
    ElementPiece,
    Envelope,
    FinishJob,
    Kind,
    OwnCovariance,
    RoundKey,
    RowsDone,
    ScoresDue,
    SharesReady,
    WeightShares,
)
from trilateral.common.protocol.phases import Phase
from trilateral.common.protocol.separation import ALL_SIGNS, Sign, signs_of
from trilateral.common.protocol.shares.attempts import Attempt, RunState
from trilateral.common.protocol.shares.blocks import (
    BlockTables,
    CloseBlock,
    OpenBlock,
    Opened,
    Sums,
    Tile,
    Work,
    close_blocks,
    open_blocks,
    score,
)
from trilateral.common.protocol.shares.bounds import (
    MAX_INFERENCE_COLUMNS,
    MAX_NORM_BITS,
    MAX_PRODUCTS,
    WINDOW_BYTES,
    window_blocks,
    window_rows,
)
from trilateral.common.protocol.shares.information import InformationPlan, InformationStep
from trilateral.common.protocol.shares.rows import RowPlan, RowRange, Selection
from trilateral.common.protocol.shares.session import SESSION, StreamKeys, draw_seed
from trilateral.common.protocol.shares.tables import ScalarT, SectionOrder, Table, measure, round_columns
from trilateral.common.shares import kernels
from trilateral.common.shares.format import MODEL_FRACTION_BITS, Format
from trilateral.common.shares.information import SlopeFormat, n_packed, scales, unpack
from trilateral.common.shares.kernels import Weights
from trilateral.common.shares.keys import SEED_BYTES, Purpose
from trilateral.common.shares.layout import BLOCK_ROWS, GROUP, ROWS, grouped, pad, untile
from trilateral.common.shares.ring import cut_share, decode

DIAGONAL_TOLERANCE = 1e-9
"""P counts as diagonal if no other element exceeds this share of the largest."""
REPORTS_PER_WINDOW = 4
"""How often a party tells the coordinator within a window how many rows it is done with."""
MIN_AWAY_COLUMNS = 1024
"""Columns of both parties together from which on tasks travel to the workers of an engine. To move what a task needs of
a row, 176 bytes, takes 250 nanoseconds. To compute takes 32 with 10 columns a party, and 650 with 512."""
MAX_RUN_BLOCKS = 4
"""The most blocks of a task that travels: with 512 columns a party, 20 milliseconds of work."""
MAX_RUN_BYTES = 256 * 2**20
"""The most bytes of the tables of such a task, which travel once in a session."""
_PIECE_ELEMENTS = 2**19
"""Masked columns that are sent together, so that a piece has 4 MiB."""


class SharesArithmetic(ABC):
    """The common part of the host and the guest. See the module.

    Args:
        job: the job's settings.
        block: this party's columns.
        session: see `SharesSession`.
        phase: times the kinds of work, if the process has a clock.
        weight_bits: fraction bits of this party's sample weights; None if it has none.

    Raises:
        DataError: a training column's mean square exceeds 1, or the penalty is not a sum over single columns.
        ProtocolError: the seed does not have `SEED_BYTES` bytes.
    """

    role: ClassVar[Role]
    peer: ClassVar[Role]

    def __init__(
        self, job: JobConfig, block: TrainingBlock, session: SharesSession, phase: Phase, weight_bits: int | None = None
    ) -> None:
        seed = session.seed
        if len(seed) != SEED_BYTES:
            raise ProtocolError(
                f"the coordinator sent a seed of {len(seed)} bytes, but a job with `protocol: shares` needs"
                f" {SEED_BYTES}"
            )
        check_scaled(block.columns)
        self._job = job
        self._block = block
        self._phase = phase
        self._weight_bits = weight_bits
        self._n_train, self._n_own = block.columns.shape
        self._penalty = _diagonal(block.penalty) if job.is_penalised else np.zeros(0)
        self._rows = RowPlan.of(Batches.of(job, self._n_train, block.folds), len(block.holdout_columns))
        self._start = np.zeros(0) if session.start is None else session.start
        self._engine = session.engine
        self._scratch = session.scratch
        self._placed: dict[RowRange, Placed[Sequence[BlockTables]]] = {}
        """Tables that lie at the workers of an engine, by the first and the last row of a run. The guest's have the
        labels of one model."""
        self._model = 0
        """The model whose labels the newest attempt is about: in a job with classes, the number of the class."""
        self.tasks: Ordered[Envelope] = Ordered()
        """See Arithmetic."""
        self._dealer_seed, self._peer_seed = draw_seed(), draw_seed()
        self._dealer = StreamKeys.agreed(seed, self._dealer_seed)
        """Streams that this party has in common with the coordinator."""
        self._coef: FloatVector = np.zeros(job.n_models * self._n_own)
        """Of each model, one after the other."""
        self._has_coef = False
        self._of_separation: dict[Role, Sign] = {}
        self._has_met = False
        self._norm_bits = self._spread_bits = self._fourth_bits = 0
        self._n_masked_sent = self._n_masked_received = 0
        self._n_host = self._n_guest = 0
        """Columns of both parties, once they have met."""
        self._first_round: int | None = None
        self._attempt: Attempt | None = None

    # --- what does not depend on shares

    @property
    def coef(self) -> FloatVector:
        """See Arithmetic: zeros until the training has ended."""
        return self._coef.copy()

    def apply(self, step: FloatVector) -> None:
        """See Weights: the steps stay at the coordinator."""
        del step

    def reset(self) -> None:
        """See Weights."""
        self._coef = np.zeros_like(self._coef)

    def prepare(self) -> bool:
        """See Arithmetic: there is nothing to prepare."""
        return False

    @property
    def prepared(self) -> int:
        """See Arithmetic."""
        return 0

    def holdout_part(self, offset: FloatVector | None = None) -> FloatVector:
        """See Arithmetic."""
        return holdout_scores(self._block, self._coef if offset is None else self._coef + offset)

    def result_part(self) -> FloatVector:
        """See Arithmetic."""
        return np.concatenate([result_scores(self._block, coef) for coef in np.split(self._coef, self._job.n_models)])

    @property
    def bounds(self) -> Mapping[Role, VectorBounds]:
        """See Arithmetic: the other party may begin a round or the end first, and the coordinator deals ahead."""
        n_rows = self._rows.n_rows
        # The window does not depend on the sample weights, whose one value of a row is odd-numbered at most.
        fmt = self._rows.format_of(self._job.max_score, None)
        early = min(n_rows, 2 * window_rows(fmt, n_rows))
        from_peer = {
            Kind.MASKED_COLUMNS: n_rows,
            Kind.MASKED_SCORES: n_rows,
            Kind.MASKED_RESIDUAL: n_rows,
            Kind.WEIGHTS: len(self._coef),
        }
        from_coordinator, early_from_coordinator = {Kind.DEALT: n_rows}, {Kind.DEALT: early}
        if self._job.inference:
            from_coordinator[Kind.DEALT_SLOPES] = n_rows
            early_from_coordinator[Kind.DEALT_SLOPES] = 0
            from_peer |= dict.fromkeys(SLOPE_KINDS - {Kind.DEALT_SLOPES}, n_rows) | {Kind.SEPARATION: 1}
        early_from_peer, widest = {Kind.MASKED_SCORES: early, Kind.WEIGHTS: len(self._coef)}, 1
        if self._job.inference:
            # A block at most; see `InformationStep`.
            early_from_peer[Kind.FINE_COLUMNS], widest = BLOCK_ROWS, 2 * MAX_INFERENCE_COLUMNS
        return {
            self.peer: VectorBounds(from_peer, early_from_peer, widest, n_further=1),
            Role.COORDINATOR: VectorBounds(
                from_coordinator, early_from_coordinator, widest=max(fmt.n_even, fmt.n_odd) + 1
            ),
        }

    # --- before the first round

    @property
    def introduction(self) -> Introduction:
        """See Arithmetic."""
        return Introduction(self._n_own, self._peer_seed, self._weight_bits)

    @property
    def shares_ready(self) -> SharesReady:
        """See Arithmetic."""
        weights = self._block.total_weight if self._weight_bits is not None else 0.0
        return SharesReady(
            self._dealer_seed,
            self._rows.n_holdout,
            self._norm_bits,
            self._spread_bits,
            self._penalty,
            self._weight_bits,
            weights,
            self._start,
            self._fourth_bits if self._job.inference else 0,
            self._rows.batches.fold_sizes or (),
        )

    @property
    def may_begin(self) -> bool:
        """See Arithmetic."""
        n_rows = self._rows.n_rows
        return self._n_masked_sent == n_rows and self._n_masked_received == n_rows

    def meet(self, peer: Introduction) -> Iterator[Envelope | Expected[ElementPiece]]:
        """See Arithmetic: exchange the masked columns, each party a window ahead of the other at most."""
        if self._has_met:
            # Columns are rounded at random. Two roundings under one mask would tell the other party their difference.
            raise RuntimeError("the parties meet once in a session")
        self._has_met = True
        if len(peer.seed) != SEED_BYTES:
            raise ProtocolError(
                f"the {self.peer} sent a seed of {len(peer.seed)} bytes with the proof of its IDs, but a job with"
                f" `protocol: shares` needs {SEED_BYTES}"
            )
        is_guest = self.role is Role.GUEST
        bits = self._weight_bits if is_guest else peer.weight_bits
        self._fmt: Format = self._rows.format_of(self._job.max_score, bits)
        self._window = window_blocks(self._fmt, self._rows.n_rows)
        seeds = (self._peer_seed, peer.seed) if is_guest else (peer.seed, self._peer_seed)
        self._parties = StreamKeys.agreed(*seeds)
        """Streams that only the two parties have."""
        self._n_host, self._n_guest = (peer.n_columns, self._n_own) if is_guest else (self._n_own, peer.n_columns)
        self._n_vectors = self._rows.n_vectors
        n_columns = self._n_host + self._n_guest
        self._check_memory(n_columns)
        if n_columns < MIN_AWAY_COLUMNS:
            self._engine = LOCAL
        self._run_blocks = self._blocks_of_a_run()
        self._products = np.zeros((self._n_vectors, n_columns), np.uint64)
        """This party's shares of the products h of all columns with the labels: a row for each vector of `RowPlan`."""
        masks = kernels.stream(self._parties.session, Purpose.LINEAR, 0, pad(self._n_vectors), 2 * n_columns)
        self._product_masks = untile(masks, 2 * n_columns)[: self._n_vectors].reshape(-1, 2, n_columns)
        """N_1 and N_2, which mask the two parties' shares of h towards the coordinator."""
        with self._phase("product"):
            self._norm_bits, self._spread_bits, self._fourth_bits = self._measure_sizes()
            self._own = self._make_table(np.int32, self._n_own)
            self._peers = self._make_table(np.uint64, peer.n_columns)
            """The other party's masked columns."""
            self._fine = self._make_table(np.int32, self._n_own if self._job.inference else 0)
            """This party's own columns for the gradient of the step of inference, rounded more finely."""
            self._scales = scales(self._fmt, self._n_train) if self._job.inference else None
            has_own_columns = self._scales is not None and self._scales[0] != self._fmt.column_scale
            self._information = self._make_table(np.int32, self._n_own if has_own_columns else 0)
            """Those for the information, unless they are those of the rounds."""
            order = SectionOrder(self._rows, self._scratch)
            self._prepare_exchange(order)
            self._round_columns(order)
        self._block = self._block.without_columns()
        yield Expected(Kind.MASKED_COLUMNS, self._rows.n_rows, self._take_masked)
        yield from self._send_masked()

    def _check_memory(self, n_columns: int) -> None:
        """Refuse a number of columns of both parties for whose products with the labels there is no room.

        The other party names its number, and a job of many batches has as many products of each column.
        """
        needed = 3 * self._n_vectors * n_columns  # h, N_1 and N_2
        if needed > MAX_PRODUCTS:
            parts = f"{self._n_vectors} classes" if self._job.classes else f"{self._rows.n_sections} batches"
            raise ProtocolError(
                f"the parties have {n_columns} columns and {parts}: the {self.role} would need"
                f" {needed // 2**17} MiB for the products with the labels, and takes at most {MAX_PRODUCTS // 2**17}:"
                " raise `batch`, or leave out columns"
            )

    def _take_masked(self, piece: ElementPiece, is_last: bool) -> Iterator[Envelope]:
        rows = RowRange(piece.offset, piece.n_rows)
        n_columns = self._n_masked_columns(self.peer)
        if rows.first != self._n_masked_received:
            raise ProtocolError(f"the {self.peer} sent more masked columns after some that were refused")
        if rows.n_rows % GROUP or len(piece.elements) != rows.n_rows * n_columns:
            raise ProtocolError(
                f"the {self.peer} sent {len(piece.elements)} elements for {rows.n_rows} rows of masked columns, but"
                f" {n_columns} for each of 8 rows or a multiple are expected"
            )
        with self._phase("product"):
            self._keep_masked(rows, grouped(piece.elements, n_columns))
        self._n_masked_received = rows.end
        report_progress(Stage.EXCHANGING, rows.end, self._rows.n_rows)
        yield from self._send_masked()

    def _send_masked(self) -> Iterator[Envelope]:
        """Send masked columns, as far as the window allows."""
        n_columns, n_rows = self._n_masked_columns(self.role), self._rows.n_rows
        size = min(BLOCK_ROWS, max(ROWS, _PIECE_ELEMENTS // n_columns // ROWS * ROWS))
        ahead = max(2 * size, WINDOW_BYTES // (8 * n_columns))
        while self._n_masked_sent < min(n_rows, self._n_masked_received + ahead):
            rows = RowRange(self._n_masked_sent, min(size, n_rows - self._n_masked_sent))
            with self._phase("product"):
                elements = self._masked(rows)
            self._n_masked_sent = rows.end
            yield Envelope(
                self.peer, ElementPiece(SESSION, Kind.MASKED_COLUMNS, rows.first, n_rows, rows.n_rows, elements)
            )

    def _n_masked_columns(self, sender: Role) -> int:
        """Return how many masked columns a party sends: D_A, or D_B and D_q, and with sample weights D_c and D_Y.

        There is a D_q for each model.
        """
        if sender is Role.HOST:
            return self._n_host
        return 2 * self._n_guest + 2 if self._fmt.weighted else self._n_guest + self._job.n_models

    def _make_table(self, dtype: type[ScalarT], n_columns: int) -> Table[ScalarT]:
        return Table(self._scratch, dtype, self._rows.n_rows, n_columns)

    def _round_columns(self, order: SectionOrder) -> None:
        """Round the columns of all rows to integers."""
        random, scale = np.random.default_rng(), self._fmt.column_scale
        for number, rows, values in order.blocks(self._block.columns, self._block.holdout_columns):
            tile = round_columns(values, rows.n_rows, scale, random)
            self._own.append(rows, tile)
            if self._scales is not None:
                of_information, fine = self._scales
                self._fine.append(rows, round_columns(values, rows.n_rows, fine, random))
                if of_information != scale:
                    self._information.append(rows, round_columns(values, rows.n_rows, of_information, random))
            self._use_own(number, rows, tile)
            report_progress(Stage.PREPARING, rows.end, self._rows.n_rows)

    def _measure_sizes(self) -> tuple[int, int, int]:
        """Return `SharesReady.norm_bits`, `SharesReady.spread_bits` and `SharesReady.fourth_bits`."""
        n_rows = self._n_train, self._rows.most_summed
        sizes = [measure(columns) for columns in (self._block.columns, self._block.holdout_columns)]
        # Rounding moves each value by less than 1 / column_scale.
        rounding = math.sqrt(self._n_own) / self._fmt.column_scale
        spread = max(each.spread / math.sqrt(n) for each, n in zip(sizes, n_rows, strict=True))
        fourth = sizes[0].fourth / self._n_train
        return _bits(max(each.norm for each in sizes) + rounding), _bits(spread), _bits(fourth)

    # --- a round

    def begin(self, asked: BeginRound) -> Iterator[Envelope | Expected[ElementPiece]]:
        """See Arithmetic."""
        if not self.may_begin:
            raise ProtocolError(
                f"the coordinator began round {asked.key.round} before the {self.role} had the masked columns of the"
                f" {self.peer}"
            )
        if asked.information:
            self._attempt = None
            yield from self._new_step(asked).begin()
            return
        self._attempt = attempt = self._new_attempt(asked)
        self._first_round = self._first_round or asked.key.round
        if self.role is Role.HOST and self._opens_scores(asked):
            yield Envelope(Role.HOST, ScoresDue(asked.key, np.zeros(0), asked.batch.fold))
        if asked.key.round == self._first_round:
            yield from self._send_products()
        if not attempt.runs:
            yield self._sums(attempt)
            return
        training = () if attempt.training is None else attempt.training.ranges
        holdout = () if attempt.holdout is None else (attempt.holdout,)
        spans = [(part.first, part.n_rows) for part in (*training, *holdout)]
        n_rows = self._rows.n_rows
        yield Expected(Kind.MASKED_SCORES, n_rows, self._take_scores, spans)
        yield Expected(Kind.DEALT, n_rows, self._take_dealt, spans)
        yield Expected(Kind.MASKED_RESIDUAL, n_rows, self._take_residual, spans)
        yield from self._send_scores(attempt)

    def _new_attempt(self, asked: BeginRound) -> Attempt:
        shares = asked.shares
        if shares is None:
            raise ProtocolError(f"the coordinator began round {asked.key.round} without shares of the weights")
        for weights in (shares.weights, shares.holdout):
            self._check_weights(asked.key, weights)
        model = 0 if self._job.classes is None else asked.batch.index
        if model != self._model:
            self._placed.clear()
            self._model = model
        training = None if shares.weights is None else self._rows.selection(asked.batch)
        holdout = None if shares.holdout is None else self._rows.holdout
        if training is None and not asked.gradient:
            raise ProtocolError(f"the coordinator asks for nothing of the training rows in round {asked.key.round}")
        runs = [run for part in (training, holdout) if part is not None for run in part.runs(self._run_blocks)]
        return Attempt(
            asked,
            training,
            holdout,
            Sums.zeros(self._n_host, self._n_guest),
            Sums.zeros(self._n_host, self._n_guest),
            runs,
            [0, *accumulate(map(len, runs))],
            self._work(asked, shares.weights, is_holdout=False),
            self._work(asked, shares.holdout, is_holdout=True),
        )

    def _new_step(self, asked: BeginRound) -> InformationStep:
        """Return an attempt at the step of inference."""
        weights = None if asked.shares is None else asked.shares.weights
        self._check_weights(asked.key, weights)
        work = self._work(asked, weights, is_holdout=False)
        if work is None:
            raise ProtocolError(f"the coordinator began round {asked.key.round} without shares of the weights")
        if not self._fourth_bits <= asked.fourth_bits <= MAX_NORM_BITS:
            raise ProtocolError(
                f"the coordinator began the step of inference for fourth powers of {asked.fourth_bits} bits, but the"
                f" {self.role} has reported {self._fourth_bits}"
            )
        slopes = SlopeFormat.of(self._fmt, self._n_train, asked.fourth_bits)
        return InformationStep(
            asked.key,
            InformationPlan.of(slopes, self._rows, self._n_host, self._n_guest),
            work,
            read=partial(self._read, model=0),
            read_fine=self._fine.__getitem__,
            read_information=self._information.__getitem__,
            peer=self.peer,
            mask_key=self._parties.of(asked.key),
            phase=self._phase,
        )

    def _work(self, asked: BeginRound, weights: WeightShares | None, *, is_holdout: bool) -> Work | None:
        if weights is None:
            return None
        host, guest = weights.score[: self._n_host], weights.score[self._n_host :]
        own, other = (host, guest) if self.role is Role.HOST else (guest, host)
        return Work(
            self.role,
            self._fmt,
            self._n_host,
            self._n_guest,
            self._dealer.session,
            self._dealer.of(asked.key),
            Weights(own=own, opened=weights.opened, other=other),
            gradient=asked.gradient,
            is_holdout=is_holdout,
            opens_scores=not is_holdout and self._opens_scores(asked),
        )

    def _opens_scores(self, asked: BeginRound) -> bool:
        """Return whether a round tells the guest the scores of a fold."""
        return self._job.choose == "auc" and asked.batch.held_out

    def _blocks_of_a_run(self) -> int:
        """Return how many blocks a task has: one in this process, and as many as keep all workers busy elsewhere."""
        if self._engine.at_once:
            return 1
        of_block = BLOCK_ROWS * 8 * (self._n_host + self._n_guest)
        most = min(MAX_RUN_BLOCKS, MAX_RUN_BYTES // of_block, self._window // (2 * self._engine.n_slots + 1))
        return max(1, most)

    def _check_weights(self, key: RoundKey, weights: WeightShares | None) -> None:
        if weights is None:
            return
        n_columns = self._n_host + self._n_guest
        lengths = len(weights.score), len(weights.opened), len(weights.loss)
        if lengths != (n_columns, self._n_own, n_columns):
            raise ProtocolError(
                f"the coordinator sent {', '.join(map(str, lengths))} shares of weights in round {key.round}, but"
                f" {n_columns}, {self._n_own} and {n_columns} are expected"
            )

    def _send_scores(self, attempt: Attempt) -> Iterator[Envelope]:
        """Compute and send this party's parts of the masked scores, as far as the window allows."""
        while attempt.n_runs_scored < len(attempt.runs):
            number = attempt.n_runs_scored
            if attempt.n_before[number + 1] > attempt.n_done + self._window:
                return
            state = self._state(attempt, number)
            attempt.n_runs_scored += 1
            attempt.n_scored += len(state.blocks)
            with self._phase("product"):
                task = self._engine.submit(score, state.work, state.tables)
            self.tasks.add(task, partial(self._use_scores, attempt, state))
            yield from self._drain()

    def _use_scores(self, attempt: Attempt, state: RunState, scores: Sequence[ElementVector]) -> Iterator[Envelope]:
        state.own_scores = scores
        for rows, part in zip(state.blocks, scores, strict=True):
            yield self._piece(attempt, Kind.MASKED_SCORES, rows, part)
        yield from self._advance(attempt, state)

    def _drain(self) -> Iterator[Envelope]:
        """Use the results that are there, without waiting: a window bounds how many tasks are under way."""
        yield from self.tasks.drain(3 * self._window)

    def _take_scores(self, piece: ElementPiece, is_last: bool) -> Iterator[Envelope]:
        del is_last
        # The other party has at most this party's answers to the blocks that it has scored, and a window beyond.
        attempt, state = self._due(piece, self._open_attempt.n_scored + self._window)
        self._check_length(piece, state, len(state.peer_scores), 1)
        state.peer_scores.append(piece.elements)
        yield from self._advance(attempt, state)

    def _take_dealt(self, piece: ElementPiece, is_last: bool) -> Iterator[Envelope]:
        del is_last
        attempt, state = self._due(piece, self._open_attempt.n_done + 2 * self._window)
        n_columns = self._fmt.n_odd if self.role is Role.HOST else self._fmt.n_even
        self._check_length(piece, state, len(state.dealt), n_columns)
        state.dealt.append(piece.elements)
        yield from self._advance(attempt, state)

    def _take_residual(self, piece: ElementPiece, is_last: bool) -> Iterator[Envelope]:
        del is_last
        attempt, state = self._due(piece, self._open_attempt.n_scored)
        n_columns = state.work.n_opened[self.peer] + (state.work.opens_scores and self.peer is Role.HOST)
        self._check_length(piece, state, len(state.answers), n_columns)
        state.answers.append(piece)
        yield from self._advance(attempt, state)

    def _due(self, piece: ElementPiece, limit: int) -> tuple[Attempt, RunState]:
        """Count the next piece of a kind, which is one block; refuse it if it is further ahead than `limit` blocks.

        Returns:
            The open attempt, and the run of the block.
        """
        attempt = self._open_attempt
        number = attempt.n_received.get(piece.kind, 0)
        if number >= limit:
            raise ProtocolError(
                f"the {self._sender_of(piece)} sent {piece.kind} of block {number + 1} of round {piece.key.round}, but"
                f" at most {limit} blocks are due"
            )
        attempt.n_received[piece.kind] = number + 1
        return attempt, self._state(attempt, attempt.run_of(number))

    def _check_length(self, piece: ElementPiece, state: RunState, place: int, n_columns: int) -> None:
        """Check that a piece has the rows of a block and so many elements for each."""
        n_rows = state.blocks[place].n_rows
        if piece.n_rows != n_rows or len(piece.elements) != n_columns * n_rows:
            raise ProtocolError(
                f"the {self._sender_of(piece)} sent {len(piece.elements)} elements of {piece.kind} for {piece.n_rows}"
                f" rows, but {n_columns} for each of {n_rows} rows are expected"
            )

    def _sender_of(self, piece: ElementPiece) -> Role:
        return Role.COORDINATOR if piece.kind is Kind.DEALT else self.peer

    def _state(self, attempt: Attempt, number: int) -> RunState:
        state = attempt.under_way.get(number)
        if state is None:
            blocks = attempt.runs[number]
            is_holdout = attempt.holdout is not None and blocks[0].first >= attempt.holdout.first
            work = attempt.holdout_work if is_holdout else attempt.work
            if work is None:
                raise RuntimeError("a block of rows without a point")
            state = attempt.under_way[number] = RunState(number, blocks, work, self._place(number, blocks))
        return state

    def _place(self, number: int, blocks: Sequence[RowRange]) -> Placed[Sequence[BlockTables]]:
        """Return the tables of a run. In this process they are read once in a round, and dropped after it."""

        def load() -> Sequence[BlockTables]:
            return [self._read(rows, model) for rows in blocks]

        model = self._model

        if self._engine.at_once:
            return self._engine.place(number, load)
        whole = RowRange(blocks[0].first, blocks[-1].end - blocks[0].first)
        if whole not in self._placed:
            self._placed[whole] = self._engine.place(number, load)
        return self._placed[whole]

    def _advance(self, attempt: Attempt, state: RunState) -> Iterator[Envelope]:
        """Do what can be done for a run with what has come so far."""
        n_blocks = len(state.blocks)
        open_block, close_block = self._block_parts
        if state.own_scores is not None and not state.is_opening:
            if len(state.peer_scores) < n_blocks or len(state.dealt) < n_blocks:
                return
            state.is_opening = True
            with self._phase("product"):
                z = [own + other for own, other in zip(state.own_scores, state.peer_scores, strict=True)]
                task = self._engine.submit(
                    open_blocks, state.work, state.tables, z, state.dealt, open_block, urgent=True
                )
            state.own_scores, state.peer_scores, state.dealt = (), [], []
            self.tasks.add(task, partial(self._use_opened, attempt, state))
        if state.opened is not None and not state.is_closing and len(state.answers) == n_blocks:
            state.is_closing = True
            self._check_digests(state.opened, state.answers)
            residuals = [each.residual for each in state.opened]
            answers = [each.elements for each in state.answers]
            if state.work.opens_scores and self.peer is Role.HOST:
                answers = [self._take_opened(attempt, state, number) for number in range(n_blocks)]
            with self._phase("product"):
                closed = self._engine.submit(
                    close_blocks, state.work, state.tables, residuals, answers, close_block, urgent=True
                )
            self.tasks.add(closed, partial(self._use_closed, attempt, state))
        yield from self._drain()

    def _use_opened(
        self, attempt: Attempt, state: RunState, result: tuple[Sequence[Opened], Sums]
    ) -> Iterator[Envelope]:
        state.opened, sums = result
        self._add(attempt, state, sums)
        for rows, opened in zip(state.blocks, state.opened, strict=True):
            if opened.elements is not None:
                yield self._piece(attempt, Kind.MASKED_RESIDUAL, rows, opened.elements, opened.digest)
        yield from self._advance(attempt, state)

    def _check_digests(self, opened: Sequence[Opened], answers: Sequence[ElementPiece]) -> None:
        if [each.digest for each in opened] != [each.digest for each in answers]:
            raise ProtocolError(
                f"the {self.role} and the {self.peer} have computed different integers from the same scores: install"
                " the same release of trilateral at both, and run `trilateral check` on both machines"
            )

    def _use_closed(
        self, attempt: Attempt, state: RunState, result: tuple[Sequence[ElementVector | None], Sums]
    ) -> Iterator[Envelope]:
        """Count a run as done. Runs are done in their order, because each sender keeps it."""
        replies, sums = result
        self._add(attempt, state, sums)
        for rows, reply, opened in zip(state.blocks, replies, state.opened or (), strict=True):
            if reply is not None:
                yield self._piece(attempt, Kind.MASKED_RESIDUAL, rows, reply, opened.digest)
        del attempt.under_way[state.number]
        attempt.n_done += len(state.blocks)
        attempt.n_rows_done += sum(rows.n_rows for rows in state.blocks)
        if attempt.n_done == attempt.n_before[-1]:
            yield from self._report_scores(attempt)
            yield self._sums(attempt)
            return
        if attempt.n_done - attempt.n_reported >= max(1, self._window // REPORTS_PER_WINDOW):
            attempt.n_reported = attempt.n_done
            yield Envelope(Role.COORDINATOR, RowsDone(attempt.asked.key, attempt.n_rows_done))
        yield from self._send_scores(attempt)

    @staticmethod
    def _add(attempt: Attempt, state: RunState, sums: Sums) -> None:
        (attempt.holdout_sums if state.work.is_holdout else attempt.sums).add(sums)

    def _piece(
        self, attempt: Attempt, kind: Kind, rows: RowRange, elements: ElementVector, digest: bytes = b""
    ) -> Envelope:
        key, total = attempt.asked.key, self._rows.n_rows
        return Envelope(self.peer, ElementPiece(key, kind, rows.first, total, rows.n_rows, elements, digest))

    @property
    def _open_attempt(self) -> Attempt:
        if self._attempt is None:
            raise RuntimeError("a vector of a round came before any round began")
        return self._attempt

    # --- to the coordinator

    def _send_products(self) -> Iterator[Envelope]:
        """Send this party's shares of the label products of all sections, each under a mask of the parties' own."""
        masks = self._product_masks[:, 0 if self.role is Role.HOST else 1]
        masked = (self._products + masks).ravel()
        piece = ElementPiece(SESSION, Kind.SUMS, 0, len(masked), len(masked), masked)
        yield Envelope(Role.COORDINATOR, piece)

    def _sums(self, attempt: Attempt) -> Envelope:
        """Send this party's shares of the gradient and of the losses, as they were asked for."""
        asked, fmt, sums = attempt.asked, self._fmt, attempt.sums
        shares = asked.shares
        # A whitened column may have one value of sqrt(n_train), whatever the batch: the noise of a batch is covered as
        # that of all training rows.
        n_rows = self._rows.training.n_rows
        parts: list[tuple[ElementVector, int]] = []
        if asked.gradient:
            gradient = np.concatenate([sums.host, sums.guest])
            if attempt.training is None:
                products = self._of_sections(self._products, self._rows.selection(asked.batch).numbers)
                gradient = products << np.uint64(fmt.f_d - 1)  # h / 2, at the scale of a gradient
            parts.append((gradient, fmt.gradient_drop(n_rows)))
        if attempt.training is not None and shares is not None and shares.weights is not None:
            loss = sums.loss + self._linear_part(shares.weights, attempt.training.numbers)
            loss += self._constant_part(attempt.training)
            parts.append((loss, fmt.loss_drop(n_rows)))
        if attempt.holdout is not None and shares is not None and shares.holdout is not None:
            loss = attempt.holdout_sums.loss + self._linear_part(shares.holdout, [self._rows.n_sections])
            loss += self._constant_part(None)
            parts.append((loss, fmt.holdout.loss_drop(attempt.holdout.n_rows)))
        n_sums = sum(len(share) for share, _ in parts)
        masks = kernels.stream(self._parties.of(asked.key), Purpose.SUMS, 0, pad(n_sums), 1)
        cut, first = [], 0
        for share, bits in parts:
            mask = masks[first : first + len(share)]
            cut.append(cut_share(share, mask, bits, subtract=self.role is Role.GUEST))
            first += len(share)
        elements = np.concatenate(cut)
        return Envelope(Role.COORDINATOR, ElementPiece(asked.key, Kind.SUMS, 0, n_sums, n_sums, elements))

    def _linear_part(self, weights: WeightShares, numbers: Sequence[int]) -> ElementVector:
        """Take this party's share of w' N from the loss, because the coordinator adds w' (h + N); shape (1,)."""
        masks = self._product_masks[list(numbers)].sum(axis=(0, 1), dtype=np.uint64)
        products: ElementVector = (weights.loss * masks).sum(dtype=np.uint64, keepdims=True)
        return np.negative(products)

    @staticmethod
    def _of_sections(vectors: ElementVector, numbers: Sequence[int]) -> ElementVector:
        """Sum the rows of some sections, shape (n_host + n_guest,)."""
        total: ElementVector = vectors[list(numbers)].sum(axis=0, dtype=np.uint64)
        return total

    # --- the end

    def take_rows_done(self, done: RowsDone) -> Iterator[Envelope]:
        """See Arithmetic."""
        raise ProtocolError(f"a party does not take a {type(done).__name__} under the protocol on shares")

    def finish(self, asked: FinishJob) -> Iterator[Envelope | Expected[ElementPiece]]:
        """See Arithmetic: each party gives the other its share of the other's weights."""
        n_host, n_guest = (count * self._job.n_models for count in (self._n_host, self._n_guest))
        if asked.share is None or len(asked.share) != n_host + n_guest or not self.may_begin:
            raise ProtocolError(
                f"the coordinator ended the training with {0 if asked.share is None else len(asked.share)} shares of"
                f" weights, but {n_host + n_guest} are expected"
            )
        self._check_inference(asked)
        self._attempt = None
        host, guest = asked.share[:n_host], asked.share[n_host:]
        own, other = (host, guest) if self.role is Role.HOST else (guest, host)
        total = own.copy()

        def use(piece: ElementPiece, is_last: bool) -> Iterator[Envelope]:
            if len(piece.elements) != piece.n_rows:
                raise ProtocolError(f"the {self.peer} sent {len(piece.elements)} shares as {piece.n_rows}")
            total[piece.offset : piece.offset + piece.n_rows] += piece.elements
            if is_last:
                self._coef, self._has_coef = decode(total, MODEL_FRACTION_BITS), True
                if asked.inference is not None:
                    yield self._tell_signs(key, asked.inference)

        key = RoundKey(asked.round, 1)
        yield Expected(Kind.WEIGHTS, len(own), use)
        if asked.inference is not None:
            yield Expected(Kind.SEPARATION, 1, self._take_signs)
        yield Envelope(self.peer, ElementPiece(key, Kind.WEIGHTS, 0, len(other), len(other), other))

    def _check_inference(self, asked: FinishJob) -> None:
        told = asked.inference
        if (told is not None) != self._job.inference:
            raise ProtocolError(
                f"the coordinator ended the training {'without' if told is None else 'with'} standard errors, but the"
                f" job has `inference: {str(self._job.inference).lower()}`"
            )
        if told is not None and len(told.covariance) not in (0, n_packed(self._n_own)):
            raise ProtocolError(
                f"the coordinator sent {len(told.covariance)} numbers as a covariance of {self._n_own} weights"
            )

    @property
    def has_coef(self) -> bool:
        """See Arithmetic."""
        return self._has_coef and (not self._job.inference or len(self._of_separation) == len(PARTIES))

    @property
    def signs(self) -> Mapping[Role, Sign]:
        """See Arithmetic."""
        return self._of_separation

    def _tell_signs(self, key: RoundKey, told: OwnCovariance) -> Envelope:
        """Tell the other party what this party's part of the model shows about separation."""
        with self._phase("product"):
            signs = signs_of(*self._largest(told), self._job.max_score)
        self._of_separation[self.role] = signs
        element = np.array([signs], np.uint64)
        return Envelope(self.peer, ElementPiece(key, Kind.SEPARATION, 0, 1, 1, element))

    def _take_signs(self, piece: ElementPiece, is_last: bool) -> Iterator[Envelope]:
        del is_last
        if len(piece.elements) != 1 or piece.elements[0] > ALL_SIGNS:
            raise ProtocolError(f"the {self.peer} sent {len(piece.elements)} elements that are no signs of separation")
        self._of_separation[self.peer] = Sign(int(piece.elements[0]))
        yield from ()

    def _largest(self, told: OwnCovariance) -> tuple[float, float]:
        """Return the largest size and the largest standard error of this party's part of the score of a training row.

        They come from the integers of the columns, since the columns are gone. The error is without the intercept,
        and 0 if the covariance is not known.
        """
        n_own = self._n_own
        n_features = n_own - (self.role is Role.GUEST and self._job.intercept)
        C = unpack(told.covariance, n_own)[:n_features, :n_features] if len(told.covariance) else np.zeros((0, 0))
        score = variance = 0.0
        for rows in self._rows.training.blocks() if n_own else ():
            columns = grouped(self._own[rows], n_own).transpose(0, 2, 1) / self._fmt.column_scale
            score = max(score, float(np.abs(columns @ self._coef).max()))
            known = columns[:, :, : len(C)]
            variance = max(variance, float(np.einsum("gri,gri->gr", known @ C, known).max()))
        return score, math.sqrt(variance)

    # --- what the roles add

    @abstractmethod
    def _prepare_exchange(self, order: SectionOrder) -> None:
        """Make what this party keeps of the other's masked columns, and of its own labels."""

    def _use_own(self, number: int, rows: RowRange, tile: Tile) -> None:  # noqa: B027  The host has no use for them.
        """Use this party's rounded columns of some rows of a section, in the order of the rows."""

    @abstractmethod
    def _masked(self, rows: RowRange) -> ElementVector:
        """Return this party's masked columns of some rows, in the layout."""

    @abstractmethod
    def _keep_masked(self, rows: RowRange, columns: NDArray[np.uint64]) -> None:
        """Keep the other party's masked columns of some rows, shape (n_rows / 8, n_masked_columns, 8)."""

    @property
    @abstractmethod
    def _block_parts(self) -> tuple[OpenBlock, CloseBlock]:
        """The role's parts of `open_blocks` and `close_blocks`: functions of a module, so that they can travel."""

    @abstractmethod
    def _read(self, rows: RowRange, model: int) -> BlockTables:
        """Read the tables of a block, with the labels of a model. The threads of an engine may call it."""

    def _take_opened(self, attempt: Attempt, state: RunState, number: int) -> ElementVector:
        """Keep the scores of a block that the host has opened; return what else it has opened."""
        raise RuntimeError(f"the {self.role} is told no score")

    def _report_scores(self, attempt: Attempt) -> Iterator[Envelope]:
        """Report to the coordinator what the opened scores of a fold show."""
        del attempt
        yield from ()

    @abstractmethod
    def _constant_part(self, training: Selection | None) -> ElementVector:
        """Return this party's share of the constant part of a loss: of training rows, or of the hold-out rows.

        Args:
            training: the training rows; None for the hold-out rows.
        """


def _diagonal(penalty: FloatMatrix) -> FloatVector:
    """Return the diagonal of P.

    Raises:
        DataError: P has other elements.
    """
    diagonal = np.diag(penalty)
    rest = np.abs(penalty - np.diag(diagonal)).max(initial=0.0)
    if rest > DIAGONAL_TOLERANCE * np.abs(diagonal).max(initial=0.0):
        raise DataError(
            "the L2 penalty of these columns is not a sum over single columns, which `protocol: shares` needs: set"
            " `preprocessing.whiten` to its default, or `l2` to 0"
        )
    # Whitening leaves rounding errors around 0.
    return np.maximum(diagonal, 0.0)


def _bits(size: float) -> int:
    """Return the ceiling of log2 of a size, at least 0. Whitened columns are of size 1 up to rounding errors."""
    return max(0, math.ceil(math.log2(size) - 1e-6)) if size > 0 else 0
