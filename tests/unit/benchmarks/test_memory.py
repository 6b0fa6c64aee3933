"""The memory of a process, as `benchmarks/memory.py` measures it."""

import os

from benchmarks.harness import peak_rss_mb, read_status
from benchmarks.memory import loads, resident


def test_a_process_has_no_more_memory_than_at_its_peak() -> None:
    pid = os.getpid()
    now = resident(read_status(pid))
    assert now["own"] > 1
    assert now["files"] > 1
    assert now["own"] <= peak_rss_mb(pid)


def test_an_import_that_is_already_made_adds_almost_nothing() -> None:
    found = loads("decimal", "decimal")
    assert list(found) == ["python", "decimal"]
    assert found["python"]["own"] > 1
    assert abs(found["decimal"]["own"]) < 5
