"""Members near the client, as rows of the OVN Northbound database.

On switches a load balancer is a template, and each chassis has its own slot table as the variables' values: of the
members near it, or of all if none of these is available. On routers it has all members, because northd does not
translate replies of template members back there, and clients that enter by a gateway are near no member. So these load
balancers have groups of their own, one for switches and one for routers.

Every chassis has a value, because otherwise its clients would be rejected. Without any known chassis, and for ports
without an available member, the rows are those of any other load balancer.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2s
from typing import TypeAlias

from fairlead.compilers.ovn.groups import find_vip_network
from fairlead.compilers.ovn.tables import Tables
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.ovn import (
    GroupMember,
    LoadBalancer,
    LoadBalancerGroup,
    OvnRow,
    RouterGroup,
    SwitchGroup,
    VirtualService,
    pairs,
)
from fairlead.dataplane.ovn_chassis import ChassisVariable
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.addresses import IPAddress, render_endpoint
from fairlead.model.documents.apportionment import MAX_SLOTS
from fairlead.model.documents.owner import VipNetwork
from fairlead.model.documents.port_ranges import count_ports, expand
from fairlead.model.documents.unmanaged import row_name
from fairlead.model.queries.domain import Domain, Topology
from fairlead.model.queries.locality_tiers import TiersByChassis, find_tiers_by_chassis
from fairlead.model.queries.proxies import proxy_tiers_by_chassis
from fairlead.model.snapshot import Snapshot, has_per_chassis_balancer

PROVIDER = "ovn"
MAX_CHASSIS_BACKENDS = 2048
"""Maximum backends of one load balancer in the values of one chassis: 31 KB for IPv4, at most 98 KB for IPv6.

The Northbound database stores them for each chassis, and ovn-controller re-reads all values of its chassis after each
change.
"""
Fields: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NearGroups:
    """Names of load balancer groups."""

    switches: str
    routers: str | None
    """None for a guest project, which has no router there."""


def domain_near_groups(where: VipNetwork) -> NearGroups:
    return NearGroups(switches=f"{where.owner.id} switches", routers=f"{where.owner.id} routers")


def gateway_near_groups(router_id: str) -> NearGroups:
    return NearGroups(switches=f"{router_id} gateway switches", routers=f"{router_id} gateway routers")


def near_network_rows(snapshot: Snapshot, where: VipNetwork) -> Iterator[OvnRow]:
    """Yield the groups on the project's switches and routers."""
    if not has_per_chassis_balancer(snapshot, where):
        return
    network = find_vip_network(snapshot, where.network_id)
    if where.guest == network.project_id:
        return
    project_id = network.project_id if where.guest is None else where.guest
    yield from _group_rows(snapshot, domain_near_groups(where), Topology(snapshot).domain(network.id, project_id))


def near_gateway_rows(snapshot: Snapshot, router_id: str) -> Iterator[OvnRow]:
    """Yield the groups on everything reachable from a router with VIPs at its gateway."""
    if router_id in snapshot.near_gateways and router_id in snapshot.routers:
        domain = Topology(snapshot).gateway_domain(router_id)
        yield from _group_rows(snapshot, gateway_near_groups(router_id), domain)


def _group_rows(snapshot: Snapshot, groups: NearGroups, domain: Domain) -> Iterator[OvnRow]:
    yield LoadBalancerGroup(name=groups.switches)
    for switch in domain.networks:
        yield SwitchGroup(switch=row_name(snapshot.networks[switch]), group=groups.switches)
    if groups.routers is not None:
        yield LoadBalancerGroup(name=groups.routers)
        for router in domain.routers:
            yield RouterGroup(router=row_name(snapshot.routers[router]), group=groups.routers)


def refuse_locality(balancer: lb.LoadBalancer) -> None:
    """Raise Unsupported for localities that OVN cannot have."""
    for pool in lb.pools_with_locality(balancer):
        if pool.protocol is lb.PoolProtocol.ANY:
            raise Unsupported(f"locality {pool.locality.value} for pools of protocol {pool.protocol.value}", PROVIDER)
    _refuse_size(balancer)


