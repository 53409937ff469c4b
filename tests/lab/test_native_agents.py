"""End to end on plain hosts: what stock clients ask of a server, agents write into kernels, and FRR announces."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any
from urllib.parse import urlencode

import openstack
import pytest

from fairlead.client import Server
from fairlead.lab import Protocol, Traffic, agents
from fairlead.lab.databases import until
from fairlead.lab.errors import LabError
from fairlead.lab.load import Load, LoadResult, Target
from fairlead.lab.native import NativeLab
from fairlead.lab.service import Service, start, stop
from fairlead.model.shares import LARGEST
from harness.lab.kernel_slots import Disagreement, read_maps, whose
from harness.lab.site import PATIENCE, connect
from harness.ports import free_port
from lab.test_native_lab import HOSTS, ROUTERS, machine

pytestmark = pytest.mark.lab

PORT, BEHIND = 80, 8080
MEMBERS = {"n1": "host1", "n2": "host2", "n3": "host3"}
NUMBER = 31
CLIENTS = {"far": "outside", "close": "host1"}
MONITOR = {"type": "TCP", "delay": 1, "timeout": 1, "max_retries": 1, "max_retries_down": 2}
OPTIONS = {"FAIRLEAD_OVN_PARTING": "60"}


@dataclass(kw_only=True)
class Served:
    lab: NativeLab
    service: Service
    cloud: openstack.connection.Connection
    operator: Server
    pool: str
    before: list[str]
    """What the second host was before there was an agent."""
    agents: dict[str, agents.Agent]
    """By host, as they are now."""

    def start_agent(self, host: str) -> None:
        self.agents[host] = agents.start_one(self.lab.layout, self.service.url, host, AGENT)

    def members(self, *names: str, port: int = BEHIND) -> list[dict[str, Any]]:
        """Of both IP versions."""
        return [
            {"name": name, "address": address, "protocol_port": port}
            for name in names
            for address in self.lab.workload(name).addresses
        ]

    def settle(self, balancer: str) -> None:
        api = self.cloud.load_balancer
        until(PATIENCE, "it is ACTIVE", lambda: api.get_load_balancer(balancer).provisioning_status == "ACTIVE")

    def answers(self, client: str, vip: str, protocol: Protocol) -> frozenset[str]:
        """Who answers, and what does not, while things may still be on their way."""
        asked = Traffic(to=vip, port=PORT, protocol=protocol, count=40, concurrency=10)
        found = self.lab.traffic(client, asked)
        return frozenset(found.answers) | frozenset(found.errors)

    def slots(self, *targets: Target) -> list[list[str]]:
        """Of each target who has its slots, by the kernels of all hosts. Raises Disagreement."""
        known = self.operator.ask("GET", "/operator/chassis")["chassis"]
        maps = {each["declared"]["number"]: read_maps(self.lab, each["name"]) for each in known}
        names = {address: each.name for each in self.lab.workloads() for address in each.addresses}
        return [[names[address] for address in whose(maps, target)] for target in targets]

    def ruleset(self, host: str) -> str:
        return self.lab.exec(host, ("nft", "-s", "list", "table", "inet", "fairlead"))


@pytest.fixture(scope="module")
def served(native: NativeLab) -> Iterator[Served]:
    with serving(native) as found:
        yield found


@contextmanager
def serving(native: NativeLab, **options: str) -> Iterator[Served]:
    """A server with these options, hosts with an agent each, members and clients."""
    listen = f"127.0.0.1:{free_port()}"
    service = start(native.layout, listen, {**OPTIONS, **options})
    native.reach(listen)
    operator, cloud = Server(url=service.url), connect(service.url)
    for site in native.record.chassis:
        prefixes = [{"cidr": cidr} for cidr in site.prefixes]
        operator.ask("PUT", f"/operator/hosts/{site.name}", {"addresses": list(site.own), "prefixes": prefixes})
    pool = announced(cloud)
    added = [machine(native, name, at, NUMBER, BEHIND) for name, at in MEMBERS.items()]
    added += [machine(native, name, at, NUMBER + 1) for name, at in CLIENTS.items()]
    for each in added:
        native.add_workload(each)
    before = state(native, "host2")
    found = Served(lab=native, service=service, cloud=cloud, operator=operator, pool=pool.id, before=before, agents={})
    for host in HOSTS:
        found.start_agent(host)
    yield found
    for agent in found.agents.values():
        agent.stop()
    stop(native.layout, found.service)
    for host in HOSTS:
        remove(native, host)
    for each in added:
        native.remove_workload(each.name)


def announced(cloud: openstack.connection.Connection) -> Any:
    """The network whose addresses hosts announce. No address is of two, so all tests of a lab share it; others are for
    tenants of their own."""
    found = cloud.network.find_network("pool")
    if found is not None:
        return found
    made = cloud.network.create_network(name="pool", provider_network_type="announced", is_shared=True)
    for version, cidr in ((4, "203.0.113.0/25"), (6, "2001:db8:f::/64")):
        cloud.network.create_subnet(network_id=made.id, cidr=cidr, ip_version=version, name=f"pool{version}")
    return made


def remove(lab: NativeLab, host: str) -> None:
    proxies = lab.layout.directory / "fairlead" / f"agent-{host}.proxies"
    options = (f"FAIRLEAD_AGENT_HOST={host}", f"FAIRLEAD_AGENT_PROXIES={proxies}")
    lab.exec(host, ("env", "-i", *options, *FAIRLEAD, "agent", "--remove"))


def state(lab: NativeLab, host: str) -> list[str]:
    """All of a host that an agent could have changed, and what routing daemons say there."""
    found = [lab.exec(host, each.split()) for each in COMMANDS]
    lines = (NUMBERED.sub("", line).strip() for text in found for line in text.splitlines())
    return sorted(line for line in lines if not VARYING.search(line))


COMMANDS = (
    "nft -s list ruleset",
    "ip -4 rule",
    "ip -6 rule",
    "ip -o link",
    "ip -o address",
    "ip -o -4 route show table all",
    "ip -o -6 route show table all",
    "sysctl -a",
)
NUMBERED = re.compile(r"@if\d+|nhid \d+ ")
"""What daemons and the kernel number anew."""
VARYING = re.compile(r"conntrack_count|random|entropy|file-nr|dentry|inode|cookie|ns_last_pid|fs.quota|pty.nr|_age")
FAIRLEAD = (sys.executable, "-m", "fairlead.cli")
AGENT = agents.settings(heartbeat=1)


@contextmanager
def balancer(
    served: Served, members: Sequence[dict[str, Any]], monitor: Mapping[str, Any] | None = None
) -> Iterator[Any]:
    """One of TCP and UDP, with a VIP of each IP version."""
    subnets = {each.ip_version: each.id for each in served.cloud.network.subnets(network_id=served.pool)}
    listeners = [
        {
            "name": protocol,
            "protocol": protocol,
            "protocol_port": PORT,
            "default_pool": {
                "name": protocol,
                "protocol": protocol,
                "lb_algorithm": "SOURCE_IP_PORT",
                "members": list(members),
                **({} if monitor is None else {"healthmonitor": dict(monitor)}),
            },
        }
        for protocol in ("TCP", "UDP")
    ]
    made = served.cloud.load_balancer.create_load_balancer(
        name="web",
        provider="native",
        vip_subnet_id=subnets[4],
        additional_vips=[{"subnet_id": subnets[6]}],
        listeners=listeners,
    )
    try:
        served.settle(made.id)
        yield made
    finally:
        served.cloud.load_balancer.delete_load_balancer(made.id, cascade=True)
        until(
            PATIENCE, "nobody announces it", lambda: not any(served.lab.ways(r, v) for r in ROUTERS for v in vips(made))
        )


def vips(made: Any) -> tuple[str, str]:
    return made.vip_address, made.additional_vips[0]["ip_address"]


WAYS = [(client, protocol) for client in CLIENTS for protocol in Protocol]


def await_ways(served: Served, made: Any, *hosts: str) -> None:
    """These hosts announce it, and no others."""
    for vip in vips(made):
        for router in ROUTERS:
            served.lab.wait_ways(router, vip, *hosts)


def await_all(served: Served, made: Any, *names: str) -> None:
    """These answer everybody, and nobody else does; the hosts of these announce it."""
    await_ways(served, made, *(MEMBERS[name] for name in names))
    for vip in vips(made):
        for client, protocol in WAYS:
            until(
                PATIENCE,
                f"{client} is answered by {names} at {vip}",
                lambda c=client, v=vip, p=protocol: served.answers(c, v, p) == frozenset(names),
            )


def pools(served: Served, made: Any) -> list[str]:
    return [each.id for each in served.cloud.load_balancer.pools(loadbalancer_id=made.id)]


def test_a_load_balancer_is_made_changed_and_removed_and_no_flow_of_a_survivor_moves(served: Served) -> None:
    api = served.cloud.load_balancer
    with balancer(served, served.members("n1", "n2")) as made:
        await_all(served, made, "n1", "n2")
        steady = Load(targets=targets(made), rate=40, count=4000, held=80, seconds=90, period=0.3)
        with served.lab.load("far", steady) as load:
            until(PATIENCE, "flows are held", lambda: held(served) >= steady.held // 2)
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
        assert seen.broken == []
        assert sum(seen.held.values()) == steady.held
    for host in HOSTS:
        until(PATIENCE, "nothing is left of it", lambda h=host: "203.0.113." not in served.ruleset(h))


def held(served: Served, client: str = "far") -> int:
    opened = ("ss", "-Htn", "state", "established", f"dport = :{PORT}")
    return len(served.lab.exec(client, opened).splitlines())


def targets(made: Any) -> tuple[Target, ...]:
    """Both protocols at both VIPs."""
    return tuple(Target(to=vip, port=PORT, protocol=protocol) for vip in vips(made) for protocol in Protocol)


@contextmanager
def holding(served: Served, made: Any, each: int = 48) -> Iterator[Callable[[], Sequence[LoadResult]]]:
    """So many flows of each client, that go on; what is called ends them and says what they saw."""
    steady = Load(targets=targets(made), rate=10, count=1000, held=each, seconds=120, period=0.3)
    before = {client: held(served, client) for client in CLIENTS}
    with ExitStack() as stack:
        loads = [stack.enter_context(served.lab.load(client, steady)) for client in CLIENTS]
        for client in CLIENTS:
            there = before[client] + each // 2  # those of UDP have been answered by then
            until(PATIENCE, f"{client} holds its flows", lambda c=client, t=there: held(served, c) >= t)
        yield lambda: [load.stop() for load in loads]


def await_shares(served: Served, made: Any, **weights: int) -> None:
    """In the kernels of all hosts each member has the slots that its weight wants, to one of them; and the hosts of
    these members announce it."""
    wanted = {name: LARGEST * weight / sum(weights.values()) for name, weight in weights.items()}

    def are_there() -> bool:
        with suppress(Disagreement):
            shares = [Counter(slots) for slots in served.slots(*targets(made))]
            return all(each.keys() == wanted.keys() for each in shares) and all(
                abs(each[name] - share) < 1 for each in shares for name, share in wanted.items()
            )
        return False

    until(PATIENCE, f"slots are of {wanted}", are_there)
    await_ways(served, made, *(MEMBERS[name] for name in weights))


def await_slots(served: Served, target: Target) -> list[str]:
    """Who has its slots, once all hosts say the same: those without a member too."""

    found: list[list[str]] = []

    def agreed() -> bool:
        with suppress(Disagreement):
            found[:] = served.slots(target)
        return bool(found)

    until(PATIENCE, f"all hosts say the same of {target}", agreed)
    return found[0]


def test_a_member_that_drains_or_goes_or_comes_back_keeps_its_own_flows_and_all_others_keep_theirs(
    served: Served,
) -> None:
    """What was begun with it goes on, whatever it has become; what others got meanwhile stays with them."""
    api, even = served.cloud.load_balancer, dict.fromkeys(MEMBERS, 1)

    def change(what: Callable[[str, Any], Any]) -> None:
        """Of the member, in each pool that it has."""
        for pool in pools(served, made):
            for member in [each for each in api.members(pool) if each.name == "n3"]:
                what(pool, member)
                served.settle(made.id)

    def update(**attributes: Any) -> None:
        change(lambda pool, member: api.update_member(member, pool, **attributes))

    with balancer(served, served.members("n1", "n2", "n3")) as made, ExitStack() as stack:
        await_shares(served, made, **even)
        seen, meanwhile = [stack.enter_context(holding(served, made))], []
        for without, again in (
            ({"weight": 0}, {"weight": 1}),
            ({"is_admin_state_up": False}, {"is_admin_state_up": True}),
        ):
            update(**without)
            await_shares(served, made, n1=1, n2=1)
            meanwhile.append(stack.enter_context(holding(served, made, 24)))
            update(**again)
            await_shares(served, made, **even)
        update(weight=3)
        await_shares(served, made, n1=1, n2=1, n3=3)
        change(lambda pool, member: api.delete_member(member, pool))
        await_shares(served, made, n1=1, n2=1)
        meanwhile.append(stack.enter_context(holding(served, made, 24)))
        for pool in pools(served, made):
            for body in served.members("n3"):
                api.create_member(pool, **body)
                served.settle(made.id)
        await_shares(served, made, **even)
        for others in meanwhile:
            for found in others():
                assert found.broken == []
                assert found.held["n1"] + found.held["n2"] == 24
        for end in seen:
            for found in end():
                assert found.broken == []
                assert (set(found.held), sum(found.held.values())) == ({"n1", "n2", "n3"}, 48)


def test_a_trace_says_whose_each_flow_is_without_a_packet(served: Served) -> None:
    """As the kernels of all hosts and of a client's own compute it."""
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


