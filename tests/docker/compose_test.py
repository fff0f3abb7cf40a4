#!/usr/bin/env python3
"""Tests of docker/compose.yaml: valid by the Compose specification, its parts fit each other, and
nothing is reachable from outside or runs with more rights than it needs.

    compose_test.py BUILD     a build tree with fox-server
"""

from __future__ import annotations

import re
import sys
import unittest

import loud_skips
import server_command
from loud_skips import ROOT

yaml = loud_skips.optional("yaml")
compose_spec = loud_skips.optional("compose_viz.spec.compose_spec")
FILE = ROOT / "docker" / "compose.yaml"


def settled(text: str) -> str:
    """Variables with their defaults, as without an environment."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


@unittest.skipIf(yaml is None, "no PyYAML here")
class ComposeTest(unittest.TestCase):
    """The file as a whole."""

    def setUp(self) -> None:
        self.compose = yaml.safe_load(settled(FILE.read_text()))
        self.services = self.compose["services"]

    @unittest.skipIf(compose_spec is None, "no compose-viz here (pip)")
    def test_schema(self) -> None:
        # The model that is made of the specification knows no extension fields.
        plain = {key: value for key, value in self.compose.items() if not key.startswith("x-")}
        check = compose_spec.ComposeSpecification.model_validate
        check(plain)
        plain["services"]["gateway"]["prots"] = []
        with self.assertRaises(ValueError):
            check(plain)

    def test_ports_are_published_on_loopback(self) -> None:
        for name, service in self.services.items():
            for port in service.get("ports", []):
                self.assertTrue(port.startswith("127.0.0.1:"), f"{name}: {port}")
        for worker in ("worker-1", "worker-2"):
            self.assertNotIn("ports", self.services[worker])
            self.assertEqual(self.services[worker]["networks"], ["workers"])
        self.assertIs(self.compose["networks"]["workers"]["internal"], True)

    def test_rights_and_versions(self) -> None:
        for name, service in self.services.items():
            with self.subTest(service=name):
                self.assertEqual(service["cap_drop"], ["ALL"])
                self.assertIn("no-new-privileges:true", service["security_opt"])
                self.assertNotIn("privileged", service)
                self.assertEqual(service["restart"], "on-failure")
                if "build" not in service:
                    self.assertRegex(service["image"], r":v?\d+\.\d+\.\d+$")
        self.assertRegex(self.services["gateway"]["build"]["dockerfile_inline"],
                         r"smg==\d+\.\d+\.\d+\b")

    def test_parts_know_each_other(self) -> None:
        worker = server_command.flag_values(self.services["worker-1"]["command"])
        gateway = self.services["gateway"]["command"]
        port, http = (server_command.image_port(name) for name in ("grpc", "http"))
        self.assertEqual(self.services["worker-1"]["expose"], [port, http])
        self.assertEqual([word for word in gateway if "://" in word],
                         [f"http://worker-{i}:{http}" for i in (1, 2)])
        scraped = yaml.safe_load((ROOT / "docker/prometheus/prometheus.yml").read_text())
        targets = {job["job_name"]: job["static_configs"][0]["targets"]
                   for job in scraped["scrape_configs"]}
        self.assertEqual(targets["foxserve"],
                         [f"worker-{i}:{worker['metrics-port']}" for i in (1, 2)])
        self.assertIn(f"--prometheus-port={targets['gateway'][0].split(':')[1]}", gateway)
        self.assertIn("HF_ENDPOINT", self.services["gateway"]["environment"])
        folder = ROOT / "docker/grafana/provisioning"
        source = yaml.safe_load((folder / "datasources/prometheus.yml").read_text())
        self.assertEqual(source["datasources"][0]["url"], "http://prometheus:9090")

    def test_workers_drain_before_they_are_killed(self) -> None:
        grace = int(self.services["worker-1"]["stop_grace_period"].removesuffix("s"))
        drain = server_command.drain_seconds(self.services["worker-1"]["command"])
        self.assertGreater(grace, drain + 5)
        for worker in ("worker-1", "worker-2"):
            self.assertEqual(self.services["gateway"]["depends_on"][worker]["condition"],
                             "service_healthy")

    def test_mounted_files_exist(self) -> None:
        for service in self.services.values():
            for volume in service.get("volumes", []):
                if volume.startswith("."):
                    self.assertTrue((FILE.parent / volume.split(":")[0]).exists(), volume)

    def test_server_takes_the_flags(self) -> None:
        server_command.expect_accepted(self, self.services["worker-1"]["command"])


if __name__ == "__main__":
    sys.exit(loud_skips.main())
