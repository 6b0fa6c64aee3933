"""Two processes never choose the same port."""

import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from trilateral.common.base.errors import ConfigError
from trilateral.common.trial import ports
from trilateral.common.trial.ports import PORTS, free_address, lock_address

CHOOSE = """
import sys
from trilateral.common.trial.ports import free_address
print(free_address(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def two_ports(monkeypatch: pytest.MonkeyPatch) -> Iterator[range]:
    """Two neighbouring ports that nothing uses, as the only ones to choose from."""
    first = int(free_address().rpartition(":")[2])
    while not lock_address(f"127.0.0.1:{first + 1}"):
        first = int(free_address().rpartition(":")[2])
    monkeypatch.setattr(ports, "PORTS", range(first, first + 2))
    ports._candidates.cache_clear()
    yield ports.PORTS
    ports._candidates.cache_clear()


def test_linux_does_not_hand_out_these_ports_by_default() -> None:
    lowest, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    if int(lowest) != 32768:
        pytest.skip("this machine does not hand out the default ports")
    assert max(PORTS) < int(lowest)


def test_a_process_gets_each_address_once() -> None:
    addresses = [free_address() for _ in range(50)]
    assert len(set(addresses)) == 50


def test_an_address_belongs_to_the_process_that_chose_it_until_that_ends() -> None:
    command = [sys.executable, "-c", CHOOSE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert not lock_address(address)
        process.communicate()
    assert lock_address(address)


def test_a_port_on_which_something_listens_is_not_chosen(two_ports: range) -> None:
    with socket.create_server(("127.0.0.1", two_ports[0])):
        assert {free_address() for _ in range(3)} == {f"127.0.0.1:{two_ports[1]}"}


def test_without_a_temporary_folder_the_error_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    ports._lock_file.cache_clear()
    with pytest.raises(ConfigError, match="cannot reserve ports with the temporary file trilateral-ports-"):
        free_address()


def test_without_a_free_port_the_error_says_so(two_ports: range) -> None:
    with (
        socket.create_server(("127.0.0.1", two_ports[0])),
        socket.create_server(("127.0.0.1", two_ports[1])),
        pytest.raises(ConfigError, match=f"all ports from {two_ports[0]} to {two_ports[1]} are in use"),
    ):
        free_address()
