"""One URL at a time: resumed where it stopped, tried again after transient faults only.

Transient are 429 and 5xx answers, bodies or connections cut short, and time-outs. Everything else is final.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from threading import Lock
from typing import Final
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter

from archetype_dagster.errors import FetchError
from archetype_dagster.market.fetching.keys import ArchiveKey
from archetype_dagster.market.fetching.retries import FileFailed, Retries, TransientFault, retry_after
from archetype_dagster.settings import FetchSettings

_CHUNK_BYTES: Final = 1 << 18
_MOST_TEXT_BYTES: Final = 4096


class FileMissing(Exception):
    """The archive has no such file (404)."""


class ArchiveClient:
    """A bounded pool of connections to an archive, shared by the threads of a run.

    Args:
        settings: time-out and number of connections.
        key: the archive's key; read from the environment for each request.
        retries: how often and after which wait.
        received: told the size of every chunk as it arrives.
    """

    def __init__(
        self,
        settings: FetchSettings,
        key: ArchiveKey,
        retries: Retries,
        received: Callable[[int], None],
    ) -> None:
        self._timeout = settings.timeout_seconds
        self._key = key
        self._retries = retries
        self._open: set[requests.Response] = set()
        self._lock = Lock()
        self._received = received
        self._session = requests.Session()
        self._session.headers["User-Agent"] = "archetype-dagster"
        adapter = HTTPAdapter(pool_maxsize=settings.connections, pool_block=True)
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, adapter)

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def interrupt(self) -> None:
        """End every request of any thread with `Interrupted`: those that wait or read at once, others when answered."""
        self._retries.interrupt()
        with self._lock:
            for response in self._open:
                # One that was read to its end in this moment has no connection left to shut.
                with suppress(RuntimeError, ValueError, OSError):
                    response.raw.shutdown()

    def read_text(self, url: str) -> bytes:
        """A small file's bytes, at most 4 KiB of them; errors as in `download`."""

        def attempt() -> bytes:
            with self._response(url, {"Accept-Encoding": "identity"}) as response:
                text = b""
                for chunk in response.raw.stream(_MOST_TEXT_BYTES, decode_content=False):
                    text += chunk
                    if len(text) > _MOST_TEXT_BYTES:
                        break
                return text[:_MOST_TEXT_BYTES]

        return self._retries.run(attempt)

    def check_exists(self, url: str) -> None:
        """Ask for a file without reading it; errors as in `download`."""

        def attempt() -> None:
            with self._response(url, {}):
                pass

        self._retries.run(attempt)

    def download(self, url: str, part: Path) -> None:
        """Fetch a file's bytes as they are stored, from the end of `part` on where that exists.

        Args:
            url: the file.
            part: grows chunk by chunk and stays when this is interrupted or fails; its content is not verified here.

        Raises:
            FileMissing: the archive answers 404.
            FileFailed: a final fault, or transient ones until the attempts were used up.
            FetchError: the archive cannot be reached, or `part` cannot be written.
            Interrupted: `interrupt` was called.
        """
        self._retries.run(lambda: self._append(url, part))

    def _append(self, url: str, part: Path) -> None:
        have = part.stat().st_size if part.exists() else 0
        # An archive may store .gz files with a content encoding; asking for none could have them unpacked on the way.
        headers = {"Accept-Encoding": "gzip" if urlsplit(url).path.endswith(".gz") else "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        with self._response(url, headers) as response:
            span = response.headers.get("Content-Range", "")
            if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                if span != f"bytes */{have}":
                    part.unlink()
                    raise TransientFault("the partial file was longer than the archive's")
                return
            if response.status_code == HTTPStatus.PARTIAL_CONTENT and not span.startswith(f"bytes {have}-"):
                raise FileFailed(f"asked for the bytes from {have} on, got {span or 'no Content-Range'}")
            resumed = response.status_code == HTTPStatus.PARTIAL_CONTENT
            with writing(part), part.open("ab" if resumed else "wb") as stream:
                # What has arrived is written at once, so that neither a silent server nor a kill loses it.
                while chunk := response.raw.read1(_CHUNK_BYTES, decode_content=False):
                    stream.write(chunk)
                    stream.flush()
                    self._received(len(chunk))
                    self._retries.check()
                os.fsync(stream.fileno())

    @contextmanager
    def _response(self, url: str, headers: dict[str, str]) -> Iterator[requests.Response]:
        host = urlsplit(url).netloc
        try:
            with self._session.get(
                url, headers=headers, auth=self._key, stream=True, timeout=self._timeout
            ) as response:
                self._judge(response)
                with self._lock:
                    self._open.add(response)
                try:
                    # It may have been opened just after an interruption.
                    self._retries.check()
                    yield response
                finally:
                    with self._lock:
                        self._open.discard(response)
        except (requests.Timeout, urllib3.exceptions.TimeoutError):
            raise TransientFault(f"{host} was silent for {self._timeout:g} s") from None
        except urllib3.exceptions.ProtocolError as error:
            raise TransientFault(f"the body ended early ({error.args[0]})") from error
        except requests.ConnectionError as error:
            # Requests wraps both a connection that broke and one that never came about.
            if error.args and isinstance(error.args[0], urllib3.exceptions.ProtocolError):
                raise TransientFault(f"{host} broke the connection off") from error
            raise FetchError(f"cannot reach {host}: {self._key.redact(_root(error))}") from error
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            raise FetchError(f"cannot talk to {host}: {self._key.redact(_root(error))}") from error

    def _judge(self, response: requests.Response) -> None:
        status = response.status_code
        if status in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE):
            return
        if status == HTTPStatus.NOT_FOUND:
            raise FileMissing
        if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise TransientFault(f"the archive answered {status}", retry_after(response))
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN) and self._key.variable:
            problem = "was not accepted for it" if self._key.given else "is not set"
            raise FileFailed(f"access refused ({status}): {self._key.variable} {problem}")
        body = next(response.raw.stream(_MOST_TEXT_BYTES, decode_content=True), b"")
        text = re.sub(r"[^\x20-\x7e]+", " ", self._key.redact(body.decode(errors="replace"))).strip()
        raise FileFailed(f"the archive answered {status}{': ' if text else ''}{text[:200]}")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the file system refuses into a `FetchError` that names the path."""
    try:
        yield
    except OSError as error:
        raise FetchError(f"cannot write {path}: {error.strerror}") from error


def _root(error: BaseException) -> str:
    """The innermost reason of a chain of wrapped network errors, without addresses of Python objects."""
    while error.__context__ is not None:
        error = error.__context__
    return str(error) or type(error).__name__
