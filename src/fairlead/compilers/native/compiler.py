"""Compiler for one plain Linux host, from the host's slice of the model.

Every host has the complete slot table of each VIP, because routers may send a packet to any host. Slots of a listener
that uses a proxy are assigned to hosts with a serving proxy, and their target there is the VIP itself at the proxy's
port. An undeclared host has no rows. Compiling the whole model, to check a change, raises Unsupported as a host would.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import chain, product
from typing import NamedTuple

from fairlead.compilers.native.abilities import NOT_EXTENDED_BY_PROXY, abilities_here
from fairlead.compilers.native.memoize import MemoizedById
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.native import (
    TUNNEL_PORTS,
    HostTunnel,
    LocalMember,
    LocalMemberAddress,
    NativeRow,
    OtherHost,
    Service,
    Target,
    Vip,
)
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.abilities import find_unsupported_listener_feature, find_unsupported_pool_feature
from fairlead.model.documents.addresses import IPAddress, IPNetwork, remove_nested
from fairlead.model.documents.hosts import Host, find_tunnel_endpoint
from fairlead.model.documents.owner import Owner
from fairlead.model.documents.port_ranges import contains_port, expand
from fairlead.model.documents.previous_slot_owners import Endpoint, services_of
from fairlead.model.documents.previous_slot_owners import VipService as Slots
from fairlead.model.documents.proxy_place import place_of
from fairlead.model.queries.host_proxies import hashes_source_only, host_slots, is_serving, own_host
from fairlead.model.queries.placement import find_member_host, list_member_addresses
from fairlead.model.queries.proxies import proxied_listeners, without_proxied_listeners
from fairlead.model.snapshot import Snapshot


def rows_of(view: Snapshot, owner: Owner) -> Iterator[NativeRow]:
    match view.find(owner):
        case Host() as host:
            yield from _host_rows(view, host)
        case lb.LoadBalancer() as balancer:
            _refuse(view, balancer)
            if not lb.is_prepared(balancer):
                yield from _balancer_rows(view, balancer)


def _host_rows(view: Snapshot, host: Host) -> Iterator[HostTunnel | LocalMemberAddress]:
    own = own_host(view)
    if own is None:
        return
    if own.name == host.name:
        yield from (LocalMemberAddress(address=each) for each in list_member_addresses(view, host))
    elif (address := find_tunnel_endpoint(own, host)) is not None:
        yield HostTunnel(host=host.number, address=address)


def _refuse(view: Snapshot, balancer: lb.LoadBalancer) -> None:
    """Raise Unsupported if the packet filter lacks a feature, for listeners without a proxy.

    Proxies provide the features of their listeners, except localities: no member is near a proxy.
    """
    abilities, own = abilities_here(view), without_proxied_listeners(balancer)
    asked = [find_unsupported_listener_feature(abilities, listener) for listener in own.listeners]
    asked += [find_unsupported_pool_feature(abilities, pool) for pool in own.pools]
    asked += [find_unsupported_pool_feature(NOT_EXTENDED_BY_PROXY, pool) for pool in balancer.pools]
    lacking = next(filter(None, asked), None)
    if lacking is not None:
        raise Unsupported(lacking, balancer.provider)
    datagrams = (each.ports for each in own.listeners if each.protocol is lb.ListenerProtocol.UDP)
    taken = next((port for ports in datagrams for port in TUNNEL_PORTS if contains_port(ports, port)), None)
    if taken is not None:
        raise Unsupported(f"UDP protocol_port {taken}, which the tunnels between hosts use", balancer.provider)


def _balancer_rows(view: Snapshot, balancer: lb.LoadBalancer) -> Iterator[NativeRow]:
    own = own_host(view)
    if own is None:
        return
    held = set[IPAddress]()
    for row in chain(_direct_services(view, balancer, own), _proxy_services(view, balancer, own)):
        if any(isinstance(target, LocalMember) for target in row.targets):
            held.add(row.vip)
        yield row
    has_proxy = any(is_serving(view, own, place_of(balancer), listener) for listener in proxied(balancer))
    for vip in balancer.vips:
        is_held = vip.address in held
        yield Vip(address=vip.address, is_local=is_held, is_received=has_proxy and not is_held)


def _direct_services(view: Snapshot, balancer: lb.LoadBalancer, own: Host) -> Iterator[Service]:
    straight = without_proxied_listeners(balancer)
    behind = _placement(view, straight)
    places = _HostView(own, behind.by_address)
    return (_service(slots, places) for slots in _slot_tables(view, straight, behind))


def _proxy_services(view: Snapshot, balancer: lb.LoadBalancer, own: Host) -> Iterator[Service]:
    """Services of listeners that use proxies. The only target on this host is a VIP at the proxy's port."""
    for listener in proxied(balancer):
        slots = host_slots(view, balancer, listener)
        names = tuple(dict.fromkeys(slots.current))
        places = {name: place for place, name in enumerate(names)}
        table = bytes(places[name] for name in slots.current)
        own_slots = (
            (slot, had)
            for slot, (now, had) in enumerate(zip(slots.current, slots.previous, strict=True))
            if now == own.name
        )
        before = tuple((slot, view.hosts[had].number) for slot, had in own_slots if had)
        for vip, port in product(balancer.vips, expand(listener.ports)):
            here = LocalMember(address=vip.address, port=listener.proxy_port)
            yield Service(
                vip=vip.address,
                transport=lb.Transport.TCP,
                port=port,
                by_source=hashes_source_only(balancer, listener),
                slots=table,
                targets=tuple(here if name == own.name else OtherHost(host=view.hosts[name].number) for name in names),
                previous_owners=before,
                clients=_clients(listener, vip.address.version),
            )


