#!/usr/bin/env python3
"""The page at / of the HTTP port in a real browser, with the keyboard alone; and what pages of
other sites can do there to a server on loopback that asks for no token: nothing.

    page_test.py BIN [--screenshot FILE]     the folder of fox-server; FILE: a PNG for the README
"""

from __future__ import annotations

import functools
import http.server
import json
import pathlib
import sys
import tempfile
import threading
import urllib.error
import urllib.request

import chromium
import fox_server
from fox_server import MODEL
from model_router import MAX_BODY_BYTES, ModelRouter

CONTROL = 2
LONG = (MODEL / "prompt_long.txt").read_text()
STATE = "document.body.dataset.state"


class Page(fox_server.Case):
    """One server and one browser for all cases; each opens the page anew."""

    flags = ("--http-port", "0")
    screenshot: pathlib.Path | None = None

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.url = cls.server.http_url
        cls.browser = cls.enterClassContext(chromium.Browser(1200, 1160))

    def setUp(self) -> None:
        self.browser.events.clear()
        self.browser.open(self.url)
        self.browser.wait_for("document.getElementById('model').textContent === 'demo'")

    def tearDown(self) -> None:
        """Nothing may fail unseen, and nothing may be asked of another host."""
        self.browser.evaluate("0")  # collects what has happened
        for event in self.browser.events:
            parameters = event.get("params", {})
            self.assertNotEqual(event["method"], "Runtime.exceptionThrown", parameters)
            if event["method"] == "Log.entryAdded":
                self.assertNotEqual(parameters["entry"]["level"], "error", parameters)
            if event["method"] == "Network.requestWillBeSent":
                asked = parameters["request"]["url"]
                self.assertTrue(asked.startswith((self.url, "data:")), asked)

    def text(self, element: str) -> str:
        """What an element says."""
        return self.browser.evaluate(f"document.getElementById('{element}').textContent")

    def value(self, element: str) -> str:
        """What a control holds."""
        return self.browser.evaluate(f"document.getElementById('{element}').value")

    def tab_to(self, element: str) -> None:
        """Presses Tab until the focus is there, as a reader without a mouse."""
        for _ in range(30):
            if self.browser.evaluate("document.activeElement.id") == element:
                return
            self.browser.press("Tab", 9)
        self.fail(f"no way to {element} by Tab")

    def enter(self, element: str, text: str) -> None:
        """Replaces what a control holds."""
        self.tab_to(element)
        self.browser.press("a", 65, modifiers=CONTROL)
        self.browser.evaluate("document.activeElement.select()")
        self.browser.type(text)

    def generate(self, prompt: str, max_tokens: int) -> None:
        """Fills in the form and sends it."""
        self.enter("prompt", prompt)
        self.enter("max-tokens", str(max_tokens))
        self.browser.press("Enter", 13, modifiers=CONTROL)


