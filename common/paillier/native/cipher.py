"""The PartyCipher whose arithmetic runs in the kernel."""

from collections.abc import Sequence

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from trilateral.common.paillier.keys import PublicKey
from trilateral.common.paillier.native.numbers import Elements, Numbers
from trilateral.common.paillier.native.product import NativeProduct
from trilateral.common.paillier.native.randomness import NativeResidues
from trilateral.common.paillier.packing import SlotLayout
from trilateral.common.paillier.randomness import RandomnessPool, check_plaintexts


class NativeCipher:
    """Gives the same numbers as `packed.PackedCipher`, given the same randomness."""

    def __init__(self, public_key: PublicKey) -> None:
        self.public_key = public_key
        self._numbers = Numbers(public_key.n)
        self._pool = RandomnessPool(NativeResidues(public_key, self._numbers))

    def encrypt(self, plaintexts: Sequence[mpz]) -> list[mpz]:
        """See PartyCipher."""
        check_plaintexts(self.public_key, plaintexts)
        return self._numbers.leave(self._residues(len(plaintexts)), plaintexts)

    def add_plaintexts(self, ciphertexts: Sequence[mpz], plaintexts: Sequence[mpz]) -> list[mpz]:
        """See PartyCipher."""
        check_plaintexts(self.public_key, plaintexts)
        return self._numbers.leave(self._numbers.enter(ciphertexts), plaintexts)

    def add(self, ciphertexts: Sequence[mpz], others: Sequence[mpz]) -> list[mpz]:
        """See PartyCipher."""
        numbers = self._numbers
        return numbers.leave(numbers.multiply(numbers.enter(ciphertexts), numbers.enter(others)))

    def rerandomise(self, ciphertexts: Sequence[mpz]) -> list[mpz]:
        """See PartyCipher."""
        numbers = self._numbers
        return numbers.leave(numbers.multiply(numbers.enter(ciphertexts), self._residues(len(ciphertexts))))

    def start_product(self, layout: SlotLayout, columns: NDArray[np.int64]) -> NativeProduct:
        """See PartyCipher."""
        layout.check_fits(self.public_key)
        return NativeProduct(self._numbers, layout, columns)

    def prepare(self, target: int) -> bool:
        """See PartyCipher."""
        return self._pool.prepare(target)

    @property
    def prepared(self) -> int:
        """See PartyCipher."""
        return self._pool.stored

    def _residues(self, count: int) -> Elements:
        return np.array(self._pool.take(count)).reshape(count, self._numbers.size)
