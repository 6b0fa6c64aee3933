"""Reading a process's configuration: file, environment, paths, and the errors of each."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.roles import Role
from trilateral.common.config.load import load_process_config
from trilateral.common.config.process import UNLIMITED, ProcessConfig
from trilateral.common.jobs import arithmetic

COORDINATOR = """
role: coordinator
listen: 127.0.0.1:50050
peers:
  host: localhost:50051
  guest: 127.0.0.1:50052
state: state
plaintext: true
"""


def load(tmp_path: Path, text: str, environment: Mapping[str, str] | None = None) -> ProcessConfig:
    path = tmp_path / "process.yaml"
    path.write_text(text)
    return load_process_config(path, environment or {})


def addresses(config: ProcessConfig) -> dict[Role, str]:
    return {role: peer.address for role, peer in config.peers.items()}


def problems(tmp_path: Path, text: str, environment: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, environment)
    text = str(caught.value).replace(f"{tmp_path / 'process.yaml'}: ", "")
    return re.sub(r" \(line \d+\)$", "", text, flags=re.MULTILINE).split("\n")


def test_the_least_that_a_coordinator_needs(tmp_path: Path) -> None:
    config = load(tmp_path, COORDINATOR)
    assert config.role is Role.COORDINATOR
    assert addresses(config) == {Role.HOST: "localhost:50051", Role.GUEST: "127.0.0.1:50052"}
    assert config.limits.peer_timeout == 60


def test_paths_are_relative_to_the_files_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (tmp_path / "process.yaml").write_text(COORDINATOR)
    monkeypatch.chdir(tmp_path)
    config = load_process_config(Path("process.yaml"), {})
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert config.state == (tmp_path / "state").resolve()


@pytest.mark.parametrize("path", ["/var/lib/trilateral", "~/trilateral"])
def test_other_paths_stay_what_they_are(tmp_path: Path, path: str) -> None:
    config = load(tmp_path, COORDINATOR.replace("state: state", f"state: {path}"))
    assert config.state == Path(path).expanduser().resolve()


@pytest.mark.parametrize(
    "address", ["localhost:1", "127.0.0.1:65535", "127.3.2.1:50051", '"[::1]:50051"', "127.0.0.1:0"]
)
def test_addresses_of_this_machine_are_accepted(tmp_path: Path, address: str) -> None:
    config = load(tmp_path, COORDINATOR.replace("127.0.0.1:50050", address))
    assert config.listen == address.strip('"')


@pytest.mark.parametrize(
    "address", ["0.0.0.0:50051", '"[::]:50051"', "10.0.0.4:50051", "guest.example.org:50051", "localhost.example.org:1"]
)
@pytest.mark.parametrize("key", ["listen:", "peers: guest"])
def test_an_address_beyond_this_machine_is_refused(tmp_path: Path, key: str, address: str) -> None:
    old = "127.0.0.1:50050" if key == "listen:" else "127.0.0.1:50052"
    assert problems(tmp_path, COORDINATOR.replace(old, address)) == [
        f"{key} is not a loopback address, and `plaintext: true` allows only localhost, 127.0.0.1 and "
        "[::1]: use `tls` instead"
    ]


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "50051", '"::1:50051"', "https://localhost:50051", "localhost:port", "127.0.0.1:65536"]
)
def test_what_is_no_address_is_told_the_form(tmp_path: Path, address: str) -> None:
    (line,) = problems(
        tmp_path, COORDINATOR.replace("127.0.0.1:50050", f'"{address}"' if '"' not in address else address)
    )
    assert line.startswith("listen: expected host:port, such as 127.0.0.1:50051")


def test_a_peer_needs_a_port(tmp_path: Path) -> None:
    assert problems(tmp_path, COORDINATOR.replace("127.0.0.1:50052", "127.0.0.1:0")) == [
        "peers.guest: expected the port that the peer listens on, from 1 to 65535"
    ]


def test_both_peers_are_needed(tmp_path: Path) -> None:
    assert problems(tmp_path, COORDINATOR.replace("  guest: 127.0.0.1:50052\n", "")) == [
        "peers: guest is missing: the coordinator needs the addresses of host and guest"
    ]


def test_a_process_is_not_its_own_peer(tmp_path: Path) -> None:
    text = COORDINATOR.replace("state:", "  coordinator: 127.0.0.1:50050\nstate:")
    assert problems(tmp_path, text) == ["peers: coordinator is the role of this process itself: remove it"]


def test_an_unknown_peer(tmp_path: Path) -> None:
    text = COORDINATOR.replace("  guest:", "  guset:")
    assert problems(tmp_path, text) == ["peers.guset: expected host, guest or coordinator, not guset"]


def test_a_coordinator_has_no_data(tmp_path: Path) -> None:
    text = COORDINATOR + "datasets: {credit: {path: a.csv}}\n"
    assert problems(tmp_path, text) == ["datasets: the coordinator has no data: remove `datasets`"]


def test_a_coordinator_has_no_policy(tmp_path: Path) -> None:
    problem = "policy: only the host and the guest have a policy: remove `policy`"
    assert problems(tmp_path, COORDINATOR + "policy: {min_key_bits: 3072}\n") == [problem]


def test_a_guest_has_no_scores_to_share(tmp_path: Path) -> None:
    guest = HOST.replace("role: host", "role: guest").replace("guest: 127", "host: 127").replace("50051", "50053")
    config = load(tmp_path, guest + "policy: {min_key_bits: 3072}\n")
    assert config.policy.min_key_bits == 3072
    for setting in (
        "share_holdout_scores: true",
        "max_holdout: 0.5",
        "allow_prediction: true",
        "max_scores_a_day: 1",
        "min_rows_per_equation: 3",
    ):
        problem = f"policy: this is a setting of the host alone: remove `{setting.partition(':')[0]}`"
        assert problems(tmp_path, guest + f"policy: {{{setting}}}\n") == [problem]


def test_a_daily_limit_is_a_number_or_unlimited(tmp_path: Path) -> None:
    policy = load(tmp_path, HOST + "policy: {max_ids_a_day: unlimited, max_scores_a_day: 100_000_000}\n").policy
    assert (policy.max_ids_a_day, policy.max_scores_a_day) == (UNLIMITED, 100_000_000)
    shown = policy.model_dump(mode="json")
    assert (shown["max_ids_a_day"], shown["max_scores_a_day"]) == ("unlimited", 100_000_000)
    for wrong in ("endless", "-1", "1.5"):
        assert problems(tmp_path, HOST + f"policy: {{max_ids_a_day: {wrong}}}\n")


def test_a_host_has_no_labels_to_protect(tmp_path: Path) -> None:
    guest = HOST.replace("role: host", "role: guest").replace("guest: 127", "host: 127").replace("50051", "50053")
    assert load(tmp_path, guest + "policy: {min_label_bits: 28}\n").policy.min_label_bits == 28
    problem = "policy: only the guest has labels: remove `min_label_bits`"
    assert problems(tmp_path, HOST + "policy: {min_label_bits: 0}\n") == [problem]


HOST = """
role: host
listen: 127.0.0.1:50051
peers: {coordinator: 127.0.0.1:50050, guest: 127.0.0.1:50052}
state: state
plaintext: true
datasets:
  credit-A: {path: tables/credit.csv}
