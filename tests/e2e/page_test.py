#!/usr/bin/env python3
"""The page at / of the HTTP port in a real browser, used with the keyboard alone; and attempts of
other sites' pages to use a server on loopback without tokens, which must fail.

    page_test.py BIN                 BIN: the folder of fox-server
    page_test.py BIN --record        runs the long example and keeps it as the page's recorded run
    page_test.py BIN --picture       takes the README's picture of the recorded run
"""

from __future__ import annotations

import functools
import http.server
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest
import xml.etree.ElementTree

import chromium
import fox_server
from fox_server import MODEL, ROOT

CONTROL = 2
LONG = (MODEL / "prompt_long.txt").read_text()
STATE = "document.body.dataset.state"
DONE = f"({STATE} === 'done' || {STATE} === 'failed') && !drawing"
RECORDED = "document.body.hasAttribute('data-recorded')"
LAST = ("document.getElementById('tokens').textContent === "
        "NUMBERS.format(RECORDED.history.at(-1).tokens)")
PAGE = ROOT / "server" / "http" / "page"


def contrast(one: str, other: str) -> float:
    """The contrast of two colours #rrggbb by WCAG."""
    def light(color: str) -> float:
        parts = [int(color[i:i + 2], 16) / 255 for i in (1, 3, 5)]
        return sum(weight * (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4)
                   for weight, part in zip((0.2126, 0.7152, 0.0722), parts))
    dark, bright = sorted((light(one), light(other)))
    return (bright + 0.05) / (dark + 0.05)


class Page(fox_server.Case):
    """One server and one browser for all cases; each opens the page anew."""

    flags = ("--http-port", "0")
    keeps = ""  # --record or --picture

    @classmethod
    def setUpClass(cls) -> None:
        if cls.keeps == "--record":  # steps of one page, so that the run has more moments
            cls.flags += ("--threads", "1", "--max-num-batched-tokens", "64")
        super().setUpClass()
        cls.url = cls.server.http_url
        cls.browser = cls.enterClassContext(chromium.Browser(1200, 1160))

    def setUp(self) -> None:
        self.browser.events.clear()
        self.browser.open(self.url)
        self.browser.wait_for("document.getElementById('model').textContent === 'demo'")

    def tearDown(self) -> None:
        """Checks that no error was logged and that no other host was asked."""
        self.browser.evaluate("0")  # collects the events
        for event in self.browser.events:
            parameters = event.get("params", {})
            self.assertNotEqual(event["method"], "Runtime.exceptionThrown", parameters)
            if event["method"] == "Log.entryAdded":
                self.assertNotEqual(parameters["entry"]["level"], "error", parameters)
            if event["method"] == "Network.requestWillBeSent":
                asked = parameters["request"]["url"]
                self.assertTrue(asked.startswith((self.url, "data:", "blob:" + self.url)), asked)

    def text(self, element: str) -> str:
        """The text of an element."""
        return self.browser.evaluate(f"document.getElementById('{element}').textContent")

    def value(self, element: str) -> str:
        """The value of a control."""
        return self.browser.evaluate(f"document.getElementById('{element}').value")

    def tab_to(self, element: str) -> None:
        """Presses Tab until the element has the focus."""
        for _ in range(30):
            if self.browser.evaluate("document.activeElement.id") == element:
                return
            self.browser.press("Tab", 9)
        self.fail(f"no way to {element} by Tab")

    def assert_idle(self) -> None:
        """Checks that the page has requested no answer."""
        self.browser.evaluate("0")
        for event in self.browser.events:
            if event["method"] == "Network.requestWillBeSent":
                self.assertEqual(event["params"]["request"]["method"], "GET", event)

    def push(self, element: str) -> None:
        """Presses a button or opens a summary."""
        self.tab_to(element)
        self.browser.press("Enter", 13, text="\r")

    def enter(self, element: str, text: str) -> None:
        """Replaces the value of a control."""
        if element in ("max-tokens", "seed") and not self.browser.evaluate(
                "document.getElementById('settings').open"):
            self.push("more")
        self.tab_to(element)
        self.browser.press("a", 65, modifiers=CONTROL)
        self.browser.evaluate("document.activeElement.select()")
        self.browser.type(text)

    def look(self, width: int, height: int, scheme: str) -> None:
        """Sets the size of the screen and the colour scheme."""
        self.browser.send("Emulation.setDeviceMetricsOverride", width=width, height=height,
                          deviceScaleFactor=1, mobile=width < 500)
        self.addCleanup(self.browser.send, "Emulation.clearDeviceMetricsOverride")
        self.browser.send("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": scheme}])
        self.browser.evaluate("new Promise(done => setTimeout(done, 100))")

    def generate(self, prompt: str, max_tokens: int) -> None:
        """Fills in the form and submits it."""
        self.enter("prompt", prompt)
        self.enter("max-tokens", str(max_tokens))
        self.browser.press("Enter", 13, modifiers=CONTROL)


