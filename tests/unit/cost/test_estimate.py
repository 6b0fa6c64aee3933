"""The cost model: exact bytes, and estimates that move with sizes and machines as they must."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.support.bins import guest_data, host_data, run_bins
from tests.support.bins import make_machines as make_bins_machines
from tests.support.json_fields import documented_fields
from trilateral.cli.main import app
from trilateral.common.base.errors import ConfigError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig, ProtocolName, Sgd
from trilateral.common.cost.arrays import place_arrays
from trilateral.common.cost.constants import MEASURED, load_constants
from trilateral.common.cost.counting import Counting
from trilateral.common.cost.estimate import Estimate, Machines, estimate_counting, estimate_job
from trilateral.common.cost.workload import INFERENCE_ROUNDS, Traffic, Workload
from trilateral.common.protocol.binning import MAX_FINE_BINS
from trilateral.common.protocol.messages import ElementPiece

CONSTANTS = load_constants()
PROTOCOLS: tuple[ProtocolName, ...] = ("paillier", "shares")
HOST, GUEST, COORDINATOR = Role
sizes = st.tuples(st.sampled_from(PROTOCOLS), st.integers(1_000, 10**9), st.integers(1, 50), st.integers(1, 50))


def workload(protocol: ProtocolName, rows: int, host: int = 10, guest: int = 11, **job: Any) -> Workload:
    settings = {"aligned": True, **job}
    return Workload.of(
        JobConfig(name="job", dataset="table", protocol=protocol, **settings),
        rows,
        {Role.HOST: host, Role.GUEST: guest},
    )


def estimated(work: Workload, cores: int = 2, **machines: Any) -> Estimate:
    return estimate_job(work, replace(Machines(cores), **machines), CONSTANTS)


# --- bytes: those of trainings that were measured


def test_bytes_of_shares_are_those_of_a_training() -> None:
    """Measured: 100,000 rows, 5 + 7 features and the intercept, 3 rounds."""
    work = replace(workload("shares", 100_000, 5, 8), rounds=3)
    measured = {
        (HOST, GUEST): 7_205_128,
        (GUEST, HOST): 10_405_104,
        (HOST, COORDINATOR): 608,
        (GUEST, COORDINATOR): 608,
        (COORDINATOR, HOST): 43_202_013,
        (COORDINATOR, GUEST): 45_602_013,
    }
    found = work.training().lines
    assert found.keys() == measured.keys()
    for line, n_bytes in measured.items():
        assert found[line] == pytest.approx(n_bytes, rel=0.03 if n_bytes > 1000 else 0.5)


def test_bytes_of_ciphertexts_are_those_of_a_training() -> None:
    work = replace(workload("paillier", 100_000, 5, 8), rounds=3)
    found = work.training().lines
    assert found[HOST, GUEST] == pytest.approx(10_244_091, rel=0.01)
    assert found[GUEST, HOST] == pytest.approx(10_242_432, rel=0.01)
    assert found[GUEST, COORDINATOR] == pytest.approx(14_070, rel=0.05)


def test_of_the_first_round_the_coordinator_deals_only_what_queues_hold() -> None:
    small, large = (workload("shares", rows).round(is_first=True).sent(COORDINATOR) for rows in (1_000, 10**7))
    assert small == workload("shares", 1_000).round().sent(COORDINATOR)
    assert large < workload("shares", 10**7).round().sent(COORDINATOR) / 50


def counting(rows: int, host: int, guest: int, **job: Any) -> Counting:
    settings = {"aligned": True, **job}
    made = JobConfig(name="job", dataset="table", protocol="shares", task="bins", **settings)
    return Counting.of(made, rows, {Role.HOST: host, Role.GUEST: guest})


def test_bytes_of_a_bins_job_are_those_of_three_machines() -> None:
    rng = np.random.default_rng(0)
    n_rows, n_columns = 4_000, 3
    codes = np.stack([rng.permutation(np.arange(n_rows) % MAX_FINE_BINS) for _ in range(n_columns)], axis=1)
    labels = np.where(rng.random(n_rows) < 0.3, 1.0, -1.0)
    counted = run_bins(make_bins_machines(host_data(codes), guest_data(labels)))
    sent: dict[tuple[Role, Role], int] = {}
    for sender, to, message in counted.traffic:
        if isinstance(message, ElementPiece):
            sent[sender, to] = sent.get((sender, to), 0) + message.elements.nbytes
    assert sent == counting(n_rows, n_columns, 5).traffic().lines


def test_bytes_of_a_bins_job_are_those_of_three_processes() -> None:
    """Measured: 100,000 rows, 10 + 10 features."""
    measured = {(HOST, GUEST): 160_003_699, (GUEST, HOST): 802_057, (COORDINATOR, GUEST): 1_642}
    found = counting(100_000, 10, 10).traffic().lines
    assert found.keys() == measured.keys()
    for line, n_bytes in measured.items():
        assert found[line] == pytest.approx(n_bytes, rel=0.03)


# --- how estimates move


@given(sizes, st.integers(1, 64), st.floats(1, 1e5))
def test_more_of_anything_that_computes_or_carries_is_never_slower(
    size: tuple[ProtocolName, int, int, int], cores: int, mbit: float
) -> None:
    work = workload(*size, aligned=False)
    few = estimated(work, cores, mbit=mbit)
    assert estimated(work, cores + 1, mbit=mbit).seconds <= few.seconds
    assert estimated(work, cores, mbit=2 * mbit).seconds <= few.seconds
    assert estimated(work, cores, mbit=None).seconds <= few.seconds
    # A worker alone has the engine's cost and no gain, but it leaves the party's own processors free.
    assert estimated(work, cores, mbit=mbit, workers=4).seconds <= few.seconds * 1.001


@given(sizes)
def test_more_rows_columns_and_rounds_never_cost_less(size: tuple[ProtocolName, int, int, int]) -> None:
    protocol, rows, host, guest = size
    work = workload(protocol, rows, host, guest)
    found = estimated(work, memory_mb=0)
    for other in (
        workload(protocol, 2 * rows, host, guest),
        workload(protocol, rows, host + 1, guest),
        workload(protocol, rows, host, guest + 1),
        replace(work, rounds=work.rounds + 1),
        replace(work, job=work.job.model_copy(update={"aligned": False})),
    ):
        more = estimated(other, memory_mb=0)
        assert more.seconds >= found.seconds
        assert more.bytes >= found.bytes
        for role in Role:
            assert more.processes[role].memory_mb >= found.processes[role].memory_mb
            assert more.processes[role].scratch_mb >= found.processes[role].scratch_mb


@given(sizes)
def test_an_estimate_adds_up(size: tuple[ProtocolName, int, int, int]) -> None:
    found = estimated(workload(*size, aligned=False), mbit=100.0)
    assert found.seconds == pytest.approx(sum(phase.seconds for phase in found.phases))
    assert found.bytes == sum(phase.bytes for phase in found.phases)
    assert found.bytes == sum(cost.sent_bytes for cost in found.processes.values())
    assert found.bytes == sum(cost.received_bytes for cost in found.processes.values())


def test_a_choice_by_auc_costs_the_scores_of_each_penalty() -> None:
    options: dict[str, Any] = {"folds": 5, "search": [{"l2": 0.1}, {"l2": 0.01}, {"l2": 0.001}]}
    by_loss, by_auc = (workload("shares", 100_000, choose=choose, **options) for choose in ("log_loss", "auc"))
    plain, found = estimated(by_loss, mbit=100.0), estimated(by_auc, mbit=100.0)
    assert found.bytes - plain.bytes == 3 * 8 * 100_000
    assert found.processes[HOST].sent_bytes - plain.processes[HOST].sent_bytes == 3 * 8 * 100_000
    assert found.bytes == sum(phase.bytes for phase in found.phases)
    assert found.seconds > plain.seconds


@given(st.integers(1_000, 10**9), st.integers(1, 400), st.integers(1, 400))
def test_a_larger_bins_job_never_costs_less(rows: int, host: int, guest: int) -> None:
    machines = Machines(2, 100.0, memory_mb=0)
    found = estimate_counting(counting(rows, host, guest), machines, CONSTANTS)
    assert found.seconds == pytest.approx(sum(phase.seconds for phase in found.phases))
    assert found.bytes == sum(cost.sent_bytes for cost in found.processes.values())
    for other in (
        counting(2 * rows, host, guest),
        counting(rows, host + 1, guest),
        counting(rows, host, guest + 1),
        counting(rows, host, guest, aligned=False),
    ):
        more = estimate_counting(other, machines, CONSTANTS)
        assert more.seconds >= found.seconds
        assert more.bytes >= found.bytes
        for role in Role:
            assert more.processes[role].memory_mb >= found.processes[role].memory_mb
            assert more.processes[role].scratch_mb >= found.processes[role].scratch_mb


@pytest.mark.parametrize("aligned", [True, False])
def test_a_bins_job_has_no_rounds(aligned: bool) -> None:
    found = estimate_counting(counting(100_000, 10, 10, aligned=aligned), Machines(2), CONSTANTS)
    assert found.rounds == 0
    assert [phase.name for phase in found.phases][-2:] == ["setup", "counting"]
    assert (found.phases[0].name == "alignment") is not aligned


def test_processes_that_share_a_machine_count_more_slowly() -> None:
    apart, together = (
        estimate_counting(counting(1_000_000, 10, 10), Machines(1, shared=shared), CONSTANTS).seconds
        for shared in (False, True)
    )
    assert together > apart


def test_a_host_with_too_many_features_for_a_bins_job_is_refused() -> None:
    with pytest.raises(ConfigError, match="410 features of the host have 8,200 fine bins, and a bins job takes 8,192"):
        counting(100_000, 410, 1)
    with pytest.raises(ConfigError, match="too many"):
        counting(10**14, 1, 1)


def test_a_slow_line_takes_as_long_as_the_bytes_of_its_busiest_direction() -> None:
    work = workload("shares", 1_000_000)
    found = estimated(work, 64, mbit=1.0)
    rounds = found.phases[-1]
    assert rounds.limited_by == "line"
    # The coordinator sends to both parties.
    line = (work.round(is_first=True).sent(COORDINATOR) + (work.rounds - 1) * work.round().sent(COORDINATOR)) * 8 / 1e6
    assert rounds.seconds == pytest.approx(line, rel=0.01)


def test_only_an_alignment_costs_what_grows_with_the_ids() -> None:
    aligned, private = (estimated(workload("shares", 1_000_000, aligned=each)) for each in (True, False))
    assert [phase.name for phase in private.phases] == ["alignment", "setup", "7 rounds"]
    assert [phase.name for phase in aligned.phases] == ["setup", "7 rounds"]
    assert private.processes[COORDINATOR] == aligned.processes[COORDINATOR]


def test_processes_that_share_a_machine_are_slower() -> None:
    for protocol in PROTOCOLS:
        work = workload(protocol, 1_000_000)
        assert estimated(work, shared=True).seconds > estimated(work).seconds


def test_workers_shorten_what_they_can_compute() -> None:
    work = workload("paillier", 100_000_000, 40, 40)
    alone, few, many = (estimated(work, 16, workers=workers).seconds for workers in (0, 4, 400))
    assert many < few < alone
    # The party's own process still moves every byte.
    assert estimated(work, 16, workers=40_000).seconds > 0.5 * many


@pytest.mark.parametrize(
    ("columns", "on_disk"),
    [((10, 10), (64.0, 67.2)), ((5, 30), (107.2, 195.2))],
)
def test_arrays_without_memory_are_those_of_a_training(columns: tuple[int, int], on_disk: tuple[float, float]) -> None:
    """Measured, under `shares` with 400,000 rows and `memory_mb: 0`."""
    work = workload("shares", 400_000, columns[0], columns[1] + 1)
    found = [place_arrays(work, role, 0) for role in PARTIES]
    assert tuple(arrays.on_disk / 1e6 for arrays in found) == pytest.approx(on_disk)
    assert all(arrays.in_memory == 0 for arrays in found)


@given(sizes, st.integers(0, 10**12))
def test_arrays_are_never_larger_than_their_memory(size: tuple[ProtocolName, int, int, int], most: int) -> None:
    work = workload(*size)
    everything = 3 * 8 * work.rows * work.n_columns
    for role in PARTIES:
        arrays = place_arrays(work, role, most)
        assert 0 <= arrays.in_memory <= most
        assert 0 <= arrays.on_disk <= everything
        assert place_arrays(work, role, everything).on_disk == 0


def test_more_memory_for_arrays_needs_less_disk() -> None:
    work = workload("shares", 100_000_000)
    little, much = (estimated(work, memory_mb=mb).processes[HOST] for mb in (128, 10**6))
    assert little.scratch_mb > 10_000
    assert much.scratch_mb == 0
    assert much.memory_mb > little.memory_mb + 10_000


def test_longer_keys_cost_more() -> None:
    seconds = [estimated(workload("paillier", 100_000, key_bits=bits)).seconds for bits in (2048, 3072, 4096)]
    assert seconds == sorted(seconds)


def test_an_algorithm_with_batches_counts_the_rounds_of_all_epochs() -> None:
    work = workload("shares", 100_000, algorithm=Sgd(), batch=10_000, epochs=5)
    assert (work.rounds, work.round_rows) == (50, 10_000)
    assert work.training().all < 60 * workload("shares", 10_000).round().all + work.exchange().all


def test_standard_errors_cost_more_rounds() -> None:
    without, inference = (workload("shares", 100_000, inference=asked) for asked in (False, True))
    assert inference.rounds - without.rounds == INFERENCE_ROUNDS


def test_too_many_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match="too many"):
        workload("shares", 10**14)


def test_traffic_knows_the_busiest_direction() -> None:
    traffic = Traffic({(COORDINATOR, HOST): 5, (COORDINATOR, GUEST): 4, (HOST, GUEST): 3}) * 2
    assert traffic.busiest == 18
    assert (traffic + Traffic({(HOST, GUEST): 100})).busiest == 114
    assert Traffic().busiest == 0


# --- constants


def test_the_constants_of_the_project_cover_every_process() -> None:
    for own in (CONSTANTS.paillier, CONSTANTS.shares):
        assert own.party_round.keys() - {"once"}
        assert own.party_memory["once"] > 50
    assert CONSTANTS.alignment.party["ids"] > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arithmetic": "abacus"}, "arithmetic: expected"),
        ({"alignment": None}, "alignment"),
        ({"wrong": 1}, "wrong"),
        ({"machine": {}}, "machine"),
    ],
)
def test_wrong_constants_are_refused(change: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "constants.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(MEASURED.read_text()) | change))
    with pytest.raises(ConfigError, match=message):
        load_constants(path)


@pytest.mark.parametrize("content", ["", "- 1", "a: [", "\x00"])
def test_a_file_without_constants_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "constants.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match="benchmarks/calibrate.py"):
        load_constants(path)


def test_a_constant_below_zero_is_refused(tmp_path: Path) -> None:
    content = yaml.safe_load(MEASURED.read_text())
    content["shares"]["party_round"]["dealt"] = -1
    path = tmp_path / "constants.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError, match="dealt"):
        load_constants(path)


# --- the command

COMMAND = ("estimate", "--rows", "1000000", "--columns", "10", "10")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_command_prints_phases_and_processes(protocol: ProtocolName) -> None:
    result = CliRunner().invoke(app, [*COMMAND, "--protocol", protocol, "--bandwidth", "100", "--cores", "8"])
    assert result.exit_code == 0, result.output
    for word in ("1,000,000 rows, 10 + 10 features", "8 processors", "100 Mbit/s", "alignment", "setup", *Role):
        assert word in result.stdout


def test_the_command_prints_json() -> None:
    result = CliRunner().invoke(app, [*COMMAND, "--json", "--aligned", "--workers", "4"])
    found = json.loads(result.stdout)
    assert set(found) == documented_fields()["estimate"]
    assert found["rounds"] == 6
    assert set(found["processes"]) == set(Role)
    assert found["seconds"] > 0
    assert {"processor_seconds", "sent_bytes", "received_bytes", "memory_mb", "scratch_mb"} == set(
        found["processes"]["host"]
    )


def test_the_command_prints_a_bins_job() -> None:
    result = CliRunner().invoke(app, [*COMMAND, "--bins", "--bandwidth", "100"])
    assert result.exit_code == 0, result.output
    for word in ("10 + 10 features, bins job with 200 fine bins", "alignment", "setup", "counting", "1.6 GB", *Role):
        assert word in result.stdout
    assert "rounds" not in result.stdout
    as_json = json.loads(CliRunner().invoke(app, [*COMMAND, "--bins", "--json"]).stdout)
    assert set(as_json) == documented_fields()["estimate"]
    assert as_json["rounds"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rows", "0"], "--rows: is 0"),
        (["--rows", "-5"], "--rows: is -5"),
        (["--rows", "15"], "needs at least 20"),
        (["--rows", "100000000000000"], "too many"),
        (["--columns", "0", "10"], "--columns: is 0"),
        (["--cores", "0"], "--cores: is 0"),
        (["--workers", "-1"], "--workers: is -1"),
        (["--rounds", "0"], "--rounds: is 0"),
        (["--bandwidth", "0"], "--bandwidth: is 0"),
        (["--bandwidth", "nan"], "--bandwidth: is nan"),
        (["--bandwidth", "inf"], "--bandwidth: is inf"),
        (["--key-bits", "100"], "key_bits"),
        (["--key-bits", "3072", "--protocol", "shares"], "key_bits"),
        (["--one-machine", "--bandwidth", "10"], "leave out --bandwidth"),
        (["--one-machine", "--workers", "2"], "leave out --bandwidth and --workers"),
        (["--constants", "/nowhere.yaml"], "/nowhere.yaml"),
        (["--bins", "--rounds", "3"], "--bins: has no rounds"),
        (["--bins", "--workers", "3"], "--bins: has no rounds and no cluster"),
        (["--bins", "--protocol", "paillier"], "needs `shares`"),
        (["--bins", "--columns", "500", "1"], "10,000 fine bins"),
    ],
)
def test_nonsense_is_refused_with_the_option(options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, [*COMMAND, *options])
    assert result.exit_code == 2
    assert message in result.stderr
    assert "internal" not in result.stderr


def test_constants_of_another_machine_are_used(tmp_path: Path) -> None:
    content = yaml.safe_load(MEASURED.read_text()) | {"machine": "a slower one"}
    for name in ("party_setup", "party_round"):
        content["paillier"][name] = {count: 10 * value for count, value in content["paillier"][name].items()}
    path = tmp_path / "constants.yaml"
    path.write_text(yaml.safe_dump(content))
    own, theirs = (
        json.loads(CliRunner().invoke(app, [*COMMAND, "--json", *more]).stdout)["seconds"]
        for more in ([], ["--constants", str(path)])
    )
    assert theirs > own
    assert "a slower one" in CliRunner().invoke(app, [*COMMAND, "--constants", str(path)]).stdout
