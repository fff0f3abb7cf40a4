#!/usr/bin/env python3
"""Tests docker/prometheus with promtool: rules and configuration are valid, each alert fires on its
fault and never on a healthy server, and the guide explains each alert.

    alerts_test.py BUILD     unused
"""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import loud_skips  # noqa: E402
from loud_skips import ROOT  # noqa: E402

FOLDER = ROOT / "docker" / "prometheus"
RULES = FOLDER / "alerts.yml"
MINUTES = 30


def series(name: str, **labels: str) -> str:
    """A series of one server in promtool's notation."""
    if name == "up" or name.startswith("process"):
        labels["job"] = "foxserve"
    labels["instance"] = "a:1"
    return name + "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}"


UP, STARTED = series("up"), series("process_start_time_seconds")
STEPPED, EVICTED = (series(f"fox_{name}") for name in
                    ("last_step_timestamp_seconds", "max_log_evicted_mass"))
INTERNAL = series("fox_calls_ended_total", code="INTERNAL")
DRAINING, WAIT, CALLS = (series(f"fox_{name}") for name in
                         ("draining", "queue_wait_seconds", "calls"))
REFUSED = series("fox_admission_rejections_total", reason="queue")
FIRST = "fox_time_to_first_token_seconds_bucket"
PREEMPTED, DROPPED, BEYOND = (series(f"fox_{name}_total") for name in
                              ("preemptions", "log_lines_dropped", "audits_beyond_limit"))
STALLED = series("fox_calls_cancelled_total", cause="stall")
OPEN = series("process_open_fds")
# A healthy server: metric -> a constant value, or a first value and its growth per minute.
HEALTHY = {
    UP: "1", STARTED: "100", STEPPED: "0+60", EVICTED: "-10.01", series("fox_log_tolerance"): "-10",
    INTERNAL: "0", DRAINING: "0", REFUSED: "0", WAIT: "0.1", PREEMPTED: "0+1", DROPPED: "0",
    BEYOND: "0",
    series("fox_admission_rejections_total", reason="draining"): "0+600",
    **{series(FIRST, le=le): "0+60" for le in ("0.1", "10", "+Inf")},
    series("fox_call_bytes"): "1000", series("fox_call_bytes_max"): "2000",
    CALLS: "1", series("fox_calls_max"): "4096", STALLED: "0", OPEN: "20",
    series("process_max_fds"): "1024"}
# Alert -> the series that differ from a healthy server, and the minute by which it must have fired.
FIRES = {
    "FoxserveDown": (UP, "1x4 0", 7),
    "FoxserveRestarting": (STARTED, "100+60x20 1300", 15),
    "FoxserveNotStepping": (STEPPED, "0", 5),
    "FoxserveCertificateBroken": (EVICTED, "-9.99", 5),
    "FoxserveInternalErrors": (INTERNAL, "0x4 1", 7),
    "FoxserveDraining": (DRAINING, "1", 20),
    "FoxserveRefusing": (REFUSED, "0+60", 15),
    "FoxserveQueueLong": (WAIT, "30", 10),
    "FoxserveFirstTokenLate": (series(FIRST, le="0.1"), "0", 20),
    "FoxservePreempting": (PREEMPTED, "0+60", 20),
    "FoxserveAuditBeyondLimit": (BEYOND, "0x4 1", 7),
    "FoxserveCallMemoryLow": (CALLS, "4000", 10),
    "FoxserveReadersStall": (STALLED, "0+5", 15),
    "FoxserveDescriptorsLow": (OPEN, "1000", 10),
    "FoxserveLogLost": (DROPPED, "0+9", 15),
}
NAMES = re.findall(r"- alert: (\w+)", RULES.read_text())


def promtool(*arguments: str) -> None:
    """Runs promtool in the folder that relative names start from."""
    ran = subprocess.run(["promtool", *arguments], cwd=FOLDER, capture_output=True, text=True,
                         timeout=60)
    if ran.returncode != 0:
        raise AssertionError(ran.stdout + ran.stderr)


class AlertsTest(unittest.TestCase):
    """The alert rules, as text and in promtool."""

    def test_every_alert_is_tried_and_explained(self) -> None:
        self.assertEqual(sorted(NAMES), sorted(FIRES))
        guide = (ROOT / "docker" / "OPERATIONS.md").read_text()
        for name in NAMES:
            with self.subTest(name=name):
                self.assertIn(f"`{name}`", guide)

    @unittest.skipIf(shutil.which("promtool") is None, "no promtool here (Debian's prometheus)")
    def test_promtool(self) -> None:
        promtool("check", "rules", RULES.name)
        promtool("check", "config", "prometheus.yml")
        # Every alert fires alone.
        cases = []
        for name, (changed, values, minute) in [("none", (UP, "1", MINUTES)), *FIRES.items()]:
            with self.subTest(name=name):
                self.assertIn(changed, HEALTHY)
                cases.append({
                    "name": name, "interval": "1m",
                    "input_series": [{"series": key, "values": f"{value}x{MINUTES}"}
                                     for key, value in {**HEALTHY, changed: values}.items()],
                    "promql_expr_test": [{
                        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                        "eval_time": f"{minute}m",
                        "exp_samples": [] if name == "none" else [
                            {"labels": f'{{alertname="{name}"}}', "value": 1}]}]})
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases},
                      file)
            file.flush()
            promtool("test", "rules", file.name)


if __name__ == "__main__":
    sys.exit(loud_skips.main())
