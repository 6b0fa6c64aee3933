"""The demo without its processes: what it writes, and what it makes of the result."""

import io
import re
import socket
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from trilateral.cli.demo.report import print_report
from trilateral.common.base.errors import ConfigError, PeerError
from trilateral.common.base.roles import Role
from trilateral.common.config.load import load_job, load_process_config
from trilateral.common.data.model.model_file import PartyModel, save_model
from trilateral.common.data.party_data import load_party_data
from trilateral.common.jobs.ledger import LEDGER
from trilateral.common.protocol.messages import Result
from trilateral.common.trial.localhost import LocalProcesses, free_addresses
from trilateral.coordinator.numpy_training import join, train_plain
from trilateral.demo.files import ALGORITHMS, JOB, JOB_ON_SHARES, ON_SHARES, DemoFiles, write_files
from trilateral.demo.tables import DATASET

ADDRESSES = {Role.HOST: "127.0.0.1:1", Role.GUEST: "127.0.0.1:2", Role.COORDINATOR: "127.0.0.1:3"}


@pytest.fixture
def files(tmp_path: Path) -> DemoFiles:
    return write_files(tmp_path / "demo", ADDRESSES, 1024, "lbfgs")


def test_the_columns_are_split_and_both_have_the_same_patients_in_another_order(files: DemoFiles) -> None:
    host, guest = (pd.read_csv(files.table(role)) for role in (Role.HOST, Role.GUEST))
    assert host.shape == (569, 16)
    assert guest.shape == (569, 17)
    assert set(host.columns) & set(guest.columns) == {"patient"}
    assert sorted(host["patient"]) == sorted(guest["patient"])
    assert list(host["patient"]) != list(guest["patient"])
    assert set(guest["diagnosis"]) == {"malignant", "benign"}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_is_written_loads(tmp_path: Path, algorithm: str) -> None:
    files = write_files(tmp_path, ADDRESSES, 1024, algorithm)
    job = load_job(files.job)
    assert job.algorithm.name == algorithm
    assert job.key_bits == 1024
    on_shares = load_job(files.job_on_shares)
    assert on_shares.protocol == "shares"
    assert on_shares.algorithm.name == ON_SHARES[algorithm]
    for role in Role:
        config = load_process_config(files.config(role), {})
        assert config.role is role
        assert config.listen == ADDRESSES[role]
        assert config.policy.min_key_bits == (2048 if role is Role.COORDINATOR else 1024)
        assert config.policy.allow_prediction is (role is Role.HOST)


def test_a_key_larger_than_the_usual_policy_leaves_the_policy_alone(tmp_path: Path) -> None:
    files = write_files(tmp_path, ADDRESSES, 3072, "lbfgs")
    assert load_process_config(files.config(Role.HOST), {}).policy.min_key_bits == 2048


@pytest.mark.parametrize("name", ["thesis.tex", "job.yaml", "state/guest/jobs/credit/model.json"])
def test_a_folder_that_no_demo_made_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).touch()
    with pytest.raises(ConfigError, match="has files that no demo wrote: use a new folder, or delete this one"):
        write_files(tmp_path, ADDRESSES, 1024, "lbfgs")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / name]


@pytest.mark.parametrize("role", Role)
def test_a_second_demo_replaces_the_first_and_keeps_what_was_trained_by_hand(files: DemoFiles, role: Role) -> None:
    jobs = files.states / role / "jobs"
    names = (JOB, JOB_ON_SHARES, load_job(files.job_by_hand).name)
    old, on_shares, by_hand = (jobs / job / "model.json" for job in names)
    ledger = files.states / role / LEDGER
    for path in (old, on_shares, by_hand, ledger):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    write_files(files.folder, ADDRESSES, 1024, "sgd")
    assert not old.exists()
    assert not on_shares.exists()
    assert not ledger.exists()
    assert by_hand.exists()
    assert load_job(files.job).algorithm.name == "sgd"


