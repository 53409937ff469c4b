"""Tenant isolation: no request changes the packets of another tenant, in random topologies of several projects."""

import random
import re
from collections import defaultdict
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any, TypeAlias

import pytest

from fairlead.compilers.ovn import compile_owner
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.ovn import GroupMember, LoadBalancer, OvnRow, RouterGroup, SwitchGroup, SwitchPortAddress
from fairlead.dataplane.ovn_rules import Acl, LogicalRouterPolicy, PortGroupPort
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.local_ip import Fallback, LocalIP, Mode
from fairlead.model.documents.network import Network
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.affected import find_affected_owners
from fairlead.model.registry.changeset import Changes, apply_changes, owners_with_rows
from fairlead.model.snapshot import Snapshot
from harness.case import EMPTY_SNAPSHOT, Documents, parse_model

PROJECTS = ("p", "q", "r")
NETWORKS = ("n1", "n2", "n3", "n4", "n5", "n6")
FEW = 15
ADDRESS = re.compile(r"ip[46]\.dst == (\S+)")
RESIDENT = re.compile(r'is_chassis_resident\("([^"]+)"\)')


def seeds(count: int) -> list[Any]:
    more = (pytest.mark.many, pytest.mark.thorough)
    return [seed if seed < FEW else pytest.param(seed, marks=more) for seed in range(count)]


def random_lines(dice: random.Random) -> list[str]:
    """Generate a model with few distinct prefixes, so many subnets are equal."""
    lines = ["network public external shared wire=physnet 203.0.113.0/24"]
    subnets: dict[str, list[int]] = {}
    for name in NETWORKS:
        subnets[name] = dice.sample(range(4), dice.choice([1, 1, 2]))
        cidrs = " ".join(f"10.{each}.0.0/24 fd00:{each}::/64" for each in subnets[name])
        shared = "shared" if dice.random() < 0.3 else ""
        lines.append(f"network {name} {cidrs} {shared} project={dice.choice(PROJECTS)}")
    for number in range(1, dice.randint(3, 7)):
        words, taken = list[str](), set[int]()
        for name in dice.sample(NETWORKS, dice.choice([1, 2, 2, 3])):
            free = [each for each in subnets[name] if each not in taken]
            if free:
                taken.add(free[0])
                words.append(f"{name}=10.{free[0]}.0.{number},fd00:{free[0]}::{number}")
        if dice.random() < 0.5:
            words.append(f"gateway:public=203.0.113.{number}")
        lines.append(f"router r{number} {' '.join(words)} project={dice.choice([*PROJECTS, 'admin'])}")
    for number in range(10, dice.randint(12, 16)):
        name = dice.choice(NETWORKS)
        base, other = dice.choice(subnets[name]), dice.randrange(4)
        vips = f"vip=10.{base}.0.{number},fd00:{base}::{number} on={name}"
        members = f"a/10.{base}.0.99:80,b/10.{other}.0.98:80,c/[fd00:{other}::97]:80"
        allowed = "{allow=192.0.2.0/24}" if dice.random() < 0.5 else ""
        lines.append(f"lb{number} {vips} tcp:80{allowed}={members} project={dice.choice(PROJECTS)}")
    for number in range(110, dice.randint(110, 114)):
        router, project = f"r{dice.randint(1, 6)}", dice.choice(PROJECTS)
        members = f"a/10.{dice.randrange(4)}.0.99:80"
        lines.append(f"up{number} vip=203.0.113.{number} on=public at={router} tcp:80={members} project={project}")
    for number in range(40, dice.randint(40, 46)):
        lines += random_local_ip(dice, number, subnets)
    return lines


def random_local_ip(dice: random.Random, number: int, subnets: dict[str, list[int]]) -> Iterator[str]:
    """Generate a Local IP with the ports that have its address, and its replicas."""
    name, project = dice.choice(NETWORKS), dice.choice(PROJECTS)
    base, words = dice.choice(subnets[name]), list[str]()
    if dice.random() < 0.7:
        words.append(f"port=o{number}")
        yield f"port o{number} {name} 10.{base}.0.{number} fd00:{base}::{number} of={project}"
    for place in range(dice.randint(0, 3)):
        where, whose = dice.choice(subnets[name]), dice.choice([project, project, dice.choice(PROJECTS)])
        end = 50 + 3 * number + place
        yield f"port m{number}-{place} {name} 10.{where}.0.{end} fd00:{where}::{end} of={whose}"
        words.append(f"+m{number}-{place}")
    address = dice.choice([f"10.{base}.0.{number}", f"fd00:{base}::{number}"])
    choices = f"{dice.choice([*Mode])} {dice.choice([*Fallback])}"
    yield f"local-ip lip{number} {name} {address} {choices} {' '.join(words)} project={project}"


