"""A headless Chromium, driven by the DevTools protocol over two pipes. Standard library only."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import Any

NAME = next(filter(shutil.which, ("chromium", "google-chrome", "google-chrome-stable")),
            "chromium-browser")  # an older name in Debian
SECONDS = 60  # timeout of one answer


class BrowserError(Exception):
    """An error that the browser reports."""


class Browser:
    """A browser with one page, from the start to the end of the context."""

    def __init__(self, width: int = 1200, height: int = 1000,
                 switches: Sequence[str] = ()) -> None:
        self._command = [NAME, *switches, "--headless=new", "--remote-debugging-pipe",
                         "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage",
                         "--disable-extensions", "--disable-background-networking",
                         "--disable-component-update", f"--window-size={width},{height}",
                         "about:blank"]
        if os.geteuid() == 0:  # its sandbox refuses root
            self._command.insert(1, "--no-sandbox")
        self._last_id, self._rest, self._session = 0, b"", ""
        self.events: list[dict[str, Any]] = []  # all events so far, the oldest first

    def __enter__(self) -> Browser:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        read, self._write = os.pipe()
        self._read, write = os.pipe()

        def pass_pipes() -> None:  # runs in the child, which reads from 3 and writes to 4
            os.dup2(read, 10)
            os.dup2(write, 11)
            os.dup2(10, 3)
            os.dup2(11, 4)

        self._process = subprocess.Popen(
            [*self._command[:1], f"--user-data-dir={self._profile.name}", *self._command[1:]],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=pass_pipes, pass_fds=(3, 4), env={**os.environ, "HOME": self._profile.name})
        os.close(read)
        os.close(write)
        try:
            targets = self.send("Target.getTargets")["targetInfos"]
            page = next(target["targetId"] for target in targets if target["type"] == "page")
            self._session = self.send("Target.attachToTarget", targetId=page,
                                      flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                self.send(f"{domain}.enable")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._write)  # the browser ends when this pipe ends
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        self._profile.cleanup()

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls a method of the protocol and returns its result."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data):]
        while True:
            answer = self._receive()
            if answer.get("id") != self._last_id:
                self.events.append(answer)
            elif "error" in answer:
                raise BrowserError(f"{method}: {answer['error']['message']}")
            else:
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self._rest:
            if not select.select([self._read], [], [], deadline - time.monotonic())[0]:
                raise BrowserError("the browser does not answer")
            data = os.read(self._read, 1 << 20)
            if not data:
                raise BrowserError("the browser has ended")
            self._rest += data
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; if it is a promise, its result."""
        result = self.send("Runtime.evaluate", expression=expression, awaitPromise=True,
                           returnByValue=True)
        if "exceptionDetails" in result:
            raise BrowserError(json.dumps(result["exceptionDetails"]))
        return result["result"].get("value")

    def open(self, url: str) -> None:
        """Navigates, and waits until the page has loaded."""
        failure = self.send("Page.navigate", url=url).get("errorText")
        if failure:
            raise BrowserError(f"{url}: {failure}")
        self.evaluate("new Promise(done => document.readyState === 'complete' ? done() : "
                      "addEventListener('load', () => done()))")

    def wait_for(self, condition: str) -> None:
        """Waits until a JavaScript condition holds; it is checked when the document changes."""
        self.evaluate("new Promise((done, fail) => {"
                      f"  const holds = () => Boolean({condition});"
                      "  if (holds()) return done();"
                      "  const watch = new MutationObserver(() => {"
                      "    if (holds()) { watch.disconnect(); done(); }"
                      "  });"
                      "  watch.observe(document, {subtree: true, childList: true,"
                      "    attributes: true, characterData: true});"
                      f"  setTimeout(() => fail(Error({json.dumps(condition)} + ' never holds: '"
                      f"    + document.body.innerText)), {1000 * (SECONDS - 10)});"
                      "})")

    def press(self, key: str, code: int, text: str = "", modifiers: int = 0) -> None:
        """Presses and releases a key. Modifiers: 1 Alt, 2 Control, 8 Shift."""
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, modifiers=modifiers,
                      windowsVirtualKeyCode=code, text=text if kind == "keyDown" else "")

    def type(self, text: str) -> None:
        """Types text into the focused element."""
        self.send("Input.insertText", text=text)

    def screenshot(self) -> bytes:
        """A picture of the window as PNG."""
        return base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])
