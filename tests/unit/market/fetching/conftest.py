"""An archive on the loopback interface that serves files by range, keeps a log and fails on demand."""

from __future__ import annotations

import hashlib
import io
import threading
import time
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from archetype_dagster.market.fetching import BinanceSeries, RemoteFile

DAYS = ("2020-01-01", "2020-01-02")
# How long a paired request is kept, so that one connection too many would be seen beside it.
HELD_SECONDS = 0.05
DAY_FOLDER = "/data/spot/daily/klines/BTCUSDT/1m"


@dataclass(frozen=True)
class Fault:
    """What one request gets instead of its file.

    Attributes:
        status: answered with `body` and `headers`, where given.
        cut: body bytes sent before the connection is closed, although the headers promise all of them.
        stall: body bytes sent before the connection falls silent until the server is closed.
        whole: the range is ignored and the whole file sent, as servers without ranges do.
        unsized: the whole file, cut at this many bytes, without saying how long it should be.
    """

    status: int | None = None
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    stall: int | None = None
    whole: bool = False
    unsized: int | None = None


@dataclass(frozen=True)
class Request:
    path: str
    range: str | None
    authorization: str | None


class ArchiveServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.headers: dict[str, dict[str, str]] = {}
        self.faults: dict[str, list[Fault]] = defaultdict(list)
        self.requests: list[Request] = []
        self.closing = threading.Event()
        self.pairing: threading.Barrier | None = None
        self.active = self.most_active = 0
        self.counter = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def publish(self, path: str, payload: bytes) -> None:
        """Serve a file with its CHECKSUM beside it."""
        name = path.rsplit("/", 1)[-1]
        self.files[path] = payload
        self.files[f"{path}.CHECKSUM"] = f"{hashlib.sha256(payload).hexdigest()}  {name}\n".encode()

    def ranges(self, path: str) -> list[str | None]:
        """The Range header of each request for a path, in order."""
        return [request.range for request in self.requests if request.path == path]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ArchiveServer

    def log_message(self, *_: object) -> None:
        """The requests are kept in `ArchiveServer.requests`."""

    def do_GET(self) -> None:
        server = self.server
        with server.counter:
            server.requests.append(Request(self.path, self.headers["Range"], self.headers["Authorization"]))
            server.active += 1
            server.most_active = max(server.most_active, server.active)
            fault = server.faults[self.path].pop(0) if server.faults[self.path] else Fault()
        if server.pairing is not None:
            server.pairing.wait(timeout=10)
            time.sleep(HELD_SECONDS)
        # Counted out before the answer: a client that has it may ask again before this thread goes on.
        with server.counter:
            server.active -= 1
        self._answer(fault)

    def _answer(self, fault: Fault) -> None:
        payload = self.server.files.get(self.path)
        if fault.status is not None:
            self._send(fault.status, fault.body, fault.headers)
        elif payload is None:
            self._send(404, b"NoSuchKey", {})
        elif fault.unsized is not None:
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(payload[: fault.unsized])
        elif self.headers["Range"] is None or fault.whole:
            self._send(200, payload, {}, fault)
        else:
            first = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            if first >= len(payload):
                self._send(416, b"", {"Content-Range": f"bytes */{len(payload)}"})
            else:
                span = f"bytes {first}-{len(payload) - 1}/{len(payload)}"
                self._send(206, payload[first:], {"Content-Range": span}, fault)

    def _send(self, status: int, body: bytes, headers: dict[str, str], fault: Fault | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, **self.server.headers.get(self.path, {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if fault is not None and fault.cut is not None:
            body, self.close_connection = body[: fault.cut], True
        if fault is not None and fault.stall is not None:
            self.wfile.write(body[: fault.stall])
            self.wfile.flush()
            self.server.closing.wait()
            self.close_connection = True
            return
        self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[ArchiveServer]:
    """An archive without files."""
    with ArchiveServer() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.closing.set()
        running.shutdown()
        thread.join()


@pytest.fixture(params=["made", "real"])
def archive(server: ArchiveServer, request: pytest.FixtureRequest) -> ArchiveServer:
    """Two days of one-minute candles with checksums: made here, or the archive's own files where they are at hand."""
    if request.param == "real":
        root = request.getfixturevalue("shared_data") / "vendor" / "binance_archive"
        files = [path for path in root.rglob("*") if path.is_file()]
        server.files = {f"/{path.relative_to(root).as_posix()}": path.read_bytes() for path in files}
        return server
    for number, day in enumerate(DAYS):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as zipped:
            zipped.writestr(f"BTCUSDT-1m-{day}.csv", np.random.default_rng(number).bytes(70_000))
        server.publish(f"{DAY_FOLDER}/BTCUSDT-1m-{day}.zip", buffer.getvalue())
    return server


@pytest.fixture
def days(archive: ArchiveServer) -> tuple[RemoteFile, ...]:
    """The two days as the layout names them."""
    return BinanceSeries("BTCUSDT", period="daily").files(archive.url, date(2020, 1, 1), date(2020, 1, 3))


@pytest.fixture
def waits() -> list[float]:
    """Seconds that a run was told to wait; its `append` stands in for the clock."""
    return []


@pytest.fixture
def fault() -> type[Fault]:
    """Makes what a request gets instead of its file."""
    return Fault
