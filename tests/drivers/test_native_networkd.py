"""Start of systemd-networkd: it removes every routing rule whose protocol is not `kernel`."""

from collections.abc import Iterator
from itertools import product

import pytest

from fairlead.drivers.native.driver import Native
from fairlead.model.documents.loadbalancer import Transport
from harness.fabric import HOSTS, VIPS, Fabric, fabric
from harness.native_host import ALL_ROWS, FIRST_OWNER, kernel_state, put, route_row
from harness.net_namespace import NetNamespace, require_root

EVEN = bytes(slot % 3 for slot in range(256))
OLDER = 250
"""Protocol of the rules of an older release, which also compared whole marks."""


@pytest.fixture
def site() -> Iterator[Fabric]:
    require_root("/usr/sbin/nft")
    with fabric() as made:
        yield made


def begin_networkd(host: NetNamespace) -> None:
    """Remove rules as networkd does with ManageForeignRoutingPolicyRules=yes, the default (networkd.conf(5))."""
    for version in ("-4", "-6"):
        for line in host.run("ip", version, "-d", "rule").splitlines():
            if "proto kernel" not in line:
                host.run("ip", version, "rule", "del", "pref", line.partition(":")[0])


@pytest.mark.slow
def test_traffic_continues_after_networkd_has_removed_the_rules(site: Fabric) -> None:
    """Traffic continues after networkd has removed its rules, without an agent that would restore them."""
    site.open()
    for number in HOSTS:
        site.serve(number, EVEN)
    site.route_to(1)
    flows = [site.flow(*each) for each in product((Transport.TCP, Transport.UDP), VIPS) for _ in range(12)]
    names = [flow.request() for flow in flows]
    assert set(names) == {"m1", "m2", "m3"}
    for each in site.hosts.values():
        begin_networkd(each)
    assert [flow.request() for flow in flows] == names
    for number in HOSTS:
        site.client.run("ping", "-c1", "-W2", f"10.20.0.1{number}")


async def test_rules_of_an_older_release_are_replaced_and_removed(host: NetNamespace) -> None:
    before = kernel_state(host)

    driver = Native()
    await put(driver, *route_row())
    await put(driver, FIRST_OWNER, ALL_ROWS)
    await driver.close()
    rules = _rules(host)
    for version in ("-4", "-6"):
        _age(host, version)
    begun = Native()
    assert await begun.read_all() == {route_row()[0]: route_row()[1], FIRST_OWNER: ALL_ROWS}
    assert _rules(host) == rules
    await begun.close()
    for version in ("-4", "-6"):
        _age(host, version)
    await Native().remove()
    assert kernel_state(host) == before


def _rules(host: NetNamespace) -> list[str]:
    """Return the rules sorted, because the order within one preference is undefined."""
    return sorted((host.run("ip", "-d", "rule") + host.run("ip", "-6", "-d", "rule")).splitlines())


def _age(host: NetNamespace, version: str) -> None:
    lines = [line.partition(":\t") for line in host.run("ip", version, "rule").splitlines()]
    ours = [(place, rule) for place, _, rule in lines if int(place) < 6]
    assert len(ours) == 7
    for place, rule in ours:
        older = rule.replace("/0x3fff", "").replace("/0x3000", "/0xf000")
        host.run("ip", version, "rule", "add", *older.split(), "pref", place, "protocol", str(OLDER))
        host.run("ip", version, "rule", "del", *rule.split(), "pref", place, "protocol", "kernel")
