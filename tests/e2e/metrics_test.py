#!/usr/bin/env python3
"""The metrics of a fox-server, read by Prometheus' own programs, and traceparent in its log.

    metrics_test.py BIN     the folder of fox-server and fox-cli
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.request

import fox_server
from fox_server import MODEL, ROOT

DASHBOARD = ROOT / "docker" / "grafana" / "foxserve.json"
ALERTS = ROOT / "docker" / "prometheus" / "alerts.yml"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def scrape(address: str) -> str:
    """The text that Prometheus would read."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return response.read().decode()


def samples_of(text: str) -> dict[str, float]:
    """Values by name and labels."""
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in lines}


def names_of(text: str) -> set[str]:
    """Names as queries write them: a histogram has three."""
    return {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}


class MetricsTest(fox_server.Case):
    """A server that has answered a prompt of some thousand tokens."""

    flags = ("--metrics-port", "0")

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.address = cls.server.ports["Prometheus"]
        prompt = (MODEL / "prompt_long.txt").read_text()[:12000]
        cls.finish = cls.server.generate([prompt, "--max-tokens", "20"], show=False)
        cls.tokens = int(cls.finish["prompt_tokens"])

    def test_values_equal_the_clients_answer(self) -> None:
        samples = samples_of(scrape(self.address))
        self.assertGreater(self.tokens, 2000)
        self.assertEqual(samples["fox_prompt_tokens_total"], self.tokens)
        self.assertEqual(samples["fox_generated_tokens_total"], 20)
        self.assertEqual(samples['fox_kv_pages_evicted_total{reason="decay"}'],
                         int(self.finish["pages_evicted"]))
        self.assertEqual(samples["fox_acp_blocks_pruned_total"],
                         int(self.finish["blocks_pruned"]))
        mass = samples["fox_max_log_evicted_mass"]
        self.assertAlmostEqual(mass, self.finish["max_log_evicted_mass"], places=5)
        self.assertLessEqual(mass, samples["fox_log_tolerance"])
        self.assertEqual(samples["fox_inter_token_seconds_count"], 19)
        self.assertAlmostEqual(samples["fox_time_to_first_token_seconds_sum"],
                               self.finish["ttft_s"], delta=0.02)
        prefill = samples['fox_step_duration_seconds_count{phase="prefill"}']
        decode = samples['fox_step_duration_seconds_count{phase="decode"}']
        self.assertGreaterEqual(prefill, self.tokens // 512)
        self.assertEqual(decode, 19)

    @unittest.skipUnless(shutil.which("promtool"), "SKIPPED: no promtool (apt: prometheus)")
    def test_promtool_complains_about_the_aliases_alone(self) -> None:
        text = scrape(self.address)
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, text=True,
                                 capture_output=True, timeout=60, check=False)
        said = (checked.stdout + checked.stderr).splitlines()
        self.assertGreater(len(said), 10)  # the aliases have a colon
        self.assertEqual([line for line in said if not line.startswith("vllm:")], [])

    def test_each_metric_of_the_dashboard_is_exported(self) -> None:
        text = scrape(self.address)
        dashboard = json.loads(DASHBOARD.read_text())
        expressions = [target["expr"] for panel in dashboard["panels"]
                       for target in panel.get("targets", [])]
        self.assertGreater(len(expressions), 15)
        if ALERTS.exists():
            expressions.append(ALERTS.read_text())
        named = {name for expression in expressions
                 for name in re.findall(r"\b(?:fox_|process_|vllm:)[a-z_:]*[a-z]\b", expression)}
        self.assertGreater(len(named), 15)
        exported = names_of(text)
        exported |= {name.removesuffix("_bucket") for name in exported}
        self.assertEqual(named - exported, set())
        typed = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE fox_")}
        helped = {line.split()[2] for line in text.splitlines()
                  if line.startswith("# HELP fox_") and len(line.split()) > 4}
        self.assertEqual(typed - helped, set())


class StartTest(fox_server.Case):
    """Cases that start servers of their own."""

    flags = None

    def test_no_aliases_and_a_stop_that_no_scrape_delays(self) -> None:
        server = self.serve_case("--metrics-port", "0", "--metrics-compat", "none")
        address = server.ports["Prometheus"]
        self.assertNotIn("vllm:", scrape(address))
        host, port = address.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as stalled:
            stalled.sendall(b"GET /metrics HT")
            began = time.monotonic()
            self.assertEqual(server.end(signal.SIGTERM), 0)
            self.assertLess(time.monotonic() - began, 10)

    @unittest.skipUnless(importlib.util.find_spec("grpc_tools"),
                         "SKIPPED: no grpcio-tools; `./run test` installs it")
    def test_traceparent_is_in_the_log_and_in_the_trace(self) -> None:
        import grpc
        fox, fox_grpc = grpc.protos_and_services("fox/v1/inference.proto")
        header = f"00-{TRACE}-{PARENT}-01"
        folder = self.enterContext(tempfile.TemporaryDirectory())
        trace = pathlib.Path(folder, "trace.json")
        server = self.serve_case("--log-format", "json", "--trace", str(trace))
        with grpc.insecure_channel(server.target) as channel:
            stub = fox_grpc.InferenceStub(channel)
            for value in (header, "no traceparent"):
                stub.Generate(fox.GenerateRequest(
                    text="Once", stopping=fox.Stopping(max_tokens=2)),
                    metadata=(("traceparent", value),), timeout=60)
        server.end(signal.SIGTERM)
        finished = [json.loads(line) for line in server.log if "request finished" in line]
        self.assertEqual([line.get("trace_id") for line in finished], [TRACE, None])
        self.assertEqual(finished[0]["parent_id"], PARENT)
        events = json.loads(trace.read_text())["traceEvents"]
        traced = [event["args"].get("traceparent") for event in events
                  if event["name"] == "request" and event["ph"] == "b"]
        self.assertEqual(traced, [header, None])


if __name__ == "__main__":
    fox_server.main()
