"""Load balancers in LXD's form: create, show, update and delete, and the access of each caller."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead.api.lxd.bodies import MAX_FREE_KEYS
from fairlead.api.lxd.events import EventListener
from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.loadbalancer import DownMember, Locality, Transport
from fairlead.model.documents.sizes import MIN_UDP_CONNECT_DELAY_SECONDS
from fairlead.model.registry.facts import HEALTH
from fairlead.runtime.steps import run_to_completion
from harness.front_ends.lxd_balancing import BODY, FORWARDS, LBS, LISTEN, LISTEN6, backend, port, settle
from harness.front_ends.lxd_world import LxdFrontEnd

ONE = f"{LBS}/{LISTEN}"
SIX = {
    "backends": [backend("six", target_address="fd00::11")],
    "ports": [port("53", "six", protocol="udp"), port("53,80-82", "six")],
}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[LxdFrontEnd]:
    door = LxdFrontEnd(tmp_path)
    settle(door)
    yield door
    door.close()


def make(door: LxdFrontEnd, address: str = LISTEN, *, by: str = "root", where: str = LBS, **said: Any) -> str:
    """Create a load balancer and return its path."""
    answer = door.send("POST", where, {**BODY, "listen_address": address, **said}, by=by)
    assert answer.status_code == 201, answer.text
    return str(answer.headers["location"])


def test_load_balancer_is_created_shown_and_deleted(site: LxdFrontEnd):
    assert make(site) == ONE
    assert site.call_ok("GET", ONE) == {**BODY, "listen_address": LISTEN, "location": ""}
    assert site.call_ok("GET", LBS) == [ONE]
    assert site.call_ok("GET", f"{LBS}?recursion=1") == [site.call_ok("GET", ONE)]
    assert site.call_ok("DELETE", ONE) is None
    assert site.call_error("GET", ONE) == (404, "Network load balancer not found")
    assert site.call_error("DELETE", ONE) == (404, "Failed deleting load balancer: Network load balancer not found")
    assert site.call_error("PUT", ONE, BODY) == (404, "Failed updating load balancer: Network load balancer not found")
    assert not site.snapshot.load_balancers
    assert make(site) == ONE


def test_first_incus_request_without_backends_and_ports_is_accepted(site: LxdFrontEnd):
    """The first request of `incus network load-balancer create` (6.0.4)."""
    body = {"description": "", "config": {}, "backends": None, "ports": None, "listen_address": LISTEN}
    assert site.send("POST", LBS, body).status_code == 201
    empty = {"description": "", "config": {}, "backends": [], "ports": [], "listen_address": LISTEN, "location": ""}
    assert site.call_ok("GET", ONE) == empty


def test_load_balancer_is_found_by_any_spelling_of_its_address(site: LxdFrontEnd):
    path = make(site, "2001:DB8:2:0::0010", **SIX)
    assert path == f"{LBS}/{LISTEN6}"
    for form in (LISTEN6, "2001:DB8:2:0::10", "2001:0db8:0002::0010"):
        assert site.call_ok("GET", f"{LBS}/{form}")["listen_address"] == LISTEN6
    assert site.call_error("GET", f"{LBS}/nowhere") == (404, "Network load balancer not found")
    refused = site.call_error("POST", LBS, {**BODY, **SIX, "listen_address": "2001:db8:2::0:10"})
    text = "Failed creating load balancer: A load balancer for that listen address already exists"
    assert refused == (409, text)


def test_update_keeps_unchanged_listeners(site: LxdFrontEnd):
    make(site)
    (before,) = site.snapshot.load_balancers.values()
    more = port("443", "a")
    site.call_ok("PUT", ONE, {**BODY, "ports": [more, *BODY["ports"]]})
    (after,) = site.snapshot.load_balancers.values()
    assert [listener.port for listener in after.listeners] == [443, 80]
    assert after.listeners[1] is before.listeners[0]
    assert site.call_ok("GET", ONE)["ports"] == [more, *BODY["ports"]]


def test_load_balancer_update_with_outdated_etag_returns_412(site: LxdFrontEnd):
    make(site)
    tag = site.send("GET", ONE).headers["etag"]
    first, second = ({**BODY, "backends": [*BODY["backends"], backend(name)]} for name in ("c", "d"))
    site.call_ok("PUT", ONE, first, if_match=tag)
    status, told = site.call_error("PUT", ONE, second, if_match=tag)
    new = site.send("GET", ONE).headers["etag"]
    words = f"ETag doesn't match: {new} vs {tag}".replace('"', "")
    assert (status, told) == (412, f"Failed updating load balancer: {words}")
    assert site.call_error("PATCH", ONE, {"description": "x"}, if_match=tag)[0] == 412
    assert [each["name"] for each in site.call_ok("GET", ONE)["backends"]] == ["a", "b", "c"]
    site.call_ok("PUT", ONE, second, if_match=new)
    site.call_ok("PUT", ONE, BODY)  # a PUT without an ETag replaces unconditionally
    assert site.call_ok("GET", ONE)["backends"] == BODY["backends"]


def test_one_of_two_concurrent_updates_with_the_same_etag_returns_412(site: LxdFrontEnd):
    make(site)
    tag = site.send("GET", ONE).headers["etag"]
    bodies = [{**BODY, "backends": [*BODY["backends"], backend(name)]} for name in ("c", "d")]

    async def both() -> list[httpx.Response]:
        path = ONE.removeprefix("/1.0")
        puts = (site.server.client.put(path, json=body, headers={"if-match": tag}) for body in bodies)
        return list(await asyncio.gather(*puts))

    answers = site.run(both())
    assert sorted(answer.status_code for answer in answers) == [200, 412]
    won = bodies[[answer.status_code for answer in answers].index(200)]
    assert site.call_ok("GET", ONE)["backends"] == won["backends"]


def test_etag_changes_with_every_editable_field(site: LxdFrontEnd):
    make(site)
    tags = [site.send("GET", ONE).headers["etag"]]
    for said in ({"description": "x"}, {"config": {"user.a": "1"}}, {"ports": []}, {"backends": []}):
        site.call_ok("PATCH", ONE, said)
        tags.append(site.send("GET", ONE).headers["etag"])
    assert len(set(tags)) == 5
    site.call_ok("PUT", ONE, BODY)
    assert site.send("GET", ONE).headers["etag"] == tags[0]


def test_patch_keeps_absent_fields(site: LxdFrontEnd):
    make(site, description="old", config={"user.a": "1", "user.b": "2"})
    site.call_ok("PATCH", ONE, {"config": {"user.b": "", "user.c": "3"}})
    shown = {**BODY, "description": "old", "config": {"user.a": "1", "user.c": "3"}}
    assert site.call_ok("GET", ONE) == {**shown, "listen_address": LISTEN, "location": ""}
    site.call_ok("PATCH", ONE, {"description": "", "backends": None})
    assert site.call_ok("GET", ONE)["description"] == ""
    site.call_ok("PUT", ONE, {"description": "new"})
    assert site.call_ok("GET", ONE)["backends"] == site.call_ok("GET", ONE)["ports"] == []


@pytest.mark.parametrize("path", [ONE, "/1.0/networks/net", "/1.0/projects/default"])
def test_patch_cannot_exceed_the_maximum_number_of_options(site: LxdFrontEnd, path: str):
    make(site)
    site.call_ok("PATCH", path, {"config": {f"user.{number}": "x" for number in range(MAX_FREE_KEYS - 20)}})
    code, told = site.call_error("PATCH", path, {"config": {f"user.more.{number}": "x" for number in range(21)}})
    assert code == 400
    assert f"at most {MAX_FREE_KEYS} keys" in told
    site.call_ok("PATCH", path, {"config": {"user.0": "", "user.more": "x"}})
    site.call_ok("PATCH", path, {"description": "still"})


def test_options_set_pool_and_health_monitor_attributes(site: LxdFrontEnd):
    options = {
        "fairlead.affinity": "source-ip",
        "fairlead.algorithm": "source-ip",
        "fairlead.weight.a": "3",
        "healthcheck": "true",
        "healthcheck.interval": "7",
    }
    make(site, config=options)
    assert site.call_ok("GET", ONE)["config"] == options
    (balancer,) = site.snapshot.load_balancers.values()
    (pool,) = balancer.pools
    assert pool.hashes_source_only
    assert [member.weight for member in pool.members] == [3, 1]
    assert pool.health_monitor is not None
    assert (pool.health_monitor.delay, pool.health_monitor.timeout) == (7, 30)
    site.call_ok("PUT", ONE, {**BODY, "config": dict.fromkeys(options, "")})
    assert site.call_ok("GET", ONE)["config"] == {}
    (balancer,) = site.snapshot.load_balancers.values()
    assert balancer.pools[0].health_monitor is None


def test_udp_health_check_interval_has_a_higher_minimum_than_tcp(site: LxdFrontEnd):
    asked = {"healthcheck": "true", "healthcheck.interval": str(MIN_UDP_CONNECT_DELAY_SECONDS - 1)}
    said = 'Failed creating load balancer: Invalid value "2" for option "healthcheck.interval": must be at least 3'
    make(site, config={**asked, "healthcheck.interval": "1"})
    assert site.call_error("POST", LBS, {**BODY, **SIX, "listen_address": LISTEN6, "config": asked}) == (400, said)
    make(site, LISTEN6, **SIX, config={**asked, "healthcheck.interval": str(MIN_UDP_CONNECT_DELAY_SECONDS)})
    readme = Path(__file__).parents[3] / "README.md"
    (row,) = (each for each in readme.read_text().splitlines() if each.startswith("| `healthcheck.interval`"))
    assert f"at least {MIN_UDP_CONNECT_DELAY_SECONDS} with a UDP port" in row


def test_locality_option_is_accepted_at_an_internal_listen_address(site: LxdFrontEnd):
    near = {"fairlead.locality": "chassis"}
    inside = "/1.0/networks/net/load-balancers/10.0.0.77"
    make(site, "10.0.0.77", config=near)
    assert site.call_ok("GET", inside)["config"] == near
    (balancer,) = site.snapshot.load_balancers.values()
    assert [pool.locality for pool in balancer.pools] == [Locality.CHASSIS]
    site.call_ok("PATCH", inside, {"config": {"fairlead.locality": ""}})
    (balancer,) = site.snapshot.load_balancers.values()
    assert [pool.locality for pool in balancer.pools] == [Locality.NONE]


def test_down_member_reset_option_needs_agent_probing(site: LxdFrontEnd):
    inside, reset = "/1.0/networks/net/load-balancers/10.0.0.77", {"fairlead.down-member": "reset"}
    make(site, "10.0.0.77", config={"fairlead.down-member": "keep"})
    code, told = site.call_error("PATCH", inside, {"config": reset})
    assert (code, 'option "fairlead.down-member": must be one of: keep' in told) == (400, True)
    site.server.model.snapshot = replace(site.snapshot, agents_probe=True)
    site.call_ok("PATCH", inside, {"config": reset})
    assert site.call_ok("GET", inside)["config"] == reset
    (balancer,) = site.snapshot.load_balancers.values()
    assert [pool.down_member for pool in balancer.pools] == [DownMember.RESET]


def test_load_balancer_list_is_sorted_and_filtered(site: LxdFrontEnd):
    wanted = [f"198.51.100.{number}" for number in (9, 10, 100)]
    for address in reversed(wanted):
        make(site, address, description=f"ends in {address[-1]}")
    make(site, LISTEN6, **SIX)
    make(site, "10.0.0.100")
    make(site, "198.51.100.20", where=FORWARDS, ports=[])
    expected = ["10.0.0.100", *wanted, LISTEN6]
    assert site.call_ok("GET", LBS) == [f"{LBS}/{address}" for address in expected]
    query = "filter=description eq 'ends in 0'"
    assert site.call_ok("GET", f"{LBS}?{query}") == [f"{LBS}/{address}" for address in wanted[1:]]
    shown = site.call_ok("GET", f"{LBS}?recursion=1&{query}")
    assert [each["listen_address"] for each in shown] == wanted[1:]


@pytest.mark.parametrize(("any_address", "inside", "said"), [("0.0.0.0", "192.0.2.", {}), ("::", "2001:db8:2:", SIX)])
def test_load_balancer_on_the_wildcard_address_gets_an_allocated_address(
    site: LxdFrontEnd, any_address: str, inside: str, said: Any
):
    paths = {make(site, any_address, **said) for _ in range(3)}
    assert len(paths) == 3
    for path in paths:
        shown = site.call_ok("GET", path)
        assert path == f"{LBS}/{shown['listen_address']}"
        assert shown["listen_address"].startswith(inside)


def events_of(site: LxdFrontEnd, *requests: tuple[str, str, Any]) -> list[tuple[str, str]]:
    listener = EventListener(user="root", project=None)
    with site.events.register(listener):
        for method, path, body in requests:
            site.call_ok(method, path, body)
        told = [listener.queue.get_nowait().event for _ in range(listener.queue.qsize())]
    return [(event["metadata"]["action"], event["metadata"]["source"]) for event in told if event]


def test_lifecycle_event_is_sent_for_every_load_balancer_change(site: LxdFrontEnd):
    new = {**BODY, "listen_address": LISTEN}
    assert events_of(
        site,
        ("POST", LBS, new),
        ("PUT", ONE, BODY),
        ("PATCH", ONE, {"config": {"user.nothing": ""}}),
        ("PUT", ONE, {**BODY, "description": "x"}),
        ("DELETE", ONE, None),
    ) == [(f"network-load-balancer-{done}", ONE) for done in ("created", "updated", "deleted")]


def test_update_without_changes_writes_nothing(site: LxdFrontEnd):
    make(site)
    before = site.snapshot
    site.call_ok("PUT", ONE, {**BODY, "description": " ", "config": {"user.a": ""}})
    site.call_ok("PATCH", ONE, {})
    assert site.snapshot is before


def test_uplink_network_does_not_support_load_balancers(site: LxdFrontEnd):
    path = "/1.0/networks/UPLINK/load-balancers"
    body = {**BODY, "listen_address": LISTEN}
    told = (400, 'Network driver "physical" does not support load balancers')
    assert site.call_error("POST", path, body) == told
    for method, where in (("GET", path), ("GET", f"{path}/{LISTEN}"), ("DELETE", f"{path}/{LISTEN}")):
        assert site.call_error(method, where) == told
    assert site.call_error("PUT", f"{path}/{LISTEN}", BODY) == told
    assert site.call_error("GET", f"{path}/{LISTEN}/state") == told


def test_load_balancer_requests_on_a_missing_network_return_404(site: LxdFrontEnd):
    for method, path in (
        ("GET", ""),
        ("POST", ""),
        ("GET", f"/{LISTEN}"),
        ("PUT", f"/{LISTEN}"),
        ("DELETE", f"/{LISTEN}"),
    ):
        body = BODY if method in ("POST", "PUT") else None
        refused = site.call_error(method, f"/1.0/networks/nowhere/load-balancers{path}", body)
        assert refused == (404, "Failed loading network: Network not found")


def test_tenants_access_only_their_own_load_balancers(site: LxdFrontEnd):
    """Network `other` belongs to ann's project; bob is in another project; root may name either project."""
    where = "/1.0/networks/other/load-balancers"
    said = {"backends": [backend("a", target_address="10.0.1.5")], "ports": [port("80", "a")]}
    make(site)
    path = make(site, "198.51.100.30", by="ann", where=where, **said)
    assert path == f"{where}/198.51.100.30?project=one"
    assert site.call_ok("GET", where, by="ann") == [f"{where}/198.51.100.30"]
    assert site.call_ok("GET", f"{where}?project=one") == [f"{where}/198.51.100.30"]
    site.make_project("two")
    for who in ("ann", "bob"):
        assert site.call_error("GET", ONE, by=who) == (404, "Failed loading network: Network not found")
    assert site.call_error("GET", f"{where}/198.51.100.30?project=one", by="bob")[0] == 403
    assert site.call_error("DELETE", path, by="bob")[0] == 403
    assert site.call_error("POST", where, {**BODY, **said, "listen_address": LISTEN}, by="ann") == (
        409,
        f'Failed creating load balancer: Load balancer listen address "{LISTEN}" overlaps with another network or NIC',
    )
    assert site.call_error("DELETE", path.split("?")[0], by="rita") == (403, "not authorized")
    site.call_ok("DELETE", path, by="ann")


