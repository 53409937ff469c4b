"""Slot assignment of a VIP's service in the kernels of plain hosts, read from their nftables maps."""

import json
from collections.abc import Mapping
from typing import Any

from fairlead.dataplane.flow_slot import PROTOCOLS
from fairlead.drivers.native.nftables.ruleset import FAMILIES, OWNER_MARK, OWNERS, PATTERNS
from fairlead.lab import Protocol
from fairlead.lab.base import LabBase
from fairlead.lab.load import LoadTarget
from fairlead.model.documents.apportionment import MAX_SLOTS
from fairlead.model.documents.loadbalancer import Transport

TRANSPORTS = {Protocol.TCP: Transport.TCP, Protocol.UDP: Transport.UDP}
TABLE = "fairlead"
Maps = Mapping[str, Mapping[tuple[Any, ...], Any]]
"""Maps of a host by name: values by the parts of their keys."""


class InconsistentHosts(AssertionError):
    """Raised if hosts disagree about a slot, as they briefly do when one applies a change before another."""


def read_maps(lab: LabBase, host: str) -> Maps:
    """Fairlead's maps with concatenated keys; empty on a host that never had an agent."""
    said = json.loads(lab.exec(host, ("nft", "-j", "list", "ruleset")))["nftables"]
    ours = [part["map"] for part in said if "map" in part and part["map"]["table"] == TABLE]
    return {
        each["name"]: {tuple(key["concat"]): value for key, value in each.get("elem", ()) if isinstance(key, dict)}
        for each in ours
    }


def slot_owners(hosts: Mapping[int, Maps], target: LoadTarget) -> list[str]:
    """Address of the member of each slot, on which all these hosts (by number) agree.

    Raises Disagreement.
    """
    said = {number: _read_slots(maps, target) for number, maps in hosts.items()}
    return [_member({host: slots[slot] for host, slots in said.items()}) for slot in range(MAX_SLOTS)]


def _member(said: Mapping[int, str | int]) -> str:
    """Member of a slot: exactly one host has it, and all others forward to that host."""
    members = [(host, each) for host, each in said.items() if isinstance(each, str)]
    if len(members) != 1 or {each for each in said.values() if not isinstance(each, str)} - {members[0][0]}:
        raise InconsistentHosts(said)
    return members[0][1]


def _read_slots(maps: Maps, target: LoadTarget) -> list[str | int]:
    """For each slot the address of a member of this host, or the number of the host that has the member."""
    family = FAMILIES[6 if ":" in target.to else 4]
    service = (target.to, f"0:{PROTOCOLS[TRANSPORTS[target.protocol]]:x}", target.port)
    if service not in maps.get(family.service.name, {}):
        raise InconsistentHosts(f"nobody has {service}")
    table, pattern = maps[family.service.name][service], maps[PATTERNS.name]
    served = maps[family.served.name][service]
    owners, members = maps[OWNERS.name], maps[family.member.name]

    def at(place: int) -> str | int:
        key = (served, place)
        return int(owners[key]) - OWNER_MARK if key in owners else str(members[key]["concat"][0])

    return [at(pattern[table, slot]) for slot in range(MAX_SLOTS)]
