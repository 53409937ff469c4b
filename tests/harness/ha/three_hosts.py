"""Three hosts in network namespaces, each with etcd, OVN's databases, ovn-northd and a Fairlead server.

etcd and the Northbound and Southbound databases (RAFT) are clusters of three. Everything runs in network and PID
namespaces that are discarded, with everything left in them.
"""

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import bcrypt

from harness.waiting import DEADLINE, wait_until

HOSTS = (0, 1, 2)
ADDRESSES = tuple(f"192.0.2.1{host}" for host in HOSTS)
USER, PASSWORD = "ha", "of the test"
PORT = 9876
Kind = str


@dataclass(frozen=True)
class Database:
    name: str
    schema: str
    port: int
    raft: int

    @property
    def remotes(self) -> str:
        return ",".join(f"tcp:{address}:{self.port}" for address in ADDRESSES)


DATABASES = {
    "northbound": Database("OVN_Northbound", "/usr/share/ovn/ovn-nb.ovsschema", 6641, 6643),
    "southbound": Database("OVN_Southbound", "/usr/share/ovn/ovn-sb.ovsschema", 6642, 6644),
}
NORTHBOUND, SOUTHBOUND = (DATABASES[name].remotes for name in DATABASES)
ETCD = ",".join(f"{address}:2379" for address in ADDRESSES)
NETWORK_RULESETS = {
    "deafen": "table inet parted { chain in { type filter hook input priority 0; iif != lo drop; }; }",
    "reset": "table inet parted { chain out { type filter hook output priority 0;"
    f" oif != lo tcp sport != {PORT} reject with tcp reset; }}; }}",
}
"""nftables rules of each disturbance."""
KINDS: tuple[Kind, ...] = ("etcd", *DATABASES, "northd", "server")
"""Kinds of instances, in the order in which they are started."""


def run(*words: str | Path) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=2 * DEADLINE, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


