"""``trilateral check`` names problems before a training runs into them, and finds nothing in a correct setup."""

import asyncio
import errno
import json
import os
import shutil
import socket
import sqlite3
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pandas as pd
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed448
from cryptography.x509.oid import ExtendedKeyUsageOID
from typer.testing import CliRunner

from tests.support import certificates as certificates_of_tests
from tests.support.certificates import (
    issued_below,
    make_identity,
    new_authority,
    root_without_limit,
    signed_as_requested,
    write_identity,
)
from tests.support.three_servers import DATASET, serving, write_tables
from tests.support.versions import NEWER, let_versions_differ, serving_versions
from trilateral.cli.main import app
from trilateral.common.base.files import write_whole
from trilateral.common.base.outcome import Outcome
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.checks import listening, machine, peers, tables
from trilateral.common.checks.finding import Finding, Level
from trilateral.common.checks.run import check_process
from trilateral.common.config.process import ProcessConfig
from trilateral.common.cost import estimate
from trilateral.common.jobs.journal import JOURNAL, VERSION, Journal
from trilateral.common.jobs.ledger import LEDGER, Ledger
from trilateral.common.jobs.quota import IdQuota, ScoreQuota
from trilateral.common.jobs.sealing import Sealer
from trilateral.common.observe.audit import LOG, Audit
from trilateral.common.paillier.native.path import INSTRUCTIONS
from trilateral.common.process import memory
from trilateral.common.process.description import ask_description
from trilateral.common.process.state_folder import held_state
from trilateral.common.protocol.batches import holdout_split
from trilateral.common.scratch.folders import SCRATCH
from trilateral.common.trial import authority as authority_module
from trilateral.common.trial.authority import Authority
from trilateral.common.trial.localhost import free_addresses

NAMES = {role: f"{role}.example.org" for role in Role}
OK, NOTE, WARNING, PROBLEM = Level


