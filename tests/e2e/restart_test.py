#!/usr/bin/env python3
"""Restarts of a fox-server with --prefix-cache-dir: after SIGTERM and after SIGKILL a long prompt
is found again, with the same answer; damaged files cost time alone; a directory has one server;
administrators list and empty it.

    restart_test.py BIN     the folder of fox-server and fox-cli
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import signal
import tempfile
import time
import urllib.error
import urllib.request
from typing import Any

import fox_server
from fox_server import MODEL, wait_until

PROMPT = (MODEL / "prompt_long.txt").read_text()  # 6,645 tokens
SHORT = PROMPT[:8000]
CONFIGURATION = 78  # the exit code
# Several servers share a GPU in some cases; the first one would take most of its memory.
SERVER = ("--http-port", "0", "--metrics-port", "0", "--kv-cache-mb", "1024")


class RestartTest(fox_server.Case):
    """Each case has a directory of its own."""

    flags = None

    def setUp(self) -> None:
        self.dir = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "cache"
        self.live()

    def live(self, *flags: str) -> None:
        """Starts the next server of the directory."""
        self.serve_case("--prefix-cache-dir", str(self.dir), *SERVER, *flags)

    def ask(self, prompt: str = SHORT, **fields: Any) -> tuple[Any, int, float]:
        """The answer with its log-probabilities, the prompt's cached tokens, and the seconds until
        it came."""
        begin = time.monotonic()
        answer = json.loads(self.post(prompt=prompt, max_tokens=8, temperature=0, logprobs=3,
                                      **fields))
        cached = answer["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)
        return answer["choices"], cached, time.monotonic() - begin

    def count(self, name: str) -> int:
        """The value of a metric of the prefix cache on disk."""
        return int(self.metric(f"fox_prefix_disk_{name}"))

    def cache(self, method: str = "GET", below: str = "", token: str = "") -> tuple[int, Any]:
        """Status and body of a call of /v1/cache."""
        request = urllib.request.Request(
            self.server.http_url + "/v1/cache" + below, method=method,
            headers={"Authorization": "Bearer " + token} if token else {})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())["error"]["message"]

    def post_with(self, headers: dict[str, str], **fields: Any) -> None:
        """Asks with a token."""
        urllib.request.urlopen(urllib.request.Request(
            self.server.http_url + "/v1/completions", json.dumps(fields).encode(),
            {"Content-Type": "application/json", "Authorization": "Bearer token-of-one",
             **headers}), timeout=60).close()

    def files(self) -> list[pathlib.Path]:
        """The stored prefixes."""
        return sorted(self.dir.glob("*.snapshot"))

    def test_after_sigterm_the_prompt_is_found(self) -> None:
        _, cold, computing = self.ask(PROMPT)
        known, cached, _ = self.ask(PROMPT)
        other = self.ask(PROMPT, cache_salt="another")[1]
        self.assertEqual((cold, other), (0, 0))
        self.assertGreater(cached, 6000)
        self.assertEqual(self.server.end(signal.SIGTERM), 0)
        self.assertGreaterEqual(len(self.files()), 2)
        self.assertEqual([file.stat().st_mode & 0o777 for file in self.files()],
                         [0o600] * len(self.files()))
        self.live()
        self.assertEqual(self.count("files"), len(self.files()))
        again, found, reading = self.ask(PROMPT)
        self.assertEqual(found, cached)
        self.assertEqual(again, known)  # to the last bit of the log-probabilities
        self.assertEqual(self.ask(PROMPT, cache_salt="another")[1], cached)
        self.assertEqual(self.ask(PROMPT, cache_salt="a third")[1], 0)
        self.assertEqual((self.count("found_total"), self.count("errors_total")), (2, 0))
        of_disk = self.metric("fox_prefix_disk_read_seconds_total")  # of both salts
        self.assertGreater(of_disk, 0)
        print(f"computed in {computing:.3f} s, read in {reading:.3f} s, "
              f"{self.files()[0].stat().st_size / 1e6:.1f} MB")
        self.assertLess(reading, computing)

    def test_after_sigkill_what_was_written_is_found(self) -> None:
        self.ask()
        known, cached, _ = self.ask()
        self.assertTrue(wait_until(lambda: self.count("saved_total") > 0, 30))
        self.server.end(signal.SIGKILL)
        (self.dir / "writing.tmp").write_bytes(b"half of a file")
        self.live()
        self.assertEqual(self.ask()[:2], (known, cached))

    def test_damaged_files_are_computed_again(self) -> None:
        known = self.ask()[0]
        self.assertEqual(self.server.end(signal.SIGTERM), 0)
        for file in self.files():
            content = bytearray(file.read_bytes())
            content[len(content) // 2 if file == self.files()[0] else -1] ^= 1
            file.write_bytes(content)
        self.live()
        self.assertEqual(self.ask()[:2], (known, 0))
        self.assertGreater(self.count("errors_total"), 0)
        self.assertTrue(self.server.logged("prefix cache on disk"))
        self.assertEqual(len([line for line in self.server.log if "cache on disk" in line]), 1)
        self.assertGreater(self.ask()[1], 0)  # from memory

    def test_a_full_disk_costs_no_answer(self) -> None:
        self.assertEqual(self.server.end(signal.SIGTERM), 0)
        blocked = self.dir / "writing.tmp"
        blocked.mkdir()  # so that no file can be written
        self.live()
        known = self.ask()[0]
        self.assertEqual(self.ask()[0], known)
        self.assertEqual(self.server.end(signal.SIGTERM), 0)
        self.assertEqual(self.files(), [])
        self.assertTrue(self.server.logged("writing a snapshot: open: Is a directory"))

    def test_a_directory_has_one_server(self) -> None:
        begin = time.monotonic()
        second = self.start("--model", str(MODEL), "--prefix-cache-dir", str(self.dir))
        self.assertEqual(second.returncode, CONFIGURATION)
        self.assertIn(f"--prefix-cache-dir: {self.dir}: another server uses this directory",
                      second.stderr)
        self.assertLess(time.monotonic() - begin, 2)
        self.assertEqual(
            self.start("--check-model", str(MODEL), "--prefix-cache-dir",
                       str(self.dir)).returncode, 0)
        missing = self.start("--model", str(MODEL), "--prefix-cache-dir", str(self.dir / "a" / "b"))
        self.assertEqual(missing.returncode, CONFIGURATION)
        self.assertIn("No such file or directory", missing.stderr)

    def test_administrators_list_and_empty_it(self) -> None:
        for salt in ("", "s", "t"):
            self.ask(cache_salt=salt)
        self.assertEqual(self.server.end(signal.SIGTERM), 0)
        self.live()
        # A client without a name is 0.
        names = {salt: hashlib.sha256(b"0/" + salt.encode()).hexdigest()[:16]
                 for salt in ("", "s", "t")}

        def of(name: str) -> list[int]:
            return [file.stat().st_size for file in self.files() if f"-{name}-" in file.name]

        def expected(*salts: str) -> list[dict[str, Any]]:
            return [{"namespace": name, "files": len(of(name)), "bytes": sum(of(name))}
                    for name in sorted(names[salt] for salt in salts)]

        whole = sum(file.stat().st_size for file in self.files())
        self.assertEqual(self.cache(), (200, {
            "object": "list", "data": expected("", "s", "t"), "has_more": False,
            "disk": {"files": len(self.files()), "bytes": whole},
            "memory": {"snapshots": 0, "bytes": 0}}))
        last = sorted(names.values())[-1]
        self.assertEqual(self.cache(below="?after=" + sorted(names.values())[1])[1]["data"],
                         [entry for entry in expected("", "s", "t") if entry["namespace"] == last])
        self.assertEqual(self.cache("DELETE", "/" + names["s"]), (
            200, {"object": "cache", "namespace": names["s"], "deleted": True}))
        self.assertTrue(wait_until(lambda: not of(names["s"]), 10))
        self.assertEqual(self.cache()[1]["data"], expected("", "t"))
        cached = {salt: self.ask(cache_salt=salt)[1] for salt in names}
        self.assertEqual({salt: tokens > 0 for salt, tokens in cached.items()},
                         {"": True, "s": False, "t": True})
        self.assertGreater(self.cache()[1]["memory"]["snapshots"], 2)
        self.assertEqual(self.cache("DELETE"), (
            200, {"object": "cache", "namespace": None, "deleted": True}))
        self.assertEqual(self.ask()[1], 0)
        self.assertTrue(wait_until(lambda: len(self.files()) == 0 or self.count("saved_total") > 0))
        for method, below, code, reason in (
                ("DELETE", "/../etc", 400, "16 hexadecimal digits"),
                ("DELETE", "/" + "A" * 16, 400, "16 hexadecimal digits"),
                ("GET", "?limit=3", 400, "only after=NAMESPACE"),
                ("GET", "/" + names[""], 405, "use DELETE"),
                ("PUT", "", 405, "use DELETE, GET")):
            with self.subTest(method=method, below=below):
                status, said = self.cache(method, below)
                self.assertEqual(status, code)
                self.assertIn(reason, said)

    def test_the_cache_is_for_administrators(self) -> None:
        users, admins = self.dir.parent / "users", self.dir.parent / "admins"
        for file in (users, admins):
            file.write_text(f"token-of-{file.name}\n")
            file.chmod(0o600)
        self.serve_case(*SERVER, "--api-key-file", str(users))
        status, said = self.cache(token="token-of-users")
        self.assertEqual(status, 404)
        self.assertIn("--admin-key-file", said)
        self.serve_case(*SERVER, "--api-key-file", str(users), "--admin-key-file", str(admins))
        for method in ("GET", "DELETE"):
            for token, code in (("", 401), ("token-of-users", 403), ("token-of-admins", 200)):
                with self.subTest(method=method, token=token):
                    self.assertEqual(self.cache(method, token=token)[0], code)
        listed = self.cache(token="token-of-admins")[1]  # without a directory
        self.assertEqual((listed["data"], listed["disk"]), ([], None))

    def test_a_namespace_is_a_clients(self) -> None:
        self.assertEqual(self.server.end(signal.SIGTERM), 0)
        tokens = self.dir.parent / "tokens"
        tokens.write_text("token-of-one\n")
        tokens.chmod(0o600)
        self.live("--api-key-file", str(tokens), "--admin-key-file", str(tokens),
                  "--client-metadata", "x-client")

        def digest(text: str) -> bytes:
            return hashlib.sha256(text.encode()).digest()

        names = []
        for headers, owner in (({}, "token-of-one"),
                               ({"X-Client": "two"}, "client of a gateway: two")):
            self.post_with(headers, prompt=SHORT, max_tokens=1, cache_salt="s")
            client = int.from_bytes(digest(owner)[:8], "little")
            names.append(digest(f"{client}/s").hex()[:16])
        self.assertTrue(wait_until(lambda: sorted(names) == [
            entry["namespace"] for entry in self.cache(token="token-of-one")[1]["data"]], 30))


if __name__ == "__main__":
    fox_server.main()
