"""End to end on plain hosts: counters for stock clients, complete despite failures, and rows for operators."""

import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import pytest

from fairlead.lab import Failure, Protocol, Traffic
from harness.lab.native_hosts import HOSTS, ROUTERS
from harness.lab.native_served import (
    CLIENTS,
    FAIRLEAD,
    MEMBERS,
    PORT,
    NativeSite,
    balancer,
    restart_agent,
    served,
    vips,
)
from harness.waiting import wait_equal, wait_until

pytestmark = [pytest.mark.lab, pytest.mark.extended]
__all__ = ["served"]

SIZE, EACH = 1000, 20
HEADERS = {4: 20 + 8, 6: 40 + 8}
"""Header bytes of a datagram, by IP version."""
ADDED = {"bytes_in": 5, "bytes_out": 5 + len("n1 ")}
"""Bytes before the text of clients (a port), and before that of members (their name)."""
PORTS = count(20_000, 100)
"""Each client has its own ports, because a reused one would continue a UDP connection."""


def figures(found: Any) -> dict[str, int]:
    names = ("total_connections", "request_errors", "bytes_in", "bytes_out", "active_connections")
    return {name: found[name] for name in names}


def listeners(served: NativeSite, made: Any) -> Mapping[Protocol, str]:
    api = served.cloud.load_balancer
    return {Protocol(each.name.lower()): each.id for each in api.listeners(load_balancer_id=made.id)}


def ask(served: NativeSite, client: str, vip: str, protocol: Protocol) -> Mapping[str, int]:
    """Number of connections by result."""
    asked = Traffic(
        to=vip,
        port=PORT,
        protocol=protocol,
        count=EACH,
        concurrency=5,
        size=SIZE,
        source_port_from=next(PORTS),
    )
    found = served.lab.traffic(client, asked)
    return {"answered": sum(found.answers.values()), **found.errors}


def ways(made: Any) -> Iterator[tuple[str, str, Protocol]]:
    return ((client, vip, protocol) for client in CLIENTS for vip in vips(made) for protocol in Protocol)


def test_counters_stay_exact_through_agent_kills_and_router_rehashes(
    served: NativeSite,
) -> None:
    api, wanted, octets = served.cloud.load_balancer, Counter[Protocol](), Counter[str]()
    with balancer(served, served.members(*MEMBERS)) as made:
        own = listeners(served, made)
        for router in ROUTERS:
            for vip in vips(made):
                served.lab.wait_next_hops(router, vip, *HOSTS)

        def is_there() -> bool:
            found = {each: figures(api.get_listener_statistics(own[each])) for each in Protocol}
            tcp, udp = found[Protocol.TCP], found[Protocol.UDP]
            return (
                {each: found[each]["total_connections"] for each in Protocol} == dict(wanted)
                and {name: udp[name] for name in ADDED} == dict(octets)
                and all(SIZE < tcp[name] / wanted[Protocol.TCP] < 2 * SIZE for name in ADDED)
                and not tcp["active_connections"]
                and figures(api.get_load_balancer_statistics(made.id)) == {name: tcp[name] + udp[name] for name in tcp}
            )

        for turn in range(2):
            for client, vip, protocol in ways(made):
                assert ask(served, client, vip, protocol) == {"answered": EACH}
                wanted[protocol] += EACH
                if protocol is Protocol.UDP:
                    headers = HEADERS[6 if ":" in vip else 4]
                    octets.update({name: EACH * (SIZE + headers + more) for name, more in ADDED.items()})
            wait_until(is_there, f"{wanted}, {octets} in turn {turn}")
            assert sum((counted(served, host, made) for host in HOSTS), Counter()) == wanted
            for host in HOSTS:
                restart_agent(served, host)
            for router in ROUTERS:
                served.lab.rehash(router, 200 + turn)


def test_connections_refused_without_members_are_counted_as_request_errors(served: NativeSite) -> None:
    api, went = served.cloud.load_balancer, Counter[str]()
    with balancer(served, served.members("n1")) as made:
        vip, listener = vips(made)[0], listeners(served, made)[Protocol.TCP]
        for router in ROUTERS:
            served.lab.wait_next_hops(router, vip, MEMBERS["n1"])
        pool = next(each for each in api.pools(loadbalancer_id=made.id) if each.protocol == "TCP")
        for member in api.members(pool.id):
            api.delete_member(member, pool.id)
            served.settle(made.id)

        def is_refused() -> bool:
            found = ask(served, "far", vip, Protocol.TCP)
            went.update(found)
            return found == {"answered": 0, Failure.REFUSED: EACH}

        wait_until(is_refused, "it is refused")

        def is_there() -> bool:
            found = figures(api.get_listener_statistics(listener))
            return (found["total_connections"], found["request_errors"]) == (went["answered"], went[Failure.REFUSED])

        wait_until(is_there, f"{went}")


def counted(served: NativeSite, host: str, made: Any) -> Counter[Protocol]:
    """Connections to its VIPs by protocol, as printed by `fairlead agent --once` on the host."""
    found = served.lab.exec(host, ("env", "-i", f"FAIRLEAD_AGENT_HOST={host}", *FAIRLEAD, "agent", "--once"))
    own = [each for each in json.loads(found) if each["address"] in vips(made)]
    return sum((Counter({Protocol(each["transport"]): each["connections"]}) for each in own), Counter[Protocol]())


def planned(served: NativeSite, host: str) -> tuple[int, Any]:
    """Exit code and output of `fairlead agent --plan` on the host."""
    state = served.lab.layout.directory / "fairlead" / f"agent-{host}.json"
    variables = f"FAIRLEAD_AGENT_HOST={host}", f"FAIRLEAD_AGENT_STATE_FILE={state}"
    command = served.lab.command(host, ("env", "-i", *variables, *FAIRLEAD, "agent", "--plan", "--json"))
    done = subprocess.run(command.argv, env=command.full_environment(), capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout or "null")


def test_operator_api_shows_desired_rows_and_agent_plan_shows_missing_ones(served: NativeSite) -> None:
    with balancer(served, served.members(*MEMBERS)) as made:
        for router in ROUTERS:
            for vip in vips(made):
                served.lab.wait_next_hops(router, vip, *HOSTS)
        nodes = served.operator.request("GET", f"/operator/owners/{made.id}")["dataplanes"]["native"]["nodes"]
        assert [(name, node["agent"], node["error"]) for name, node in nodes.items()] == [
            (host, "heard", None) for host in HOSTS
        ]
        wait_equal(lambda: planned(served, "host2"), (0, {}))
        served.agents["host2"].stop()
        served.lab.exec("host2", ("nft", "delete", "table", "inet", "fairlead"))
        code, plan = planned(served, "host2")
        owner = f"loadbalancer/{made.id}"
        assert (code, sorted(plan)) == (3, ["host/host1", "host/host3", owner])
        rows = nodes["host2"]["rows"]
        assert (sorted(plan[owner]["create"]), plan[owner]["delete"]) == (sorted(rows.values()), [])
        whole = served.operator.request("GET", "/operator/chassis/host2/rows")["dataplanes"]["native"]
        assert (sorted(whole), whole[owner]) == (sorted(plan), rows)
        assert planned(served, "host2") == (code, plan), "nothing was written"
        served.start_agent("host2")
        wait_equal(lambda: planned(served, "host2"), (0, {}))
