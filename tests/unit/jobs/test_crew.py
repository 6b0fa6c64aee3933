"""The shards of an alignment are computed by this process's threads, or by as many threads as wait for an engine."""

from threading import current_thread

from tests.support.late_engine import LateEngine
from trilateral.common.compute.local import LOCAL
from trilateral.common.jobs.arithmetic import processors
from trilateral.common.jobs.crew import MOST_AT_A_TIME, Crews


def test_alignments_on_this_machine_share_its_threads() -> None:
    crews = Crews()
    one, two = crews.open(), crews.open()
    assert one is two is crews.local
    assert one.engine is LOCAL
    assert one.n_at_a_time == min(2 * processors() + 2, MOST_AT_A_TIME)
    one.close()
    assert "alignment" in two.submit(lambda: current_thread().name).result()


def test_an_engine_has_as_many_shards_as_memory_allows_and_is_closed_with_its_threads() -> None:
    engine = LateEngine()
    crew = Crews(lambda: engine).open()
    assert (crew.engine, crew.n_at_a_time) == (engine, MOST_AT_A_TIME)
    assert crew.submit(lambda: 3).result() == 3
    crew.close()
    assert engine.closed