class PageTest(Page):
    """A model that completes text."""

    def test_a_long_prompt_is_read_and_forgotten(self) -> None:
        self.tab_to("example")
        self.browser.press("Enter", 13, text="\r")
        self.browser.wait_for("document.getElementById('status').textContent.includes('novel')")
        self.assertEqual(self.browser.evaluate("document.activeElement.id"), "prompt")
        self.assertEqual(self.value("prompt"), LONG)
        self.enter("max-tokens", "150")
        self.browser.press("Enter", 13, modifiers=CONTROL)
        self.browser.wait_for("document.getElementById('kept').textContent !== '-'")
        self.assertEqual(self.browser.evaluate(STATE), "running")  # it is seen while it happens
        self.assertLess(int(self.text("tokens").replace(",", "")), 6645)
        self.browser.wait_for(f"{STATE} === 'done' || {STATE} === 'failed'")
        self.assertRegex(self.text("status"), r"^Done: 6,645 tokens read, \d+ written$")
        answer = self.text("answer")
        self.assertIn(LONG.rstrip()[-100:], answer)
        self.assertGreater(len(answer), 500)
        self.check_figures()
        if self.screenshot is not None:
            self.browser.evaluate("document.activeElement.blur(), scrollTo(0, 0)")
            self.screenshot.write_bytes(self.browser.screenshot())

    def check_figures(self) -> None:
        """Memory, speed and certificate of a text that was mostly forgotten."""
        share = float(self.text("share").rstrip("%"))
        self.assertGreater(share, 1)
        self.assertLess(share, 25)
        kept, unpruned = (float(self.text(i).split()[0]) for i in ("kept", "unpruned"))
        self.assertAlmostEqual(100 * kept / unpruned, share, delta=1)
        self.assertGreater(float(self.text("rate")), 1)
        self.assertRegex(self.text("first"), r"^\d+\.\d\d s$")
        self.assertRegex(self.text("certificate"), r"log -1\d\.\d+ \u2264 -10\.$")
        tokens = int(self.text("tokens").replace(",", ""))
        self.assertGreater(tokens, 6645)

    def test_the_answer_is_that_of_the_api(self) -> None:
        self.enter("seed", "7")
        self.generate("The king", 24)
        self.browser.wait_for(f"{STATE} === 'done' || {STATE} === 'failed'")
        text = json.loads(self.post(model="demo", prompt="The king", max_tokens=24, seed=7,
                                    temperature=0.7))["choices"][0]["text"]
        self.assertEqual(self.text("answer"), "The king" + text)

    def test_escape_stops_it(self) -> None:
        self.generate("Once", 20000)
        self.browser.wait_for("document.getElementById('rate').textContent !== '-'")
        self.assertEqual(self.browser.evaluate(STATE), "running")
        self.assertTrue(self.browser.evaluate("document.getElementById('generate').disabled"))
        self.browser.press("Escape", 27)
        self.browser.wait_for(f"{STATE} === 'stopped'")
        self.assertEqual(self.text("status"), "Stopped")
        self.generate("Once", 3)  # and it goes on from here
        self.browser.wait_for(f"{STATE} === 'done'")

    def test_a_refusal_is_told(self) -> None:
        self.generate("", 5)
        self.browser.wait_for(f"{STATE} === 'failed'")
        self.assertRegex(self.text("status"), "^Failed: .*empty")
        self.browser.events.clear()  # the browser logs the status 400 as an error

JSON = "headers: {'Content-Type': 'application/json'}"
# What a page may try: with a question before it, and without (forms, text, no type at all).
ATTEMPTS = (f"{{method: 'POST', {JSON}, body: BODY}}",
            f"{{method: 'POST', mode: 'no-cors', {JSON}, body: BODY}}",
            "{method: 'POST', mode: 'no-cors', body: BODY}",
            "{method: 'POST', mode: 'no-cors', body: new Blob([BODY])}",
            "{method: 'POST', mode: 'no-cors', body: new URLSearchParams(BODY)}")


class OtherSitesTest(fox_server.Case):
    """A browser to which every name is this machine's, and another site on it."""

    flags = ("--http-port", "0")

    def test_other_origins_and_names_get_nothing(self) -> None:
        empty = self.enterContext(tempfile.TemporaryDirectory())
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=empty)
        site = self.enterContext(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=site.serve_forever, daemon=True).start()
        self.addCleanup(site.shutdown)
        browser = self.enterContext(chromium.Browser(
            switches=["--host-resolver-rules=MAP *.example 127.0.0.1"]))
        port = self.server.http_url.rsplit(":", 1)[1]

        def status(url: str, attempt: str = ATTEMPTS[0]) -> int:
            body = repr(json.dumps({"prompt": "Once", "max_tokens": 1}))
            return browser.evaluate(f"fetch('{url}', {attempt.replace('BODY', body)})"
                                    ".then(answer => answer.status, () => 0)")

        browser.open(f"http://elsewhere.example:{site.server_port}/")
        for attempt in ATTEMPTS:
            self.assertEqual(status(f"http://127.0.0.1:{port}/v1/completions", attempt), 0)
        self.assertEqual(status(f"http://127.0.0.1:{port}/v1/models", "{}"), 0)
        self.assertFalse(self.server.logged("request finished"))
        for name, wanted in (("elsewhere.example", 403), ("localhost", 200), ("127.0.0.1", 200)):
            browser.open(f"http://{name}:{port}/")
            self.assertEqual(status("/v1/completions"), wanted, name)


