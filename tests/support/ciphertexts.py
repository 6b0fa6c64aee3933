"""Ciphertexts for tests: from numbers to the form of the wire, and from the form to compute with to numbers."""

from collections.abc import Iterable
from typing import Any

from gmpy2 import mpz

from trilateral.common.paillier.cipher import EncryptedVector
from trilateral.common.paillier.ciphertexts import Ciphertexts


def some_ciphertexts(*numbers: int, width: int = 64) -> Ciphertexts:
    """Return these numbers as a sender would put them on the wire."""
    return Ciphertexts.of(numbers, width)


def numbers_in(cipher: Any, vector: EncryptedVector) -> list[mpz]:
    """Return the ciphertexts of a vector as they are: the ciphers let none leave without fresh randomness."""
    return list(cipher._leave(vector))


def replaced(ciphertexts: Ciphertexts, numbers: Iterable[int]) -> Ciphertexts:
    """Return other numbers in the width of a vector."""
    return Ciphertexts.of(numbers, ciphertexts.width)
