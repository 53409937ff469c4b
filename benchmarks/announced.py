"""Load balancers with announced VIPs on plain hosts, as a slice made in memory.

Each host routes 2^17 addresses. The members of a load balancer are on as many consecutive hosts.
"""

from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_address, ip_network

from immutables import Map

from fairlead.model.documents.apportionment import MAX_SLOTS
from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.hosts import Host, HostPrefix
from fairlead.model.documents.loadbalancer import (
    Algorithm,
    Listener,
    ListenerProtocol,
    LoadBalancer,
    Member,
    Pool,
    PoolProtocol,
    Vip,
)
from fairlead.model.documents.network import Network
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.pool_slot_tables import with_slots
from fairlead.model.documents.port_ranges import one_port
from fairlead.model.registry.changeset import load_documents
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import run_to_completion

NOW = datetime(2026, 1, 1, tzinfo=UTC)
VIPS_START, MEMBERS_START = ip_address("198.18.0.0"), ip_address("10.128.0.0")
"""The first VIP, and the first address behind hosts."""
PORT, MEMBER_PORT = 80, 8080


def make_slice(balancers: int, members: int, hosts: int) -> Snapshot:
    """Slice of the first host."""
    network = Network(id="pool", project_id="p", created_at=NOW, mtu=1500, announced=True)
    declared = [
        Host(
            name=f"h{number + 1}",
            number=number + 1,
            addresses=(ip_address("10.20.0.1") + number,),
            prefixes=(HostPrefix(cidr=ip_network((int(MEMBERS_START) + (number << 17), 15))),),
        )
        for number in range(hosts)
    ]
    made = (make_balancer(place, members, hosts) for place in range(balancers))
    empty = Snapshot(chassis=Map({"h1": Chassis(name="h1", host="h1")}))
    return load_documents(empty, ((each, 1) for each in (network, *declared, *made)), 1)


def make_balancer(place: int, members: int, hosts: int) -> LoadBalancer:
    name, at = f"{place:08x}-1111-4111-8111-111111111111", MEMBERS_START + place * -(-members // hosts)
    its = tuple(
        Member(
            id=f"{name}-{number}",
            project_id="p",
            created_at=NOW,
            ordinal=number,
            address=at + ((place + number) % hosts << 17) + number // hosts,
            port=MEMBER_PORT,
        )
        for number in range(members)
    )
    known = {"project_id": "p", "created_at": NOW}
    pool = Pool(id=f"{name}-pool", **known, protocol=PoolProtocol.TCP, algorithm=Algorithm.ROUND_ROBIN, members=its)
    listener = Listener(
        id=f"{name}-tcp", **known, protocol=ListenerProtocol.TCP, ports=one_port(PORT), default_pool_id=pool.id
    )
    vip = Vip(address=VIPS_START + place, port_id=f"{name}-vip", subnet_id="pool4", network_id="pool")
    pools = (run_to_completion(with_slots(pool, (), MAX_SLOTS)),)
    return LoadBalancer(id=name, **known, provider="native", vip=vip, listeners=(listener,), pools=pools)


def with_one_more(balancer: LoadBalancer) -> LoadBalancer:
    """The load balancer with an additional member."""
    [pool] = balancer.pools
    last = pool.members[-1]
    more = replace(last, id=f"{last.id}-more", ordinal=last.ordinal + 1, address=last.address, port=MEMBER_PORT + 1)
    pool = run_to_completion(with_slots(replace(pool, members=(*pool.members, more)), pool.members, MAX_SLOTS))
    return replace(balancer, pools=(pool,))


def with_wire_defaults(balancer: LoadBalancer) -> Owner:
    return Owner(Kind.LOAD_BALANCER, balancer.id)


def is_here(member: Member) -> bool:
    return int(member.address) - int(MEMBERS_START) < 1 << 17
