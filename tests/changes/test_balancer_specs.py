"""Load balancers with a declarative spec: the resulting objects, and refusals."""

from dataclasses import replace
from ipaddress import ip_address

import pytest

from fairlead.changes import balancer_checks
from fairlead.changes import balancer_spec_checks as checks
from fairlead.changes.balancer_spec_checks import AskedDescription, Probing
from fairlead.changes.balancer_specs import (
    NothingListens,
    delete_described,
    describe,
    described_on,
    find_described,
    replace_described,
)
from fairlead.changes.balancers import DescribedAsAWhole, replace_load_balancer
from fairlead.changes.refusal import Refusal
from fairlead.model.documents import sizes
from fairlead.model.documents.loadbalancer import ListenerProtocol, MonitorType, PoolProtocol, Use
from fairlead.model.documents.port_ranges import PortRange, one_port
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import at_once
from harness.changes.balancing import ASKER, after
from harness.changes.described_world import WORLD, asked, backend, balancer, described, port, ranges, refused
from harness.changes.world import refusal

WHOLE = asked(
    backend("a", "10.0.0.11", 8080),
    backend("b", "10.0.0.12", ranges((90, 90), (9080, 9081))),
    backend("idle", "10.0.0.13"),
    ports=(
        port("b", "a", ports=ranges((80, 80), (8080, 8081)), description="web"),
        port("a", ports=one_port(53), protocol=ListenerProtocol.UDP),
    ),
    description="of many",
    config=(("user.a", "b"),),
    weights={"a": 3},
)


def changed(snapshot: Snapshot, wanted: AskedDescription) -> Snapshot:
    numbers = iter(f"new-{number}" for number in range(100))
    return after(snapshot, replace_described(snapshot, ASKER, "lb", lambda: next(numbers), wanted))


def test_each_port_is_a_listener_with_a_pool_of_its_own():
    made = balancer(described(WORLD, WHOLE))
    web, dns = made.listeners
    assert [(each.protocol, each.ports, each.description) for each in made.listeners] == [
        (ListenerProtocol.TCP, ranges((80, 80), (8080, 8081)), "web"),
        (ListenerProtocol.UDP, one_port(53), ""),
    ]
    pools = {pool.id: [(each.name, each.port, each.weight) for each in pool.members] for pool in made.pools}
    both = ("a", 8080, 3)
    assert [pools[web.default_pool_id or ""], pools[dns.default_pool_id or ""]] == [
        [("b", ranges((90, 90), (9080, 9081)), 1), both],
        [both],
    ]
    assert (made.vip.network_id, made.vip.address, made.project_id) == ("uplink", ip_address("192.0.2.100"), "owner")
    assert {member.subnet_id for pool in made.pools for member in pool.members} == {"four"}
    assert all(pool.tables for pool in made.pools)


@pytest.mark.parametrize(
    "wanted",
    [
        WHOLE,
        asked(),
        asked(
            backend("a"),
            ports=(port("a"),),
            probing=Probing(type=MonitorType.TCP, delay=5, timeout=3, max_retries=2, max_retries_down=3),
        ),
        asked(backend("a"), ports=(port("a"),), use=Use.FORWARD, default_target=ip_address("10.0.0.12")),
    ],
)
def test_what_was_described_is_described_again(wanted: AskedDescription):
    assert describe(balancer(described(WORLD, wanted))) == wanted


def test_a_monitor_sees_that_a_port_is_open_of_whichever_protocol():
    probing = Probing(delay=10, timeout=30, max_retries=3, max_retries_down=3)
    made = balancer(described(WORLD, replace(WHOLE, probing=probing)))
    monitors = [pool.health_monitor for pool in made.pools]
    assert [monitor and monitor.type for monitor in monitors] == [MonitorType.TCP, MonitorType.UDP_CONNECT]


def test_what_is_for_no_port_of_a_forward_goes_to_its_default_target():
    made = balancer(described(WORLD, asked(use=Use.FORWARD, default_target=ip_address("10.0.0.12"))))
    ((listener,), (pool,)) = made.listeners, made.pools
    assert (listener.protocol, listener.ports, pool.protocol) == (ListenerProtocol.ANY, (), PoolProtocol.ANY)
    assert [member.address for member in pool.members] == [ip_address("10.0.0.12")]


def test_what_stays_in_a_new_description_stays_the_same_object():
    before = described(WORLD, WHOLE)
    with_c = replace(WHOLE, backends=(*WHOLE.backends, backend("c", "10.0.0.14")))
    after_ = changed(
        before,
        replace(with_c, ports=(WHOLE.ports[0], port("a", "c", ports=one_port(53), protocol=ListenerProtocol.UDP))),
    )
    old, new = balancer(before), balancer(after_)
    assert new.listeners is not old.listeners or new.listeners == old.listeners
    assert new.pools[0] is old.pools[0]
    assert new.pools[1].members[0] is old.pools[1].members[0]
    assert [each.ordinal for each in new.pools[1].members] == [0, 1]
    assert new.listeners[0] is old.listeners[0]


