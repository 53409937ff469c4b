"""Proxies on plain hosts: one per host for all load balancers of a project with VIPs on one announced network.

Every declared host may run one. The proxy accepts connections at the VIPs themselves, which the host holds, with one
port per listener; it has no other address, so no client can bypass the packet filter. The agent reports the listeners
that its proxy serves, as a fact.

The slots of a proxied listener lead to hosts. Rendezvous hashing of host names assigns each slot, so a host that
appears or disappears moves only its own slots. The previous owner of a slot is therefore known without stored state:
the host that has the slot if the current owner is left out.
"""

import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from fairlead.model.documents.apportionment import MAX_SLOTS
from fairlead.model.documents.hosts import Host
from fairlead.model.documents.loadbalancer import Listener, LoadBalancer, PersistenceType, find_pool, pools_of
from fairlead.model.documents.observed_proxy import Proxy
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.proxy_place import ProxyPlace, host_proxy_id, place_of
from fairlead.model.documents.status import OperatingStatus
from fairlead.model.snapshot import Snapshot

_SCORES = struct.Struct(f">{MAX_SLOTS}I")
_DIGEST_SIZE = 64
_STATEFUL_PERSISTENCE = frozenset({PersistenceType.SOURCE_IP, PersistenceType.APP_COOKIE})
"""Types of persistence that a proxy learns from traffic, so a client must return to the same proxy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSlots:
    """Slot tables of host names."""

    current: tuple[str, ...] = ()
    """Current owner of each slot; empty if no host serves."""
    previous: tuple[str, ...] = ()
    """For each slot, the host that may have older connections; empty names if there is only one host."""


def own_host(view: Snapshot) -> Host | None:
    """Return the host of this slice; None for the whole model, unless it has exactly one chassis."""
    names = [name for name in view.chassis if name in view.hosts]
    return view.hosts[names[0]] if len(names) == 1 else None


def is_on_hosts(snapshot: Snapshot, place: ProxyPlace) -> bool:
    """Return whether the proxies of this place run on plain hosts."""
    return place.at in snapshot.announced


def own_host_places(view: Snapshot, at: str) -> list[ProxyPlace]:
    """Return the places with VIPs on this network for which the slice's host runs proxies."""
    if at not in view.announced or own_host(view) is None:
        return []
    return sorted(place for place in view.proxied if place.at == at)


def has_own_host_proxy(view: Snapshot, place: ProxyPlace) -> bool:
    return is_on_hosts(view, place) and own_host(view) is not None


def has_host_proxy(snapshot: Snapshot, name: str, place: ProxyPlace) -> bool:
    return name in snapshot.hosts and is_on_hosts(snapshot, place)


def serving_hosts(snapshot: Snapshot, place: ProxyPlace, listener: Listener) -> list[Host]:
    """Return the hosts whose proxy accepts connections of the listener."""
    if not is_on_hosts(snapshot, place):
        return []
    prefix, proxies, number = host_proxy_id(place, ""), snapshot.proxies, listener.proxy_port
    known = ((host, proxies.get(prefix + name)) for name, host in snapshot.hosts.items())
    return [host for host, proxy in known if proxy is not None and number in proxy.serving]


def is_serving(snapshot: Snapshot, host: Host, place: ProxyPlace, listener: Listener) -> bool:
    """Return whether this host's proxy accepts connections of the listener, without reading other hosts."""
    proxy = snapshot.proxies.get(host_proxy_id(place, host.name)) if is_on_hosts(snapshot, place) else None
    return proxy is not None and listener.proxy_port in proxy.serving


def host_slots(view: Snapshot, balancer: LoadBalancer, listener: Listener) -> HostSlots:
    """Return the slot table as one host computes it. A draining host keeps existing connections and gets new ones only
    if no other host serves."""
    found = [each for each in serving_hosts(view, place_of(balancer), listener) if each.name not in view.lost_hosts]
    names = tuple(sorted(host.name for host in found))
    staying = tuple(sorted(host.name for host in found if not host.draining)) or names
    return _compute_host_slots(names, staying) if names else HostSlots()


