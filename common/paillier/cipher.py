"""What the roles do under the coordinator's key: encrypt and compute at the parties, decrypt at the coordinator.

`packed`, `reference` and `native.cipher` implement these interfaces; `factory` makes the one that a job names.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from trilateral.common.paillier.keys import PublicKey
from trilateral.common.paillier.packing import SlotLayout


class Product(Protocol):
    """Inner products of one encrypted vector with every column of a table."""

    def update(self, ciphertexts: Sequence[mpz]) -> None:
        """Add the next ciphertexts of the vector, in order; a call may bring any number of them."""
        ...

    def result(self) -> list[mpz]:
        """Return one ciphertext per column, neither masked nor re-randomised."""
        ...


class PartyCipher(Protocol):
    """Encryption and encrypted arithmetic for a party, which can decrypt nothing.

    Lists go in and come out element by element.
    """

    @property
    def public_key(self) -> PublicKey:
        """The key of the job."""
        ...

    def encrypt(self, plaintexts: Sequence[mpz]) -> list[mpz]:
        """Encrypt signed plaintexts in (-n/2, n/2], each with fresh randomness."""
        ...

    def add_plaintexts(self, ciphertexts: Sequence[mpz], plaintexts: Sequence[mpz]) -> list[mpz]:
        """Add without randomness: the sum over the old ciphertext shows the plaintext to anyone.

        Whoever holds the old ciphertext must be sent only what `rerandomise` made of the new one.
        """
        ...

    def add(self, ciphertexts: Sequence[mpz], others: Sequence[mpz]) -> list[mpz]:
        """Add the plaintexts of two lists of ciphertexts."""
        ...

    def rerandomise(self, ciphertexts: Sequence[mpz]) -> list[mpz]:
        """Return ciphertexts of the same plaintexts that cannot be linked to these."""
        ...

    def start_product(self, layout: SlotLayout, columns: NDArray[np.int64]) -> Product:
        """Begin the product of a vector packed by `layout` with columns of shape (n_samples, n_columns)."""
        ...

    def prepare(self, target: int) -> bool:
        """Make some of the randomness of the next `target` ciphertexts; False when all of it is there."""
        ...

    @property
    def prepared(self) -> int:
        """For how many ciphertexts there is randomness."""
        ...


class Decryptor(Protocol):
    """Decryption for the coordinator. `keys.PrivateKey` is one."""

    @property
    def public_key(self) -> PublicKey:
        """The key of the job."""
        ...

    def decrypt_all(self, ciphertexts: Sequence[mpz]) -> list[mpz]:
        """Decrypt ciphertexts that `check_ciphertexts` accepts; signed plaintexts in (-n/2, n/2]."""
        ...
