"""A headless Chromium driven through its debugging pipe: no driver, no socket, nothing to install
but the browser itself.

Chromium started with --remote-debugging-pipe reads commands from file descriptor 3 and writes
answers to 4, JSON ended by NUL."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu",
    "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--hide-scrollbars", "--force-device-scale-factor=1",
)  # fmt: skip


def find() -> str | None:
    """The browser's path: $FMRL_CHROMIUM, or the first of the usual names."""
    return os.environ.get("FMRL_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One browser process; `page` opens a file in a new tab."""

    def __init__(self, path: str, profile: Path):
        ours, self._in = os.pipe()
        self._out, theirs = os.pipe()
        # Out of the way of 3 and 4 first, so that neither move overwrites the other's source.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 50) for fd in (ours, theirs)]

        def move() -> None:
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        # Inside a container, or as root, Chromium's own sandbox cannot start; the pages here are
        # our own files.
        command = [path, *FLAGS, "--no-sandbox", f"--user-data-dir={profile}", "about:blank"]
        how = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "close_fds": True}
        self.process = subprocess.Popen(command, preexec_fn=move, pass_fds=(3, 4), **how)
        for fd in (ours, theirs, *high):
            os.close(fd)
        self._buffer, self._next = b"", 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events met on the way are kept."""
        self._next += 1
        message = {"id": self._next, "method": method, "params": params}
        message |= {"sessionId": session} if session else {}
        os.write(self._in, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read(90.0)
            if answer is None:
                raise TimeoutError(f"no answer to {method}")
            if answer.get("id") == self._next:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def wait(self, session: str, method: str, seconds: float = 30.0) -> None:
        """Until an event of this name has come."""
        until, wanted = time.monotonic() + seconds, (method, session)
        while not any((e.get("method"), e.get("sessionId")) == wanted for e in self.events):
            if self._read(max(0.0, until - time.monotonic())) is None:
                raise TimeoutError(f"{method} never came")

    def _read(self, seconds: float) -> dict[str, Any] | None:
        until = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._out], [], [], max(0.0, until - time.monotonic()))
            chunk = os.read(self._out, 1 << 20) if ready else b""
            if not chunk:
                return None
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message

    def page(self, path: Path, **look: Any) -> Page:
        """A new tab that has loaded ``path``, with a `Page`'s width, height, dark and touch."""
        return Page(self, path, **look)

    def close(self) -> None:
        """End the browser."""
        try:
            self.call("Browser.close")
            self.process.wait(10)
        except (OSError, TimeoutError, RuntimeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        finally:
            os.close(self._in)
            os.close(self._out)


class Page:
    """A tab: evaluates scripts, moves the mouse, presses keys, and remembers what was logged and
    requested.
    """

    def __init__(
        self, browser: Browser, path: Path, width: int = 1100, height: int = 900,
        dark: bool = False, touch: bool = False,
    ):  # fmt: skip
        self.browser = browser
        self.target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": touch}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch)
        self.scheme("dark" if dark else "light")
        browser.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        browser.wait(self.session, "Page.loadEventFired")
        self.frames()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def scheme(self, name: str) -> None:
        """prefers-color-scheme."""
        feature = {"name": "prefers-color-scheme", "value": name}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def js(self, expression: str) -> Any:
        """The value of an expression; a promise is awaited, an exception raised."""
        how = {"returnByValue": True, "awaitPromise": True}
        answer = self.call("Runtime.evaluate", expression=expression, **how)
        if "exceptionDetails" in answer:
            thrown = answer["exceptionDetails"]["exception"]
            raise RuntimeError(thrown.get("description", "script failed"))
        return answer["result"].get("value")

    def frames(self) -> None:
        """Until layout and observers have settled."""
        twice = "requestAnimationFrame(() => requestAnimationFrame(() => r(true)))"
        self.js(f"new Promise(r => {twice})")

    def mouse(self, kind: str, x: float, y: float, clicks: int = 0) -> None:
        held = kind != "mouseMoved" or clicks
        more = {"button": "left", "buttons": 1, "clickCount": clicks or 1} if held else {}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def press(self, key: str) -> None:
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def screenshot(self, path: Path, selector: str | None = None) -> None:
        """The whole page, or one element of it, as a PNG."""
        node = f"document.querySelector({json.dumps(selector or 'html')})"
        sides = "r => [r.x, r.y + scrollY, r.width, r.height]"
        x, y, width, height = self.js(f"({sides})({node}.getBoundingClientRect())")
        clip = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
        how = {"format": "png", "clip": clip, "captureBeyondViewport": True}
        data = self.call("Page.captureScreenshot", **how)["data"]
        Path(path).write_bytes(base64.b64decode(data))

    @property
    def complaints(self) -> list[str]:
        """Console errors and warnings, log entries (content policy included) and uncaught
        exceptions.
        """
        found, loud = [], ("error", "warning", "assert")
        for event in self._events():
            method, params = event["method"], event["params"]
            if method == "Runtime.exceptionThrown":
                thrown = params["exceptionDetails"].get("exception", {})
                found.append(thrown.get("description", "exception"))
            elif method == "Log.entryAdded":
                found.append(params["entry"]["text"])
            elif method == "Runtime.consoleAPICalled" and params["type"] in loud:
                found.append(str(params["args"]))
        return found

    @property
    def requests(self) -> list[str]:
        """Every address asked for, data: and the page itself included."""
        asked = (e for e in self._events() if e["method"] == "Network.requestWillBeSent")
        return [e["params"]["request"]["url"] for e in asked]

    def _events(self) -> list[dict[str, Any]]:
        self.js("1")  # whatever was under way has been reported once this is answered
        return [e for e in self.browser.events if e.get("sessionId") == self.session]

    def close(self) -> None:
        self.browser.call("Target.closeTarget", targetId=self.target)
