"""Load balancers with a declarative spec: the resulting objects, and refusals."""

from dataclasses import replace
from ipaddress import ip_address

import pytest

from fairlead.changes import balancer_checks
from fairlead.changes import balancer_spec_checks as checks
from fairlead.changes.balancer_spec_checks import BalancerSpec, MonitorSpec
from fairlead.changes.balancer_specs import (
    NoBalancerAtAddress,
    delete_declarative,
    describe,
    find_declarative,
    list_declarative,
    replace_from_spec,
)
from fairlead.changes.balancers import BalancerIsDeclarative, replace_load_balancer
from fairlead.changes.refusal import Refusal
from fairlead.model.documents import sizes
from fairlead.model.documents.loadbalancer import ListenerProtocol, MonitorType, PoolProtocol, SpecPurpose
from fairlead.model.documents.port_ranges import PortRange, one_port
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import run_to_completion
from harness.changes.balancing import ASKER, apply_work
from harness.changes.declared_balancers import (
    WORLD,
    backend,
    balancer,
    declaration_error,
    declare_balancer,
    port,
    port_requests,
    ranges,
)
from harness.changes.world import refusal

WHOLE = port_requests(
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


def changed(snapshot: Snapshot, wanted: BalancerSpec) -> Snapshot:
    numbers = iter(f"new-{number}" for number in range(100))
    return apply_work(snapshot, replace_from_spec(snapshot, ASKER, "lb", lambda: next(numbers), wanted))


def test_each_port_becomes_a_listener_with_a_separate_pool():
    made = balancer(declare_balancer(WORLD, WHOLE))
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
        port_requests(),
        port_requests(
            backend("a"),
            ports=(port("a"),),
            probing=MonitorSpec(type=MonitorType.TCP, delay=5, timeout=3, max_retries=2, max_retries_down=3),
        ),
        port_requests(
            backend("a"), ports=(port("a"),), use=SpecPurpose.FORWARD, default_target=ip_address("10.0.0.12")
        ),
    ],
)
def test_spec_is_read_back_as_written(wanted: BalancerSpec):
    assert describe(balancer(declare_balancer(WORLD, wanted))) == wanted


def test_probing_uses_a_monitor_type_that_fits_the_protocol():
    probing = MonitorSpec(delay=10, timeout=30, max_retries=3, max_retries_down=3)
    made = balancer(declare_balancer(WORLD, replace(WHOLE, probing=probing)))
    monitors = [pool.health_monitor for pool in made.pools]
    assert [monitor and monitor.type for monitor in monitors] == [MonitorType.TCP, MonitorType.UDP_CONNECT]


def test_default_target_of_a_forward_becomes_a_listener_for_any_protocol():
    made = balancer(
        declare_balancer(WORLD, port_requests(use=SpecPurpose.FORWARD, default_target=ip_address("10.0.0.12")))
    )
    ((listener,), (pool,)) = made.listeners, made.pools
    assert (listener.protocol, listener.ports, pool.protocol) == (ListenerProtocol.ANY, (), PoolProtocol.ANY)
    assert [member.address for member in pool.members] == [ip_address("10.0.0.12")]


def test_spec_update_keeps_unchanged_objects():
    before = declare_balancer(WORLD, WHOLE)
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


def test_identical_spec_update_changes_nothing():
    before = declare_balancer(WORLD, WHOLE)
    assert run_to_completion(replace_from_spec(before, ASKER, "lb", lambda: "x", WHOLE)).puts == ()


def test_parts_of_a_declarative_load_balancer_change_only_by_its_spec():
    snapshot = declare_balancer(WORLD, WHOLE)
    made = balancer(snapshot)
    fewer = replace(made, listeners=made.listeners[:1])
    assert refusal(lambda: run_to_completion(replace_load_balancer(snapshot, ASKER, fewer))) == BalancerIsDeclarative(
        balancer_id="lb"
    )
    named = apply_work(snapshot, replace_load_balancer(snapshot, ASKER, replace(made, name="mine")))
    assert balancer(named).name == "mine"


