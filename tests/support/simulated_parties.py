"""Both parties of the protocol on shares in one object, made of nothing but the kernels and the protocol's equations.

It is the coordinator's counterpart in tests. It keeps no rule of secrecy, and it works an attempt through at once.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.support.shares_rounds import rows_in_order
from trilateral.common.base.arrays import ElementVector, FloatMatrix, FloatVector, Rows
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.batches import Batches
from trilateral.common.protocol.messages import (
    BeginRound,
    ElementPiece,
    Envelope,
    Finished,
    FinishJob,
    JobEnded,
    Kind,
    Message,
    ObservationRecord,
    OpenJob,
    Ready,
    RoundKey,
    RoundReport,
    RowsDone,
    SharesReady,
    WeightShares,
)
from trilateral.common.protocol.shares.rows import RowPlan, RowRange, Section
from trilateral.common.protocol.shares.session import SESSION, StreamKeys, draw_seed
from trilateral.common.shares import kernels
from trilateral.common.shares.format import MODEL_FRACTION_BITS, Format
from trilateral.common.shares.keys import Purpose
from trilateral.common.shares.layout import pad, tile
from trilateral.common.shares.ring import cut_share, decode
from trilateral.coordinator.machine import CoordinatorMachine, Past
from trilateral.coordinator.shares.computation import SharesOffer


@dataclass
class SharedTable:
    """The joined table of a test: training rows, then hold-out rows."""

    host: FloatMatrix
    guest: FloatMatrix
    labels: FloatVector
    """0 or 1."""
    n_train: int
    sample_weights: FloatVector | None = None
    """Of the training rows; multiples of 2^-weight_bits."""
    weight_bits: int = 0
    penalty: FloatVector = field(default_factory=lambda: np.zeros(0))

    @property
    def columns(self) -> FloatMatrix:
        return np.hstack([self.host, self.guest])

    @property
    def n_holdout(self) -> int:
        return len(self.labels) - self.n_train

    def weights_of(self, rows: Rows | slice) -> FloatVector:
        if self.sample_weights is None:
            return np.ones(len(self.labels[rows]))
        return np.concatenate([self.sample_weights, np.ones(self.n_holdout)])[rows]

    def gradient(self, coef: FloatVector, l2: float = 0.0, rows: Rows | slice | None = None) -> FloatVector:
        """Gradient of `loss`, over some of the training rows."""
        chosen = slice(0, self.n_train) if rows is None else rows
        X, y, c = self.columns[chosen], self.labels[chosen], self.weights_of(chosen)
        p = 1 / (1 + np.exp(-X @ coef))
        penalty = l2 * self.penalty * coef if l2 else np.zeros(len(coef))
        return np.asarray(X.T @ (c * (p - y)) / c.sum() + penalty)

    def loss(self, coef: FloatVector, l2: float = 0.0) -> float:
        """Mean logistic loss of the training rows, and penalty."""
        rows = slice(0, self.n_train)
        penalty = l2 * float(coef @ (self.penalty * coef)) / 2 if l2 else 0.0
        return float(np.average(self._losses(coef)[rows], weights=self.weights_of(rows))) + penalty

    def holdout_loss(self, coef: FloatVector) -> float:
        return float(np.mean(self._losses(coef)[self.n_train :]))

    def _losses(self, coef: FloatVector) -> FloatVector:
        scores = self.columns @ coef
        losses: FloatVector = np.logaddexp(0, scores) - self.labels * scores
        return losses

    def optimum(self, l2: float = 0.0) -> FloatVector:
        """The minimum by Newton's method."""
        rows = slice(0, self.n_train)
        X, y, c = self.columns[rows], self.labels[rows], self.weights_of(rows)
        coef = np.zeros(X.shape[1])
        P = l2 * self.penalty if l2 else np.zeros(X.shape[1])
        for _ in range(30):
            p = 1 / (1 + np.exp(-X @ coef))
            hessian = (X * (c * p * (1 - p))[:, None]).T @ X / c.sum() + np.diag(P)
            coef = coef - np.linalg.solve(hessian, X.T @ (c * (p - y)) / c.sum() + P * coef)
        return coef


