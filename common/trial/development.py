"""Development certificates for all three processes on one machine, and their files."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from trilateral.common.base.files import write_whole
from trilateral.common.base.roles import Role
from trilateral.common.trial.authority import Authority, key_pem, new_key

VALID = timedelta(days=30)
"""How long development certificates are valid."""
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
"""Names that all three certificates have besides their own."""


@dataclass(frozen=True)
class DevelopmentFiles:
    """The paths of development certificates: a folder for each role with the files that only its process needs.

    Attributes:
        folder: the parent of the three folders.
    """

    folder: Path

    def authorities(self, role: Role) -> Path:
        """Return the path of the authority's certificate, the same for all roles. Its key is never written."""
        return self.folder / role / "authorities.pem"

    def certificate(self, role: Role) -> Path:
        """Return the path of a process's certificate."""
        return self.folder / role / "certificate.pem"

    def key(self, role: Role) -> Path:
        """Return the path of a process's private key."""
        return self.folder / role / "key.pem"

    def settings(self, role: Role) -> dict[str, str]:
        """Return the `tls` settings of a process's configuration."""
        return {
            "certificate": str(self.certificate(role)),
            "key": str(self.key(role)),
            "authorities": str(self.authorities(role)),
        }

    @property
    def all(self) -> list[Path]:
        """The paths of all files."""
        return [path for role in Role for path in (self.authorities(role), self.certificate(role), self.key(role))]


def development_name(role: str) -> str:
    """Return the subject alternative name that identifies a role in a development certificate."""
    return f"{role}.trilateral.test"


def write_development_files(folder: Path, more_names: Sequence[str] = ()) -> DevelopmentFiles:
    """Make an authority and a certificate for each role, and replace existing files.

    Args:
        folder: the parent of the three folders. Only this user can read the files.
        more_names: further names in all three certificates, for tools that check the name of the address.

    Returns:
        The paths of the files.

    Raises:
        OSError: the files cannot be written.
    """
    files = DevelopmentFiles(folder)
    authority = Authority("trilateral development authority", VALID)
    for role in Role:
        write_whole(files.authorities(role), authority.pem.decode())
        key = new_key()
        write_whole(files.key(role), key_pem(key).decode())
        names = (development_name(role), *LOCAL_NAMES, *more_names)
        write_whole(files.certificate(role), authority.issue(names, key).decode())
    return files
