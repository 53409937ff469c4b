"""Switches and routers with rows of Octavia's stock provider (ovn_octavia_provider) for a load balancer.

They are queried on demand, because unmanaged rows are not monitored for one-time queries.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias, cast

from fairlead.drivers.ovn.northbound.marks import Mark
from fairlead.drivers.ovsdb.values import Json, decode_uuid, encode_uuids
from fairlead.model.queries.domain import AttachedObjects

Transact: TypeAlias = Callable[[Sequence[Json]], Awaitable[list[Json]]]
"""Runs one transaction and returns the result of each operation."""
_NEUTRON_PREFIX = "neutron-"
"""Prefix of Neutron's (ML2/OVN) names of switches and routers, followed by the id."""
_HOLDERS = ("Logical_Switch", "Logical_Router")
MAX_ROWS = 10
"""Maximum rows of a load balancer: the stock provider has one for each of three protocols."""


async def find_places(ask: Transact, mark: Mark, balancer_id: str) -> AttachedObjects:
    """Find the switches and routers. Raises the errors of `ask`."""
    theirs = [["name", "==", balancer_id], ["external_ids", "excludes", mark.managed_condition]]
    [found] = await ask([{"op": "select", "table": "Load_Balancer", "where": theirs, "columns": ["_uuid"]}])
    rows = [decode_uuid(row["_uuid"]) for row in _rows(found)][:MAX_ROWS]
    questions = [
        {
            "op": "select",
            "table": holder,
            "where": [["load_balancer", "includes", encode_uuids([row])]],
            "columns": ["name"],
        }
        for holder in _HOLDERS
        for row in rows
    ]
    answers = await ask(questions) if questions else []
    switches, routers = answers[: len(rows)], answers[len(rows) :]
    return AttachedObjects(networks=_ids(switches), routers=_ids(routers))


def _ids(answers: Iterable[Json]) -> frozenset[str]:
    names = (str(row["name"]) for answer in answers for row in _rows(answer))
    return frozenset(name.removeprefix(_NEUTRON_PREFIX) for name in names)


def _rows(answer: Json) -> list[dict[str, Any]]:
    return cast(list[dict[str, Any]], cast(dict[str, Any], answer)["rows"])
