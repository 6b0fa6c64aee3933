"""``trilateral certs``: what it writes, for whose eyes, and that it overwrites nothing."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID
from typer.testing import CliRunner, Result

from trilateral.cli.main import app
from trilateral.common.base.roles import Role
from trilateral.common.config.process import TlsConfig
from trilateral.common.rpc.certificates import Certificates
from trilateral.common.rpc.issuers import fingerprint, spell
from trilateral.common.trial.authority import new_key
from trilateral.common.trial.development import DevelopmentFiles

BOTH_USES = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner()


def test_three_identities_of_one_authority(runner: CliRunner, tmp_path: Path) -> None:
    out = tmp_path / "new" / "certs"
    result = runner.invoke(app, ["certs", "development", "--out", str(out), "--host", "Box.lan", "--host", "10.0.0.7"])
    assert result.exit_code == 0, result.stderr
    files = DevelopmentFiles(out)
    (pem,) = {files.authorities(role).read_bytes() for role in Role}
    authority = x509.load_pem_x509_certificate(pem)
    for role in Role:
        settings = files.settings(role)
        certificates = Certificates(TlsConfig.model_validate(settings))
        own = f"{role}.trilateral.test"
        assert certificates.names == (own, "localhost", "127.0.0.1", "::1", "box.lan", "10.0.0.7")
        assert f"{role}/certificate.pem is for the name {own}" in result.stdout
        leaf = x509.load_pem_x509_certificate(files.certificate(role).read_bytes())
        leaf.verify_directly_issued_by(authority)
        assert leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value == BOTH_USES
        assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert (leaf.not_valid_after_utc - leaf.not_valid_before_utc).days == 30


def test_only_the_owner_can_read_what_is_written_and_the_authoritys_key_is_not(
    runner: CliRunner, tmp_path: Path
) -> None:
    runner.invoke(app, ["certs", "development", "--out", str(tmp_path / "certs")])
    files = sorted(path for path in (tmp_path / "certs").rglob("*") if path.is_file())
    assert files == sorted(DevelopmentFiles(tmp_path / "certs").all)
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert {path.parent.stat().st_mode & 0o777 for path in files} == {0o700}
    authority = x509.load_pem_x509_certificate((tmp_path / "certs/host/authorities.pem").read_bytes())
    for path in files:
        if "PRIVATE" in path.read_text():
            assert load_pem_private_key(path.read_bytes(), None).public_key() != authority.public_key()


@pytest.mark.parametrize("name", ["guest/key.pem", "host/authorities.pem"])
def test_nothing_is_overwritten(runner: CliRunner, tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text("precious")
    result = runner.invoke(app, ["certs", "development", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: --out {tmp_path}: {name} exists: choose a new folder, or replace all files of the trial with "
        "--replace\n"
    )
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / name]
    assert (tmp_path / name).read_text() == "precious"


def test_replaced_files_are_new_and_belong_together(runner: CliRunner, tmp_path: Path) -> None:
    command = ["certs", "development", "--out", str(tmp_path), "--replace"]
    assert runner.invoke(app, command).exit_code == 0
    files = DevelopmentFiles(tmp_path)
    before = {path: path.read_bytes() for path in files.all}
    assert runner.invoke(app, command).exit_code == 0
    assert all(path.read_bytes() != content for path, content in before.items())
    for role in Role:
        Certificates(TlsConfig.model_validate(files.settings(role)))


def test_a_request_for_the_organisations_own_authority(runner: CliRunner, tmp_path: Path) -> None:
    out = tmp_path / "tls"
    result = runner.invoke(
        app, ["certs", "request", "--out", str(out), "--name", "guest.bank.example.org", "--name", "10.0.0.4"]
    )
    assert result.exit_code == 0, result.stderr
    key = load_pem_private_key((out / "key.pem").read_bytes(), None)
    request = x509.load_pem_x509_csr((out / "request.pem").read_bytes())
    assert request.is_signature_valid
    assert request.public_key() == key.public_key()
    names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["guest.bank.example.org", "10.0.0.4"]
    assert request.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value == BOTH_USES
    assert {path.stat().st_mode & 0o777 for path in out.iterdir()} == {0o600}
    assert "PRIVATE" not in (out / "request.pem").read_text()
    for told in ("Send", "request.pem", "Keep it here", f"key: {out}/key.pem", "set `name` to guest.bank.example.org"):
        assert told in result.stdout

    again = runner.invoke(app, ["certs", "request", "--out", str(out), "--name", "guest.bank.example.org"])
    assert again.exit_code == 2
    assert "key.pem exists" in again.stderr


@pytest.mark.parametrize("name", ["*.example.org", "https://a.example.org", "", "a b"])
def test_what_is_no_name_is_told(runner: CliRunner, tmp_path: Path, name: str) -> None:
    for command, option in (("request", "--name"), ("development", "--host")):
        result = runner.invoke(app, ["certs", command, "--out", str(tmp_path / "tls"), option, name])
        assert result.exit_code == 2
        assert "expected a host name or an address" in result.stderr
        assert not (tmp_path / "tls").exists()


def test_a_folder_that_cannot_be_made(runner: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for command in (["development"], ["request", "--name", "a.example.org"]):
        result = runner.invoke(app, ["certs", *command, "--out", str(tmp_path / "file" / "tls")])
        assert result.exit_code == 2
        assert "cannot be written: Not a directory" in result.stderr


# --- an authority


PASSPHRASE = "correct horse"


@pytest.fixture
def authority(runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRILATERAL_AUTHORITY_PASSPHRASE", PASSPHRASE)
    folder = tmp_path / "authority"
    result = runner.invoke(app, ["certs", "authority", "--out", str(folder), "--days", "30"])
    assert result.exit_code == 0, result.stderr
    return folder


def write_request(
    folder: Path, key: CertificateIssuerPrivateKeyTypes, *extensions: x509.ExtensionType, name: str = "x"
) -> Path:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateSigningRequestBuilder(subject)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else SHA256()
    path = folder / "request.pem"
    path.write_bytes(builder.sign(key, algorithm).public_bytes(Encoding.PEM))
    return path


def sign(runner: CliRunner, request: Path, authority: Path, *names: str, **options: str) -> Result:
    arguments = [argument for name in names for argument in ("--name", name)]
    arguments += [argument for option, value in options.items() for argument in (f"--{option}", value)]
    out = request.with_name("certificate.pem")
    return runner.invoke(
        app, ["certs", "sign", str(request), "--authority", str(authority), "--out", str(out), *arguments]
    )


def test_an_authority_signs_certificates_directly_and_its_key_has_a_passphrase(authority: Path) -> None:
    certificate = x509.load_pem_x509_certificate((authority / "authorities.pem").read_bytes())
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)
    usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    assert usage.key_cert_sign
    assert usage.crl_sign
    assert not usage.digital_signature
    assert (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days == 30
    key_file = authority / "authority-key.pem"
    assert key_file.stat().st_mode & 0o777 == 0o600
    # Services of other users read certificates.
    assert (authority / "authorities.pem").stat().st_mode & 0o777 == 0o644
    with pytest.raises(TypeError):
        load_pem_private_key(key_file.read_bytes(), None)
    assert load_pem_private_key(key_file.read_bytes(), PASSPHRASE.encode()).public_key() == certificate.public_key()


def test_a_signed_certificate_has_the_typed_names_and_nothing_of_the_request_but_the_key(
    runner: CliRunner, authority: Path, tmp_path: Path
) -> None:
    key = new_key()
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=True,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    request = write_request(
        tmp_path,
        key,
        x509.BasicConstraints(ca=True, path_length=None),
        x509.SubjectAlternativeName([x509.DNSName("guest.example.org")]),
        usage,
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]),
        x509.NameConstraints(permitted_subtrees=[x509.DNSName("example.net")], excluded_subtrees=None),
        name="trilateral authority",
    )
    result = sign(runner, request, authority, "Host.example.org", "10.0.0.4")
    assert result.exit_code == 0, result.stderr
    assert "the request asks for other names, which do not count: guest.example.org" in result.stderr
    assert "asks for the right to sign certificates" in result.stderr
    assert spell(fingerprint(key.public_key())) in result.stdout
    signed = x509.load_pem_x509_certificate((tmp_path / "certificate.pem").read_bytes())
    issuer = x509.load_pem_x509_certificate((authority / "authorities.pem").read_bytes())
    signed.verify_directly_issued_by(issuer)
    assert signed.public_key() == key.public_key()
    assert signed.subject != issuer.subject
    assert {each.oid: each.critical for each in signed.extensions} == {
        ExtensionOID.BASIC_CONSTRAINTS: True,
        ExtensionOID.KEY_USAGE: True,
        ExtensionOID.EXTENDED_KEY_USAGE: False,
        ExtensionOID.SUBJECT_ALTERNATIVE_NAME: False,
        ExtensionOID.AUTHORITY_KEY_IDENTIFIER: False,
    }
    assert not signed.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert signed.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value == BOTH_USES
    assert signed.extensions.get_extension_for_class(x509.KeyUsage).value.digital_signature
    assert not signed.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    assert list(signed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value) == [
        x509.DNSName("Host.example.org"),
        x509.IPAddress(ip_address("10.0.0.4")),
    ]
    # It does not outlive its authority, although --days is 365 by default.
    assert signed.not_valid_after_utc == issuer.not_valid_after_utc


def test_the_request_of_certs_request_is_signed_and_its_fingerprint_shown_everywhere(
    runner: CliRunner, authority: Path, tmp_path: Path
) -> None:
    made = runner.invoke(app, ["certs", "request", "--name", "host.example.org", "--out", str(tmp_path / "host")])
    request = tmp_path / "host/request.pem"
    key = x509.load_pem_x509_csr(request.read_bytes()).public_key()
    result = sign(runner, request, authority, "host.example.org", days="10")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert f"{tmp_path}/host/certificate.pem is for host.example.org" in result.stdout
    shown = [
        runner.invoke(app, ["certs", "show", str(path)]).stdout for path in (request, tmp_path / "host/certificate.pem")
    ]
    for text in (made.stdout, result.stdout, *shown):
        assert spell(fingerprint(key)) in text
    for path in (request, tmp_path / "host/certificate.pem"):
        found = json.loads(runner.invoke(app, ["certs", "show", str(path), "--json"]).stdout)
        (each,) = [found["request"]] if found["request"] else found["certificates"]
        assert (each["names"], each["key"]) == (["host.example.org"], spell(fingerprint(key)))
        assert each.get("is_authority") is (None if found["request"] else False)
    assert shown[0].startswith("request for host.example.org\n")
    assert shown[1].startswith("certificate for host.example.org, valid from ")
    assert runner.invoke(app, ["certs", "show", str(authority / "authorities.pem")]).stdout.startswith("authority, ")


@pytest.mark.parametrize(
    ("make_key", "is_taken"),
    [
        (lambda: rsa.generate_private_key(65537, 2048), True),
        (lambda: ec.generate_private_key(ec.SECP384R1()), True),
        (lambda: rsa.generate_private_key(65537, 1024), False),
        (lambda: rsa.generate_private_key(3, 2048), False),
        (lambda: ec.generate_private_key(ec.SECP521R1()), False),
        (lambda: ec.generate_private_key(ec.SECP256K1()), False),
        (ed25519.Ed25519PrivateKey.generate, False),
    ],
)
def test_only_keys_that_every_tls_library_takes_are_signed(
    runner: CliRunner,
    authority: Path,
    tmp_path: Path,
    make_key: Callable[[], CertificateIssuerPrivateKeyTypes],
    is_taken: bool,
) -> None:
    result = sign(runner, write_request(tmp_path, make_key()), authority, "host.example.org")
    assert (result.exit_code == 0) is is_taken
    assert ("use RSA of 2048 to 8192 bits with exponent 65537, P-256 or P-384" in result.stderr) is not is_taken


def test_a_request_that_its_key_has_not_signed_is_refused(runner: CliRunner, authority: Path, tmp_path: Path) -> None:
    request = write_request(tmp_path, new_key(), name="host.example.org")
    der = x509.load_pem_x509_csr(request.read_bytes()).public_bytes(Encoding.DER)
    changed = x509.load_der_x509_csr(der.replace(b"host.example.org", b"hose.example.org"))
    request.write_bytes(changed.public_bytes(Encoding.PEM))
    result = sign(runner, request, authority, "host.example.org")
    assert result.exit_code == 2
    assert "is not signed by the key in it" in result.stderr


def test_what_certs_sign_refuses(
    runner: CliRunner, authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = write_request(tmp_path, new_key())
    assert "expected a host name" in sign(runner, request, authority, "*.example.org").stderr
    assert "is not a signing request in PEM" in sign(runner, authority / "authorities.pem", authority, "a.b").stderr
    monkeypatch.setenv("TRILATERAL_AUTHORITY_PASSPHRASE", "another one")
    assert "the passphrase is wrong" in sign(runner, request, authority, "a.b").stderr
    monkeypatch.delenv("TRILATERAL_AUTHORITY_PASSPHRASE")
    assert "there is no terminal" in sign(runner, request, authority, "a.b").stderr
    passphrase = tmp_path / "passphrase"
    passphrase.write_text("short\n")
    passphrase.chmod(0o600)
    arguments = {"passphrase-file": str(passphrase)}
    assert "at least 8 characters" in sign(runner, request, authority, "a.b", **arguments).stderr
    assert not (tmp_path / "certificate.pem").exists()
    passphrase.write_text(f"{PASSPHRASE}\n")
    assert sign(runner, request, authority, "a.b", **arguments).exit_code == 0
    assert "exists" in sign(runner, request, authority, "a.b", **arguments).stderr


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620])
def test_a_passphrase_that_others_can_read_is_refused(
    runner: CliRunner, authority: Path, tmp_path: Path, mode: int
) -> None:
    passphrase = tmp_path / "passphrase"
    passphrase.write_text(f"{PASSPHRASE}\n")
    passphrase.chmod(mode)
    request = write_request(tmp_path, new_key())
    result = sign(runner, request, authority, "a.b", **{"passphrase-file": str(passphrase)})
    assert result.exit_code == 2
    assert (
        f"--passphrase-file {passphrase} can be read by users other than its owner: run `chmod 600 {passphrase}`"
        in result.stderr
    )


PTY = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"


def at_a_terminal(arguments: list[str], *answers: str) -> tuple[int, str]:
    """Run `trilateral` at a terminal, answer each question, and return the exit code and what the terminal has shown.

    An answer is typed once its question has appeared, because the program drops what was typed before.
    """
    command = [sys.executable, "-c", PTY, sys.executable, "-m", "trilateral.cli.main", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRILATERAL_")}
    shown = ""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number, answer in enumerate(answers, start=1):
            while len(re.findall(r"(?:key|confirmation): ", shown)) < number:
                piece = os.read(process.stdout.fileno(), 1000).decode()
                assert piece, shown
                shown += piece
            process.stdin.write(f"{answer}\n".encode())
            process.stdin.flush()
        shown += process.stdout.read().decode()
    return process.returncode, shown


def test_a_terminal_asks_for_the_passphrase_and_does_not_show_it(runner: CliRunner, tmp_path: Path) -> None:
    out = tmp_path / "authority"
    words = ["certs", "authority", "--out", str(out)]
    code, shown = at_a_terminal(words, PASSPHRASE, "another one", PASSPHRASE, PASSPHRASE)
    assert code == 0, shown
    assert PASSPHRASE not in shown
    request = write_request(tmp_path, new_key())
    command = ["certs", "sign", str(request), "--authority", str(out), "--name", "a.b"]
    code, shown = at_a_terminal([*command, "--out", str(tmp_path / "signed.pem")], PASSPHRASE)
    assert code == 0, shown
    assert PASSPHRASE not in shown
    code, shown = at_a_terminal([*command, "--out", str(tmp_path / "other.pem")], "another one")
    assert code == 2
    assert "the passphrase is wrong" in shown


def test_an_authority_is_never_overwritten(runner: CliRunner, authority: Path) -> None:
    before = (authority / "authority-key.pem").read_bytes()
    result = runner.invoke(app, ["certs", "authority", "--out", str(authority)])
    assert result.exit_code == 2
    assert "a key is never overwritten" in result.stderr
    assert (authority / "authority-key.pem").read_bytes() == before


def test_a_certificate_that_may_not_sign_makes_no_authority(runner: CliRunner, authority: Path, tmp_path: Path) -> None:
    request = write_request(tmp_path, new_key())
    assert sign(runner, request, authority, "host.example.org").exit_code == 0
    (authority / "authorities.pem").write_bytes((tmp_path / "certificate.pem").read_bytes())
    result = sign(runner, request.rename(tmp_path / "other.pem"), authority, "a.b", out=str(tmp_path / "new.pem"))
    assert "does not permit it to sign certificates" in result.stderr