def hashes_source_only(balancer: LoadBalancer, listener: Listener) -> bool:
    """Return whether the client address alone selects the host."""
    pools = (find_pool(balancer, pool_id) for pool_id in pools_of(listener))
    persistence = (pool.persistence for pool in pools if pool is not None)
    return any(each is not None and each.type in _STATEFUL_PERSISTENCE for each in persistence)


def owners_with_host_proxies(snapshot: Snapshot) -> Iterator[Owner]:
    """Yield load balancers with proxies on hosts, and their networks.
    All of them depend on the set of hosts and their draining state."""
    places = sorted(place for place in snapshot.proxied if is_on_hosts(snapshot, place))
    yield from dict.fromkeys(Owner(Kind.NETWORK, place.at) for place in places)
    yield from (Owner(Kind.LOAD_BALANCER, each) for place in places for each in sorted(snapshot.proxied[place]))


def proxies_by_host(snapshot: Snapshot) -> Mapping[str, Mapping[str, Proxy]]:
    """Return host -> the proxies that its agent reports, by their local names."""
    found = defaultdict[str, dict[str, Proxy]](dict)
    for identity, proxy in snapshot.proxies.items():
        name, slash, host = identity.rpartition("/")
        if slash:
            found[host][name] = proxy
    return found


def derive_host_proxy_status(snapshot: Snapshot, balancer: LoadBalancer, listener: Listener) -> OperatingStatus:
    """Return the operating status of a listener with proxies on hosts.

    * ONLINE: a host serves and no other host fails. Hosts without HAProxy do not count as failing; their agent reports
      that for the host itself.
    * DEGRADED: a host serves and another one fails.
    * OFFLINE: no host serves yet, and at least one can.
    * ERROR: no host serves and none can.
    """
    serving = {host.name for host in serving_hosts(snapshot, place_of(balancer), listener)}
    heard = {
        name for name in snapshot.hosts if (agent := snapshot.agents.get(name)) is not None and agent.is_responsive
    }
    failing = {name for name in heard if _has_apply_failure(snapshot, name, Owner(Kind.LOAD_BALANCER, balancer.id))}
    if serving:
        return OperatingStatus.DEGRADED if failing else OperatingStatus.ONLINE
    network = Owner(Kind.NETWORK, place_of(balancer).at)
    able = (
        name
        for name in heard - failing
        if not _has_apply_failure(snapshot, name, network)
        and not _has_apply_failure(snapshot, name, Owner(Kind.HOST, name))
    )
    return OperatingStatus.OFFLINE if any(able) else OperatingStatus.ERROR


def _has_apply_failure(snapshot: Snapshot, host: str, owner: Owner) -> bool:
    return any(each.owner == str(owner) for each in snapshot.agents[host].apply_failures)


@lru_cache(maxsize=64)
def _compute_host_slots(names: tuple[str, ...], staying: tuple[str, ...]) -> HostSlots:
    """Compute the slot table; `staying` are the hosts that accept new connections."""
    wanted = frozenset(staying)
    taking = [place for place, name in enumerate(names) if name in wanted]
    now, before = list[str](), list[str]()
    for column in zip(*map(_scores, names), strict=True):
        mine = max(taking, key=column.__getitem__)
        others = (*column[:mine], 0, *column[mine + 1 :])
        now.append(names[mine])
        before.append(names[others.index(max(others))] if len(names) > 1 else "")
    return HostSlots(current=tuple(now), previous=tuple(before))


@lru_cache(maxsize=2_048)
def _scores(name: str) -> tuple[int, ...]:
    """Return the score of a host for each slot. The host with the highest score has the slot."""
    parts = range(_SCORES.size // _DIGEST_SIZE)
    return _SCORES.unpack(
        b"".join(blake2b(f"{name}\0{each}".encode(), digest_size=_DIGEST_SIZE).digest() for each in parts)
    )
