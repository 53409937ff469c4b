"""Whose the slots of a VIP's service are, as the kernels of plain hosts have it: read from their maps."""

import json
from collections.abc import Mapping
from typing import Any

from fairlead.dataplane.flow_slot import PROTOCOLS
from fairlead.drivers.native.ruleset import FAMILIES, OWNERS, PATTERNS, THERE
from fairlead.lab import Protocol
from fairlead.lab.load import Target
from fairlead.lab.places import Places
from fairlead.model.loadbalancer import Transport
from fairlead.model.shares import LARGEST

TRANSPORTS = {Protocol.TCP: Transport.TCP, Protocol.UDP: Transport.UDP}
TABLE = "fairlead"
Maps = Mapping[str, Mapping[tuple[Any, ...], Any]]
"""Of a host by their names: values by the parts of their keys."""


class Disagreement(AssertionError):
    """Of hosts, about a slot: one hears of a change later than another, for a moment."""


def read_maps(lab: Places, host: str) -> Maps:
    """Those of ours whose keys have several parts; none where no agent was."""
    said = json.loads(lab.exec(host, ("nft", "-j", "list", "ruleset")))["nftables"]
    ours = [part["map"] for part in said if "map" in part and part["map"]["table"] == TABLE]
    return {
        each["name"]: {tuple(key["concat"]): value for key, value in each.get("elem", ()) if isinstance(key, dict)}
        for each in ours
    }


def whose(hosts: Mapping[int, Maps], target: Target) -> list[str]:
    """Of each slot in turn the address of the member that has it, as all these hosts say, by their numbers.

    Raises Disagreement.
    """
    said = {number: _slots(maps, target) for number, maps in hosts.items()}
    return [_member({host: slots[slot] for host, slots in said.items()}) for slot in range(LARGEST)]


def _member(said: Mapping[int, str | int]) -> str:
    """It is behind one host, and all others lead there."""
    members = [(host, each) for host, each in said.items() if isinstance(each, str)]
    if len(members) != 1 or {each for each in said.values() if not isinstance(each, str)} - {members[0][0]}:
        raise Disagreement(said)
    return members[0][1]


def _slots(maps: Maps, target: Target) -> list[str | int]:
    """The address of a member behind this host, or the number of the host that has it."""
    family = FAMILIES[6 if ":" in target.to else 4]
    service = (target.to, f"0:{PROTOCOLS[TRANSPORTS[target.protocol]]:x}", target.port)
    if service not in maps.get(family.service.name, {}):
        raise Disagreement(f"nobody has {service}")
    table, pattern = maps[family.service.name][service], maps[PATTERNS.name]
    served = maps[family.served.name][service]
    owners, members = maps[OWNERS.name], maps[family.member.name]

    def at(place: int) -> str | int:
        key = (served, place)
        return int(owners[key]) - THERE if key in owners else str(members[key]["concat"][0])

    return [at(pattern[table, slot]) for slot in range(LARGEST)]
