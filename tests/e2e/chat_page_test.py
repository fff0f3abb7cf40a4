#!/usr/bin/env python3
"""The page at / with models that chat, in a real browser: a conversation, and two models behind
the demo's router.

    chat_page_test.py BIN     the folder of fox-server
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import chromium
import fox_server
from model_router import MAX_BODY_BYTES, ModelRouter
from page_test import CONTROL, DONE, LONG, STATE, Page


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
            self.assertEqual(self.text("answer"), shown, said)
            self.browser.evaluate("document.body.dataset.state = 'idle'")
        self.assertEqual(self.text("prompt-label"), "Message")
        self.browser.evaluate("window.kept = window.fetch,"
                              " window.fetch = () => Promise.reject(Error('no network')), 0")
        self.generate("On", 12)  # fails, and so adds no turn to the conversation
        self.browser.wait_for(f"{STATE} === 'failed'")
        self.assertEqual(self.text("answer"), shown)
        self.browser.evaluate("window.fetch = window.kept, 0")
        self.push("reset")
        self.assertEqual(self.text("answer"), "")
        self.generate("Go on", 12)
        self.browser.wait_for(f"{STATE} === 'done'")
        self.assertTrue(self.text("answer").startswith("Go on\n\n"))

    def test_a_phone_shows_the_answer_below_the_question(self) -> None:
        self.assertEqual(self.value("prompt"), "")
        self.look(390, 844, "light")
        self.generate("The king", 3)
        self.browser.wait_for(f"{STATE} === 'done'")
        bottom, top = (self.browser.evaluate(f"document.getElementById('{element}')"
                                             f".getBoundingClientRect().{side} + scrollY")
                       for element, side in (("answer", "bottom"), ("map", "top")))
        self.assertLessEqual(bottom, 844)
        self.assertLess(bottom, top)


class BesidePageTest(Page):
    """Two models behind the demo's router; the second one is not pruned."""

    chats = True

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.second = cls.serve(*cls.flags, "--served-model-name", "other", "--acp", "off")
        cls.url = cls.enterClassContext(ModelRouter(
            0, ("demo", "other"), (cls.server.http_url, cls.second.http_url))).url

    def test_both_answer_the_same_question(self) -> None:
        self.push("example")
        self.browser.wait_for("document.getElementById('status').textContent.includes('novel')")
        self.assertEqual(self.value("prompt"), LONG + "\n\nQuestion: What is the name of the town?")
        self.enter("max-tokens", "5")
        self.browser.press("Enter", 13, modifiers=CONTROL)
        self.browser.wait_for(DONE)
        self.assertTrue(self.second.logged("request finished"))
        self.assertEqual([self.text(i) for i in ("answer-title", "beside-title")],
                         ["demo", "other"])
        for box in ("answer", "beside-answer"):
            self.assertRegex(self.text(box), r"(?s)of the town\?\n\n.+$", box)
            self.assertLess(self.browser.evaluate(f"(box => box.scrollHeight - box.scrollTop - "
                            f"box.clientHeight)(document.getElementById('{box}'))"), 40, box)
        kept = [float(self.text(f"kept-{place}").removesuffix(" MiB")) for place in (0, 1)]
        self.assertLess(kept[0], 0.25 * kept[1])
        self.assertEqual(self.text("kept"), self.text("kept-0"))
        for cell in ("first-0", "first-1", "rate-0", "rate-1"):
            self.assertRegex(self.text(cell), r"^\d", cell)
        self.assertRegex(self.text("right"), "^The town is Zenda: demo is (right|wrong),"
                         r" other is (right|wrong)\.$")
        self.push("reset")
        self.assertEqual(self.text("beside-answer"), "")
        self.assertEqual(self.text("right"), "")
        self.tab_to("beside")
        self.browser.press(" ", 32, text=" ")
        self.generate("The king", 5)
        self.browser.wait_for(f"{STATE} === 'done'")
        self.assertTrue(self.browser.evaluate("document.getElementById('beside-part').hidden"))
        self.assertEqual(self.text("beside-answer"), "")

    def test_each_model_goes_on_from_its_own_answers(self) -> None:
        for said in ("The king", "Go on"):
            self.generate(said, 4)
            self.browser.wait_for(f"{STATE} === 'done' && document.getElementById('prompt')"
                                  ".value === ''")
            self.assertEqual(self.text("right"), "", said)  # only the example has a right answer
            self.browser.evaluate("document.body.dataset.state = 'idle'")
        self.browser.evaluate("0")
        sent = [json.loads(event["params"]["request"]["postData"]) for event in self.browser.events
                if event["method"] == "Network.requestWillBeSent"
                and event["params"]["request"]["url"].endswith("/chat/completions")]
        self.assertEqual([body["model"] for body in sent], ["demo", "other"] * 2)
        for body, box in zip(sent[2:], ("answer", "beside-answer")):
            question, answer, last = (message["content"] for message in body["messages"])
            self.assertEqual([question, last], ["The king", "Go on"], box)
            self.assertTrue(self.text(box).startswith(f"The king\n\n{answer}\n\nGo on\n\n"), box)

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
    fox_server.main(chromium.NAME)
