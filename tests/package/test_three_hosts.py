"""The example of three hosts: all commands of its README are extracted and executed.

Three hosts on one network: etcd, OVN's databases, Fairlead, HAProxy and keepalived are real, with the example's files.
A client uses the API at its only address all the time.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from harness.package import network_creator as asker_program
from harness.package.archives import ROOT, run_ok
from harness.package.hosts import HostNetwork, PackageHost
from harness.package.network_creator import MAX_NETWORKS
from harness.waiting import DEADLINE, wait_equal, wait_until

pytestmark = pytest.mark.package
EXAMPLE = ROOT / "examples" / "three-hosts"
NAMES = ("one", "two", "three")
NETWORKS = {4: ("192.0.2.", 24), 6: ("2001:db8::", 64)}
"""Prefix of the addresses of hosts and of the API, and the prefix length."""
USER, PASSWORD = "admin", "of the test"
PROGRAMS = (
    "etcd",
    "etcdctl",
    "ovsdb-server",
    "ovn-northd",
    "haproxy",
    "keepalived",
    "openssl",
    "curl",
    "systemd-sysusers",
)
MEMORY = Path("/dev/shm")
CURL_TIMEOUTS = ("--connect-timeout", "10", "-m", "60")  # seconds


@dataclass(frozen=True)
class Block:
    """Commands, and where they are executed: on a host, on all hosts, or on the operator's machine."""

    where: str
    commands: str


def blocks() -> dict[str, list[Block]]:
    """Command blocks of each section by its number."""
    found: dict[str, list[Block]] = {}
    for section in re.split(r"^## ", (EXAMPLE / "README.md").read_text(), flags=re.MULTILINE)[1:]:
        texts = re.findall(r"^```sh\n# (?:on )?([^\n]*)\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)
        found[section[0]] = [Block(where, commands) for where, commands in texts]
    return found


def address(version: int, number: int) -> str:
    """Address with this last part: 10 is the API's, the following ones are the hosts'."""
    return f"{NETWORKS[version][0]}{number}"


def in_url(version: int, number: int) -> str:
    return f"[{address(version, number)}]" if version == 6 else address(version, number)


def rendered(folder: Path, version: int) -> Path:
    """The example as configured for hosts with these addresses and one user."""
    hosts = {name.upper(): address(version, number) for number, name in enumerate(("vip", *NAMES), 10)}
    hosts["VIP_LENGTH"] = str(NETWORKS[version][1])
    place = folder / "example"
    shutil.copytree(EXAMPLE, place)
    for name, value in hosts.items():
        text = (place / "hosts").read_text()
        (place / "hosts").write_text(re.sub(rf"^{name}=.*$", f"{name}={value}", text, flags=re.MULTILINE))
    secret = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    (place / "users").write_text(f"{USER}:{secret}:ops:admin\n")
    for block in blocks()["1"]:
        run_ok(["sh", "-e", "-c", block.commands], cwd=place)
    return place


@pytest.mark.parametrize("version", NETWORKS)
def test_files_of_the_example_are_accepted_by_their_programs(version: int, tmp_path: Path):
    place = rendered(tmp_path, version)
    for name in NAMES:
        etc = place / "out" / name / "etc"
        for path in (each for each in etc.rglob("*") if each.is_file()):
            assert not re.search("@[A-Z_]+@", path.read_text()), path
            assert not path.stat().st_mode & 0o077, path
            path.write_text(path.read_text().replace("/etc/", f"{etc}/"))
        run_ok(
            [
                sys.executable,
                "-m",
                "fairlead.cli.main",
                "server",
                "--check",
                "--config",
                etc / "fairlead" / "fairlead.toml",
            ]
        )
        run_ok(["haproxy", "-c", "-q", "-f", etc / "haproxy" / "haproxy.cfg"])
        run_ok(["keepalived", "--config-test", "-f", etc / "keepalived" / "keepalived.conf"])
        run_ok(["openssl", "verify", "-CAfile", etc / "etcd" / "ca.pem", etc / "etcd" / "host.pem"])
    run_ok(
        [
            sys.executable,
            "-m",
            "fairlead.cli.main",
            "agent",
            "--check",
            "--config",
            place / "node/etc/fairlead/fairlead.toml",
        ]
    )


@dataclass
class ThreeHostSite:
    version: int
    wire: HostNetwork
    example: Path
    folder: Path
    blocks: dict[str, list[Block]] = field(default_factory=blocks)
    hosts: dict[str, PackageHost] = field(default_factory=dict)

    @property
    def vip(self) -> str:
        return address(self.version, 10)

    @property
    def url(self) -> str:
        return f"https://{in_url(self.version, 10)}:9876"

    def begin(self, name: str) -> None:
        """Start a host with an empty disk."""
        host = self.hosts[name] = PackageHost(name, self.folder)
        self.wire.plug(host, f"{address(self.version, 11 + NAMES.index(name))}/{NETWORKS[self.version][1]}")
        host.install()
        self.deliver(name)

    def deliver(self, name: str) -> None:
        """Copy the files to /root/host, as the README instructs."""
        self.hosts[name].copy(self.example / "out" / name, "/root/host")

    def do(self, section: str, *, only: str = "", blocks: slice = slice(None)) -> str:
        """Execute the commands of the section, or only those of one host, and return the output."""
        said = ""
        for block in self.blocks[section][blocks]:
            commands = re.sub(r"192\.0\.2\.(\d+)", lambda found: in_url(self.version, int(found[1])), block.commands)
            if block.where == "where you work":
                said += self.wire.run_script(commands, self.example)
            else:
                names = list(NAMES) if block.where == "each host" else [block.where]
                said += "".join(self.hosts[only or name].run_script(commands) for name in names[: 1 if only else None])
        return said

    def ask(self, path: str, *more: str) -> str:
        ca = self.example / "tls" / "ca.pem"
        words = [
            "curl",
            "-sS",
            "-f",
            *CURL_TIMEOUTS,
            "--cacert",
            ca,
            "-u",
            f"{USER}:{PASSWORD}",
            f"{self.url}{path}",
            *more,
        ]
        return run_ok([*self.wire.inside, *map(str, words)])

    def plan(self) -> str:
        """Rows that OVN lacks, as printed by `fairlead plan`."""
        words = [*self.wire.inside, sys.executable, "-m", "fairlead.cli.main", "plan", "--url", self.url]
        who = {
            "FAIRLEAD_USER": USER,
            "FAIRLEAD_PASSWORD": PASSWORD,
            "SSL_CERT_FILE": str(self.example / "tls" / "ca.pem"),
        }
        return subprocess.run(words, env={**os.environ, **who}, capture_output=True, text=True, check=False).stderr

    def answers(self, path: str) -> bool:
        with suppress(AssertionError):
            return bool(self.ask(path))
        return False

    def networks(self) -> list[str]:
        return [each["name"] for each in json.loads(self.ask("/network/v2.0/networks"))["networks"]]

    def holder(self) -> str:
        """Host with the address of the API."""
        held = [
            name
            for name, host in self.hosts.items()
            if f"{self.vip}/" in host.run_script("ip -o address show dev eth0")
        ]
        return held[0] if len(held) == 1 else ""


class RepeatingCreator:
    """A client that continuously creates networks."""

    def __init__(self, site: ThreeHostSite) -> None:
        words = [sys.executable, asker_program.__file__, site.url, site.example / "tls" / "ca.pem"]
        self._log = site.folder / "asker.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*site.wire.inside, *map(str, words), USER, PASSWORD], stdout=log, stderr=subprocess.STDOUT
            )

    def _last(self) -> dict[str, Any]:
        lines = self._log.read_text().splitlines()
        return dict(json.loads(lines[-1])) if lines else {"made": 0, "longest": 0.0}

    def made(self) -> int:
        assert self._process.poll() is None, self._log.read_text()[-3000:]
        return int(self._last()["made"])

    def longest(self) -> float:
        """Longest duration in seconds of one creation."""
        return self._last()["longest"]

    def goes_on(self) -> None:
        """Wait until it has created several more."""
        before = self.made()
        wait_until(self.made, f"more than {before + 5}", is_enough=lambda made: made > before + 5)

    def end(self) -> dict[str, Any]:
        self._process.terminate()
        assert self._process.wait(DEADLINE) == 0, self._log.read_text()[-3000:]
        return self._last()


