"""Makes the cipher that a job names."""

from functools import lru_cache
from typing import Literal

from gmpy2 import mpz

from trilateral.common.paillier.cipher import Decryptor, PartyCipher
from trilateral.common.paillier.keys import PrivateKey, PublicKey
from trilateral.common.paillier.native.path import takes
from trilateral.common.paillier.packed import PackedCipher

CipherName = Literal["packed", "reference"]


def make_cipher(name: CipherName, public_key: PublicKey) -> PartyCipher:
    """Make a party's cipher.

    This tabulates powers of the randomness, which takes a fifth of a second for a key of 2048 bits.
    """
    if name == "packed":
        if not takes(public_key.n):
            return PackedCipher(public_key)
        # Import it here, because the kernel cannot be loaded everywhere.
        from trilateral.common.paillier.native.cipher import NativeCipher

        return NativeCipher(public_key)
    # phe has a different licence, so it is loaded only for jobs that ask for it.
    from trilateral.common.paillier.reference import ReferenceCipher

    return ReferenceCipher(public_key)


@lru_cache(maxsize=4)
def cipher_on_worker(name: CipherName, n: int) -> PartyCipher:
    """Make the cipher of a worker, once for each key: a pickled cipher becomes the result of this function."""
    return make_cipher(name, PublicKey(mpz(n)))


def make_decryptor(name: CipherName, private_key: PrivateKey) -> Decryptor:
    """Make the coordinator's side of a party's cipher."""
    if name == "packed":
        return private_key
    from trilateral.common.paillier.reference import ReferenceDecryptor

    return ReferenceDecryptor(private_key)
