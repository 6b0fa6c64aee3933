"""The default cipher on gmpy2: prepared randomness, and products over all slots at once."""

from collections.abc import Callable, Sequence

from gmpy2 import mpz

from trilateral.common.paillier.cipher import EncryptedVector, PartyCipher, Product
from trilateral.common.paillier.ciphertexts import Ciphertexts
from trilateral.common.paillier.exponents import ColumnBounds, Exponents
from trilateral.common.paillier.keys import PublicKey, check_ciphertexts
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

    def __reduce__(self) -> tuple[Callable[..., PartyCipher], tuple[str, int]]:
        """See PartyCipher."""
        from trilateral.common.paillier.factory import cipher_on_worker  # It imports this module.

        return cipher_on_worker, ("packed", int(self.public_key.n))

    def open(self, ciphertexts: Ciphertexts) -> EncryptedVector:
        """See PartyCipher."""
        check_ciphertexts(self.public_key, ciphertexts)
        return EncryptedVector(list(ciphertexts))

    def encrypt(self, plaintexts: Sequence[mpz]) -> Ciphertexts:
        """See PartyCipher."""
        return self._leave(self._residues(len(plaintexts)), plaintexts)

    def add_plaintexts(self, vector: EncryptedVector, plaintexts: Sequence[mpz]) -> EncryptedVector:
        """See PartyCipher."""
        # Adding to a ciphertext and encrypting with randomness are the same product.
        return EncryptedVector(encrypt_with(self.public_key, plaintexts, vector.elements))

    def add(self, vector: EncryptedVector, other: EncryptedVector) -> EncryptedVector:
        """See PartyCipher."""
        n_squared = self.public_key.n_squared
        return EncryptedVector([c * d % n_squared for c, d in zip(vector.elements, other.elements, strict=True)])

    def rerandomise(self, vector: EncryptedVector, plaintexts: Sequence[mpz] | None = None) -> Ciphertexts:
        """See PartyCipher."""
        return self._leave(self.add(vector, self._residues(len(vector))), plaintexts)

    def start_product(self, layout: SlotLayout, columns: Exponents, bounds: ColumnBounds | None = None) -> Product:
        """See PartyCipher."""
        return PackedProduct(self.public_key, layout, columns, bounds)

    def prepare(self, target: int) -> bool:
        """See PartyCipher."""
        return self._pool.prepare(target)

    @property
    def prepared(self) -> int:
        """See PartyCipher."""
        return self._pool.stored

    def _residues(self, count: int) -> EncryptedVector:
        return EncryptedVector(self._pool.take(count))

    def _leave(self, vector: EncryptedVector, plaintexts: Sequence[mpz] | None = None) -> Ciphertexts:
        if plaintexts is not None:
            vector = self.add_plaintexts(vector, plaintexts)
        return Ciphertexts.of(vector.elements, self.public_key.ciphertext_bytes)


def encrypt_with(public_key: PublicKey, plaintexts: Sequence[mpz], factors: Sequence[mpz]) -> list[mpz]:
    """Multiply each (1 + m n) by a factor. An n-th residue gives an encryption of m; a ciphertext gains m."""
    check_plaintexts(public_key, plaintexts)
    n, n_squared = public_key.n, public_key.n_squared
    return [(1 + m * n) * factor % n_squared for m, factor in zip(plaintexts, factors, strict=True)]
