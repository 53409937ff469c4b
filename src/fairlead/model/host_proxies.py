"""Proxies on plain hosts: one for all load balancers of a project whose VIPs are on one announced network.

Every declared host may have one. It takes connections at the VIPs themselves, which the host holds, each listener at a
port of its own; so it has no address at which anybody reaches it past the packet filter. What it serves is a fact, as
of every proxy: its agent says it.

The slots of a listener that takes a proxy lead to hosts. Which one has a slot follows from their names alone
(rendezvous hashing): a host that comes or goes takes its own slots, and moves no other's. So who had a slot before is
known as well, without that anybody remembers it: the host that would have it without the one that has it now.
"""

import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from fairlead.model.hosts import Host
from fairlead.model.loadbalancer import Listener, LoadBalancer, PersistenceType, find_pool, pools_of
from fairlead.model.observed_proxy import Proxy
from fairlead.model.owner import Kind, Owner
from fairlead.model.proxy_place import ProxyPlace, host_proxy_id, place_of
from fairlead.model.shares import LARGEST
from fairlead.model.snapshot import Snapshot
from fairlead.model.status import OperatingStatus

_SCORES = struct.Struct(f">{LARGEST}I")
_DIGEST = 64
_REMEMBERED = frozenset({PersistenceType.SOURCE_IP, PersistenceType.APP_COOKIE})
"""Persistence by what a proxy has seen: clients have to come to the same proxy again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSlots:
    """By the names of hosts."""

    now: tuple[str, ...] = ()
    """Of each slot; nothing when nobody serves."""
    before: tuple[str, ...] = ()
    """Of each slot the one who may know connections that began earlier; empty names when there is but one host."""


def own_host(view: Snapshot) -> Host | None:
    """The host whose slice this is. The whole model is no host's, unless it has but one chassis."""
    names = [name for name in view.chassis if name in view.hosts]
    return view.hosts[names[0]] if len(names) == 1 else None


def is_on_hosts(snapshot: Snapshot, place: ProxyPlace) -> bool:
    """Whether the proxies of this place are on plain hosts."""
    return place.at in snapshot.announced


def own_host_places(view: Snapshot, at: str) -> list[ProxyPlace]:
    """For which the host of this slice has proxies, of VIPs on this network."""
    if at not in view.announced or own_host(view) is None:
        return []
    return sorted(place for place in view.proxied if place.at == at)


def has_own_host_proxy(view: Snapshot, place: ProxyPlace) -> bool:
    return is_on_hosts(view, place) and own_host(view) is not None


def has_host_proxy(snapshot: Snapshot, name: str, place: ProxyPlace) -> bool:
    return name in snapshot.hosts and is_on_hosts(snapshot, place)


def serving_hosts(snapshot: Snapshot, place: ProxyPlace, listener: Listener) -> list[Host]:
    """Those whose proxy takes connections of the listener."""
    if not is_on_hosts(snapshot, place):
        return []
    prefix, proxies, number = host_proxy_id(place, ""), snapshot.proxies, listener.proxy_port
    known = ((host, proxies.get(prefix + name)) for name, host in snapshot.hosts.items())
    return [host for host, proxy in known if proxy is not None and number in proxy.serving]


def is_serving(snapshot: Snapshot, host: Host, place: ProxyPlace, listener: Listener) -> bool:
    """Whether this host is one of them, without a look at the others."""
    proxy = snapshot.proxies.get(host_proxy_id(place, host.name)) if is_on_hosts(snapshot, place) else None
    return proxy is not None and listener.proxy_port in proxy.serving


def host_slots(view: Snapshot, balancer: LoadBalancer, listener: Listener) -> HostSlots:
    """As one host sees it. A drained host keeps what was begun, and gets nothing new as long as others serve."""
    found = [each for each in serving_hosts(view, place_of(balancer), listener) if each.name not in view.lost_hosts]
    names = tuple(sorted(host.name for host in found))
    staying = tuple(sorted(host.name for host in found if not host.draining)) or names
    return _dealt(names, staying) if names else HostSlots()


def goes_by_source(balancer: LoadBalancer, listener: Listener) -> bool:
    """Whether a client's address alone is to say which host it comes to."""
    pools = (find_pool(balancer, pool_id) for pool_id in pools_of(listener))
    persistence = (pool.persistence for pool in pools if pool is not None)
    return any(each is not None and each.type in _REMEMBERED for each in persistence)


def on_hosts(snapshot: Snapshot) -> Iterator[Owner]:
    """The load balancers that lead to proxies on hosts, and their networks: each host that comes, goes or is drained
    concerns them."""
    places = sorted(place for place in snapshot.proxied if is_on_hosts(snapshot, place))
    yield from dict.fromkeys(Owner(Kind.NETWORK, place.at) for place in places)
    yield from (Owner(Kind.LOAD_BALANCER, each) for place in places for each in sorted(snapshot.proxied[place]))


def proxies_by_host(snapshot: Snapshot) -> Mapping[str, Mapping[str, Proxy]]:
    """Host -> what its agent says of its proxies, as it calls them."""
    found = defaultdict[str, dict[str, Proxy]](dict)
    for identity, proxy in snapshot.proxies.items():
        name, slash, host = identity.rpartition("/")
        if slash:
            found[host][name] = proxy
    return found


def hosts_standing(snapshot: Snapshot, balancer: LoadBalancer, listener: Listener) -> OperatingStatus:
    """How a listener stands that leads to proxies on hosts.

    A host that has no HAProxy is not one that should serve; its agent says so of the host itself. DEGRADED while some
    other one says that it cannot. ERROR when nobody serves and nobody will. OFFLINE is what nobody serves yet.
    """
    serving = {host.name for host in serving_hosts(snapshot, place_of(balancer), listener)}
    heard = {name for name in snapshot.hosts if (agent := snapshot.agents.get(name)) is not None and agent.heard}
    failing = {name for name in heard if _refuses(snapshot, name, Owner(Kind.LOAD_BALANCER, balancer.id))}
    if serving:
        return OperatingStatus.DEGRADED if failing else OperatingStatus.ONLINE
    network = Owner(Kind.NETWORK, place_of(balancer).at)
    able = (
        name
        for name in heard - failing
        if not _refuses(snapshot, name, network) and not _refuses(snapshot, name, Owner(Kind.HOST, name))
    )
    return OperatingStatus.OFFLINE if any(able) else OperatingStatus.ERROR


def _refuses(snapshot: Snapshot, host: str, owner: Owner) -> bool:
    return any(each.owner == str(owner) for each in snapshot.agents[host].unapplied)


@lru_cache(maxsize=64)
def _dealt(names: tuple[str, ...], staying: tuple[str, ...]) -> HostSlots:
    """`staying`: those of them that take new connections."""
    wanted = frozenset(staying)
    taking = [place for place, name in enumerate(names) if name in wanted]
    now, before = list[str](), list[str]()
    for column in zip(*map(_scores, names), strict=True):
        mine = max(taking, key=column.__getitem__)
        others = (*column[:mine], 0, *column[mine + 1 :])
        now.append(names[mine])
        before.append(names[others.index(max(others))] if len(names) > 1 else "")
    return HostSlots(now=tuple(now), before=tuple(before))


@lru_cache(maxsize=2_048)
def _scores(name: str) -> tuple[int, ...]:
    """Of a host for each slot: the highest one has it."""
    parts = range(_SCORES.size // _DIGEST)
    return _SCORES.unpack(b"".join(blake2b(f"{name}\0{each}".encode(), digest_size=_DIGEST).digest() for each in parts))
