"""Reports to Octavia depend only on the statuses of Octavia and Fairlead, read in this order."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest

from fairlead.octavia_plugin.differences import (
    KINDS,
    MAX_DELETE_AGE,
    MISSING_STATUS,
    PENDING,
    CheckContext,
    OctaviaState,
    OctaviaStatus,
    StateDifference,
    compare_states,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ONE = timedelta(seconds=1)
ACTIVE = OctaviaStatus("ACTIVE", "ONLINE")
CREATED = OctaviaStatus("PENDING_CREATE", "OFFLINE")
UPDATED, DELETED = OctaviaStatus("PENDING_UPDATE", "ONLINE"), OctaviaStatus("PENDING_DELETE", "ONLINE")
FAILED = OctaviaStatus("ERROR", "OFFLINE")


def known(balancer: OctaviaStatus, **parts: Mapping[str, OctaviaStatus]) -> OctaviaState:
    return OctaviaState(balancer=balancer, parts=parts)


def part(name: str, standing: OctaviaStatus, made: datetime = NOW, **more: str) -> dict[str, Any]:
    said = {"provisioning_status": standing.provisioning, "operating_status": standing.operating}
    return {"id": name, "created_at": made.isoformat(), **said, **more}


def told(balancer: OctaviaStatus, made: datetime = NOW, **parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {**part("lb", balancer, made), **{kind: parts.get(kind, []) for kind in KINDS}}


def find(octavia: OctaviaState | None, fairlead: Mapping[str, Any] | None, **look: bool) -> StateDifference:
    return compare_states("lb", octavia, fairlead, CheckContext(now=NOW, **look))


def said(found: StateDifference) -> dict[str, tuple[str | None, str | None]]:
    return {
        each["id"]: (each.get("provisioning_status"), each.get("operating_status"))
        for records in found.updates.values()
        for each in records
    }


def test_applied_load_balancer_is_reported_with_all_parts():
    octavia = known(CREATED, listeners={"l": CREATED}, pools={"p": CREATED}, members={"m": CREATED})
    fairlead = told(
        ACTIVE,
        listeners=[part("l", ACTIVE)],
        pools=[part("p", ACTIVE)],
        members=[part("m", OctaviaStatus("ACTIVE", "NO_MONITOR"), parent="p")],
    )
    found = find(octavia, fairlead)
    assert said(found) == {
        "l": ("ACTIVE", "ONLINE"),
        "p": ("ACTIVE", "ONLINE"),
        "m": ("ACTIVE", "NO_MONITOR"),
        "lb": ("ACTIVE", "ONLINE"),
    }
    assert not found.is_uncertain


def test_only_differing_statuses_are_reported():
    octavia = known(ACTIVE, listeners={"l": ACTIVE}, members={"m": ACTIVE})
    assert find(octavia, told(ACTIVE, listeners=[part("l", ACTIVE)], members=[part("m", ACTIVE)])).updates == {}
    down = told(
        OctaviaStatus("ACTIVE", "ERROR"),
        listeners=[part("l", ACTIVE)],
        members=[part("m", OctaviaStatus("ACTIVE", "ERROR"))],
    )
    assert said(find(octavia, down)) == {"m": (None, "ERROR"), "lb": (None, "ERROR")}
    failed = told(FAILED, listeners=[part("l", ACTIVE)], members=[part("m", ACTIVE)])
    assert said(find(octavia, failed)) == {"lb": ("ERROR", "OFFLINE")}


@pytest.mark.parametrize("where", ["whole", "part"])
def test_load_balancer_stays_pending_while_fairlead_is_applying(where: str):
    octavia = known(UPDATED, listeners={"l": UPDATED, "other": ACTIVE})
    at_work = UPDATED if where == "whole" else ACTIVE
    listeners = [part("l", UPDATED), part("other", OctaviaStatus("ACTIVE", "OFFLINE"))]
    assert said(find(octavia, told(at_work, listeners=listeners))) == {"other": (None, "OFFLINE")}


def test_part_deleted_on_both_sides_is_reported_deleted():
    octavia = known(UPDATED, pools={"p": UPDATED}, members={"m": DELETED, "n": ACTIVE})
    fairlead = told(ACTIVE, pools=[part("p", ACTIVE)], members=[part("n", ACTIVE, parent="p")])
    assert said(find(octavia, fairlead)) == {
        "m": ("DELETED", None),
        "p": ("ACTIVE", None),
        "lb": ("ACTIVE", None),
    }


def test_cascade_delete_reports_every_part_deleted():
    octavia = known(DELETED, listeners={"l": ACTIVE}, pools={"p": ACTIVE}, members={"m": ACTIVE})
    assert said(find(octavia, None)) == dict.fromkeys(("l", "p", "m", "lb"), ("DELETED", None))


def test_part_that_octavia_deletes_is_deleted_in_fairlead_and_rechecked():
    octavia = known(
        UPDATED, pools={"p": UPDATED}, members={"m": DELETED}, l7rules={"r": DELETED}, listeners={"l": DELETED}
    )
    fairlead = told(
        ACTIVE,
        pools=[part("p", ACTIVE)],
        members=[part("m", ACTIVE, parent="p")],
        l7rules=[part("r", ACTIVE, parent="y")],
        listeners=[part("l", ACTIVE)],
    )
    found = find(octavia, fairlead)
    assert sorted(found.unknown_to_octavia) == ["/l7policies/y/rules/r", "/listeners/l", "/pools/p/members/m"]
    assert (found.is_uncertain, "lb" in said(found)) == (True, False)
    whole = find(known(DELETED, pools={"p": ACTIVE}), told(ACTIVE, pools=[part("p", ACTIVE)]))
    assert (whole.unknown_to_octavia, said(whole), whole.is_uncertain) == (["/loadbalancers/lb?cascade=true"], {}, True)


def test_lost_part_is_an_error_only_when_no_request_is_in_flight():
    octavia = known(ACTIVE, listeners={"l": ACTIVE})
    early = find(octavia, told(ACTIVE))
    assert (early.updates, early.is_uncertain) == ({}, True)
    sure = find(octavia, told(ACTIVE), is_sure=True)
    assert (said(sure), sure.is_uncertain) == ({"l": MISSING_STATUS}, False)
    assert find(known(ACTIVE, listeners={"l": MISSING_STATUS}), told(ACTIVE), is_sure=True).updates == {}
    assert (find(octavia, None).updates, find(octavia, None).is_uncertain) == ({}, True)
    assert said(find(octavia, None, is_sure=True)) == {"l": MISSING_STATUS, "lb": MISSING_STATUS}
    again = find(known(MISSING_STATUS, listeners={"l": MISSING_STATUS}), None)
    assert (again.updates, again.is_uncertain) == ({}, False)


@pytest.mark.parametrize("is_sure", [False, True])
def test_lost_part_is_offered_for_recreation_instead_of_an_error(is_sure: bool):
    octavia = known(ACTIVE, listeners={"l": ACTIVE, "gone": DELETED}, pools={"p": MISSING_STATUS})
    found = find(octavia, told(ACTIVE), may_create=True, is_sure=is_sure)
    assert (found.missing, found.is_uncertain, found.is_settled) == ([("listeners", "l"), ("pools", "p")], True, False)
    assert said(found) == {"gone": ("DELETED", None)}
    whole = find(octavia, None, may_create=True, is_sure=is_sure)
    assert (whole.missing, whole.updates, whole.is_uncertain) == ([("loadbalancers", "lb")], {}, True)
    assert find(known(DELETED), None, may_create=True, is_sure=is_sure).missing == []


@pytest.mark.parametrize(
    ("octavia", "fairlead", "settled"),
    [
        (known(ACTIVE, pools={"p": ACTIVE}), told(ACTIVE, pools=[part("p", ACTIVE)]), True),
        (known(UPDATED, pools={"p": UPDATED}), told(ACTIVE, pools=[part("p", ACTIVE)]), True),
        (known(ACTIVE), told(UPDATED), False),
        (known(ACTIVE, pools={"p": ACTIVE}), told(ACTIVE), False),
        (known(ACTIVE), told(ACTIVE, pools=[part("p", ACTIVE)]), False),
        (known(UPDATED, pools={"p": DELETED}), told(ACTIVE, pools=[part("p", ACTIVE)]), False),
        (known(DELETED), told(ACTIVE), False),
    ],
    ids=["same", "arrived", "at-work", "lost", "stranger", "to-be-deleted", "all-to-be-deleted"],
)
def test_values_are_compared_only_when_nothing_is_pending(
    octavia: OctaviaState, fairlead: dict[str, Any], settled: bool
):
    assert find(octavia, fairlead).is_settled is settled


def test_uncommitted_part_is_deleted_only_when_no_request_is_in_flight():
    fairlead = told(ACTIVE, listeners=[part("l", ACTIVE)], members=[part("m", ACTIVE, parent="p")])
    early = find(known(ACTIVE), fairlead)
    assert (early.unknown_to_octavia, early.is_uncertain) == ([], True)
    sure = find(known(ACTIVE), fairlead, is_sure=True)
    assert sorted(sure.unknown_to_octavia) == ["/listeners/l", "/pools/p/members/m"]
    assert find(None, fairlead).unknown_to_octavia == []
    assert find(None, fairlead, is_sure=True).unknown_to_octavia == ["/loadbalancers/lb?cascade=true"]
    assert find(None, None, is_sure=True) == StateDifference()


def test_old_load_balancer_unknown_to_octavia_is_not_deleted():
    """Octavia's database may be an old backup, so nothing that serves traffic is deleted."""
    old = NOW - MAX_DELETE_AGE - timedelta(seconds=1)
    whole = find(None, told(ACTIVE, old), is_sure=True)
    assert (whole.unknown_to_octavia, whole.is_uncertain) == ([], False)
    one = find(known(ACTIVE), told(ACTIVE, listeners=[part("l", ACTIVE, old)]), is_sure=True)
    assert (one.unknown_to_octavia, one.is_uncertain, one.old) == ([], False, ["/listeners/l"])
    asked = find(None, told(ACTIVE, old), is_sure=True, deletes_old=True)
    assert asked.unknown_to_octavia == whole.old == ["/loadbalancers/lb?cascade=true"]


