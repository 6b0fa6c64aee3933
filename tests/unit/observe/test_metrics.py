"""The numbers are those of one process, bounded in kind, and tell of what happened."""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from trilateral.common.base.errors import ConfigError, PolicyError
from trilateral.common.base.outcome import Outcome
from trilateral.common.base.progress import Stage
from trilateral.common.base.roles import Role
from trilateral.common.data.model.distributions import Shift
from trilateral.common.observe import metrics as metrics_module
from trilateral.common.observe import scraping
from trilateral.common.observe.events import (
    Moved,
    PhaseOver,
    Prepared,
    RoundAdvanced,
    RoundBegun,
    RoundOver,
    StageAdvanced,
)
from trilateral.common.observe.metrics import Metrics
from trilateral.common.observe.scraping import scraped
from trilateral.common.protocol.messages import RoundKey
from trilateral.common.rpc.errors import AccessError
from trilateral.common.trial.localhost import free_addresses


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(tmp_path: Path, clock: Clock) -> Metrics:
    return Metrics(Role.HOST, tmp_path, clock)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"trilateral_{name}", labels)


def test_a_round_counts_once_however_often_it_is_told_of(metrics: Metrics, clock: Clock) -> None:
    tell = metrics.session("credit")
    metrics.begun("credit")
    assert value(metrics, "jobs", state="starting") == 1
    for key in (RoundKey(1, 1), RoundKey(1, 1), RoundKey(1, 2), RoundKey(1, 1)):
        tell(RoundBegun(key))
    clock.now += 3
    tell(RoundOver(RoundKey(1, 2), 0.123456789))
    tell(RoundBegun(RoundKey(2, 1)))
    tell(RoundOver(RoundKey(2, 1), None))
    assert value(metrics, "jobs", state="starting") == 0
    assert value(metrics, "jobs", state="training") == 1
    assert value(metrics, "round_attempts_total", attempt="first") == 2
    assert value(metrics, "round_attempts_total", attempt="further") == 1
    assert value(metrics, "rounds_total", outcome="complete") == 1
    assert value(metrics, "rounds_total", outcome="void") == 1
    assert value(metrics, "round_seconds_sum") == 3
    assert value(metrics, "round", job_name="credit") == 2
    assert value(metrics, "loss", job_name="credit") == 0.123457


def test_the_progress_of_a_round_and_of_the_work_before_it_is_shown_while_it_lasts(metrics: Metrics) -> None:
    tell = metrics.session("credit")
    metrics.begun("credit")
    tell(StageAdvanced(Stage.READING, 0.25))
    assert value(metrics, "stage_done_ratio", job_name="credit", stage="reading") == 0.25
    tell(RoundBegun(RoundKey(1, 1)))
    assert value(metrics, "stage_done_ratio", job_name="credit", stage="reading") is None
    assert value(metrics, "round_rows_done", job_name="credit") == 0
    assert value(metrics, "round_rows", job_name="credit") is None
    tell(RoundAdvanced(RoundKey(1, 1), 30, 100))
    tell(RoundAdvanced(RoundKey(9, 1), 50, 100))  # of another round
    assert value(metrics, "round_rows_done", job_name="credit") == 30
    assert value(metrics, "round_rows", job_name="credit") == 100
    tell(RoundBegun(RoundKey(2, 1)))
    assert value(metrics, "round_rows_done", job_name="credit") == 0
    metrics.ended("credit", Outcome.FINISHED)
    assert value(metrics, "round_rows_done", job_name="credit") is None


def test_work_and_traffic_add_up_by_kind(metrics: Metrics) -> None:
    tell = metrics.session("credit")
    for _ in range(2):
        tell(PhaseOver("encrypt", 0.5))
        tell(Moved("sent", Role.GUEST, "scores", 520, 1))
        tell(Moved("sent", Role.GUEST, "masked_scores", 600, 0))
    assert value(metrics, "phase_seconds_total", phase="encrypt") == 1
    assert value(metrics, "vector_bytes_total", direction="sent", peer="guest", kind="scores") == 1040
    assert value(metrics, "ciphertexts_total", direction="sent", peer="guest", kind="scores") == 2
    assert value(metrics, "vector_bytes_total", direction="sent", peer="guest", kind="masked_scores") == 1200
    assert value(metrics, "ciphertexts_total", direction="sent", peer="guest", kind="masked_scores") is None


def test_prepared_randomness_is_of_the_jobs_that_run(metrics: Metrics) -> None:
    for name, prepared in (("one", 3), ("two", 4)):
        metrics.begun(name)
        metrics.session(name)(Prepared(prepared))
    assert value(metrics, "prepared_ciphertexts") == 7
    metrics.ended("one", Outcome.FINISHED)
    assert value(metrics, "prepared_ciphertexts") == 4
    assert value(metrics, "sessions_ended_total", result="finished") == 1


def test_an_ended_job_is_shown_for_a_while_and_one_that_goes_on_stays(metrics: Metrics, clock: Clock) -> None:
    for name in ("one", "two"):
        metrics.begun(name)
        metrics.session(name)(RoundOver(RoundKey(1, 1), 0.5))
    metrics.ended("one", Outcome.FAILED)
    metrics.ended("two", Outcome.SUSPENDED)
    metrics.begun("two")
    assert value(metrics, "loss", job_name="one") == 0.5
    clock.now += metrics_module.LINGER + 1
    assert value(metrics, "loss", job_name="one") is None
    assert value(metrics, "loss", job_name="two") == 0.5


