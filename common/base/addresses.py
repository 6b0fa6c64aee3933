"""Addresses of the form ``host:port``, with an IPv6 host in brackets."""


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of an address, an IPv6 host without its brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """Return the address of a host, given without brackets, and a port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