class PageTest(Page):
    """A model that completes text."""

    def test_a_long_prompt_is_read_and_forgotten(self) -> None:
        self.push("example")
        self.browser.wait_for("document.getElementById('status').textContent.includes('novel')")
        self.assertEqual(self.browser.evaluate("document.activeElement.id"), "prompt")
        self.assertEqual(self.value("prompt"), LONG)
        self.assertTrue(self.browser.evaluate(RECORDED))
        self.browser.press("Enter", 13, modifiers=CONTROL)
        self.browser.wait_for(f"!{RECORDED} && !drawing")
        self.assertEqual(self.browser.evaluate(STATE), "running")  # shown while it runs
        self.assertLess(int(self.text("tokens").replace(",", "")), 6645)
        for element in ("tokens", "kept"):  # both figures change at least three times
            self.browser.wait_for(f"{STATE} === 'done' || (seen => seen.size > 2)(window.{element}"
                                  f"Seen = (window.{element}Seen ?? new Set()).add("
                                  f"document.getElementById('{element}').textContent))")
            self.assertEqual(self.browser.evaluate(STATE), "running", element)
        self.browser.wait_for(DONE)
        self.assertRegex(self.text("status"), r"^Done: 6,645 tokens read, \d+ written$")
        answer = self.text("answer")
        self.assertIn(LONG.rstrip()[-100:], answer)
        self.assertGreater(len(answer), 500)
        self.check_figures()
        self.check_text()
        if self.keeps == "--record":
            (PAGE / "recorded.js").write_text(
                f"const RECORDED = {self.browser.evaluate('JSON.stringify(run)')};\n")

    def check_figures(self) -> None:
        """Checks memory, speed and certificate of a text that was mostly forgotten."""
        share = float(self.text("share").rstrip("%"))
        self.assertGreater(share, 1)
        self.assertLess(share, 25)
        kept, unpruned = (float(self.text(i).split()[0]) for i in ("kept", "unpruned"))
        self.assertAlmostEqual(100 * kept / unpruned, share, delta=1)
        self.assertGreater(float(self.text("rate")), 1)
        self.assertRegex(self.text("first"), r"^\d+\.\d\d s$")
        self.assertRegex(self.text("certificate"),
                         r"\(log\s-1\d\.\d+\s\u2264\s-10\)\.$")
        self.assertRegex(self.text("effect"),
                         r"^By its own bound no row that was computed here lost more than "
                         r"0\.000\d+%\. "
                         r"To first order, calibrated, .* by at most 0\.18\snats\.$")
        tokens = int(self.text("tokens").replace(",", ""))
        self.assertGreater(tokens, 6645)

    def check_text(self) -> None:
        """Checks that the chosen head's text begins at the first page that it keeps."""
        tokens = json.loads(self.post("/tokenize", prompt=LONG, return_token_strs=True))
        first = self.browser.evaluate("shown().first[cursor]")
        self.assertGreater(first, 1)
        begin = "".join(tokens["token_strs"][64 * first:])
        self.assertTrue(LONG.endswith(begin))
        self.assertEqual(self.text("holds"), begin + self.browser.evaluate("run.answer"))
        self.assertEqual(self.text("gone"), LONG.removesuffix(begin))

    def test_at_rest_a_recorded_run_is_replayed(self) -> None:
        self.assertLess((PAGE / "recorded.js").stat().st_size, 100_000)
        self.assertTrue(self.browser.evaluate(RECORDED))
        self.assertGreater(self.browser.evaluate("document.getElementById('source').clientHeight"),
                           0)
        self.assertEqual(self.browser.evaluate("RECORDED.prompt"), LONG)
        self.browser.wait_for("document.getElementById('play').textContent === 'Pause'")
        self.browser.wait_for("document.getElementById('tokens').textContent.length > 4")
        self.push("play")
        self.browser.wait_for("document.getElementById('play').textContent === 'Play'")
        self.tab_to("moment")
        self.browser.press("Home", 36)
        self.browser.wait_for("document.getElementById('tokens').textContent === '64'")
        self.assertEqual(self.text("holds"), self.text("held"))  # a single page is never evicted
        self.browser.press("End", 35)
        self.browser.wait_for(LAST)
        self.check_text()
        self.assert_idle()
        if self.keeps == "--picture":
            self.push("example")
            self.look(1200, 985, "light")
            self.browser.evaluate("document.documentElement.style.overflow = 'hidden', "
                                  "document.activeElement.blur(), scrollTo(0, 0)")
            self.browser.evaluate("new Promise(done => setTimeout(done, 300))")
            (PAGE / "page.png").write_bytes(self.browser.screenshot())

    def test_arrow_keys_and_clicks_choose_a_head(self) -> None:
        self.browser.evaluate("pause(), moment = null, cursor = 0, draw()")
        self.tab_to("map")
        for key, code in (("ArrowDown", 40), ("ArrowRight", 39), ("ArrowUp", 38), ("ArrowUp", 38)):
            self.browser.press(key, code)
        for _ in range(6):
            self.browser.press("ArrowDown", 40)
        said = "Layer 6, head 1 holds the last "
        self.browser.wait_for(f"document.getElementById('cell').textContent.startsWith('{said}')")
        self.assertEqual(self.text("spoken"), self.text("cell"))
        box = self.browser.evaluate(
            "document.getElementById('map').getBoundingClientRect().toJSON()")
        for kind in ("mousePressed", "mouseReleased"):
            self.browser.send("Input.dispatchMouseEvent", type=kind, x=box["right"] - 9,
                              y=box["bottom"] - 9, button="left", clickCount=1)
        self.browser.wait_for("document.getElementById('cell').textContent.startsWith("
                              "'Layer 9, head 5 holds all of ')")
        self.assertEqual(self.text("gone"), "")

    def test_a_picture_of_the_moment_can_be_kept(self) -> None:
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.browser.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
        self.browser.evaluate("pause(), moment = null, draw()")
        self.browser.wait_for(LAST)
        self.push("save")
        path = folder / "foxserve.svg"
        self.assertTrue(fox_server.wait_until(path.exists))
        tags = [element.tag.rpartition("}")[2] for element in
                xml.etree.ElementTree.parse(path).iter()]
        self.assertEqual(set(tags), {"svg", "g", "rect", "text"})
        self.assertEqual(tags.count("rect"), 2 + 2 * 60)  # background, marked cell, 2 per cell
        self.assertIn(f"{self.text('kept')} instead of {self.text('unpruned')}", path.read_text())

    def test_a_link_fills_in_the_form_and_begins_nothing(self) -> None:
        prompt = "<img src=x onerror=alert(1)> & \"\u00e9#\"\n"
        self.enter("prompt", prompt)
        self.enter("seed", "77")
        self.push("link")
        self.browser.wait_for("location.hash !== ''")
        link = self.browser.evaluate("location.href")
        forged = "#n=-5&seed=x&temperature=9&prompt=" + "p" * 50
        for url, *wanted in ((link, prompt, "77"), (self.url + forged, "p" * 50, "1"),
                             (self.url + forged + "p" * 5000, "Once upon a time", "1"),
                             (self.url + "#example", LONG, "1")):
            self.browser.open("about:blank")
            self.browser.open(url)
            self.browser.wait_for(f"{STATE} === 'idle' && document.getElementById('model')"
                                  ".textContent === 'demo'")
            self.browser.evaluate("new Promise(done => setTimeout(done))")
            self.assertEqual([self.value(i) for i in ("prompt", "seed", "max-tokens",
                                                      "temperature")], [*wanted, "200", "0.7"],
                             url[:99])
        self.assert_idle()
        self.enter("prompt", "p" * 5000)
        self.push("link")
        self.assertRegex(self.text("status"), "too long for a link")
        self.generate(prompt, 3)  # shown as text, never as HTML
        self.browser.wait_for(f"{DONE} && run.starts !== null")
        self.assertTrue(self.text("held").startswith(prompt))
        self.assertTrue(self.text("answer").startswith(prompt))
        self.assertEqual(self.browser.evaluate("document.images.length"), 0)

    def test_a_phone_shows_the_map_at_once_in_both_themes(self) -> None:
        for scheme in ("light", "dark"):
            self.look(390, 844, scheme)
            self.browser.evaluate("pause(), moment = null, draw(), "
                                  "new Promise(requestAnimationFrame)")
            self.assertEqual(self.browser.evaluate("document.documentElement.scrollWidth"), 390,
                             scheme)
            self.assertLessEqual(self.browser.evaluate(
                "document.getElementById('map').getBoundingClientRect().bottom"), 844, scheme)
            beyond = self.browser.evaluate(
                "[...document.querySelectorAll('svg text')].map(text => [text, text.getBBox()])"
                ".filter(([text, box]) => box.x < -1 || box.x + box.width >"
                "   text.ownerSVGElement.viewBox.baseVal.width + 1)"
                ".map(([text]) => text.textContent)")
            self.assertEqual(beyond, [], scheme)
            style = "getComputedStyle(document.documentElement).getPropertyValue"
            for pair, least in (("ink page", 7), ("soft page", 4.5), ("ink holds", 7),
                                ("accent page", 4.5), ("plain page", 4), ("good page", 4.5),
                                ("bad page", 4.5), ("on-accent accent", 4.5), ("faded box", 3)):
                colors = [self.browser.evaluate(f"{style}('--{name}').trim()")
                          for name in pair.split()]
                self.assertGreater(contrast(*colors), least, (scheme, pair))

    def test_nothing_is_wider_than_a_narrow_phone(self) -> None:
        self.look(360, 740, "light")
        self.browser.evaluate("pause(), moment = null, draw(), new Promise(requestAnimationFrame)")
        self.assertEqual(self.browser.evaluate("document.documentElement.scrollWidth"), 360)

    def test_a_history_has_a_bound(self) -> None:
        self.assertLessEqual(self.browser.evaluate(
            "{const one = newRun('m', ''); for (let i = 0; i < 3000; ++i) addMoment(one, {tokens: "
            "64 * i, layers: 1, kv_heads: 1024, page_size: 64, page_bytes: 1, first_page: "
            "Array(1024).fill(i), acp: {}}); one.history.length}"), 1024)

    def test_the_answer_is_that_of_the_api(self) -> None:
        self.enter("seed", "7")
        self.generate("The king", 24)
        self.browser.wait_for(DONE)
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
        self.generate("Once", 3)  # the next request works
        self.browser.wait_for(f"{STATE} === 'done'")

    def test_a_refusal_is_shown(self) -> None:
        self.generate("", 5)
        self.browser.wait_for(f"{STATE} === 'failed'")
        self.assertRegex(self.text("status"), "^Failed: .*empty")
        self.browser.events.clear()  # the browser logs the status 400 as an error


