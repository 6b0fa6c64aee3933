"""The version of the protocol: a call says which its caller speaks, an answer which its server does.

docs/protocol.md says when it changes. Two processes talk to each other if they speak the same, and no others do:
what a message of another version means cannot be known. A process of before there were versions says nothing.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import Role

PROTOCOL = 2
"""What this process speaks."""
PROTOCOL_KEY = "trilateral-protocol"
PACKAGE_KEY = "trilateral-version"
WAY_OUT = "install the same release of trilateral at all three"


@dataclass(frozen=True)
class Version:
    """What a process says that it is.

    Attributes:
        protocol: which version of the protocol it speaks; None if it says nothing that can be read.
        package: its release of trilateral.
    """

    protocol: int | None
    package: str = ""

    def __str__(self) -> str:
        return f"version {self.protocol} of the protocol (trilateral {self.package or 'of an unknown release'})"


@cache
def package_version() -> str:
    """Return this release of trilateral."""
    return version("trilateral")


def own_version() -> Version:
    """Return what this process is."""
    return Version(PROTOCOL, package_version())


def version_metadata() -> tuple[tuple[str, str], ...]:
    """What a call and its answer say of the version of whoever sends them."""
    own = own_version()
    return (PROTOCOL_KEY, str(own.protocol)), (PACKAGE_KEY, own.package)


def read_version(metadata: Iterable[Any] | None) -> Version:
    """Read what `version_metadata` has written, or something else that a stranger has."""
    said = {str(key): str(value) for key, value in metadata or ()}
    protocol, package = said.get(PROTOCOL_KEY, ""), said.get(PACKAGE_KEY, "")
    return Version(
        int(protocol) if re.fullmatch("[1-9][0-9]{0,5}", protocol) else None,
        package if is_release(package) else "",
    )


def is_release(text: str) -> bool:
    """Tell whether `text` can be the number of a release, which is shown to people and written to logs."""
    return re.fullmatch(r"[0-9A-Za-z.+!-]{1,40}", text) is not None


def check_caller(caller: object, server: Role, metadata: Iterable[Any] | None) -> None:
    """See that a caller speaks this server's version of the protocol.

    Raises:
        ProtocolError: it speaks another, or does not say which.
    """
    theirs, ours = read_version(metadata), own_version()
    if theirs.protocol is None:
        raise ProtocolError(f"{_older(caller)}, and the {server} speaks {ours}: {WAY_OUT}")
    if theirs.protocol != ours.protocol:
        raise ProtocolError(f"{caller} speaks {theirs}, and the {server} {ours}: {WAY_OUT}")


def check_answer(server: object, metadata: Iterable[Any] | None) -> None:
    """See that a server which has taken a call knows of versions: it has then compared them itself.

    Raises:
        ProtocolError: it does not.
    """
    if read_version(metadata).protocol is None:
        raise ProtocolError(f"{_older(server)}, and this process speaks {own_version()}: {WAY_OUT}")


def _older(who: object) -> str:
    return (
        f"{who} does not say which version of the protocol it speaks, since its release is from before there were any"
    )
