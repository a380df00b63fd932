"""Alerts against a real server on the loopback; its address is a secret."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from resources.alerts import WEBHOOK_VARIABLE, AlertsResource


class Hook(ThreadingHTTPServer):
    """A webhook that keeps what it is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.received: list[dict[str, Any]] = []
        self.status = 200

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hooks/s3cr3t-t0ken"


class Handler(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append({"path": self.path, **json.loads(body)})
        self.send_response(self.server.status)
        if self.server.status == 302:
            self.send_header("Location", self.server.address)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    server = Hook()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv(WEBHOOK_VARIABLE, server.address)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_failure_reaches_the_webhook_and_the_log(hook: Hook, caplog: pytest.LogCaptureFixture):
    assert AlertsResource().send("train_pair failed for ETH", "vq_codebook: no bars", link="http://ui/runs/1") == "sent"
    (received,) = hook.received
    assert received["path"] == "/hooks/s3cr3t-t0ken"
    assert received["text"] == "train_pair failed for ETH\nvq_codebook: no bars\nhttp://ui/runs/1"
    assert received["title"] == "train_pair failed for ETH"
    assert "vq_codebook: no bars" in caplog.text


@pytest.mark.parametrize(("status", "outcome"), [(500, "webhook answered 500"), (302, "webhook answered 302")])
def test_a_webhook_that_refuses_raises_nothing_and_is_not_followed_elsewhere(hook: Hook, status: int, outcome: str):
    hook.status = status
    assert AlertsResource().send("a", "b") == outcome
    assert len(hook.received) == 1


def test_the_address_is_in_no_log_and_no_message(hook: Hook, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    AlertsResource().send("a", f"cannot reach {hook.address} from here")
    assert hook.address not in json.dumps(hook.received)
    hook.shutdown()
    hook.server_close()
    assert AlertsResource(timeout_seconds=5).send("a", "b") == "webhook not reached (ConnectionError)"
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("resources")]
    assert "cannot reach *** from here" in "\n".join(ours)
    # The library below logs the path, which is half the secret, only where somebody asks for its debugging.
    shown = [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG]
    assert "s3cr3t-t0ken" not in "\n".join(shown)


def test_without_a_webhook_the_log_alone_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.delenv(WEBHOOK_VARIABLE, raising=False)
    assert AlertsResource().send("title", "text") == "logged"
    assert "title\ntext" in caplog.text
