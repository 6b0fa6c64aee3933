"""A cipher that hides nothing, for tests that ask when messages come and not what is in them.

Its ciphertexts are 1 + m n, which any key of that modulus opens: Paillier with 1 in the place of the randomness. So
nothing is raised to a power, and a training takes hundredths of a second.
"""

import numpy as np
from gmpy2 import mpz

from tests.support.three_machines import Workshop
from trilateral.common.base.arrays import FloatVector
from trilateral.common.paillier.cipher import EncryptedVector, Product
from trilateral.common.paillier.ciphertexts import Ciphertexts
from trilateral.common.paillier.exponents import ColumnBounds, Exponents
from trilateral.common.paillier.keys import PublicKey
from trilateral.common.paillier.packed import PackedCipher
from trilateral.common.paillier.packing import SlotLayout
from trilateral.common.paillier.randomness import RandomnessPool, Residues
from trilateral.common.protocol.evaluation import HoldoutMetrics, measure


class _Ones(RandomnessPool):
    """In the place of randomness."""

    stored = 0

    def __init__(self) -> None:
        pass

    def take(self, count: int) -> Residues:
        return np.array([mpz(1)] * count, dtype=object)

    def prepare(self, target: int) -> bool:
        return False


class TransparentCipher(PackedCipher):
    """A `PartyCipher` for one sample in a ciphertext."""

    def __init__(self, public_key: PublicKey) -> None:
        self.public_key = public_key
        self._pool = _Ones()

    def start_product(self, layout: SlotLayout, columns: Exponents, bounds: ColumnBounds | None = None) -> Product:
        assert layout.slots == 1
        return _TransparentProduct(self.public_key, columns)


class _TransparentProduct:
    def __init__(self, public_key: PublicKey, columns: Exponents) -> None:
        self._key = public_key
        self._columns = columns[:].astype(object)
        self._plaintexts: list[mpz] = []

    def update(self, vector: EncryptedVector) -> None:
        self._plaintexts += [c // self._key.n for c in vector.elements]

    def result(self) -> EncryptedVector:
        n, totals = self._key.n, np.array(self._plaintexts, dtype=object) @ self._columns
        return EncryptedVector([1 + mpz(total) % n * n for total in totals])


class _TransparentDecryptor:
    def __init__(self, public_key: PublicKey) -> None:
        self.public_key = public_key

    def decrypt_all(self, ciphertexts: Ciphertexts) -> list[mpz]:
        n = self.public_key.n
        return [(m := c // n) - n * (2 * m > n) for c in ciphertexts]


_measured: dict[bytes, HoldoutMetrics] = {}


def _measure_once(scores: FloatVector, labels: FloatVector) -> HoldoutMetrics:
    content = scores.tobytes() + labels.tobytes()
    if content not in _measured:
        _measured[content] = measure(scores, labels)
    return _measured[content]


TRANSPARENT = Workshop(
    make_cipher=lambda name, public_key: TransparentCipher(public_key),
    make_decryptor=lambda name, private_key: _TransparentDecryptor(private_key.public_key),
    measure=_measure_once,
)
"""Its machines encrypt nothing, and measure the same scores once."""