@dataclass
class Setting:
    """Three organisations with everything right, until a case changes something at one of them."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    authority: Authority = field(default_factory=new_authority)
    settings: dict[Role, dict[str, Any]] = field(default_factory=dict)
    job: dict[str, Any] | None = None
    served: set[Role] = field(default_factory=set)
    versions: dict[Role, Any] = field(default_factory=dict)
    resources: AsyncExitStack = field(default_factory=AsyncExitStack)
    late: list[Callable[[], Any]] = field(default_factory=list)
    """Entered when the servers run."""

    def __post_init__(self) -> None:
        addresses = free_addresses()
        write_tables(self.folder, n_rows=200)
        for role in Role:
            settings: dict[str, Any] = {
                "role": role,
                "listen": addresses[role],
                "peers": {
                    other: {"address": addresses[other], "name": NAMES[other]} for other in Role if other != role
                },
                "state": str(self.folder / "state" / role),
            }
            if role is not Role.COORDINATOR:
                settings["datasets"] = {DATASET: {"path": str(self.folder / f"{role}.csv")}}
                settings["policy"] = {"min_rows_per_feature": 10}
            self.settings[role] = settings
            self.certify(role)
        self.dataset(Role.GUEST)["label"] = {"positive": "yes", "negative": "no"}

    def certify(self, role: Role, *names: str, by: Authority | None = None, **how: Any) -> None:
        """Give a role another certificate."""
        identity = make_identity(by or self.authority, *(names or (NAMES[role],)), **how)
        self.settings[role]["tls"] = write_identity(self.tls(role), identity).model_dump(mode="json")

    def tls(self, role: Role) -> Path:
        return self.folder / "tls" / role

    def state(self, role: Role) -> Path:
        path = Path(self.settings[role]["state"])
        path.mkdir(parents=True, exist_ok=True)
        return path

    def dataset(self, role: Role) -> dict[str, Any]:
        dataset: dict[str, Any] = self.settings[role]["datasets"][DATASET]
        return dataset

    def change_table(self, role: Role, change: Callable[[list[list[str]]], Any]) -> None:
        path = self.folder / f"{role}.csv"
        rows = [line.split(",") for line in path.read_text().splitlines()]
        change(rows)
        path.write_text("\n".join(",".join(row) for row in rows) + "\n")

    def use_plaintext(self, *roles: Role) -> None:
        for role in roles:
            del self.settings[role]["tls"]
            self.settings[role]["plaintext"] = True

    def start_job(self, **settings: Any) -> None:
        self.job = {"name": "job", "dataset": DATASET, **settings}

    async def check(self, role: Role) -> list[Finding]:
        """What `role` finds, while the others that are `served` serve."""
        path = self.folder / f"{role}.yaml"
        path.write_text(json.dumps(self.settings[role]))  # JSON is YAML
        job = None
        if self.job is not None:
            job = self.folder / "job.yaml"
            job.write_text(json.dumps(self.job))
        configs = {each: ProcessConfig.model_validate(self.settings[each]) for each in self.served}
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.resources)
            if self.versions:
                await stack.enter_async_context(serving_versions(configs, self.versions))
            elif configs:
                await stack.enter_async_context(serving(configs))
            for enter in self.late:
                await stack.enter_async_context(enter())
            # Checks run loops of their own, and have the servers in this one.
            return await asyncio.to_thread(lambda: list(check_process(path, job, peers=bool(self.served))))


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    for name in [
        name for name in os.environ if name.lower() in {"http_proxy", "https_proxy", "grpc_proxy", "all_proxy"}
    ]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(machine, "CGROUP", tmp_path / "no-cgroup")
    monkeypatch.setattr(machine, "use_arithmetic", lambda threads: "avx2")
    monkeypatch.setattr(machine, "shares_level", lambda: 1)
    return Setting(tmp_path, monkeypatch)


# --- nothing is wrong


@pytest.mark.parametrize("role", Role)
async def test_a_correct_setup_has_no_findings(role: Role, setting: Setting) -> None:
    setting.served = set(Role)
    setting.start_job()
    findings = await setting.check(role)
    assert [str(finding) for finding in findings if finding.level > NOTE] == []
    texts = "\n".join(map(str, findings))
    for other in set(Role) - {role}:
        assert f"peers.{other}: the {other} answers at {setting.settings[other]['listen']} and recognises this" in texts
    assert f"the {role} of this configuration is running" in texts
    if role is Role.GUEST:
        assert "guest.csv has 200 rows and 2 features" in texts
        assert "rows are positive" in texts
        assert "policy.min_label_bits allows the host" in texts
    if role is Role.HOST:
        assert "host.csv has 200 rows and 3 features" in texts
        assert "160 training rows, 40 hold-out rows and 3 training columns" in texts


@pytest.mark.parametrize("role", PARTIES)
async def test_a_check_with_a_job_estimates_both_protocols(role: Role, setting: Setting) -> None:
    setting.start_job(protocol="shares")
    estimates = {finding.subject: finding.text for finding in await setting.check(role) if "MB in" in finding.text}
    assert set(estimates) == {"protocol paillier", "protocol shares"}
    assert all("s at 1000 Mbit/s" in text for text in estimates.values())


async def test_a_bins_job_has_an_estimate_of_its_own(setting: Setting) -> None:
    setting.settings[Role.HOST]["policy"] = {"share_bins": "guest"}
    setting.start_job(protocol="shares", task="bins")
    findings = {finding.subject: finding.text for finding in await setting.check(Role.HOST)}
    assert "MB for 60 fine bins; here" in findings["bins job"]
    assert not {"protocol paillier", "protocol shares"} & findings.keys()


async def test_a_protocol_that_cannot_train_the_job_has_no_estimate(setting: Setting) -> None:
    setting.start_job(algorithm={"name": "sqn"})
    subjects = {finding.subject for finding in await setting.check(Role.GUEST)}
    assert "protocol paillier" in subjects
    assert "protocol shares" not in subjects


@pytest.mark.parametrize(("path", "instructions"), INSTRUCTIONS.items())
async def test_every_path_of_the_kernel_is_correct(path: str, instructions: str, setting: Setting) -> None:
    setting.monkeypatch.setattr(machine, "use_arithmetic", lambda threads: path)
    texts = [str(finding) for finding in await setting.check(Role.GUEST) if finding.level == OK]
    assert any(f"arithmetic: the kernel, with {instructions}" in text for text in texts)


@pytest.mark.parametrize("path", [*INSTRUCTIONS, "gmpy2"])
async def test_every_path_has_an_estimate(path: str, setting: Setting) -> None:
    setting.start_job()
    setting.monkeypatch.setattr(estimate, "use_arithmetic", lambda: path)
    assert "protocol paillier" in {finding.subject for finding in await setting.check(Role.GUEST)}


async def test_a_check_changes_nothing(setting: Setting) -> None:
    Journal(setting.state(Role.GUEST), Role.GUEST, 90).close()
    setting.start_job()
    await setting.check(Role.GUEST)
    assert [path.name for path in setting.state(Role.GUEST).iterdir()] == [JOURNAL]
    shutil.rmtree(setting.state(Role.GUEST))
    await setting.check(Role.GUEST)
    assert not (setting.folder / "state" / "guest").exists()


# --- something is


@dataclass(frozen=True)
class Case:
    """A misconfiguration, and how it is named.

    Attributes:
        arrange: makes it.
        level: of the finding.
        text: in it, its subject first.
        at: who runs the check.
    """

    arrange: Callable[[Setting], Any]
    level: Level
    text: str
    at: Role = Role.GUEST


def a_setting_misspelt(setting: Setting) -> None:
    setting.settings[Role.GUEST]["listne"] = "x"


def a_table_of_another_name(setting: Setting) -> None:
    setting.dataset(Role.GUEST)["path"] = str(setting.folder / "gast.csv")


def no_label_column(setting: Setting) -> None:
    setting.dataset(Role.GUEST)["label"]["column"] = "y"


def other_label_values(setting: Setting) -> None:
    setting.dataset(Role.GUEST)["label"] = {"positive": "1", "negative": "0"}


def labels_forgotten(setting: Setting) -> None:
    dataset = setting.dataset(Role.GUEST)
    del dataset["label"]
    dataset["exclude"] = ["label"]


def labels_forgotten_for_a_job(setting: Setting) -> None:
    del setting.dataset(Role.GUEST)["label"]
    setting.job = {"name": "j", "dataset": DATASET}


def a_table_with_two_names(setting: Setting) -> None:
    datasets = setting.settings[Role.HOST]["datasets"]
    path = Path(datasets[DATASET]["path"])
    datasets["again"] = {"path": str(path.parent / ".." / path.parent.name / path.name)}


def a_dataset_for_predictions(setting: Setting) -> None:
    unlabelled = {"path": setting.dataset(Role.GUEST)["path"], "exclude": ["label"]}
    setting.settings[Role.GUEST]["datasets"]["new"] = unlabelled


def a_category_that_means_missing(setting: Setting) -> None:
    def add(rows: list[list[str]]) -> None:
        rows[:] = [[*row, "job" if n == 0 else "none" if n % 4 == 0 else "own"] for n, row in enumerate(rows)]

    setting.change_table(Role.GUEST, add)
    setting.dataset(Role.GUEST)["categorical"] = ["job"]


def all_positive_rows_in_the_hold_out(setting: Setting) -> None:
    held_out = holdout_split(200, 0.2, 0)[1][:3]
    ids = {f"{row:06d}" for row in held_out}
    setting.change_table(
        Role.GUEST, lambda rows: [row.__setitem__(-1, "yes" if row[0] in ids else "no") for row in rows[1:]]
    )


def few_positive_rows(setting: Setting) -> None:
    setting.change_table(
        Role.GUEST,
        lambda rows: [row.__setitem__(-1, "yes" if int(row[0]) % 20 == 0 else "no") for row in rows[1:]],
    )
    setting.settings[Role.GUEST]["policy"]["min_label_bits"] = 28


def labels_at_the_host(setting: Setting) -> None:
    setting.dataset(Role.HOST)["label"] = {"column": "x0"}


def an_id_twice(setting: Setting) -> None:
    setting.change_table(Role.HOST, lambda rows: rows[2].__setitem__(0, rows[1][0]))


def a_column_of_row_numbers(setting: Setting) -> None:
    def number(rows: list[list[str]]) -> None:
        for count, row in enumerate(rows):
            row.insert(0, str(count) if count else "Unnamed: 0")

    setting.change_table(Role.HOST, number)


def a_constant_column(setting: Setting) -> None:
    setting.change_table(Role.HOST, lambda rows: [row.__setitem__(1, "7") for row in rows[1:]])


def a_constant_column_refused(setting: Setting) -> None:
    a_constant_column(setting)
    setting.settings[Role.HOST]["datasets"]["made"]["preprocessing"] = {"constant": "refuse"}


def a_label_of_no_column(setting: Setting) -> None:
    a_constant_column(setting)
    labels = {"x0": "Balance", "x1": "Balance", "x99": "Income"}
    setting.settings[Role.HOST]["datasets"]["made"]["reason_labels"] = labels


def an_id_twice_of_which_one_counts(setting: Setting) -> None:
    an_id_twice(setting)
    setting.settings[Role.HOST]["datasets"]["made"]["repeated_ids"] = "first"


def a_column_of_words(setting: Setting) -> None:
    setting.change_table(Role.HOST, lambda rows: rows[5].__setitem__(1, "seven"))


def few_rows_for_the_policy(setting: Setting) -> None:
    setting.settings[Role.HOST]["policy"] = {"min_rows_per_feature": 10_000}


def few_labels(setting: Setting) -> None:
    setting.dataset(Role.GUEST)["exclude"] = ["x3", "x4"]
    setting.settings[Role.GUEST]["policy"]["min_label_bits"] = 1000


def weights_by_label(setting: Setting) -> None:
    setting.dataset(Role.GUEST)["label"]["class_weight"] = "balanced"
    setting.settings[Role.GUEST]["policy"].update(min_label_bits=28, min_batch=50)


def weights_for_a_job_that_cannot_have_any(setting: Setting) -> None:
    weights_by_label(setting)
    setting.start_job()


def weights_of_few_rows(setting: Setting) -> None:
    setting.dataset(Role.GUEST)["label"]["class_weight"] = {"positive": 100, "negative": 1}


def few_rows_for_a_job(setting: Setting) -> None:
    few_rows_for_the_policy(setting)
    setting.start_job()


def a_small_key(setting: Setting) -> None:
    setting.start_job(key_bits=1024)


def another_dataset(setting: Setting) -> None:
    setting.start_job(dataset="other")


def a_job_misspelt(setting: Setting) -> None:
    setting.start_job(epoch=3)


def a_name_in_use(setting: Setting) -> None:
    setting.start_job()
    write_whole(setting.state(Role.HOST) / "jobs/job/model.json", "{}")


def a_name_in_use_at_the_coordinator(setting: Setting) -> None:
    setting.start_job()
    write_whole(setting.state(Role.COORDINATOR) / "jobs/job/history.jsonl", "")


def no_scores_left(setting: Setting) -> None:
    setting.start_job()
    ScoreQuota(setting.state(Role.HOST), 1_000_000).spend(999_990)


def few_ids_left(setting: Setting) -> None:
    setting.start_job(aligned=False)
    IdQuota(setting.state(Role.HOST), 20_000_000).spend(19_999_000)


def neither_ids_nor_scores_nor_points_left(setting: Setting) -> None:
    no_scores_left(setting)
    no_points_left(setting)
    setting.start_job(aligned=False)
    IdQuota(setting.state(Role.HOST), 20_000_000).spend(20_000_000)


def no_points_left(setting: Setting) -> None:
    setting.start_job()
    Ledger(setting.state(Role.HOST), Role.HOST).add_point(DATASET, "earlier", 1)


def no_equations_left(setting: Setting) -> None:
    setting.start_job()
    Ledger(setting.state(Role.GUEST), Role.GUEST).add_training(DATASET, 53, 53)


def an_earlier_training(setting: Setting) -> None:
    setting.start_job(holdout=0.0)
    ledger = Ledger(setting.state(Role.HOST), Role.HOST)
    ledger.add_training(DATASET, 3, 66)
    ledger.add_point(DATASET, "earlier", 1)


def an_earlier_training_at_the_guest(setting: Setting) -> None:
    setting.start_job()
    Ledger(setting.state(Role.GUEST), Role.GUEST).add_training(DATASET, 1, 2)


def a_damaged_ledger(setting: Setting) -> None:
    write_whole(setting.state(Role.HOST) / LEDGER, "{}")


def no_table(setting: Setting) -> None:
    setting.settings[Role.HOST]["datasets"] = {}


def little_memory(setting: Setting) -> None:
    setting.monkeypatch.setattr(tables, "free_memory", lambda: 2**20)


def a_key_for_all_to_read(setting: Setting) -> None:
    (setting.tls(Role.GUEST) / "key.pem").chmod(0o644)


def a_key_of_another_certificate(setting: Setting) -> None:
    shutil.copy(setting.tls(Role.HOST) / "key.pem", setting.tls(Role.GUEST) / "key.pem")


def an_expired_certificate(setting: Setting) -> None:
    setting.certify(Role.GUEST, expires=datetime.now(UTC) - timedelta(days=2))


def a_certificate_that_expires_soon(setting: Setting) -> None:
    setting.certify(Role.GUEST, expires=datetime.now(UTC) + timedelta(minutes=3))


def a_certificate_of_another_authority(setting: Setting) -> None:
    setting.certify(Role.GUEST, by=new_authority(), trusts=setting.authority)


def certify_below(setting: Setting, role: Role) -> None:
    _, become = signed_as_requested(setting.authority, "other.example.org")
    write_identity(setting.tls(role), issued_below(setting.authority, become, NAMES[role]))


def a_certificate_of_an_unlisted_intermediate(setting: Setting) -> None:
    certify_below(setting, Role.GUEST)


def a_certificate_for_servers_alone(setting: Setting) -> None:
    setting.monkeypatch.setattr(authority_module, "USAGES", x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]))
    setting.certify(Role.GUEST)


def an_authority_that_grpc_cannot_read(setting: Setting) -> None:
    setting.monkeypatch.setattr(authority_module, "new_key", lambda: ec.generate_private_key(ec.SECP256K1()))
    authority = new_authority()
    setting.monkeypatch.undo()
    setting.certify(Role.GUEST, by=authority)


def a_certificate_with_a_rule_that_grpc_does_not_know(setting: Setting) -> None:
    """OpenSSL's command line and other programs may know it."""
    unknown = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00")
    issue = Authority._builder
    setting.monkeypatch.setattr(
        Authority, "_builder", lambda *given: issue(*given).add_extension(unknown, critical=True)
    )
    setting.certify(Role.GUEST)


