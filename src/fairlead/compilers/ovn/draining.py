"""Members that get no new connections, but keep existing ones through the gateways of routers.

At a router's egress, northd translates back only packets from *current* backends of a load balancer (`lr_out_undnat`,
ovn-northd(8)). So members that are draining, disabled, down, inactive backups or recently removed stay backends of a
VIP that no client uses, in a row of their own.
"""

from collections.abc import Iterator, Mapping, Set
from hashlib import blake2s
from ipaddress import IPv4Network, IPv6Network
from typing import TypeAlias

from fairlead.dataplane.ovn import GroupMember, LoadBalancer, OvnRow, VirtualService
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.addresses import IPAddress, render_endpoint
from fairlead.model.registry.draining import pool_transport

Endpoints: TypeAlias = Mapping[str, Mapping[int, tuple[str, ...]]]
"""Pool -> ordinal of a member -> its endpoints as OVN writes them."""
UNUSED_V4, UNUSED_V6 = IPv4Network("192.0.2.0/24"), IPv6Network("100::/64")
"""Documentation prefix (RFC 5737) and discard prefix (RFC 6666): no packet has such a destination."""


def draining_rows(
    balancer: lb.LoadBalancer,
    endpoints: Endpoints,
    serving: Mapping[lb.Transport, Set[str]],
    options: tuple[tuple[str, str], ...],
    group: str,
) -> Iterator[OvnRow]:
    """Yield a row in `group` for each transport with a listener: its members that serve no listener.

    `endpoints` are those of each pool.
    """
    for transport in sorted(serving):
        services, left = [], _endpoints(balancer, endpoints, transport)
        for version, (address, port) in unused_vip(balancer.id).items():
            backends = tuple(sorted(left[version] - serving[transport]))
            if backends:
                services.append(VirtualService(vip=render_endpoint(address, port), backends=backends))
        if services:
            row = LoadBalancer(
                name=f"{balancer.id}-{transport.value}-parting",
                title=balancer.name,
                protocol=transport.value,
                services=tuple(services),
                options=options,
            )
            yield row
            yield GroupMember(group=group, load_balancer=row.name)


def unused_vip(balancer_id: str) -> dict[int, tuple[IPAddress, int]]:
    """Return IP version -> unique address and port for a load balancer.

    For two load balancers with the same VIP northd would generate conflicting flows.
    """
    number = int.from_bytes(blake2s(balancer_id.encode(), digest_size=8).digest())
    place, port = number // 65535, 1 + number % 65535
    return {
        4: (UNUSED_V4[1 + place % 254], port),
        6: (UNUSED_V6[1 + place % 2**48], port),
    }


def _endpoints(balancer: lb.LoadBalancer, endpoints: Endpoints, transport: lb.Transport) -> Mapping[int, Set[str]]:
    """Return IP version -> endpoints of all members, including recently removed ones."""
    found: dict[int, set[str]] = {4: set(), 6: set()}
    for pool in balancer.pools:
        if pool_transport(pool) is transport:
            for member in pool.members:
                found[member.address.version].update(endpoints[pool.id][member.ordinal])
    for gone in balancer.parted:
        if gone.transport is transport:
            found[gone.address.version].add(render_endpoint(gone.address, gone.port))
    return found
