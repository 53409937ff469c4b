"""Declarative networks: a network with its subnets, its router and the router's gateway, as one object of LXD's API.

It is stored as several documents, which the rules of each type create, change and delete in one write, so other API
front ends can read and change it as a normal network. A network that was created part by part can be described too, and
is changed by a spec as long as no other router is affected.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Network, IPv6Network
from typing import Any

from fairlead.changes import access, networks, routers, subnets
from fairlead.changes.access import Verb
from fairlead.changes.addresses import default_pools
from fairlead.changes.balancer_specs import delete_declarative
from fairlead.changes.caller import ChangeContext
from fairlead.changes.draft import NetworkDraft, NewId
from fairlead.changes.gateways import GatewayRequest, find_external_network, has_link_subnet, set_gateway
from fairlead.changes.network_specs import (
    VERSIONS,
    NetworkIpFamily,
    NetworkSpec,
    RouterAddress,
    describe,
    spec_subnet,
    spec_subnets,
)
from fairlead.changes.networks import SegmentRequest
from fairlead.changes.refusal import Refusal, Refused
from fairlead.changes.restrictions import allows_uplink
from fairlead.changes.routers import InterfaceTarget
from fairlead.changes.untranslated_prefixes import check_granted, check_untranslated
from fairlead.model.documents.addresses import IPAddress, IPNetwork, hash_to_int, overlaps
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.model.documents.network import Ipv6Mode, Network, Port, Router, Subnet
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import ANY_PROJECT, Snapshot
from fairlead.runtime.steps import Steps

MAX_PREFIX_ATTEMPTS = 256
"""Maximum prefixes to try for a subnet without a requested prefix."""


# Refusals


@dataclass(frozen=True, slots=True, kw_only=True)
class NoUplink(Refusal):
    """The request has no uplink, and the project may use none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AmbiguousUplink(Refusal):
    """The request has no uplink, and the project may use several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoFreePrefix(Refusal):
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkNotDeclarative(Refusal):
    """The network has objects that a spec cannot express: several subnets of one IP version, or additional routers. It
    must be changed part by part."""

    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOutsideSubnets(Refusal):
    """A load balancer of the network has a target that would be outside all its subnets."""

    balancer: LoadBalancer
    address: IPAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddressLost(Refusal):
    """A load balancer of the network listens on an address of an uplink that the network would leave."""

    address: IPAddress


def default_uplink(snapshot: Snapshot, project_id: str) -> Network:
    """Return the default uplink: the only external network that the project may use. Raises Refused."""
    external = (snapshot.networks[each] for each in snapshot.project_networks.get(ANY_PROJECT, NO_IDS))
    found = [each for each in external if allows_uplink(snapshot, project_id, each)]
    if len(found) != 1:
        raise Refused(AmbiguousUplink() if found else NoUplink())
    return found[0]


# Requests


def create_network_from_spec(
    snapshot: Snapshot, asker: ChangeContext, network_id: str, new_id: NewId, asked: NetworkSpec
) -> Steps[Changes]:
    """Create a network in the caller's project. Raises Refused."""
    draft = NetworkDraft(snapshot, asker, network_id, new_id)
    network = Network(
        id=network_id,
        project_id=asker.identity.project_id,
        name=asked.name,
        description=asked.description,
        created_at=asker.now,
        mtu=asked.mtu,
        config=asked.config,
    )
    draft.add(networks.create_network(snapshot, asker.identity, network, SegmentRequest()))
    yield from _apply_spec(draft, asked)
    draft.require_unchanged_model()  # the name must be unique
    return draft.changes()