def a_key_that_grpc_cannot_read(setting: Setting) -> None:
    setting.monkeypatch.setattr(certificates_of_tests, "new_key", ed448.Ed448PrivateKey.generate)
    setting.certify(Role.GUEST)


def a_port_that_needs_a_privilege(setting: Setting) -> None:
    setting.monkeypatch.setattr(listening, "SECONDS", 0.2)
    setting.settings[Role.GUEST]["listen"] = "127.0.0.1:443"
    bind = socket.socket.bind

    def refuse(own: socket.socket, address: Any) -> None:
        if address[1] == 443:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        bind(own, address)

    setting.monkeypatch.setattr(socket.socket, "bind", refuse)


def a_name_of_no_machine_to_listen_on(setting: Setting) -> None:
    setting.settings[Role.GUEST]["listen"] = "guest..example:50052"


def a_peers_certificate(setting: Setting) -> None:
    setting.settings[Role.GUEST]["tls"] = setting.settings[Role.HOST]["tls"]


def an_expired_authority(setting: Setting) -> None:
    setting.certify(Role.GUEST, trusts=Authority("old", timedelta(minutes=-1)))


def all_authorities_of_the_system(setting: Setting) -> None:
    several = "".join(new_authority().pem.decode() for _ in range(12)) + setting.authority.pem.decode()
    write_whole(setting.tls(Role.GUEST) / "authorities.pem", several)


def one_name_for_both_peers(setting: Setting) -> None:
    setting.settings[Role.GUEST]["peers"] = {
        role: f"localhost:{port}" for role, port in (("host", 1), ("coordinator", 2))
    }


def a_state_folder_of_another_role(setting: Setting) -> None:
    (setting.state(Role.GUEST) / ".lock").write_text("host 1\n")


def a_file_for_a_state_folder(setting: Setting) -> None:
    (setting.folder / "state").write_text("")


def another_programs_journal(setting: Setting) -> None:
    with sqlite3.connect(setting.state(Role.GUEST) / JOURNAL) as database:
        database.execute("CREATE TABLE other (x)")
        database.execute("PRAGMA application_id = 7")
    database.close()


