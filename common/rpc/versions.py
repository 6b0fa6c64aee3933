"""The version of the protocol, which each call and each answer states.

docs/protocol.md says when it changes. Two processes work together only if they speak the same version, because the
meaning of another version's message is unknown. A release that is older than protocol versions states nothing.
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
"""The version that this process speaks."""
PROTOCOL_KEY = "trilateral-protocol"
PACKAGE_KEY = "trilateral-version"
WAY_OUT = "install the same release of trilateral for all three processes"


@dataclass(frozen=True)
class Version:
    """The version that a process states.

    Attributes:
        protocol: version of the protocol; None if the process states nothing readable.
        package: release of trilateral; empty if unknown.
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
    """Return the version of this process."""
    return Version(PROTOCOL, package_version())


def version_metadata() -> tuple[tuple[str, str], ...]:
    """Return the metadata by which calls and answers state the version of this process."""
    own = own_version()
    return (PROTOCOL_KEY, str(own.protocol)), (PACKAGE_KEY, own.package)


def read_version(metadata: Iterable[Any] | None) -> Version:
    """Return the version that metadata state. A stranger may have written them."""
    said = {str(key): str(value) for key, value in metadata or ()}
    protocol, package = said.get(PROTOCOL_KEY, ""), said.get(PACKAGE_KEY, "")
    return Version(
        int(protocol) if re.fullmatch("[1-9][0-9]{0,5}", protocol) else None,
        package if is_release(package) else "",
    )


def is_release(text: str) -> bool:
    """Return whether `text` is safe to show and to log as the number of a release."""
    return re.fullmatch(r"[0-9A-Za-z.+!-]{1,40}", text) is not None


def check_caller(caller: object, server: Role, metadata: Iterable[Any] | None) -> None:
    """Check that a caller speaks this server's version of the protocol.

    Raises:
        ProtocolError: it speaks another version, or states none.
    """
    theirs, ours = read_version(metadata), own_version()
    if theirs.protocol is None:
        raise ProtocolError(f"{_older(caller)}, and the {server} speaks {ours}: {WAY_OUT}")
    if theirs.protocol != ours.protocol:
        raise ProtocolError(f"{caller} speaks {theirs}, and the {server} {ours}: {WAY_OUT}")


def check_answer(server: object, metadata: Iterable[Any] | None) -> None:
    """Check that the server that answered a call states its version. Every server that does has compared the versions.

    Raises:
        ProtocolError: it states no version.
    """
    if read_version(metadata).protocol is None:
        raise ProtocolError(f"{_older(server)}, and this process speaks {own_version()}: {WAY_OUT}")


def _older(who: object) -> str:
    return f"{who} states no version of the protocol because its release is older than protocol versions"