class StaticPageTest(unittest.TestCase):
    """The page as files without a server."""

    def test_it_replays_from_a_folder(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory())
        subprocess.run([ROOT / "run", "page", folder, "https://fox.example/a/"], check=True,
                       capture_output=True, timeout=60)
        browser = self.enterContext(chromium.Browser())
        browser.open(f"file://{folder}/index.html")
        browser.wait_for("document.getElementById('tokens').textContent.length > 4")
        seen = browser.evaluate("['form', 'link', 'source', 'save', 'held'].filter(id =>"
                                " document.getElementById(id).checkVisibility())")
        self.assertEqual(seen, ["source", "save", "held"])
        self.assertIn("./run demo --web", browser.evaluate("document.body.innerText"))
        browser.press("Enter", 13, modifiers=CONTROL)  # does nothing
        image = browser.evaluate("document.querySelector('[property=\"og:image\"]').content")
        self.assertTrue(image.startswith("https://fox.example/a/page.png"), image)
        self.assertLess((pathlib.Path(folder) / "page.png").stat().st_size, 250_000)
        for event in browser.events:
            self.assertNotIn(event["method"], ("Runtime.exceptionThrown", "Log.entryAdded"), event)
            if event["method"] == "Network.requestWillBeSent":
                asked = event["params"]["request"]["url"]
                self.assertTrue(asked.startswith((f"file://{folder}/", "data:")), asked)