def a_newer_journal(setting: Setting) -> None:
    Journal(setting.state(Role.GUEST), Role.GUEST, 90).close()
    with sqlite3.connect(setting.state(Role.GUEST) / JOURNAL) as database:
        database.execute(f"PRAGMA user_version = {VERSION + 1}")
    database.close()


def another_state_key(setting: Setting) -> None:
    Journal(setting.state(Role.GUEST), Role.GUEST, 90, Sealer(bytes(32))).close()
    key = setting.folder / "state.key"
    key.write_text("0f" * 32)
    key.chmod(0o600)
    setting.settings[Role.GUEST]["state_key"] = str(key)


def no_state_key(setting: Setting) -> None:
    Journal(setting.state(Role.GUEST), Role.GUEST, 90, Sealer(bytes(32))).close()


def a_changed_audit_log(setting: Setting) -> None:
    log = setting.state(Role.GUEST) / LOG
    for job in ("one", "two"):
        Audit(log).ended(Outcome.FINISHED, job=job)
    log.write_text(log.read_text().replace("one", "six"))


def memory_that_may_reach_swap_space(setting: Setting) -> None:
    swaps = setting.folder / "swaps"
    swaps.write_text("Filename Type Size Used Priority\n/swap file 1 0 -2\n")
    setting.monkeypatch.setattr(memory, "SWAPS", swaps)
    setting.late.append(partial(holding, setting.state(Role.COORDINATOR)))


@asynccontextmanager
async def holding(state: Path) -> AsyncIterator[None]:
    with held_state(state, Role.COORDINATOR):
        yield


def a_damaged_journal(setting: Setting) -> None:
    (setting.state(Role.GUEST) / JOURNAL).write_bytes(b"no database" * 1000)


def a_full_disk(setting: Setting) -> None:
    usage = shutil.disk_usage(setting.folder)
    setting.monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=50 * 2**20))


def scratch(setting: Setting, **settings: Any) -> None:
    setting.settings[Role.GUEST]["scratch"] = settings


def more_scratch_space_than_there_is(setting: Setting) -> None:
    scratch(setting, max_gb=1e9)


def a_scratch_folder_that_others_can_read(setting: Setting) -> None:
    (setting.folder / SCRATCH).mkdir()
    (setting.folder / SCRATCH).chmod(0o755)
    scratch(setting, folder=str(setting.folder))


def a_scratch_folder_that_is_a_file(setting: Setting) -> None:
    file = setting.folder / "file"
    file.touch()
    scratch(setting, folder=str(file))


def a_scratch_folder_of_someone_else(setting: Setting) -> None:
    may_not_write(setting, setting.folder)
    setting.state(Role.GUEST)
    scratch(setting, folder=str(setting.folder))


def a_table_that_does_not_fit_in_scratch_space(setting: Setting) -> None:
    scratch(setting, memory_mb=0, max_gb=1e-6)


def rows_on_disk_in_clear(setting: Setting) -> None:
    scratch(setting, encrypt=False)


def few_open_files(setting: Setting) -> None:
    setting.monkeypatch.setattr("resource.getrlimit", lambda _: (256, 256))


def no_kernel(setting: Setting) -> None:
    setting.monkeypatch.setattr(machine, "use_arithmetic", lambda threads: "gmpy2")
    setting.monkeypatch.setattr(machine, "obstacle", lambda: "the processor has no AVX2 and fused multiply-add")


def no_kernel_of_shares(setting: Setting) -> None:
    setting.monkeypatch.setattr(machine, "shares_level", lambda: 0)
    setting.monkeypatch.setattr(machine, "best_level", lambda: (0, "the processor has no AES instructions"))


def no_kernel_of_alignments(setting: Setting) -> None:
    setting.monkeypatch.setattr(machine, "uses_kernel", lambda: False)
    setting.monkeypatch.setattr(machine, "obstacle_of_curve", lambda: "the processor has no AVX-512")


def many_threads(setting: Setting) -> None:
    setting.settings[Role.GUEST]["limits"] = {"threads": 1000}


def a_share_of_a_processor(setting: Setting) -> None:
    machine.CGROUP.mkdir()
    (machine.CGROUP / "cpu.max").write_text("100000 100000\n")
    setting.monkeypatch.setattr(machine, "processors", lambda: 8)


def a_setting_of_the_environment(setting: Setting) -> None:
    setting.monkeypatch.setenv("TRILATERAL_POLICY__MIN_KEY_BITS", "3072")


def a_proxy(setting: Setting) -> None:
    setting.monkeypatch.setenv("https_proxy", "http://user:password@proxy.example.org:3128")


def a_proxy_and_traces(setting: Setting) -> None:
    a_proxy(setting)
    setting.settings[Role.GUEST]["traces"] = {"endpoint": "http://traces.example.org:4318/v1/traces"}


def a_port_in_use(setting: Setting) -> None:
    setting.monkeypatch.setattr(listening, "SECONDS", 0.2)
    taken = setting.resources.enter_context(socket.create_server(("127.0.0.1", 0)))
    setting.settings[Role.GUEST]["listen"] = f"127.0.0.1:{taken.getsockname()[1]}"


def an_address_of_another_machine(setting: Setting) -> None:
    setting.monkeypatch.setattr(listening, "SECONDS", 0.2)
    setting.settings[Role.GUEST]["listen"] = "192.0.2.7:50052"


def a_port_left_open(setting: Setting) -> None:
    setting.settings[Role.GUEST]["listen"] = "127.0.0.1:0"


def metrics_where_it_listens(setting: Setting) -> None:
    setting.settings[Role.GUEST]["metrics"] = {"listen": setting.settings[Role.GUEST]["listen"]}


def online_where_it_listens(setting: Setting) -> None:
    setting.settings[Role.GUEST]["online"] = {"listen": setting.settings[Role.GUEST]["listen"]}


def scored_online(setting: Setting, dataset: str = DATASET, **policy: Any) -> None:
    host = setting.settings[Role.HOST]
    host["online"] = {"precompute": [{"job": "churn", "dataset": dataset}]}
    host["policy"] = host.get("policy", {}) | policy


def online_without_permission(setting: Setting) -> None:
    scored_online(setting)


def online_without_a_dataset(setting: Setting) -> None:
    scored_online(setting, "other", allow_prediction=True)


def online_without_a_model(setting: Setting) -> None:
    scored_online(setting, allow_prediction=True)


def metrics_on_all_of_where_it_listens(setting: Setting) -> None:
    port = setting.settings[Role.GUEST]["listen"].rpartition(":")[2]
    setting.settings[Role.GUEST]["metrics"] = {"listen": f"0.0.0.0:{port}"}


def metrics_in_use_beside_a_port_left_open(setting: Setting) -> None:
    a_port_left_open(setting)
    taken = setting.resources.enter_context(socket.create_server(("127.0.0.1", 0)))
    setting.settings[Role.GUEST]["metrics"] = {"listen": f"127.0.0.1:{taken.getsockname()[1]}"}


