"""The host's side of online scores, apart from its calls."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.roles import Role
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.alignment.labelled_list import new_key
from trilateral.common.data.tables.id_list import Ids
from trilateral.host_party import online, online_counts
from trilateral.host_party.online_counts import OnlineCounts


async def test_a_count_that_cannot_be_written_is_tried_once_for_all_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ProcessConfig(
        role=Role.HOST,
        plaintext=True,
        listen="127.0.0.1:50051",
        peers={Role.GUEST: "127.0.0.1:50052", Role.COORDINATOR: "127.0.0.1:50050"},
        state=tmp_path,
    )

    n_tries = 0

    def broken(*args: Any) -> int:
        nonlocal n_tries
        n_tries += 1
        raise ConfigError("the disk is full")

    monkeypatch.setattr(online_counts, "spend_scores", broken)
    counts = OnlineCounts(lambda: config)
    failed = await asyncio.gather(*(counts.spend(2) for _ in range(5)), return_exceptions=True)
    assert [str(each) for each in failed] == ["the disk is full"] * 5
    assert n_tries == 1


def test_few_blocks_of_a_table_wait_to_be_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    n_done, n_waiting, lock = 0, list[int](), threading.Lock()

    def slow(key: bytes, ids: Ids, scores: Any, codes: Any) -> Any:
        nonlocal n_done
        time.sleep(0.001)
        with lock:
            n_done += 1
        return np.zeros((len(ids), 24), np.uint8)

    monkeypatch.setattr(online, "make_entries", slow)
    monkeypatch.setattr(online, "_IDS_AT_A_TIME", 1)
    with ThreadPoolExecutor(2) as threads:
        rows = online._MaskedRows(new_key(), threads)
        for number in range(200):
            rows.add(Ids.of([str(number)]), Ids.of([str(number)]), np.zeros(1), None)
            n_waiting.append(number + 1 - n_done)
        assert len(rows.entries()) == 200
    assert max(n_waiting) <= online._MAX_WAITING + 1