def make_table(
    n_train: int = 600, n_holdout: int = 0, n_host: int = 3, n_guest: int = 3, *, seed: int = 0
) -> SharedTable:
    """Whitened columns, an intercept at the guest, and labels that follow a logistic model."""
    rng = np.random.default_rng(seed)
    n = n_train + n_holdout
    Z = rng.normal(size=(n, n_host + n_guest - 1)) + 0.5 * rng.normal(size=(n, 1))

    def whiten(X: FloatMatrix) -> FloatMatrix:
        X = X - X.mean(0)
        return np.asarray(np.linalg.svd(X, full_matrices=False)[0] * np.sqrt(n))

    host, guest = whiten(Z[:, :n_host]), np.column_stack([whiten(Z[:, n_host:]), np.ones(n)])
    coef = rng.normal(size=n_host + n_guest) * 0.7
    labels = np.asarray(rng.random(n) < 1 / (1 + np.exp(-np.hstack([host, guest]) @ coef)), np.float64)
    return SharedTable(host, guest, labels, n_train)


class SimulatedParties:
    """Answers the coordinator for both parties.

    Args:
        job: the job's settings.
        table: both parties' data.
    """

    def __init__(self, job: JobConfig, table: SharedTable) -> None:
        self.table = table
        weight_bits = None if table.sample_weights is None else table.weight_bits
        self.rows = rows = RowPlan.of(Batches.of(job, table.n_train), table.n_holdout)
        self.fmt: Format = rows.format_of(job.max_score, weight_bits)
        fmt = self.fmt
        self.seeds: dict[Role, StreamKeys] = {}
        self.between = StreamKeys.alone()
        self.shares: dict[Role, ElementVector] = {}
        self.begun: dict[RoundKey, dict[Role, BeginRound]] = defaultdict(dict)
        self.dealt: dict[tuple[Role, RoundKey, int], ElementPiece] = {}
        self.first_round: int | None = None
        self.n_host = table.host.shape[1]
        self._l2 = job.l2
        # The rows in the order of the sections.
        order, in_order = np.full(rows.n_rows, -1), rows_in_order(rows)
        at = 0
        for section in rows.sections:
            order[section.first : section.first + section.n_real] = in_order[at : at + section.n_real]
            at += section.n_real
        order[rows.holdout.first : rows.holdout.first + table.n_holdout] = table.n_train + np.arange(table.n_holdout)
        real = order >= 0
        rng = np.random.default_rng(1)

        def laid_out(values: FloatMatrix, scale: int) -> FloatMatrix:
            scaled = values[order] * scale
            scaled[~real] = 0
            return np.asarray(np.floor(scaled + rng.random(scaled.shape) * (scaled != np.floor(scaled))))

        X = laid_out(table.columns, fmt.column_scale).astype(np.int64).astype(np.int32)
        self.X = {Role.HOST: X[:, : self.n_host], Role.GUEST: X[:, self.n_host :]}
        c = np.where(real, np.append(table.weights_of(slice(None)), 0)[order], 0)
        self.in_training = np.arange(rows.n_rows) < rows.training.n_rows
        c_ring = np.where(self.in_training, np.ldexp(c, fmt.f_c), c).astype(np.int64)
        q = np.where(real, 1 - 2 * np.append(table.labels, 0)[order], 0).astype(np.int64)
        self.cq = (c_ring * q).view(np.uint64)
        self.c = c_ring.view(np.uint64)
        self.y = np.where(real, np.append(table.labels, 0)[order], 0)

    # --- messages

    def handle(self, to: Role, message: Message) -> Iterator[tuple[Role, Message]]:
        """Yield what the parties answer to a message of the coordinator, with its sender."""
        match message:
            case OpenJob():
                part = draw_seed()
                self.seeds[to] = StreamKeys.agreed(message.seed, part)
                yield to, self.ready(to, part)
            case BeginRound(over=False):
                self.begun[message.key][to] = message
                yield from self._go_on(message.key)
            case ElementPiece():
                self.dealt[to, message.key, message.offset] = message
                yield from self._go_on(message.key)
            case FinishJob():
                assert message.share is not None
                self.shares[to] = message.share
                yield to, Finished()

    def ready(self, party: Role, part: bytes) -> Ready:
        X, is_guest = self.X[party], party is Role.GUEST
        columns = X / self.fmt.column_scale
        norm, spread = np.linalg.norm(columns, axis=1).max(), np.linalg.norm(columns, 2) / np.sqrt(self.table.n_train)
        penalty = np.zeros(0)
        if self._l2:
            penalty = self.table.penalty[: self.n_host] if not is_guest else self.table.penalty[self.n_host :]
        sample_weights = self.table.sample_weights if is_guest else None
        return Ready(
            self.table.n_train,
            X.shape[1],
            shares=SharesReady(
                seed=part,
                n_holdout=self.table.n_holdout,
                norm_bits=int(np.ceil(np.log2(norm))),
                spread_bits=int(np.ceil(np.log2(spread))),
                penalty=penalty,
                weight_bits=None if sample_weights is None else self.table.weight_bits,
                total_weight=0.0 if sample_weights is None else float(sample_weights.sum()),
            ),
        )

    @property
    def coef(self) -> FloatVector:
        """The final weights: the sum of both parties' shares."""
        return decode(self.shares[Role.HOST] + self.shares[Role.GUEST], MODEL_FRACTION_BITS)

    def point(self, key: RoundKey, *, holdout: bool = False) -> FloatVector:
        """The point of an attempt, or the one that it evaluates: the sum of both parties' shares."""
        begins = self.begun[key].values()
        if not holdout and any(one.shares is not None and one.shares.weights is None for one in begins):
            return np.zeros(len(self.table.columns[0]))
        host, guest = (_weights(one, holdout=holdout).score for one in begins)
        return decode(host + guest, self.fmt.f_w) * self.fmt.series.period / 32

    def _go_on(self, key: RoundKey) -> Iterator[tuple[Role, Message]]:
        begins = self.begun[key]
        if len(begins) < len(PARTIES):
            return
        begin = begins[Role.HOST]
        assert begin.shares is not None
        ranges = [*self.rows.selection(begin.batch).ranges] if begin.shares.weights is not None else []
        ranges += [self.rows.holdout] if begin.shares.holdout is not None else []
        blocks = [block for one in ranges for block in one.blocks()]
        done = 0
        for block in blocks:
            if any((party, key, block.first) not in self.dealt for party in PARTIES):
                break
            done += block.n_rows
        if done < sum(block.n_rows for block in blocks):
            for party in PARTIES:
                yield party, RowsDone(key, done)
            return
        if self.first_round is None:
            self.first_round = key.round
        sums = self._sums(key, begins)
        for party in PARTIES:
            if key.round == self.first_round:
                products = self.products()[party]
                yield party, _whole(SESSION, products)
            yield party, _whole(key, sums[party])

    # --- arithmetic

    def products(self) -> Mapping[Role, ElementVector]:
        """h + N of each section, as each party sends it."""
        parts: dict[Role, list[ElementVector]] = {party: [] for party in PARTIES}
        for number, section in enumerate(self._sections()):
            masks = self._linear_masks(number)
            for party, h in self._label_products(section).items():
                parts[party].append(h + masks[party])
        return {party: np.concatenate(vectors) for party, vectors in parts.items()}

    def _sections(self) -> list[Section]:
        return [*self.rows.sections, *([self.rows.holdout] if self.table.n_holdout else [])]

    def _linear_masks(self, number: int) -> Mapping[Role, ElementVector]:
        n = len(self.table.columns[0])
        masks = kernels.stream(self.between.session, Purpose.LINEAR, pad(2 * n) * number, pad(2 * n), 1)
        return {Role.HOST: masks[:n], Role.GUEST: masks[n : 2 * n]}

    def _mask_of(self, party: Role, purpose: Purpose, rows: RowRange, n_columns: int) -> ElementVector:
        return kernels.stream(self.seeds[party].session, purpose, rows.first, rows.n_rows, n_columns)

    def _ring(self, party: Role, rows: RowRange) -> ElementVector:
        X = self.X[party][rows.first : rows.end].astype(np.int64).view(np.uint64)
        return tile(X, rows.n_rows)

    def _masked(self, party: Role, rows: RowRange) -> ElementVector:
        return self._ring(party, rows) - self._mask_of(party, Purpose.COLUMNS, rows, self.X[party].shape[1])

    def _label_products(self, rows: RowRange) -> Mapping[Role, ElementVector]:
        n_guest = self.X[Role.GUEST].shape[1]
        host = np.zeros(self.n_host, np.uint64)
        guest_of_host, guest = np.zeros(self.n_host, np.uint64), np.zeros(n_guest, np.uint64)
        cq = self.cq[rows.first : rows.end]
        masked = cq - self._mask_of(Role.GUEST, Purpose.LABELS, rows, 1)
        kernels.add_mask_products(self.seeds[Role.HOST].session, Purpose.COLUMNS, rows.first, self.n_host, masked, host)
        kernels.add_products(self._masked(Role.HOST, rows), cq, guest_of_host)
        kernels.add_products(self._ring(Role.GUEST, rows), cq, guest)
        return {
            Role.HOST: np.concatenate([host, np.zeros(n_guest, np.uint64)]),
            Role.GUEST: np.concatenate([guest_of_host, guest]),
        }

    def _sums(self, key: RoundKey, begins: Mapping[Role, BeginRound]) -> Mapping[Role, ElementVector]:
        fmt, begin = self.fmt, begins[Role.HOST]
        selection = self.rows.selection(begin.batch)
        (training,), numbers = selection.ranges, selection.numbers
        assert begin.shares is not None
        out: dict[Role, list[ElementVector]] = {party: [] for party in PARTIES}
        drops: list[int] = []
        if begin.shares.weights is None:
            for number in numbers:
                for party, h in self._label_products(self.rows.section(number)).items():
                    out[party].append(h << np.uint64(fmt.f_d - 1))
            out = {party: [np.sum(vectors, axis=0, dtype=np.uint64)] for party, vectors in out.items()}
            drops += [fmt.gradient_drop(self.rows.training.n_rows)] * len(out[Role.HOST][0])
        else:
            weights = {party: _weights(one, holdout=False) for party, one in begins.items()}
            gradient, loss = self._of_range(key, training, weights, numbers, gradient=begin.gradient)
            for party in PARTIES:
                out[party] += [gradient[party], loss[party]] if begin.gradient else [loss[party]]
            if begin.gradient:
                drops += [fmt.gradient_drop(self.rows.training.n_rows)] * len(gradient[Role.HOST])
            drops.append(fmt.loss_drop(self.rows.training.n_rows))
        if begin.shares.holdout is not None:
            weights = {party: _weights(one, holdout=True) for party, one in begins.items()}
            last = range(self.rows.n_sections, self.rows.n_sections + 1)
            _, loss = self._of_range(key, self.rows.holdout, weights, last, gradient=False)
            for party in PARTIES:
                out[party].append(loss[party])
            drops.append(fmt.holdout.loss_drop(self.rows.holdout.n_rows))
        sums = {party: np.concatenate(vectors) for party, vectors in out.items()}
        masks = kernels.stream(self.between.of(key), Purpose.SUMS, 0, pad(len(drops)), 1)
        return {
            party: np.concatenate(
                [
                    cut_share(one[i : i + 1], masks[i : i + 1], drop, subtract=party is Role.GUEST)
                    for i, drop in enumerate(drops)
                ]
            )
            for party, one in sums.items()
        }

    def _of_range(
        self,
        key: RoundKey,
        rows: Section,
        weights: Mapping[Role, WeightShares],
        numbers: Sequence[int],
        *,
        gradient: bool,
    ) -> tuple[Mapping[Role, ElementVector], Mapping[Role, ElementVector]]:
        fmt, n_guest = self.fmt, self.X[Role.GUEST].shape[1]
        is_holdout = rows.first == self.rows.holdout.first and rows.n_real == self.table.n_holdout > 0
        weighted = fmt.weighted and not is_holdout
        g = {party: np.zeros(self.n_host + n_guest, np.uint64) for party in PARTIES}
        loss = {party: np.zeros(1, np.uint64) for party in PARTIES}
        for block in rows.blocks():
            z = sum(self._z(party, key, block, weights[party]) for party in PARTIES)
            assert isinstance(z, np.ndarray)
            out = {
                party: kernels.residual(
                    fmt,
                    party,
                    self.seeds[party].of(key),
                    self.dealt[party, key, block.first].elements,
                    z,
                    block.first,
                    gradient=gradient,
                )
                for party in PARTIES
            }
            assert out[Role.HOST].digest == out[Role.GUEST].digest
            y = self.y[block.first : block.end]
            half = np.ldexp(0.5 - y, fmt.f_d).astype(np.int64).view(np.uint64)
            e = {
                party: kernels.stream(
                    self.seeds[party].of(key),
                    Purpose.OPENED,
                    block.first,
                    block.n_rows,
                    fmt.n_opened if party is Role.HOST else 1,
                )
                for party in PARTIES
            }
            e_host, e_loss = e[Role.HOST], np.zeros(0, np.uint64)
            if fmt.weighted:
                both = e_host.reshape(-1, 2, 8)
                e_host, e_loss = both[:, 0].ravel(), both[:, 1].ravel()
            c = self.c[block.first : block.end]
            if weighted:
                masked_c = c - self._mask_of(Role.GUEST, Purpose.WEIGHTS, block, 1)
                loss[Role.HOST] += (masked_c * e_loss).sum(dtype=np.uint64)
                loss[Role.GUEST] += (c * (out[Role.GUEST].loss + out[Role.HOST].loss - e_loss)).sum(dtype=np.uint64)
            else:
                for party in PARTIES:
                    loss[party] += out[party].loss.sum(dtype=np.uint64)
            if not gradient:
                continue
            X_host, X_guest = self._ring(Role.HOST, block), self._ring(Role.GUEST, block)
            host_key, guest_key = self.seeds[Role.HOST].session, self.seeds[Role.GUEST].session
            masked_host, masked_guest = self._masked(Role.HOST, block), self._masked(Role.GUEST, block)
            d_host, d_guest = out[Role.HOST].d, out[Role.GUEST].d + half
            columns_of_host = {party: g[party][: self.n_host] for party in PARTIES}
            columns_of_guest = {party: g[party][self.n_host :] for party in PARTIES}
            opened = d_host - e_host
            if weighted:
                joint = d_guest + opened
                d_guest = c * joint + out[Role.GUEST].v
                d_host = masked_c * e_host + out[Role.HOST].v
                Y = tile(
                    c[:, None] * self.X[Role.GUEST][block.first : block.end].astype(np.int64).view(np.uint64),
                    block.n_rows,
                )
                masked_Y = Y - self._mask_of(Role.GUEST, Purpose.WEIGHTED, block, n_guest)
                kernels.add_products(masked_Y, e_host, columns_of_guest[Role.HOST])
                kernels.add_products(Y, joint, columns_of_guest[Role.GUEST])
            else:
                kernels.add_products(masked_guest, d_host, columns_of_guest[Role.HOST])
                kernels.add_products(X_guest, d_guest, columns_of_guest[Role.GUEST])
                kernels.add_mask_products(
                    guest_key, Purpose.COLUMNS, block.first, n_guest, opened, columns_of_guest[Role.GUEST]
                )
            kernels.add_products(X_host, d_host, columns_of_host[Role.HOST])
            opened_by_guest = d_guest - e[Role.GUEST]
            kernels.add_mask_products(
                host_key, Purpose.COLUMNS, block.first, self.n_host, opened_by_guest, columns_of_host[Role.HOST]
            )
            kernels.add_products(masked_host, d_guest, columns_of_host[Role.GUEST])
        N = sum(mask for number in numbers for mask in self._linear_masks(number).values())
        for party in PARTIES:
            loss[party] -= (weights[party].loss * N).sum(dtype=np.uint64)
        total = float(rows.n_real)
        padding = rows.n_rows - rows.n_real
        if weighted:
            total, padding = float(np.ldexp(self.c[rows.first : rows.end].view(np.int64).sum(), -fmt.f_c)), 0
        loss[Role.GUEST] += (fmt.holdout if is_holdout else fmt).loss_offset(total, padding)
        return g, loss

    def _z(self, party: Role, key: RoundKey, block: RowRange, weights: WeightShares) -> ElementVector:
        is_host = party is Role.HOST
        other = Role.GUEST if is_host else Role.HOST
        own, others = weights.score[: self.n_host], weights.score[self.n_host :]
        if not is_host:
            own, others = others, own
        X = tile(self.X[party][block.first : block.end], block.n_rows)
        keys = self.seeds[party].session, self.seeds[party].of(key)
        return kernels.score_part(
            X,
            self._masked(other, block),
            kernels.Weights(own, weights.opened, others),
            keys,
            block.first,
            offset=is_host,
        )


