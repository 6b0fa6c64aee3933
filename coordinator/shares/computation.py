"""The protocol on shares at the coordinator: it deals, knows w and sums over many rows, and sees no data."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from gmpy2 import mpz

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.batches import Batches
from trilateral.common.protocol.bounds import max_rounds
from trilateral.common.protocol.messages import (
    BeginRound,
    ElementPiece,
    Envelope,
    FinishJob,
    Kind,
    OpenJob,
    OwnCovariance,
    Piece,
    Ready,
    RoundKey,
    RoundShares,
    RowsDone,
    SharesReady,
)
from trilateral.common.protocol.phases import Phase, no_phase
from trilateral.common.protocol.shares.bounds import MAX_NORM_BITS
from trilateral.common.protocol.shares.information import InformationPlan
from trilateral.common.protocol.shares.rows import RowPlan
from trilateral.common.protocol.shares.session import SESSION, StreamKeys, draw_seed
from trilateral.common.shares.format import Format
from trilateral.common.shares.information import MAX_PERIODS, SlopeFormat
from trilateral.coordinator.computation import Opening
from trilateral.coordinator.inference import own_covariances
from trilateral.coordinator.plan import Conclusion, RoundPlan, split
from trilateral.coordinator.shares.dealing import Dealing
from trilateral.coordinator.shares.information import InformationOpening
from trilateral.coordinator.shares.opening import Objective, SharesOpening, disclosed_loss, needs_scores
from trilateral.coordinator.shares.points import Range, share_point, share_result
from trilateral.coordinator.shares.products import LabelProducts


class SharesOffer:
    """Draws the coordinator's parts of the seeds of a session; see `computation.Offer`.

    Args:
        job: the job's settings.
        phase: times the dealing.
    """

    def __init__(self, job: JobConfig, *, phase: Phase = no_phase) -> None:
        self._job = job
        self._phase = phase
        self._seeds = {party: draw_seed() for party in PARTIES}

    def to(self, party: Role) -> OpenJob:
        """See `computation.Offer.to`. Each party gets a seed of its own."""
        return OpenJob(self._job, mpz(0), party, seed=self._seeds[party])

    def agree(self, ready: Mapping[Role, Ready]) -> "SharesComputation":
        """See `computation.Offer.agree`."""
        sizes = {party: _checked(self._job, party, each) for party, each in ready.items()}
        host, guest = sizes[Role.HOST], sizes[Role.GUEST]
        if host.n_holdout != guest.n_holdout:
            raise ProtocolError(f"the host holds out {host.n_holdout} rows and the guest {guest.n_holdout}")
        if host.fold_sizes != guest.fold_sizes:
            raise ProtocolError("the host and the guest have reported folds of different sizes")
        if host.weight_bits is not None:
            raise ProtocolError("the host has sample weights: only the guest, which has the labels, may have them")
        keys = {party: StreamKeys.agreed(self._seeds[party], sizes[party].seed) for party in PARTIES}
        n_columns = {party: each.n_columns for party, each in ready.items()}
        return SharesComputation(self._job, ready[Role.HOST].n_train, n_columns, sizes, keys, phase=self._phase)


class SharesComputation:
    """Sends shares of points, deals, and opens sums; see `computation.Computation`.

    Args:
        job: the job's settings.
        n_train: training rows.
        n_columns: columns of each party.
        sizes: what each party has reported.
        keys: of the streams that the coordinator has in common with each party.
        phase: times the dealing.
    """

    unit = "elements"

    def __init__(
        self,
        job: JobConfig,
        n_train: int,
        n_columns: Mapping[Role, int],
        sizes: Mapping[Role, SharesReady],
        keys: Mapping[Role, StreamKeys],
        *,
        phase: Phase = no_phase,
    ) -> None:
        guest = sizes[Role.GUEST]
        batches = Batches.of(job, n_train, fold_sizes=guest.fold_sizes)
        self._n_columns = n_columns
        self._n_models = job.n_models
        self._by_auc = job.choose == "auc"
        self._has_intercept = job.intercept
        self._whitened = [party for party, each in sizes.items() if not each.spread_bits]
        self._rows = RowPlan.of(batches, guest.n_holdout)
        self._fmt: Format = self._rows.format_of(job.max_score, guest.weight_bits)
        norm_bits = {party: each.norm_bits for party, each in sizes.items()}
        spread_bits = {party: each.spread_bits for party, each in sizes.items()}
        self._range = Range(norm_bits, spread_bits, self._fmt.series.period, n_columns)
        diagonals = [each.penalty if job.is_penalised else np.zeros(n_columns[party]) for party, each in sizes.items()]
        self.penalty: FloatVector = np.concatenate(diagonals)
        self.fold_sizes = [each.n_real for each in self._rows.sections] if job.folds is not None else []
        # With folds or an L1 penalty, the optimiser adds the penalty.
        l2 = 0.0 if job.folds is not None or job.has_l1 else job.l2
        self.start = np.concatenate([each.start for each in sizes.values()]) if job.start_from is not None else None
        self.is_weighted = guest.weight_bits is not None
        self._objective = Objective(
            curvature=l2 * self.penalty,
            weight_of_a_row=guest.total_weight / n_train if self.is_weighted else 1.0,
        )
        self._products = LabelProducts(self._rows, n_columns, keys)
        self._keys = keys
        self._phase = phase
        self._information: InformationPlan | None = None
        if job.inference:
            slopes = SlopeFormat.of(self._fmt, n_train, max(each.fourth_bits for each in sizes.values()))
            self._information = InformationPlan.of(slopes, self._rows, n_columns[Role.HOST], n_columns[Role.GUEST])
        self._step: InformationOpening | None = None
        """The open attempt at the step of inference."""
        rounds = max_rounds(job, batches.count)
        self._dealing = Dealing(self._fmt, keys, n_columns, self._rows, max_rounds=rounds, phase=phase)

    @property
    def allowed(self) -> Mapping[Role, tuple[int, int]]:
        """A gradient and two losses in an attempt, or the information; the products with the labels in a session."""
        n_columns = sum(self._n_columns.values())
        in_a_round = n_columns + 2
        if self._information is not None:
            in_a_round = max(in_a_round, self._information.n_sums)
        return dict.fromkeys(PARTIES, (in_a_round, self._rows.n_vectors * n_columns))

    @property
    def gradient_error(self) -> float:
        """That of the low bits which both parties drop; see `ring.join_shares`."""
        fmt, rows = self._fmt, self._rows.training
        return fmt.gradient_noise(rows.n_rows) / (self._objective.weight_of_a_row * rows.n_real)

    def is_in_range(self, point: FloatVector) -> bool:
        """See `points.Range`."""
        return self._range.contains(point)

    def is_measurable(self, point: FloatVector) -> bool:
        """See `Computation.is_measurable`."""
        if self._information is None:
            return False
        largest = MAX_PERIODS * self._information.slopes.series.period
        return self._range.contains(point) and self._range.largest_score(point) < largest

    def disclose(self, loss: float) -> float:
        """Return a loss with 6 decimals."""
        return disclosed_loss(loss)

    def open(self, plan: RoundPlan, key: RoundKey) -> SharesOpening | InformationOpening:
        """See `computation.Computation.open`."""
        if plan.information:
            return self._open_step(plan, key)
        rows = self._rows.selection(plan.batch)
        holdout = None if plan.evaluate_at is None else self._rows.holdout
        deal = self._dealing.begin(key, rows if needs_scores(plan) else None, holdout, is_last=plan.is_last)
        return SharesOpening(
            self._fmt,
            plan,
            key,
            rows=rows,
            n_padded=self._rows.training.n_rows,
            deal=deal,
            dealing=self._dealing,
            products=self._products,
            objective=self._objective,
            awaits_auc=self._by_auc and plan.batch.held_out,
        )

    def _open_step(self, plan: RoundPlan, key: RoundKey) -> InformationOpening:
        if self._information is None:
            raise RuntimeError("a step of inference in a job without inference")
        self._dealing.stop()
        masks, _ = self._dealing.masks(key)
        self._step = InformationOpening(
            plan,
            key,
            self._information,
            keys=self._keys,
            masks=masks,
            weight_of_a_row=self._objective.weight_of_a_row,
            phase=self._phase,
        )
        return self._step

    def ask(self, plan: RoundPlan, begins: Mapping[Role, BeginRound]) -> Mapping[Role, BeginRound]:
        """Send each party its shares of w_k and of the point to evaluate, and no loss.

        The losses of a training are functions of the labels, and parties have no use for them.
        """
        (key,) = {begin.key for begin in begins.values()}
        masks, holdout_masks = self._dealing.masks(key)
        weights = holdout = None
        information = self._information if plan.information else None
        if needs_scores(plan):
            fmt = self._fmt if information is None else information.slopes.fine
            weights = share_point(fmt, plan.point, masks, self._n_columns)
        if plan.evaluate_at is not None:
            holdout = share_point(self._fmt, plan.point + plan.evaluate_at, holdout_masks, self._n_columns)
        return {
            party: replace(
                begin,
                loss=None,
                fourth_bits=0 if information is None else information.slopes.fourth_bits,
                shares=RoundShares(
                    weights=None if weights is None else weights[party],
                    holdout=None if holdout is None else holdout[party],
                ),
            )
            for party, begin in begins.items()
        }

    def prepare(self) -> bool:
        """See `LabelProducts.prepare`."""
        return self._products.prepare()

    def deal(self) -> Iterator[Envelope]:
        """See `Dealing.deal` and `InformationOpening.deal`."""
        yield from self._dealing.deal() if self._step is None else self._step.deal()

    def take_rows_done(self, sender: Role, done: RowsDone) -> None:
        """See `Dealing.take_done` and `InformationOpening.take_done`."""
        if self._step is None:
            self._dealing.take_done(sender, done)
        elif done.key == self._step.key:
            self._step.take_done(sender, done)

    def add(self, sender: Role, piece: Piece, opening: Opening | None) -> None:
        """See `computation.Computation.add`. What belongs to the session is taken in whatever round it arrives."""
        if not isinstance(piece, ElementPiece):
            raise ProtocolError(f"the {sender} sent ciphertexts of {piece.kind}, but the job's protocol is shares")
        if piece.key == SESSION:
            if piece.kind is not Kind.SUMS:
                raise ProtocolError(f"the {sender} sent {piece.kind} to the coordinator")
            self._products.add(sender, piece)
        elif isinstance(opening, SharesOpening | InformationOpening):
            opening.add(sender, piece)

    def finish(self, conclusion: Conclusion, finishes: Mapping[Role, FinishJob]) -> Mapping[Role, FinishJob]:
        """Send each party its shares of the final weights, and with inference the covariance of its own weights."""
        self._dealing.stop()
        models = np.split(conclusion.point, self._n_models)
        # The host's weights of all models come first.
        parts = [split(point, self._n_columns) for point in models]
        shares = share_result(np.concatenate([part[party] for party in PARTIES for part in parts]))
        inference: dict[Role, OwnCovariance] = {}
        if self._information is not None:
            inference |= own_covariances(
                conclusion.information,
                self._n_columns,
                noise=self._information.slopes.noise(self._information.n_rows) / self._objective.weight_of_a_row,
                converged=conclusion.converged,
                intercept=self._has_intercept,
                whitened=self._whitened,
            )
        return {
            party: replace(finish, share=shares[party], inference=inference.get(party), round_loss=None)
            for party, finish in finishes.items()
        }


def _checked(job: JobConfig, party: Role, ready: Ready) -> SharesReady:
    """Return what a party has reported for this protocol.

    Raises:
        ProtocolError: a number cannot be right.
    """
    sizes = ready.shares
    if sizes is None:
        raise ProtocolError(f"the {party} is ready for another protocol than shares, which the job asks for")
    n_penalty = ready.n_columns if job.is_penalised else 0
    n_folds = 0 if job.folds is None or job.fold_by == "random" else job.folds
    is_weighted = sizes.weight_bits is not None
    wrong = {
        "number of hold-out rows": sizes.n_holdout < (job.evaluate_every is not None),
        "size of its values": max(abs(sizes.norm_bits), abs(sizes.spread_bits), abs(sizes.fourth_bits)) > MAX_NORM_BITS,
        "penalty": sizes.penalty.shape != (n_penalty,) or not (np.isfinite(sizes.penalty) & (sizes.penalty >= 0)).all(),
        "start": sizes.start.shape != (0 if job.start_from is None else ready.n_columns,)
        or not np.isfinite(sizes.start).all(),
        "size of a fold": len(sizes.fold_sizes) != n_folds
        or (n_folds > 0 and (min(sizes.fold_sizes) < 1 or sum(sizes.fold_sizes) != ready.n_train)),
        "sum of sample weights": not (math.isfinite(sizes.total_weight) and (sizes.total_weight > 0) == is_weighted),
    }
    if named := [name for name, is_wrong in wrong.items() if is_wrong]:
        raise ProtocolError(f"the {party} has reported a {named[0]} that is not possible")
    return sizes