STANDINGS = [ACTIVE, CREATED, UPDATED, DELETED, FAILED, None]


@pytest.mark.parametrize("kind", KINDS)
def test_any_pair_of_statuses_converges_with_nothing_pending(kind: str):
    """If Octavia applies the reports and Fairlead the deletions, then after a few checks nothing is pending."""
    for balancer, row, whole, one in product(STANDINGS, STANDINGS, (ACTIVE, FAILED, None), (ACTIVE, FAILED, None)):
        rows = {"lb": balancer, "x": row if balancer else None}
        there = {"lb": whole, "x": one if whole else None}
        for _ in range(4):
            found = find(_octavia(rows, kind), _fairlead(there, kind), is_sure=True)
            for each in (record for records in found.updates.values() for record in records):
                _write(rows, each)
            for path in found.unknown_to_octavia:
                there.update({"x": None} if kind in path or "/rules/" in path else {"lb": None, "x": None})
        last = find(_octavia(rows, kind), _fairlead(there, kind), is_sure=True)
        assert (last.updates, last.unknown_to_octavia) == ({}, []), (balancer, row, whole, one)
        assert not {each.provisioning for each in rows.values() if each} & PENDING, (balancer, row, whole, one)
        if rows["lb"] and there["lb"]:
            assert (rows["x"] or MISSING_STATUS) == (there["x"] or MISSING_STATUS), (balancer, row, whole, one)