def compiled(snapshot: Snapshot) -> dict[Owner, list[OvnRow]]:
    rows: dict[Owner, list[OvnRow]] = {}
    for owner in owners_with_rows(snapshot):
        try:
            rows[owner] = list(compile_owner(snapshot, owner).values())  # type: ignore[arg-type]
        except Unsupported:
            rows[owner] = []
    return rows


def made(documents: Documents) -> Snapshot:
    return apply_changes(EMPTY_SNAPSHOT, Changes(puts=tuple(documents.values())), 1)


Balanced: TypeAlias = lb.LoadBalancer | LocalIP


class Rules:
    """Access rules, implemented independently of the compiler."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.rows = compiled(snapshot)
        self.balancers = defaultdict[str, list[tuple[Balanced, list[str]]]](list)
        named = {row.name: row for rows in self.rows.values() for row in rows if isinstance(row, LoadBalancer)}
        for owner, rows in self.rows.items():
            for row in rows:
                if isinstance(row, GroupMember):
                    found = self.find(owner)
                    self.balancers[row.group].append((found, self.addresses(found, named[row.load_balancer])))

    def find(self, owner: Owner) -> "Balanced":
        return (self.snapshot.local_ips if owner.kind is Kind.LOCAL_IP else self.snapshot.load_balancers)[owner.id]

    def addresses(self, balanced: "Balanced", row: LoadBalancer) -> list[str]:
        if isinstance(balanced, LocalIP):  # the row contains variables
            serving = [each.address for each in balanced.associations if self.serves(balanced, each.port_id)]
            return [str(address) for address in (balanced.address, *serving)]
        texts = [text for service in row.services for text in (service.vip, *service.backends)]
        return [text.rpartition(":")[0] for text in texts]

    def serves(self, local_ip: LocalIP, port_id: str) -> bool:
        return self.snapshot.ports[port_id].project_id == local_ip.project_id

    def check(self) -> None:
        members = defaultdict[str, set[str]](set)
        for row in (row for rows in self.rows.values() for row in rows):
            match row:
                case SwitchGroup():
                    for balancer, addresses in self.balancers[row.group]:
                        self.check_switch(balancer, row.switch, addresses)
                case RouterGroup():
                    for balancer, _ in self.balancers[row.group]:
                        assert self.is_theirs(row.router, balancer.project_id), row
                        assert isinstance(balancer, lb.LoadBalancer), "a gateway would cut connections"
                        assert balancer.router_id in (None, row.router), "another gateway would answer for its VIPs"
                case PortGroupPort():
                    members[row.group].add(row.port)
                case _:
                    pass
        for owner, rows in self.rows.items():
            for row in rows:
                if isinstance(row, Acl):
                    self.check_acl(self.find(owner), row, members[row.group])
                elif isinstance(row, LogicalRouterPolicy):
                    self.check_policy(self.snapshot.local_ips[owner.id], row)
                elif isinstance(row, SwitchPortAddress):
                    assert row.port == f"vip-{self.snapshot.local_ips[owner.id].network_id}"

    def check_policy(self, local_ip: LocalIP, row: LogicalRouterPolicy) -> None:
        assert row.match.startswith(f"ip{local_ip.address.version}.dst == {local_ip.address}")
        assert row.router == f"vip-{local_ip.network_id}" or self.is_theirs(row.router, local_ip.project_id), row
        assert all(self.serves(local_ip, port_id) for port_id in RESIDENT.findall(row.match))

    def check_acl(self, balancer: "Balanced", row: Acl, ports: set[str]) -> None:
        for port in ports:
            if isinstance(balancer, LocalIP):
                assert f" == {balancer.address}" in row.match, "what others send and get is not meant"
            if isinstance(balancer, LocalIP) and not port.startswith("vip-") and "@" in row.match:
                assert self.serves(balancer, port)
            elif row.direction == "to-lport" and isinstance(balancer, LocalIP):
                assert port == f"vip-{balancer.network_id}"
                assert f'outport == "{balancer.port_id}" && ' in row.match
            elif row.direction == "to-lport":
                assert self.is_theirs(self.snapshot.ports[port].device_id, balancer.project_id), row
            else:
                switch = port.removeprefix("vip-") if port.startswith("vip-") else self.snapshot.ports[port].network_id
                self.check_switch(balancer, switch, ADDRESS.findall(row.match))

    def check_switch(self, balancer: "Balanced", switch: str, addresses: list[str]) -> None:
        if isinstance(balancer, LocalIP):
            network_id, own = balancer.network_id, [balancer.address]
        else:
            network_id, own = balancer.vip.network_id, [vip.address for vip in balancer.vips]
        network = self.snapshot.networks[switch]
        assert not network.external
        if network.project_id != balancer.project_id:
            assert switch == network_id
            assert all(holds(network, text) for text in addresses), (switch, addresses)
        elif switch != network_id:
            assert not any(holds(network, str(address)) for address in own), "it means another machine there"

    def is_theirs(self, router_id: str, project_id: str) -> bool:
        ports = [self.snapshot.ports[each] for each in self.snapshot.router_interfaces.get(router_id, {})]
        networks = [self.snapshot.networks[port.network_id] for port in ports]
        private = all(each.project_id == project_id and not each.shared for each in networks)
        return private or self.snapshot.routers[router_id].project_id == project_id


def holds(network: Network, text: str) -> bool:
    return any(ip_address(text.strip("[]")) in subnet.cidr for subnet in network.subnets)


@pytest.mark.parametrize("seed", seeds(150))
def test_rows_of_a_tenant_never_affect_packets_of_another_tenant(seed: int) -> None:
    Rules(made(parse_model("\n".join(random_lines(random.Random(seed))), {})[0])).check()


def altered(dice: random.Random, lines: list[str]) -> list[str]:
    """Return a changed model: sharing toggles, networks grow, and routers, their interfaces and VIPs come and go."""
    after = []
    for number, line in enumerate(lines):
        words, chance = line.split(), dice.random()
        if words[0] == "network" and words[1] in NETWORKS and chance < 0.3:
            if "shared" in words:
                words.remove("shared")
            else:
                words.append("shared")
            if dice.random() < 0.3:
                words.append(f"10.{10 + number}.0.0/24")
        if words[0] == "router" and chance < 0.3:
            words = [word for word in words if not word.startswith("n") or dice.random() < 0.5]
        if words[0] == "local-ip" and chance < 0.5:
            words[4:6] = [dice.choice([*Mode]), dice.choice([*Fallback])]
            words = [word for word in words if not word.startswith("+") or dice.random() < 0.7]
        if words[0] == "network" or chance < 0.8:
            after.append(" ".join(words))
    return [line for line in after if not line.startswith("local-ip") or stands(line, after)]


def stands(line: str, lines: list[str]) -> bool:
    """Return whether the ports of a Local IP exist."""
    ports = {each.split()[1] for each in lines if each.startswith("port ")}
    return {
        word.removeprefix("port=").lstrip("+") for word in line.split() if word[0] == "+" or "port=" in word
    } <= ports


@pytest.mark.parametrize("seed", seeds(300))
def test_affected_lists_every_owner_with_changed_rows(seed: int) -> None:
    dice = random.Random(seed)
    lines = random_lines(dice)
    states = [lines, altered(dice, lines)]
    before, after = (
        parse_model("\n".join(state), {})[0] for state in (states if dice.random() < 0.5 else states[::-1])
    )
    old = made(before)
    puts = tuple(document for owner, document in after.items() if before.get(owner) != document)
    changes = Changes(puts=puts, deletes=tuple(owner for owner in before if owner not in after))
    new = apply_changes(old, changes, 2)
    named = set(find_affected_owners(old, new, changes.owners))
    rows = compiled(old), compiled(new)
    for owner in {*rows[0], *rows[1]}:
        one, other = ({str(row) for row in each.get(owner, [])} for each in rows)
        assert one == other or owner in named, owner