def _refuse_size(balancer: lb.LoadBalancer) -> None:
    """Raise Unsupported if a chassis's values could exceed `MAX_CHASSIS_BACKENDS`, for any state and placement of
    members."""
    due, seen = 0, set[str]()
    for listener in balancer.listeners:
        pool = lb.find_pool(balancer, listener.default_pool_id)
        if pool is None or pool.locality is lb.Locality.NONE or (pool.id in seen and not _is_mapped(pool)):
            continue
        seen.add(pool.id)
        tables = count_ports(listener.ports) if _is_mapped(pool) else 1
        for version in balancer.ip_versions:
            members = sum(member.address.version == version for member in pool.members)
            due += tables * (members if members <= 1 else MAX_SLOTS)
    if due > MAX_CHASSIS_BACKENDS:
        enough = f"{MAX_CHASSIS_BACKENDS // MAX_SLOTS} tables of several members"
        asked = (
            f"pools with locality for so many ports: {due} backends per chassis, the maximum is {MAX_CHASSIS_BACKENDS}"
        )
        raise Unsupported(f"{asked} ({enough}; one for each pool and IP version)", PROVIDER)


@dataclass(frozen=True, slots=True, kw_only=True)
class NearServices:
    """Template rows of one load balancer in one place."""

    balancer: lb.LoadBalancer
    groups: NearGroups
    suffix: str
    tables: Tables
    chassis: Sequence[str]
    members: TiersByChassis
    _templates: dict[tuple[lb.Transport, Fields, int], dict[str, str]] = field(default_factory=dict)
    _plain: dict[tuple[lb.Transport, Fields], list[VirtualService]] = field(default_factory=dict)
    _addresses: dict[str, IPAddress] = field(default_factory=dict)
    """Template variables (`Chassis_Template_Var`) with the same value on every chassis."""
    _tables: list["_Table"] = field(default_factory=list)
    _named: set[str] = field(default_factory=set)
    """Variables of all these tables."""

    @classmethod
    def of(
        cls, snapshot: Snapshot, balancer: lb.LoadBalancer, groups: NearGroups | None, suffix: str, tables: Tables
    ) -> "NearServices":
        wanted = groups is not None and lb.selects_per_chassis(balancer)
        return cls(
            balancer=balancer,
            groups=groups or NearGroups(switches="", routers=None),
            suffix=suffix,
            tables=tables,
            chassis=tuple(snapshot.chassis) if wanted else (),
            members=_near(snapshot, balancer) if wanted else {},
        )

    def take(
        self,
        where: tuple[lb.Transport, Fields],
        listener: lb.Listener,
        addresses: Sequence[IPAddress],
        entries: Mapping[int, tuple[str, ...]],
    ) -> Mapping[int, tuple[str, ...]]:
        """Take over the listener's ports with their backends for clients without a near member.

        Returns the ports that need no per-chassis decision. All addresses have one IP version.
        """
        pool = lb.find_pool(self.balancer, listener.default_pool_id)
        if pool is None or pool.locality is lb.Locality.NONE or not self.chassis:
            return entries
        version = addresses[0].version
        mine = {port: backends for port, backends in entries.items() if backends}
        variables = {port: self._table(listener, pool, version, port) for port in mine}
        self._name_tables(listener, pool, version, variables)
        for address in addresses if mine else ():
            name = self._name("vip", str(address))
            self._addresses[name] = address
            for port, backends in mine.items():
                self._templates.setdefault((*where, version), {})[f"^{name}:{port}"] = f"^{variables[port]}"
                service = VirtualService(vip=render_endpoint(address, port), backends=backends)
                self._plain.setdefault(where, []).append(service)
        return {port: backends for port, backends in entries.items() if not backends}

    def rows(self) -> Iterator[OvnRow]:
        """Yield the rows. Ports that OVN rejects are left out, because a template ignores `reject` (ovn-nb(5)).

        Values of a chassis are computed when their row is requested, so the caller may yield in between.
        """
        for (transport, fields, version), entries in self._templates.items():
            services = (VirtualService(vip=vip, backends=(entries[vip],)) for vip in entries)
            options = {"template": "true", "address-family": f"ipv{version}", "neighbor_responder": "none"}
            name = self._row_name(transport, fields, f"ipv{version}-chassis")
            yield from self._row(name, transport, fields, services, pairs(options), self.groups.switches)
        if self.groups.routers is not None:
            options = {"reject": "true", "neighbor_responder": "none"}
            for (transport, fields), plain in self._plain.items():
                name = self._row_name(transport, fields, "routers")
                yield from self._row(name, transport, fields, plain, pairs(options), self.groups.routers)
        for name, address in self._addresses.items():
            for chassis in self.chassis:
                # without brackets, because OVN inserts the text into a match, where an IPv6 address has none
                yield ChassisVariable(chassis=chassis, name=name, values=(str(address),))
        for table in self._tables:
            yield from self._values(table)

    def _name_tables(self, listener: lb.Listener, pool: lb.Pool, version: int, variables: Mapping[int, str]) -> None:
        """Record the tables of one listener that no earlier listener shares."""
        places: dict[str, int] = {}
        for place, port in enumerate(expand(listener.ports)):
            if port in variables and variables[port] not in self._named:
                places.setdefault(variables[port], place)
        self._named.update(places)
        if places:
            self._tables.append(_Table(listener=listener, pool=pool, version=version, places=places))

    def _values(self, table: "_Table") -> Iterator[ChassisVariable]:
        """Yield the values; chassis with the same near members share one value, computed once."""
        words = (table.listener, table.pool, table.version)
        made = {id(None): self.tables.backends(*words)}
        for chassis in self.chassis:
            tiers = self.members.get(chassis, {}).get(table.pool.id)
            if tiers is not None and id(tiers) not in made:
                made[id(tiers)] = self.tables.near(*words, tiers)
            for name, place in table.places.items():
                yield ChassisVariable(chassis=chassis, name=name, values=made[id(tiers)][place])

    def _table(self, listener: lb.Listener, pool: lb.Pool, version: int, port: int) -> str:
        """Name of a slot table's variable. If each member has one port, all listeners of the pool share the table."""
        own = (listener.id, str(port)) if _is_mapped(pool) else ()
        return self._name("near", pool.id, str(version), *own)

    def _name(self, what: str, *words: str) -> str:
        """Name of a variable that is unique to the load balancer."""
        text = " ".join([self.balancer.id, self.suffix, *words])
        return f"{what}_{blake2s(text.encode(), digest_size=10).hexdigest()}"

    def _row_name(self, transport: lb.Transport, fields: Fields, what: str) -> str:
        words = [self.balancer.id, transport.value, *fields, what]
        return "-".join([*words, self.suffix] if self.suffix else words)

    def _row(
        self,
        name: str,
        transport: lb.Transport,
        fields: Fields,
        services: Iterable[VirtualService],
        options: tuple[tuple[str, str], ...],
        group: str,
    ) -> Iterator[OvnRow]:
        yield LoadBalancer(
            name=name,
            title=self.balancer.name,
            protocol=transport.value,
            services=tuple(sorted(services, key=lambda service: service.vip)),
            selection_fields=fields,
            options=options,
        )
        yield GroupMember(group=group, load_balancer=name)


def _near(snapshot: Snapshot, balancer: lb.LoadBalancer) -> TiersByChassis:
    """Return chassis -> pool -> near members, including proxies."""
    found = {name: dict(pools) for name, pools in find_tiers_by_chassis(snapshot, balancer).items()}
    for chassis, pool_id, tiers in proxy_tiers_by_chassis(snapshot, balancer):
        found.setdefault(chassis, {})[pool_id] = tiers
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Slot tables of some ports of a listener."""

    listener: lb.Listener
    pool: lb.Pool
    version: int
    places: Mapping[str, int]
    """Variable -> index of its port in the listener."""


def _is_mapped(pool: lb.Pool) -> bool:
    """Whether a member's port depends on the listener's port."""
    return not all(isinstance(member.port, int) for member in pool.members)
