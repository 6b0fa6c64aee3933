"""The PartyCipher whose arithmetic runs in the kernel."""

from collections.abc import Callable, Sequence

from gmpy2 import mpz

from trilateral.common.paillier.cipher import EncryptedVector, PartyCipher
from trilateral.common.paillier.ciphertexts import Ciphertexts
from trilateral.common.paillier.exponents import ColumnBounds, Exponents
from trilateral.common.paillier.keys import PublicKey, check_coprime, check_range
from trilateral.common.paillier.native.numbers import Numbers
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

    def __reduce__(self) -> tuple[Callable[..., PartyCipher], tuple[str, int]]:
        """See PartyCipher."""
        from trilateral.common.paillier.factory import cipher_on_worker  # It imports this module.

        return cipher_on_worker, ("packed", int(self.public_key.n))

    def open(self, ciphertexts: Ciphertexts) -> EncryptedVector:
        """See PartyCipher."""
        check_range(self.public_key, ciphertexts)
        elements = self._numbers.enter_bytes(ciphertexts.data)
        check_coprime(self.public_key, *self._numbers.leave(self._numbers.product(elements)))
        return EncryptedVector(elements)

    def encrypt(self, plaintexts: Sequence[mpz]) -> Ciphertexts:
        """See PartyCipher."""
        return self._leave(self._residues(len(plaintexts)), plaintexts)

    def add_plaintexts(self, vector: EncryptedVector, plaintexts: Sequence[mpz]) -> EncryptedVector:
        """See PartyCipher."""
        check_plaintexts(self.public_key, plaintexts)
        return EncryptedVector(self._numbers.add_plaintexts(vector.elements, plaintexts))

    def add(self, vector: EncryptedVector, other: EncryptedVector) -> EncryptedVector:
        """See PartyCipher."""
        return EncryptedVector(self._numbers.multiply(vector.elements, other.elements))

    def rerandomise(self, vector: EncryptedVector, plaintexts: Sequence[mpz] | None = None) -> Ciphertexts:
        """See PartyCipher."""
        return self._leave(self.add(vector, self._residues(len(vector))), plaintexts)

    def start_product(
        self, layout: SlotLayout, columns: Exponents, bounds: ColumnBounds | None = None
    ) -> NativeProduct:
        """See PartyCipher."""
        layout.check_fits(self.public_key)
        return NativeProduct(self._numbers, layout, columns, bounds)

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
            check_plaintexts(self.public_key, plaintexts)
        return Ciphertexts(self._numbers.leave_bytes(vector.elements, plaintexts), self._numbers.width)
