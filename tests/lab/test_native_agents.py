"""End to end on plain hosts: stock clients create load balancers, agents write them into kernels, FRR announces."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlencode

import pytest

from fairlead.lab import Protocol, Traffic
from fairlead.lab.errors import LabError
from fairlead.lab.load import Load, LoadResult
from harness.addresses import holds_address
from harness.lab.counters import read_both_counters
from harness.lab.native_hosts import HOSTS, machine
from harness.lab.native_served import (
    CLIENTS,
    MEMBER_PORT,
    MEMBERS,
    NUMBER,
    PORT,
    NativeSite,
    await_announced,
    await_slot_shares,
    balancer,
    hold_connections,
    record_changes,
    remove,
    restart_agent,
    served,
    state,
    targets,
    vips,
)
from harness.waiting import wait_equal, wait_until

pytestmark = pytest.mark.lab
__all__ = ["served"]

MONITOR = {"type": "TCP", "delay": 1, "timeout": 1, "max_retries": 1, "max_retries_down": 2}


WAYS = [(client, protocol) for client in CLIENTS for protocol in Protocol]


def await_all(served: NativeSite, made: Any, *names: str) -> None:
    """Wait until exactly these members answer all clients, and their hosts announce the VIPs."""
    await_announced(served, made, *(MEMBERS[name] for name in names))
    for vip in vips(made):
        for client, protocol in WAYS:
            wait_equal(lambda c=client, v=vip, p=protocol: served.answers(c, v, p), frozenset(names))


def pools(served: NativeSite, made: Any) -> list[str]:
    return [each.id for each in served.cloud.load_balancer.pools(loadbalancer_id=made.id)]


def test_load_balancer_changes_move_no_flow_of_remaining_members(served: NativeSite) -> None:
    api = served.cloud.load_balancer
    with balancer(served, served.members("n1", "n2")) as made:
        await_all(served, made, "n1", "n2")
        steady = Load(targets=targets(made), rate=40, count=12000, held=80, seconds=300, period=0.3, timeout=30)
        with served.lab.load("far", steady) as load:
            wait_until(
                lambda: hold_connections(served), "flows are held", is_enough=lambda found: found >= steady.held // 2
            )
            for pool in pools(served, made):
                for body in served.members("n3"):
                    api.create_member(pool, **body)
                    served.settle(made.id)
            await_all(served, made, "n1", "n2", "n3")
            for pool in pools(served, made):
                for member in api.members(pool):
                    if member.name == "n3":
                        api.update_member(member, pool, weight=3)
                        served.settle(made.id)
            for pool in pools(served, made):
                for member in api.members(pool):
                    if member.name == "n3":
                        api.delete_member(member, pool)
                        served.settle(made.id)
            await_all(served, made, "n1", "n2")
            seen = load.stop()
        left = [(each.target.protocol, each.member) for each in seen.failed]
        assert set(left) <= {(Protocol.UDP, "n3")}, "only datagrams of the member that is removed, if it had got a flow"
        assert sum(seen.held.values()) == steady.held - len(left)
    for host in HOSTS:
        wait_until(lambda h=host: "203.0.113." not in served.ruleset(h), "nothing is left of it")


@contextmanager
def holding(served: NativeSite, made: Any, each: int = 48) -> Iterator[Callable[[], Sequence[LoadResult]]]:
    """Continuous flows of each client. The yielded function ends them and returns their results."""
    steady = Load(targets=targets(made), rate=10, count=3000, held=each, seconds=300, period=0.3, timeout=30)
    before = {client: hold_connections(served, client) for client in CLIENTS}
    with ExitStack() as stack:
        loads = [stack.enter_context(served.lab.load(client, steady)) for client in CLIENTS]
        for client in CLIENTS:
            there = before[client] + each // 2  # the UDP flows have been answered by then
            wait_until(lambda c=client, t=there: hold_connections(served, c) >= t, f"{client} holds its flows")
        yield lambda: [load.stop() for load in loads]


def test_member_changes_break_no_tcp_connection_and_no_flow_of_other_members(
    served: NativeSite,
) -> None:
    """TCP connections to the member continue in every state, UDP flows while it drains; flows to others stay there."""
    api, even = served.cloud.load_balancer, dict.fromkeys(MEMBERS, 1)

    def change(what: Callable[[str, Any], Any]) -> None:
        """Change the member in each pool that has it."""
        for pool in pools(served, made):
            for member in [each for each in api.members(pool) if each.name == "n3"]:
                what(pool, member)
                served.settle(made.id)

    def update(**attributes: Any) -> None:
        change(lambda pool, member: api.update_member(member, pool, **attributes))

    with balancer(served, served.members("n1", "n2", "n3")) as made, ExitStack() as stack:
        await_slot_shares(served, made, **even)
        seen, meanwhile = [stack.enter_context(holding(served, made))], []
        for without, again in (
            ({"weight": 0}, {"weight": 1}),
            ({"is_admin_state_up": False}, {"is_admin_state_up": True}),
        ):
            update(**without)
            await_slot_shares(served, made, n1=1, n2=1)
            meanwhile.append(stack.enter_context(holding(served, made, 24)))
            update(**again)
            await_slot_shares(served, made, **even)
        update(weight=3)
        await_slot_shares(served, made, n1=1, n2=1, n3=3)
        change(lambda pool, member: api.delete_member(member, pool))
        await_slot_shares(served, made, n1=1, n2=1)
        meanwhile.append(stack.enter_context(holding(served, made, 24)))
        for pool in pools(served, made):
            for body in served.members("n3"):
                api.create_member(pool, **body)
                served.settle(made.id)
        await_slot_shares(served, made, **even)
        for others in meanwhile:
            for found in others():
                assert found.failed == []
                assert found.held["n1"] + found.held["n2"] == 24
        for end in seen:
            for found in end():
                moved = [(each.target.protocol, each.member) for each in found.failed]
                assert set(moved) == {(Protocol.UDP, "n3")}, "a sender that never pauses leaves it when it is disabled"
                assert (set(found.held), sum(found.held.values())) == ({"n1", "n2", "n3"}, 48 - len(moved))


def test_trace_of_a_flow_names_the_member_and_host_that_serve_the_flow(served: NativeSite) -> None:
    """The trace agrees with the kernels of all hosts and of a client."""
    first = 30_000
    with balancer(served, served.members("n1", "n2", "n3")) as made:
        await_all(served, made, "n1", "n2", "n3")
        for client in CLIENTS:
            for vip, address in zip(vips(made), served.lab.workload(client).addresses, strict=True):
                for protocol in Protocol:
                    asked = Traffic(to=vip, port=PORT, protocol=protocol, count=40, source_port_from=first)
                    answered = served.lab.traffic(client, asked).keys
                    assert len(answered) == 40
                    for port, member in answered.items():
                        assert traced(served, (address, port), (vip, PORT), protocol) == (member, MEMBERS[member])


def traced(served: NativeSite, client: tuple[str, int], to: tuple[str, int], protocol: Protocol) -> tuple[str, str]:
    words = {"client": endpoint(*client), "to": endpoint(*to), "protocol": protocol.value}
    found = served.operator.request("GET", f"/operator/flow?{urlencode(words)}")
    return found["member"]["name"], found["chassis"]


def endpoint(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def test_agent_restart_loses_no_packet_and_writes_nothing(served: NativeSite) -> None:
    """Each datagram that clients send arrives at a member, and no connection breaks.

    Writes on a host are limited to another load balancer, which proves that the host's agent works.
    """
    with balancer(served, served.members("n1", "n2", "n3")) as made, ExitStack() as stack:
        await_announced(served, made, *HOSTS)
        lost = lost_datagrams(served)
        steady = Load(targets=targets(made), rate=20, count=6000, held=40, seconds=300, period=0.1, timeout=30)
        loads = [stack.enter_context(served.lab.load(client, steady)) for client in CLIENTS]
        act_on_each(served, made, lambda _: None)  # until each host counts the flows that it forwards
        before = {host: served.ruleset(host).splitlines() for host in HOSTS}
        act_on_each(served, made, lambda host: restart_agent(served, host))
        for seen in [load.stop() for load in loads]:
            assert seen.failed == []
            assert sum(seen.held.values()) == steady.held
        wait_equal(lambda: lost_datagrams(served), lost)

        def changed() -> list[str]:
            now = {host: served.ruleset(host).splitlines() for host in HOSTS}
            return [line for host in HOSTS for line in {*before[host]} ^ {*now[host]}]

        wait_equal(changed, [])


def act_on_each(served: NativeSite, made: Any, act: Callable[[str], None]) -> None:
    """Call `act` for each host, and assert that only another load balancer is written there."""
    for host in HOSTS:
        with record_changes(served.lab, host) as lines:
            act(host)
            with balancer(served, served.members("n1", "n2", "n3")) as another:
                await_slot_shares(served, another, n1=1, n2=1, n3=1)
        heard = "\n".join(lines)
        assert [vip for vip in vips(another) if not holds_address(heard, vip)] == [], "all is heard"

        def is_of_another(line: str) -> bool:
            return bool(OF_VIPS.search(line)) and not any(holds_address(line, vip) for vip in vips(made))

        its = [line for line in lines if not is_of_another(line)]
        assert its == [], host


OF_VIPS = re.compile(r"203\.0\.113\.|2001:db8:f:")


def lost_datagrams(served: NativeSite) -> int:
    """Number of UDP datagrams sent by clients and not received by members, by the kernels of both."""

    def total(names: Iterable[str], *counters: str) -> int:
        said = [served.lab.exec(name, ("cat", "/proc/net/snmp", "/proc/net/snmp6")) for name in names]
        return sum(read_both_counters(text, "Udp", counter) for text in said for counter in counters)

    return total(CLIENTS, "OutDatagrams") - total(MEMBERS, "InDatagrams", "NoPorts", "InErrors")


def test_recovered_member_takes_no_flow_that_began_during_its_failure(
    served: NativeSite,
) -> None:
    with balancer(served, served.members("n1", "n2", "n3"), MONITOR) as made:
        await_all(served, made, "n1", "n2", "n3")
        steady = Load(targets=targets(made), rate=1, count=400, held=60, seconds=300, period=0.3, timeout=30)
        with ExitStack() as stack:
            with without(served, "n3"):
                await_all(served, made, "n1", "n2")
                load = stack.enter_context(served.lab.load("far", steady))
                wait_until(
                    lambda: hold_connections(served),
                    "others get flows",
                    is_enough=lambda found: found >= steady.held // 2,
                )
            await_all(served, made, "n1", "n2", "n3")
            seen = load.stop()
        assert seen.failed == []
        assert sum(seen.held[each] for each in ("n1", "n2")) == steady.held


@contextmanager
def without(served: NativeSite, name: str) -> Iterator[None]:
    """Remove the machine in the context."""
    served.lab.remove_workload(name)
    try:
        yield
    finally:
        served.lab.add_workload(machine(served.lab, name, MEMBERS[name], NUMBER, MEMBER_PORT))


@pytest.mark.extended
def test_draining_host_keeps_open_flows_and_gets_no_new_ones(served: NativeSite) -> None:
    with balancer(served, served.members("n1", "n2", "n3")) as made:
        await_all(served, made, "n1", "n2", "n3")
        steady = Load(targets=targets(made), rate=1, count=400, held=60, seconds=300, period=0.3, timeout=30)
        with served.lab.load("far", steady) as load:
            wait_until(
                lambda: hold_connections(served), "flows are held", is_enough=lambda found: found >= steady.held // 2
            )
            served.operator.request("PUT", "/operator/hosts/host3/draining", None)
            await_all(served, made, "n1", "n2")
            with served.lab.load("far", steady) as meanwhile:
                wait_until(
                    lambda: hold_connections(served), "others get flows", is_enough=lambda found: found >= steady.held
                )
                served.operator.request("DELETE", "/operator/hosts/host3/draining", None)
                await_all(served, made, "n1", "n2", "n3")
                others = meanwhile.stop()
            seen = load.stop()
        assert (seen.failed, others.failed) == ([], [])
        assert seen.held["n3"] > 0
        assert sum(others.held[each] for each in ("n1", "n2")) == steady.held


@pytest.mark.extended
def test_remove_command_cleans_up_the_state_of_a_stopped_agent(served: NativeSite) -> None:
    with balancer(served, served.members("n1", "n2", "n3")) as made:
        await_all(served, made, "n1", "n2", "n3")
        with pytest.raises(LabError, match="an agent runs on this host"):
            remove(served.lab, "host2")
        served.agents["host2"].stop()
        assert state(served.lab, "host2") != served.before
        remove(served.lab, "host2")
        theirs = [line for line in state(served.lab, "host2") if line not in served.before]
        assert [line for line in theirs if " proto bgp " not in line] == []
        assert {line.split()[0] for line in theirs} == {*vips(made)}, "the ways to other hosts that have its VIPs"
    wait_until(
        lambda: not any(holds_address("\n".join(state(served.lab, "host2")), vip) for vip in vips(made)),
        "nobody announces it",
    )
    assert state(served.lab, "host2") == served.before
    served.start_agent("host2")
