"""./run gain: against finite differences in float64, moved and dropped attention, and refusals."""

from __future__ import annotations

import contextlib
import io
import json
import math
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from toy_llama import write_toy as write_llama  # first: it skips without torch

import torch
from toy_model import ROOT, TEXT, write_toy
from torch import Tensor

from models.convert.refusal import Refusal
from models.evaluate import gain
from models.evaluate.gain_options import parse_arguments
from models.finetune.model_directory import export_model, load_model
from models.foxify.adapter import open_merged

GOLDEN = ROOT / "tests/golden"
PRO = GOLDEN / "dev_pro_d64"  # token shift, output norm and gate
LLAMA = GOLDEN / "transformers/llama_kv1_default_tied_forgetting"  # sinks, caps, RoPE, one kv head
STEP = 1e-5  # of a difference: it errs by its square and by 1e-16 / STEP
SEED = 5
MASS = math.exp(-10)
Attend = Callable[..., Tensor]


def weights_of(q: Tensor, k: Tensor, log_f: Tensor, sinks: Tensor | None) -> Tensor:
    """Attention's weights [B, H, T, T] from its definition."""
    k, c = k.repeat_interleave(q.shape[2] // k.shape[2], 2), log_f.cumsum(1).transpose(1, 2)
    logits = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[3])
    logits += c[..., :, None] - c[..., None, :]
    logits = logits.masked_fill(torch.ones(logits.shape[-2:]).triu(1).bool(), -torch.inf)
    if sinks is None:
        return logits.softmax(-1)
    column = sinks[None, :, None, None].expand(*logits.shape[:3], 1)
    return torch.cat((logits, column), -1).softmax(-1)[..., :-1]


def outputs(weights: Tensor, v: Tensor) -> Tensor:
    group = weights.shape[1] // v.shape[2]
    return torch.einsum("bhij,bjhd->bihd", weights, v.repeat_interleave(group, 2))


class Plain:
    """A model in float64 with attention from its definition, which a test may change."""

    def __init__(self, directory: Path) -> None:
        self.student = directory == LLAMA
        if self.student:
            self.model: Any = open_merged(directory, torch.device("cpu"), torch.float64)
        else:
            self.model = load_model(directory, 0).model.double()

    @torch.no_grad()
    def log_probabilities(self, ids: Tensor, attend: Attend) -> Tensor:
        """[B, V] behind ids [B, T]; attend: (layer, weights, values) to outputs."""
        layer = iter(range(1000))

        def run(q: Tensor, k: Tensor, v: Tensor, log_f: Tensor, *, sinks: Tensor | None = None,
                **_: Any) -> Tensor:
            return attend(next(layer), weights_of(q, k, log_f, sinks), v)

        for module in [self.model] if self.student else [x.attn for x in self.model.model.layers]:
            module.attend = run
        if self.student:
            return self.model.base.logits(self.model(ids)[0][:, -1]).log_softmax(-1)
        return self.model(ids)[:, -1].log_softmax(-1)


def token_of(directory: Path, ids: Tensor) -> int:
    """The token that measure() draws with a generator of SEED."""
    p = Plain(directory).log_probabilities(ids[None], lambda _, w, v: outputs(w, v))[0].exp()
    return int(torch.multinomial(p, 1, generator=torch.Generator().manual_seed(SEED)))


