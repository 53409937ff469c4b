"""No tenant's request changes what another tenant's packets meet: random topologies of several projects."""

import random
import re
from collections import defaultdict
from ipaddress import ip_address

import pytest

from fairlead.compilers.ovn import compile_owner
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.ovn import Acl, GroupMember, LoadBalancer, OvnRow, PortGroupPort, RouterGroup, SwitchGroup
from fairlead.model import loadbalancer as lb
from fairlead.model.affected import affected
from fairlead.model.network import Network
from fairlead.model.owner import Owner
from fairlead.model.snapshot import Snapshot
from fairlead.model.writing import Changes, apply_changes, owners_with_rows
from harness.story import EMPTY, Documents, parse_model

PROJECTS = ("p", "q", "r")
NETWORKS = ("n1", "n2", "n3", "n4", "n5", "n6")
ADDRESS = re.compile(r"ip[46]\.dst == (\S+)")


def random_lines(dice: random.Random) -> list[str]:
    """Few prefixes, so that many subnets are equal."""
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
    return lines


def compiled(snapshot: Snapshot) -> dict[Owner, list[OvnRow]]:
    rows: dict[Owner, list[OvnRow]] = {}
    for owner in owners_with_rows(snapshot):
        try:
            rows[owner] = list(compile_owner(snapshot, owner).values())  # type: ignore[arg-type]
        except Unsupported:
            rows[owner] = []
    return rows


def made(documents: Documents) -> Snapshot:
    return apply_changes(EMPTY, Changes(puts=tuple(documents.values())), 1)


class Rules:
    """Who may have what, said once more and in another way than the compiler does."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.rows = compiled(snapshot)
        self.balancers = defaultdict[str, list[tuple[lb.LoadBalancer, LoadBalancer]]](list)
        named = {row.name: row for rows in self.rows.values() for row in rows if isinstance(row, LoadBalancer)}
        for owner, rows in self.rows.items():
            for row in rows:
                if isinstance(row, GroupMember):
                    balancer = snapshot.load_balancers[owner.id]
                    self.balancers[row.group].append((balancer, named[row.load_balancer]))

    def check(self) -> None:
        members = defaultdict[str, set[str]](set)
        for row in (row for rows in self.rows.values() for row in rows):
            match row:
                case SwitchGroup():
                    for balancer, there in self.balancers[row.group]:
                        addresses = [text for service in there.services for text in (service.vip, *service.backends)]
                        self.check_switch(balancer, row.switch, [text.rpartition(":")[0] for text in addresses])
                case RouterGroup():
                    for balancer, _ in self.balancers[row.group]:
                        assert self.is_theirs(row.router, balancer.project_id), row
                        assert balancer.router_id in (None, row.router), "another gateway would answer for its VIPs"
                case PortGroupPort():
                    members[row.group].add(row.port)
                case _:
                    pass
        for owner, rows in self.rows.items():
            for row in rows:
                if isinstance(row, Acl):
                    self.check_acl(self.snapshot.load_balancers[owner.id], row, members[row.group])

    def check_acl(self, balancer: lb.LoadBalancer, row: Acl, ports: set[str]) -> None:
        for port in ports:
            if row.direction == "to-lport":
                assert self.is_theirs(self.snapshot.ports[port].device_id, balancer.project_id), row
            else:
                switch = port.removeprefix("vip-") if port.startswith("vip-") else self.snapshot.ports[port].network_id
                self.check_switch(balancer, switch, ADDRESS.findall(row.match))

    def check_switch(self, balancer: lb.LoadBalancer, switch: str, addresses: list[str]) -> None:
        network = self.snapshot.networks[switch]
        assert not network.external
        if network.project_id != balancer.project_id:
            assert switch == balancer.vip.network_id
            assert all(holds(network, text) for text in addresses), (switch, addresses)
        elif switch != balancer.vip.network_id:
            assert not any(holds(network, str(vip.address)) for vip in balancer.vips), "it means another machine there"

    def is_theirs(self, router_id: str, project_id: str) -> bool:
        ports = [self.snapshot.ports[each] for each in self.snapshot.router_interfaces.get(router_id, {})]
        networks = [self.snapshot.networks[port.network_id] for port in ports]
        private = all(each.project_id == project_id and not each.shared for each in networks)
        return private or self.snapshot.routers[router_id].project_id == project_id


def holds(network: Network, text: str) -> bool:
    return any(ip_address(text.strip("[]")) in subnet.cidr for subnet in network.subnets)


@pytest.mark.parametrize("seed", range(150))
def test_what_is_anothers_gets_nothing(seed: int) -> None:
    Rules(made(parse_model("\n".join(random_lines(random.Random(seed))), {})[0])).check()


def altered(dice: random.Random, lines: list[str]) -> list[str]:
    """Networks are shared or not any more, and grow; routers, their interfaces and VIPs come and go."""
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
        if words[0] == "network" or chance < 0.8:
            after.append(" ".join(words))
    return after


@pytest.mark.parametrize("seed", range(300))
def test_every_owner_whose_rows_change_is_named(seed: int) -> None:
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
    named = set(affected(old, new, changes.owners))
    rows = compiled(old), compiled(new)
    for owner in {*rows[0], *rows[1]}:
        one, other = ({str(row) for row in each.get(owner, [])} for each in rows)
        assert one == other or owner in named, owner