def _octavia(rows: Mapping[str, OctaviaStatus | None], kind: str) -> OctaviaState | None:
    balancer, row = rows["lb"], rows["x"]
    return None if balancer is None else known(balancer, **{kind: {"x": row} if row else {}})


def _fairlead(there: Mapping[str, OctaviaStatus | None], kind: str) -> dict[str, Any] | None:
    whole, one = there["lb"], there["x"]
    return None if whole is None else told(whole, **{kind: [part("x", one, parent="p")] if one else []})


def _write(rows: dict[str, OctaviaStatus | None], record: Mapping[str, str]) -> None:
    """Update a status as octavia-driver-agent does."""
    old = rows[record["id"]]
    assert old is not None
    provisioning = record.get("provisioning_status", old.provisioning)
    operating = record.get("operating_status", old.operating)
    rows[record["id"]] = None if provisioning == "DELETED" else OctaviaStatus(provisioning, operating)


@pytest.mark.parametrize(("age", "goes"), [(MAX_DELETE_AGE - ONE, False), (MAX_DELETE_AGE + ONE, True)])
def test_abandoned_prepared_takeover_is_deleted_after_a_delay(age: timedelta, goes: bool):
    """An old prepared takeover is deleted, unlike an old load balancer that serves traffic."""
    found = find(None, {**told(ACTIVE, made=NOW - age), "takeover": "prepared"}, is_sure=True)
    assert found.unknown_to_octavia == (["/loadbalancers/lb?cascade=true"] if goes else [])
    assert found.old == []
