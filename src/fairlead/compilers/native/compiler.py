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

from fairlead.compilers.native.abilities import OF_ANY_PATH, abilities_here
from fairlead.compilers.native.once import Once
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.native import TUNNEL_PORTS, Here, NativeRow, Own, Service, Target, There, Vip, Way
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.abilities import lacking_for_listener, lacking_for_pool
from fairlead.model.documents.addresses import IPAddress, IPNetwork, outermost
from fairlead.model.documents.hosts import Host, way_to
from fairlead.model.documents.owner import Owner
from fairlead.model.documents.port_ranges import expand, holds
from fairlead.model.documents.previous_slot_owners import Endpoint, services_of
from fairlead.model.documents.previous_slot_owners import Service as Slots
from fairlead.model.documents.proxy_place import place_of
from fairlead.model.queries.host_proxies import goes_by_source, host_slots, is_serving, own_host
from fairlead.model.queries.placement import may_be_behind, members_on
from fairlead.model.queries.proxies import proxied_listeners, without_proxied
from fairlead.model.snapshot import Snapshot


def rows_of(view: Snapshot, owner: Owner) -> Iterator[NativeRow]:
    match view.find(owner):
        case Host() as host:
            yield from _host_rows(view, host)
        case lb.LoadBalancer() as balancer:
            _refuse(view, balancer)
            if not lb.is_prepared(balancer):
                yield from _balancer_rows(view, balancer)


def _host_rows(view: Snapshot, host: Host) -> Iterator[Way | Own]:
    own = own_host(view)
    if own is None:
        return
    if own.name == host.name:
        yield from (Own(address=each) for each in members_on(view, host))
    elif (address := way_to(own, host)) is not None:
        yield Way(host=host.number, address=address)


def _refuse(view: Snapshot, balancer: lb.LoadBalancer) -> None:
    """Raise Unsupported if the packet filter lacks a feature, for listeners without a proxy.

    Proxies provide the features of their listeners, except localities: no member is near a proxy.
    """
    abilities, own = abilities_here(view), without_proxied(balancer)
    asked = [lacking_for_listener(abilities, listener) for listener in own.listeners]
    asked += [lacking_for_pool(abilities, pool) for pool in own.pools]
    asked += [lacking_for_pool(OF_ANY_PATH, pool) for pool in balancer.pools]
    lacking = next(filter(None, asked), None)
    if lacking is not None:
        raise Unsupported(lacking, balancer.provider)
    datagrams = (each.ports for each in own.listeners if each.protocol is lb.ListenerProtocol.UDP)
    taken = next((port for ports in datagrams for port in TUNNEL_PORTS if holds(ports, port)), None)
    if taken is not None:
        raise Unsupported(f"protocol_port {taken} of UDP, by which hosts lead packets to each other", balancer.provider)


def _balancer_rows(view: Snapshot, balancer: lb.LoadBalancer) -> Iterator[NativeRow]:
    own = own_host(view)
    if own is None:
        return
    held = set[IPAddress]()
    for row in chain(_led_straight(view, balancer, own), _led_to_proxies(view, balancer, own)):
        if any(isinstance(target, Here) for target in row.targets):
            held.add(row.vip)
        yield row
    has_proxy = any(is_serving(view, own, place_of(balancer), listener) for listener in proxied(balancer))
    for vip in balancer.vips:
        is_held = vip.address in held
        yield Vip(address=vip.address, held=is_held, taken=has_proxy and not is_held)


def _led_straight(view: Snapshot, balancer: lb.LoadBalancer, own: Host) -> Iterator[Service]:
    straight = without_proxied(balancer)
    behind = _behind(view, straight)
    places = _Places(own, behind.by_address)
    return (_service(slots, places) for slots in _dealt(view, straight, behind))


def _led_to_proxies(view: Snapshot, balancer: lb.LoadBalancer, own: Host) -> Iterator[Service]:
    """Services of listeners that use proxies. The only target on this host is a VIP at the proxy's port."""
    for listener in proxied(balancer):
        slots = host_slots(view, balancer, listener)
        names = tuple(dict.fromkeys(slots.now))
        places = {name: place for place, name in enumerate(names)}
        table = bytes(places[name] for name in slots.now)
        own_slots = (
            (slot, had) for slot, (now, had) in enumerate(zip(slots.now, slots.before, strict=True)) if now == own.name
        )
        before = tuple((slot, view.hosts[had].number) for slot, had in own_slots if had)
        for vip, port in product(balancer.vips, expand(listener.ports)):
            here = Here(address=vip.address, port=listener.proxy_port)
            yield Service(
                vip=vip.address,
                transport=lb.Transport.TCP,
                port=port,
                by_source=goes_by_source(balancer, listener),
                slots=table,
                targets=tuple(here if name == own.name else There(host=view.hosts[name].number) for name in names),
                before=before,
                clients=_clients(listener, vip.address.version),
            )


def proxied(balancer: lb.LoadBalancer) -> Iterator[lb.Listener]:
    """Yield the enabled listeners that use proxies."""
    listeners = proxied_listeners(balancer) if balancer.admin_state_up else ()
    return (listener for listener in listeners if listener.admin_state_up)


class _Behind(NamedTuple):
    """Placement of members: the host that routes each, if it is reachable."""

    members: list[tuple[str, Host | None]]
    """(member id, host) pairs."""
    by_address: Mapping[IPAddress, Host]
    """Address -> host, for members that own or owned slots."""