def metrics_for_all_to_read(setting: Setting) -> None:
    setting.settings[Role.GUEST]["metrics"] = {"listen": "0.0.0.0:0"}


def page_for_this_machine(setting: Setting) -> None:
    setting.settings[Role.GUEST]["ui"] = {"listen": "127.0.0.1:0"}


def page_where_it_listens(setting: Setting) -> None:
    guest = setting.settings[Role.GUEST]
    guest["ui"] = {"listen": guest["listen"]}


def traces_without_opentelemetry(setting: Setting) -> None:
    setting.settings[Role.GUEST]["traces"] = {"endpoint": "http://127.0.0.1:4318/v1/traces"}
    setting.monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)


def a_state_folder_below_a_closed_one(setting: Setting) -> None:
    # No mode keeps root out of a folder, so that it is the look that fails here.
    folder, exists = setting.state(Role.GUEST), Path.exists

    def look(path: Path) -> bool:
        if path == folder:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return exists(path)

    setting.monkeypatch.setattr(Path, "exists", look)


def may_not_write(setting: Setting, *folders: Path) -> None:
    # No mode keeps root from writing.
    access = os.access
    setting.monkeypatch.setattr(os, "access", lambda path, mode, **how: path not in folders and access(path, mode))


def before_the_first_start(setting: Setting) -> None:
    may_not_write(setting, setting.folder)


def before_the_first_start_far_below(setting: Setting) -> None:
    may_not_write(setting, setting.folder)
    setting.settings[Role.GUEST]["state"] = str(setting.folder / "lib" / "trilateral" / "guest" / "state")


def a_state_folder_of_someone_else(setting: Setting) -> None:
    may_not_write(setting, setting.state(Role.GUEST))


def this_machine_alone(setting: Setting) -> None:
    setting.settings[Role.GUEST]["peers"]["host"]["address"] = "host.example.org:50051"


