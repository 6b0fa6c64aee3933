"""Encryption randomness: n-th residues modulo n^2, made before they are needed."""

import secrets
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import gmpy2
from gmpy2 import mpz

from trilateral.common.paillier.keys import PublicKey

TOOTH_BITS = 8

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class NthResidues:
    """Random n-th residues h^a modulo n^2. A power r^n of a fresh r would cost about fifteen times as much.

    Damgard, Jurik and Nielsen, "A generalization of Paillier's public-key system with applications
    to electronic voting" (2010): h = (-x^2)^n mod n^2 for a random x, and a of half the bits of n.

    - p = q = 3 mod 4 makes -1 a non-square of Jacobi symbol 1 and gives the squares odd order;
      gcd(p - 1, q - 1) = 2 makes them a cyclic group. So the powers of -x^2 are the elements of
      Jacobi symbol 1, up to a small index for an unlucky x.
    - With half as many bits as n, h^a cannot be told from a random power of h by anyone who cannot
      factor n (Hastad, Schrift and Shamir 1993; Goldreich and Rosen 2003).

    Each party that encrypts draws its own x, so it need not trust an h that comes with the key. The key's owner can
    factor n. The secrecy of h and the masks protect against the owner.

    h never changes, so its powers are tabulated (Brickell, Gordon, McCurley and Wilson 1992): one
    row of 256 for each byte of a, and a draw costs one product per byte. At 2048 bits these are 128
    products and a table of 17 MiB, which is built in a fifth of a second. Both grow as the square of
    the bits or faster.
    """

    piece = 8
    """See Source."""

    def __init__(self, public_key: PublicKey) -> None:
        n_squared = public_key.n_squared
        power = draw_base(public_key)
        self._n_squared = n_squared
        self._rows: list[list[mpz]] = []
        for _ in range(comb_rows(public_key)):
            row = [mpz(1)]
            for _ in range((1 << TOOTH_BITS) - 1):
                row.append(row[-1] * power % n_squared)
            self._rows.append(row)
            power = row[-1] * power % n_squared

    def draw(self, count: int) -> list[mpz]:
        """Make `count` residues, one for each ciphertext."""
        n_rows = len(self._rows)
        exponents = secrets.token_bytes(count * n_rows)
        return [self._power(exponents[start : start + n_rows]) for start in range(0, len(exponents), n_rows)]

    def _power(self, exponent: bytes) -> mpz:
        n_squared = self._n_squared
        residue = mpz(1)
        for row, digit in zip(self._rows, exponent, strict=True):
            residue = residue * row[digit] % n_squared
        return residue


def draw_base(public_key: PublicKey) -> mpz:
    """Draw h = (-x^2)^n mod n^2; see NthResidues."""
    x = mpz(secrets.randbelow(int(public_key.n) - 1)) + 1
    return gmpy2.powmod(-x * x, public_key.n, public_key.n_squared)


def comb_rows(public_key: PublicKey) -> int:
    """Return the number of bytes of a, which has half the bits of n. The table has one row for each byte."""
    return -(-public_key.bits // (2 * TOOTH_BITS))


class Source(Protocol[T_co]):
    """Makes residues, as numbers or in another form to compute with."""

    @property
    def piece(self) -> int:
        """How many residues it makes efficiently at a time, in a few milliseconds."""
        ...

    def draw(self, count: int) -> Sequence[T_co]:
        """Make `count` residues."""
        ...


class RandomnessPool(Generic[T]):
    """Residues that are drawn while the process has nothing else to do. Each is used once."""

    def __init__(self, source: Source[T]) -> None:
        self._source = source
        self._stored: list[T] = []

    @property
    def stored(self) -> int:
        """The number of residues in the store."""
        return len(self._stored)

    def prepare(self, target: int) -> bool:
        """Draw a few if fewer than `target` are stored; return False if there was nothing to do."""
        missing = target - len(self._stored)
        if missing > 0:
            self._stored += self._source.draw(min(missing, self._source.piece))
        return missing > 0

    def take(self, count: int) -> list[T]:
        """Remove `count` residues from the store; draw the missing ones if the store has fewer."""
        stored = min(count, len(self._stored))
        taken = [self._stored.pop() for _ in range(stored)]
        if count > stored:
            taken += self._source.draw(count - stored)
        return taken


def check_plaintexts(public_key: PublicKey, plaintexts: Sequence[mpz]) -> None:
    """Raise ValueError unless each plaintext is in (-n/2, n/2]."""
    n = public_key.n
    if any(not -n < 2 * m <= n for m in plaintexts):
        raise ValueError("a plaintext is outside (-n/2, n/2]")