def proxied(balancer: lb.LoadBalancer) -> Iterator[lb.Listener]:
    """Yield the enabled listeners that use proxies."""
    listeners = proxied_listeners(balancer) if balancer.admin_state_up else ()
    return (listener for listener in listeners if listener.admin_state_up)


class _Placement(NamedTuple):
    """Placement of members: the host that routes each, if it is reachable."""

    members: list[tuple[str, Host | None]]
    """(member id, host) pairs."""
    by_address: Mapping[IPAddress, Host]
    """Address -> host, for members that own or owned slots."""


def _placement(view: Snapshot, balancer: lb.LoadBalancer) -> _Placement:
    members, found = list[tuple[str, Host | None]](), dict[IPAddress, Host]()

    def reached(address: IPAddress) -> Host | None:
        host = find_member_host(view, balancer, address)
        if host is None or host.name in view.lost_hosts:
            return None
        found[address] = host
        return host

    for pool in balancer.pools:
        members += [(member.id, reached(member.address)) for member in pool.members]
    for address in {each.before for each in balancer.moved}:
        reached(address)
    return _Placement(members, found)


def slot_tables(view: Snapshot, balancer: lb.LoadBalancer) -> Iterator[Slots]:
    """Yield the slot tables of listeners without proxies.

    Members on draining hosts are left out, and become previous owners that keep existing flows, unless no other member
    is available. Members that are up again, or on hosts that no longer drain, get their slots back; flows that started
    on substitutes stay there.
    """
    straight = without_proxied_listeners(balancer)
    return _slot_tables(view, straight, _placement(view, straight))


def _slot_tables(view: Snapshot, balancer: lb.LoadBalancer, behind: _Placement) -> Iterator[Slots]:
    nowhere = {member_id for member_id, host in behind.members if host is None}
    gone = view.down.get(balancer.id, frozenset()) | nowhere
    leaving = {member_id for member_id, host in behind.members if host is not None and host.draining}
    back = {member_id for member_id, host in behind.members if host is not None and host.returning_until is not None}
    returning = back | view.returned.get(balancer.id, frozenset())
    whole = services_of(balancer, gone)
    if not leaving and not returning:
        yield from whole
        return
    present, meanwhile = services_of(balancer, gone | leaving), services_of(balancer, gone | leaving | returning)
    moved = MemoizedById[tuple[Slots, Slots, Slots], dict[int, IPAddress]](_previous_owners)
    for slots, rest, fewer in zip(whole, present, meanwhile, strict=True):
        alike = chain.from_iterable(
            (each.slot_ordinals, each.members, each.previous_owners) for each in (slots, rest, fewer)
        )
        yield replace(
            rest if rest.slot_ordinals else slots, previous_owners=moved.result_of((slots, rest, fewer), *alike)
        )


