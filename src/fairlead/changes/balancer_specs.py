"""Declarative load balancers and network forwards, with named backends, as in LXD's API.

A spec becomes a normal load balancer: a listener and a pool per port, and members with the names of backends. All rules
and compilers therefore apply. Parts that a new spec does not change remain the same objects, so members keep their
slots.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

from fairlead.changes.balancer_spec_checks import (
    BalancerSpec,
    MonitorSpec,
    SpecPort,
    check_spec,
)
from fairlead.changes.balancers import check_not_pending, create_load_balancer, put, removal_of
from fairlead.changes.caller import ChangeContext
from fairlead.changes.listen_addresses import (
    DefaultTargetAtGateway,
    Listen,
    choose_listen_address,
    find_listening_balancer,
    find_own_gateway,
    find_uplink,
)
from fairlead.changes.lookup import check_may_change
from fairlead.changes.managed_networks import check_manager
from fairlead.changes.refusal import Refusal, Refused
from fairlead.changes.vips import VipHolder, make_vip_port
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.network import Network, Resource, subnet_with
from fairlead.model.documents.port_ranges import Ports
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class NoBalancerAtAddress(Refusal):
    """No load balancer, or no forward, of this network listens at the address."""

    use: lb.SpecPurpose
    address: IPAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancerNotDeclarative(Refusal):
    """The load balancer was created part by part, and must be changed that way."""

    balancer_id: str


_R = TypeVar("_R", bound=Resource)
_POOL_PROTOCOLS = {
    lb.ListenerProtocol.TCP: lb.PoolProtocol.TCP,
    lb.ListenerProtocol.UDP: lb.PoolProtocol.UDP,
    lb.ListenerProtocol.ANY: lb.PoolProtocol.ANY,
}
_DEFAULT_MONITORS = {
    lb.ListenerProtocol.TCP: lb.MonitorType.TCP,
    lb.ListenerProtocol.UDP: lb.MonitorType.UDP_CONNECT,
}
"""Monitor type that checks whether a port of the protocol is open."""
DEFAULT_TARGET = "default"
"""Name of the member that gets all other traffic."""


# Requests


def create_from_spec(
    snapshot: Snapshot,
    asker: ChangeContext,
    balancer_id: str,
    new_id: Callable[[], str],
    asked: BalancerSpec,
    listen: Listen,
) -> Steps[Changes]:
    """Create a load balancer from a spec, in the project of the network. Raises Refused."""
    network = snapshot.networks[asked.network_id]
    check_manager(network)
    place = yield from choose_listen_address(snapshot, asker, network, listen, balancer_id)
    address = place.fixed.address
    check_spec(network, address, asked)
    port_id, name = new_id(), f"{network.name}/{address}"
    holder = VipHolder(balancer_id=balancer_id, project_id=network.project_id, port_id=port_id, name=name)
    vip = make_vip_port(snapshot, asker, holder, place.network, (place.fixed,))
    if place.gateway is not None:  # the address remains on the gateway's port
        check_no_default_target(asked, address)
        vip = vip._replace(port=replace(vip.port, fixed_ips=()))
    bare = lb.LoadBalancer(
        id=balancer_id,
        project_id=network.project_id,
        name=name,
        created_at=asker.now,
        provider=asker.providers.default,
        vip=vip.vips[0],
    )
    wanted = yield from _build(bare, network, asker.now, new_id, asked)
    return (yield from create_load_balancer(snapshot, asker, wanted, vip))


def replace_from_spec(
    snapshot: Snapshot, asker: ChangeContext, balancer_id: str, new_id: Callable[[], str], asked: BalancerSpec
) -> Steps[Changes]:
    """Replace the spec of a load balancer; an equal spec gives no change. Raises Refused."""
    old = _find_to_change(snapshot, asker, balancer_id)
    if old.described is None:
        raise Refused(BalancerNotDeclarative(balancer_id=balancer_id))
    network = snapshot.networks[old.described.network_id]
    check_spec(network, old.vip.address, asked)
    if find_own_gateway(snapshot, network, old.vip.address) is not None:
        check_no_default_target(asked, old.vip.address)
    wanted = yield from _build(old, network, asker.now, new_id, asked)
    if wanted == old:
        return Changes()
    check_not_pending(snapshot, asker, old)
    return (yield from put(snapshot, asker, wanted))


def delete_declarative(snapshot: Snapshot, asker: ChangeContext, balancer_id: str) -> Changes:
    """Delete a load balancer and its parts, declarative or not. Raises Refused."""
    balancer = _find_to_change(snapshot, asker, balancer_id)
    check_not_pending(snapshot, asker, balancer)
    return removal_of(snapshot, balancer)


def check_no_default_target(asked: BalancerSpec, address: IPAddress) -> None:
    """Check that the spec has no default target, for a load balancer at the address of the network's router.
    Raises Refused."""
    if asked.default_target is not None:
        raise Refused(DefaultTargetAtGateway(address=address))


# Reads


def find_declarative(snapshot: Snapshot, network: Network, address: IPAddress, use: lb.SpecPurpose) -> lb.LoadBalancer:
    """Return the load balancer or forward at this address; the caller must have checked access to the network.
    Raises Refused."""
    uplink = find_uplink(snapshot, network)
    for where in (network, uplink):
        port_id = snapshot.addresses.get((where.id, address), "") if where else ""
        balancer = snapshot.load_balancers.get(snapshot.vip_owner.get(port_id, ""))
        if balancer is not None and _is_shown(snapshot, balancer, network, use):
            return balancer
    balancer = find_listening_balancer(snapshot, network, address)
    if balancer is not None and _is_shown(snapshot, balancer, network, use):
        return balancer
    raise Refused(NoBalancerAtAddress(use=use, address=address))


def list_declarative(snapshot: Snapshot, network: Network, use: lb.SpecPurpose) -> list[lb.LoadBalancer]:
    """Return the load balancers or forwards of a network sorted by address, including those created part by part."""
    ids = {*snapshot.described_on.get(network.id, NO_IDS), *snapshot.network_vips.get(network.id, NO_IDS)}
    for router_id in snapshot.network_routers.get(network.id, NO_IDS):
        ids.update(snapshot.router_vips.get(router_id, NO_IDS))
    found = (snapshot.load_balancers[each] for each in ids)
    shown = (balancer for balancer in found if _is_shown(snapshot, balancer, network, use))
    return sorted(shown, key=lambda balancer: (balancer.vip.address.version, int(balancer.vip.address)))


def describe(balancer: lb.LoadBalancer) -> BalancerSpec:
    """Return the spec of a load balancer. A load balancer created part by part is represented as far as a spec can."""
    pools = {pool.id: pool for pool in balancer.pools}
    first = next(iter(balancer.pools), None)
    described = balancer.described or lb.DeclarativeSpec(
        network_id=balancer.vip.network_id, use=lb.SpecPurpose.LOAD_BALANCER, backends=tuple(_backends(balancer))
    )
    names = backend_names(balancer)
    members = [member for pool in balancer.pools for member in pool.members]
    return BalancerSpec(
        network_id=described.network_id,
        use=described.use,
        description=balancer.description,
        backends=described.backends,
        ports=tuple(
            SpecPort(
                description=listener.description,
                protocol=listener.protocol,
                ports=listener.ports,
                backends=tuple(names[member.id] for member in _members(pools, listener)),
            )
            for listener in balancer.listeners
            if listener.ports
        ),
        config=described.config,
        algorithm=first.algorithm if first else lb.Algorithm.ROUND_ROBIN,
        persistence=first.persistence if first else None,
        locality=next(
            (pool.locality for pool in balancer.pools if pool.protocol is not lb.PoolProtocol.ANY), lb.Locality.NONE
        ),
        down_member=first.down_member if first else lb.DownMember.KEEP,
        weights={names[member.id]: member.weight for member in members if member.weight != 1},
        probing=_monitor_spec(first.health_monitor if first else None),
        raw=next((listener.raw for listener in balancer.listeners if listener.raw is not None), None),
        default_target=_default_target(balancer),
    )


def _default_target(balancer: lb.LoadBalancer) -> IPAddress | None:
    whatever = (pool for pool in balancer.pools if pool.protocol is lb.PoolProtocol.ANY)
    return next((member.address for pool in whatever for member in pool.members), None)


def _find_to_change(snapshot: Snapshot, asker: ChangeContext, balancer_id: str) -> lb.LoadBalancer:
    balancer = snapshot.load_balancers[balancer_id]
    check_may_change(balancer, asker.identity)
    return balancer


def _is_shown(snapshot: Snapshot, balancer: lb.LoadBalancer, network: Network, use: lb.SpecPurpose) -> bool:
    """Return whether the load balancer is listed for the network. On a network with VIPs of several projects, those of
    its own project are. One that was created part by part on the uplink is listed for the networks that its router
    joins."""
    if balancer.described is not None:
        return balancer.described.network_id == network.id and balancer.described.use is use
    joined = snapshot.network_routers.get(network.id, NO_IDS)
    is_there = balancer.vip.network_id == network.id or balancer.router_id in joined
    return use is lb.SpecPurpose.LOAD_BALANCER and is_there and balancer.project_id == network.project_id


def _members(pools: Mapping[str, lb.Pool], listener: lb.Listener) -> tuple[lb.Member, ...]:
    pool = pools.get(listener.default_pool_id or "")
    return pool.members if pool else ()


def backend_names(balancer: lb.LoadBalancer) -> Mapping[str, str]:
    """Return member id -> name of its backend. Members of a normal load balancer are named by id if their name is not
    unique to one endpoint, or not valid for a backend."""
    members = [member for pool in balancer.pools for member in pool.members]
    if balancer.described is not None:
        return {member.id: member.name for member in members}
    endpoints: dict[str, set[tuple[IPAddress, Any]]] = {}
    for member in members:
        endpoints.setdefault(member.name, set()).add((member.address, member.port))
    plain = {name for name, found in endpoints.items() if name and len(found) == 1 and not any(map(str.isspace, name))}
    return {member.id: member.name if member.name in plain else member.id for member in members}


def _backends(balancer: lb.LoadBalancer) -> Iterator[lb.Backend]:
    names, seen = backend_names(balancer), set[str]()
    for pool in balancer.pools:
        for member in pool.members:
            name = names[member.id]
            if name not in seen:
                seen.add(name)
                yield lb.Backend(name=name, address=member.address, port=member.port)


def _monitor_spec(monitor: lb.HealthMonitor | None) -> MonitorSpec | None:
    if monitor is None:
        return None
    return MonitorSpec(
        type=monitor.type,
        delay=monitor.delay,
        timeout=monitor.timeout,
        max_retries=monitor.max_retries,
        max_retries_down=monitor.max_retries_down,
    )


# Construction of a load balancer from a spec


def _build(
    old: lb.LoadBalancer, network: Network, now: datetime, new_id: Callable[[], str], asked: BalancerSpec
) -> Steps[lb.LoadBalancer]:
    """Return `old` with the new spec. The work yields after each port."""
    build = _SpecBuilder(
        old=old,
        network=network,
        now=now,
        new_id=new_id,
        spec=asked,
        known={(each.protocol, each.ports): each for each in old.listeners},
        backends={each.name: each for each in asked.backends},
    )
    listeners, pools = list[lb.Listener](), list[lb.Pool]()
    for port in build.ports():
        listener, pool = build.port(port)
        listeners.append(listener)
        pools.append(pool)
        yield
    described = lb.DeclarativeSpec(
        network_id=asked.network_id, use=asked.use, backends=asked.backends, config=asked.config
    )
    wanted = replace(
        old,
        description=asked.description,
        described=described,
        listeners=_keep_if_equal(old.listeners, tuple(listeners)),
        pools=_keep_if_equal(old.pools, tuple(pools)),
    )
    return wanted


def _keep_if_equal(old: tuple[Any, ...], new: tuple[Any, ...]) -> tuple[Any, ...]:
    return old if old == new else new


@dataclass(frozen=True, slots=True, kw_only=True)
class _SpecBuilder:
    old: lb.LoadBalancer
    network: Network
    now: datetime
    new_id: Callable[[], str]
    spec: BalancerSpec
    known: Mapping[tuple[lb.ListenerProtocol, Ports], lb.Listener]
    backends: Mapping[str, lb.Backend]

    def ports(self) -> Iterator[SpecPort]:
        yield from self.spec.ports
        if self.spec.default_target is not None:
            yield SpecPort(protocol=lb.ListenerProtocol.ANY, ports=(), backends=(DEFAULT_TARGET,))

    def port(self, port: SpecPort) -> tuple[lb.Listener, lb.Pool]:
        """Return the listener and pool for a port entry of the description.

        A stored listener with the same protocol and ports keeps its ID and pool.
        """
        before = self.known.get((port.protocol, port.ports))
        pool = self._pool(port, lb.find_pool(self.old, before.default_pool_id) if before else None)
        listener = lb.Listener(
            **self._resource(before),
            description=port.description,
            protocol=port.protocol,
            ports=port.ports,
            default_pool_id=pool.id,
            raw=self.spec.raw if port.protocol is lb.ListenerProtocol.TCP else None,
            proxy_port=before.proxy_port if before else 0,
        )
        return self._keep_or_update(before, listener), pool

    def _pool(self, port: SpecPort, before: lb.Pool | None) -> lb.Pool:
        known = {member.name: member for member in before.members} if before else {}
        asked = self.spec
        members = tuple([self._member(name, known.get(name)) for name in port.backends])
        pool = lb.Pool(
            **self._resource(before),
            protocol=_POOL_PROTOCOLS[port.protocol],
            algorithm=asked.algorithm,
            persistence=asked.persistence,
            locality=asked.locality if port.ports else lb.Locality.NONE,
            down_member=asked.down_member,
            health_monitor=self._monitor(port, before.health_monitor if before else None),
            members=_keep_if_equal(before.members, members) if before else members,
        )
        if before is not None:
            pool = replace(pool, tables=before.tables, slots=before.slots, next_ordinal=before.next_ordinal)
        return self._keep_or_update(before, pool)

    def _member(self, name: str, before: lb.Member | None) -> lb.Member:
        backend = self.backends.get(name)
        address = backend.address if backend else self.spec.default_target
        assert address is not None  # noqa: S101 - checked names: a backend or the default target
        subnet = subnet_with(self.network, address)
        member = lb.Member(
            **self._resource(before),
            name=name,
            description=backend.description if backend else "",
            ordinal=before.ordinal if before else lb.NO_ORDINAL,
            address=address,
            port=backend.port if backend else None,
            weight=self.spec.weights.get(name, 1),
            subnet_id=subnet.id if subnet else None,
        )
        return self._keep_or_update(before, member)

    def _monitor(self, port: SpecPort, before: lb.HealthMonitor | None) -> lb.HealthMonitor | None:
        """Return the monitor of a port's pool; None for other traffic, because there is no port to probe."""
        probing = self.spec.probing
        if probing is None or port.protocol is lb.ListenerProtocol.ANY:
            return None
        kind: Any = probing.type or _DEFAULT_MONITORS[port.protocol]
        monitor: lb.HealthMonitor = (lb.HttpMonitor if kind in lb.HTTP_MONITORS else lb.PlainMonitor)(
            **self._resource(before),
            type=kind,
            delay=probing.delay,
            timeout=probing.timeout,
            max_retries=probing.max_retries,
            max_retries_down=probing.max_retries_down,
        )
        return self._keep_or_update(before, monitor)

    def _resource(self, before: Resource | None) -> dict[str, Any]:
        return {
            "id": before.id if before else self.new_id(),
            "project_id": self.old.project_id,
            "created_at": before.created_at if before else self.now,
        }

    def _keep_or_update(self, before: _R | None, new: _R) -> _R:
        """Return the stored object if it is equal, otherwise the new one with the time of the change."""
        if before is None:
            return new
        return before if replace(new, updated_at=before.updated_at) == before else replace(new, updated_at=self.now)
