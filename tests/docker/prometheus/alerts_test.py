#!/usr/bin/env python3
"""Tests of docker/prometheus with promtool: rules and configuration are valid, each alert fires
on what it is about and on nothing of a healthy server, and the guide knows each.

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
I = 'instance="a:1"'
JOB = 'job="foxserve",instance="a:1"'

# A healthy server, one sample a minute: name -> values in promtool's notation.
HEALTHY = {
    f"up{{{JOB}}}": f"1x{MINUTES}",
    f"process_start_time_seconds{{{JOB}}}": f"100x{MINUTES}",
    f"fox_last_step_timestamp_seconds{{{I}}}": f"0+60x{MINUTES}",
    f"fox_max_log_evicted_mass{{{I}}}": f"-10.01x{MINUTES}",
    f"fox_log_tolerance{{{I}}}": f"-10x{MINUTES}",
    f'fox_calls_ended_total{{code="INTERNAL",{I}}}': f"0x{MINUTES}",
    f"fox_draining{{{I}}}": f"0x{MINUTES}",
    f'fox_admission_rejections_total{{reason="queue",{I}}}': f"0x{MINUTES}",
    f'fox_admission_rejections_total{{reason="draining",{I}}}': f"0+600x{MINUTES}",
    f"fox_queue_wait_seconds{{{I}}}": f"0.1x{MINUTES}",
    f'fox_time_to_first_token_seconds_bucket{{le="0.1",{I}}}': f"0+60x{MINUTES}",
    f'fox_time_to_first_token_seconds_bucket{{le="10",{I}}}': f"0+60x{MINUTES}",
    f'fox_time_to_first_token_seconds_bucket{{le="+Inf",{I}}}': f"0+60x{MINUTES}",
    f"fox_preemptions_total{{{I}}}": f"0+1x{MINUTES}",
    f"fox_call_bytes{{{I}}}": f"1000x{MINUTES}",
    f"fox_call_bytes_max{{{I}}}": f"2000x{MINUTES}",
    f"fox_calls{{{I}}}": f"1x{MINUTES}",
    f"fox_calls_max{{{I}}}": f"4096x{MINUTES}",
    f'fox_calls_cancelled_total{{cause="stall",{I}}}': f"0x{MINUTES}",
    f"process_open_fds{{{JOB}}}": f"20x{MINUTES}",
    f"process_max_fds{{{JOB}}}": f"1024x{MINUTES}",
    f"fox_log_lines_dropped_total{{{I}}}": f"0x{MINUTES}",
}
# What differs when an alert fires, and when it must have fired (minutes).
FIRES = {
    "FoxserveDown": ({f"up{{{JOB}}}": f"1x4 0x{MINUTES}"}, 7),
    "FoxserveRestarting": ({f"process_start_time_seconds{{{JOB}}}": "100+60x20 1300x10"}, 15),
    "FoxserveNotStepping": ({f"fox_last_step_timestamp_seconds{{{I}}}": f"0x{MINUTES}"}, 5),
    "FoxserveCertificateBroken": ({f"fox_max_log_evicted_mass{{{I}}}": f"-9.99x{MINUTES}"}, 5),
    "FoxserveInternalErrors": (
        {f'fox_calls_ended_total{{code="INTERNAL",{I}}}': f"0x4 1x{MINUTES}"}, 7),
    "FoxserveDraining": ({f"fox_draining{{{I}}}": f"1x{MINUTES}"}, 20),
    "FoxserveRefusing": (
        {f'fox_admission_rejections_total{{reason="queue",{I}}}': f"0+60x{MINUTES}"}, 15),
    "FoxserveQueueLong": ({f"fox_queue_wait_seconds{{{I}}}": f"30x{MINUTES}"}, 10),
    "FoxserveFirstTokenLate": (
        {f'fox_time_to_first_token_seconds_bucket{{le="0.1",{I}}}': f"0x{MINUTES}"}, 20),
    "FoxservePreempting": ({f"fox_preemptions_total{{{I}}}": f"0+60x{MINUTES}"}, 20),
    "FoxserveCallMemoryLow": ({f"fox_calls{{{I}}}": f"4000x{MINUTES}"}, 10),
    "FoxserveReadersStall": (
        {f'fox_calls_cancelled_total{{cause="stall",{I}}}': f"0+5x{MINUTES}"}, 15),
    "FoxserveDescriptorsLow": ({f"process_open_fds{{{JOB}}}": f"1000x{MINUTES}"}, 10),
    "FoxserveLogLost": ({f"fox_log_lines_dropped_total{{{I}}}": f"0+9x{MINUTES}"}, 15),
}
NAMES = re.findall(r"- alert: (\w+)", RULES.read_text())


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A check of promtool; it runs in the folder that relative names start from."""
    return subprocess.run(["promtool", *arguments], cwd=FOLDER, capture_output=True, text=True,
                          timeout=60)


class AlertsTest(unittest.TestCase):
    """The rules, before and in promtool."""

    def test_every_alert_is_tried_and_explained(self) -> None:
        self.assertEqual(sorted(NAMES), sorted(FIRES))
        guide = (ROOT / "docker" / "OPERATIONS.md").read_text()
        for name in NAMES:
            self.assertIn(f"`{name}`", guide)

    def test_metrics_are_those_of_the_server(self) -> None:
        source = ROOT / "server" / "metrics"
        if not source.exists():
            self.skipTest("this server has no metrics")
        made = "".join(path.read_text() for path in sorted(source.glob("*.cc")))
        for name in re.findall(r"\b(?:fox|process)_\w+", RULES.read_text()):
            self.assertIn('"' + name.removesuffix("_bucket") + '"', made)

    def test_promtool(self) -> None:
        if shutil.which("promtool") is None:
            self.skipTest("no promtool here (Debian's package prometheus)")
        for arguments in (("check", "rules", RULES.name),
                          ("check", "config", "prometheus.yml")):
            checked = promtool(*arguments)
            self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)

    def test_each_fires_alone(self) -> None:
        if shutil.which("promtool") is None:
            self.skipTest("no promtool here (Debian's package prometheus)")
        cases = []
        for name, (change, minute) in [("none", ({}, MINUTES)), *FIRES.items()]:
            series = {**HEALTHY, **change}
            self.assertEqual(len(series), len(HEALTHY))
            cases.append({
                "name": name, "interval": "1m",
                "input_series": [{"series": key, "values": values}
                                 for key, values in series.items()],
                "promql_expr_test": [{
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": f"{minute}m",
                    "exp_samples": [] if name == "none" else [
                        {"labels": f'{{alertname="{name}"}}', "value": 1}]}]})
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases},
                      file)
            file.flush()
            tested = promtool("test", "rules", file.name)
        self.assertEqual(tested.returncode, 0, tested.stdout + tested.stderr)


if __name__ == "__main__":
    sys.exit(loud_skips.main())
