"""Reports to Octavia depend only on the statuses of Octavia and Fairlead, read in this order."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest

from fairlead.octavia_plugin.differences import (
    GONE,
    KINDS,
    PENDING,
    TAKEN_BACK,
    Difference,
    Known,
    Look,
    Standing,
    difference,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ONE = timedelta(seconds=1)
ACTIVE = Standing("ACTIVE", "ONLINE")
CREATED = Standing("PENDING_CREATE", "OFFLINE")
UPDATED, DELETED = Standing("PENDING_UPDATE", "ONLINE"), Standing("PENDING_DELETE", "ONLINE")
FAILED = Standing("ERROR", "OFFLINE")


def known(balancer: Standing, **parts: Mapping[str, Standing]) -> Known:
    return Known(balancer=balancer, parts=parts)


def part(name: str, standing: Standing, made: datetime = NOW, **more: str) -> dict[str, Any]:
    said = {"provisioning_status": standing.provisioning, "operating_status": standing.operating}
    return {"id": name, "created_at": made.isoformat(), **said, **more}


def told(balancer: Standing, made: datetime = NOW, **parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {**part("lb", balancer, made), **{kind: parts.get(kind, []) for kind in KINDS}}


def find(octavia: Known | None, fairlead: Mapping[str, Any] | None, **look: bool) -> Difference:
    return difference("lb", octavia, fairlead, Look(now=NOW, **look))


def said(found: Difference) -> dict[str, tuple[str | None, str | None]]:
    return {
        each["id"]: (each.get("provisioning_status"), each.get("operating_status"))
        for records in found.updates.values()
        for each in records
    }


def test_what_has_arrived_is_told_with_all_that_it_holds():
    octavia = known(CREATED, listeners={"l": CREATED}, pools={"p": CREATED}, members={"m": CREATED})
    fairlead = told(
        ACTIVE,
        listeners=[part("l", ACTIVE)],
        pools=[part("p", ACTIVE)],
        members=[part("m", Standing("ACTIVE", "NO_MONITOR"), parent="p")],
    )
    found = find(octavia, fairlead)
    assert said(found) == {
        "l": ("ACTIVE", "ONLINE"),
        "p": ("ACTIVE", "ONLINE"),
        "m": ("ACTIVE", "NO_MONITOR"),
        "lb": ("ACTIVE", "ONLINE"),
    }
    assert not found.is_doubtful


def test_only_what_differs_is_told():
    octavia = known(ACTIVE, listeners={"l": ACTIVE}, members={"m": ACTIVE})
    assert find(octavia, told(ACTIVE, listeners=[part("l", ACTIVE)], members=[part("m", ACTIVE)])).updates == {}
    down = told(
        Standing("ACTIVE", "ERROR"), listeners=[part("l", ACTIVE)], members=[part("m", Standing("ACTIVE", "ERROR"))]
    )
    assert said(find(octavia, down)) == {"m": (None, "ERROR"), "lb": (None, "ERROR")}
    failed = told(FAILED, listeners=[part("l", ACTIVE)], members=[part("m", ACTIVE)])
    assert said(find(octavia, failed)) == {"lb": ("ERROR", "OFFLINE")}


@pytest.mark.parametrize("where", ["whole", "part"])
def test_while_fairlead_is_at_work_the_load_balancer_stays_pending(where: str):
    octavia = known(UPDATED, listeners={"l": UPDATED, "other": ACTIVE})
    at_work = UPDATED if where == "whole" else ACTIVE
    listeners = [part("l", UPDATED), part("other", Standing("ACTIVE", "OFFLINE"))]
    assert said(find(octavia, told(at_work, listeners=listeners))) == {"other": (None, "OFFLINE")}


def test_what_octavia_wants_gone_and_fairlead_has_no_more_is_deleted():
    octavia = known(UPDATED, pools={"p": UPDATED}, members={"m": DELETED, "n": ACTIVE})
    fairlead = told(ACTIVE, pools=[part("p", ACTIVE)], members=[part("n", ACTIVE, parent="p")])
    assert said(find(octavia, fairlead)) == {
        "m": ("DELETED", None),
        "p": ("ACTIVE", None),
        "lb": ("ACTIVE", None),
    }


def test_a_cascade_ends_with_everything_deleted():
    octavia = known(DELETED, listeners={"l": ACTIVE}, pools={"p": ACTIVE}, members={"m": ACTIVE})
    assert said(find(octavia, None)) == dict.fromkeys(("l", "p", "m", "lb"), ("DELETED", None))


def test_what_octavia_wants_gone_and_fairlead_still_has_is_deleted_there_and_looked_at_again():
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
    assert sorted(found.strangers) == ["/l7policies/y/rules/r", "/listeners/l", "/pools/p/members/m"]
    assert (found.is_doubtful, "lb" in said(found)) == (True, False)
    whole = find(known(DELETED, pools={"p": ACTIVE}), told(ACTIVE, pools=[part("p", ACTIVE)]))
    assert (whole.strangers, said(whole), whole.is_doubtful) == (["/loadbalancers/lb?cascade=true"], {}, True)


def test_what_fairlead_has_lost_is_an_error_when_no_request_can_be_on_its_way():
    octavia = known(ACTIVE, listeners={"l": ACTIVE})
    early = find(octavia, told(ACTIVE))
    assert (early.updates, early.is_doubtful) == ({}, True)
    sure = find(octavia, told(ACTIVE), is_sure=True)
    assert (said(sure), sure.is_doubtful) == ({"l": GONE}, False)
    assert find(known(ACTIVE, listeners={"l": GONE}), told(ACTIVE), is_sure=True).updates == {}
    assert (find(octavia, None).updates, find(octavia, None).is_doubtful) == ({}, True)
    assert said(find(octavia, None, is_sure=True)) == {"l": GONE, "lb": GONE}
    again = find(known(GONE, listeners={"l": GONE}), None)
    assert (again.updates, again.is_doubtful) == ({}, False)


@pytest.mark.parametrize("is_sure", [False, True])
def test_what_fairlead_has_lost_it_may_be_given_again_before_it_is_an_error(is_sure: bool):
    octavia = known(ACTIVE, listeners={"l": ACTIVE, "gone": DELETED}, pools={"p": GONE})
    found = find(octavia, told(ACTIVE), may_give=True, is_sure=is_sure)
    assert (found.lost, found.is_doubtful, found.is_settled) == ([("listeners", "l"), ("pools", "p")], True, False)
    assert said(found) == {"gone": ("DELETED", None)}
    whole = find(octavia, None, may_give=True, is_sure=is_sure)
    assert (whole.lost, whole.updates, whole.is_doubtful) == ([("loadbalancers", "lb")], {}, True)
    assert find(known(DELETED), None, may_give=True, is_sure=is_sure).lost == []


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
def test_values_are_compared_when_nothing_is_on_its_way(octavia: Known, fairlead: dict[str, Any], settled: bool):
    assert find(octavia, fairlead).is_settled is settled


def test_what_octavia_never_committed_is_taken_back_when_no_request_can_be_on_its_way():
    fairlead = told(ACTIVE, listeners=[part("l", ACTIVE)], members=[part("m", ACTIVE, parent="p")])
    early = find(known(ACTIVE), fairlead)
    assert (early.strangers, early.is_doubtful) == ([], True)
    sure = find(known(ACTIVE), fairlead, is_sure=True)
    assert sorted(sure.strangers) == ["/listeners/l", "/pools/p/members/m"]
    assert find(None, fairlead).strangers == []
    assert find(None, fairlead, is_sure=True).strangers == ["/loadbalancers/lb?cascade=true"]
    assert find(None, None, is_sure=True) == Difference()


def test_what_is_old_is_not_taken_back_by_itself():
    """Octavia's database may be an old backup, so nothing that serves traffic is deleted."""
    old = NOW - TAKEN_BACK - timedelta(seconds=1)
    whole = find(None, told(ACTIVE, old), is_sure=True)
    assert (whole.strangers, whole.is_doubtful) == ([], False)
    one = find(known(ACTIVE), told(ACTIVE, listeners=[part("l", ACTIVE, old)]), is_sure=True)
    assert (one.strangers, one.is_doubtful, one.old) == ([], False, ["/listeners/l"])
    asked = find(None, told(ACTIVE, old), is_sure=True, deletes_old=True)
    assert asked.strangers == whole.old == ["/loadbalancers/lb?cascade=true"]


