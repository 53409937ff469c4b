"""Health monitors: the API stores and checks them for every provider; providers without support refuse them."""

from typing import Any

import pytest

from harness.front_ends.octavia_world import MONITOR, SUBNET, UNKNOWN_ID, OctaviaFrontEnd

WEB = {"type": "HTTP", "delay": 5, "timeout": 3, "max_retries": 2}


@pytest.fixture
def door(anything: OctaviaFrontEnd) -> OctaviaFrontEnd:
    """Return a site with a load balancer and one pool per transport protocol."""
    balancer = anything.create("lb", name="web", vip_subnet_id=SUBNET)["id"]
    anything.ids["lb"] = balancer
    for name, protocol in (("tcp", "TCP"), ("udp", "UDP"), ("sctp", "SCTP")):
        made = anything.create("pool", loadbalancer_id=balancer, protocol=protocol, lb_algorithm="ROUND_ROBIN")
        anything.ids[name] = made["id"]
    anything.ids["pool"] = anything.ids["tcp"]
    return anything


def test_monitor_from_create_to_delete(door: OctaviaFrontEnd):
    made = door.create("monitor", pool_id=door.ids["tcp"], **MONITOR)
    assert made == {
        "id": made["id"],
        "name": "",
        "type": "TCP",
        "delay": 5,
        "timeout": 3,
        "max_retries": 2,
        "max_retries_down": 3,
        "http_method": None,
        "url_path": None,
        "expected_codes": None,
        "http_version": None,
        "domain_name": None,
        "admin_state_up": True,
        "project_id": "demo",
        "tenant_id": "demo",
        "pools": [{"id": door.ids["tcp"]}],
        "provisioning_status": "PENDING_CREATE",
        "operating_status": "OFFLINE",
        "created_at": "2026-01-01T12:00:00",
        "updated_at": None,
        "tags": [],
    }
    assert door.show("monitor", made["id"])["updated_at"] == made["created_at"], "to Octavia creation ends by an update"
    assert door.show("pool", door.ids["tcp"])["healthmonitor_id"] == made["id"]
    assert "healthmonitor_id" not in door.show("pool", door.ids["udp"])
    words = (409, "This pool already has a health monitor")
    assert (
        door.call_error("POST", "/healthmonitors", {"healthmonitor": {"pool_id": door.ids["tcp"], **MONITOR}}) == words
    )
    changed = door.update("monitor", made["id"], delay=9, name="n", tags=["t"], max_retries_down=None)
    assert (changed["delay"], changed["name"], changed["tags"], changed["max_retries_down"]) == (9, "n", ["t"], 3)
    assert changed["updated_at"] == "2026-01-01T12:00:00"
    door.call_ok("DELETE", f"/healthmonitors/{made['id']}")
    assert door.call_error("GET", f"/healthmonitors/{made['id']}") == (404, f"Health Monitor {made['id']} not found.")
    assert "healthmonitor_id" not in door.show("pool", door.ids["tcp"])


def test_http_monitor_defaults_are_restored_by_null(door: OctaviaFrontEnd):
    made = door.create("monitor", pool_id=door.ids["tcp"], **WEB)
    assert (made["http_method"], made["url_path"], made["expected_codes"]) == ("GET", "/", "200")
    more = {"http_method": "HEAD", "url_path": "/x?a=b", "expected_codes": "200,204", "http_version": "1.1"}
    changed = door.update("monitor", made["id"], **more, domain_name="www.example.com")
    assert {name: changed[name] for name in more} == {**more, "http_version": 1.1}
    changed = door.update("monitor", made["id"], **dict.fromkeys([*more, "domain_name"]))
    assert [changed[name] for name in (*more, "domain_name")] == ["GET", "/", "200", None, None]


def test_monitor_lists_are_filtered_sorted_and_paged(door: OctaviaFrontEnd):
    first = door.create("monitor", pool_id=door.ids["tcp"], name="b", tags=["x"], **MONITOR)
    second = door.create("monitor", pool_id=door.ids["udp"], name="a", **{**MONITOR, "type": "UDP-CONNECT"})
    for query, expected in (
        ("", [first, second]),
        ("?sort=name", [second, first]),
        ("?type=UDP-CONNECT", [second]),
        (f"?pool_id={door.ids['tcp']}", [first]),
        (f"?id={second['id']}", [second]),
        ("?tags=x", [first]),
        ("?limit=1", [first]),
    ):
        found = door.call_ok("GET", f"/healthmonitors{query}")
        assert [item["id"] for item in found["healthmonitors"]] == [item["id"] for item in expected], query
        assert isinstance(found["healthmonitors_links"], list)
    found = door.call_ok("GET", f"/pools?healthmonitor_id={first['id']}")["pools"]
    assert [pool["id"] for pool in found] == [door.ids["tcp"]]
    assert len(door.call_ok("GET", "/pools?sort=healthmonitor_id:desc")["pools"]) == 3
    assert door.call_ok("GET", "/healthmonitors?fields=id&fields=type&type=TCP")["healthmonitors"] == [
        {"id": first["id"], "type": "TCP"}
    ]


ONLY = "The associated pool protocol is UDP, so only a UDP-CONNECT/SCTP/TCP/HTTP health monitor is supported."


