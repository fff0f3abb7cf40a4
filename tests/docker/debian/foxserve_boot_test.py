#!/usr/bin/env python3
"""Tests the Debian package in a fresh Debian: the steps of the image install it, systemd runs it,
purge removes it. debootstrap makes the system once (build/.../debian-root), systemd-nspawn boots a
copy without a network. Skipped, with the reason, without root, these two programs or a mirror.

    foxserve_boot_test.py BUILD     a build tree whose programs are built
"""

from __future__ import annotations

import pathlib
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import loud_skips  # noqa: E402
import server_command  # noqa: E402
import small_debian  # noqa: E402
from small_debian import run  # noqa: E402

# Runs as root inside the booted system; its last line is the verdict.
INSIDE = r"""#!/bin/bash
exec >/srv/log 2>&1
trap 'journalctl -u foxserve --no-pager | tail -n 30; systemctl poweroff' EXIT
set -eux
of() { systemctl show -P "$1" foxserve; }
serving() { until fox-cli health; do sleep 0.05; done; }

[[ "$(systemctl is-enabled foxserve)" == disabled && "$(of ActiveState)" == inactive ]]
systemctl start foxserve
serving
fox-cli generate "Once upon a time" --max-tokens 8 --temperature 0 | grep -q "there was"
grep -q "^Uid:[[:space:]]6[0-9]*" "/proc/$(of MainPID)/status"  # a dynamic user, not root
grep -q "^NoNewPrivs:[[:space:]]1" "/proc/$(of MainPID)/status"
grep -q "^Seccomp:[[:space:]]2" "/proc/$(of MainPID)/status"

: A crash: systemd starts it again.
kill -9 "$(of MainPID)"
until [[ "$(of NRestarts)" == 1 ]]; do sleep 0.05; done
serving

: A stop lets what runs finish.
fox-cli generate "Once upon a time" --max-tokens 100 --ignore-eos --json --stats >/srv/answer &
until [[ -s /srv/answer ]]; do sleep 0.01; done
systemctl stop foxserve
wait $!
grep -q LENGTH /srv/answer
[[ "$(of Result)" == success && "$(of ExecMainStatus)" == 0 ]]

: A setting that cannot work: told once, not tried again.
echo FOX_MODEL=/nonexistent >>/etc/default/foxserve
systemctl start foxserve
until [[ "$(of ActiveState)" == failed ]]; do sleep 0.05; done
sleep 1.5  # RestartSec is 1
[[ "$(of ActiveState)" == failed && "$(of ExecMainStatus)" == 78 && "$(of NRestarts)" == 0 ]]
sed -i '$d' /etc/default/foxserve

: An upgrade restarts what runs, removal stops it, purge leaves nothing.
systemctl enable --now foxserve
serving
before="$(of MainPID)"
dpkg -i /srv/foxserve.deb
serving
[[ "$(of MainPID)" != "$before" ]]
apt-get -q -y remove foxserve
[[ "$(systemctl is-active foxserve)" == inactive && -f /etc/default/foxserve ]]
apt-get -q -y purge foxserve
for path in /etc/default/foxserve /usr/bin/fox-server /usr/share/foxserve \
  /etc/systemd/system/multi-user.target.wants/foxserve.service; do
  [[ ! -e "$path" && ! -L "$path" ]]
done
echo passed >/srv/verdict
"""
CHECK_UNIT = """[Unit]
After=multi-user.target
[Service]
Type=exec
ExecStart=/srv/inside
"""


class BootTest(unittest.TestCase):
    """The life of the package."""

    def setUp(self) -> None:
        self.root = small_debian.copy_of_root(self)
        for folder in ("srv", "tmp"):  # where the test and the Dockerfile look for it
            shutil.copy(small_debian.package(self.root.parent),
                        self.root / folder / "foxserve.deb")
        steps = [rest for word, rest in server_command.last_stage("Dockerfile") if word == "RUN"]
        installed = run("chroot", str(self.root), "/bin/sh", "-c", " && ".join(steps))
        self.assertEqual(installed.returncode, 0, installed.stdout)
        self.assertFalse((self.root / "tmp" / "foxserve.deb").exists())

    def test_life(self) -> None:
        home, units = self.root / "srv", self.root / "etc" / "systemd" / "system"
        (home / "inside").write_text(INSIDE)
        (home / "inside").chmod(0o755)
        (units / "inside.service").write_text(CHECK_UNIT)
        wants = units / "multi-user.target.wants"
        wants.mkdir(exist_ok=True)
        (wants / "inside.service").symlink_to("../inside.service")
        booted = run(*small_debian.inside(self.root), "-b", seconds=120)
        log = home / "log"
        self.assertTrue((home / "verdict").exists(),
                        log.read_text() if log.exists() else booted.stdout)


if __name__ == "__main__":
    sys.exit(loud_skips.main())
