"""A peer that has moved to another address is found as soon as its name has the new address."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, sys
from pathlib import Path
from tests.support.rpc import plaintext_server
from tests.unit.rpc.test_channel import METHOD, Slow
from trilateral.common.base.roles import Role
from trilateral.common.config.process import Limits
from trilateral.common.pb.v1.jobs_pb2 import ListJobsRequest, ListJobsResponse
from trilateral.common.process.server import bind
from trilateral.common.rpc.calls import call_peer
from trilateral.common.rpc.channel import Peer, open_channel

LIMITS = Limits(peer_timeout=15)  # gRPC itself would ask for the address again after half a minute


def name(address):
    Path("/etc/hosts").write_text(f"127.0.0.1 localhost\\n{address} moving.test\\n")


async def serving(address):
    server = plaintext_server(Role.COORDINATOR)
    server.add_generic_rpc_handlers([Slow()])
    bound = bind(server, address, None)
    await server.start()
    return server, bound.rpartition(":")[2]


async def main():
    name("127.0.0.2")
    old, port = await serving("127.0.0.2:0")
    async with open_channel(f"moving.test:{port}", None, peer_timeout=LIMITS.peer_timeout) as channel:
        peer = Peer(Role.COORDINATOR, "moving.test", channel)

        async def call():
            await call_peer(peer, Role.GUEST, METHOD, ListJobsRequest(), ListJobsResponse, limits=LIMITS)

        await call()
        await old.stop(None)
        calling = asyncio.create_task(call())
        while peer.retries < 2:  # gRPC has asked for the address, and has got the old one
            await asyncio.sleep(0.05)
        new, _ = await serving(f"127.0.0.3:{port}")
        name("127.0.0.3")
        await calling
        await new.stop(None)


asyncio.run(main())
"""


def test_a_peer_that_has_moved_is_found(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(Path("/etc/hosts").read_text())
    script = f"mount --bind {hosts} /etc/hosts || exit 77; exec {sys.executable} -c '{PROGRAM}'"
    try:
        run = subprocess.run(
            ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, timeout=110, check=False
        )
    except FileNotFoundError:
        pytest.skip("needs unshare")
    if run.returncode == 77 or "unshare" in run.stderr:
        pytest.skip("needs the right to mount a file over /etc/hosts")
    assert run.returncode == 0, run.stderr