def test_who_says_the_same_again_changes_nothing():
    before = described(WORLD, WHOLE)
    assert at_once(replace_described(before, ASKER, "lb", lambda: "x", WHOLE)).puts == ()


def test_its_parts_are_changed_with_the_description_only():
    snapshot = described(WORLD, WHOLE)
    made = balancer(snapshot)
    fewer = replace(made, listeners=made.listeners[:1])
    assert refusal(lambda: at_once(replace_load_balancer(snapshot, ASKER, fewer))) == DescribedAsAWhole(
        balancer_id="lb"
    )
    named = after(snapshot, replace_load_balancer(snapshot, ASKER, replace(made, name="mine")))
    assert balancer(named).name == "mine"


def test_it_is_found_by_its_address_and_goes_with_its_port():
    snapshot = described(WORLD, WHOLE)
    network, address = snapshot.networks["net"], ip_address("192.0.2.100")
    assert find_described(snapshot, network, address, Use.LOAD_BALANCER) == balancer(snapshot)
    assert [each.id for each in described_on(snapshot, network, Use.LOAD_BALANCER)] == ["lb"]
    assert described_on(snapshot, network, Use.FORWARD) == []
    why = refusal(find_described, snapshot, network, address, Use.FORWARD)
    assert why == NothingListens(use=Use.FORWARD, address=address)
    gone = delete_described(snapshot, ASKER, "lb")
    assert [str(owner) for owner in gone.deletes] == ["loadbalancer/lb", f"port/{balancer(snapshot).vip.port_id}"]


A = backend("a")
BAD = PortRange(0, 5)
TOO_MANY = ranges((1, sizes.PORTS + 1))


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (asked(backend("a b")), checks.BadBackendName(index=0, name="a b")),
        (asked(A, backend("")), checks.BadBackendName(index=1, name="")),
        (asked(backend("a" * 256)), checks.BadBackendName(index=0, name="a" * 256)),
        (asked(A, A), checks.BackendTwice(index=1, name="a")),
        (asked(backend("a", "fd00::11")), checks.TargetOfOtherVersion(index=0, name="a")),
        (asked(backend("a", "10.0.1.1")), checks.TargetOutside(index=0, name="a")),
        (asked(backend("a", "10.0.0.255")), checks.TargetOfNobody(index=0, name="a", is_broadcast=True)),
        (asked(backend("a", "10.0.0.0")), checks.TargetOfNobody(index=0, name="a", is_broadcast=False)),
        (asked(A, backend("b", port=0)), checks.BadTargetPort(index=1, name="b", place=0, ports=PortRange(0, 0))),
        (asked(A, backend("b", port=(BAD,))), checks.BadTargetPort(index=1, name="b", place=0, ports=BAD)),
        (asked(A, weights={"b": 2}), checks.WeightOfNobody(name="b")),
        (asked(A, ports=(port("a", ports=()),)), checks.NoListenPort(index=0)),
        (asked(A, ports=(port("a", ports=(BAD,)),)), checks.BadListenPort(index=0, ports=BAD)),
        (
            asked(A, ports=(port("a"), port("a", ports=ranges((79, 81))))),
            checks.ListenPortTwice(index=1, protocol=ListenerProtocol.TCP, port=80),
        ),
        (asked(A, ports=(port(),)), checks.NoBackends(index=0)),
        (asked(A, ports=(port("a", "b"),)), checks.UnknownBackend(index=0, name="b")),
        (asked(A, ports=(port("a", "a"),)), checks.NamedTwice(index=0, name="a")),
        (
            asked(backend("a", port=ranges((1, 2))), ports=(port("a", ports=ranges((80, 82))),)),
            checks.CountMismatch(index=0, name="a"),
        ),
        (asked(A, ports=(port("a", ports=TOO_MANY),)), balancer_checks.TooManyPorts(most=sizes.PORTS)),
        (
            asked(*(backend(f"b{each}") for each in range(sizes.BACKENDS + 1))),
            checks.TooManyBackends(most=sizes.BACKENDS),
        ),
        (
            asked(
                *(backend(f"b{each}", f"10.0.0.{each + 2}") for each in range(6)),
                ports=(port(*(f"b{each}" for each in range(6)), ports=ranges((1, sizes.PORTS))),),
            ),
            balancer_checks.TooManyPorts(most=sizes.TARGETS, are_targets=True),
        ),
        (
            asked(A, use=Use.FORWARD, default_target=A.address),
            checks.SameAsDefault(index=0, name="a"),
        ),
        (
            asked(use=Use.FORWARD, default_target=ip_address("10.0.1.1")),
            checks.TargetOutside(index=0, name=None),
        ),
    ],
)
def test_what_is_wrong_with_a_description(wanted: AskedDescription, why: Refusal):
    assert refused(WORLD, wanted) == why