def traced(served: Served, client: tuple[str, int], to: tuple[str, int], protocol: Protocol) -> tuple[str, str]:
    words = {"client": endpoint(*client), "to": endpoint(*to), "protocol": protocol.value}
    found = served.operator.ask("GET", f"/operator/flow?{urlencode(words)}")
    return found["member"]["name"], found["chassis"]


def endpoint(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def test_an_agent_that_is_killed_and_comes_back_costs_no_packet_and_writes_nothing(served: Served) -> None:
    """No more packets are sent again than while nobody kills it: what other programs of this machine keep waiting."""
    with balancer(served, served.members("n1", "n2", "n3")) as made:
        await_ways(served, made, *HOSTS)
        calm = sent_again(served, made, lambda _: None)
        before = {host: served.ruleset(host) for host in HOSTS}
        killed = sent_again(served, made, lambda host: begin_again(served, host))
        print(f"sent again: {calm} without, {killed} with the agents killed")
        assert killed <= calm
        until(PATIENCE, "all is as before", lambda: before == {host: served.ruleset(host) for host in HOSTS})


OF_VIPS = re.compile(r"203\.0\.113\.|2001:db8:f:")


def sent_again(served: Served, made: Any, act: Callable[[str], None]) -> int:
    """Packets that had to be, of all clients and members, while something is done to each host in turn.

    Nothing breaks, and nothing is written on a host but what another load balancer is, by which one sees that the
    host's agent works.
    """
    steady = Load(targets=targets(made), rate=80, count=4000, held=40, seconds=120, period=0.1)
    before = retransmitted(served)
    with ExitStack() as stack:
        loads = [stack.enter_context(served.lab.load(client, steady)) for client in CLIENTS]
        for host in HOSTS:
            with written(served.lab, host) as lines:
                act(host)
                with balancer(served, served.members("n1", "n2", "n3")) as another:
                    await_shares(served, another, n1=1, n2=1, n3=1)
            assert [vip for vip in vips(another) if not any(vip in line for line in lines)] == [], "all is heard"
            its = [line for line in lines if not OF_VIPS.search(line) or any(vip in line for vip in vips(made))]
            assert its == [], host
        seen = [load.stop() for load in loads]
    for each in seen:
        assert each.broken == []
        assert sum(each.held.values()) == steady.held
    return retransmitted(served) - before + sum(len(each.again) for each in seen)


def retransmitted(served: Served) -> int:
    """Segments of TCP that had to be sent again, by the kernels of all machines (RFC 4022, tcpRetransSegs), but for
    those that had only been late: who gets one twice says so (RFC 2883)."""
    said = [served.lab.exec(name, ("cat", *COUNTERS)) for name in (*CLIENTS, *MEMBERS)]
    return sum(counter(text, "Tcp", "RetransSegs") - counter(text, "TcpExt", "TCPDSACKRecv") for text in said)


COUNTERS = "/proc/net/snmp", "/proc/net/netstat"


def counter(text: str, protocol: str, name: str) -> int:
    """A line of names, and one of values."""
    names, values = (line.split() for line in text.splitlines() if line.startswith(f"{protocol}: "))
    return int(values[names.index(name)])


def begin_again(served: Served, host: str) -> None:
    """Its agent is killed, and another one started."""
    agent = served.agents[host].process
    agent.kill()
    agent.wait()
    served.start_agent(host)


@contextmanager
def written(lab: NativeLab, host: str) -> Iterator[list[str]]:
    """What is written on this host meanwhile of nftables, links, addresses, routes and rules, when it is over: by
    anybody but its routing daemons."""
    lines = list[str]()
    with (
        heard(lab, host, "nft monitor", "nft {} table inet mark{}") as rules,
        heard(lab, host, "ip -o monitor link address route rule", "ip route {} blackhole 192.0.2.25{}") as routes,
    ):
        yield lines
    lines += [*rules, *routes]


@contextmanager
def heard(lab: NativeLab, host: str, monitor: str, mark: str) -> Iterator[list[str]]:
    """What this program says meanwhile, a line each, when it is over. It is known to listen by marks that come and go:
    one until it is heard before, and another one after."""
    lines, command = list[str](), lab.command(host, monitor.split())

    def is_heard(number: int) -> bool:
        for change in ("add", "delete"):
            lab.exec(host, mark.format(change, number).split())
        return any(marked(line, number) for line in lines)

    def marked(line: str, number: int) -> bool:
        return mark.format("", number).split()[-1] in line

    with subprocess.Popen(command.argv, env=command.full_environment(), stdout=subprocess.PIPE, text=True) as process:
        said = process.stdout
        assert said is not None
        reader = Thread(target=lambda: lines.extend(said))
        reader.start()
        try:
            until(PATIENCE, f"{monitor} listens", lambda: is_heard(1))
            yield lines
            until(PATIENCE, f"{monitor} has said all", lambda: is_heard(2))
        finally:
            process.kill()
            reader.join()
    own = (each.strip() for each in lines if " proto bgp " not in each and not each.startswith("#"))
    lines[:] = [each for each in own if not marked(each, 1) and not marked(each, 2)]


def test_a_member_that_does_not_answer_gets_nothing_and_leaves_others_what_they_got_when_it_does(
    served: Served,
) -> None:
    with balancer(served, served.members("n1", "n2", "n3"), MONITOR) as made:
        await_all(served, made, "n1", "n2", "n3")
        steady = Load(targets=targets(made), rate=1, count=100, held=60, seconds=60, period=0.3)
        with ExitStack() as stack:
            with without(served, "n3"):
                await_all(served, made, "n1", "n2")
                load = stack.enter_context(served.lab.load("far", steady))
                until(PATIENCE, "others get flows", lambda: held(served) >= steady.held // 2)
            await_all(served, made, "n1", "n2", "n3")
            seen = load.stop()
        assert seen.broken == []
        assert sum(seen.held[each] for each in ("n1", "n2")) == steady.held


@contextmanager
def without(served: Served, name: str) -> Iterator[None]:
    """This machine is not there."""
    served.lab.remove_workload(name)
    try:
        yield
    finally:
        served.lab.add_workload(machine(served.lab, name, MEMBERS[name], NUMBER, BEHIND))


def test_a_host_that_is_drained_keeps_what_was_begun_and_gets_nothing_new(served: Served) -> None:
    with balancer(served, served.members("n1", "n2", "n3")) as made:
        await_all(served, made, "n1", "n2", "n3")
        steady = Load(targets=targets(made), rate=1, count=100, held=60, seconds=60, period=0.3)
        with served.lab.load("far", steady) as load:
            until(PATIENCE, "flows are held", lambda: held(served) >= steady.held // 2)
            served.operator.ask("PUT", "/operator/hosts/host3/draining", None)
            await_all(served, made, "n1", "n2")
            with served.lab.load("far", steady) as meanwhile:
                until(PATIENCE, "others get flows", lambda: held(served) >= steady.held)
                served.operator.ask("DELETE", "/operator/hosts/host3/draining", None)
                await_all(served, made, "n1", "n2", "n3")
                others = meanwhile.stop()
            seen = load.stop()
        assert (seen.broken, others.broken) == ([], [])
        assert seen.held["n3"] > 0
        assert sum(others.held[each] for each in ("n1", "n2")) == steady.held


def test_what_an_agent_leaves_is_taken_away(served: Served) -> None:
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
    until(
        PATIENCE, "nobody announces it", lambda: not any(v in "".join(state(served.lab, "host2")) for v in vips(made))
    )
    assert state(served.lab, "host2") == served.before
    served.start_agent("host2")
