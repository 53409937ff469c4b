"""Random changes of unmanaged networks while load balancers of three projects are created and deleted there.

Only affected owners are compiled, as on a server; the result must equal that of a fresh start. Nothing but refusals of
compilers and rules may be raised. No load balancer may have an address that its port does not have.
"""

import random
from dataclasses import replace

import pytest

from fairlead.changes.balancers import create_load_balancer, delete_load_balancer
from fairlead.changes.refusal import Refused
from fairlead.changes.vips import VipRequest, choose_vip
from fairlead.compilers.providers import DEFAULT, dataplanes_of
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.interface import Rows
from fairlead.dataplane.ovn import PortAddress
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.model.documents.network import FixedIP, PortUse
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.unmanaged import UnmanagedNetwork, UnmanagedObject, UnmanagedPort, is_unmanaged
from fairlead.model.registry.affected import find_affected_owners
from fairlead.model.registry.changeset import Changes, apply_changes, owners_with_rows
from fairlead.model.registry.facts import UNMANAGED, with_facts
from fairlead.model.registry.kinds import owner_of
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import run_to_completion
from harness.case import parse_model
from harness.changes.balancing import ASKER

PROJECTS, NETWORKS = ("p", "q", "r"), ("n1", "n2", "n3", "n4")
(OVN,) = dataplanes_of(DEFAULT)


def random_cloud(dice: random.Random) -> list[UnmanagedObject]:
    lines = []
    for number, name in enumerate(NETWORKS):
        shared = "shared" if dice.random() < 0.4 else ""
        project = dice.choice([*PROJECTS, "admin"])
        lines.append(f"network {name} by=neutron 10.{number % 3}.0.0/24 fd00:{number}::/64 {shared} project={project}")
    for number in range(2, 6):
        joins = " ".join(
            f"{name}=10.{NETWORKS.index(name) % 3}.0.{number}" for name in dice.sample(NETWORKS, dice.choice([1, 2, 3]))
        )
        lines.append(f"router r{number} by=neutron {joins} project={dice.choice(PROJECTS)}")
    for number in range(10, 16):
        name = dice.choice(NETWORKS)
        base = NETWORKS.index(name)
        lines.append(
            f"port v{number} {name} 10.{base % 3}.0.{number} fd00:{base}::{number} project={dice.choice(PROJECTS)}"
        )
    documents, _ = parse_model("\n".join(lines), {})
    return [each for each in documents.values() if is_unmanaged(each)]


class RandomCloudSite:
    """A server: its model, and the rows that it has written."""

    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self.rows: dict[Owner, Rows] = {}

    def see(self, news: dict[Owner, UnmanagedObject | None]) -> None:
        new = with_facts(self.snapshot, UNMANAGED, news)
        concerned = [*UNMANAGED.affected_owners(self.snapshot, new, news)]
        self.snapshot = UNMANAGED.derive(new, concerned)
        self.compile(concerned)

    def write(self, changes: Changes) -> None:
        new = apply_changes(self.snapshot, changes, self.snapshot.revision + 1)
        concerned = find_affected_owners(self.snapshot, new, changes.owners)
        self.snapshot = new
        self.compile(concerned)

    def compile(self, owners: object) -> None:
        for owner in owners:  # type: ignore[attr-defined]
            try:
                self.rows[owner] = OVN.compile(self.snapshot, owner)
            except Unsupported:
                continue  # the owner keeps its rows
            if not self.rows[owner]:
                del self.rows[owner]

    def check(self) -> None:
        """Check that a resync would find no difference, and that every address belongs to its port."""
        for owner in {*owners_with_rows(self.snapshot), *self.rows}:
            try:
                found = OVN.compile(self.snapshot, owner)
            except Unsupported:
                continue
            assert self.rows.get(owner, {}) == found, owner
            balancer = self.snapshot.load_balancers.get(owner.id)
            if balancer is not None and owner.kind is Kind.LOAD_BALANCER:
                self.check_addresses(balancer, found)

    def check_addresses(self, balancer: LoadBalancer, rows: Rows) -> None:
        port = self.snapshot.ports.get(balancer.vip.port_id)
        has = {str(each.address) for each in port.fixed_ips} if port is not None else set()
        answers = {row.network.partition("/")[0] for row in rows.values() if isinstance(row, PortAddress)}
        assert answers <= has
        assert answers or not rows


