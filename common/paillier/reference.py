"""The same ciphers through python-paillier (phe), with one sample in a ciphertext: an independent check.

All numbers are integers, so phe's exponents stay 0 and reveal nothing.
"""

from collections.abc import Callable, Sequence

from gmpy2 import mpz
from phe import EncodedNumber, EncryptedNumber, PaillierPrivateKey, PaillierPublicKey

from trilateral.common.paillier.cipher import EncryptedVector, PartyCipher, Product
from trilateral.common.paillier.ciphertexts import Ciphertexts
from trilateral.common.paillier.exponents import ColumnBounds, Exponents
from trilateral.common.paillier.keys import PrivateKey, PublicKey, check_ciphertexts
from trilateral.common.paillier.packing import SlotLayout


class ReferenceCipher:
    """The PartyCipher that consists of phe's own operations. It is slow."""

    def __init__(self, public_key: PublicKey) -> None:
        self.public_key = public_key
        self._phe_key = PaillierPublicKey(int(public_key.n))

    def __reduce__(self) -> tuple[Callable[..., PartyCipher], tuple[str, int]]:
        """See PartyCipher."""
        from trilateral.common.paillier.factory import cipher_on_worker  # It imports this module.

        return cipher_on_worker, ("reference", int(self.public_key.n))

    def open(self, ciphertexts: Ciphertexts) -> EncryptedVector:
        """See PartyCipher."""
        check_ciphertexts(self.public_key, ciphertexts)
        return EncryptedVector([EncryptedNumber(self._phe_key, int(c)) for c in ciphertexts])

    def encrypt(self, plaintexts: Sequence[mpz]) -> Ciphertexts:
        """See PartyCipher."""
        return self._leave(EncryptedVector([self._phe_key.encrypt(int(m)) for m in plaintexts]))

    def add_plaintexts(self, vector: EncryptedVector, plaintexts: Sequence[mpz]) -> EncryptedVector:
        """See PartyCipher."""
        return EncryptedVector([c + int(m) for c, m in zip(vector.elements, plaintexts, strict=True)])

    def add(self, vector: EncryptedVector, other: EncryptedVector) -> EncryptedVector:
        """See PartyCipher."""
        return EncryptedVector([c + d for c, d in zip(vector.elements, other.elements, strict=True)])

    def rerandomise(self, vector: EncryptedVector, plaintexts: Sequence[mpz] | None = None) -> Ciphertexts:
        """See PartyCipher."""
        if plaintexts is not None:
            vector = self.add_plaintexts(vector, plaintexts)
        # A number of its own for each: phe re-randomises the object that it is called on.
        fresh = [EncryptedNumber(self._phe_key, _value(number)) for number in vector.elements]
        for number in fresh:
            number.obfuscate()
        return self._leave(EncryptedVector(fresh))

    def start_product(self, layout: SlotLayout, columns: Exponents, bounds: ColumnBounds | None = None) -> Product:
        """See PartyCipher; ValueError unless the layout has one slot."""
        if layout.slots != 1:
            raise ValueError("the reference cipher holds one sample per ciphertext: use a layout of one slot")
        layout.check_fits(self.public_key)
        return _ReferenceProduct(self._phe_key, columns)

    def prepare(self, target: int) -> bool:
        """Do nothing: phe draws its randomness when it encrypts."""
        return False

    @property
    def prepared(self) -> int:
        """See PartyCipher."""
        return 0

    def _leave(self, vector: EncryptedVector) -> Ciphertexts:
        return Ciphertexts.of(map(_value, vector.elements), self.public_key.ciphertext_bytes)


class _ReferenceProduct:
    """Computes sum_i c_i x_ij with phe's operators."""

    def __init__(self, phe_key: PaillierPublicKey, columns: Exponents) -> None:
        self._columns = columns
        self._n_samples, n_columns = columns.shape
        self._n_seen = 0
        self._sums = [EncryptedNumber(phe_key, 1) for _ in range(n_columns)]

    def update(self, vector: EncryptedVector) -> None:
        """See Product."""
        stop = self._n_seen + len(vector)
        if stop > self._n_samples:
            raise ValueError(f"the vector has {self._n_samples} ciphertexts, but more were given")
        for number, row in zip(vector.elements, self._columns[self._n_seen : stop].tolist(), strict=True):
            self._sums = [total + number * x for total, x in zip(self._sums, row, strict=True)]
        self._n_seen = stop

    def result(self) -> EncryptedVector:
        """See Product."""
        if self._n_seen < self._n_samples:
            raise ValueError(f"{self._n_samples - self._n_seen} ciphertexts of the vector are missing")
        return EncryptedVector(self._sums)


class ReferenceDecryptor:
    """The Decryptor that consists of phe's own operations. It is slow."""

    def __init__(self, private_key: PrivateKey) -> None:
        self.public_key = private_key.public_key
        self._phe_public = PaillierPublicKey(int(private_key.public_key.n))
        self._phe_private = PaillierPrivateKey(self._phe_public, int(private_key.p), int(private_key.q))

    def decrypt_all(self, ciphertexts: Ciphertexts) -> list[mpz]:
        """See Decryptor.

        Raises:
            OverflowError: a plaintext is beyond n/3 in size.
        """
        return [self._decrypt(ciphertext) for ciphertext in ciphertexts]

    def _decrypt(self, ciphertext: mpz) -> mpz:
        number = EncryptedNumber(self._phe_public, int(ciphertext))
        encoded: EncodedNumber = self._phe_private.decrypt_encoded(number)
        return mpz(encoded.decode())


def _value(number: EncryptedNumber) -> int:
    """Return the ciphertext as it is: by default, phe re-randomises it on the way out."""
    return int(number.ciphertext(be_secure=False))
