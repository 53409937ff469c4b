"""Start of systemd-networkd: it removes every routing rule whose protocol is not `kernel`."""

from collections.abc import Iterator
from itertools import product

import pytest

from fairlead.drivers.native.driver import Native
from fairlead.model.documents.loadbalancer import Transport
from harness.apart import Apart, require_root
from harness.fabric import HOSTS, VIPS, Fabric, fabric
from harness.native_host import EVERYTHING, ONE, kernel_state, put, way

EVEN = bytes(slot % 3 for slot in range(256))
OLDER = 250
"""Protocol of the rules of an older release, which also compared whole marks."""


@pytest.fixture
def site() -> Iterator[Fabric]:
    require_root("/usr/sbin/nft")
    with fabric() as made:
        yield made


def begin_networkd(host: Apart) -> None:
    """Remove rules as networkd does with ManageForeignRoutingPolicyRules=yes, the default (networkd.conf(5))."""
    for version in ("-4", "-6"):
        for line in host.run("ip", version, "-d", "rule").splitlines():
            if "proto kernel" not in line:
                host.run("ip", version, "rule", "del", "pref", line.partition(":")[0])


@pytest.mark.slow
def test_hosts_are_reached_and_serve_as_before(site: Fabric) -> None:
    """Traffic continues after networkd has removed its rules, without an agent that would restore them."""
    site.open()
    for number in HOSTS:
        site.serve(number, EVEN)
    site.lead(1)
    flows = [site.flow(*each) for each in product((Transport.TCP, Transport.UDP), VIPS) for _ in range(12)]
    names = [flow.ask() for flow in flows]
    assert set(names) == {"m1", "m2", "m3"}
    for each in site.hosts.values():
        begin_networkd(each)
    assert [flow.ask() for flow in flows] == names
    for number in HOSTS:
        site.client.run("ping", "-c1", "-W2", f"10.20.0.1{number}")


async def test_rules_of_an_older_release_are_made_anew_without_a_gap(host: Apart) -> None:
    before = kernel_state(host)

    driver = Native()
    await put(driver, *way())
    await put(driver, ONE, EVERYTHING)
    await driver.close()
    rules = _rules(host)
    for version in ("-4", "-6"):
        _age(host, version)
    begun = Native()
    assert await begun.read_all() == {way()[0]: way()[1], ONE: EVERYTHING}
    assert _rules(host) == rules
    await begun.close()
    for version in ("-4", "-6"):
        _age(host, version)
    await Native().remove()
    assert kernel_state(host) == before


def _rules(host: Apart) -> list[str]:
    """Return the rules sorted, because the order within one preference is undefined."""
    return sorted((host.run("ip", "-d", "rule") + host.run("ip", "-6", "-d", "rule")).splitlines())


def _age(host: Apart, version: str) -> None:
    lines = [line.partition(":\t") for line in host.run("ip", version, "rule").splitlines()]
    ours = [(place, rule) for place, _, rule in lines if int(place) < 6]
    assert len(ours) == 7
    for place, rule in ours:
        older = rule.replace("/0x3fff", "").replace("/0x3000", "/0xf000")
        host.run("ip", version, "rule", "add", *older.split(), "pref", place, "protocol", str(OLDER))
        host.run("ip", version, "rule", "del", *rule.split(), "pref", place, "protocol", "kernel")
