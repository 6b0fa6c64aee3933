"""Downloads from a server that may send anything."""

import os
import socket
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.support.certificates import make_identity, new_authority, write_identity
from tests.support.file_server import Answer, answer, file_server
from trilateral.common.base.errors import ConfigError, PeerError
from trilateral.common.trial import download as module
from trilateral.common.trial.download import download

CONTENT = bytes(range(256)) * 1000


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def get(url: str, max_bytes: int = 10**6) -> bytes:
    return download(url, max_bytes, lambda done, total: None)


def refusal(give: Answer, max_bytes: int = 10**6) -> str:
    with file_server(give) as (address, _):
        url = f"{address}/data.csv"
        with pytest.raises(PeerError) as caught:
            get(url, max_bytes)
        text = str(caught.value)
        assert text.startswith(f"{url}: ")
        return text.removeprefix(f"{url}: ")


@pytest.mark.parametrize(
    ("give", "told"), [(answer(CONTENT), len(CONTENT)), (answer(CONTENT, Content_Length=""), None)]
)
def test_a_file_and_its_progress(give: Answer, told: int | None) -> None:
    seen: list[tuple[int, int | None]] = []
    with file_server(give) as (address, requests):
        url = f"{address}/static/data.csv?version=2"
        assert download(url, len(CONTENT), lambda done, total: seen.append((done, total))) == CONTENT
    assert requests == ["GET /static/data.csv?version=2 HTTP/1.1"]
    assert seen[0][0] == 0
    assert seen[-1][0] == len(CONTENT)
    assert {total for _, total in seen} == {told}


@pytest.mark.parametrize(
    ("give", "told"),
    [
        (answer(b"gone", 404), "the server answers 404 Not Found"),
        (answer(b"", 503), "the server answers 503 Service Unavailable"),
        (answer(b"", 799), "the server answers 799"),
        (answer(CONTENT, Content_Length="300000"), "the connection ended after 256,000 of 300,000 bytes: try again"),
        (answer(b"5\r\nab", Transfer_Encoding="chunked", Content_Length=""), "the connection ended after"),
        (answer(b"", 302, Location="/other.csv"), "which is not https"),
        (answer(b"", 302, Location="http://mirror.example.org/"), "redirects to http://mirror.example.org/, which is"),
        (answer(b"", 302, Location="file:///etc/hostname"), "the server answers 302 Found"),
        (lambda handler: None, "Remote end closed connection without response"),
        (lambda handler: handler.wfile.write(b"SSH-2.0\r\n") and None, "does not speak HTTP"),
    ],
)
def test_what_is_no_whole_file(give: Answer, told: str) -> None:
    assert told in refusal(give)


def test_more_than_may_come_is_refused_before_it_comes() -> None:
    assert (
        refusal(answer(b"", Content_Length="1048577"), 2**20) == "the file exceeds 1 MB, so it is not the expected one"
    )


def test_more_than_may_come_without_a_length_is_not_read_to_its_end() -> None:
    sent = []

    def give(handler: BaseHTTPRequestHandler) -> None:
        answer(b"", Content_Length="")(handler)
        while True:  # until the other side closes the connection
            sent.append(handler.wfile.write(bytes(2**16)))

    assert refusal(give, 2**20) == "the file exceeds 1 MB, so it is not the expected one"
    assert sum(sent) < 2**26


def test_a_server_that_falls_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(PeerError, match="no answer within"):
            get(url)


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(PeerError, match=f"http://127.0.0.1:{port}/: cannot be reached: Connection refused"):
        get(f"http://127.0.0.1:{port}/")


@pytest.mark.parametrize(
    "url",
    [
        "data.csv",
        "/srv/data.csv",
        "file:///srv/data.csv",
        "ftp://example.org/data.csv",
        "https://",
        "https://example.org:http/",
        "https://name:password@example.org/",
        "https://example.org/a b",
        "https://example.org/\N{LATIN SMALL LETTER E WITH ACUTE}",
        "http://[::1/",
    ],
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ConfigError, match="is not the URL of a file: expected one such as https://"):
        get(url)


def test_the_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with file_server(answer(b"by proxy")) as (address, requests):
        monkeypatch.setenv("http_proxy", address)
        assert get("http://publisher.example.org/data.csv") == b"by proxy"
    assert requests == ["GET http://publisher.example.org/data.csv HTTP/1.1"]


def test_a_certificate_of_an_unknown_authority_is_refused(tmp_path: Path) -> None:
    tls = write_identity(tmp_path, make_identity(new_authority(), "127.0.0.1"))
    with file_server(answer(CONTENT), tls) as (address, requests):
        with pytest.raises(PeerError, match="the server's certificate is not trusted: "):
            get(address)
        assert requests == []


@pytest.mark.parametrize(("name", "trusted"), [("127.0.0.1", True), ("mirror.example.org", False)])
def test_a_redirect_leads_to_https_with_the_right_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, trusted: bool
) -> None:
    tls = write_identity(tmp_path, make_identity(new_authority(), name))
    monkeypatch.setenv("SSL_CERT_FILE", str(tls.authorities))
    with file_server(answer(CONTENT), tls) as (secure, _), file_server(answer(b"", 302, Location=secure)) as (plain, _):
        if trusted:
            assert get(plain) == CONTENT
        else:
            with pytest.raises(PeerError, match="the server's certificate is not trusted: IP address mismatch"):
                get(plain)
