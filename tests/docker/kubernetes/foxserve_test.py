#!/usr/bin/env python3
"""Tests of docker/kubernetes: valid by the schemas of two versions, and the parts fit each other.

    foxserve_test.py BUILD     a build tree with fox-server
"""

from __future__ import annotations

import pathlib
import re
import sys
import unittest
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import loud_skips  # noqa: E402
import server_command  # noqa: E402
from loud_skips import ROOT  # noqa: E402

yaml = loud_skips.optional("yaml")
kubernetes_validate = loud_skips.optional("kubernetes_validate")
FOLDER = ROOT / "docker" / "kubernetes"
OLDEST = "1.25"  # as the manifest says


@unittest.skipIf(yaml is None, "no PyYAML here")
class ManifestTest(unittest.TestCase):
    """All objects of the folder, by kind."""

    def setUp(self) -> None:
        documents = [document for path in sorted(FOLDER.glob("*.yaml"))
                     for document in yaml.safe_load_all(path.read_text())]
        self.objects: dict[str, Any] = {document["kind"]: document for document in documents}
        self.assertEqual(len(self.objects), len(documents))
        self.pod = self.objects["Deployment"]["spec"]["template"]
        self.container = self.pod["spec"]["containers"][0]

    @unittest.skipIf(kubernetes_validate is None, "no kubernetes-validate here (pip)")
    def test_schemas(self) -> None:
        newest = kubernetes_validate.latest_version()
        for version in (OLDEST, newest):
            for kind, document in self.objects.items():
                with self.subTest(kind=kind, version=version):
                    kubernetes_validate.validate(document, version, strict=True)
        # The schemas do notice a wrong field.
        self.container["livenesProbe"] = self.container.pop("livenessProbe")
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(self.objects["Deployment"], newest, strict=True)

    def test_all_mean_the_same_pods(self) -> None:
        labels = self.pod["metadata"]["labels"]
        for selector in (self.objects["Deployment"]["spec"]["selector"]["matchLabels"],
                         self.objects["Service"]["spec"]["selector"],
                         self.objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
                         self.objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]):
            self.assertTrue(selector)
            self.assertLessEqual(selector.items(), labels.items())
        target = self.objects["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
        self.assertEqual(target["name"], self.objects["Deployment"]["metadata"]["name"])

    def test_ports(self) -> None:
        ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        flags = server_command.flag_values(self.container["args"])
        self.assertEqual(ports["metrics"], int(flags["metrics-port"]))
        self.assertEqual(self.pod["metadata"]["annotations"]["prometheus.io/port"],
                         flags["metrics-port"])
        for name in ("grpc", "http"):
            self.assertEqual(ports[name], int(server_command.image_port(name)))
        self.assertEqual({port["name"]: port["port"]
                          for port in self.objects["Service"]["spec"]["ports"]}, ports)
        clients = self.objects["NetworkPolicy"]["spec"]["ingress"][0]
        self.assertEqual(clients["ports"], [{"port": "grpc"}, {"port": "http"}])
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            self.assertEqual(self.container[probe]["grpc"]["port"], ports["grpc"])
        for port in self.objects["Service"]["spec"]["ports"]:
            self.assertIn(port["targetPort"], ports)

    def test_grace_covers_the_drain(self) -> None:
        script = self.container["lifecycle"]["preStop"]["exec"]["command"][-1]
        before = float(re.search(r"sleep (\d+)", script).group(1))
        drain = server_command.drain_seconds(self.container["args"])
        self.assertGreater(self.pod["spec"]["terminationGracePeriodSeconds"], before + drain + 5)
        # The operator's port that it drains by is the one that the server opens, on loopback.
        address = server_command.flag_values(self.container["args"])["admin-address"]
        self.assertIn(f"fox-cli drain --target {address}", script)
        self.assertTrue(address.startswith("127.0.0.1:"))

    def test_nothing_it_does_not_need(self) -> None:
        spec = self.pod["spec"]
        self.assertIs(spec["automountServiceAccountToken"], False)
        # A Service called fox-grpc would set FOX_GRPC_PORT.
        self.assertIs(spec["enableServiceLinks"], False)
        self.assertFalse(self.objects["Service"]["metadata"]["name"].startswith("fox-"))
        self.assertIs(spec["securityContext"]["runAsNonRoot"], True)
        context = self.container["securityContext"]
        self.assertEqual(context["capabilities"], {"drop": ["ALL"]})
        self.assertIs(context["allowPrivilegeEscalation"], False)
        self.assertIs(context["readOnlyRootFilesystem"], True)
        self.assertIn("memory", self.container["resources"]["limits"])
        policy = self.objects["NetworkPolicy"]["spec"]
        self.assertEqual(policy["policyTypes"], ["Ingress", "Egress"])
        self.assertEqual(policy["egress"], [])
        self.assertTrue(all("from" in rule and "ports" in rule for rule in policy["ingress"]))

    def test_autoscaler_reads_what_the_server_says(self) -> None:
        metric = self.objects["HorizontalPodAutoscaler"]["spec"]["metrics"][0]["pods"]["metric"]
        self.assertIn(f'"{metric["name"]}"', loud_skips.METRICS)

    def test_server_takes_the_flags(self) -> None:
        server_command.expect_accepted(self, self.container["args"])


if __name__ == "__main__":
    sys.exit(loud_skips.main())
