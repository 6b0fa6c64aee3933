"""Encryption randomness: n-th residues modulo n^2, made before they are needed."""

import secrets
from collections.abc import Sequence
from typing import Any, Protocol

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from trilateral.common.paillier.keys import PublicKey

Residues = NDArray[Any]
"""One residue in a row, in the form of their source."""

TEETH = 10
"""Bits of an index into a table of the comb."""
TABLES = 8
"""Tables of the comb. Twice as many would halve the squarings of a draw, which are few, and double the memory."""


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

    h never changes, so its powers are tabulated, as a comb (Lim and Lee 1994). The bits of a are dealt to `TEETH`
    teeth, `TABLES` tables and s steps: bit s (TABLES i + t) + j of a is bit i of the index into table t at step j.

        a = sum_j 2^j sum_t sum_i bit_i(index_jt) 2^(s (TABLES i + t)),
        table_t[index] = prod_i h^(bit_i(index) 2^(s (TABLES i + t)))

    So a draw costs a product for each step and table, and a squaring for each step but one. At 2048 bits these are 103
    products and 12 squarings, and the tables take 5 MiB. The indices are drawn in place of a: both are uniform.
    """

    piece = 8
    """See Source."""

    def __init__(self, public_key: PublicKey) -> None:
        n_squared = public_key.n_squared
        self._n_squared = n_squared
        self._steps = comb_steps(public_key)
        bases = [gmpy2.powmod(draw_root(public_key), public_key.n, n_squared)]
        while len(bases) < TEETH * TABLES:
            bases.append(gmpy2.powmod(bases[-1], 1 << self._steps, n_squared))
        self._comb: list[list[mpz]] = []
        for table in range(TABLES):
            powers = [mpz(1)]
            for base in bases[table::TABLES]:
                powers += [power * base % n_squared for power in powers]
            self._comb.append(powers)

    def empty(self, count: int) -> Residues:
        """See Source."""
        return np.zeros(count, dtype=object)

    def draw(self, out: Residues) -> None:
        """See Source."""
        n_squared = self._n_squared
        for place, steps in enumerate(draw_indices(len(out), self._steps).tolist()):
            residue = mpz(1)
            for indices in steps:
                residue = residue * residue % n_squared
                for powers, index in zip(self._comb, indices, strict=True):
                    residue = residue * powers[index] % n_squared
            out[place] = residue


def draw_root(public_key: PublicKey) -> mpz:
    """Draw -x^2 mod n^2, of which h is the n-th power; see NthResidues."""
    x = mpz(secrets.randbelow(int(public_key.n) - 1)) + 1
    return -x * x % public_key.n_squared


def comb_steps(public_key: PublicKey) -> int:
    """Return the steps of a draw: as few as give a at least half the bits of n."""
    return -(-public_key.bits // (2 * TEETH * TABLES))


def draw_indices(count: int, steps: int) -> NDArray[np.uint16]:
    """Draw the indices of `count` residues, shape (count, steps, TABLES); the step of the highest bits comes first."""
    random = np.frombuffer(secrets.token_bytes(2 * count * steps * TABLES), dtype="<u2")
    return (random & (1 << TEETH) - 1).astype(np.uint16).reshape(count, steps, TABLES)


class Source(Protocol):
    """Makes residues, as numbers or in another form to compute with."""

    @property
    def piece(self) -> int:
        """How many residues it makes efficiently at a time, in a few milliseconds."""
        ...

    def empty(self, count: int) -> Residues:
        """Return an array for `count` residues that are yet to be drawn."""
        ...

    def draw(self, out: Residues) -> None:
        """Fill an array with fresh residues."""
        ...


class RandomnessPool:
    """Residues that are drawn while the process has nothing else to do. Each is used once, and leaves no copy here."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._residues = source.empty(0)
        self.stored = 0
        """The number of residues in the store, which are the first of `_residues`."""

    def prepare(self, target: int) -> bool:
        """Draw a few if fewer than `target` are stored; return False if there was nothing to do."""
        stored = self.stored
        if target <= stored:
            return False
        if target > len(self._residues):
            longer = self._source.empty(target)
            longer[:stored] = self._residues[:stored]
            self._residues[:] = 0
            self._residues = longer
        stop = min(target, stored + self._source.piece)
        self._source.draw(self._residues[stored:stop])
        self.stored = stop
        return True

    def take(self, count: int) -> Residues:
        """Remove `count` residues from the store; draw the missing ones if the store has fewer."""
        taken = self._source.empty(count)
        n_stored = min(count, self.stored)
        self.stored -= n_stored
        stored = self._residues[self.stored : self.stored + n_stored]
        taken[:n_stored] = stored
        stored[:] = 0
        if count > n_stored:
            self._source.draw(taken[n_stored:])
        return taken


def check_plaintexts(public_key: PublicKey, plaintexts: Sequence[mpz]) -> None:
    """Raise ValueError unless each plaintext is in (-n/2, n/2]."""
    n = public_key.n
    if any(not -n < 2 * m <= n for m in plaintexts):
        raise ValueError("a plaintext is outside (-n/2, n/2]")