def differences(directory: Path, ids: Tensor, token: int) -> tuple[Tensor, Tensor]:
    """|| d log p / d o || and max || v || [L, T, H], by moving every element of every output."""
    model, longest, shapes = Plain(directory), [], []

    def look(_: int, w: Tensor, v: Tensor) -> Tensor:
        o = outputs(w, v)
        shapes.append(o.shape[1:])
        norms = v[0].norm(dim=-1).repeat_interleave(o.shape[2] // v.shape[2], 1)
        longest.append(torch.stack([norms[: i + 1].amax(0) for i in range(len(norms))]))
        return o

    model.log_probabilities(ids[None], look)
    slopes = []
    for layer, shape in enumerate(shapes):
        elements = torch.eye(math.prod(shape), dtype=torch.float64).unflatten(1, shape) * STEP
        found = []
        for moves in elements.split(256):
            both = [model.log_probabilities(
                ids.expand(len(moves), -1),
                lambda n, w, v: outputs(w, v) + (sign * moves if n == layer else 0))[:, token]
                for sign in (1, -1)]
            found.append((both[0] - both[1]) / (2 * STEP))
        slopes.append(torch.cat(found).view(shape).norm(dim=-1))
    return torch.stack(slopes), torch.stack(longest)


class GainTest(unittest.TestCase):
    """In float64; LLAMA needs whole pages of ids."""

    def cases(self, test: Callable[[Path, Tensor, Callable[[], gain.Sample]], None]) -> None:
        """Runs a test of each model: its directory, ids, and a measurement of its gain."""
        for directory, tokens in ((PRO, 9), (LLAMA, 64)):
            with self.subTest(directory.name):
                model = gain.open_model(directory, torch.float64)
                ids = torch.randint(0, 64, (tokens,), generator=torch.Generator().manual_seed(1))
                test(directory, ids,
                     lambda: gain.measure(model, ids, torch.Generator().manual_seed(SEED)))

    def test_it_is_that_of_finite_differences(self) -> None:
        def test(directory: Path, ids: Tensor, measured: Callable[[], gain.Sample]) -> None:
            sample = measured()
            slopes, longest = differences(directory, ids, token_of(directory, ids))
            parts = 2 * slopes * longest
            torch.testing.assert_close(sample.by_layer, parts.sum((1, 2)), rtol=1e-6, atol=0)
            self.assertAlmostEqual(sample.gain, float(parts.sum()), delta=1e-6 * sample.gain)
            self.assertAlmostEqual(sample.last_row, float(parts[:, -1].sum()),
                                   delta=1e-6 * sample.gain)
        self.cases(test)

    def test_in_the_worst_direction_the_rest_is_of_second_order(self) -> None:
        """A mass smaller by e^2 has a rest smaller by e^4, up to the third order, which is smaller
        by about the mass times the gain."""
        def test(_: Path, ids: Tensor, measured: Callable[[], gain.Sample]) -> None:
            rests = []
            for log_mass in (-12.0, -14.0):
                with mock.patch.object(gain, "LOG_MASS", log_mass):
                    sample = measured()
                rests.append(sample.fall - sample.gain * math.exp(log_mass))
            self.assertLess(sample.gain * math.exp(-12), 0.01)
            self.assertLess(abs(rests[0]), 0.01 * sample.gain * math.exp(-12))
            self.assertAlmostEqual(rests[0] / rests[1] / math.exp(4), 1, delta=0.01)
        self.cases(test)

    def test_it_bounds_what_dropped_keys_and_random_moves_change(self) -> None:
        def test(directory: Path, ids: Tensor, measured: Callable[[], gain.Sample]) -> None:
            sample, token, plain = measured(), token_of(directory, ids), Plain(directory)
            generator = torch.Generator().manual_seed(2)

            def drop(_: int, w: Tensor, v: Tensor) -> Tensor:
                """Each row loses its oldest keys, up to a mass of MASS."""
                kept = (w.cumsum(-1) - MASS).clamp(min=0).diff(prepend=w.new_zeros(()).expand(
                    *w.shape[:3], 1))
                return outputs(kept / (1 - MASS), v)

            def shake(_: int, w: Tensor, v: Tensor) -> Tensor:
                o = outputs(w, v)
                noise = torch.randn(o.shape, generator=generator, dtype=o.dtype)
                unit = noise / noise.norm(dim=-1, keepdim=True)
                return o + unit * MASS * gain.reach_of(v, o.shape[2])

            exact = plain.log_probabilities(ids[None], lambda _, w, v: outputs(w, v))[0, token]
            for name, attend in (("drop", drop), ("shake", shake)):
                moved = plain.log_probabilities(ids[None], attend)[0, token]
                change = abs(float(moved - exact))
                self.assertLess(change, sample.gain * MASS, name)
                self.assertGreater(change, 1e-4 * sample.gain * MASS, name)
        self.cases(test)

    def test_a_row_moves_so_far_if_what_it_loses_is_opposite_to_the_rest(self) -> None:
        v = torch.tensor([[3.0, 4.0], [-3.0, -4.0]], dtype=torch.float64)[None, :, None]
        w = torch.tensor([[[[1.0, 0.0], [0.25, 0.75]]]], dtype=torch.float64)
        kept = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]], dtype=torch.float64)
        move = (outputs(kept, v) - outputs(w, v))[0, 1].norm()
        self.assertEqual(float(move), 0.25 * float(gain.reach_of(v, 1)[0, 1, 0, 0]))


