#!/usr/bin/env python3
"""The page at / of the HTTP port in a real browser, with the keyboard alone.

    page_test.py BIN [--screenshot FILE]     the folder of fox-server; FILE: a PNG for the README
"""

from __future__ import annotations

import json
import pathlib
import sys

import chromium
import fox_server
from fox_server import MODEL

CONTROL, SHIFT = 2, 8
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

    def colors_of(self, canvas: str) -> int:
        """How many colours a canvas shows."""
        return self.browser.evaluate(
            f"(() => {{ const c = document.getElementById('{canvas}');"
            "const data = new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height)"
            ".data.buffer); return new Set(data).size; })()")


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
        self.check_map()
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

    def check_map(self) -> None:
        """The drawing, its cells by keyboard, and the table say the same."""
        self.assertGreater(self.colors_of("map"), 10)
        self.assertGreater(self.colors_of("history"), 2)
        self.tab_to("map")
        self.browser.press("ArrowDown", 40)
        self.browser.press("ArrowRight", 39)
        spoken = self.text("cell")
        self.assertRegex(spoken, r"^Layer 1, head 1: keeps \d+ of 10\d pages, the last ")
        self.browser.evaluate("document.querySelector('#table-details summary').focus()")
        self.browser.press("Enter", 13, text="\r")
        self.browser.wait_for("document.getElementById('table-details').open && "
                              "document.querySelectorAll('#table tbody td').length === 60")
        cells = self.browser.evaluate(
            "Array.from(document.querySelectorAll('#table tbody td'), c => Number(c.textContent))")
        self.assertEqual(spoken.split("keeps ")[1].split()[0], str(cells[7]))
        pages = int(self.text("table").split("of ")[2].split("layer")[0])
        share = float(self.text("share").rstrip("%"))
        self.assertAlmostEqual(100 * sum(cells) / (60 * pages), share, delta=0.06)
        self.assertEqual(min(max(cells), pages), max(cells))

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

    def test_dark_and_light(self) -> None:
        def luminance(scheme: str, element: str, property_name: str) -> float:
            self.browser.send("Emulation.setEmulatedMedia", features=[
                {"name": "prefers-color-scheme", "value": scheme}])
            color = self.browser.evaluate(
                f"getComputedStyle(document.querySelector('{element}')).{property_name}")
            parts = [int(part) / 255 for part in color[4:-1].split(",")]
            linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
            return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

        self.assertGreater(luminance("light", "body", "backgroundColor"), 0.8)
        self.assertLess(luminance("dark", "body", "backgroundColor"), 0.05)
        for scheme in ("light", "dark"):  # WCAG AA
            for element in ("body", ".hint", "#generate", "dt"):
                own = "backgroundColor" if element == "#generate" else None
                ground = luminance(scheme, element if own else "body", "backgroundColor")
                ink = luminance(scheme, element, "color")
                contrast = (max(ink, ground) + 0.05) / (min(ink, ground) + 0.05)
                self.assertGreaterEqual(contrast, 4.5, (scheme, element))
        self.browser.send("Emulation.setEmulatedMedia", features=[])

    def test_every_control_has_a_name(self) -> None:
        self.browser.send("Accessibility.enable")
        nodes = self.browser.send("Accessibility.getFullAXTree")["nodes"]
        roles = {"button", "textbox", "spinbutton", "canvas", "image", "region",
                 "DisclosureTriangle"}
        found = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes
                 if not node["ignored"] and node["role"]["value"] in roles]
        self.assertGreater(len(found), 9)
        for role, name in found:
            self.assertTrue(name.strip(), (role, found))
        self.browser.send("Accessibility.disable")


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


if __name__ == "__main__":
    if "--screenshot" in sys.argv:
        PageTest.screenshot = pathlib.Path(sys.argv.pop())
        sys.argv.pop()
    fox_server.main(chromium.NAME)
