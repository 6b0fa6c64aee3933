"""A step of inference at the coordinator: it deals for each block, and reads rounded sums.

The sums are the Fisher information, and a gradient and a loss that are finer than those of the rounds.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from trilateral.common.base.arrays import ElementVector, FloatVector
from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.protocol.messages import ElementPiece, Envelope, Evaluation, Kind, RoundKey, RowsDone
from trilateral.common.protocol.phases import Phase
from trilateral.common.protocol.shares.information import InformationPlan, parts_of
from trilateral.common.protocol.shares.session import StreamKeys
from trilateral.common.shares.information import LOSS_LIMIT, Information, deal_slopes
from trilateral.common.shares.kernels import DealerKeys
from trilateral.common.shares.ring import decode, decode_near, join_shares
from trilateral.coordinator.plan import Observation, RoundPlan
from trilateral.coordinator.shares.arriving import ArrivingVector
from trilateral.coordinator.shares.points import ScoreMasks


class InformationOpening:
    """One attempt at the step; see `computation.Opening`.

    Args:
        plan: the round.
        key: the attempt.
        information: see `InformationPlan`.
        keys: of the streams that the coordinator has in common with each party.
        masks: of the scores of this attempt.
        weight_of_a_row: mean sample weight of the training rows; 1 without sample weights.
        phase: times the dealing.
    """

    def __init__(
        self,
        plan: RoundPlan,
        key: RoundKey,
        information: InformationPlan,
        *,
        keys: Mapping[Role, StreamKeys],
        masks: ScoreMasks,
        weight_of_a_row: float,
        phase: Phase,
    ) -> None:
        self.key = key
        self._plan = plan
        self._information = information
        self._masks = masks.host, masks.guest
        self._weight_of_a_row = weight_of_a_row
        self._phase = phase
        host, guest = keys[Role.HOST], keys[Role.GUEST]
        self._keys = DealerKeys(host.session, guest.session, host.of(key), guest.of(key))
        self._own = Information.zeros(information.n_host, information.n_guest)
        self._sums = {party: ArrivingVector(party, "sums", information.n_sums) for party in PARTIES}
        self._n_dealt = 0
        """Blocks that were dealt for."""
        self._rows_done = dict.fromkeys(PARTIES, 0)

    @property
    def n_rows(self) -> int:
        """See `computation.Opening.n_rows`."""
        return self._information.n_rows

    @property
    def evaluation(self) -> Evaluation | None:
        """None: the step evaluates nothing."""
        return None

    @property
    def complete(self) -> bool:
        """Whether both parties have sent their sums."""
        return all(sums.is_complete for sums in self._sums.values())

    def add_evaluation(self, evaluation: Evaluation) -> None:
        """See `computation.Opening.add_evaluation`."""
        raise ProtocolError("the guest sent an evaluation in the step of inference")

    def add(self, sender: Role, piece: ElementPiece) -> None:
        """Take a party's sums. Ignore them if they have arrived before.

        Raises:
            ProtocolError: they are not what was asked for, or come too early.
        """
        if piece.kind is not Kind.SUMS:
            raise ProtocolError(f"the {sender} sent {piece.kind}, but {Kind.SUMS} are expected")
        if self._n_dealt < self._information.n_blocks:
            raise ProtocolError(f"the {sender} sent its sums before all rows of the round were dealt")
        self._sums[sender].add(piece)

    def take_done(self, sender: Role, done: RowsDone) -> None:
        """Learn for how many rows a party needs no more.

        Raises:
            ProtocolError: nothing was dealt for so many rows.
        """
        n_dealt = min(self._n_dealt * self._information.block_rows, self.n_rows)
        if done.n_rows > n_dealt:
            raise ProtocolError(
                f"the {sender} has used {done.n_rows} dealt rows of round {done.key.round}, but {n_dealt} were dealt"
            )
        self._rows_done[sender] = max(self._rows_done[sender], done.n_rows)

    def deal(self) -> Iterator[Envelope]:
        """Deal block by block, for both parties at once, as far as both have room."""
        information = self._information
        while self._n_dealt < information.n_blocks:
            rows = information.block(self._n_dealt)
            if rows.first - min(self._rows_done.values()) >= information.window * information.block_rows:
                return
            with self._phase("deal"):
                dealt = deal_slopes(
                    information.slopes,
                    self._keys,
                    self._masks,
                    rows.first,
                    rows.n_rows,
                    opener=information.opener,
                    sums=self._own,
                )
            self._n_dealt += 1
            for party, elements in zip(PARTIES, dealt, strict=True):
                total = information.rows.n_rows
                piece = ElementPiece(self.key, Kind.DEALT_SLOPES, rows.first, total, rows.n_rows, elements)
                yield Envelope(party, piece)

    def observation(self) -> Observation:
        """Return the information and the gradient for sample weights of mean 1, and the mean loss."""
        information, slopes, own = self._information, self._information.slopes, parts_of(self._own)
        ends = np.cumsum([len(part) for part in own])[:-1]
        parts = [np.split(self._sums[party].elements, ends) for party in PARTIES]
        values, gradient, entropy = (
            join_shares(host, guest, of_dealer, drop)
            for host, guest, of_dealer, drop in zip(*parts, own, information.drops, strict=True)
        )
        per_row = self._weight_of_a_row
        of_information, of_gradient = (
            decode(each, bits) / per_row for each, bits in ((values, slopes.sum_bits), (gradient, slopes.gradient_bits))
        )
        return Observation(self._loss(entropy, of_gradient), of_gradient, information=of_information)

    def _loss(self, entropy: ElementVector, gradient: FloatVector) -> float:
        """Return the mean loss, from the sum of the entropies modulo what the rounds know of it.

        Args:
            entropy: the sum of H, shape (1,).
            gradient: of the sum of the losses.
        """
        slopes, fmt = self._information.slopes, self._information.slopes.fmt
        n_real, per_row = self._information.rows.training.n_real, self._weight_of_a_row
        expected = self._plan.reached or 0.0
        total = n_real * per_row
        rest = float(self._plan.point @ gradient) / n_real
        constant = slopes.constant_entropy(total, 0 if fmt.weighted else self.n_rows - n_real)
        (found,) = decode_near(entropy, slopes.entropy_bits + fmt.f_c, np.array([(expected - rest) * total - constant]))
        loss = (found + constant) / total + rest
        # Further away, the sum may have wrapped around.
        return float(loss) if abs(loss - expected) < LOSS_LIMIT / 2 else expected