@dataclass
class ThreeHosts:
    folder: Path
    _command_prefixes: list[tuple[str, ...]] = field(default_factory=list)
    _namespace_holders: "list[subprocess.Popen[bytes]]" = field(default_factory=list)
    _running: "dict[tuple[Kind, int], subprocess.Popen[bytes]]" = field(default_factory=dict)

    def start_hosts(self) -> None:
        self._plug_hosts()
        line = f"{USER}:{bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()}:default:admin\n"
        users = self.folder / "users"
        users.touch(0o600)
        users.write_text(line)
        self._make_databases()
        for kind in KINDS[:-2]:
            for host in HOSTS:
                self.start(kind, host)
            for host in HOSTS:
                self.wait(kind, host)
        run("ovn-nbctl", f"--db={NORTHBOUND}", "init")
        run("ovn-sbctl", f"--db={SOUTHBOUND}", "init")
        for host in HOSTS:
            self.start("northd", host)

    def _plug_hosts(self) -> None:
        for line in ("link set lo up", "link add wire type bridge", "address add 192.0.2.1/24 dev wire"):
            run("ip", *line.split())
        run("ip", "link", "set", "wire", "up")
        here = os.readlink("/proc/self/ns/net")
        for host, address in enumerate(ADDRESSES):
            held = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
            self._namespace_holders.append(held)
            pid = str(held.pid)
            wait_until(lambda: os.readlink(f"/proc/{pid}/ns/net"), "a namespace", is_enough=lambda its: its != here)  # noqa: B023
            inside = ("nsenter", f"--target={pid}", "--net")
            self._command_prefixes.append(inside)
            run("ip", "link", "add", f"h{host}", "type", "veth", "peer", "name", "eth0", "netns", pid)
            run("ip", "link", "set", f"h{host}", "master", "wire", "up")
            for line in ("link set lo up", f"address add {address}/24 dev eth0", "link set eth0 up"):
                run(*inside, "ip", *line.split())

    def _make_databases(self) -> None:
        for kind, database in DATABASES.items():
            first, *others = (f"tcp:{address}:{database.raft}" for address in ADDRESSES)
            run("ovsdb-tool", "create-cluster", self._file(kind, 0), database.schema, first)
            for host, own in enumerate(others, 1):
                run("ovsdb-tool", "join-cluster", self._file(kind, host), database.name, own, first)

    def _file(self, kind: Kind, host: int, suffix: str = "db") -> str:
        return str(self.folder / f"{kind}{host}.{suffix}")

    def start(self, kind: Kind, host: int, **more: str) -> None:
        """Start an instance, for the first time or again with its data. `more` are environment variables."""
        with open(self._file(kind, host, "log"), "ab") as log:
            self._running[kind, host] = subprocess.Popen(
                [*self._command_prefixes[host], *self._command(kind, host)],
                env={**os.environ, **self._environment(host), **more},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _command(self, kind: Kind, host: int) -> Sequence[str]:
        address, control = ADDRESSES[host], f"--unixctl={self._file(kind, host, 'ctl')}"
        if kind == "server":
            return (sys.executable, "-m", "fairlead.cli.main", "server")
        if kind == "northd":
            return ("ovn-northd", f"--ovnnb-db={NORTHBOUND}", f"--ovnsb-db={SOUTHBOUND}", control, "-vconsole:warn")
        if kind == "etcd":
            return ("etcd", *(f"--{name}={value}" for name, value in self._etcd_options(host).items()))
        remote = f"--remote=ptcp:{DATABASES[kind].port}:{address}"
        return ("ovsdb-server", remote, control, "-vconsole:warn", self._file(kind, host))

    def _etcd_options(self, host: int) -> Mapping[str, str]:
        client, peer = (f"http://{ADDRESSES[host]}:{port}" for port in (2379, 2380))
        return {
            "name": f"m{host}",
            "data-dir": self._file("etcd", host),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": ",".join(f"m{each}=http://{ADDRESSES[each]}:2380" for each in HOSTS),
            "logger": "zap",
        }

    def _environment(self, host: int) -> Mapping[str, str]:
        return {
            "FAIRLEAD_SERVER_LISTEN": f"{ADDRESSES[host]}:{PORT}",
            "FAIRLEAD_SERVER_AUTHENTICATION": "http_basic",
            "FAIRLEAD_SERVER_PASSWORD_FILE": str(self.folder / "users"),
            "FAIRLEAD_SERVER_ALLOW_INSECURE_AUTH": "yes",
            "FAIRLEAD_STORE_PATH": self._file("server", host),
            "FAIRLEAD_STORE_URL": f"etcd://{ETCD}/ha",
            "FAIRLEAD_OVN_NORTHBOUND": NORTHBOUND,
            "FAIRLEAD_OVN_SOUTHBOUND": SOUTHBOUND,
            "FAIRLEAD_OVN_PROBE_INTERVAL": "5",
        }

    def wait(self, kind: Kind, host: int) -> None:
        """Wait until the instance works in its cluster again."""
        try:
            wait_until(lambda: self._is_healthy(kind, host), f"{kind} of host {host}")
        except AssertionError as error:
            raise AssertionError(f"{error}; its log: {self.tail(kind, host)}; {self.ready(host)}") from error

    def tail(self, kind: Kind, host: int) -> str:
        return Path(self._file(kind, host, "log")).read_text(errors="replace")[-1500:]

    def bug_reports(self) -> list[str]:
        """Log entries of servers that report a bug, each with its traceback."""
        texts = [Path(self._file("server", host, "log")).read_text(errors="replace") for host in HOSTS]
        entries = [each for text in texts for each in re.split(r"^(?=\d{4}-\d\d-\d\d )", text, flags=re.MULTILINE)]
        return [each[-2000:] for each in entries if re.search(r"Traceback| CRITICAL ", each)]

    def _is_healthy(self, kind: Kind, host: int) -> bool:
        process = self._running[kind, host]
        assert process.poll() is None, f"{kind} of host {host} has ended: {self.tail(kind, host)}"
        if kind in DATABASES:
            return "Status: cluster member" in (said := self._cluster(kind, host)) and "Leader: unknown" not in said
        if kind == "etcd":
            words = ("etcdctl", f"--endpoints={ADDRESSES[host]}:2379", "--command-timeout=2s", "endpoint", "health")
            environment = {**os.environ, "ETCDCTL_API": "3"}
            return subprocess.run(words, env=environment, capture_output=True, check=False).returncode == 0
        return kind == "northd" or self.ready(host).startswith("ready")

    def _cluster(self, kind: Kind, host: int) -> str:
        words = ("ovs-appctl", "-T", "2", "-t", self._file(kind, host, "ctl"), "cluster/status", DATABASES[kind].name)
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout

    def ready(self, host: int) -> str:
        """Response of the server's /readyz, or an empty string without one."""
        try:
            with urllib.request.urlopen(f"http://{ADDRESSES[host]}:{PORT}/readyz", timeout=2) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return f"{error.code}: {error.read().decode()}"
        except OSError:
            return ""

    def leader(self, kind: Kind) -> int:
        """Host of the leader or active instance of this kind."""
        return next((host for host in HOSTS if self._is_leader(kind, host)), 0)

    def _is_leader(self, kind: Kind, host: int) -> bool:
        if kind in DATABASES:
            return "Role: leader" in self._cluster(kind, host)
        if kind == "etcd":
            words = ("etcdctl", f"--endpoints={ADDRESSES[host]}:2379", "endpoint", "status")
            environment = {**os.environ, "ETCDCTL_API": "3"}
            said = subprocess.run(words, env=environment, capture_output=True, text=True, check=False).stdout
            return ", true, " in said
        if kind == "northd":
            words = ("ovs-appctl", "-T", "2", "-t", self._file(kind, host, "ctl"), "status")
            return "active" in subprocess.run(words, capture_output=True, text=True, check=False).stdout
        return self.ready(host) == "ready\n"

    def kill(self, kind: Kind, host: int) -> None:
        process = self._running.pop((kind, host))
        process.kill()
        process.wait()

    def freeze(self, kind: Kind, host: int) -> None:
        process = self._running[kind, host]
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)

    def thaw(self, kind: Kind, host: int) -> None:
        self._running[kind, host].send_signal(signal.SIGCONT)

    def disturb_network(self, how: str, host: int) -> None:
        """Disturb a host's network.

        `cut` drops all packets, `deafen` incoming ones. `reset` answers the host's own packets to others with a reset,
        except its responses to clients, which would not receive one.
        """
        if how == "cut":
            run("ip", "link", "set", f"h{host}", "down")
        else:
            run(*self._command_prefixes[host], "nft", NETWORK_RULESETS[how])

    def restore_network(self, how: str, host: int) -> None:
        if how == "cut":
            run("ip", "link", "set", f"h{host}", "up")
        else:
            run(*self._command_prefixes[host], "nft", "delete table inet parted")

    def stop_all(self) -> None:
        for process in (*self._running.values(), *self._namespace_holders):
            process.kill()
            process.wait()


@contextmanager
def three_hosts(folder: Path) -> Iterator[ThreeHosts]:
    """Start three hosts, without a server."""
    place = ThreeHosts(folder)
    try:
        place.start_hosts()
        yield place
    finally:
        place.stop_all()
