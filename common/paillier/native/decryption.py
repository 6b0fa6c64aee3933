"""The powers of a decryption by the kernel, modulo the squares of the secret primes."""

import numpy as np
from gmpy2 import mpz

from trilateral.common.paillier.ciphertexts import Ciphertexts
from trilateral.common.paillier.native import _kernel
from trilateral.common.paillier.native.modulus import digits_for
from trilateral.common.paillier.native.numbers import Numbers


class SecretPowers:
    """c^(p-1) mod p^2 and c^(q-1) mod q^2 for a list of ciphertexts c. The time does not depend on p's and q's digits.

    The powers modulo p^2 and those modulo q^2 share the lanes of the kernel: see docs/kernel.md.
    """

    def __init__(self, p: mpz, q: mpz, ciphertext_bytes: int) -> None:
        bits = max(p.bit_length(), q.bit_length())
        self._numbers = [Numbers(prime, ciphertext_bytes, digits=digits_for(bits)) for prime in (p, q)]
        self._moduli = b"".join([numbers.constants for numbers in self._numbers])
        self._exponents = b"".join([(prime - 1).to_bytes(-(-bits // 8), "big") for prime in (p, q)])

    def __call__(self, ciphertexts: Ciphertexts) -> tuple[list[mpz], list[mpz]]:
        """Return the powers modulo p^2, each below p^2, and those modulo q^2."""
        of_p, of_q = self._numbers
        count = len(ciphertexts)
        bases, out = of_p.empty(2 * count), of_p.empty(2 * count)
        np.concatenate([of_p.enter_bytes(ciphertexts.data), of_q.enter_bytes(ciphertexts.data)], out=bases)
        of_p.in_parallel(
            lambda first, stop: _kernel.power(self._moduli, out, bases, self._exponents, first, stop), 2 * count
        )
        return of_p.leave(out[:count]), of_q.leave(out[count:])