class SummaryTest(unittest.TestCase):
    def test_quantiles_are_samples(self) -> None:
        args = parse_arguments([str(PRO), str(PRO / "config.json"), "--out", "here.json"])
        samples = [gain.Sample(float(g), torch.tensor([0.25, 0.75]) * g, g / 10, g * 4e-5)
                   for g in range(150, 0, -1)]
        report = gain.summarize(samples, args)
        self.assertEqual((report["median"], report["gain"], report["largest"]), (75, 149, 150))
        self.assertEqual((report["samples"], report["mean"]), (150, 75.5))
        self.assertAlmostEqual(report["last_row_share"], 0.1)
        self.assertEqual(report["mean_by_layer"], [75.5 / 4, 75.5 * 3 / 4])
        self.assertEqual(report["fall"], {"log_mass": -10.0, "quantile": 149 * 4e-5,
                                          "median": 75 * 4e-5, "largest": 150 * 4e-5})
        said = gain.sentences(PRO, report)
        for part in ("G = 149 in 99% of 150 samples of 1024 tokens (median 75, largest 150)",
                     "first order; calibrated", "that is 0.0068 nats", "log p fell by 0.006 "):
            self.assertIn(part, said)
        self.assertEqual(gain.summarize(samples[:1], args)["gain"], 150)
        with self.assertRaisesRegex(Refusal, "do not depend on attention"):
            gain.summarize([gain.Sample(0.0, torch.zeros(2), 0.0, 0.0)], args)


class CommandTest(unittest.TestCase):
    """The command on toys."""

    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.text = self.folder / "text.txt"
        self.text.write_text(TEXT * 20)
        config = write_toy(self.folder / "toy")
        self.model = self.folder / "model"
        export_model(load_model(config, 3).model, config.parent, self.model, "f32", 10**9)

    def run_command(self, *arguments: Any) -> tuple[int, str, str]:
        """Exit status, stdout and stderr."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = gain.main(parse_arguments([str(x) for x in arguments]))
            except SystemExit as stop:
                status = int(stop.code or 0)
        return status, out.getvalue(), err.getvalue()

    def test_the_report_is_a_function_of_the_seed_and_lies_in_the_model(self) -> None:
        reports = []
        for seed in (0, 0, 1):
            status, out, _ = self.run_command(self.model, self.text, "--samples", 4, "--window",
                                              64, "--seed", seed)
            self.assertEqual(status, 0, seed)
            reports.append(json.loads((self.model / "fox_gain.json").read_text()))
            self.assertIn(f"G = {reports[-1]['gain']:,.0f} in 99% of 4 samples", out, seed)
        self.assertEqual(reports[0], reports[1])
        self.assertNotEqual(reports[0]["gain"], reports[2]["gain"])
        self.assertEqual(len(reports[0]["mean_by_layer"]), 2)
        self.assertFalse(list(self.model.glob("*.partial")))
        load_model(self.model, 0)  # the file is in nobody's way

    def test_refusals_are_one_line(self) -> None:
        short, latin = self.folder / "short.txt", self.folder / "latin.txt"
        short.write_text("It was.")
        latin.write_bytes(b"caf\xe9 " * 200)
        llama, broken = write_llama(self.folder / "llama"), self.folder / "broken"
        toy = load_model(self.model, 0).model
        with torch.no_grad():
            toy.model.layers[1].mlp.down_proj.weight[0, 0] = 3e38
            toy.model.layers[1].mlp.gate_proj.weight *= 1e30
        export_model(toy, self.folder / "toy", broken, "f32", 10**9)
        for arguments, status, said in (
                ((self.folder / "gone", self.text), 2, "no such directory"),
                ((self.model, self.folder / "gone.txt"), 2, "gone.txt: no such file"),
                ((self.model, self.text, "--window", 100), 2, "multiple of 64"),
                ((self.model, self.text, "--out", self.folder / "no" / "x"), 2, "not writable"),
                ((self.folder, self.text), 1, "config.json"),
                ((self.model, short), 1, "too few for windows of 1024"),
                ((self.model, latin), 1, "not UTF-8"),
                ((GOLDEN / "tiny_no_gate", self.text, "--out", short), 1, "no forget gates"),
                ((llama, self.text), 1, "no forget gates"),
                ((broken, self.text, "--window", 64), 1, "not finite")):
            with self.subTest(said=said):
                found, out, err = self.run_command(*arguments)
                self.assertEqual((found, out), (status, ""), err)
                last = err.splitlines()[-1]
                self.assertIn(said, last)
                self.assertTrue(last.startswith("gain: "), last)
        self.assertFalse((broken / "fox_gain.json").exists())


if __name__ == "__main__":
    unittest.main()