JSON = "headers: {'Content-Type': 'application/json'}"
# Requests that a page may try: with a preflight request, and without (form, text, no type).
ATTEMPTS = (f"{{method: 'POST', {JSON}, body: BODY}}",
            f"{{method: 'POST', mode: 'no-cors', {JSON}, body: BODY}}",
            "{method: 'POST', mode: 'no-cors', body: BODY}",
            "{method: 'POST', mode: 'no-cors', body: new Blob([BODY])}",
            "{method: 'POST', mode: 'no-cors', body: new URLSearchParams(BODY)}")


class OtherSitesTest(fox_server.Case):
    """A browser that resolves every name to this machine, and another site on this machine."""

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
            self.assertEqual(status(f"http://127.0.0.1:{port}/v1/completions", attempt), 0, attempt)
        self.assertEqual(status(f"http://127.0.0.1:{port}/v1/models", "{}"), 0)
        self.assertFalse(self.server.logged("request finished"))
        for name, wanted in (("elsewhere.example", 403), ("localhost", 200), ("127.0.0.1", 200)):
            browser.open(f"http://{name}:{port}/")
            self.assertEqual(status("/v1/completions"), wanted, name)


if __name__ == "__main__":
    if sys.argv[-1] in ("--record", "--picture"):
        Page.keeps = sys.argv.pop()
        sys.argv += ["-k", "long_prompt" if Page.keeps == "--record" else "at_rest"]
    fox_server.main(chromium.NAME)
