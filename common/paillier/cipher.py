"""The operations under the coordinator's key: the parties encrypt and compute, and the coordinator decrypts.

`packed`, `reference` and `native.cipher` implement these interfaces; `factory` makes the one that a job names.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from gmpy2 import mpz

from trilateral.common.paillier.ciphertexts import Ciphertexts
from trilateral.common.paillier.exponents import ColumnBounds, Exponents
from trilateral.common.paillier.keys import PublicKey
from trilateral.common.paillier.packing import SlotLayout


class EncryptedVector:
    """Ciphertexts in the form that a party's cipher computes with. Each of them is safe to compute with.

    They come from `PartyCipher.open`, which checks them, and from arithmetic. They have no bytes to send: what leaves a
    party is `Ciphertexts`, which only `encrypt` and `rerandomise` make, with fresh randomness.

    Args:
        elements: the form, which only the cipher that made it knows. It has a length and slices.
    """

    __slots__ = ("elements",)

    def __init__(self, elements: Any) -> None:
        self.elements = elements

    def __len__(self) -> int:
        return len(self.elements)

    def __getitem__(self, span: slice) -> "EncryptedVector":
        return EncryptedVector(self.elements[span])


class Product(Protocol):
    """Inner products of one encrypted vector with every column of a table."""

    def update(self, vector: EncryptedVector) -> None:
        """Add the next ciphertexts of the vector, in order; a call may bring any number of them."""
        ...

    def result(self) -> EncryptedVector:
        """Return one ciphertext per column, neither masked nor re-randomised."""
        ...


class PartyCipher(Protocol):
    """Encryption and encrypted arithmetic for a party, which can decrypt nothing.

    Pickled, it is the key alone: whoever unpickles it draws randomness of its own, and that of this process stays here.

    Methods with two vectors, or with a vector and plaintexts, work element by element; both have the same length.
    """

    @property
    def public_key(self) -> PublicKey:
        """The key of the job."""
        ...

    def open(self, ciphertexts: Ciphertexts) -> EncryptedVector:
        """Check ciphertexts that may come from anyone, and take them into the form to compute with.

        Raises:
            BadCiphertextError: a ciphertext is not a number in [1, n^2) that is coprime to n.
        """
        ...

    def encrypt(self, plaintexts: Sequence[mpz]) -> Ciphertexts:
        """Encrypt signed plaintexts in (-n/2, n/2], each with fresh randomness."""
        ...

    def add_plaintexts(self, vector: EncryptedVector, plaintexts: Sequence[mpz]) -> EncryptedVector:
        """Add without fresh randomness: the new ciphertext divided by the old one shows the plaintext to anyone."""
        ...

    def add(self, vector: EncryptedVector, other: EncryptedVector) -> EncryptedVector:
        """Add the plaintexts of two vectors."""
        ...

    def rerandomise(self, vector: EncryptedVector, plaintexts: Sequence[mpz] | None = None) -> Ciphertexts:
        """Return ciphertexts of the same plaintexts, or of their sums with others, that cannot be linked to these."""
        ...

    def start_product(self, layout: SlotLayout, columns: Exponents, bounds: ColumnBounds | None = None) -> Product:
        """Begin the product of a vector with columns in clear.

        Args:
            layout: how the vector is packed.
            columns: shape (n_samples, n_columns), values below 2^62 in size.
            bounds: of the values; None to find them, for which `columns` must be an array.

        Raises:
            ValueError: the key has no room for the layout, or these are not such columns.
        """
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

    def decrypt_all(self, ciphertexts: Ciphertexts) -> list[mpz]:
        """Decrypt ciphertexts that `check_ciphertexts` accepts, to signed plaintexts in (-n/2, n/2]."""
        ...
