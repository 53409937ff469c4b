"""Members at addresses of a host itself: where an operator has declared them, and nowhere else."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product

import pytest

from fairlead.dataplane.native import Here, Own, Service, Vip
from fairlead.dataplane.rows import diff
from fairlead.drivers.interface import DriverError
from fairlead.drivers.native.driver import Native
from fairlead.model.addresses import IPAddress
from fairlead.model.loadbalancer import Transport
from fairlead.model.owner import Kind, Owner
from harness.apart import require_root
from harness.fabric import PORT, VIPS, Fabric, fabric, host_address, member_address

pytestmark = pytest.mark.slow

OWN, OTHER = Owner(Kind.HOST, "host1"), Owner(Kind.HOST, "successor")
PRIVATE = 22


@pytest.fixture
def site() -> Iterator[Fabric]:
    """The first host listens at all of its addresses."""
    require_root("/usr/sbin/nft")
    with fabric() as made, ExitStack() as stack:
        with made.hosts[1].inside():
            stack.enter_context(socket.create_server(("::", PRIVATE), family=socket.AF_INET6, dualstack_ipv6=True))
        made.open()
        made.lead(1)
        yield made


def bridge(vip: IPAddress) -> IPAddress:
    """The host's address among the members behind it, in the prefix that they have."""
    return member_address(1, vip.version) - 1


def lead_to(site: Fabric, *addresses: IPAddress) -> None:
    """By each of its VIPs the first host has a member at its own address."""
    rows = [Vip(address=vip, held=True) for vip in VIPS]
    services = [
        Service(
            vip=vip,
            transport=Transport.TCP,
            port=PORT,
            by_source=False,
            slots=bytes(256),
            targets=(Here(address=address, port=PRIVATE),),
        )
        for vip, address in product(VIPS, addresses)
        if vip.version == address.version
    ]
    site.put(1, [*rows, *services])


@pytest.mark.parametrize("where", ["client", "member", "host"])
def test_no_service_leads_to_the_sockets_of_a_host(site: Fabric, where: str) -> None:
    """Its addresses among members are in prefixes where tenants may have members, and nobody has declared them."""
    place = {"client": site.client, "member": site.members[1], "host": site.hosts[1]}[where]
    lead_to(site, *map(bridge, VIPS))
    for vip in VIPS:
        with pytest.raises(ConnectionRefusedError):
            site.flow(Transport.TCP, vip, place)


@pytest.mark.parametrize("where", ["client", "member", "host"])
def test_members_run_on_hosts_where_that_is_declared(site: Fabric, where: str) -> None:
    place = {"client": site.client, "member": site.members[1], "host": site.hosts[1]}[where]
    own = [host_address(1, vip.version) for vip in VIPS]
    lead_to(site, *own)
    site.put(1, [Own(address=each) for each in own], OWN)
    for vip in VIPS:
        assert site.flow(Transport.TCP, vip, place)
    site.put(1, [], OWN)
    for vip in VIPS:
        with pytest.raises(ConnectionRefusedError):
            site.flow(Transport.TCP, vip, place)


def test_declared_addresses_are_found_again_and_are_one_owners(site: Fabric) -> None:
    """A host that is called otherwise has them when the one that it was has them no more."""
    rows = [Own(address=host_address(1, version)) for version in (4, 6)]
    named = {row.key: row for row in rows}
    site.put(1, rows, OWN)
    again = Native()
    assert site.do(1, again.read_all())[OWN] == named
    with pytest.raises(DriverError, match="is of host/host1"):
        site.do(1, again.apply(OTHER, diff(named, {})))
    site.do(1, again.apply_all({OWN: diff({}, named), OTHER: diff(named, {})}))
    fresh = Native()
    found = site.do(1, fresh.read_all())
    assert (found.get(OWN, {}), found[OTHER]) == ({}, named)
    for each in (again, fresh):
        site.do(1, each.close())
