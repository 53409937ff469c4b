"""Local IPs: ports with the address, replicas, access of projects, and updates."""

from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest

from fairlead.changes.access import NotAllowed, NotFound, Verb
from fairlead.changes.addresses import AddressInUse, AddressOutsideNetwork, AddressRequest, NoFreeAddress
from fairlead.changes.associations import (
    AlreadyAssociated,
    NotAssociated,
    ReplicaIpVersionMismatch,
    ReplicaOfItself,
    ReplicaOnOtherNetwork,
    ReplicaRequest,
    TooManyAssociations,
    associate,
    dissociate,
)
from fairlead.changes.ids import IdInUse
from fairlead.changes.local_ips import (
    LocalIPAsReplica,
    LocalIPExists,
    LocalIPInUse,
    LocalPortOfOtherProject,
    LocalPortWithoutAddress,
    NetworkIsExternal,
    NetworkWithoutSubnet,
    NewLocalIP,
    NoLocalPort,
    PortIsNotMachine,
    PortLacksAddress,
    PortOrNetworkNeeded,
    PortWithManyAddresses,
    create_local_ip,
    delete_local_ip,
    find_local_ip,
    update_local_ip,
)
from fairlead.changes.monitor_checks import DelayTooShort
from fairlead.changes.networks import LocalIPsOnNetwork, NetworkInUse, delete_network, update_network
from fairlead.changes.ports import (
    AddressIsLocalIP,
    PortChange,
    PortHasLocalIP,
    PortHoldsLocalIP,
    PortInUse,
    delete_port,
    update_port,
)
from fairlead.changes.probe_ports import NoAddressForProbes
from fairlead.changes.quotas import QuotaExceeded, within_quota
from fairlead.changes.routers import InterfaceTarget, add_interface
from fairlead.changes.subnets import GatewayInUse, SubnetInUse, delete_subnet, update_subnet
from fairlead.model.documents.loadbalancer import MonitorType
from fairlead.model.documents.local_ip import Association, Fallback, LocalIP, Mode, ReplicaMonitor
from fairlead.model.documents.network import Port, PortUse, Router
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.quota import Limits, QuotaResource
from fairlead.model.documents.sizes import MAX_ASSOCIATIONS
from fairlead.model.queries.probes import probe_port_id
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from harness.api import NOON
from harness.changes.world import ADMIN, GUEST, NETWORK, OWNER, PORT, STRANGER, fixed, refusal, snapshot_with, subnet

BOTH = replace(NETWORK, subnets=(*NETWORK.subnets, subnet("six", "fd00::/64")))
"""The owner's network, on which guests have ports."""
REPLICA = replace(PORT, id="replica", mac_address="fa:16:3e:00:00:02", fixed_ips=(fixed("four", "10.0.0.8"),))
SIX = replace(
    *(PORT,), id="six", mac_address="fa:16:3e:00:00:03", fixed_ips=(fixed("four", "10.0.0.9"), fixed("six", "fd00::9"))
)
OWNERS = replace(PORT, id="owners", project_id="owner", mac_address="fa:16:3e:00:00:04", fixed_ips=())
ASSOCIATION = Association(port_id="replica", address=ip_address("10.0.0.8"), created_at=NOON)
LOCAL = LocalIP(
    id="local", project_id="guest", created_at=NOON, network_id="net", port_id="port", address=ip_address("10.0.0.7")
)
LED = replace(LOCAL, associations=(ASSOCIATION,))


def world(*documents: Any) -> Snapshot:
    return snapshot_with(BOTH, PORT, REPLICA, SIX, OWNERS, *documents)


def new(asker: Any = GUEST, **fields: Any) -> NewLocalIP:
    given: dict[str, Any] = {"id": "new", "project_id": asker.project_id, "created_at": NOON, "new_port_id": "made"}
    return NewLocalIP(**given | fields)


def made(snapshot: Snapshot, asker: Any, asked: NewLocalIP) -> LocalIP:
    changes = create_local_ip(snapshot, asker, asked)
    assert changes.requires_unchanged_model
    found = changes.puts[-1]
    assert isinstance(found, LocalIP)
    return found


# Create


def test_local_ip_uses_the_address_of_a_given_port():
    found = made(world(), GUEST, new(port_id="port", network_id="nowhere", name="dns", fallback=Fallback.DROP))
    assert found == replace(LOCAL, id="new", name="dns", fallback=Fallback.DROP)


