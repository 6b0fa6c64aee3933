"""Encryption of what a journal keeps about jobs, under a key that is not in the state folder.

AES-256 in GCM. Each job has its own key, derived from the file's by HKDF-SHA256 with the job's ID as salt, and each
value has a random nonce of 96 bits. A job has some ten thousand values, far below the 2^32 at which random nonces under
one key become a risk (NIST SP 800-38D, section 8.3). The additional data are the value's place, so a value that is
moved to another place cannot be decrypted there. An older value of the same place still can.
"""

import re
import secrets
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from trilateral.common.base.errors import ConfigError
from trilateral.common.rpc.certificates import read_file

KEY_BYTES = 32
_NONCE_BYTES = 12
_MAX_JOBS = 64
"""How many jobs' derived keys are kept."""


class Sealer:
    """Seals values for their places in a journal.

    Args:
        key: `KEY_BYTES` random bytes.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._cipher = lru_cache(_MAX_JOBS)(self._derive)

    def _derive(self, job_id: bytes) -> AESGCM:
        return AESGCM(HKDF(SHA256(), KEY_BYTES, salt=job_id, info=b"trilateral journal").derive(self._key))

    def seal(self, content: bytes, job_id: bytes, place: str) -> bytes:
        """Encrypt a value of a job.

        Args:
            content: the value.
            job_id: the job's ID in the journal.
            place: what the value is, unique within the job.
        """
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher(job_id).encrypt(nonce, content, place.encode())

    def unseal(self, sealed: bytes, job_id: bytes, place: str) -> bytes:
        """Decrypt a value that `seal` has encrypted for the same place.

        Raises:
            ValueError: the value was changed, is of another place, or was sealed under another key.
        """
        try:
            return self._cipher(job_id).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], place.encode())
        except InvalidTag:
            raise ValueError("a value cannot be decrypted") from None


def load_sealer(path: Path | None) -> Sealer | None:
    """Read the key of a journal.

    Args:
        path: a file with 64 hexadecimal digits; None for no encryption. Its group may read it: systemd and Kubernetes
            give a process its secrets in files of root.

    Raises:
        ConfigError: the file cannot be read, every user can read it, or it has no key.
    """
    if path is None:
        return None
    text = read_file(f"state_key: {path}", path, forbidden=0o037).strip()
    if not re.fullmatch(rb"[0-9A-Fa-f]{64}", text):
        raise ConfigError(
            f"state_key: {path} is not a key: expected 64 hexadecimal digits, as `openssl rand -hex 32` prints them"
        )
    return Sealer(bytes.fromhex(text.decode()))
