"""Forwards in LXD's form: a listen address whose ports each lead to one machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.api.lxd.events import EventListener
from fairlead.model.documents.loadbalancer import ListenerProtocol
from harness.front_ends.lxd_balancing import FORWARD, FORWARDS, LBS, LISTEN, LISTEN6, settle
from harness.front_ends.lxd_world import LxdFrontEnd

ONE = f"{FORWARDS}/{LISTEN}"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[LxdFrontEnd]:
    door = LxdFrontEnd(tmp_path)
    settle(door)
    yield door
    door.close()


def make(door: LxdFrontEnd, address: str = LISTEN, **said: Any) -> str:
    """Create a forward and return its path."""
    answer = door.send("POST", FORWARDS, {**FORWARD, "listen_address": address, **said})
    assert answer.status_code == 201, answer.text
    return str(answer.headers["location"])


def test_forward_is_created_shown_changed_and_deleted(site: LxdFrontEnd):
    listener = EventListener(user="root", project=None)
    with site.events.register(listener):
        assert make(site) == ONE
        shown = {**FORWARD, "listen_address": LISTEN, "location": ""}
        assert site.call_ok("GET", ONE) == shown
        assert site.call_ok("GET", FORWARDS) == [ONE]
        assert site.call_ok("GET", f"{FORWARDS}?recursion=1") == [shown]
        site.call_ok("PUT", ONE, FORWARD)
        site.call_ok("PATCH", ONE, {"description": "mail", "config": {"user.a": "1"}})
        assert site.call_ok("GET", ONE) == {**shown, "description": "mail", "config": {"user.a": "1"}}
        site.call_ok("DELETE", ONE)
        told = [listener.queue.get_nowait().event for _ in range(listener.queue.qsize())]
    done = [(event["metadata"]["action"], event["metadata"]["source"]) for event in told if event]
    assert done == [(f"network-forward-{verb}", ONE) for verb in ("created", "updated", "deleted")]
    assert site.call_error("GET", ONE) == (404, "Network forward not found")
    assert site.call_error("DELETE", ONE) == (404, "Failed deleting forward: Network forward not found")
    assert not site.snapshot.load_balancers


def test_forward_ports_have_separate_target_addresses(site: LxdFrontEnd):
    ports = [
        {
            "description": "web",
            "protocol": "tcp",
            "listen_port": "80,443",
            "target_port": "8080-8081",
            "target_address": "fd00::11",
        },
        {"description": "", "protocol": "udp", "listen_port": "53", "target_port": "", "target_address": "fd00::12"},
    ]
    path = make(site, "2001:DB8:2::10", ports=ports, config={"target_address": "FD00::13"})
    assert path == f"{FORWARDS}/{LISTEN6}"
    shown = site.call_ok("GET", f"{FORWARDS}/2001:0db8:2::0010")
    assert (shown["ports"], shown["config"]) == (ports, {"target_address": "fd00::13"})
    (balancer,) = site.snapshot.load_balancers.values()
    protocols = [listener.protocol for listener in balancer.listeners]
    assert protocols == [ListenerProtocol.TCP, ListenerProtocol.UDP, ListenerProtocol.ANY]
    assert [str(member.address) for pool in balancer.pools for member in pool.members] == [
        *("fd00::11", "fd00::12", "fd00::13"),
    ]


def test_default_target_of_a_forward_can_be_removed(site: LxdFrontEnd):
    path = make(site, ports=None, config={"target_address": "10.0.0.13"})
    assert site.call_ok("GET", path)["ports"] == []
    site.call_ok("PATCH", path, {"config": {"target_address": ""}})
    assert site.call_ok("GET", path)["config"] == {}
    (balancer,) = site.snapshot.load_balancers.values()
    assert balancer.listeners == balancer.pools == ()


def test_forward_update_with_outdated_etag_returns_412(site: LxdFrontEnd):
    make(site)
    tag = site.send("GET", ONE).headers["etag"]
    site.call_ok("PATCH", ONE, {"description": "first"}, if_match=tag)
    status, told = site.call_error("PUT", ONE, FORWARD, if_match=tag)
    assert (status, told.startswith("Failed updating forward: ETag doesn't match: ")) == (412, True)


def test_forward_on_the_wildcard_address_gets_an_allocated_address(site: LxdFrontEnd):
    assert make(site, "0.0.0.0").startswith(f"{FORWARDS}/192.0.2.")


def test_forwards_and_load_balancers_are_separate_collections(site: LxdFrontEnd):
    make(site)
    site.call_ok("POST", LBS, {"listen_address": "198.51.100.11"})
    assert site.call_ok("GET", LBS) == [f"{LBS}/198.51.100.11"]
    assert site.call_error("GET", f"{LBS}/{LISTEN}") == (404, "Network load balancer not found")
    assert site.call_error("GET", f"{FORWARDS}/198.51.100.11") == (404, "Network forward not found")
    uplink = {"listen_address": "198.51.100.12"}
    told = (400, 'Network driver "physical" does not support forwards')
    assert site.call_error("POST", "/1.0/networks/UPLINK/forwards", uplink) == told
