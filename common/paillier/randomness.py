"""Encryption randomness: n-th residues modulo n^2, made ahead of when they are needed."""

import secrets

import gmpy2
from gmpy2 import mpz

from common.paillier.keys import PublicKey

_TOOTH_BITS = 8
_PIECE = 8


class NthResidues:
    """Random n-th residues h^a modulo n^2, where r^n with a fresh r would cost some fifteen times as much.

    Damgard, Jurik and Nielsen, "A generalization of Paillier's public-key system with applications
    to electronic voting" (2010): h = (-x^2)^n mod n^2 for a random x, and a of half the bits of n.

    - p = q = 3 mod 4 makes -1 a non-square of Jacobi symbol 1 and gives the squares odd order;
      gcd(p - 1, q - 1) = 2 makes them a cyclic group. So the powers of -x^2 are the elements of
      Jacobi symbol 1, up to a small index for an unlucky x.
    - With half as many bits as n, h^a cannot be told from a random power of h by anyone who cannot
      factor n (Hastad, Schrift and Shamir 1993; Goldreich and Rosen 2003).

    Whoever encrypts draws its own x, so nobody has to trust an h that came with the key. The key's
    owner can factor n. What hides from it is that h is unknown to it, and the masks.

    h never changes, so its powers are tabulated (Brickell, Gordon, McCurley and Wilson 1992): one
    row of 256 for each byte of a, and a draw costs a product a byte. At 2048 bits these are 128
    products and a table of 17 MiB, built in a fifth of a second. Both grow as the square of the
    bits or faster.
    """

    def __init__(self, public_key: PublicKey) -> None:
        n, n_squared = public_key.n, public_key.n_squared
        x = mpz(secrets.randbelow(int(n) - 1)) + 1
        power = gmpy2.powmod(-x * x, n, n_squared)
        exponent_bits = -(-public_key.bits // 2)
        self._n_squared = n_squared
        self._rows: list[list[mpz]] = []
        for _ in range(-(-exponent_bits // _TOOTH_BITS)):
            row = [mpz(1)]
            for _ in range((1 << _TOOTH_BITS) - 1):
                row.append(row[-1] * power % n_squared)
            self._rows.append(row)
            power = row[-1] * power % n_squared

    def draw(self) -> mpz:
        """Make one residue, for one ciphertext."""
        n_squared = self._n_squared
        residue = mpz(1)
        for row, digit in zip(self._rows, secrets.token_bytes(len(self._rows)), strict=True):
            residue = residue * row[digit] % n_squared
        return residue


class RandomnessPool:
    """Residues drawn while there is nothing else to do. Each is handed out once."""

    def __init__(self, source: NthResidues) -> None:
        self._source = source
        self._stored: list[mpz] = []

    def prepare(self, target: int) -> bool:
        """Draw a few if fewer than `target` are stored; False when there was nothing to do."""
        missing = target - len(self._stored)
        for _ in range(min(missing, _PIECE)):
            self._stored.append(self._source.draw())
        return missing > 0

    def take(self, count: int) -> list[mpz]:
        """Remove `count` residues from the store, and draw those that it lacks."""
        return [self._stored.pop() if self._stored else self._source.draw() for _ in range(count)]