@pytest.fixture(params=NETWORKS)
def site(request: pytest.FixtureRequest) -> Iterator[ThreeHostSite]:
    missing = [each for each in PROGRAMS if shutil.which(each, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]
    if missing or os.geteuid() != 0:
        reason = f"it needs root and {', '.join(missing) or 'nothing else'}: scripts/setup lab installs it"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    folder = Path(tempfile.mkdtemp(prefix="fairlead-hosts-", dir=MEMORY if MEMORY.is_dir() else None))
    version = request.param
    wire = HostNetwork(f"{address(version, 9)}/{NETWORKS[version][1]}")
    site = ThreeHostSite(version, wire, rendered(folder, version), folder)
    try:
        for name in NAMES:
            site.begin(name)
        yield site
    finally:
        for host in site.hosts.values():
            host.stop()
        wire.stop()
        shutil.rmtree(folder)


def test_readme_commands_work_and_the_service_survives_loss_of_a_host(site: ThreeHostSite):
    for section in "234":
        site.do(section)
    wait_until(site.holder)
    asker = RepeatingCreator(site)
    try:
        asker.goes_on()
        site.do("6", blocks=slice(0, 1))
        asker.goes_on()
        site.do("6", blocks=slice(1, 2))
        asker.goes_on()
        lose_and_replace(site, asker)
        site.do("9")
        asker.goes_on()
    finally:
        found = asker.end()
    print(f"made {found['made']}; the longest took {found['longest']} s")
    newest = [f"asked-{number}" for number in range(found["made"])][-MAX_NETWORKS:]
    assert sorted(site.networks()) == sorted(newest), "of what was answered nothing is lost, and nothing is there twice"
    assert site.plan() == "nothing to do\n"
    restore(site)
    site.hosts["three"].stop()  # the replaced host and another one are a majority
    wait_until(lambda: site.answers("/network/v2.0/networks"))


def lose_and_replace(site: ThreeHostSite, asker: RepeatingCreator) -> None:
    """Replace the host that has the address."""
    for word in ("stop", "start"):
        for name in ("three", "one"):
            site.hosts[name].run_script(f"systemctl {word} keepalived")
        wait_equal(site.holder, "two")
    site.hosts["two"].stop()
    before = asker.longest()
    asker.goes_on()
    print(f"a host lost its power: {asker.longest()} s, before {before} s")
    site.do("7", blocks=slice(0, 2))
    site.begin("two")
    site.do("2", only="two")
    site.do("7", blocks=slice(2, 3))
    asker.goes_on()


def restore(site: ThreeHostSite) -> None:
    """Restore the backup: later changes are gone, and earlier data is back."""
    site.do("8", blocks=slice(0, 1))
    before = site.networks()
    site.ask("/network/v2.0/networks", "-d", '{"network": {"name": "later"}}', "-H", "Content-Type: application/json")
    assert "later" in site.networks()
    site.do("8", blocks=slice(1, 4))
    wait_until(lambda: site.answers("/network/v2.0/networks"))
    assert sorted(site.networks()) == sorted(before)
