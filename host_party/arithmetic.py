"""The host's arithmetic: [u_A] for the guest, and X_A'[d] and X_A'[h] for the coordinator."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import ClassVar

from gmpy2 import mpz

from trilateral.common.base.arrays import FloatVector, Rows
from trilateral.common.base.roles import Role
from trilateral.common.paillier.cipher import Product
from trilateral.common.paillier.fixed_point import decode, encode_wide
from trilateral.common.protocol.arithmetic import PaillierArithmetic
from trilateral.common.protocol.intake import Expected, VectorBounds
from trilateral.common.protocol.messages import BeginRound, Envelope, Kind, RoundKey, VectorPiece
from trilateral.common.protocol.scales import RoundScale


class HostArithmetic(PaillierArithmetic):
    """A's side of equations (3), (4) and (7)."""

    peer: ClassVar[Role] = Role.GUEST

    @property
    def bounds(self) -> Mapping[Role, VectorBounds]:
        """See Arithmetic: the guest answers each of the host's vectors with one of the same length."""
        longest = {Kind.RESIDUAL: self._longest, Kind.TOTAL_CHANGE: self._longest_curvature}
        return {Role.GUEST: VectorBounds(longest, early={})}

    def begin(self, asked: BeginRound) -> Iterator[Envelope | Expected[VectorPiece]]:
        """See Arithmetic: send [u_A] and the sum of its squares, and expect [4 d]; with curvature, the same for h."""
        key = asked.key
        rows = self._batches.rows(asked.batch)
        scale = self._scale(len(rows))
        scores = self._encode(self._scores(rows, self._coef), scale)
        later: list[Callable[[], object]] = []
        if asked.gradient:
            expected, prepare = self._expect_product(key, Kind.RESIDUAL, Kind.GRADIENT, rows, self._coef)
            later.append(prepare)
            yield expected
        squares = self._squares(decode(scores, scale.value_fraction_bits), scale)
        yield from self._pieces(key, Kind.SCORES, scores, scale, ahead=(Kind.SQUARES, [squares]))
        if asked.direction is not None:
            rows = self._batches.curvature_rows(asked.batch, asked.curvature_draw)
            scale = self._scale(len(rows))
            expected, prepare = self._expect_product(key, Kind.TOTAL_CHANGE, Kind.CURVATURE, rows, asked.direction)
            later.append(prepare)
            yield expected
            change = self._encode(self._scores(rows, asked.direction), scale)
            yield from self._pieces(key, Kind.SCORE_CHANGE, change, scale)
        # The guest is at work now.
        for prepare in later:
            prepare()

    def _squares(self, scores: FloatVector, scale: RoundScale) -> mpz:
        """Return sum u_A^2 plus the host's penalty: all that the loss needs from the host besides [u_A] itself.

        Raises:
            OutOfRangeError: it does not fit the slot of the loss.
        """
        total = float(scores @ scores) + 8 * scale.n_samples * self._penalty_loss()
        terms = encode_wide([total], scale.loss_fraction_bits)
        scale.check_terms(terms)
        return scale.layout.place(terms[0])

    def _expect_product(
        self, key: RoundKey, kind: Kind, answer: Kind, rows: Rows, coef: FloatVector
    ) -> tuple[Expected[VectorPiece], Callable[[], object]]:
        """Make X_A'[d] or X_A'[h] from the pieces of `kind`, and send it to the coordinator as `answer`.

        Returns:
            The vector to expect, and a function that does the part of the work for which no vector is needed. It may be
            called before the first piece comes.
        """
        scale = self._scale(len(rows))

        @cache
        def start() -> tuple[Product, list[mpz]]:
            product = self._cipher.start_product(scale.layout, self._fixed_columns(rows, scale))
            return product, self._masked(self._penalty_terms(coef, scale), scale)

        def use(piece: VectorPiece, is_last: bool) -> Iterator[Envelope]:
            product, added = start()
            self._accumulate(product, self._opened(piece))
            if is_last:
                yield from self._sealed(key, answer, product.result(), added)

        return Expected(kind, scale.layout.n_groups(scale.n_samples), use), start