LOCAL = [
    Case(a_setting_misspelt, PROBLEM, "guest.yaml: listne: unknown key; did you mean listen?"),
    Case(one_name_for_both_peers, PROBLEM, "guest.yaml: peers: both peers have the certificate name localhost"),
    Case(
        a_setting_of_the_environment, NOTE, "environment: TRILATERAL_POLICY__MIN_KEY_BITS overrides `policy.min_key_b"
    ),
    Case(a_proxy, NOTE, "environment: https_proxy has no effect on calls to peers"),
    Case(
        a_proxy_and_traces,
        NOTE,
        "environment: https_proxy has no effect on calls to peers, which must be reachable directly; only traces",
    ),
    Case(a_table_of_another_name, PROBLEM, "datasets.made: there is no file"),
    Case(no_label_column, PROBLEM, "datasets.made: "),
    Case(a_category_that_means_missing, NOTE, "datasets.made: categories are missing in 'job' (50 rows): an empty fie"),
    Case(other_label_values, PROBLEM, "datasets.made: column 'label'"),
    Case(labels_forgotten, WARNING, "datasets: no dataset has a `label`, so this guest can train nothing"),
    Case(labels_forgotten_for_a_job, PROBLEM, "datasets.made: dataset 'made': the guest needs the labels: set `label`"),
    Case(a_dataset_for_predictions, NOTE, "datasets.new: has no `label`, so it serves for predictions only"),
    Case(
        all_positive_rows_in_the_hold_out,
        WARNING,
        "datasets.made: before alignment, a job with the defaults: training needs 2 training rows and 1 hold-out row",
    ),
    Case(few_positive_rows, WARNING, "datasets.made: before alignment: only "),
    Case(labels_at_the_host, PROBLEM, "datasets.made: dataset 'made': the host has no labels", Role.HOST),
    Case(an_id_twice, PROBLEM, "datasets.made: column 'id' repeats an earlier ID in 1 of 200 rows", Role.HOST),
    Case(
        a_table_with_two_names, NOTE, "datasets: made, again read host.csv: the ledger counts what each of", Role.HOST
    ),
    Case(a_column_of_row_numbers, NOTE, "datasets.made: left out column 'Unnamed: 0': named like a", Role.HOST),
    Case(a_constant_column, NOTE, "datasets.made: left out column 'x0': the same value in all training", Role.HOST),
    Case(a_constant_column_refused, PROBLEM, "datasets.made: column 'x0' has the same value in all tr", Role.HOST),
    Case(an_id_twice_of_which_one_counts, NOTE, "datasets.made: 1 row repeats an earlier ID: kept the f", Role.HOST),
    Case(a_label_of_no_column, WARNING, "datasets.made.reason_labels: no feature has the name 'x99'", Role.HOST),
    Case(a_column_of_words, PROBLEM, "datasets.made: column 'x0' has 1 value that is not a number", Role.HOST),
    Case(
        few_rows_for_the_policy, WARNING, "datasets.made: a job with the defaults: the host refuses the job", Role.HOST
    ),
    Case(few_labels, WARNING, "a host with one column could learn too much about the labels: try more rows"),
    Case(few_labels, WARNING, "policy.min_label_bits allows the host 0 columns; one column is sure to be allowed with"),
    Case(weights_by_label, OK, "datasets.made: before alignment: training rows count by label.class_weight, as much"),
    Case(
        weights_for_a_job_that_cannot_have_any,
        PROBLEM,
        "policy: the guest refuses the job under datasets.made.label.class_weight: a ciphertext holds many rows",
    ),
    Case(
        weights_of_few_rows,
        WARNING,
        "datasets.made: a job with the defaults: the guest refuses the job under policy.min_batch: the minimum is 100",
    ),
    Case(
        few_rows_for_a_job,
        PROBLEM,
        "datasets.made: the job: the host refuses the job under policy.min_r",
        Role.HOST,
    ),
    Case(a_small_key, PROBLEM, "policy: the guest refuses the job under policy.min_key_bits: the minimum is 2048"),
    Case(another_dataset, PROBLEM, "policy: the guest has no dataset named other"),
    Case(a_job_misspelt, PROBLEM, "job.yaml: epoch: unknown key; did you mean epochs?"),
    Case(a_name_in_use, PROBLEM, "policy: the host already has a job named job", Role.HOST),
    Case(a_name_in_use_at_the_coordinator, PROBLEM, "state: the coordinator already has a job named", Role.COORDINATOR),
    Case(
        few_ids_left,
        OK,
        "policy: if the other party also has 200 rows, the alignment counts about 200 of its IDs; policy.max_ids_a_day"
        " leaves 1,000 today",
        Role.HOST,
    ),
    Case(
        no_scores_left,
        PROBLEM,
        "datasets.made: the job: the host refuses the job under policy.max_sc",
        Role.HOST,
    ),
    Case(
        no_points_left,
        PROBLEM,
        "datasets.made: the job: the host refuses the job under policy.min_columns_per_point: rows of made with 3 col",
        Role.HOST,
    ),
    Case(
        no_equations_left, PROBLEM, "datasets.made: the job: the guest refuses the job under policy.min_label_bits: all"
    ),
    Case(
        an_earlier_training,
        OK,
        "datasets.made: before alignment: 3 of at most 66 equations about these rows given to the guest",
        Role.HOST,
    ),
    Case(an_earlier_training_at_the_guest, OK, "enough for 2 equations, 1 of them given (trainings: 1); the secret"),
    Case(
        an_earlier_training,
        OK,
        "datasets.made: rows scored for the guest with 1 of at most 1 different sets of weights",
        Role.HOST,
    ),
    Case(a_damaged_ledger, PROBLEM, "datasets.made: the host accepts no job and gives no scores, because", Role.HOST),
    Case(no_table, WARNING, "datasets: no table is configured", Role.HOST),
    Case(little_memory, WARNING, "memory: reading took up to"),
    Case(a_key_for_all_to_read, PROBLEM, "tls.key: "),
    Case(a_key_of_another_certificate, PROBLEM, "tls.key: "),
    Case(an_expired_certificate, PROBLEM, "tls.certificate: "),
    Case(a_certificate_that_expires_soon, WARNING, "tls.certificate: expires at "),
    Case(a_certificate_of_another_authority, PROBLEM, "tls.certificate: peers that trust "),
    Case(a_certificate_of_an_unlisted_intermediate, PROBLEM, "none of its authorities has issued this certificate"),
    Case(a_certificate_for_servers_alone, PROBLEM, "tls.certificate: peers that trust "),
    Case(an_authority_that_grpc_cannot_read, PROBLEM, "refuse it (gRPC reports: public key decode error"),
    Case(
        a_certificate_with_a_rule_that_grpc_does_not_know,
        PROBLEM,
        "refuse it (a client reports: unhandled critical extension)",
    ),
    Case(a_key_that_grpc_cannot_read, PROBLEM, "own.pem has a key that TLS libraries refuse: use RSA of"),
    Case(a_peers_certificate, PROBLEM, "tls.certificate: "),
    Case(an_expired_authority, PROBLEM, "tls.authorities: all certificates in "),
    Case(all_authorities_of_the_system, WARNING, "tls.authorities: "),
    Case(a_state_folder_of_another_role, PROBLEM, "state: the folder "),
    Case(a_file_for_a_state_folder, PROBLEM, "state: "),
    Case(another_programs_journal, PROBLEM, "state: "),
    Case(a_newer_journal, PROBLEM, "state: "),
    Case(a_damaged_journal, PROBLEM, "state: "),
    Case(another_state_key, PROBLEM, "state_key: is another key than the one that encrypted"),
    Case(no_state_key, PROBLEM, "state_key: is missing, and "),
    Case(a_changed_audit_log, WARNING, "audit.jsonl, line 2 does not continue the line before it"),
    Case(memory_that_may_reach_swap_space, WARNING, "swap: parts of private keys may reach", Role.COORDINATOR),
    Case(a_full_disk, WARNING, "state: 50 MiB are free"),
    Case(more_scratch_space_than_there_is, WARNING, "scratch.max_gb: allows 1,000,000,000.0 GB on disk, and jobs can"),
    Case(a_scratch_folder_that_others_can_read, PROBLEM, "scratch.folder: the folder .scratch in it must belong"),
    Case(a_scratch_folder_that_is_a_file, PROBLEM, "file cannot be used: Not a directory: name another folder"),
    Case(a_scratch_folder_of_someone_else, PROBLEM, "cannot be used: Permission denied"),
    Case(a_table_that_does_not_fit_in_scratch_space, PROBLEM, "datasets.made: scratch.max_gb: 0.0 MB of scratch"),
    Case(rows_on_disk_in_clear, NOTE, "scratch.encrypt: rows on disk are not encrypted"),
    Case(few_open_files, WARNING, "open files: at most 256"),
    Case(no_kernel, WARNING, "arithmetic: gmpy2, 5 to 15 times slower than the kernel, because the processor has no"),
    Case(
        no_kernel_of_shares,
        WARNING,
        "arithmetic of shares: numpy, about forty times slower than the kernel, because the processor has no AES",
    ),
    Case(
        no_kernel_of_alignments,
        NOTE,
        "arithmetic of alignments: libsodium, about six times slower than the kernel, because the processor has no",
    ),
    Case(many_threads, WARNING, "limits.threads: 1000 threads on "),
    Case(
        a_share_of_a_processor, WARNING, "limits.threads: 8 threads on 8 processors, of which this container may use 1"
    ),
    Case(a_port_in_use, PROBLEM, "listen: "),
    Case(an_address_of_another_machine, PROBLEM, "listen: 192.0.2.7:50052 is not an address of this machine"),
    Case(a_port_that_needs_a_privilege, PROBLEM, "listen: 127.0.0.1:443 is not permitted for this user: choose a port"),
    Case(a_name_of_no_machine_to_listen_on, PROBLEM, "has a host name that cannot be resolved: correct it, or use 0"),
    Case(a_port_left_open, WARNING, "listen: 127.0.0.1:0 has no fixed port"),
    Case(this_machine_alone, WARNING, "listen: "),
    Case(metrics_where_it_listens, PROBLEM, "metrics.listen: 127.0.0.1:PORT has the same port as `listen`, 127.0.0.1"),
    Case(
        metrics_on_all_of_where_it_listens, PROBLEM, "metrics.listen: 0.0.0.0:PORT has the same port as `listen`, 127"
    ),
    Case(online_where_it_listens, PROBLEM, "online.listen: 127.0.0.1:PORT has the same port as `listen`, 127.0.0.1"),
    Case(
        online_without_permission,
        PROBLEM,
        f"online.precompute: job churn with dataset {DATASET}: the host refuses the prediction under policy.allow_pred",
        at=Role.HOST,
    ),
    Case(
        online_without_a_dataset,
        PROBLEM,
        "online.precompute: job churn with dataset other: the host has no dataset named other",
        at=Role.HOST,
    ),
    Case(
        online_without_a_model,
        NOTE,
        f"online.precompute: job churn with dataset {DATASET}: there is no model yet",
        at=Role.HOST,
    ),
    Case(metrics_in_use_beside_a_port_left_open, PROBLEM, "metrics.listen: 127.0.0.1:"),
    Case(metrics_for_all_to_read, WARNING, "metrics.listen: anyone who can connect to 0.0.0.0:0 can read names"),
    Case(
        page_for_this_machine, WARNING, "ui.listen: every user and every program of this machine can open 127.0.0.1:0"
    ),
    Case(page_where_it_listens, PROBLEM, "ui.listen: 127.0.0.1:PORT has the same port as `listen`, 127.0.0.1"),
    Case(traces_without_opentelemetry, PROBLEM, "traces.endpoint: OpenTelemetry is not installed: run `pip install"),
    Case(
        before_the_first_start,
        PROBLEM,
        "/state/guest does not exist: start the systemd unit, which makes it, or run as",
    ),
    Case(before_the_first_start_far_below, PROBLEM, "/lib/trilateral/guest/state does not exist: start the systemd un"),
    Case(a_state_folder_of_someone_else, PROBLEM, "/state/guest: make the user of the process its owner"),
    Case(a_state_folder_below_a_closed_one, PROBLEM, "/state/guest: Permission denied: run this check as the user"),
]


