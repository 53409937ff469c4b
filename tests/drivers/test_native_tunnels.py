"""Tunnel ports: a host rejects datagrams there from boot until all of its rows are applied."""

import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product

import pytest

from fairlead.dataplane.native import TUNNEL_PORTS
from fairlead.drivers.native import table_upgrade
from fairlead.drivers.native.driver import Native
from fairlead.drivers.native.nftables.ruleset import rules
from harness.fabric import NO_REPLY_TIMEOUT, Fabric, fabric, host_address
from harness.net_namespace import require_root

pytestmark = pytest.mark.slow

ALL = {*product((4, 6), TUNNEL_PORTS)}


@pytest.fixture
def site() -> Iterator[Fabric]:
    require_root("/usr/sbin/nft")
    with fabric() as made:
        for host in made.hosts.values():  # disable the limit on ICMP errors, so that each datagram is rejected
            host.set_sysctl("net/ipv4/icmp_ratelimit", 0)
            host.set_sysctl("net/ipv6/icmp/ratelimit", 0)
        yield made


def refused(site: Fabric) -> set[tuple[int, int]]:
    """Return IP versions and ports at which the second host rejects datagrams of the first one."""
    found = set()
    with ExitStack() as stack:
        asking = dict[socket.socket, tuple[int, int]]()
        with site.hosts[1].inside():
            for version, port in ALL:
                family = socket.AF_INET if version == 4 else socket.AF_INET6
                made = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
                made.connect((str(host_address(2, version)), port))
                asking[made] = version, port
        for each in asking:
            each.send(b"")
        while asking:
            readable, _, _ = select.select(list(asking), [], [], NO_REPLY_TIMEOUT)
            if not readable:
                break
            for each in readable:
                with pytest.raises(ConnectionRefusedError):
                    each.recv(1)
                found.add(asking.pop(each))
    return found


def begin(site: Fabric) -> None:
    """Start a new agent on the second host, which finds the rows of the earlier one."""
    site.drivers[2] = Native()
    site.run_on_host(2, site.drivers[2].open())


def end(site: Fabric) -> None:
    site.run_on_host(2, site.drivers.pop(2).close())


def test_tunnels_are_closed_until_the_rows_of_this_boot_are_applied(site: Fabric) -> None:
    assert refused(site) == ALL, "a host that has booted"
    begin(site)
    assert refused(site) == ALL
    end(site)
    begin(site)
    assert refused(site) == ALL, "another agent has applied nothing either"
    site.run_on_host(2, site.drivers[2].open_tunnels())
    assert refused(site) == set()
    end(site)
    assert refused(site) == set(), "the agent has ended, and its rows go on"
    begin(site)
    assert refused(site) == set(), "and has begun again"
    site.hosts[2].run("nft", "flush", "ruleset")
    site.run_on_host(2, site.drivers[2].read_all())
    assert refused(site) == ALL, "somebody has removed the rows"
    site.run_on_host(2, site.drivers[2].open_tunnels())
    assert refused(site) == set()
    site.run_on_host(2, site.drivers[2].remove())
    assert refused(site) == ALL


@pytest.mark.parametrize("is_open", [True, False])
def test_newer_release_keeps_tunnels_open_or_closed(
    site: Fabric, is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(site)
    if is_open:
        site.run_on_host(2, site.drivers[2].open_tunnels())
    end(site)
    other = rules().replace("set since {", "set newer { typeof meta mark; }\nset since {")
    monkeypatch.setattr("fairlead.drivers.native.nftables.ruleset.rules", lambda: other)
    monkeypatch.setattr(table_upgrade, "_DRAIN_SECONDS", 0.0)
    begin(site)
    assert "set newer" in site.hosts[2].run("nft", "list", "ruleset")
    assert refused(site) == (set() if is_open else ALL)


def test_upgrade_from_an_older_release_keeps_tunnels_open(site: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    older = "\n".join(line for line in rules().splitlines() if "closed" not in line)
    with monkeypatch.context() as patch:
        patch.setattr("fairlead.drivers.native.nftables.ruleset.rules", lambda: older)
        patch.setattr("fairlead.drivers.native.table_upgrade.closing", lambda _: "")
        begin(site)
        assert refused(site) == set()
        end(site)
    begin(site)
    assert "set closed" in site.hosts[2].run("nft", "list", "ruleset")
    assert refused(site) == set()
