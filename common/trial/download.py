"""Downloading one file of bounded size into memory.

Into memory, so that no part of a file is ever left behind. The proxies that the environment names are used, a server
must show a certificate that this system trusts, and a redirect may only lead to https.
"""

import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import Message
from typing import IO
from urllib.parse import urlsplit

from trilateral.common.base.errors import ConfigError, PeerError

TIMEOUT_SECONDS = 30.0
"""For the connection, and for each further piece."""
_PIECE = 2**16


def download(url: str, max_bytes: int, show: Callable[[int, int | None], None]) -> bytes:
    """Return what is at an http or https address.

    Args:
        url: of the file.
        max_bytes: more is refused, at once if the server says how much it is.
        show: told after each piece how many bytes have come, and how many there are as far as is known.

    Raises:
        ConfigError: it is no such address.
        PeerError: there is no whole file to be had there; the text begins with the address.
    """
    _check_address(url)
    opener = urllib.request.build_opener(
        _OnlyToHttps, urllib.request.HTTPSHandler(context=ssl.create_default_context())
    )
    # Some servers refuse the name that the library gives itself.
    request = urllib.request.Request(url, headers={"User-Agent": "trilateral"})  # noqa: S310 (checked above)
    try:
        with opener.open(request, timeout=TIMEOUT_SECONDS) as response:
            return _read(response, url, max_bytes, show)
    except urllib.error.HTTPError as error:
        error.close()
        raise PeerError(
            f"{url}: the server answers {error.code} {http.client.responses.get(error.code, '')}".rstrip()
        ) from error
    except urllib.error.URLError as error:
        raise PeerError(f"{url}: {_reason(error.reason)}") from error
    except (OSError, http.client.HTTPException) as error:
        raise PeerError(f"{url}: {_reason(error)}") from error


def _check_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
        usable = usable and parts.port != 0  # a port that is no number is told by this look at it
    except ValueError:
        usable = False
    if not usable or not url.isascii() or any(letter <= " " for letter in url):
        raise ConfigError(f"{url!r} is no address of a file: expected one such as https://mirror.example.org/data.csv")


class _OnlyToHttps(urllib.request.HTTPRedirectHandler):
    """Follows a redirect unless it would leave the encrypted web."""

    def redirect_request(  # noqa: PLR0917 (as in the base class)
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        if urlsplit(newurl).scheme != "https":
            fp.close()
            raise urllib.error.URLError(f"the server sends on to {newurl}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def _read(
    response: http.client.HTTPResponse, url: str, max_bytes: int, show: Callable[[int, int | None], None]
) -> bytes:
    length = response.length  # None unless the server says it
    too_large = PeerError(f"{url}: sends more than {max_bytes / 2**20:.3g} MB, so it is another file")
    if length is not None and length > max_bytes:
        raise too_large
    content = bytearray()
    show(0, length)
    while piece := response.read(_PIECE):
        content += piece
        if len(content) > max_bytes:
            raise too_large
        show(len(content), length)
    if length is not None and len(content) < length:
        raise PeerError(f"{url}: the connection ended after {len(content):,} of {length:,} bytes: try again")
    return bytes(content)


def _reason(error: object) -> str:
    match error:
        case ssl.SSLCertVerificationError():
            return f"the server's certificate is not trusted: {error.verify_message}"
        case TimeoutError():
            return f"no answer within {TIMEOUT_SECONDS:.0f} s"
        case http.client.IncompleteRead():
            return f"the connection ended after {len(error.partial):,} bytes: try again"
        case OSError():
            return f"cannot be reached: {error.strerror or error}"
        case http.client.HTTPException():
            return "what answers there does not speak HTTP"
    return str(error)