STANDINGS = [ACTIVE, CREATED, UPDATED, DELETED, FAILED, None]


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_both_say_it_ends_and_nothing_is_pending(kind: str):
    """If Octavia applies the reports and Fairlead the deletions, then after a few checks nothing is pending."""
    for balancer, row, whole, one in product(STANDINGS, STANDINGS, (ACTIVE, FAILED, None), (ACTIVE, FAILED, None)):
        rows = {"lb": balancer, "x": row if balancer else None}
        there = {"lb": whole, "x": one if whole else None}
        for _ in range(4):
            found = find(_octavia(rows, kind), _fairlead(there, kind), is_sure=True)
            for each in (record for records in found.updates.values() for record in records):
                _write(rows, each)
            for path in found.strangers:
                there.update({"x": None} if kind in path or "/rules/" in path else {"lb": None, "x": None})
        last = find(_octavia(rows, kind), _fairlead(there, kind), is_sure=True)
        assert (last.updates, last.strangers) == ({}, []), (balancer, row, whole, one)
        assert not {each.provisioning for each in rows.values() if each} & PENDING, (balancer, row, whole, one)
        if rows["lb"] and there["lb"]:
            assert (rows["x"] or GONE) == (there["x"] or GONE), (balancer, row, whole, one)


def _octavia(rows: Mapping[str, Standing | None], kind: str) -> Known | None:
    balancer, row = rows["lb"], rows["x"]
    return None if balancer is None else known(balancer, **{kind: {"x": row} if row else {}})


def _fairlead(there: Mapping[str, Standing | None], kind: str) -> dict[str, Any] | None:
    whole, one = there["lb"], there["x"]
    return None if whole is None else told(whole, **{kind: [part("x", one, parent="p")] if one else []})


def _write(rows: dict[str, Standing | None], record: Mapping[str, str]) -> None:
    """Update a status as octavia-driver-agent does."""
    old = rows[record["id"]]
    assert old is not None
    provisioning = record.get("provisioning_status", old.provisioning)
    operating = record.get("operating_status", old.operating)
    rows[record["id"]] = None if provisioning == "DELETED" else Standing(provisioning, operating)


@pytest.mark.parametrize(("age", "goes"), [(TAKEN_BACK - ONE, False), (TAKEN_BACK + ONE, True)])
def test_what_is_only_prepared_goes_when_nobody_can_be_about_to_commit_it(age: timedelta, goes: bool):
    """An old prepared takeover is deleted, unlike an old load balancer that serves traffic."""
    found = find(None, {**told(ACTIVE, made=NOW - age), "takeover": "prepared"}, is_sure=True)
    assert found.strangers == (["/loadbalancers/lb?cascade=true"] if goes else [])
    assert found.old == []