def test_files_that_a_container_can_drop_count_as_free_memory(setting: Setting) -> None:
    assert machine.free_memory() != 1000 - 900
    machine.CGROUP.mkdir()
    for name, content in (("memory.max", "1000\n"), ("memory.current", "900\n")):
        (machine.CGROUP / name).write_text(content)
    assert machine.free_memory() == 1000 - 900
    (machine.CGROUP / "memory.stat").write_text("anon 100\nactive_file 100\ninactive_file 700\n")
    assert machine.free_memory() == 1000 - 900 + 700


# --- peers


def peer_of_guest(setting: Setting) -> dict[str, Any]:
    setting.served = {Role.HOST, Role.COORDINATOR}
    peer: dict[str, Any] = setting.settings[Role.GUEST]["peers"]["host"]
    return peer


def a_name_that_nobody_knows(setting: Setting) -> None:
    peer_of_guest(setting)["address"] = "hots.example.org:50051"
    resolve = socket.getaddrinfo

    def without(host: Any, *arguments: Any, **options: Any) -> Any:
        if host == "hots.example.org":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *arguments, **options)

    setting.monkeypatch.setattr(socket, "getaddrinfo", without)


def nothing_that_listens(setting: Setting) -> None:
    peer_of_guest(setting)
    setting.served = {Role.COORDINATOR}


def listens_instead(setting: Setting, talk: Any, tls: ssl.SSLContext | None = None) -> None:
    """Have something else where the host should be, in a thread of its own."""
    peer_of_guest(setting)
    setting.served = {Role.COORDINATOR}
    host, _, port = setting.settings[Role.HOST]["listen"].rpartition(":")

    @asynccontextmanager
    async def served() -> AsyncIterator[None]:
        async with await asyncio.start_server(talk, host, int(port), ssl=tls):
            yield

    setting.late.append(served)


async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.9\r\n")
    writer.close()


async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


def another_program(setting: Setting) -> None:
    listens_instead(setting, greet)


def one_that_hangs_up(setting: Setting) -> None:
    listens_instead(setting, hang_up)


def one_that_says_nothing(setting: Setting) -> None:
    setting.monkeypatch.setattr(peers, "SECONDS", 2.0)  # the other peers answer sooner, even on a busy machine
    listens_instead(setting, say_nothing)


def a_web_server(setting: Setting) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(setting.tls(Role.HOST) / "own.pem", setting.tls(Role.HOST) / "key.pem")
    listens_instead(setting, say_nothing, tls)


def a_server_of_something_else(setting: Setting) -> None:
    setting.use_plaintext(*Role)
    peer_of_guest(setting)
    setting.served = {Role.COORDINATOR}

    @asynccontextmanager
    async def served() -> AsyncIterator[None]:
        server = grpc.aio.server()
        server.add_insecure_port(setting.settings[Role.HOST]["listen"])
        await server.start()
        yield
        await server.stop(None)

    setting.late.append(served)


def a_peer_in_plaintext(setting: Setting) -> None:
    peer_of_guest(setting)
    setting.use_plaintext(Role.HOST)


def plaintext_here(setting: Setting) -> None:
    peer_of_guest(setting)
    setting.use_plaintext(Role.GUEST)


def another_name_than_expected(setting: Setting) -> None:
    peer_of_guest(setting)["name"] = "host.example.com"


def swapped_addresses(setting: Setting) -> None:
    peer_of_guest(setting)
    both = setting.settings[Role.GUEST]["peers"]
    both["host"]["address"], both["coordinator"]["address"] = both["coordinator"]["address"], both["host"]["address"]


def swapped_addresses_in_plaintext(setting: Setting) -> None:
    swapped_addresses(setting)
    setting.use_plaintext(*Role)


def a_peer_of_another_authority(setting: Setting) -> None:
    peer_of_guest(setting)
    setting.certify(Role.HOST, by=new_authority(), trusts=setting.authority)


def a_peer_below_an_unlisted_intermediate(setting: Setting) -> None:
    peer_of_guest(setting)
    certify_below(setting, Role.HOST)


def a_peer_below_an_unlisted_intermediate_of_a_root_without_limit(setting: Setting) -> None:
    setting.authority = root_without_limit()
    for role in Role:
        setting.certify(role)
    a_peer_below_an_unlisted_intermediate(setting)


def a_peer_with_another_key_than_the_pinned(setting: Setting) -> None:
    peer_of_guest(setting)
    setting.settings[Role.GUEST]["peers"][Role.HOST]["fingerprint"] = "ab" * 32


def a_peer_whose_certificate_has_expired(setting: Setting) -> None:
    # A server of this project that starts with such a one ends at once, and one that runs goes on.
    setting.certify(Role.HOST, expires=datetime.now(UTC) - timedelta(minutes=1))
    a_web_server(setting)


def a_peer_whose_certificate_expires_soon(setting: Setting) -> None:
    peer_of_guest(setting)
    setting.certify(Role.HOST, expires=datetime.now(UTC) + timedelta(minutes=3))


def a_peer_that_trusts_others(setting: Setting) -> None:
    peer_of_guest(setting)
    setting.certify(Role.HOST, trusts=new_authority())


def a_peer_that_knows_another_name(setting: Setting) -> None:
    peer_of_guest(setting)
    setting.settings[Role.HOST]["peers"]["guest"]["name"] = "bank.example.org"


def a_peer_that_takes_us_for_another(setting: Setting) -> None:
    peer_of_guest(setting)
    both = setting.settings[Role.HOST]["peers"]
    both["guest"]["name"], both["coordinator"]["name"] = both["coordinator"]["name"], both["guest"]["name"]


def a_newer_peer(setting: Setting) -> None:
    peer_of_guest(setting)
    let_versions_differ(setting.monkeypatch)
    setting.versions = {Role.HOST: NEWER}


def a_clock(setting: Setting, ahead: float) -> None:
    peer_of_guest(setting)

    async def ask(*arguments: Any) -> Any:
        return replace(await ask_description(*arguments), clock_ahead=ahead)

    setting.monkeypatch.setattr(peers, "ask_description", ask)


def a_clock_that_is_fast(setting: Setting) -> None:
    a_clock(setting, 90)


def a_clock_that_is_slow(setting: Setting) -> None:
    a_clock(setting, -4000)


