"""The default cipher on gmpy2: prepared randomness, and products over all slots at once."""

from collections.abc import Sequence

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from trilateral.common.paillier.cipher import Product
from trilateral.common.paillier.keys import PublicKey
from trilateral.common.paillier.packing import SlotLayout
from trilateral.common.paillier.product import PackedProduct
from trilateral.common.paillier.randomness import NthResidues, RandomnessPool, check_plaintexts


class PackedCipher:
    """The PartyCipher for several samples in a ciphertext.

    gmpy2 does its arithmetic. Where the kernel runs, `NativeCipher` gives the same numbers faster.
    """

    def __init__(self, public_key: PublicKey) -> None:
        self.public_key = public_key
        self._pool = RandomnessPool(NthResidues(public_key))

    def encrypt(self, plaintexts: Sequence[mpz]) -> list[mpz]:
        """See PartyCipher."""
        return encrypt_with(self.public_key, plaintexts, self._pool.take(len(plaintexts)))

    def add_plaintexts(self, ciphertexts: Sequence[mpz], plaintexts: Sequence[mpz]) -> list[mpz]:
        """See PartyCipher."""
        # Adding to a ciphertext and encrypting with randomness are the same product.
        return encrypt_with(self.public_key, plaintexts, ciphertexts)

    def add(self, ciphertexts: Sequence[mpz], others: Sequence[mpz]) -> list[mpz]:
        """See PartyCipher."""
        n_squared = self.public_key.n_squared
        return [c * other % n_squared for c, other in zip(ciphertexts, others, strict=True)]

    def rerandomise(self, ciphertexts: Sequence[mpz]) -> list[mpz]:
        """See PartyCipher."""
        return self.add(ciphertexts, self._pool.take(len(ciphertexts)))

    def start_product(self, layout: SlotLayout, columns: NDArray[np.int64]) -> Product:
        """See PartyCipher."""
        return PackedProduct(self.public_key, layout, columns)

    def prepare(self, target: int) -> bool:
        """See PartyCipher."""
        return self._pool.prepare(target)

    @property
    def prepared(self) -> int:
        """See PartyCipher."""
        return self._pool.stored


def encrypt_with(public_key: PublicKey, plaintexts: Sequence[mpz], factors: Sequence[mpz]) -> list[mpz]:
    """Multiply each (1 + m n) by a factor. An n-th residue gives an encryption of m; a ciphertext gains m."""
    check_plaintexts(public_key, plaintexts)
    n, n_squared = public_key.n, public_key.n_squared
    return [(1 + m * n) * factor % n_squared for m, factor in zip(plaintexts, factors, strict=True)]