def changed(dice: random.Random, document: UnmanagedObject) -> UnmanagedObject | None:
    """Return the document deleted (None), unchanged, or with another project, address or subnet id."""
    match dice.randrange(6), document:
        case 0 | 1, _:
            return None
        case 2, UnmanagedPort(use=PortUse.MACHINE) as port:
            address = parse_address(f"10.{NETWORKS.index(port.network_id) % 3}.0.{dice.randint(10, 17)}")
            return replace(port, fixed_ips=(FixedIP(subnet_id=port.fixed_ips[0].subnet_id, address=address),))
        case 3, UnmanagedNetwork() as network:
            called = tuple(replace(each, id=f"{each.id}-again") for each in network.subnets)
            return replace(network, subnets=called[: dice.randint(0, 2)])
        case 4, UnmanagedNetwork() as network:
            return replace(network, project_id=dice.choice([*PROJECTS, ""]), shared=dice.random() < 0.5)
        case 5, UnmanagedPort() as port:
            return replace(
                port, device_owner=dice.choice([port.device_owner, "Octavia", PortUse.PROBE, "network:distributed"])
            )
        case _:
            return document


def ask_for_a_balancer(dice: random.Random, site: RandomCloudSite, number: int) -> None:
    project, port_id = dice.choice(PROJECTS), f"v{dice.randint(10, 15)}"
    identity = replace(ASKER.identity, project_id=project)
    asker = replace(ASKER, identity=identity)
    wanted, _ = parse_model(
        f"network n0 10.9.0.0/24\nlb vip=10.9.0.9 on=n0 tcp:80=a/10.0.0.10:80,b/10.1.0.10:80 project={project}", {}
    )
    balancer = next(each for each in wanted.values() if isinstance(each, LoadBalancer))
    asked = VipRequest(balancer_id=f"lb{number}", project_id=project, new_port_id=f"new{number}", port_id=port_id)
    port = site.snapshot.ports.get(port_id)
    if port is not None and port.fixed_ips:
        asked = replace(asked, address=port.fixed_ips[0].address)
    try:
        vip = choose_vip(site.snapshot, asker, asked)
        bare = replace(balancer, id=f"lb{number}", vip=vip.vips[0], listeners=(), pools=())
        site.write(run_to_completion(create_load_balancer(site.snapshot, asker, bare, vip)))
        told = site.snapshot.load_balancers[f"lb{number}"]
        ids = {pool.id: f"{pool.id}{number}" for pool in balancer.pools}
        pools = tuple(
            replace(pool, id=ids[pool.id], members=tuple(replace(m, id=f"{m.id}{number}") for m in pool.members))
            for pool in balancer.pools
        )
        listeners = tuple(
            replace(each, id=f"{each.id}{number}", default_pool_id=ids[each.default_pool_id or ""])
            for each in balancer.listeners
        )
        site.write(Changes(puts=(replace(told, pools=pools, listeners=listeners),)))
    except Refused:
        pass


@pytest.mark.parametrize("seed", range(12))
def test_incremental_compilation_of_random_changes_equals_a_fresh_start(seed: int):
    dice = random.Random(seed)
    cloud, site = random_cloud(dice), RandomCloudSite()
    site.see({owner_of(each): each for each in cloud})
    for number in range(60):
        match dice.randrange(5):
            case 0 | 1:
                ask_for_a_balancer(dice, site, number)
            case 2 if site.snapshot.load_balancers:
                one = dice.choice(sorted(site.snapshot.load_balancers))
                identity = replace(ASKER.identity, project_id=site.snapshot.load_balancers[one].project_id)
                site.write(delete_load_balancer(site.snapshot, replace(ASKER, identity=identity), one, cascade=True))
            case _:
                some = dice.sample(cloud, dice.randint(1, 4))
                site.see({owner_of(each): changed(dice, each) for each in some})
        site.check()
    site.see({owner_of(each): each for each in cloud})
    site.check()
    assert len(site.rows) > 0 or not site.snapshot.load_balancers
