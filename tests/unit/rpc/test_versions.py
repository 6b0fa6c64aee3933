"""Reads versions that a stranger may have written."""

import pytest

from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.rpc.versions import (
    PROTOCOL,
    Version,
    check_answer,
    check_caller,
    own_version,
    read_version,
    version_metadata,
)


def said(protocol: str, package: str = "1.0") -> tuple[tuple[str, str], ...]:
    return ("trilateral-role", "host"), ("trilateral-protocol", protocol), ("trilateral-version", package)


def test_a_stated_version_is_read() -> None:
    assert read_version(version_metadata()) == own_version()
    check_caller("the guest", Role.HOST, version_metadata())
    check_answer("the guest", version_metadata())


@pytest.mark.parametrize("protocol", ["", "0", "-1", "1.0", "one", "01", "1 ", "9999999", "٣"])
def test_text_that_is_not_a_number_is_not_a_version(protocol: str) -> None:
    assert read_version(said(protocol)).protocol is None
    with pytest.raises(ProtocolError, match="states no version of the protocol"):
        check_caller("the guest", Role.HOST, said(protocol))
    with pytest.raises(ProtocolError, match="states no version of the protocol"):
        check_answer("the guest", said(protocol))


@pytest.mark.parametrize("metadata", [None, (), (("trilateral-role", "host"),)])
def test_a_process_that_states_no_version_is_an_old_release(metadata: tuple[tuple[str, str], ...] | None) -> None:
    assert read_version(metadata) == Version(None)
    with pytest.raises(ProtocolError) as refused:
        check_caller("the guest", Role.HOST, metadata)
    assert str(refused.value) == (
        "the guest states no version of the protocol because its release is older than protocol versions, and the "
        f"host speaks {own_version()}: install the same release of trilateral for all three processes"
    )


@pytest.mark.parametrize("protocol", [PROTOCOL - 1, PROTOCOL + 1, 999_999])
def test_any_other_version_is_refused_with_both_named(protocol: int) -> None:
    with pytest.raises(ProtocolError) as refused:
        check_caller("the guest", Role.HOST, said(str(protocol)))
    assert f"version {protocol} of the protocol (trilateral 1.0)" in str(refused.value)
    assert str(own_version()) in str(refused.value)


@pytest.mark.parametrize("package", ["", "a b", "1.0\nERROR forged", "x" * 41, "\x1b[31m"])
def test_a_strangers_text_is_not_shown(package: str) -> None:
    read = read_version(said("7", package))
    assert read == Version(7)
    assert "of an unknown release" in str(read)