def observe(site: LxdFrontEnd, **seen: Health) -> None:
    """Report health by machine and port, such as m11_8080."""
    news = {}
    for where, health in seen.items():
        number, port_number = where.removeprefix("m").split("_")
        port_id, address = f"machine{number}", site.snapshot.ports[f"machine{number}"].fixed_ips[0].address
        news[Endpoint(port_id, address, int(port_number), Transport.TCP)] = health
    run_to_completion(site.server.model.observe(HEALTH, news))


def test_state_lists_backend_health_by_port(site: LxdFrontEnd):
    backends = [
        *BODY["backends"],
        backend("gone", target_address="10.0.0.99", target_port="1-2"),
        backend("idle", target_address="10.0.0.13"),
    ]
    ports = [port("80,443", "a", "b", "gone"), port("53", "a", protocol="udp")]
    path = make(site, config={"healthcheck": "true"}, backends=backends, ports=ports)
    observe(site, m11_80=Health.ONLINE, m11_443=Health.ERROR, m12_8080=Health.UNPLUGGED)
    told = site.call_ok("GET", f"{path}/state")["backend_health"]
    assert told == {
        "a": {
            "address": "10.0.0.11",
            "ports": [
                {"protocol": "tcp", "port": 80, "status": "online"},
                {"protocol": "tcp", "port": 443, "status": "offline"},
                {"protocol": "udp", "port": 53, "status": "unknown"},
            ],
        },
        "b": {"address": "10.0.0.12", "ports": [{"protocol": "tcp", "port": 8080, "status": "offline"}]},
        "gone": {
            "address": "10.0.0.99",
            "ports": [
                {"protocol": "tcp", "port": 1, "status": "error"},
                {"protocol": "tcp", "port": 2, "status": "error"},
            ],
        },
    }
    site.call_ok("PATCH", path, {"config": {"healthcheck": ""}})
    assert site.call_ok("GET", f"{path}/state") == {"backend_health": None, "status": "Created"}
    assert site.call_error("GET", f"{LBS}/198.51.100.77/state") == (404, "Network load balancer not found")
