"""What a party does under the coordinator's key. It can open nothing."""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from trilateral.common.paillier.keys import PrivateKey, PublicKey
from trilateral.common.paillier.native.path import takes
from trilateral.common.paillier.packing import SlotLayout
from trilateral.common.paillier.product import PackedProduct
from trilateral.common.paillier.randomness import NthResidues, RandomnessPool, check_plaintexts


class Product(Protocol):
    """Inner products of one encrypted vector with every column of a table."""

    def update(self, ciphertexts: Sequence[mpz]) -> None:
        """Take the next ciphertexts of the vector, in order, as many as have come."""
        ...

    def result(self) -> list[mpz]:
        """Give one ciphertext a column, neither masked nor re-randomised."""
        ...


class PartyCipher(Protocol):
    """Encryption and encrypted arithmetic. Lists go in and come out element by element."""

    @property
    def public_key(self) -> PublicKey:
        """The key of the job."""
        ...

    def encrypt(self, plaintexts: Sequence[mpz]) -> list[mpz]:
        """Encrypt signed plaintexts in (-n/2, n/2], each with fresh randomness."""
        ...

    def add_plaintexts(self, ciphertexts: Sequence[mpz], plaintexts: Sequence[mpz]) -> list[mpz]:
        """Add without randomness: the sum over the old ciphertext shows the plaintext to anyone.

        Whoever holds the old one must be sent only what `rerandomise` made of the new.
        """
        ...

    def add(self, ciphertexts: Sequence[mpz], others: Sequence[mpz]) -> list[mpz]:
        """Add the plaintexts of two lists of ciphertexts."""
        ...

    def rerandomise(self, ciphertexts: Sequence[mpz]) -> list[mpz]:
        """Give ciphertexts of the same plaintexts that cannot be linked to these."""
        ...

    def start_product(self, layout: SlotLayout, columns: NDArray[np.int64]) -> Product:
        """Begin the product of a vector packed by `layout` with columns (n_samples, n_columns)."""
        ...

    def prepare(self, target: int) -> bool:
        """Make some of the randomness of the next `target` ciphertexts; False when all is there."""
        ...

    @property
    def prepared(self) -> int:
        """For how many ciphertexts there is randomness."""
        ...


class PackedCipher:
    """The PartyCipher that is fast: prepared randomness, and products over all slots at once.

    Its arithmetic is gmpy2's; `NativeCipher` is the same by the kernel, where there is one.
    """

    def __init__(self, public_key: PublicKey) -> None:
        self.public_key = public_key
        self._pool = RandomnessPool(NthResidues(public_key))

    def encrypt(self, plaintexts: Sequence[mpz]) -> list[mpz]:
        """See PartyCipher."""
        return encrypt_with(self.public_key, plaintexts, self._pool.take(len(plaintexts)))

    def add_plaintexts(self, ciphertexts: Sequence[mpz], plaintexts: Sequence[mpz]) -> list[mpz]:
        """See PartyCipher."""
        # Adding to a ciphertext and randomising a plaintext are the same product.
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
    """Multiply (1 + m n) with a factor each: an n-th residue encrypts m, a ciphertext gains m."""
    check_plaintexts(public_key, plaintexts)
    n, n_squared = public_key.n, public_key.n_squared
    return [(1 + m * n) * factor % n_squared for m, factor in zip(plaintexts, factors, strict=True)]


def make_cipher(name: Literal["packed", "reference"], public_key: PublicKey) -> PartyCipher:
    """The cipher that a job names."""
    if name == "packed":
        if not takes(public_key.n):
            return PackedCipher(public_key)
        # Only where the kernel is there to be loaded.
        from trilateral.common.paillier.native.cipher import NativeCipher

        return NativeCipher(public_key)
    # phe is loaded by those alone who ask for it: it has a licence of its own.
    from trilateral.common.paillier.reference import ReferenceCipher

    return ReferenceCipher(public_key)


def make_decrypt(name: Literal["packed", "reference"], private_key: PrivateKey) -> Callable[[Sequence[mpz]], list[mpz]]:
    """How the coordinator opens ciphertexts of the cipher that a job names; signed plaintexts."""
    if name == "packed":
        return private_key.decrypt_all
    from trilateral.common.paillier.reference import reference_decrypt

    return lambda ciphertexts: [reference_decrypt(private_key, ciphertext) for ciphertext in ciphertexts]
