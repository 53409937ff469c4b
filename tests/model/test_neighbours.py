"""Neighbours sent to a node: MAC addresses and their owners."""

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

import pytest

from fairlead.model.documents.addresses import derive_mac
from fairlead.model.queries import neighbours
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import run_to_completion
from harness.case import parse_model

MODEL = """
network net1 10.0.0.0/24 fd00:a::/64
network net2 10.0.0.0/24
port owner net1 10.0.0.200 fd00:a::200
port vma net1 10.0.0.11
port vmb net1 10.0.0.12
port vmc net2 10.0.0.200
"""
BOTH = "local-ip lip net1 10.0.0.200 port=owner +vma\nlocal-ip six net1 fd00:a::200 port=owner\n"
VIRTUAL, OWNERS = derive_mac("net1"), "02:00:77:6e:65:72"


def snapshot_of(more: str = "") -> Snapshot:
    documents, _ = parse_model((MODEL + more).strip(), {})
    return apply_changes(Snapshot(), Changes(puts=tuple(documents.values())), 1)


def told(snapshot: Snapshot, ports: Collection[str], **remembered: list[str]) -> Any:
    """Return, by network: the ports, and for each address its MAC, whether it is permanent, and the excluded ports."""
    asked = {network: [ip_address(each) for each in addresses] for network, addresses in remembered.items()}
    return {
        network: (
            tuple(sorted(each.ports)),
            {str(one.address): (one.mac, one.lasting, one.unheard) for one in each.neighbours},
        )
        for network, each in run_to_completion(neighbours.list_announcements(snapshot, ports, asked)).items()
    }


def test_node_receives_local_ips_on_the_networks_of_its_own_ports():
    snapshot = snapshot_of(BOTH)
    lasting = {"10.0.0.200": (VIRTUAL, True, ()), "fd00:a::200": (VIRTUAL, True, ())}
    assert told(snapshot, ["vma", "vmb", "somebody-elses"]) == {"net1": (("vma", "vmb"), lasting)}
    assert told(snapshot, ["vmc"]) == told(snapshot, []) == {}
    assert told(snapshot_of(), ["vma"]) == {}


def test_ports_that_own_the_address_are_excluded_from_its_neighbour_entry():
    """Ports with the address itself are excluded: the owner's, and replicas in passthrough mode."""
    snapshot = snapshot_of("local-ip lip net1 10.0.0.200 port=owner +vma passthrough\n")
    assert told(snapshot, ["vma", "vmb", "owner"]) == {
        "net1": (("owner", "vma", "vmb"), {"10.0.0.200": (VIRTUAL, True, ("owner", "vma"))})
    }
    translated = snapshot_of(BOTH)
    assert told(translated, ["vma", "owner"])["net1"][1]["10.0.0.200"] == (VIRTUAL, True, ("owner",))


def test_former_local_ip_resolves_to_the_mac_of_its_port():
    found = told(snapshot_of(), ["vmb", "owner"], net1=["10.0.0.200", "fd00:a::200", "10.0.0.99"])
    assert found == {
        "net1": (
            ("owner", "vmb"),
            {"10.0.0.200": (OWNERS, False, ("owner",)), "fd00:a::200": (OWNERS, False, ("owner",))},
        )
    }


def test_former_local_ip_may_resolve_to_a_router_or_a_new_virtual_address():
    more = "router r1 net1=10.0.0.1\nlb1 vip=10.0.0.50 on=net1 tcp:80=a/10.0.0.11:8080\nlocal-ip lip net1 10.0.0.60\n"
    snapshot = snapshot_of(more)
    interface = snapshot.ports[snapshot.addresses["net1", ip_address("10.0.0.1")]]
    found = told(snapshot, ["vma"], net1=["10.0.0.1", "10.0.0.50", "10.0.0.60"])["net1"][1]
    assert found == {
        "10.0.0.1": (interface.mac_address, False, ()),
        "10.0.0.50": (VIRTUAL, False, ()),
        "10.0.0.60": (VIRTUAL, True, ()),
    }


def test_node_receives_no_neighbours_of_networks_without_its_ports():
    assert told(snapshot_of(BOTH), ["vmc"], net1=["10.0.0.200"]) == {}


def test_neighbour_limits_keep_oldest_entries_and_small_networks_first(monkeypatch: pytest.MonkeyPatch):
    snapshot = snapshot_of(BOTH + "local-ip other net2 10.0.0.200 port=vmc\nlocal-ip more net1 10.0.0.9\n")
    lip = snapshot.local_ips["lip"]
    younger = replace(lip, created_at=lip.created_at + timedelta(seconds=1))
    snapshot = apply_changes(snapshot, Changes(puts=(younger,)), 2)

    def count(of_network: int, in_all: int) -> dict[str, list[str]]:
        monkeypatch.setattr(neighbours, "MAX_LOCAL_IPS_PER_NETWORK", of_network)
        monkeypatch.setattr(neighbours, "MAX_NEIGHBOURS", in_all)
        return {network: list(each) for network, (_, each) in told(snapshot, ["vma", "vmc"]).items()}

    assert count(3, 9) == {"net2": ["10.0.0.200"], "net1": ["10.0.0.9", "10.0.0.200", "fd00:a::200"]}
    assert count(2, 9) == {"net2": ["10.0.0.200"], "net1": ["10.0.0.9", "fd00:a::200"]}
    assert count(3, 2) == {"net2": ["10.0.0.200"], "net1": ["10.0.0.9"]}
    assert count(3, 1) == {"net2": ["10.0.0.200"]}