def test_local_ip_of_a_network_gets_a_dedicated_port():
    port, found = create_local_ip(world(), GUEST, new(network_id="net", mode=Mode.PASSTHROUGH)).puts
    assert isinstance(port, Port)
    assert isinstance(found, LocalIP)
    assert (port.id, port.use, port.device_id, port.project_id) == ("made", PortUse.LOCAL_IP, "new", "guest")
    assert (port.port_security_enabled, len(port.fixed_ips)) == (False, 1)
    assert (found.port_id, found.network_id, found.mode) == ("made", "net", Mode.PASSTHROUGH)
    assert found.address == port.fixed_ips[0].address
    assert found.address.version == 4


def test_local_ip_on_an_ipv6_network_has_an_ipv6_address():
    six = replace(NETWORK, subnets=(subnet("six", "fd00::/64"),))
    assert made(snapshot_with(six), GUEST, new(network_id="net")).address.version == 6
    named = new(OWNER, network_id="net", address=ip_address("fd00::53"))
    assert made(world(), OWNER, named).address == ip_address("fd00::53")


def test_local_ip_does_not_fall_back_to_ipv6_when_ipv4_is_exhausted():
    used_up = replace(BOTH, subnets=(replace(BOTH.subnets[0], allocation_pools=()), BOTH.subnets[1]))
    why = NoFreeAddress(network_id="net", subnet_id="four")
    assert refusal(create_local_ip, snapshot_with(used_up), GUEST, new(network_id="net")) == why


def test_guest_cannot_choose_the_address_of_a_local_ip():
    named = new(network_id="net", address=ip_address("10.0.0.50"))
    why = NotAllowed(verb=Verb.CREATE, what=LocalIP, fields=frozenset({"address"}))
    assert refusal(create_local_ip, world(), GUEST, named) == why
    assert made(world(), ADMIN, named).project_id == "guest"
    own = new(port_id="port", address=ip_address("10.0.0.7"))  # the port's only address needs no choice
    assert made(world(), GUEST, own).address == ip_address("10.0.0.7")


def test_only_an_administrator_creates_local_ips_for_another_project():
    why = NotAllowed(verb=Verb.CREATE, what=LocalIP, fields=frozenset({"project_id"}))
    assert refusal(create_local_ip, world(), OWNER, new(GUEST, port_id="port")) == why
    assert made(world(), ADMIN, new(GUEST, port_id="port")).project_id == "guest"
    mixed = new(ADMIN, port_id="port")
    assert refusal(create_local_ip, world(), ADMIN, mixed) == LocalPortOfOtherProject(port_id="port")