def _behind(view: Snapshot, balancer: lb.LoadBalancer) -> _Behind:
    members, found = list[tuple[str, Host | None]](), dict[IPAddress, Host]()

    def reached(address: IPAddress) -> Host | None:
        host = may_be_behind(view, balancer, address)
        if host is None or host.name in view.lost_hosts:
            return None
        found[address] = host
        return host

    for pool in balancer.pools:
        members += [(member.id, reached(member.address)) for member in pool.members]
    for address in {each.before for each in balancer.moved}:
        reached(address)
    return _Behind(members, found)


def dealt(view: Snapshot, balancer: lb.LoadBalancer) -> Iterator[Slots]:
    """Yield the slot tables of listeners without proxies.

    Members on draining hosts are left out, and become previous owners that keep existing flows, unless no other member
    is available. Members that are up again, or on hosts that no longer drain, get their slots back; flows that started
    on substitutes stay there.
    """
    straight = without_proxied(balancer)
    return _dealt(view, straight, _behind(view, straight))


def _dealt(view: Snapshot, balancer: lb.LoadBalancer, behind: _Behind) -> Iterator[Slots]:
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
    moved = Once[tuple[Slots, Slots, Slots], dict[int, IPAddress]](_before)
    for slots, rest, fewer in zip(whole, present, meanwhile, strict=True):
        alike = chain.from_iterable((each.order, each.members, each.before) for each in (slots, rest, fewer))
        yield replace(rest if rest.order else slots, before=moved.of((slots, rest, fewer), *alike))


def _before(three: tuple[Slots, Slots, Slots]) -> dict[int, IPAddress]:
    slots, rest, fewer = three
    now = rest if rest.order else slots
    return {**slots.before, **_moved(fewer, now), **_moved(slots, now)}


def _moved(was: Slots, now: Slots) -> dict[int, IPAddress]:
    """Return slot -> address of its previous owner, for slots with a new owner. Slots without a member had no owner."""
    both = enumerate(zip(was.order, now.order, strict=False))
    return {slot: was.members[before][0] for slot, (before, after) in both if before != after}


class _Served(NamedTuple):
    """Parts of a service that are equal for all ports of a pool."""

    slots: bytes
    targets: tuple[Target, ...]
    before: tuple[tuple[int, int], ...]


class _Places:
    """Placement of addresses as seen from one host."""

    def __init__(self, own: Host, hosts: Mapping[IPAddress, Host]) -> None:
        self._own, self._hosts = own, hosts
        self._who = Once[Slots, tuple[bytes, tuple[Target, ...]]](self._who_serves)
        self._had = Once[Slots, tuple[tuple[int, int], ...]](self._who_had)

    def served(self, slots: Slots) -> _Served:
        """Return the shared parts of a service, computed once per pool, however many ports use it."""
        who = self._who.of(slots, slots.order, slots.members)
        return _Served(*who, self._had.of(slots, slots.order, slots.members, slots.before))

    def _who_serves(self, slots: Slots) -> tuple[bytes, tuple[Target, ...]]:
        numbered, ordinals = _numbered(slots.order)
        return numbered, tuple(self.target(slots.members[ordinal]) for ordinal in ordinals)

    def _who_had(self, slots: Slots) -> tuple[tuple[int, int], ...]:
        here = {ordinal for ordinal, (address, _) in slots.members.items() if self.elsewhere(address) is None}
        before = []
        for slot, address in sorted(slots.before.items()):
            is_here = bool(slots.order) and slots.order[slot] in here
            if is_here and (had := self.elsewhere(address)) is not None:
                before.append((slot, had))
        return tuple(before)

    def target(self, endpoint: Endpoint) -> Target:
        address, port = endpoint
        host = self._hosts[address]
        return Here(address=address, port=port) if host.name == self._own.name else _there(host.number)

    def elsewhere(self, address: IPAddress) -> int | None:
        """Return the number of another host that routes the address; None if it is this host or no host does."""
        host = self._hosts.get(address)
        return None if host is None or host.name == self._own.name else host.number


def _service(slots: Slots, places: _Places) -> Service:
    served = places.served(slots)
    return Service(
        vip=slots.vip,
        transport=slots.transport,
        port=slots.port,
        by_source=slots.by_source,
        slots=served.slots,
        targets=served.targets,
        before=served.before,
        clients=_clients(slots.listener, slots.vip.version),
    )


def _clients(listener: lb.Listener, version: int) -> tuple[IPNetwork, ...] | None:
    """Return the allowed CIDRs of this IP version; None for all clients."""
    allowed = listener.allowed_cidrs
    if not allowed:
        return None
    return tuple(sorted(outermost(each for each in allowed if each.version == version), key=str))


@lru_cache(maxsize=1024)
def _there(host: int) -> There:
    """Share the value, because most members are on other hosts, and those are few."""
    return There(host=host)


@lru_cache(maxsize=1024)
def _numbered(order: tuple[int, ...]) -> tuple[bytes, tuple[int, ...]]:
    """Index of each slot's member, numbered in the order of their first slot, and the members. Cached, because
    thousands of pools have the same slot order."""
    ordinals = tuple(dict.fromkeys(order))
    places = {ordinal: place for place, ordinal in enumerate(ordinals)}
    return bytes(map(places.__getitem__, order)), ordinals