"""


def test_tables_are_found_relative_to_the_file_too(tmp_path: Path) -> None:
    assert load(tmp_path, HOST).datasets["credit-A"].path == (tmp_path / "tables/credit.csv").resolve()


def test_a_column_takes_from_all_columns_what_it_does_not_set_itself(tmp_path: Path) -> None:
    path = "{path: tables/credit.csv}"
    preprocessing = "{fill: mean, clip: null, columns: {income: {transform: log}}}"
    text = HOST.replace(path, f"{{path: tables/credit.csv, preprocessing: {preprocessing}}}")
    income = load(tmp_path, text).datasets["credit-A"].preprocessing.of_column("income")
    assert (income.fill, income.clip, income.transform) == ("mean", None, "log")


def test_a_date_that_does_not_exist_is_told_by_its_line(tmp_path: Path) -> None:
    split = "{path: tables/credit.csv, split: {column: day, train_until: 2023-02-30}}"
    with pytest.raises(ConfigError, match=r"line 8, column \d+: not valid YAML: there is no date 2023-02-30"):
        load(tmp_path, HOST.replace("{path: tables/credit.csv}", split))


def test_the_environment_reaches_a_dataset_whose_name_has_capitals(tmp_path: Path) -> None:
    config = load(tmp_path, HOST, {"TRILATERAL_DATASETS__CREDIT-A__PATH": "/data/new.parquet"})
    assert config.datasets["credit-A"].path == Path("/data/new.parquet")


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("{}", "datasets.credit.path: is missing"),
        ("{path: 3}", "datasets.credit.path: expected a path, not 3"),
        ("{path: a, pat: b}", "datasets.credit.pat: unknown key; did you mean path?"),
        (
            "{path: a, preprocessing: {categorical: [b]}}",
            "datasets.credit.preprocessing.categorical: unknown key; it belongs to datasets.credit",
        ),
        ("{path: a, clip: null}", "datasets.credit.clip: unknown key; it belongs to datasets.credit.preprocessing"),
        (
            "{path: a, preprocessing: {whitn: no}}",
            "datasets.credit.preprocessing.whitn: unknown key; did you mean whiten?",
        ),
        ("{path: a, features: [x, 3]}", "datasets.credit.features.1: expected text"),
        ("{path: a, features: x}", "datasets.credit.features: expected a list, such as [a, b], not x"),
        ("{path: a, features: [x], exclude: [y]}", "datasets.credit: `features` and `exclude` cannot be combined"),
        (
            "{path: a, preprocessing: {binning: {columns: {age: {method: equal}}}}}",
            "datasets.credit.preprocessing.binning.columns.age.method: expected supervised, quantile, width or none or"
            " a list, such as [a, b], not equal",
        ),
        ("a.csv", "datasets.credit: expected nested keys with values, not a.csv"),
    ],
)
def test_what_is_wrong_deep_inside_is_named_by_all_its_keys(tmp_path: Path, table: str, problem: str) -> None:
    text = HOST.replace("credit-A: {path: tables/credit.csv}", f"credit: {table}")
    (line,) = problems(tmp_path, text)
    assert line.startswith(problem)


def test_a_datasets_name_is_checked_too(tmp_path: Path) -> None:
    (line,) = problems(tmp_path, HOST.replace("credit-A", "credit card"))
    assert line.startswith("datasets.credit card: expected 1 to 64 letters")


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("policy: {min_key_bit: 1024}", "policy.min_key_bit: unknown key; did you mean min_key_bits?"),
        ("policy: {min_key_bits: 100}", "policy.min_key_bits: expected at least 256, not 100"),
        ("policy: strict", "policy: expected nested keys with values, not strict"),
        ("limits: {peer_timeout: 0}", "limits.peer_timeout: expected more than 0, not 0"),
        ("limits: {round_timeout: soon}", "limits.round_timeout: expected a number, not soon"),
        ("datasets: [a]", "datasets: expected nested keys with values"),
        ("pears: 1", "pears: unknown key; did you mean peers?"),
        ("min_batch: 50", "min_batch: unknown key; it belongs to policy"),
        ("path: people.csv", "path: unknown key; it belongs to datasets.NAME"),
        ("policy: {state: here}", "policy.state: unknown key; it belongs at the top level"),
    ],
)
def test_a_bad_line_is_named_with_what_was_expected(tmp_path: Path, lines: str, problem: str) -> None:
    assert problems(tmp_path, HOST.partition("datasets")[0] + lines + "\n") == [problem]


def test_every_missing_key_is_told(tmp_path: Path) -> None:
    assert problems(tmp_path, "role: boss\n") == [
        "role: expected host, guest or coordinator, not boss",
        "listen: is missing",
        "peers: is missing",
        "state: is missing",
    ]


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    environment = {
        "TRILATERAL_LISTEN": "[::1]:6000",
        "TRILATERAL_POLICY__MIN_KEY_BITS": "1024",
        "TRILATERAL_POLICY__SHARE_HOLDOUT_SCORES": "false",
        "TRILATERAL_PEERS__GUEST": "localhost:7000",
        "PATH": "/bin",
    }
    config = load(tmp_path, HOST, environment)
    assert config.listen == "[::1]:6000"
    assert config.policy.min_key_bits == 1024
    assert config.policy.share_holdout_scores is False
    assert addresses(config) == {Role.COORDINATOR: "127.0.0.1:50050", Role.GUEST: "localhost:7000"}


def test_a_real_environment_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRILATERAL_STATE", "/elsewhere")
    (tmp_path / "process.yaml").write_text(COORDINATOR)
    assert load_process_config(tmp_path / "process.yaml").state == Path("/elsewhere")


def test_what_is_wrong_in_the_environment_names_the_variable(tmp_path: Path) -> None:
    environment = {"TRILATERAL_POLICY__MIN_KEY_BITS": "lots", "TRILATERAL_LISTN": "localhost:1"}
    assert problems(tmp_path, COORDINATOR, environment) == [
        "environment variable TRILATERAL_POLICY__MIN_KEY_BITS: policy.min_key_bits: expected a whole number, not lots",
        "environment variable TRILATERAL_LISTN: listn: unknown key; did you mean listen?",
    ]


def test_the_switch_for_tracebacks_is_no_setting(tmp_path: Path) -> None:
    load(tmp_path, COORDINATOR, {"TRILATERAL_DEBUG": "1", arithmetic.VARIABLE: "gmpy2"})


def test_a_path_is_shown_as_what_it_is(tmp_path: Path) -> None:
    config = load(tmp_path, COORDINATOR.replace("state: state", "state: ../state"))
    assert config.state == (tmp_path.parent / "state").resolve()
    assert ".." not in config.state.parts


# --- TLS, or plaintext by an explicit word


TLS = "tls: {certificate: certs/own.pem, key: certs/key.pem, authorities: certs/authorities.pem}"
SECURE = f"""
role: coordinator
{TLS}
listen: 0.0.0.0:50050
peers:
  host: {{address: "10.0.0.4:50051", name: host.example.org}}
  guest: guest.example.org:50051
