"""The powers of a decryption by the kernel, modulo the squares of the secret primes."""

from gmpy2 import mpz

from trilateral.common.paillier.ciphertexts import Ciphertexts
from trilateral.common.paillier.native import _kernel
from trilateral.common.paillier.native.numbers import Numbers
from trilateral.common.paillier.native.threads import LANES, in_parallel


class SecretPowers:
    """c^(p-1) mod p^2 for a list of ciphertexts c. The time does not depend on the digits of p: see docs/kernel.md."""

    def __init__(self, prime: mpz, ciphertext_bytes: int) -> None:
        self._numbers = Numbers(prime, ciphertext_bytes)
        self._exponent = (prime - 1).to_bytes(-(-prime.bit_length() // 8), "big")

    def __call__(self, ciphertexts: Ciphertexts) -> list[mpz]:
        """Return the powers, each below p^2."""
        numbers = self._numbers
        bases = numbers.enter_bytes(ciphertexts.data)
        out = numbers.empty(len(bases))
        in_parallel(
            lambda start, stop: _kernel.power(numbers.constants, out[start:stop], bases[start:stop], self._exponent),
            len(bases),
            LANES,
        )
        return numbers.leave(out)
