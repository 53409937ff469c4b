"""Local IPs as rows of the OVN Northbound database.

The network's hidden router (`vip_networks`) owns the address for neighbours: OVN answers ARP and ND for it on every
chassis, always with the router's MAC, so nothing is announced when a replica is added or removed. Packets that are not
redirected go from the router to the port that has the address.

Translate. A load balancer without protocol and port matches every packet to the address. It is a template with values
only on chassis with a replica; on others it has no flow, and the packet goes on to the owner. It is on the project's
switches and on no router: a gateway would cut connections of clients outside whenever a replica is added to or removed
from its chassis, and those clients are on no chassis. It exists as long as the Local IP does, with or without replicas:
a switch without it tracks no connections, and existing ones would be redirected when the first value appears.

Pass-through. Routers forward packets unchanged to the replica of their chassis (`detours`).

A replica is a client too. Its own packets to the address, and the owner's packets to it, bypass connection tracking,
because otherwise the replica would be redirected to itself.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2s
from typing import assert_never

from fairlead.compilers.ovn.groups import domain_groups, guest_groups, port_group_word
from fairlead.compilers.ovn.local_ip_policies import local_ip_policy_rows
from fairlead.compilers.ovn.locality import domain_near_groups
from fairlead.compilers.ovn.monitors import replica_monitor_rows
from fairlead.compilers.ovn.vip_networks import has_number, vip_router_name
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.ovn import GroupMember, LoadBalancer, OvnRow, Pairs, SwitchPortAddress, VirtualService, pairs
from fairlead.dataplane.ovn_chassis import ChassisVariable
from fairlead.dataplane.ovn_rules import Acl, PortGroup, PortGroupPort
from fairlead.model.documents.addresses import derive_mac
from fairlead.model.documents.local_ip import Fallback, LocalIP, Mode
from fairlead.model.documents.network import Network, Port, subnet_with
from fairlead.model.documents.owner import VipNetwork
from fairlead.model.queries.replicas import find_owner, find_replica, find_serving_replicas, list_usable_replicas
from fairlead.model.snapshot import Snapshot, vip_network

PROVIDER = "ovn"
ACL_PRIORITY = 32_000
"""Near the maximum of ovn-nb(5), so that no ACL of other users precedes it."""
REFUSAL_PRIORITY = 31_000
AFTER_BALANCING = pairs({"apply-after-lb": "true"})


def local_ip_rows(snapshot: Snapshot, local_ip: LocalIP) -> Iterator[OvnRow]:
    """Yield the rows of a Local IP. Raises Unsupported."""
    network = snapshot.networks[local_ip.network_id]
    _refuse(network, local_ip)
    mac = derive_mac(network.id)
    yield SwitchPortAddress(port=vip_router_name(network.id), address=f"{mac} {local_ip.address}")
    match local_ip.mode:
        case Mode.TRANSLATE:
            yield from _translation(snapshot, local_ip)
        case Mode.PASSTHROUGH:
            yield from local_ip_policy_rows(snapshot, local_ip)
        case _:
            assert_never(local_ip.mode)
    yield from _rules(snapshot, local_ip)
    yield from replica_monitor_rows(snapshot, local_ip)


def _refuse(network: Network, local_ip: LocalIP) -> None:
    """Raise Unsupported for networks and subnets that cannot have a Local IP."""
    if network.external:
        raise Unsupported("Local IPs on an external network", PROVIDER)
    for address in (local_ip.address, *(each.address for each in local_ip.associations)):
        subnet = subnet_with(network, address)
        if subnet is not None and not has_number(subnet):
            raise Unsupported(f"a Local IP in the subnet {subnet.cidr}, which is too small", PROVIDER)


# Translate


def _translation(snapshot: Snapshot, local_ip: LocalIP) -> Iterator[OvnRow]:
    where = vip_network(snapshot, local_ip.network_id, local_ip.project_id)
    address, replica = _name(local_ip, "lip"), _name(local_ip, "lip_to")
    options = {
        "template": "true",
        "address-family": f"ipv{local_ip.address.version}",
        "neighbor_responder": "none",
    }
    yield LoadBalancer(
        name=local_ip.id,
        title=local_ip.name,
        services=(VirtualService(vip=f"^{address}", backends=(f"^{replica}",)),),
        options=pairs(options),
    )
    yield GroupMember(group=domain_near_groups(where).switches, load_balancer=local_ip.id)
    if where.guest is not None:
        yield GroupMember(group=guest_groups(where).balancers, load_balancer=local_ip.id)
    for chassis, here in find_serving_replicas(snapshot, local_ip).items():
        yield ChassisVariable(chassis=chassis, name=address, values=(str(local_ip.address),))
        yield ChassisVariable(chassis=chassis, name=replica, values=(str(here[0].address),))
    yield from _past_connection_tracking(snapshot, local_ip)


def _past_connection_tracking(snapshot: Snapshot, local_ip: LocalIP) -> Iterator[OvnRow]:
    """Yield stateless ACLs for packets between replicas and the owner."""
    ports = _replica_ports(snapshot, local_ip)
    if not ports:
        return
    group, family = _replica_group(local_ip), _family(local_ip)
    yield PortGroup(name=group)
    for port_id in ports:
        yield PortGroupPort(group=group, port=port_id)
    for direction, port, end in (("from-lport", "inport", "dst"), ("to-lport", "outport", "src")):
        yield Acl(
            name=f"{local_ip.id} replicas {direction}",
            group=group,
            direction=direction,
            priority=ACL_PRIORITY,
            match=f"{port} == @{group} && {family}.{end} == {local_ip.address}",
            action="allow-stateless",
        )


# ACLs on the switches


def _rules(snapshot: Snapshot, local_ip: LocalIP) -> Iterator[OvnRow]:
    owner = find_owner(snapshot, local_ip)
    rules = [*(_for_the_owner(local_ip, owner) if owner else ()), *_refusals(snapshot, local_ip, owner)]
    here = _switch_group(local_ip)
    if any(rule.group == here for rule in rules):
        yield PortGroup(name=here)
        yield PortGroupPort(group=here, port=vip_router_name(local_ip.network_id))
    yield from rules


def _for_the_owner(local_ip: LocalIP, owner: Port) -> Iterator[Acl]:
    """Keep OVN's ARP answer from the owner, which probes its address for conflicts (RFC 5227).

    For IPv6 no flow can match the answer; port security drops it, because it goes to no address of the port.
    """
    if local_ip.address.version == 4:
        yield Acl(
            name=f"{local_ip.id} owner",
            group=_switch_group(local_ip),
            direction="to-lport",
            priority=ACL_PRIORITY + 1,
            match=f'outport == "{owner.id}" && arp.op == 2 && arp.spa == {local_ip.address}',
        )


def _refusals(snapshot: Snapshot, local_ip: LocalIP, owner: Port | None) -> Iterator[Acl]:
    """Yield the ACLs for clients without a replica on their chassis (fallback drop or reject).

    They apply on the client's switch to new connections: replies to the owner are not new, and packets that enter by a
    router are not tracked.
    """
    if local_ip.fallback is Fallback.FORWARD:
        return
    places = _port_groups(vip_network(snapshot, local_ip.network_id, local_ip.project_id))
    new = [_to_it(local_ip), "ct.new"] if owner else [_to_it(local_ip)]
    match local_ip.mode:
        case Mode.TRANSLATE if owner is None:  # packets that arrive there, from any router, had no replica
            yield _refusal(local_ip, _switch_group(local_ip), new, options=AFTER_BALANCING)
        case Mode.TRANSLATE:
            # packets of replicas are untracked, so they are not `ct.new`
            yield from (_refusal(local_ip, place, new, options=AFTER_BALANCING) for place in places)
        case Mode.PASSTHROUGH:
            served = [f'is_chassis_resident("{each.port_id}")' for each in list_usable_replicas(snapshot, local_ip)]
            for place in places:
                yield _refusal(local_ip, place, [*new, *(f"!{each}" for each in served)])
                if owner is not None:
                    yield _tracking(local_ip, place)
        case _:
            assert_never(local_ip.mode)
    if owner is not None:
        yield from _refusals_at(snapshot, local_ip, owner)


def _port_groups(where: VipNetwork) -> Sequence[str]:
    """Port groups with a port of each switch of the project's domain, and of the network if it is another project's."""
    return [domain_groups(where).inside, *([guest_groups(where).inside] if where.guest is not None else [])]


def _tracking(local_ip: LocalIP, group: str) -> Acl:
    """ACL that matches no packet: any such rule makes the switch track connections (ovn-northd(8))."""
    match = " && ".join([_to_it(local_ip), "ct.new", "!ct.new"])
    name = f"{local_ip.id} tracking {group}"
    return Acl(name=name, group=group, priority=REFUSAL_PRIORITY + 1, match=match, action="allow-related")


def _refusals_at(snapshot: Snapshot, local_ip: LocalIP, owner: Port) -> Iterator[Acl]:
    """ACLs at the owner's port for clients on other switches than the project's."""
    words = [f'outport == "{owner.id}"', _to_it(local_ip)]
    group = _switch_group(local_ip)
    yield _refusal(local_ip, group, [*words, "ct.new"], direction="to-lport")
    if local_ip.mode is Mode.TRANSLATE and _replica_ports(snapshot, local_ip):
        family = _family(local_ip)
        yield Acl(
            name=f"{local_ip.id} replicas to owner",
            group=group,
            direction="to-lport",
            priority=REFUSAL_PRIORITY + 1,
            match=" && ".join([*words, f"{family}.src == ${_replica_group(local_ip)}_{family}"]),
            action="allow-related",
        )


def _refusal(
    local_ip: LocalIP, group: str, words: Iterable[str], *, direction: str = "from-lport", options: Pairs = ()
) -> Acl:
    return Acl(
        name=f"{local_ip.id} fallback {group}",
        group=group,
        direction=direction,
        priority=REFUSAL_PRIORITY,
        match=" && ".join(words),
        action=local_ip.fallback.value,
        options=options,
    )


def _to_it(local_ip: LocalIP) -> str:
    return f"{_family(local_ip)}.dst == {local_ip.address}"


def _family(local_ip: LocalIP) -> str:
    return f"ip{local_ip.address.version}"


def _replica_ports(snapshot: Snapshot, local_ip: LocalIP) -> Sequence[str]:
    """Ports of all replicas, on any chassis and in any state, because existing flows continue."""
    return [each.port_id for each in local_ip.associations if find_replica(snapshot, local_ip, each)]


def _replica_group(local_ip: LocalIP) -> str:
    return f"lip_{port_group_word(local_ip.id)}"


def _switch_group(local_ip: LocalIP) -> str:
    """Port group for ACLs on the network itself; it has only the hidden router's port."""
    return f"lip_at_{port_group_word(local_ip.id)}"


def _name(local_ip: LocalIP, what: str) -> str:
    """Name of a template variable."""
    return f"{what}_{blake2s(local_ip.id.encode(), digest_size=10).hexdigest()}"
