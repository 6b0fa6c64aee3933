"""Threads share a few heaps, and memory stays in the process."""

import asyncio
import re
import resource
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.support.three_processes import write_configs
from tests.support.waiting import eventually_in_thread
from trilateral.common.base.errors import PeerError
from trilateral.common.base.roles import Role
from trilateral.common.config.process import ProcessConfig
from trilateral.common.process.health import check_health
from trilateral.common.process.memory import ARENAS
from trilateral.common.trial.localhost import free_addresses, process_settings

PROGRAM = """
import ctypes, sys, threading
from trilateral.common.process.memory import share_heaps
if sys.argv[1] == "shared":
    share_heaps()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
libc.malloc.restype = ctypes.c_void_p
there, go = threading.Barrier(9), threading.Event()

def hold():
    libc.malloc(1000)
    there.wait()
    go.wait()

threads = [threading.Thread(target=hold) for _ in range(8)]
for thread in threads:
    thread.start()
there.wait()
libc.malloc_info(0, out := ctypes.c_void_p(libc.fdopen(1, b"w")))
libc.fflush(out)
go.set()
"""


def heaps(how: str) -> int:
    result = subprocess.run([sys.executable, "-c", PROGRAM, how], check=True, capture_output=True, text=True)
    return result.stdout.count("<heap nr=")


def test_many_threads_share_a_few_heaps() -> None:
    assert heaps("shared") <= ARENAS < heaps("each its own")


MESSAGES = """
import resource, sys
from trilateral.common.process.memory import reuse_freed_memory
if sys.argv[1] == "kept":
    reuse_freed_memory()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def pass_on(n_messages):
    for _ in range(n_messages):
        waiting = [bytes(1_200_000) for _ in range(8)]
        del waiting

pass_on(2)
before = faults()
pass_on(10)
print((faults() - before) // 80)
"""


def faults_a_message(how: str) -> int:
    result = subprocess.run([sys.executable, "-c", MESSAGES, how], check=True, capture_output=True, text=True)
    return int(result.stdout)


def test_the_memory_of_messages_is_used_again() -> None:
    assert faults_a_message("kept") <= 1 < 10 < faults_a_message("given back")


PR_GET_DUMPABLE = 3
# Runs the command line, and prints at its end whether the process was dumpable.
SERVE = f"""
import atexit, ctypes
atexit.register(lambda: print(ctypes.CDLL(None).prctl({PR_GET_DUMPABLE}, 0, 0, 0, 0)))
from trilateral.cli.main import main
main()
"""


@pytest.mark.parametrize("role", list(Role))
def test_a_server_makes_no_core_dump_and_still_answers(role: Role, tmp_path: Path) -> None:
    settings = process_settings(role, free_addresses(), tmp_path)
    settings["metrics"] = {"listen": free_addresses()[role]}
    config = ProcessConfig.model_validate(settings)
    path = write_configs({role: config}, tmp_path)[role]
    command = [sys.executable, "-c", SERVE, "serve", role, "--config", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        eventually_in_thread(lambda: asyncio.run(is_healthy(config)))
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        assert re.search(r"^Max core file size +0 +0 ", limits, re.MULTILINE)
        with urllib.request.urlopen(f"http://{config.metrics.listen}/metrics") as page:
            metrics = page.read().decode()
        assert {"process_resident_memory_bytes", "process_open_fds"} <= set(
            re.findall(r"^(process_\w+)", metrics, re.M)
        )
        process.terminate()
        out, log = process.communicate()
    assert out == "0\n"
    assert "Traceback" not in log


async def is_healthy(config: ProcessConfig) -> bool:
    try:
        await check_health(config)
    except PeerError:
        return False
    return True


LOCK = """
import os, resource, sys, threading
from pathlib import Path
from trilateral.common.process import memory
memory.SWAPS = Path(sys.argv[2])
most = int(sys.argv[1])
if most < 0:  # whoever may lock memory under a limit need not be able to raise the limit
    resource.getrlimit, resource.setrlimit = lambda _: (8192, most), lambda *_: None
else:
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (8192, most))
memory.lock_memory()
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(status["VmLck"].split()[0])
import pandas, pyarrow
threads = [threading.Thread(target=lambda: bytes(1 << 20)) for _ in range(50)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(int(status["VmRSS"].split()[0]))
"""


CAP_IPC_LOCK = 14


def may_lock() -> bool:
    (capabilities,) = re.findall(r"^CapEff:\s+(\w+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return bool(int(capabilities, 16) >> CAP_IPC_LOCK & 1)


@pytest.fixture
def swaps(tmp_path: Path) -> Path:
    path = tmp_path / "swaps"
    path.write_text("Filename Type Size Used Priority\n/swap file 1 0 -2\n")
    return path


def run_lock(most: int, swaps: Path) -> tuple[int, int, str]:
    done = subprocess.run([sys.executable, "-c", LOCK, str(most), swaps], check=True, capture_output=True, text=True)
    locked, resident = map(int, done.stdout.split())
    return locked, resident, done.stderr


@pytest.mark.skipif(not may_lock(), reason="needs the capability to lock memory")
def test_memory_is_locked_without_a_limit_and_costs_no_more(swaps: Path) -> None:
    locked, resident, text = run_lock(resource.RLIM_INFINITY, swaps)
    assert locked > 0
    assert not text
    assert resident < 1.3 * run_lock(8192, swaps)[1]


def test_under_a_limit_nothing_is_locked_and_the_log_names_the_setting(swaps: Path) -> None:
    locked, _, text = run_lock(8192, swaps)
    assert locked == 0
    assert "LimitMEMLOCK=infinity" in text


def test_a_machine_without_swap_space_needs_no_advice(swaps: Path) -> None:
    swaps.write_text("Filename Type Size Used Priority\n")
    assert run_lock(8192, swaps)[2] == ""
