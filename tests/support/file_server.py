"""A file server on this machine, in place of a publisher's."""

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from trilateral.common.config.process import TlsConfig

Answer = Callable[[BaseHTTPRequestHandler], None]


def answer(content: bytes, status: int = 200, **headers: str) -> Answer:
    """Return a response with the length of its content, unless `Content_Length` is given; omit empty headers."""
    lines = {"Content_Length": str(len(content))} | headers

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in lines.items():
            if value:
                handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(content)

    return send


@contextmanager
def file_server(give: Answer, tls: TlsConfig | None = None) -> Iterator[tuple[str, list[str]]]:
    """Serve; yield the address of the server and a list of requests: method, path, protocol."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.requestline)
            give(self)

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """Ignore callers that disconnect early, which some tests do on purpose."""

    with Server(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.certificate, tls.key)
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()
            thread.join()