def _previous_owners(three: tuple[Slots, Slots, Slots]) -> dict[int, IPAddress]:
    slots, rest, fewer = three
    now = rest if rest.slot_ordinals else slots
    return {**slots.previous_owners, **_moved(fewer, now), **_moved(slots, now)}


def _moved(was: Slots, now: Slots) -> dict[int, IPAddress]:
    """Return slot -> address of its previous owner, for slots with a new owner. Slots without a member had no owner."""
    both = enumerate(zip(was.slot_ordinals, now.slot_ordinals, strict=False))
    return {slot: was.members[before][0] for slot, (before, after) in both if before != after}


class _ServiceParts(NamedTuple):
    """Parts of a service that are equal for all ports of a pool."""

    slots: bytes
    targets: tuple[Target, ...]
    previous_owners: tuple[tuple[int, int], ...]


class _HostView:
    """Placement of addresses as seen from one host."""

    def __init__(self, own: Host, hosts: Mapping[IPAddress, Host]) -> None:
        self._own, self._hosts = own, hosts
        self._targets = MemoizedById[Slots, tuple[bytes, tuple[Target, ...]]](self._find_targets)
        self._previous_owners = MemoizedById[Slots, tuple[tuple[int, int], ...]](self._find_previous_owners)

    def service_parts(self, slots: Slots) -> _ServiceParts:
        """Return the shared parts of a service, computed once per pool, however many ports use it."""
        who = self._targets.result_of(slots, slots.slot_ordinals, slots.members)
        return _ServiceParts(
            *who, self._previous_owners.result_of(slots, slots.slot_ordinals, slots.members, slots.previous_owners)
        )

    def _find_targets(self, slots: Slots) -> tuple[bytes, tuple[Target, ...]]:
        numbered, ordinals = _numbered(slots.slot_ordinals)
        return numbered, tuple(self.target(slots.members[ordinal]) for ordinal in ordinals)

    def _find_previous_owners(self, slots: Slots) -> tuple[tuple[int, int], ...]:
        here = {ordinal for ordinal, (address, _) in slots.members.items() if self.other_host_of(address) is None}
        before = []
        for slot, address in sorted(slots.previous_owners.items()):
            is_here = bool(slots.slot_ordinals) and slots.slot_ordinals[slot] in here
            if is_here and (had := self.other_host_of(address)) is not None:
                before.append((slot, had))
        return tuple(before)

    def target(self, endpoint: Endpoint) -> Target:
        address, port = endpoint
        host = self._hosts[address]
        return LocalMember(address=address, port=port) if host.name == self._own.name else _other_host(host.number)

    def other_host_of(self, address: IPAddress) -> int | None:
        """Return the number of another host that routes the address; None if it is this host or no host does."""
        host = self._hosts.get(address)
        return None if host is None or host.name == self._own.name else host.number


def _service(slots: Slots, places: _HostView) -> Service:
    served = places.service_parts(slots)
    return Service(
        vip=slots.vip,
        transport=slots.transport,
        port=slots.port,
        by_source=slots.hashes_source_only,
        slots=served.slots,
        targets=served.targets,
        previous_owners=served.previous_owners,
        clients=_clients(slots.listener, slots.vip.version),
    )


def _clients(listener: lb.Listener, version: int) -> tuple[IPNetwork, ...] | None:
    """Return the allowed CIDRs of this IP version; None for all clients."""
    allowed = listener.allowed_cidrs
    if not allowed:
        return None
    return tuple(sorted(remove_nested(each for each in allowed if each.version == version), key=str))


@lru_cache(maxsize=1024)
def _other_host(host: int) -> OtherHost:
    """Share the value, because most members are on other hosts, and those are few."""
    return OtherHost(host=host)


@lru_cache(maxsize=1024)
def _numbered(order: tuple[int, ...]) -> tuple[bytes, tuple[int, ...]]:
    """Index of each slot's member, numbered in the order of their first slot, and the members. Cached, because
    thousands of pools have the same slot order."""
    ordinals = tuple(dict.fromkeys(order))
    places = {ordinal: place for place, ordinal in enumerate(ordinals)}
    return bytes(map(places.__getitem__, order)), ordinals