def test_many_jobs_that_end_at_once_leave_a_bounded_number_of_series(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_module, "MAX_SHOWN", 2)
    for name in ("a", "b", "c", "d"):
        metrics.begun(name)
        metrics.session(name)(RoundOver(RoundKey(1, 1), 0.5))
        metrics.ended(name, Outcome.FINISHED)
    assert [name for name in "abcd" if value(metrics, "loss", job_name=name) is not None] == ["c", "d"]


def test_the_newest_shift_of_each_job_is_shown_without_the_name_of_a_column(metrics: Metrics) -> None:
    metrics.read_shifts = lambda: {"credit": Shift(5000, {"age": 0.1, "debt": 0.3}, 4000, 0.05)}
    metrics.look_at_disk()
    assert value(metrics, "score_psi", job_name="credit") == 0.05
    assert value(metrics, "column_csi_max", job_name="credit") == 0.3
    assert "debt" not in str([*metrics.registry.collect()])


def test_refusals_are_counted_by_kind_and_known_before_the_first(metrics: Metrics) -> None:
    assert value(metrics, "refusals_total", reason="access") == 0
    metrics.refused(AccessError("the host may not"))
    metrics.refused(PolicyError("too many rounds"))
    assert value(metrics, "refusals_total", reason="access") == 1
    assert value(metrics, "refusals_total", reason="policy") == 1


def test_two_processes_in_one_interpreter_count_apart(tmp_path: Path) -> None:
    one, other = Metrics(Role.HOST, tmp_path), Metrics(Role.GUEST, tmp_path)
    one.begun("credit")
    assert value(one, "sessions_begun_total") == 1
    assert value(other, "sessions_begun_total") == 0


def test_a_state_folder_that_is_gone_hides_nothing_else(tmp_path: Path) -> None:
    metrics = Metrics(Role.HOST, tmp_path / "state")
    metrics.look_at_disk()
    assert value(metrics, "state_free_bytes") is None
    (tmp_path / "state").mkdir()
    metrics.look_at_disk()
    assert (value(metrics, "state_free_bytes") or 0) > 0


# --- the page

GET = b"GET /metrics HTTP/1.1\r\n\r\n"


@pytest.fixture
async def address(metrics: Metrics) -> AsyncIterator[str]:
    address = free_addresses()[Role.HOST]
    async with scraped(address, metrics):
        yield address


async def ask(address: str, request: bytes) -> bytes:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


async def test_the_page_is_what_prometheus_reads(address: str) -> None:
    head, _, body = (await ask(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    names = {family.name for family in text_string_to_metric_families(body.decode())}
    assert names >= {"trilateral_jobs", "trilateral_round_seconds", "process_resident_memory_bytes"}
    assert not {name for name in names if name.endswith("_created")}


async def test_callers_in_quick_succession_read_the_same_page(
    address: str, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scraping, "KEEP_SECONDS", 3600)
    page = await ask(address, GET)
    metrics.begun("credit")
    assert await ask(address, GET) == page


async def test_a_page_is_made_again_when_it_is_old(
    address: str, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scraping, "KEEP_SECONDS", 0)
    await ask(address, GET)
    metrics.begun("credit")
    assert b"trilateral_sessions_begun_total 1.0" in await ask(address, GET)


async def test_a_disk_that_hangs_leaves_the_page_as_it_was(metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=12345)
    hangs, repaired = threading.Event(), threading.Event()

    first = iter([True])

    def look(_: Path) -> Any:
        if not next(first, False):
            hangs.set()
            repaired.wait()
        return usage

    monkeypatch.setattr(scraping, "DISK_SECONDS", 0)
    monkeypatch.setattr(shutil, "disk_usage", look)
    address = free_addresses()[Role.HOST]
    async with scraped(address, metrics):
        try:
            await asyncio.to_thread(hangs.wait)
            assert b"trilateral_state_free_bytes 12345.0" in await ask(address, GET)
        finally:
            repaired.set()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"\r\n\r\n", b"404"),
        (b"GET /metrics?name=x HTTP/1.0\r\n\r\n", b"200"),
    ],
)
async def test_other_requests_are_answered(address: str, request_: bytes, status: bytes) -> None:
    assert (await ask(address, request_)).startswith(b"HTTP/1.1 " + status)


async def test_a_caller_that_says_too_much_or_nothing_is_let_go(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with suppress(ConnectionError):
        assert await ask(address, b"GET /metrics HTTP/1.1\r\nx: " + bytes(4 * scraping.MAX_REQUEST_BYTES)) == b""
    monkeypatch.setattr(scraping, "REQUEST_SECONDS", 0.05)
    assert await ask(address, b"GET /metr") == b""


async def test_of_many_callers_at_a_time_the_last_are_sent_away(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scraping, "MAX_CONNECTIONS", 2)
    host, _, port = address.rpartition(":")
    waiting = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
    with suppress(ConnectionError):  # A reset, where the request has come before it.
        assert await ask(address, b"GET /metrics HTTP/1.1\r\n\r\n") == b""
    for _, writer in waiting:
        writer.close()


async def test_an_address_that_is_taken_is_named_with_its_setting(address: str, metrics: Metrics) -> None:
    with pytest.raises(ConfigError, match=rf"^metrics.listen: {address} cannot be used: it is in use already"):
        async with scraped(address, metrics):
            pass


async def test_nothing_listens_unless_told(metrics: Metrics, caplog: pytest.LogCaptureFixture) -> None:
    async with scraped(None, metrics):
        pass
    assert not caplog.records


async def test_an_address_that_others_reach_is_warned_of(metrics: Metrics, caplog: pytest.LogCaptureFixture) -> None:
    async with scraped("0.0.0.0:0", metrics):
        pass
    assert "anyone who can connect to 0.0.0.0:0 can read the metrics" in caplog.text