def update_network_from_spec(
    snapshot: Snapshot, asker: ChangeContext, network_id: str, new_id: NewId, asked: NetworkSpec
) -> Steps[Changes]:
    """Update a network from a spec. Raises Refused."""
    draft = NetworkDraft(snapshot, asker, network_id, new_id)
    old = draft.network
    was = describe(snapshot, old)
    said = {name: getattr(asked, name) for name in ("name", "description", "mtu", "config")}
    new = replace(old, **said)
    draft.add(networks.update_network(snapshot, asker.identity, old, new, frozenset(), asker.now))
    router = snapshot.routers.get(old.router_id or "")
    if router is not None and router.name == old.name != new.name:
        draft.put(replace(router, name=new.name, updated_at=asker.now))
    yield
    families = tuple(_keep_subnet(was.families, family) for family in asked.families)
    asked = replace(asked, families=families)
    if (asked.uplink_id, _without_nat(asked)) != (was.uplink_id, _without_nat(was)):
        yield from _apply_spec(draft, asked, was)
    elif sorted(map(str, asked.nameservers)) != sorted(map(str, was.nameservers)):
        _set_nameservers(draft, asked.nameservers)
    return draft.changes()


def delete_declarative_network(snapshot: Snapshot, asker: ChangeContext, network_id: str) -> Steps[Changes]:
    """Delete a network with the router that was created with it and its declarative load balancers. Raises Refused if
    it has other objects."""
    draft = NetworkDraft(snapshot, asker, network_id)
    network = snapshot.networks[network_id]
    access.check_own(asker.identity, Verb.DELETE, network)
    for balancer_id in sorted(snapshot.described_on.get(network_id, NO_IDS)):
        draft.add(delete_declarative(draft.snapshot, asker, balancer_id))
        yield
    router = snapshot.routers.get(network.router_id or "")
    if router is not None:
        _delete_router(draft, router)
    draft.add(networks.delete_network(draft.snapshot, asker.identity, network))
    return draft.changes()


# Implementation


def _without_nat(asked: NetworkSpec) -> tuple[NetworkIpFamily, ...]:
    """Return the families for comparison; NAT has no effect without an uplink."""
    return tuple(each if asked.uplink_id else replace(each, nat=False) for each in asked.families)


def _keep_subnet(was: Iterable[NetworkIpFamily], asked: NetworkIpFamily) -> NetworkIpFamily:
    """Return the requested family, with the present subnet if any is requested."""
    old = next((each for each in was if each.version == asked.version), None)
    return replace(asked, router=old.router) if asked.router is None and old is not None else asked


def _apply_spec(draft: NetworkDraft, asked: NetworkSpec, was: NetworkSpec | None = None) -> Steps[None]:
    """Create, change and delete subnets, router and gateway of the network as in the spec. Raises Refused."""
    network = draft.network
    _check_own(draft.snapshot, network)
    uplink = None if asked.uplink_id is None else _find_uplink(draft, asked.uplink_id)
    families = {each.version: each for each in _with_subnets(network.id, uplink, asked.families)}
    same_uplink = was is not None and was.uplink_id == asked.uplink_id
    for family in families.values():
        is_new = was is None or family not in was.families or not same_uplink
        if uplink is not None and is_new and not family.nat and family.router is not None:
            yield from check_untranslated(draft.snapshot, uplink, network.id, family.router.cidr)
            check_granted(draft.snapshot, draft.identity, network.project_id, uplink, family.router.cidr)
    kept = [subnet.cidr for subnet in spec_subnets(network) if subnet.gateway is None]
    cidrs = [family.router.cidr for family in families.values() if family.router is not None]
    yield from _check_balancers(draft.snapshot, network.id, asked.uplink_id, [*cidrs, *kept])
    for version in VERSIONS:
        if version in families:
            _update_subnet(draft, families[version], asked.nameservers)
        else:
            _drop_subnet(draft, version)
    _update_router(draft, asked.uplink_id, families)


def _check_own(snapshot: Snapshot, network: Network) -> None:
    """Check that a spec can express the network. Raises Refused."""
    joined = {*snapshot.network_routers.get(network.id, NO_IDS)} - {network.router_id}
    if joined or len(network.subnets) > len(spec_subnets(network)):
        raise Refused(NetworkNotDeclarative(network_id=network.id))