def test_declarative_balancer_is_found_by_address_and_deleted_with_its_port():
    snapshot = declare_balancer(WORLD, WHOLE)
    network, address = snapshot.networks["net"], ip_address("192.0.2.100")
    assert find_declarative(snapshot, network, address, SpecPurpose.LOAD_BALANCER) == balancer(snapshot)
    assert [each.id for each in list_declarative(snapshot, network, SpecPurpose.LOAD_BALANCER)] == ["lb"]
    assert list_declarative(snapshot, network, SpecPurpose.FORWARD) == []
    why = refusal(find_declarative, snapshot, network, address, SpecPurpose.FORWARD)
    assert why == NoBalancerAtAddress(use=SpecPurpose.FORWARD, address=address)
    gone = delete_declarative(snapshot, ASKER, "lb")
    assert [str(owner) for owner in gone.deletes] == ["loadbalancer/lb", f"port/{balancer(snapshot).vip.port_id}"]


A = backend("a")
BAD = PortRange(0, 5)
TOO_MANY = ranges((1, sizes.MAX_PORTS + 1))


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (port_requests(backend("a b")), checks.BadBackendName(index=0, name="a b")),
        (port_requests(A, backend("")), checks.BadBackendName(index=1, name="")),
        (port_requests(backend("a" * 256)), checks.BadBackendName(index=0, name="a" * 256)),
        (port_requests(A, A), checks.DuplicateBackend(index=1, name="a")),
        (port_requests(backend("a", "fd00::11")), checks.TargetIpVersionMismatch(index=0, name="a")),
        (port_requests(backend("a", "10.0.1.1")), checks.TargetOutsideNetwork(index=0, name="a")),
        (port_requests(backend("a", "10.0.0.255")), checks.TargetNotUsable(index=0, name="a", is_broadcast=True)),
        (port_requests(backend("a", "10.0.0.0")), checks.TargetNotUsable(index=0, name="a", is_broadcast=False)),
        (
            port_requests(A, backend("b", port=0)),
            checks.BadTargetPort(index=1, name="b", place=0, ports=PortRange(0, 0)),
        ),
        (port_requests(A, backend("b", port=(BAD,))), checks.BadTargetPort(index=1, name="b", place=0, ports=BAD)),
        (port_requests(A, weights={"b": 2}), checks.WeightForUnknownBackend(name="b")),
        (port_requests(A, ports=(port("a", ports=()),)), checks.NoListenPort(index=0)),
        (port_requests(A, ports=(port("a", ports=(BAD,)),)), checks.BadListenPort(index=0, ports=BAD)),
        (
            port_requests(A, ports=(port("a"), port("a", ports=ranges((79, 81))))),
            checks.DuplicateListenPort(index=1, protocol=ListenerProtocol.TCP, port=80),
        ),
        (port_requests(A, ports=(port(),)), checks.NoBackends(index=0)),
        (port_requests(A, ports=(port("a", "b"),)), checks.UnknownBackend(index=0, name="b")),
        (port_requests(A, ports=(port("a", "a"),)), checks.DuplicateReference(index=0, name="a")),
        (
            port_requests(backend("a", port=ranges((1, 2))), ports=(port("a", ports=ranges((80, 82))),)),
            checks.CountMismatch(index=0, name="a"),
        ),
        (port_requests(A, ports=(port("a", ports=TOO_MANY),)), balancer_checks.TooManyPorts(most=sizes.MAX_PORTS)),
        (
            port_requests(*(backend(f"b{each}") for each in range(sizes.MAX_BACKENDS + 1))),
            checks.TooManyBackends(most=sizes.MAX_BACKENDS),
        ),
        (
            port_requests(
                *(backend(f"b{each}", f"10.0.0.{each + 2}") for each in range(6)),
                ports=(port(*(f"b{each}" for each in range(6)), ports=ranges((1, sizes.MAX_PORTS))),),
            ),
            balancer_checks.TooManyPorts(most=sizes.MAX_ENDPOINTS, are_targets=True),
        ),
        (
            port_requests(A, use=SpecPurpose.FORWARD, default_target=A.address),
            checks.SameAsDefault(index=0, name="a"),
        ),
        (
            port_requests(use=SpecPurpose.FORWARD, default_target=ip_address("10.0.1.1")),
            checks.TargetOutsideNetwork(index=0, name=None),
        ),
    ],
)
def test_invalid_specs_are_refused_with_the_reason(wanted: BalancerSpec, why: Refusal):
    assert declaration_error(WORLD, wanted) == why