WRONG: dict[str, tuple[dict[str, Any], Any]] = {
    "nothing": ({}, PortOrNetworkNeeded()),
    "no network": ({"network_id": "x"}, None),
    "no port": ({"port_id": "x"}, NoLocalPort(port_id="x")),
    "owner's port": ({"port_id": "owners"}, NoLocalPort(port_id="owners")),
    "several": ({"port_id": "six"}, PortWithManyAddresses(port_id="six")),
    "other": (
        {"port_id": "port", "address": ip_address("10.0.0.8")},
        PortLacksAddress(port_id="port", address=ip_address("10.0.0.8")),
    ),
    "often": (
        {"port_id": "port", "health_monitor": ReplicaMonitor(type=MonitorType.UDP_CONNECT, port=53, delay=2)},
        DelayTooShort(type=MonitorType.UDP_CONNECT, delay=2, least=3),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_local_ips_are_refused(case: str):
    fields, why = WRONG[case]
    found = refusal(create_local_ip, world(), GUEST, new(**fields))
    assert why is None or found == why
    if why is None:
        assert isinstance(found, NotFound)


def test_network_owner_cannot_use_a_guests_port_for_a_local_ip():
    assert refusal(create_local_ip, world(), OWNER, new(OWNER, port_id="port")) == LocalPortOfOtherProject(
        port_id="port"
    )
    bare = refusal(create_local_ip, world(), OWNER, new(OWNER, port_id="owners"))
    assert bare == LocalPortWithoutAddress(port_id="owners")


@pytest.mark.parametrize("use", [use for use in PortUse if use is not PortUse.MACHINE])
def test_service_port_is_refused_as_local_ip_and_as_replica(use: PortUse):
    other = replace(PORT, device_owner=use.value)
    why = PortIsNotMachine(port_id="port", use=use)
    assert refusal(create_local_ip, snapshot_with(NETWORK, other), GUEST, new(port_id="port")) == why
    elsewhere = replace(LOCAL, port_id="replica", address=ip_address("10.0.0.8"))
    there = snapshot_with(NETWORK, other, REPLICA, elsewhere)
    assert refusal(associate, there, GUEST, elsewhere, ReplicaRequest(port_id="port"), NOON) == why


def test_local_ip_address_must_be_free_on_the_network():
    def refused(address: str) -> object:
        asked = new(OWNER, network_id="net", address=ip_address(address))
        return refusal(create_local_ip, world(), OWNER, asked)

    outside = AddressOutsideNetwork(address=ip_address("10.9.0.1"), network_id="net")
    assert refused("10.9.0.1") == outside
    assert refused("10.0.0.7") == AddressInUse(address=ip_address("10.0.0.7"), subnet_id="four")
    assert refused("10.0.0.1") == AddressInUse(address=ip_address("10.0.0.1"), subnet_id="four")
    bare = snapshot_with(replace(NETWORK, subnets=()))
    assert refusal(create_local_ip, bare, GUEST, new(network_id="net")) == NetworkWithoutSubnet(network_id="net")


def test_local_ips_on_external_networks_are_refused():
    outside = snapshot_with(replace(NETWORK, external=True), replace(PORT, project_id="owner"))
    why = NetworkIsExternal(network_id="net")
    assert refusal(create_local_ip, outside, OWNER, new(OWNER, network_id="net")) == why
    assert refusal(create_local_ip, outside, OWNER, new(OWNER, port_id="port")) == why
    assert refusal(create_local_ip, outside, STRANGER, new(STRANGER, network_id="net")) == why


def test_address_of_another_local_ip_is_refused():
    why = LocalIPExists(address=ip_address("10.0.0.7"), network_id="net")
    assert refusal(create_local_ip, world(LOCAL), GUEST, new(port_id="port")) == why
    assert refusal(create_local_ip, world(LOCAL), GUEST, new(id="local", port_id="port")) == IdInUse(id="local")
    four = made(world(), GUEST, new(port_id="six", address=ip_address("10.0.0.9")))
    six = new(id="other", port_id="six", address=ip_address("fd00::9"))
    # two addresses of different families count as two
    assert made(world(four), GUEST, six).address == ip_address("fd00::9")


# Update and delete


def test_local_ip_update_is_validated_and_writes_only_changes():
    changed = replace(LOCAL, name="dns", mode=Mode.PASSTHROUGH, fallback=Fallback.REJECT)
    assert update_local_ip(world(LOCAL), GUEST, LOCAL, LOCAL, NOON) == Changes()
    assert update_local_ip(world(LOCAL), GUEST, LOCAL, changed, NOON).puts == (replace(changed, updated_at=NOON),)
    why = NotAllowed(verb=Verb.UPDATE, what=LocalIP)
    assert refusal(update_local_ip, world(LOCAL), OWNER, LOCAL, changed, NOON) == why
    often = replace(LOCAL, health_monitor=ReplicaMonitor(type=MonitorType.UDP_CONNECT, port=53, delay=1))
    assert isinstance(refusal(update_local_ip, world(LOCAL), GUEST, LOCAL, often, NOON), DelayTooShort)


def test_local_ip_with_replicas_is_deleted_only_by_force():
    there = world(LED)
    assert refusal(delete_local_ip, there, GUEST, LED) == LocalIPInUse(local_ip_id="local")
    assert delete_local_ip(there, GUEST, LED, force=True).deletes == (Owner(Kind.LOCAL_IP, "local"),)
    assert delete_local_ip(there, GUEST, LOCAL).deletes == (Owner(Kind.LOCAL_IP, "local"),)
    assert refusal(delete_local_ip, there, OWNER, LOCAL) == NotAllowed(verb=Verb.DELETE, what=LocalIP)


def test_dedicated_port_is_deleted_with_its_local_ip():
    there = apply_changes(world(), create_local_ip(world(), GUEST, new(network_id="net")), 2)
    gone = delete_local_ip(there, GUEST, there.local_ips["new"])
    assert gone.deletes == (Owner(Kind.LOCAL_IP, "new"), Owner(Kind.PORT, "made"))
    assert "made" not in apply_changes(there, gone, 3).ports


def test_other_projects_do_not_find_a_local_ip():
    assert find_local_ip(world(LOCAL), GUEST, "local") == LOCAL
    for asker in (OWNER, STRANGER):
        assert refusal(find_local_ip, world(LOCAL), asker, "local") == NotFound(what=LocalIP, id="local")


# Replicas


def test_replicas_are_kept_in_order_of_association():
    first = associate(world(LOCAL), GUEST, LOCAL, ReplicaRequest(port_id="replica"), NOON)
    assert first.puts == (LED,)
    assert first.requires_unchanged_model
    second = associate(world(LED), GUEST, LED, ReplicaRequest(port_id="six"), NOON).puts[0]
    assert isinstance(second, LocalIP)
    assert list(second.replicas) == ["replica", "six"]
    assert second.associations[1].address == ip_address("10.0.0.9")  # the address of the Local IP's version
    assert dissociate(world(LED), GUEST, LED, "replica").puts == (LOCAL,)


def test_replica_must_have_an_address_of_the_same_ip_version():
    six = replace(LOCAL, port_id="six", address=ip_address("fd00::9"))
    why = ReplicaIpVersionMismatch(port_id="replica", version=6)
    assert refusal(associate, world(six), GUEST, six, ReplicaRequest(port_id="replica"), NOON) == why
    asked = ReplicaRequest(port_id="six", address=ip_address("fd00::9"))
    why = ReplicaIpVersionMismatch(port_id="six", version=4)
    assert refusal(associate, world(LOCAL), GUEST, LOCAL, asked, NOON) == why


def test_replica_port_with_several_addresses_needs_an_explicit_choice():
    two = replace(REPLICA, fixed_ips=(fixed("four", "10.0.0.8"), fixed("four", "10.0.0.18")))
    there, asked = snapshot_with(BOTH, PORT, two, LOCAL), ReplicaRequest(port_id="replica")
    assert refusal(associate, there, GUEST, LOCAL, asked, NOON) == PortWithManyAddresses(port_id="replica")
    asked = ReplicaRequest(port_id="replica", address=ip_address("10.0.0.18"))
    changed = associate(there, GUEST, LOCAL, asked, NOON).puts[0]
    assert isinstance(changed, LocalIP)
    assert changed.associations[0].address == ip_address("10.0.0.18")
    asked = ReplicaRequest(port_id="replica", address=ip_address("10.0.0.19"))
    why = PortLacksAddress(port_id="replica", address=ip_address("10.0.0.19"))
    assert refusal(associate, there, GUEST, LOCAL, asked, NOON) == why
    bare = snapshot_with(BOTH, PORT, replace(REPLICA, fixed_ips=()), LOCAL)
    why = refusal(associate, bare, GUEST, LOCAL, ReplicaRequest(port_id="replica"), NOON)
    assert why == LocalPortWithoutAddress(port_id="replica")


def test_monitored_replica_gets_a_probe_source_address():
    watched = replace(LOCAL, health_monitor=ReplicaMonitor(port=80))
    asked = ReplicaRequest(port_id="replica")
    probes, _ = associate(world(watched), GUEST, watched, asked, NOON).puts
    assert isinstance(probes, Port)
    assert (probes.use, probes.fixed_ips[0].subnet_id) == (PortUse.PROBE, "four")
    changed = replace(LED, health_monitor=ReplicaMonitor(port=80))
    assert update_local_ip(world(LED), GUEST, LED, changed, NOON).puts[0] == probes


def test_invalid_replicas_are_refused():
    elsewhere = replace(NETWORK, id="other", project_id="guest")
    there = replace(REPLICA, id="there", network_id="other", mac_address="fa:16:3e:00:00:05")
    snapshot = world(LED, elsewhere, there)

    def refused(port_id: str, asker: Any = GUEST) -> object:
        return refusal(associate, snapshot, asker, LED, ReplicaRequest(port_id=port_id), NOON)

    assert refused("nothing") == NotFound(what=Port, id="nothing")
    assert refused("owners") == NotFound(what=Port, id="owners")
    assert refused("owners", ADMIN) == LocalPortOfOtherProject(port_id="owners")
    assert refused("there") == ReplicaOnOtherNetwork(port_id="there", network_id="net")
    assert refused("port") == ReplicaOfItself(port_id="port", local_ip_id="local")
    assert refused("replica") == AlreadyAssociated(local_ip_id="local", port_id="replica")
    assert refused("six", STRANGER) == NotAllowed(verb=Verb.ADD, what=LocalIP)
    why = NotAssociated(local_ip_id="local", port_id="six")
    assert refusal(dissociate, snapshot, GUEST, LED, "six") == why
    assert refusal(dissociate, snapshot, OWNER, LED, "replica") == NotAllowed(verb=Verb.REMOVE, what=LocalIP)


def test_local_ip_cannot_be_a_replica_of_another_local_ip():
    other = replace(LOCAL, id="other", port_id="replica", address=ip_address("10.0.0.8"))
    why = LocalIPAsReplica(address=ip_address("10.0.0.8"), local_ip_id="other")
    asked = ReplicaRequest(port_id="replica")
    assert refusal(associate, world(LOCAL, other), GUEST, LOCAL, asked, NOON) == why
    why = LocalIPAsReplica(address=ip_address("10.0.0.8"), local_ip_id="local")
    assert refusal(create_local_ip, world(LED), GUEST, new(port_id="replica")) == why


def test_number_of_replicas_per_local_ip_is_limited():
    full = replace(
        *(LOCAL,), associations=tuple(replace(ASSOCIATION, port_id=f"p{number}") for number in range(MAX_ASSOCIATIONS))
    )
    why = TooManyAssociations(local_ip_id="local", most=MAX_ASSOCIATIONS)
    assert refusal(associate, world(full), GUEST, full, ReplicaRequest(port_id="replica"), NOON) == why
    fewer = replace(full, associations=full.associations[1:])
    assert associate(world(fewer), GUEST, fewer, ReplicaRequest(port_id="replica"), NOON).puts


def test_local_ips_and_associations_have_quotas():
    limits = Limits(local_ip=1, local_ip_association=1)
    first = create_local_ip(world(), GUEST, new(port_id="port"))
    assert within_quota(limits, world(), first)
    second = create_local_ip(world(LED), GUEST, new(network_id="net"))
    found = refusal(within_quota, limits, world(LED), second)
    assert found == QuotaExceeded(over=(QuotaResource.LOCAL_IP,))
    more = associate(world(LED), GUEST, LED, ReplicaRequest(port_id="six"), NOON)
    assert refusal(within_quota, limits, world(LED), more) == QuotaExceeded(over=(QuotaResource.LOCAL_IP_ASSOCIATION,))
    assert refusal(within_quota, Limits(port=3), world(), create_local_ip(world(), GUEST, new(network_id="net")))


# Ports and networks


def test_port_of_a_local_ip_cannot_be_deleted_or_lose_the_address():
    assert refusal(delete_port, world(LOCAL), GUEST, PORT) == PortHasLocalIP(port_id="port")
    moved = PortChange(port=PORT, fixed_ips=(AddressRequest(subnet_id="six"),))
    why = AddressIsLocalIP(port_id="port", address=ip_address("10.0.0.7"), local_ip_id="local")
    assert refusal(update_port, world(LOCAL), GUEST, PORT, moved, NOON) == why
    more = PortChange(port=PORT, fixed_ips=(AddressRequest(subnet_id="four"), AddressRequest(subnet_id="six")))
    assert update_port(world(LOCAL), GUEST, PORT, more, NOON).puts
    there = apply_changes(world(), create_local_ip(world(), GUEST, new(network_id="net")), 2)
    port = there.ports["made"]
    assert refusal(delete_port, there, GUEST, port) == PortHasLocalIP(port_id="made")
    why = PortHoldsLocalIP(port_id="made", local_ip_id="new", field="fixed_ips")
    assert refusal(update_port, there, GUEST, port, PortChange(port=port, fixed_ips=()), NOON) == why


@pytest.mark.parametrize("field", ["device_id", "device_owner"])
def test_device_fields_of_a_dedicated_port_cannot_change(field: str):
    """The owner fields of a port created for a Local IP cannot change, because the port is deleted by them."""
    there = apply_changes(world(), create_local_ip(world(), GUEST, new(network_id="net")), 2)
    port = there.ports["made"]
    change = PortChange(port=replace(port, **{field: "other"}))
    why = PortHoldsLocalIP(port_id="made", local_ip_id="new", field=field)
    assert refusal(update_port, there, GUEST, port, change, NOON) == why


@pytest.mark.parametrize("given", [True, False], ids=["machine's", "made"])
def test_other_fields_of_a_local_ip_port_can_change(given: bool):
    there = apply_changes(world(), create_local_ip(world(), GUEST, new(network_id="net")), 2)
    port = there.ports["port" if given else "made"]
    there = snapshot_with(*there.networks.values(), *there.ports.values(), LOCAL, *there.local_ips.values())
    own = {"device_id": "vm", "device_owner": "compute:az"} if given else {}
    changed = replace(port, name="n", description="d", tags=("t",), admin_state_up=False, **own)
    (put,) = update_port(there, GUEST, port, PortChange(port=changed), NOON).puts
    assert replace(changed, updated_at=put.updated_at) == put


def test_replica_is_dissociated_when_its_port_or_address_is_removed():
    assert LOCAL in delete_port(world(LED), GUEST, REPLICA).puts
    assert LOCAL in delete_port(world(LED), OWNER, REPLICA).puts  # the network's owner may
    moved = PortChange(port=REPLICA, fixed_ips=(AddressRequest(subnet_id="six"),))
    changes = update_port(world(LED), GUEST, REPLICA, moved, NOON)
    assert LOCAL in changes.puts
    assert changes.requires_unchanged_model
    more = PortChange(port=REPLICA, fixed_ips=(AddressRequest(subnet_id="four"), AddressRequest(subnet_id="six")))
    assert len(update_port(world(LED), GUEST, REPLICA, more, NOON).puts) == 1


@pytest.mark.parametrize("port", [PORT, REPLICA], ids=lambda port: port.id)
def test_port_used_by_a_local_ip_cannot_become_a_router_interface(port: Port):
    router = Router(id="router", project_id="guest", created_at=NOON)
    there, target = world(LED, router), InterfaceTarget(port_id=port.id)
    why = PortInUse(port_id=port.id, network_id="net", device_id="local")
    assert refusal(add_interface, there, GUEST, router, target, "x", NOON) == why


def test_network_in_use_by_local_ips_is_protected_from_changes():
    there = apply_changes(
        snapshot_with(NETWORK), create_local_ip(snapshot_with(NETWORK), GUEST, new(network_id="net")), 2
    )
    assert refusal(delete_network, there, OWNER, NETWORK) == NetworkInUse(network_id="net")
    outside = replace(NETWORK, external=True)
    found = refusal(update_network, there, ADMIN, NETWORK, outside, frozenset(), NOON)
    assert found == LocalIPsOnNetwork(network_id="net")
    four = NETWORK.subnets[0]
    assert refusal(delete_subnet, there, OWNER, four) == SubnetInUse(subnet_id="four")
    address = there.local_ips["new"].address
    moved = replace(four, gateway=address, allocation_pools=())
    assert refusal(update_subnet, there, OWNER, four, moved, NOON) == GatewayInUse(gateway=address, port_id="made")


# Health


WATCHED = replace(LOCAL, health_monitor=ReplicaMonitor(port=80))


def test_first_monitored_replica_of_a_subnet_creates_the_only_probe_port():
    led = replace(WATCHED, associations=(ASSOCIATION,))
    after_update = update_local_ip(world(LED), GUEST, LED, led, NOON)
    after_associating = associate(world(WATCHED), GUEST, WATCHED, ReplicaRequest(port_id="replica"), NOON)
    for changes in (after_update, after_associating):
        port, changed = changes.puts
        assert isinstance(port, Port)
        assert changed == led if changes is after_associating else changed == replace(led, updated_at=NOON)
        assert (port.id, port.use, port.project_id) == (probe_port_id("four"), PortUse.PROBE, "owner")
        again = apply_changes(world(*changes.puts), Changes(), 2)
        assert associate(again, GUEST, led, ReplicaRequest(port_id="six"), NOON).puts[1:] == ()


def test_no_probe_port_is_created_without_a_monitored_replica():
    asked = ReplicaRequest(port_id="replica")
    assert len(associate(world(LOCAL), GUEST, LOCAL, asked, NOON).puts) == 1
    assert len(update_local_ip(world(LOCAL), GUEST, LOCAL, WATCHED, NOON).puts) == 1
    asked = new(network_id="net", health_monitor=WATCHED.health_monitor)
    assert len(create_local_ip(world(), GUEST, asked).puts) == 2


def test_monitor_is_refused_on_a_subnet_without_a_free_probe_address():
    tiny = replace(NETWORK, subnets=(subnet("four", "10.0.0.0/29"),))
    full = [
        replace(PORT, id=f"{number}", mac_address=f"fa:16:3e:00:01:0{number}", fixed_ips=(fixed("four", address),))
        for number, address in enumerate(map("10.0.0.{}".format, range(2, 7)))
    ]
    led = replace(LOCAL, port_id="0", address=ip_address("10.0.0.2"))
    led = replace(led, associations=(Association(port_id="1", address=ip_address("10.0.0.3"), created_at=NOON),))
    wanted = replace(led, health_monitor=WATCHED.health_monitor)
    why = refusal(update_local_ip, snapshot_with(tiny, *full, led), GUEST, led, wanted, NOON)
    assert why == NoAddressForProbes(subnet_id="four")
