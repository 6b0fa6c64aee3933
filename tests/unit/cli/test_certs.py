"""``trilateral certs``: what it writes, for whose eyes, and that it overwrites nothing."""

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID
from typer.testing import CliRunner

from trilateral.cli.main import app
from trilateral.common.base.roles import Role
from trilateral.common.config.process import TlsConfig
from trilateral.common.rpc.certificates import Certificates
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
    assert result.stderr.startswith(f"error: --out {tmp_path}: {name} exists, and a key is never overwritten")
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