@pytest.mark.parametrize(
    ("pool", "more", "status", "words"),
    [
        ("tcp", {"type": "UDP-CONNECT"}, 400, "The UDP-CONNECT type is only supported for pools of type UDP/SCTP."),
        ("tcp", {"type": "SCTP"}, 400, "The SCTP type is only supported for pools of type UDP/SCTP."),
        ("udp", {"type": "PING"}, 400, ONLY),
        ("sctp", {"type": "TLS-HELLO"}, 400, ONLY.replace("is UDP", "is SCTP")),
        ("udp", {"type": "UDP-CONNECT", "delay": 2}, 400, "The request delay value 2 should be larger than 3 for UDP-"),
        ("tcp", {"url_path": "/x"}, 400, "url_path is not a valid option for health monitors of type TCP"),
        ("tcp", {"http_method": "GET"}, 400, "http_method is not a valid option for health monitors of type TCP"),
        ("tcp", {"expected_codes": "200"}, 400, "expected_codes is not a valid option for health monitors of type TCP"),
        ("tcp", {**WEB, "domain_name": "a.b"}, 400, "'http_version' must be specified when 'domain_name' is provided."),
        (
            "tcp", {**WEB, "domain_name": "a.b", "http_version": 1.0}, 400,
            "http_version 1.0 is not a valid option for health monitors HTTP 1.1 domain name health check",
        ),
        ("tcp", {**WEB, "domain_name": "-a"}, 400, "Value: '-a'. Value should match the pattern"),
        ("tcp", {**WEB, "expected_codes": "20"}, 400, "expected_codes. Value: '20'."),
        ("tcp", {**WEB, "expected_codes": "200-299,300"}, 400, "expected_codes. Value: '200-299,300'."),
        ("tcp", {**WEB, "url_path": "x"}, 400, "url_path. Value: 'x'."),
        ("tcp", {**WEB, "http_method": "FETCH"}, 400, "Value should be one of: CONNECT, DELETE, GET"),
        ("tcp", {**WEB, "http_version": 2}, 400, "Value should be one of: 1.0, 1.1"),
        ("tcp", {"type": "GUESS"}, 400, "Value should be one of: HTTP, HTTPS, PING, SCTP, TCP, TLS-HELLO, UDP-CONNECT"),
        ("tcp", {"max_retries": 0}, 400, "Value should be greater or equal to 1"),
        ("tcp", {"max_retries_down": 11}, 400, "Value should be lower or equal to 10"),
        ("tcp", {"delay": -1}, 400, "Value should be greater or equal to 0"),
        ("tcp", {"timeout": None}, 400, "attribute timeout. Value: 'None'. Mandatory field missing."),
        ("tcp", {"colour": "red"}, 400, "Unknown attribute for argument health_monitor_.healthmonitor: colour"),
        ("tcp", {"pool_id": UNKNOWN_ID}, 404, f"Pool {UNKNOWN_ID} not found."),
    ],
)  # fmt: skip
def test_invalid_monitors_are_refused_with_the_reason(
    door: OctaviaFrontEnd, pool: str, more: dict[str, Any], status: int, words: str
):
    body = {"pool_id": door.ids[pool], **MONITOR, **more}
    code, told = door.call_error("POST", "/healthmonitors", {"healthmonitor": body})
    assert (code, words in told) == (status, True), told
    assert not door.server.model.snapshot.monitor_owner


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"type": "HTTP"}, "Unknown attribute for argument health_monitor_.healthmonitor: type"),
        ({"pool_id": UNKNOWN_ID}, "Unknown attribute for argument health_monitor_.healthmonitor: pool_id"),
        ({"delay": None}, "None is not a valid option for delay"),
        ({"url_path": "/"}, "url_path is not a valid option for health monitors of type TCP"),
    ],
)
def test_invalid_monitor_updates_are_refused(door: OctaviaFrontEnd, more: dict[str, Any], words: str):
    made = door.create("monitor", pool_id=door.ids["tcp"], **MONITOR)
    assert door.call_error("PUT", f"/healthmonitors/{made['id']}", {"healthmonitor": more}) == (400, words)


@pytest.mark.parametrize("kind", ["TCP", "PING", "TLS-HELLO"])
def test_domain_name_and_http_version_are_accepted_for_every_type(door: OctaviaFrontEnd, kind: str):
    """domain_name and http_version are stored and shown for every type of monitor, as in Octavia."""
    more = {"http_version": 1.1, "domain_name": "a.b"}
    made = door.create("monitor", pool_id=door.ids["tcp"], **{**MONITOR, "type": kind}, **more)
    assert {name: made[name] for name in more} == more
    changed = door.update("monitor", made["id"], **dict.fromkeys(more))
    assert {name: changed[name] for name in more} == dict.fromkeys(more)
    told = door.call_error("PUT", f"/healthmonitors/{made['id']}", {"healthmonitor": {"url_path": None}})
    assert told == (400, f"url_path is not a valid option for health monitors of type {kind}")


def test_tree_creates_a_pool_with_its_monitor(anything: OctaviaFrontEnd):
    tree = anything.create_tree()
    (app,) = (pool for pool in tree["pools"] if pool["name"] == "app")
    assert app["healthmonitor"]["type"] == "TCP"
    assert (anything.show("pool", app["id"])["healthmonitor_id"]) == app["healthmonitor"]["id"]
    assert not {"healthmonitor_id", "loadbalancers"} & app.keys()
    assert "pools" not in app["healthmonitor"]
    assert not [listener for listener in tree["listeners"] if "loadbalancers" in listener]
    assert {member["operating_status"] for member in app["members"]} == {"OFFLINE"}


def test_monitor_unsupported_by_the_provider_is_refused_and_not_written(ovn: OctaviaFrontEnd):
    balancer = ovn.create("lb", vip_subnet_id=SUBNET)["id"]
    pool = ovn.create("pool", loadbalancer_id=balancer, protocol="TCP", lb_algorithm="ROUND_ROBIN")["id"]
    told = ovn.call_error("POST", "/healthmonitors", {"healthmonitor": {"pool_id": pool, **WEB}})
    assert told == (501, "Provider 'fairlead' does not support a requested option: health monitors of type HTTP")
    assert "healthmonitor_id" not in ovn.show("pool", pool)
