"""The switch of a wide-area network in user space: makes the namespaces of the hosts and carries their packets.

`tests.support.wan` runs this program. A command is a line of JSON on the standard input, and its answer is a line of
JSON on the standard output. When the input ends, which also happens when the other program is killed, the switch kills
everything in the namespaces and ends. The namespaces end with it.
"""

import contextlib
import heapq
import json
import os
import random
import selectors
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from tests.support.namespaces import in_namespace, kill_all_in, open_tun, this_namespace

DEVICE = "wan0"
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
MAX_PACKET = 65536
IP_VERSION_4 = 4
UP, DOWN = 0, 1


@dataclass(frozen=True)
class Line:
    """The connection of a host to the switch. Each packet crosses two lines: its sender's and its receiver's.

    Attributes:
        delay: Seconds that a packet takes, in each direction.
        jitter: Largest additional delay in seconds, random for each packet; packets keep their order.
        loss: Share of lost packets, in each direction.
        reordering: Share of packets that arrive later than some packets sent after them.
        bandwidth: Bit/s in each direction; None for no limit.
        queue: Bytes that may wait on a line with a limit; further packets are lost.
    """

    delay: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0
    reordering: float = 0.0
    bandwidth: float | None = None
    queue: int = 256 * 1024


class Direction:
    """One direction of a line, which computes when packets leave it."""

    def __init__(self, line: Line, chance: random.Random) -> None:
        self.line = line
        self._chance = chance
        self._free_at = self._newest = 0.0

    def leaves_at(self, now: float, n_bytes: int) -> float | None:
        """Return when a packet that enters now leaves the line; None if it is lost."""
        line = self.line
        if self._chance.random() < line.loss:
            return None
        start = max(now, self._free_at)
        if line.bandwidth is not None:
            if (start - now) * line.bandwidth / 8 + n_bytes > line.queue:
                return None
            start = self._free_at = start + 8 * n_bytes / line.bandwidth
        leaves = start + line.delay + self._chance.uniform(0.0, line.jitter)
        if self._chance.random() < line.reordering:
            return leaves + self._chance.uniform(0.001, max(0.002, line.delay))
        self._newest = max(self._newest, leaves)
        return self._newest


@dataclass
class Host:
    """A host: descriptors of its namespace and its device, and its line."""

    name: str
    namespace: int
    device: int
    directions: tuple[Direction, Direction]


class Switch:
    """Carries packets between hosts.

    Args:
        addresses: The IPv4 address of each host.
        lines: The line of each host.
        seed: Seed of random events.
    """

    def __init__(self, addresses: dict[str, str], lines: dict[str, Line], seed: int) -> None:
        self.hosts: dict[str, Host] = {}
        self.carried: Counter[tuple[str, str]] = Counter()
        self.cut: set[frozenset[str]] = set()
        self._by_address: dict[bytes, Host] = {}
        self._due: list[tuple[float, int, int, Host, Host, bytes]] = []
        self._numbers = count()
        for name, address in addresses.items():
            chances = [random.Random(f"{seed} {name} {direction}") for direction in (UP, DOWN)]
            directions = Direction(lines[name], chances[UP]), Direction(lines[name], chances[DOWN])
            host = in_namespace(None, partial(_make_host, name, address, directions))
            self.hosts[name] = host
            self._by_address[bytes(map(int, address.split(".")))] = host

    def take(self, sender: Host) -> None:
        """Read all packets that a host has sent."""
        while True:
            try:
                packet = os.read(sender.device, MAX_PACKET)
            except BlockingIOError:
                return
            # The system also sends IPv6 packets to find neighbours; they must not leave the host.
            receiver = self._by_address.get(packet[16:20]) if packet[0] >> 4 == IP_VERSION_4 else None
            if receiver is not None:
                self._enter(time.monotonic(), UP, sender, receiver, packet)

    def carry(self) -> float | None:
        """Deliver packets that are due; return the seconds until the next one is."""
        while self._due:
            now = time.monotonic()
            if self._due[0][0] > now:
                return self._due[0][0] - now
            at, _, direction, sender, receiver, packet = heapq.heappop(self._due)
            if direction == DOWN:
                self._hand_over(sender, receiver, packet)
            elif frozenset((sender.name, receiver.name)) not in self.cut:
                self._enter(at, DOWN, sender, receiver, packet)
        return None

    def _enter(self, now: float, direction: int, sender: Host, receiver: Host, packet: bytes) -> None:
        through = (sender if direction == UP else receiver).directions[direction].leaves_at(now, len(packet))
        if through is not None:
            heapq.heappush(self._due, (through, next(self._numbers), direction, sender, receiver, packet))

    def _hand_over(self, sender: Host, receiver: Host, packet: bytes) -> None:
        self.carried[sender.name, receiver.name] += len(packet)
        with contextlib.suppress(BlockingIOError):  # The queue of the host is full: the packet is lost.
            os.write(receiver.device, packet)

    def obey(self, command: dict[str, Any]) -> Any:
        """Run a command, and return its answer."""
        match command:
            case {"shape": name, "line": line}:
                for direction in self.hosts[name].directions:
                    direction.line = Line(**line)
            case {"cut": pairs}:
                self.cut.update(map(frozenset, pairs))
            case {"heal": pairs}:
                self.cut.difference_update(map(frozenset, pairs))
            case {"carried": [sender, receiver]}:
                return self.carried[sender, receiver]
            case _:
                raise ValueError(f"unknown command: {command}")
        return None


def _make_host(name: str, address: str, directions: tuple[Direction, Direction]) -> Host:
    """Set up the namespace that this thread has just entered."""
    device = open_tun(DEVICE)
    orders = ["link set lo up", f"addr add {address}/24 dev {DEVICE}", f"link set {DEVICE} up"]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(orders), text=True, check=True)
    # A client must not get the port of the server that it calls: before the server starts, it would connect to itself.
    with contextlib.suppress(OSError):  # where the settings of the system are read-only
        PORT_RANGE.write_text("32768 49151")
    return Host(name, this_namespace(), device, directions)


def main() -> None:
    """Make the network that the first argument describes in JSON, and serve until the input ends."""
    settings = json.loads(sys.argv[1])
    lines = {name: Line(**line) for name, line in settings["lines"].items()}
    switch = Switch(settings["addresses"], lines, settings["seed"])
    print(json.dumps({name: host.namespace for name, host in switch.hosts.items()}), flush=True)
    try:
        _serve(switch)
    finally:
        kill_all_in([host.namespace for host in switch.hosts.values()])


def _serve(switch: Switch) -> None:
    commands = b""
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        for host in switch.hosts.values():
            selector.register(host.device, selectors.EVENT_READ, host)
        while True:
            for key, _ in selector.select(switch.carry()):
                if key.data is not None:
                    switch.take(key.data)
                    continue
                read = os.read(key.fd, MAX_PACKET)
                if not read:
                    return
                *complete, commands = (commands + read).split(b"\n")
                for line in complete:
                    print(json.dumps(switch.obey(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
