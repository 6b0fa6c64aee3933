"""The operations under the coordinator's key: the parties encrypt and compute, and the coordinator decrypts.

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

    Methods with lists work element by element.
    """

    @property
    def public_key(self) -> PublicKey:
        """The key of the job."""
        ...

    def encrypt(self, plaintexts: Sequence[mpz]) -> list[mpz]:
        """Encrypt signed plaintexts in (-n/2, n/2], each with fresh randomness."""
        ...

    def add_plaintexts(self, ciphertexts: Sequence[mpz], plaintexts: Sequence[mpz]) -> list[mpz]:
        """Add without fresh randomness: the new ciphertext divided by the old one shows the plaintext to anyone.

        To a role that holds the old ciphertext, send only the result of `rerandomise` on the new one.
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
        """Make some of the randomness for the next `target` ciphertexts; return False if all of it is ready."""
        ...

    @property
    def prepared(self) -> int:
        """The number of ciphertexts for which randomness is ready."""
        ...


class Decryptor(Protocol):
    """Decryption for the coordinator. `keys.PrivateKey` implements it."""

    @property
    def public_key(self) -> PublicKey:
        """The key of the job."""
        ...

    def decrypt_all(self, ciphertexts: Sequence[mpz]) -> list[mpz]:
        """Decrypt ciphertexts that `check_ciphertexts` accepts, to signed plaintexts in (-n/2, n/2]."""
        ...
