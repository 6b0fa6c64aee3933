"""Addresses are taken apart and put together again."""

import pytest

from trilateral.common.base.addresses import join_address, split_address


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("host.example.org:50051", "host.example.org", 50051),
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("[::1]:50051", "::1", 50051),
        ("[2001:db8::7]:1", "2001:db8::7", 1),
    ],
)
def test_an_address_has_a_host_and_a_port(address: str, host: str, port: int) -> None:
    assert split_address(address) == (host, port)
    assert join_address(host, port) == address