@pytest.mark.parametrize("role", Role)
def test_a_demo_replaces_that_of_release_0_1_0(files: DemoFiles, role: Role) -> None:
    old = files.states / role / JOB / "history.jsonl"
    old.parent.mkdir(parents=True)
    old.touch()
    write_files(files.folder, ADDRESSES, 1024, "sgd")
    assert not old.parent.exists()


def test_no_demo_touches_what_the_examples_train() -> None:
    root = Path(__file__).parents[3]
    for role in Role:
        state = load_process_config(root / f"configs/demo/{role}.yaml", {}).state
        assert not state.is_relative_to(root / "demo-result")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written: Not a directory"):
        write_files(tmp_path / "file" / "demo", ADDRESSES, 1024, "lbfgs")


def test_free_addresses_differ() -> None:
    assert len(set(free_addresses().values())) == 3


def test_a_process_that_ends_at_once_is_told_with_its_log(tmp_path: Path) -> None:
    addresses = free_addresses()
    files = write_files(tmp_path, addresses, 1024, "lbfgs")
    host, port = addresses[Role.HOST].split(":")
    processes = LocalProcesses(files.configs, files.log_files)
    with (
        socket.create_server((host, int(port))),
        pytest.raises(PeerError, match="host ended during its start with exit code"),
        processes,
    ):
        pytest.fail("it has started")
    assert "is in use by another program" in processes.log_tails()


def test_the_report_has_each_partys_part_and_compares_perfect_models_with_those_of_joined_columns(
    files: DemoFiles,
) -> None:
    # Prepare: what the parties would hold after perfect trainings.
    configs = {role: load_process_config(files.config(role), {}) for role in (Role.HOST, Role.GUEST)}
    tables = {role: config.datasets[DATASET] for role, config in configs.items()}
    for job in (load_job(files.job), load_job(files.job_on_shares).model_copy(update={"tolerance": 1e-12})):
        data = {role: load_party_data(table, job, labelled=role is Role.GUEST) for role, table in tables.items()}
        joined = join(data[Role.HOST].block, data[Role.GUEST].block)
        plain = train_plain(job, joined.columns, joined.labels, joined.penalty)
        scores = joined.holdout_scores(plain.coef)
        for role, coef in zip(configs, (plain.coef[:15], plain.coef[15:]), strict=True):
            result = Result(coef, plain.loss, 20, 20, "done", scores if role is Role.GUEST else None)
            path = configs[role].state / "jobs" / job.name / "model.json"
            save_model(path, PartyModel.of(role, job, data[role], tables[role], result, run_id="0" * 32))
    seconds = {JOB: 7.0, JOB_ON_SHARES: 1.5}

    console = Console(file=io.StringIO(), width=160)
    print_report(files, seconds, console)

    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    lines = text.split("\n")
    assert "worst_fractal_dimension" in text
    assert "mean_radius" in text
    paillier, shares, scikit_learn = (
        next(line for line in lines if line.startswith(f"│ {name}")).replace("│", " ").split()
        for name in ("paillier", "shares", "scikit-learn, columns joined")
    )
    assert float(paillier[1]) > 0.99
    assert paillier[-2:] == ["20", "7.0"]
    assert shares[-2:] == ["20", "1.5"]
    assert shares[1:3] == scikit_learn[3:5]  # AUC and log loss
    assert paillier[2] != scikit_learn[4]
    assert "that of plain numpy: 0.0e+00" in text
    assert re.search(r"that of scikit-learn: -?\d.\de-\d\d \(the job has", text)

    # A terminal's lines are broken between words.
    terminal = Console(file=io.StringIO(), width=72, force_terminal=True, color_system=None)
    print_report(files, seconds, terminal)
    assert isinstance(terminal.file, io.StringIO)
    assert max(map(len, terminal.file.getvalue().split("\n"))) <= 72
