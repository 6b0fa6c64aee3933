"""Addresses of the form ``host:port``, with an IPv6 host in brackets."""

import ipaddress


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of an address, an IPv6 host without its brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, which no other can reach under this name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def join_address(host: str, port: int) -> str:
    """Return the address of a host, given without brackets, and a port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
