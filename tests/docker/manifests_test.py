#!/usr/bin/env python3
"""Tests docker/compose.yaml, docker/kubernetes and the Dockerfiles: valid by their schemas, their
parts fit each other, and fox-server accepts their flags.

    manifests_test.py BUILD     a build tree with fox-server
"""

from __future__ import annotations

import json
import re
import sys
import unittest
from typing import Any

import loud_skips
import server_command
from loud_skips import ROOT

yaml = loud_skips.optional("yaml")
compose_spec = loud_skips.optional("compose_viz.spec.compose_spec")
kubernetes_validate = loud_skips.optional("kubernetes_validate")
DOCKER = ROOT / "docker"
OLDEST = "1.25"  # the version of Kubernetes in the manifest


@unittest.skipIf(yaml is None, "no PyYAML here")
class ComposeTest(unittest.TestCase):
    """The parsed file, with the defaults of its variables."""

    def setUp(self) -> None:
        text = (DOCKER / "compose.yaml").read_text()
        self.compose = yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text))
        self.services = self.compose["services"]
        self.worker = self.services["worker-1"]

    @unittest.skipIf(compose_spec is None, "no compose-viz here (pip)")
    def test_schema(self) -> None:
        # compose_viz' model of the specification knows no extension fields.
        plain = {key: value for key, value in self.compose.items() if not key.startswith("x-")}
        check = compose_spec.ComposeSpecification.model_validate
        check(plain)
        plain["services"]["gateway"]["prots"] = []
        with self.assertRaises(ValueError):
            check(plain)

    def test_nothing_is_reachable_from_outside(self) -> None:
        for name, service in self.services.items():
            self.assertEqual(service["cap_drop"], ["ALL"], name)
            for port in service.get("ports", []):
                with self.subTest(name=name, port=port):
                    self.assertTrue(port.startswith("127.0.0.1:"), f"{name}: {port}")
        for worker in ("worker-1", "worker-2"):
            with self.subTest(worker=worker):
                self.assertNotIn("ports", self.services[worker])
                self.assertEqual(self.services[worker]["networks"], ["workers"])
        self.assertIs(self.compose["networks"]["workers"]["internal"], True)

    def test_parts_know_each_other(self) -> None:
        flags, gateway = self.worker["command"], self.services["gateway"]["command"]
        port, http = (server_command.image_port(name) for name in ("grpc", "http"))
        self.assertEqual(self.worker["expose"], [port, http])
        self.assertEqual([word for word in gateway if "://" in word],
                         [f"http://worker-{i}:{http}" for i in (1, 2)])
        scraped = yaml.safe_load((DOCKER / "prometheus/prometheus.yml").read_text())
        targets = {job["job_name"]: job["static_configs"][0]["targets"]
                   for job in scraped["scrape_configs"]}
        metrics = server_command.flag_values(flags)["metrics-port"]
        self.assertEqual(targets["foxserve"], [f"worker-{i}:{metrics}" for i in (1, 2)])
        self.assertIn(f"--prometheus-port={targets['gateway'][0].split(':')[1]}", gateway)
        for service in self.services.values():
            for volume in service.get("volumes", []):
                with self.subTest(volume=volume):
                    self.assertTrue(not volume.startswith(".") or
                                    (DOCKER / volume.split(":")[0]).exists(), volume)
        grace = int(self.worker["stop_grace_period"].removesuffix("s"))
        self.assertGreater(grace, server_command.drain_seconds(flags) + 5)
        server_command.expect_accepted(self, flags)


