"""Fixtures shared by the whole suite, a real browser among them."""

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# Workers share the cores; read once, when torch loads, and inherited by every process a test starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")


class FilesAndBlocks(LoadScopeScheduling):
    """A file stays on one worker, so that its fixtures are made once; the README's blocks share none."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if "test_readme.py" in nodeid else nodeid.split("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return FilesAndBlocks(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long, so that no worker is left alone with it at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real market data; the test is skipped where it is absent."""
    configured = os.environ.get("ARCHETYPE_SHARED_DATA")
    folder = Path(configured) if configured else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"real market data not found at {folder}; set ARCHETYPE_SHARED_DATA to its folder")
    return folder


@pytest.fixture(scope="session")
def small_policy() -> Callable[..., Any]:
    """Makes an untrained policy of four archetypes, sharp enough that every action and override occurs."""
    import polars as pl
    import torch

    from archetype_dagster.backtest.policy import TradingPolicy
    from archetype_dagster.codebook import Codebook
    from archetype_dagster.market.features import FEATURE_NAMES
    from archetype_dagster.refinement import Refiner
    from archetype_dagster.refinement.adapter import context_size
    from archetype_dagster.refinement.network import RefinerNetwork
    from archetype_dagster.seeding import seeded_initialisation
    from archetype_dagster.selection import Selector
    from archetype_dagster.selection.network import SelectorNetwork
    from archetype_dagster.settings import load_settings

    def make(changes: Mapping[str, Any]) -> TradingPolicy:
        shape = {"codebook.num_codes": 4, "codebook.code_dim": 4, "codebook.hidden_size": 8}
        settings = load_settings("smoke", {**changes, **shape, "planner.horizon_bars": 12})
        features = len(FEATURE_NAMES)
        codebook = Codebook.untrained(features, 12, settings.codebook, seed=1)
        with seeded_initialisation(1, "small_policy"):
            selector = SelectorNetwork(features, 4, (16,))
            refiner = RefinerNetwork(features, context_size(4), 16)
            torch.nn.init.normal_(codebook.quantizer.codes, std=2.0)
            torch.nn.init.normal_(codebook.decoder.head.weight, std=2.0)
            torch.nn.init.normal_(refiner.actor.weight, std=0.2)
        return TradingPolicy(
            codebook,
            Selector(selector.eval().requires_grad_(False), pl.DataFrame()),
            Refiner(refiner.eval().requires_grad_(False), pl.DataFrame()),
            settings,
        )

    return make


@pytest.fixture(scope="session")
def small_bundle(small_policy: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small policy for ETH, exported once for all workers, because tracing its graphs takes ten seconds."""
    from filelock import FileLock

    from archetype_dagster.deployment import export_policy
    from archetype_dagster.market.features import FEATURE_NAMES, compute_features
    from archetype_dagster.market.scaler import FeatureScaler
    from archetype_dagster.market.sources import bars_for

    shared = tmp_path_factory.getbasetemp()
    target = (shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared) / "small_bundle"
    with FileLock(f"{target}.lock"):
        if not (target / "checksums.json").exists():
            span = {"start": "2023-01-01T00:00:00Z", "end": "2023-01-04T00:00:00Z"}
            policy = small_policy({f"market.synthetic.{name}": date for name, date in span.items()})
            features = compute_features(bars_for(policy.settings, "ETH")).select(FEATURE_NAMES)
            target.mkdir(exist_ok=True)
            export_policy(policy, FeatureScaler.fit(features.to_numpy()), target, pair="ETH")
    return target


class Browser:
    """A headless Chromium that is driven through its debugging pipe."""

    FLAGS = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--remote-debugging-pipe",
    )

    def __init__(self, program: str, folder: Path) -> None:
        to_child, self._write = os.pipe()
        self._read, from_child = os.pipe()

        def connect() -> None:
            os.dup2(os.dup(to_child), 3)
            os.dup2(from_child, 4)

        # Chromium speaks on the descriptors 3 and 4, so they are put there after the fork.
        self._process = subprocess.Popen(
            [program, *self.FLAGS, f"--user-data-dir={folder}"],
            preexec_fn=connect,
            close_fds=False,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_child)
        os.close(from_child)
        self._buffer, self._number, self.events = b"", 0, []
        self._tab = self._session = ""

    def ask(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {
            "id": self._number,
            "method": method,
            "params": params,
            **({"sessionId": session} if session else {}),
        }
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def page(self, method: str, **params: Any) -> dict[str, Any]:
        return self.ask(method, self._session, **params)

    def open(self, address: str, *, size: tuple[int, int] = (1280, 800)) -> list[dict[str, Any]]:
        """Load a page in a tab of its own, pixels wide and high, and wait for everything in it.

        Returns what happened in this tab meanwhile.
        """
        old, self._tab = self._tab, self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=self._tab, flatten=True)["sessionId"]
        if old:
            self.ask("Target.closeTarget", targetId=old)
        self.events = []
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.page(f"{domain}.enable")
        shape = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        self.page("Emulation.setDeviceMetricsOverride", **shape)
        self.page("Page.navigate", url=address)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._next()
        # Whatever is still on its way arrives before this answer.
        self.page("Runtime.evaluate", expression="new Promise(done => setTimeout(done, 100))", awaitPromise=True)
        return self.events

    def value(self, expression: str) -> Any:
        """What a JavaScript expression is on the page, as JSON."""
        told = self.page("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in told:
            raise RuntimeError(f"{expression}: {told['exceptionDetails']}")
        return told["result"].get("value")

    def wait_for(self, expression: str, *, seconds: float = 60) -> Any:
        """The first true value of an expression."""
        until = time.monotonic() + seconds
        while not (found := self.value(expression)):
            if time.monotonic() > until:
                raise TimeoutError(f"{expression} was not true within {seconds:.0f} s")
            time.sleep(0.2)
        return found

    def press(self, key: str, code: str, *, alt: bool = False) -> None:
        """Press and release a key."""
        for kind in ("rawKeyDown", "keyUp"):
            number = ord(code[-1]) if code.startswith("Key") else 0
            about = {"key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": int(alt)}
            self.page("Input.dispatchKeyEvent", type=kind, **about)

    def click(self, expression: str) -> None:
        """Press the mouse on the middle of the element that an expression finds, once it stands still."""
        self.wait_for(f"Boolean({expression})")
        middle = (
            f"(e => {{ e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect(); "
            f"return [b.x + b.width / 2, b.y + b.height / 2] }})({expression})"
        )
        place, before = self.value(middle), None
        while place != before:
            time.sleep(0.2)
            place, before = self.value(middle), place
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            pressed = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self.page("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], **pressed)

    def picture(self, file: Path) -> Path:
        """Save what the window shows as a PNG."""
        file.write_bytes(base64.b64decode(self.page("Page.captureScreenshot", format="png")["data"]))
        return file

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + 60
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError("the browser did not answer for a minute")
            chunk = os.read(self._read, 1 << 20)
            if not chunk:
                raise ConnectionError("the browser is gone")
            self._buffer += chunk
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        if "method" in message and message.get("sessionId") == self._session:
            self.events.append(message)
        return message

    def close(self) -> None:
        os.close(self._write)
        os.close(self._read)
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture(scope="session")
def browser(tmp_path_factory) -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium on the search path")
    opened = Browser(program, tmp_path_factory.mktemp("browser"))
    yield opened
    opened.close()