def _weights(begin: BeginRound, *, holdout: bool) -> WeightShares:
    assert begin.shares is not None
    weights = begin.shares.holdout if holdout else begin.shares.weights
    assert weights is not None
    return weights


def _whole(key: RoundKey, elements: ElementVector) -> ElementPiece:
    return ElementPiece(key, Kind.SUMS, 0, len(elements), len(elements), elements)


@dataclass
class Trained:
    """What a training with simulated parties left behind."""

    ended: JobEnded
    coef: FloatVector
    reports: list[RoundReport]
    own: list[Message]
    """What the coordinator's machine said to its own process."""
    sent: list[Envelope]

    @property
    def observations(self) -> list[ObservationRecord]:
        """What the coordinator would keep of each round."""
        return [message for message in self.own if isinstance(message, ObservationRecord)]


Tamper = Callable[[Envelope], list[Envelope]]


def train_with(
    job: JobConfig,
    parties: SimulatedParties,
    past: Past | None = None,
    *,
    tamper: Tamper = lambda envelope: [envelope],
    machine: CoordinatorMachine | None = None,
) -> Trained:
    """Run a coordinator and simulated parties until the job has ended. `tamper` sees what the coordinator sends."""
    machine = machine or CoordinatorMachine(job, SharesOffer(job), past=past)
    queue: deque[Envelope] = deque(one for sent in machine.start() for one in tamper(sent))
    own: list[Message] = []
    reports: list[RoundReport] = []
    sent: list[Envelope] = []
    while queue:
        envelope = queue.popleft()
        message = envelope.message
        if envelope.to is Role.COORDINATOR:
            own.append(message)
            if isinstance(message, RoundReport):
                reports.append(message)
            if isinstance(message, JobEnded):
                coef = parties.coef if parties.shares else np.zeros(0)
                return Trained(message, coef, reports, own, sent)
            continue
        sent.append(envelope)
        for sender, answer in parties.handle(envelope.to, message):
            for following in machine.handle(sender, answer):
                queue.extend(tamper(following))
    raise AssertionError("the machines stopped talking")
