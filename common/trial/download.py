"""Downloading one file of bounded size into memory.

The file stays in memory, so that an interrupted download leaves nothing behind. Proxies from the environment apply, the
server's certificate must be trusted by this system, and redirects may only lead to https.

The standard library is enough for this single request. A library such as httpx or pooch would be a new dependency, and
the limit of the size, the rule for redirects and the error texts would still have to be written here.
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
"""Timeout for connecting, and for each further piece of the file."""
_PIECE = 2**16


def download(url: str, max_bytes: int, on_progress: Callable[[int, int | None], None]) -> bytes:
    """Download a file.

    Args:
        url: an http or https URL.
        max_bytes: the maximum size. A larger file is refused, at once if the server announces its size.
        on_progress: is called after each piece with the number of bytes received, and the total if it is known.

    Returns:
        The content of the file.

    Raises:
        ConfigError: the URL is invalid.
        PeerError: the download failed; the text begins with the URL.
    """
    _check_address(url)
    opener = urllib.request.build_opener(
        _OnlyToHttps, urllib.request.HTTPSHandler(context=ssl.create_default_context())
    )
    # Some servers refuse the default user agent of urllib.
    request = urllib.request.Request(url, headers={"User-Agent": "trilateral"})  # noqa: S310 (checked above)
    try:
        with opener.open(request, timeout=TIMEOUT_SECONDS) as response:
            return _read(response, url, max_bytes, on_progress)
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
        usable = usable and parts.port != 0  # reading `port` raises ValueError if it is invalid
    except ValueError:
        usable = False
    if not usable or not url.isascii() or any(letter <= " " for letter in url):
        raise ConfigError(f"{url!r} is not the URL of a file: expected one such as https://mirror.example.org/data.csv")


class _OnlyToHttps(urllib.request.HTTPRedirectHandler):
    """Follows redirects to https and refuses all others."""

    def redirect_request(  # noqa: PLR0917 (as in the base class)
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        if urlsplit(newurl).scheme != "https":
            fp.close()
            raise urllib.error.URLError(f"the server redirects to {newurl}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def _read(
    response: http.client.HTTPResponse, url: str, max_bytes: int, on_progress: Callable[[int, int | None], None]
) -> bytes:
    length = response.length  # None unless the server announces it
    too_large = PeerError(f"{url}: the file exceeds {max_bytes / 2**20:.3g} MB, so it is not the expected one")
    if length is not None and length > max_bytes:
        raise too_large
    content = bytearray()
    on_progress(0, length)
    while piece := response.read(_PIECE):
        content += piece
        if len(content) > max_bytes:
            raise too_large
        on_progress(len(content), length)
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
            return "the server does not speak HTTP"
    return str(error)