state: state
"""


def test_with_tls_any_address_is_allowed_and_each_peer_has_a_name(tmp_path: Path) -> None:
    config = load(tmp_path, SECURE)
    assert config.listen == "0.0.0.0:50050"
    assert addresses(config) == {Role.HOST: "10.0.0.4:50051", Role.GUEST: "guest.example.org:50051"}
    names = {role: peer.certificate_name for role, peer in config.peers.items()}
    assert names == {Role.HOST: "host.example.org", Role.GUEST: "guest.example.org"}
    assert config.tls is not None
    assert config.tls.key == (tmp_path / "certs/key.pem").resolve()


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ('"[2001:DB8::1]:50051"', "2001:db8::1"),
        ("10.0.0.5:50051", "10.0.0.5"),
        ("Guest.Example.ORG:1", "guest.example.org"),
    ],
)
def test_without_a_name_the_host_of_the_address_is_the_name(tmp_path: Path, address: str, name: str) -> None:
    config = load(tmp_path, SECURE.replace("guest.example.org:50051", address))
    assert config.peers[Role.GUEST].certificate_name == name


def test_neither_tls_nor_plaintext_names_both_ways_out(tmp_path: Path) -> None:
    (line,) = problems(tmp_path, SECURE.replace(TLS, ""))
    assert line.startswith("`tls` is missing: set certificate, key and authorities (`trilateral certs` creates them)")
    assert "`plaintext: true`, which lets anyone on it read and impersonate" in line


def test_tls_and_plaintext_exclude_each_other(tmp_path: Path) -> None:
    assert problems(tmp_path, COORDINATOR + TLS) == [
        "`tls` and `plaintext: true` cannot be combined: remove one of them"
    ]


def test_every_file_of_tls_is_needed(tmp_path: Path) -> None:
    text = SECURE.replace(TLS, "tls: {certificate: own.pem, keys: key.pem}")
    assert problems(tmp_path, text) == [
        "tls.key: is missing",
        "tls.authorities: is missing",
        "tls.keys: unknown key; did you mean key?",
    ]


def test_two_peers_of_one_name_are_refused(tmp_path: Path) -> None:
    text = SECURE.replace("name: host.example.org", "name: Guest.example.org")
    (line,) = problems(tmp_path, text)
    assert line.startswith("peers: both peers have the certificate name guest.example.org: give each a name of its own")


@pytest.mark.parametrize("name", ['"*.example.org"', "https://host.example.org", '""', "host example"])
def test_a_peers_name_is_that_of_a_host(tmp_path: Path, name: str) -> None:
    (line,) = problems(tmp_path, SECURE.replace("name: host.example.org", f"name: {name}"))
    assert line.startswith("peers.host.name: expected a host name or address as in a certificate")


def test_a_peers_address_can_be_overridden_without_its_name(tmp_path: Path) -> None:
    config = load(tmp_path, SECURE, {"TRILATERAL_PEERS__HOST__ADDRESS": "10.9.9.9:1"})
    assert config.peers[Role.HOST].address == "10.9.9.9:1"
    assert config.peers[Role.HOST].certificate_name == "host.example.org"


# --- operators


def test_operators_are_the_guest_unless_it_says_otherwise(tmp_path: Path) -> None:
    config = load(tmp_path, SECURE)
    assert config.operators.start == config.operators.stop == ["guest"]
    assert config.operators.watch == ["host", "guest", "coordinator"]


def test_operators_are_roles_or_names_of_certificates(tmp_path: Path) -> None:
    config = load(tmp_path, SECURE + "operators: {start: [host, Ann.bank.example.org], watch: []}\n")
    assert config.operators.start == ["host", "ann.bank.example.org"]
    assert config.operators.stop == ["guest"]
    assert config.operators.watch == []


def test_a_misspelt_role_is_no_operator(tmp_path: Path) -> None:
    assert problems(tmp_path, SECURE + "operators: {start: [gest]}\n") == [
        "operators.start.0: gest is neither a role (host, guest, coordinator) nor a certificate name with a dot"
    ]


@pytest.mark.parametrize("name", ["'*.example.org'", "ann@bank.example.org", "https://ann.example.org", "a. b"])
def test_an_operator_has_a_name_that_a_certificate_can_have(tmp_path: Path, name: str) -> None:
    (line,) = problems(tmp_path, SECURE + f"operators: {{start: [{name}]}}\n")
    assert line.startswith("operators.start.0: expected a host name or address as in a certificate")


def test_only_the_coordinator_has_operators(tmp_path: Path) -> None:
    (line,) = problems(tmp_path, HOST.partition("datasets")[0] + "operators: {start: [host]}\n")
    assert line.startswith("operators: only the coordinator decides who may start and stop jobs")


def test_a_certificates_name_is_no_operator_in_plaintext(tmp_path: Path) -> None:
    (line,) = problems(tmp_path, COORDINATOR + "operators: {start: [ann.bank.example.org]}\n")
    assert line.startswith("operators: there are no certificate names with `plaintext: true`")


def test_a_problem_has_the_line_of_its_key(tmp_path: Path) -> None:
    text = COORDINATOR + "limits:\n  # a comment\n  max_jobs: none\noperators: {start: [guest,\n  gest]}\n"
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, {"TRILATERAL_LIMITS__THREADS": "-1"})
    path = tmp_path / "process.yaml"
    assert str(caught.value).split("\n") == [
        f"{path}: operators.start.1: gest is neither a role (host, guest, coordinator) nor a certificate name with a "
        "dot (line 13)",
        f"{path}: limits.max_jobs: expected a whole number, not none (line 11)",
        "environment variable TRILATERAL_LIMITS__THREADS: limits.threads: expected at least 0, not -1",
    ]


def test_aliases_of_aliases_cost_no_time(tmp_path: Path) -> None:
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 40))
    assert "l0: unknown key" in problems(tmp_path, f"{COORDINATOR}l0: &l0 [a]\n{levels}")[0]


# --- online scores


def test_the_host_names_what_it_scores_online_and_the_guest_where_it_listens(tmp_path: Path) -> None:
    online = load(tmp_path, HOST + "online: {precompute: [{job: churn, dataset: customers}]}\n").online
    assert [(each.job, each.dataset) for each in online.precompute] == [("churn", "customers")]
    assert online.listen is None


@pytest.mark.parametrize(
    ("config", "online", "said"),
    [
        ("host", "{listen: 127.0.0.1:8081}", "online: this is a setting of the guest alone: remove `listen`"),
        ("host", "{max_per_second: 5}", "online: this is a setting of the guest alone: remove `max_per_second`"),
        ("guest", "{precompute: []}", "online: this is a setting of the host alone: remove `precompute`"),
        ("guest", "{listen: 0.0.0.0:8081}", "online.listen: is not a loopback address"),
        ("guest", "{listen: example.org:8081}", "online.listen: is not a loopback address"),
        ("guest", "{max_per_second: 0}", "online.max_per_second: "),
        (
            "host",
            "{precompute: [{job: a, dataset: b}, {job: a, dataset: b}]}",
            "online: `precompute` has an entry twice",
        ),
        ("coordinator", "{}", "online: the coordinator scores nothing"),
    ],
)
def test_online_settings_that_cannot_be_used_are_refused(config: str, online: str, said: str, tmp_path: Path) -> None:
    guest = HOST.replace("role: host", "role: guest").replace("guest: 127", "host: 127")
    settings = {"host": HOST, "guest": guest, "coordinator": COORDINATOR}[config]
    (line,) = problems(tmp_path, settings + f"online: {online}\n")
    assert line.startswith(said)