@unittest.skipIf(yaml is None, "no PyYAML here")
class KubernetesTest(unittest.TestCase):
    """All objects of docker/kubernetes, by kind."""

    def setUp(self) -> None:
        documents = [document for path in sorted((DOCKER / "kubernetes").glob("*.yaml"))
                     for document in yaml.safe_load_all(path.read_text())]
        self.objects: dict[str, Any] = {document["kind"]: document for document in documents}
        self.pod = self.objects["Deployment"]["spec"]["template"]
        self.container = self.pod["spec"]["containers"][0]
        self.flags = server_command.flag_values(self.container["args"])

    @unittest.skipIf(kubernetes_validate is None, "no kubernetes-validate here (pip)")
    def test_schemas(self) -> None:
        newest = kubernetes_validate.latest_version()
        for version in (OLDEST, newest):
            for document in self.objects.values():
                kubernetes_validate.validate(document, version, strict=True)
        self.container["livenesProbe"] = self.container.pop("livenessProbe")
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(self.objects["Deployment"], newest, strict=True)

    def test_all_mean_the_same_pods(self) -> None:
        labels = self.pod["metadata"]["labels"].items()
        for selector in (self.objects["Deployment"]["spec"]["selector"]["matchLabels"],
                         self.objects["Service"]["spec"]["selector"],
                         self.objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
                         self.objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]):
            with self.subTest(selector=selector):
                self.assertTrue(selector and selector.items() <= labels, selector)
        autoscaler = self.objects["HorizontalPodAutoscaler"]["spec"]
        self.assertEqual(autoscaler["scaleTargetRef"]["name"],
                         self.objects["Deployment"]["metadata"]["name"])
        self.assertIn(f'"{autoscaler["metrics"][0]["pods"]["metric"]["name"]}"', loud_skips.METRICS)

    def test_ports(self) -> None:
        ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        self.assertEqual(str(ports["metrics"]), self.flags["metrics-port"])
        self.assertEqual(self.pod["metadata"]["annotations"]["prometheus.io/port"],
                         self.flags["metrics-port"])
        for name in ("grpc", "http"):
            with self.subTest(name=name):
                self.assertEqual(str(ports[name]), server_command.image_port(name))
        service = self.objects["Service"]["spec"]["ports"]
        self.assertEqual({port["name"]: port["port"] for port in service}, ports)
        self.assertLessEqual({port["targetPort"] for port in service}, ports.keys())
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            with self.subTest(probe=probe):
                self.assertEqual(self.container[probe]["grpc"]["port"], ports["grpc"])

    def test_rights(self) -> None:
        # A Service called fox-grpc would set FOX_GRPC_PORT.
        self.assertIs(self.pod["spec"]["enableServiceLinks"], False)
        self.assertFalse(self.objects["Service"]["metadata"]["name"].startswith("fox-"))
        self.assertIs(self.pod["spec"]["securityContext"]["runAsNonRoot"], True)
        self.assertEqual(self.container["securityContext"]["capabilities"], {"drop": ["ALL"]})
        self.assertEqual(self.objects["NetworkPolicy"]["spec"]["egress"], [])

    def test_server_drains_and_accepts_the_flags(self) -> None:
        script = self.container["lifecycle"]["preStop"]["exec"]["command"][-1]
        before = float(re.search(r"sleep (\d+)", script).group(1))
        drain = server_command.drain_seconds(self.container["args"])
        self.assertGreater(self.pod["spec"]["terminationGracePeriodSeconds"], before + drain + 5)
        # The port that an operator drains by is the admin port that the server opens on loopback.
        self.assertIn(f"fox-cli drain --target {self.flags['admin-address']}", script)
        self.assertTrue(self.flags["admin-address"].startswith("127.0.0.1:"))
        server_command.expect_accepted(self, self.container["args"])


class DockerfileTest(unittest.TestCase):
    """The steps of the last stage; debian/foxserve_boot_test.py runs them."""

    def test_images_have_their_ports_and_differ_in_cuda_alone(self) -> None:
        image, cuda = map(server_command.last_stage, ("Dockerfile", "Dockerfile.cuda"))
        self.assertEqual([mine[0] for mine, other in zip(image, cuda, strict=True)
                          if mine != other], ["FROM", "HEALTHCHECK"])
        last = dict(image)
        self.assertIn(f"--uid {last['USER'].split(':')[0]} ", last["RUN"])
        port, http = (server_command.image_port(name) for name in ("grpc", "http"))
        self.assertEqual(last["EXPOSE"], f"{port} {http}")
        self.assertEqual(json.loads(last["HEALTHCHECK"].split(" CMD ")[1]),
                         ["fox-cli", "health", "--target", f"127.0.0.1:{port}"])


if __name__ == "__main__":
    sys.exit(loud_skips.main())
