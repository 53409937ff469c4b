"""Members at a host's own addresses: served where an operator has declared the address, and nowhere else."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product

import pytest

from fairlead.dataplane.native import LocalMember, LocalMemberAddress, Service, Vip
from fairlead.dataplane.rows import diff
from fairlead.drivers.interface import DriverError
from fairlead.drivers.native.driver import Native
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.owner import Kind, Owner
from harness.fabric import PORT, VIPS, Fabric, fabric, host_address, member_address
from harness.net_namespace import require_root

pytestmark = pytest.mark.slow

OWN, OTHER = Owner(Kind.HOST, "host1"), Owner(Kind.HOST, "successor")
PRIVATE = 22


@pytest.fixture
def site() -> Iterator[Fabric]:
    """Yield a site whose first host listens on all of its addresses."""
    require_root("/usr/sbin/nft")
    with fabric() as made, ExitStack() as stack:
        with made.hosts[1].inside():
            stack.enter_context(socket.create_server(("::", PRIVATE), family=socket.AF_INET6, dualstack_ipv6=True))
        made.open()
        made.route_to(1)
        yield made


def bridge(vip: IPAddress) -> IPAddress:
    """Return the host's address in the prefix of the members behind it."""
    return member_address(1, vip.version) - 1


def route_to(site: Fabric, *addresses: IPAddress) -> None:
    """Give each VIP of the first host a member at the host's own address."""
    rows = [Vip(address=vip, is_local=True) for vip in VIPS]
    services = [
        Service(
            vip=vip,
            transport=Transport.TCP,
            port=PORT,
            by_source=False,
            slots=bytes(256),
            targets=(LocalMember(address=address, port=PRIVATE),),
        )
        for vip, address in product(VIPS, addresses)
        if vip.version == address.version
    ]
    site.put(1, [*rows, *services])


@pytest.mark.parametrize("where", ["client", "member", "host"])
def test_services_never_lead_to_undeclared_addresses_of_a_host(site: Fabric, where: str) -> None:
    """Members at a host's undeclared addresses are unreachable, although tenants may have members in these prefixes."""
    place = {"client": site.client, "member": site.members[1], "host": site.hosts[1]}[where]
    route_to(site, *map(bridge, VIPS))
    for vip in VIPS:
        with pytest.raises(ConnectionRefusedError):
            site.flow(Transport.TCP, vip, place)


@pytest.mark.parametrize("where", ["client", "member", "host"])
def test_member_at_a_declared_host_address_is_served(site: Fabric, where: str) -> None:
    place = {"client": site.client, "member": site.members[1], "host": site.hosts[1]}[where]
    own = [host_address(1, vip.version) for vip in VIPS]
    route_to(site, *own)
    site.put(1, [LocalMemberAddress(address=each) for each in own], OWN)
    for vip in VIPS:
        assert site.flow(Transport.TCP, vip, place)
    site.put(1, [], OWN)
    for vip in VIPS:
        with pytest.raises(ConnectionRefusedError):
            site.flow(Transport.TCP, vip, place)


def test_declared_addresses_are_read_back_and_have_one_owner(site: Fabric) -> None:
    """Declared addresses are read back and have one owner; they move to a host's new name after the old one released
    them."""
    rows = [LocalMemberAddress(address=host_address(1, version)) for version in (4, 6)]
    named = {row.key: row for row in rows}
    site.put(1, rows, OWN)
    again = Native()
    assert site.run_on_host(1, again.read_all())[OWN] == named
    with pytest.raises(DriverError, match="belongs to host/host1"):
        site.run_on_host(1, again.apply(OTHER, diff(named, {})))
    site.run_on_host(1, again.apply_all({OWN: diff({}, named), OTHER: diff(named, {})}))
    fresh = Native()
    found = site.run_on_host(1, fresh.read_all())
    assert (found.get(OWN, {}), found[OTHER]) == ({}, named)
    for each in (again, fresh):
        site.run_on_host(1, each.close())
