"""Certificates for three processes of one person, and where they lie."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from trilateral.common.base.files import write_whole
from trilateral.common.base.roles import Role
from trilateral.common.trial.authority import Authority, key_pem, new_key

VALID = timedelta(days=30)
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class DevelopmentFiles:
    """A folder for each role, with what that role's process alone needs, under the names that real ones have."""

    folder: Path

    def authorities(self, role: Role) -> Path:
        """The certificate of the authority that has issued all three. Its key was never written."""
        return self.folder / role / "authorities.pem"

    def certificate(self, role: Role) -> Path:
        """The certificate of one process."""
        return self.folder / role / "certificate.pem"

    def key(self, role: Role) -> Path:
        """The private key of one process."""
        return self.folder / role / "key.pem"

    def settings(self, role: Role) -> dict[str, str]:
        """The `tls` of one process's configuration."""
        return {
            "certificate": str(self.certificate(role)),
            "key": str(self.key(role)),
            "authorities": str(self.authorities(role)),
        }

    @property
    def all(self) -> list[Path]:
        """Every file."""
        return [path for role in Role for path in (self.authorities(role), self.certificate(role), self.key(role))]


def development_name(role: str) -> str:
    """Return the name by which a development certificate is that role's."""
    return f"{role}.trilateral.test"


def write_development_files(folder: Path, more_names: Sequence[str] = ()) -> DevelopmentFiles:
    """Make an authority and three identities, in the place of what the folders have.

    Args:
        folder: for the three folders; only this user can read the files.
        more_names: that all three have beside their own, for tools that check the name they connect to.
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