def _check_balancers(snapshot: Snapshot, network_id: str, uplink_id: str | None, cidrs: list[IPNetwork]) -> Steps[None]:
    """Check that load balancers of the network keep their listen addresses and targets. Raises Refused."""
    for balancer_id in sorted(snapshot.described_on.get(network_id, NO_IDS)):
        balancer = snapshot.load_balancers[balancer_id]
        if balancer.vip.network_id not in (network_id, uplink_id):
            raise Refused(ListenAddressLost(address=balancer.vip.address))
        named = (backend.address for backend in balancer.described.backends) if balancer.described else ()
        for address in (*named, *(member.address for pool in balancer.pools for member in pool.members)):
            if not any(address in cidr for cidr in cidrs):
                raise Refused(TargetOutsideSubnets(balancer=balancer, address=address))
        yield


def _find_uplink(draft: NetworkDraft, uplink_id: str) -> Network:
    """Return the uplink. Raises Refused."""
    return find_external_network(draft.snapshot, draft.identity, uplink_id, Router)


def _with_subnets(
    network_id: str, uplink: Network | None, families: Iterable[NetworkIpFamily]
) -> Iterator[NetworkIpFamily]:
    """Yield the families with subnets; a family without one gets a free prefix. Raises Refused."""
    avoided = [] if uplink is None else [*(subnet.cidr for subnet in uplink.subnets), *uplink.routes]
    for family in families:
        if family.router is not None:
            yield family
            continue
        tried = (_prefix(family.version, hash_to_int(f"{network_id} {each}")) for each in range(MAX_PREFIX_ATTEMPTS))
        cidr = next((each for each in tried if not any(overlaps(each, other) for other in avoided)), None)
        if cidr is None:
            raise Refused(NoFreePrefix(version=family.version))
        yield replace(family, router=RouterAddress(address=cidr[1], cidr=cidr))


def derive_any_address(seed: str, version: int) -> RouterAddress:
    """The first address of any subnet, as a network has it that is asked for without: the same for the same seed."""
    cidr = _prefix(version, hash_to_int(f"{seed} {version}"))
    return RouterAddress(address=cidr[1], cidr=cidr)


def _prefix(version: int, number: int) -> IPNetwork:
    """Return a prefix of 10.0.0.0/8 (RFC 1918) or fd42::/16 (RFC 4193), as LXD selects them."""
    if version == 4:
        return IPv4Network((10 << 24 | number % 2**16 << 8, 24))
    return IPv6Network((0xFD42 << 112 | number % 2**48 << 64, 64))


def _update_subnet(draft: NetworkDraft, family: NetworkIpFamily, nameservers: tuple[IPAddress, ...]) -> None:
    network = draft.network
    assert family.router is not None  # noqa: S101 - set by `_with_subnets`
    old = spec_subnet(network, family.version)
    cidr, gateway = family.router.cidr, family.router.address
    fields: dict[str, Any] = {
        "cidr": cidr,
        "gateway": gateway,
        "dns_nameservers": tuple(each for each in nameservers if each.version == family.version),
        **_modes(family, cidr),
    }
    if old is None:
        pools = default_pools(cidr, gateway)
        new = Subnet(
            id=draft.new_id(), project_id=network.project_id, created_at=draft.now, allocation_pools=pools, **fields
        )
        draft.add(subnets.create_subnet(draft.snapshot, draft.identity, network.id, new))
        return
    if (old.cidr, old.gateway) == (cidr, gateway):
        draft.add(subnets.update_subnet(draft.snapshot, draft.identity, old, replace(old, **fields), draft.now))
        return
    _detach(draft, old)
    new = replace(old, allocation_pools=default_pools(cidr, gateway), **fields)
    draft.add(subnets.move_subnet(draft.snapshot, draft.identity, old, new, draft.now))


def _modes(family: NetworkIpFamily, cidr: IPNetwork) -> Mapping[str, object]:
    """Return the DHCP and IPv6 modes of a subnet, in Neutron's terms. Derived addresses need a /64."""
    if family.version == 4:
        return {"enable_dhcp": family.dhcp}
    mode: Ipv6Mode | None = Ipv6Mode.SLAAC
    if family.dhcp:
        mode = Ipv6Mode.DHCPV6_STATEFUL if family.stateful else Ipv6Mode.DHCPV6_STATELESS
    if mode is not Ipv6Mode.DHCPV6_STATEFUL and cidr.prefixlen != 64:
        mode = None
    return {"enable_dhcp": family.dhcp or mode is not None, "ipv6_address_mode": mode, "ipv6_ra_mode": mode}