PEERS = [
    Case(a_name_that_nobody_knows, PROBLEM, "peers.host: the name hots.example.org cannot be resolved"),
    Case(nothing_that_listens, PROBLEM, "peers.host: 127.0.0.1:PORT refuses the connection"),
    Case(another_program, PROBLEM, "peers.host: 127.0.0.1:PORT does not speak TLS like a host"),
    Case(one_that_hangs_up, PROBLEM, "peers.host: 127.0.0.1:PORT closes the connection in the TLS handshake"),
    Case(one_that_says_nothing, PROBLEM, "peers.host: 127.0.0.1:PORT accepts connections but does not complete"),
    Case(a_web_server, PROBLEM, "peers.host: 127.0.0.1:PORT speaks TLS but not gRPC"),
    Case(a_server_of_something_else, PROBLEM, "peers.host: 127.0.0.1:PORT speaks gRPC but is not a trilateral"),
    Case(a_peer_in_plaintext, PROBLEM, "peers.host: 127.0.0.1:PORT does not speak TLS like a host"),
    Case(plaintext_here, PROBLEM, "peers.host: 127.0.0.1:PORT cannot be called: it closes the connection"),
    Case(
        another_name_than_expected, PROBLEM, "peers.host: 127.0.0.1:PORT shows a certificate for host.example.org inst"
    ),
    Case(
        swapped_addresses, PROBLEM, "shows the certificate of the coordinator, coordinator.example.org: the two addre"
    ),
    Case(swapped_addresses_in_plaintext, PROBLEM, "is the coordinator, not the host: correct `peers.host.address`"),
    Case(a_peer_of_another_authority, PROBLEM, "does not accept the certificate of 127.0.0.1:PORT: unable to"),
    Case(
        a_peer_below_an_unlisted_intermediate_of_a_root_without_limit,
        PROBLEM,
        "no authority in `tls.authorities` has issued its certificate itself: find out who issued it, and add that",
    ),
    Case(
        a_peer_below_an_unlisted_intermediate, PROBLEM, "does not accept the certificate of 127.0.0.1:PORT: path length"
    ),
    Case(a_peer_with_another_key_than_the_pinned, PROBLEM, "which is not one of `peers.host.fingerprint`: compare"),
    Case(
        a_peer_whose_certificate_has_expired,
        PROBLEM,
        "does not accept the certificate of 127.0.0.1:PORT: certificate has expired",
    ),
    Case(a_peer_whose_certificate_expires_soon, WARNING, "peers.host: its certificate expires at"),
    Case(
        a_peer_that_trusts_others,
        PROBLEM,
        "peers.host: 127.0.0.1:PORT cannot be called: it closes the connection, perhaps because",
    ),
    Case(a_peer_that_knows_another_name, PROBLEM, "does not recognise this certificate as any role ("),
    Case(a_peer_that_takes_us_for_another, PROBLEM, "recognises this process as the coordinator: at the host"),
    Case(
        a_newer_peer,
        PROBLEM,
        f"peers.host: the host speaks version {NEWER.protocol} of the protocol (trilateral 99.0), but this proc",
    ),
    Case(a_clock_that_is_fast, WARNING, "peers.host: its clock is 90 s ahead of this one"),
    Case(a_clock_that_is_slow, WARNING, "peers.host: its clock is 4,000 s behind this one"),
]


async def test_all_refusals_of_a_job_are_named_at_once(setting: Setting) -> None:
    neither_ids_nor_scores_nor_points_left(setting)
    problems = [str(finding) for finding in await setting.check(Role.HOST) if finding.level is PROBLEM]
    refused = "the host refuses the job under policy"
    assert [problem.partition(": the maximum")[0].partition(": rows of")[0] for problem in problems] == [
        f"policy.max_ids_a_day: if the other party also has 200 rows: {refused}.max_ids_a_day",
        f"datasets.made: the job: {refused}.max_scores_a_day",
        f"datasets.made: the job: {refused}.min_columns_per_point",
    ]
    assert "200 needed; 20000200 would allow it today" in problems[0]


@pytest.mark.parametrize("case", [*LOCAL, *PEERS], ids=lambda case: case.arrange.__name__)
async def test_each_problem_is_named(case: Case, setting: Setting) -> None:
    case.arrange(setting)
    findings = await setting.check(case.at)
    of = Role.HOST if case in PEERS else case.at
    text = case.text.replace("PORT", setting.settings[of]["listen"].rpartition(":")[2])
    named = [finding for finding in findings if finding.level is case.level and text in str(finding)]
    assert len(named) == 1, "\n".join(f"{finding.level.name} {finding}" for finding in findings if finding.level)
    # Nothing else is blamed, but for what follows from it.
    others = [finding for finding in findings if finding.level is PROBLEM and finding not in named]
    assert len(others) <= (case.arrange in FOLLOWED), "\n".join(map(str, others))


FOLLOWED = {
    a_file_for_a_state_folder,
    an_expired_authority,
    swapped_addresses,
    swapped_addresses_in_plaintext,
    plaintext_here,
}


async def test_an_id_column_with_the_name_of_a_column_of_scores_is_reported_before_a_prediction(
    setting: Setting,
) -> None:
    for role in PARTIES:
        path = setting.folder / f"{role}.csv"
        table = pd.read_csv(path)
        table.assign(reason_1="DE").to_csv(path, index=False)
        setting.dataset(role)["id"] = ["id", "reason_1"]
    (found,) = [each for each in await setting.check(Role.GUEST) if each.subject == "datasets.made.id"]
    assert found.level is WARNING
    assert "predictions are refused: `id` names the column 'reason_1'" in found.text
    assert not [each for each in await setting.check(Role.HOST) if each.subject == "datasets.made.id"]


# --- what is printed


def test_the_command_prints_a_line_per_finding_and_fails_on_a_problem(setting: Setting) -> None:
    path = setting.folder / "host.yaml"
    setting.settings[Role.HOST]["limits"] = {"threads": 1000}
    path.write_text(json.dumps(setting.settings[Role.HOST]))
    command = ["check", "--no-peers", "--config", str(path)]
    result = CliRunner().invoke(app, command)
    *lines, summary = result.stdout.splitlines()
    assert result.exit_code == 0
    assert summary == "no problems, 1 warning"
    assert lines[0] == f"ok       {path}: the configuration of the host is valid"
    assert [line for line in lines if line.startswith("warning  limits.threads: ")]
    found = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert (found["n_problems"], found["n_warnings"], len(found["findings"])) == (0, 1, len(lines))
    assert {"level": "warning", "subject": "limits.threads"}.items() <= next(
        each.items() for each in found["findings"] if each["level"] != "ok"
    )
    an_id_twice(setting)
    assert CliRunner().invoke(app, [*command, "--json"]).exit_code == 1
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "1 problem, 1 warning"
    assert "PROBLEM  datasets.made: column 'id' repeats" in result.stdout


def test_what_a_file_without_names_has_in_its_place_is_told_to_its_owner(setting: Setting) -> None:
    setting.dataset(Role.HOST)["id"] = "patient"
    path = setting.folder / "host.yaml"
    path.write_text(json.dumps(setting.settings[Role.HOST]))
    findings = list(check_process(path, peers=False))
    assert any("x0" in str(finding) for finding in findings if finding.level is PROBLEM)