class ChatPageTest(Page):
    """A model that has a chat format."""

    chats = True

    def test_a_conversation(self) -> None:
        messages, shown = [], ""
        for said in ("The king", "Go on"):
            self.generate(said, 12)
            self.browser.wait_for(f"{STATE} === 'done' && document.getElementById('prompt')"
                                  ".value === ''")
            messages.append({"role": "user", "content": said})
            answer = json.loads(self.post("/v1/chat/completions", messages=messages, max_tokens=12,
                                          seed=1, temperature=0.7))["choices"][0]["message"]
            messages.append(answer)
            shown += ("\n\n" if shown else "") + said + "\n\n" + answer["content"]
            self.assertEqual(self.text("answer"), shown)
            self.browser.evaluate("document.body.dataset.state = 'idle'")
        self.assertEqual(self.text("prompt-label"), "Message")
        self.tab_to("reset")
        self.browser.press("Enter", 13, text="\r")
        self.assertEqual(self.text("answer"), "")
        self.generate("Go on", 12)
        self.browser.wait_for(f"{STATE} === 'done'")
        self.assertTrue(self.text("answer").startswith("Go on\n\n"))


class BesidePageTest(Page):
    """Two models at one address, by the router of the demo: the second forgets nothing."""

    chats = True

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.second = cls.serve(*cls.flags, "--served-model-name", "other", "--acp", "off")
        cls.url = cls.enterClassContext(ModelRouter(
            0, ("demo", "other"), (cls.server.http_url, cls.second.http_url))).url

    def test_both_answer_the_same_question(self) -> None:
        self.tab_to("example")
        self.browser.press("Enter", 13, text="\r")
        self.browser.wait_for("document.getElementById('status').textContent.includes('novel')")
        self.assertEqual(self.value("prompt"), LONG + "\n\nQuestion: What is the name of the town?")
        self.enter("max-tokens", "5")
        self.browser.press("Enter", 13, modifiers=CONTROL)
        self.browser.wait_for(f"{STATE} === 'done' || {STATE} === 'failed'")
        self.assertTrue(self.second.logged("request finished"))
        self.assertEqual([self.text(i) for i in ("answer-title", "beside-title")],
                         ["demo", "other"])
        for box in ("answer", "beside-answer"):
            self.assertRegex(self.text(box), r"(?s)of the town\?\n\n.+$")
            self.assertLess(self.browser.evaluate(f"(box => box.scrollHeight - box.scrollTop - "
                            f"box.clientHeight)(document.getElementById('{box}'))"), 40)
        kept = [float(self.text(f"kept-{place}").removesuffix(" MiB")) for place in (0, 1)]
        self.assertLess(kept[0], 0.25 * kept[1])
        self.assertEqual(self.text("kept"), self.text("kept-0"))
        for cell in ("first-0", "first-1", "rate-0", "rate-1"):
            self.assertRegex(self.text(cell), r"^\d")
        self.tab_to("reset")
        self.browser.press("Enter", 13, text="\r")
        self.assertEqual(self.text("beside-answer"), "")
        self.tab_to("beside")
        self.browser.press(" ", 32, text=" ")
        self.generate("The king", 5)
        self.browser.wait_for(f"{STATE} === 'done'")
        self.assertTrue(self.browser.evaluate("document.getElementById('beside-part').hidden"))
        self.assertEqual(self.text("beside-answer"), "")

    def test_the_router_refuses_what_the_servers_do(self) -> None:
        headers = {"Content-Type": "application/json"}
        for path, body, changes, status in (
                ("/v1/models", None, {}, 200), ("/v1/models", None, {"Host": "other.example"}, 403),
                ("/v1/completions", b'{"model": "third", "prompt": "a"}', {}, 404),
                ("/v1/completions", b'{"model": ["demo"], "prompt": "a"}', {}, 400),
                ("/v1/completions", b"[", {}, 400), ("/v1/completions", b"[]", {}, 400),
                ("/v1/completions", b"{}", {"Content-Type": "text/plain"}, 415),
                ("/v1/completions", b"", {"Content-Length": str(MAX_BODY_BYTES + 1)}, 413),
                ("/v1/completions", b"{}", {"Content-Length": "x"}, 413)):
            with self.subTest(body=body, changes=changes):
                request = urllib.request.Request(self.url + path, body, {**headers, **changes})
                try:
                    with urllib.request.urlopen(request, timeout=60) as answer:
                        self.assertEqual(answer.status, status)
                except urllib.error.HTTPError as error:
                    self.assertEqual(error.code, status)


if __name__ == "__main__":
    if "--screenshot" in sys.argv:
        PageTest.screenshot = pathlib.Path(sys.argv.pop())
        sys.argv.pop()
    fox_server.main(chromium.NAME)