def _drop_subnet(draft: NetworkDraft, version: int) -> None:
    """Delete the subnet of this IP version if the spec of the network includes it, i.e. if it has a gateway."""
    network = draft.network
    subnet = spec_subnet(network, version)
    if subnet is not None and subnet.gateway is not None:
        _detach(draft, subnet)
        draft.add(subnets.delete_subnet(draft.snapshot, draft.identity, subnet))


def _set_nameservers(draft: NetworkDraft, nameservers: tuple[IPAddress, ...]) -> None:
    for subnet in spec_subnets(draft.network):
        servers = tuple(each for each in nameservers if each.version == subnet.cidr.version)
        new = replace(subnet, dns_nameservers=servers)
        draft.add(subnets.update_subnet(draft.snapshot, draft.identity, subnet, new, draft.now))


def _interface(snapshot: Snapshot, router: Router, subnet: Subnet) -> Port | None:
    ports = (snapshot.ports[each] for each in snapshot.router_interfaces.get(router.id, NO_IDS))
    return next((each for each in ports if any(fixed.subnet_id == subnet.id for fixed in each.fixed_ips)), None)


def _detach(draft: NetworkDraft, subnet: Subnet) -> None:
    router = draft.snapshot.routers.get(draft.network.router_id or "")
    if router is not None and _interface(draft.snapshot, router, subnet) is not None:
        target = InterfaceTarget(subnet_id=subnet.id)
        draft.add(routers.remove_interface(draft.snapshot, draft.identity, router, target, draft.now).changes)


def _update_router(draft: NetworkDraft, uplink_id: str | None, families: Mapping[int, NetworkIpFamily]) -> None:
    """Create, change or delete the network's router. A network without subnets and uplink needs none. SNAT of IPv4
    stays enabled without an IPv4 subnet, as for any tenant, because only checked subnets may be visible outside."""
    network = draft.network
    router = draft.snapshot.routers.get(network.router_id or "")
    joined = [subnet for subnet in spec_subnets(network) if subnet.gateway is not None]
    if not joined and uplink_id is None:
        if router is not None:
            draft.add(routers.delete_router(draft.snapshot, draft.identity, router))
            draft.put(replace(draft.network, router_id=None))
        return
    if router is None:
        router = Router(id=draft.new_id(), project_id=network.project_id, name=network.name, created_at=draft.now)
        draft.put(replace(network, router_id=router.id))
    snat = 4 not in families or families[4].nat
    snat_ipv6 = 6 in families and families[6].nat
    uplink = draft.snapshot.networks.get(uplink_id or "")
    fixed_ips = None if uplink is None or has_link_subnet(uplink) else ()
    request = GatewayRequest(network_id=uplink_id, enable_snat=snat, enable_snat_ipv6=snat_ipv6, fixed_ips=fixed_ips)
    draft.add(set_gateway(draft.snapshot, draft.identity, router, request, draft.new_id(), draft.now))
    for subnet in joined:
        router = draft.snapshot.routers[router.id]
        if _interface(draft.snapshot, router, subnet) is None:
            target = InterfaceTarget(subnet_id=subnet.id)
            attached = routers.attach_interface(
                draft.snapshot, draft.identity, router, target, draft.new_id(), draft.now
            )
            draft.add(attached.changes)


def _delete_router(draft: NetworkDraft, router: Router) -> None:
    """Delete the network's router with its interfaces and routes. Raises Refused if it also joins other networks."""
    draft.put(replace(router, routes=()))
    for subnet in draft.network.subnets:
        _detach(draft, subnet)
    draft.add(routers.delete_router(draft.snapshot, draft.identity, draft.snapshot.routers[router.id]))
