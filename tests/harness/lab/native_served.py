"""Load balancers on plain hosts: a server, an agent on each host, members and clients."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any

import openstack
import pytest

from fairlead.http.server_client import ApiClient
from fairlead.lab import Protocol, Traffic, agents
from fairlead.lab.load import LoadTarget
from fairlead.lab.native import NativeLab
from fairlead.lab.server import ServerProcess, start, stop
from fairlead.model.documents.apportionment import MAX_SLOTS
from harness.lab.kernel_slots import InconsistentHosts, read_maps, slot_owners
from harness.lab.native_hosts import HOSTS, ROUTERS, machine
from harness.lab.site import connect
from harness.ports import free_port
from harness.waiting import wait_equal, wait_until

PORT, MEMBER_PORT = 80, 8080

MEMBERS = {"n1": "host1", "n2": "host2", "n3": "host3"}

NUMBER = 31

CLIENTS = {"far": "outside", "close": "host1"}

OPTIONS = {"FAIRLEAD_OVN_DRAIN_TIMEOUT": "60"}


@dataclass(kw_only=True)
class NativeSite:
    lab: NativeLab
    service: ServerProcess
    cloud: openstack.connection.Connection
    operator: ApiClient
    pool: str
    before: list[str]
    """State of the second host before it had an agent."""
    agents: dict[str, agents.LabAgent]
    """Current agent of each host."""

    def start_agent(self, host: str) -> None:
        self.agents[host] = agents.start_one(self.lab.layout, self.service.url, host, AGENT)

    def members(self, *names: str, port: int = MEMBER_PORT) -> list[dict[str, Any]]:
        """Members with the addresses of both IP versions."""
        return [
            {"name": name, "address": address, "protocol_port": port}
            for name in names
            for address in self.lab.workload(name).addresses
        ]

    def settle(self, balancer: str) -> None:
        api = self.cloud.load_balancer
        wait_equal(lambda: api.get_load_balancer(balancer).provisioning_status, "ACTIVE")

    def answers(self, client: str, vip: str, protocol: Protocol) -> frozenset[str]:
        """Names and errors of the answers, while changes may still be in progress."""
        asked = Traffic(to=vip, port=PORT, protocol=protocol, count=40, concurrency=10)
        found = self.lab.traffic(client, asked)
        return frozenset(found.answers) | frozenset(found.errors)

    def slots(self, *targets: LoadTarget) -> list[list[str]]:
        """Member of each slot of each target, from the kernels of all hosts. Raises Disagreement."""
        known = self.operator.request("GET", "/operator/chassis")["chassis"]
        maps = {each["declared"]["number"]: read_maps(self.lab, each["name"]) for each in known}
        names = {address: each.name for each in self.lab.workloads() for address in each.addresses}
        return [[names[address] for address in slot_owners(maps, target)] for target in targets]

    def ruleset(self, host: str) -> str:
        return self.lab.exec(host, ("nft", "-s", "list", "table", "inet", "fairlead"))


@pytest.fixture(scope="module")
def served(native: NativeLab) -> Iterator[NativeSite]:
    with serving(native) as found:
        yield found


@contextmanager
def serving(native: NativeLab, **options: str) -> Iterator[NativeSite]:
    """Run a server with these options, an agent on each host, members and clients."""
    listen = f"127.0.0.1:{free_port()}"
    service = start(native.layout, listen, {**OPTIONS, **options})
    native.forward_port(listen)
    operator, cloud = ApiClient(url=service.url), connect(service.url)
    for site in native.record.chassis:
        prefixes = [{"cidr": cidr} for cidr in site.prefixes]
        operator.request(
            "PUT", f"/operator/hosts/{site.name}", {"addresses": list(site.loopback_addresses), "prefixes": prefixes}
        )
    pool = announced(cloud)
    added = [machine(native, name, at, NUMBER, MEMBER_PORT) for name, at in MEMBERS.items()]
    added += [machine(native, name, at, NUMBER + 1) for name, at in CLIENTS.items()]
    for each in added:
        native.add_workload(each)
    before = state(native, "host2")
    found = NativeSite(
        lab=native, service=service, cloud=cloud, operator=operator, pool=pool.id, before=before, agents={}
    )
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
    """The announced network that all tests of a lab share, because prefixes of two networks must not overlap.

    Tests with tenants of their own use other prefixes.
    """
    found = cloud.network.find_network("pool")
    if found is not None:
        return found
    made = cloud.network.create_network(name="pool", provider_network_type="announced", is_shared=True)
    for version, cidr in ((4, "203.0.113.0/25"), (6, "2001:db8:f::/64")):
        cloud.network.create_subnet(network_id=made.id, cidr=cidr, ip_version=version, name=f"pool{version}")
    return made


def remove(lab: NativeLab, host: str) -> None:
    proxies = lab.layout.directory / "fairlead" / f"agent-{host}.proxies"
    options = (f"FAIRLEAD_AGENT_HOST={host}", f"FAIRLEAD_AGENT_PROXY_DIRECTORY={proxies}")
    lab.exec(host, ("env", "-i", *options, *FAIRLEAD, "agent", "--remove"))


def state(lab: NativeLab, host: str) -> list[str]:
    """State of a host that an agent could change, and the routes of its routing daemons."""
    found = [lab.exec(host, each.split()) for each in COMMANDS]
    lines = (VOLATILE_NUMBERS.sub("", line).strip() for text in found for line in text.splitlines())
    return sorted(line for line in lines if not VOLATILE_SYSCTLS.search(line))


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

VOLATILE_NUMBERS = re.compile(r"@if\d+|nhid \d+ ")
"""Numbers that daemons and the kernel assign again after a change."""

VOLATILE_SYSCTLS = re.compile(
    r"conntrack_count|random|entropy|file-nr|dentry|inode|cookie|ns_last_pid|fs.quota|pty.nr|_age"
)

FAIRLEAD = (sys.executable, "-m", "fairlead.cli.main")

AGENT = agents.settings(heartbeat=1)


@contextmanager
def balancer(
    served: NativeSite, members: Sequence[dict[str, Any]], monitor: Mapping[str, Any] | None = None
) -> Iterator[Any]:
    """A load balancer with a TCP and a UDP listener, and a VIP of each IP version."""
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
        wait_until(
            lambda: not any(served.lab.next_hops(r, v) for r in ROUTERS for v in vips(made)), "nobody announces it"
        )


def vips(made: Any) -> tuple[str, str]:
    return made.vip_address, made.additional_vips[0]["ip_address"]


def await_announced(served: NativeSite, made: Any, *hosts: str) -> None:
    """Wait until exactly these hosts announce the VIPs."""
    for vip in vips(made):
        for router in ROUTERS:
            served.lab.wait_next_hops(router, vip, *hosts)


def hold_connections(served: NativeSite, client: str = "far") -> int:
    opened = ("ss", "-Htn", "state", "established", f"dport = :{PORT}")
    return len(served.lab.exec(client, opened).splitlines())


def targets(made: Any) -> tuple[LoadTarget, ...]:
    """Both protocols at both VIPs."""
    return tuple(LoadTarget(to=vip, port=PORT, protocol=protocol) for vip in vips(made) for protocol in Protocol)


def await_slot_shares(served: NativeSite, made: Any, **weights: int) -> None:
    """Wait until all kernels have the slots of these weights, within one, and the members' hosts announce the VIPs."""
    wanted = {name: MAX_SLOTS * weight / sum(weights.values()) for name, weight in weights.items()}

    def are_there() -> bool:
        with suppress(InconsistentHosts):
            shares = [Counter(slots) for slots in served.slots(*targets(made))]
            return all(each.keys() == wanted.keys() for each in shares) and all(
                abs(each[name] - share) < 1 for each in shares for name, share in wanted.items()
            )
        return False

    wait_until(are_there, f"slots are of {wanted}")
    await_announced(served, made, *(MEMBERS[name] for name in weights))


def await_slots(served: NativeSite, target: LoadTarget) -> list[str]:
    """Member of each slot, once all hosts agree, including those without a member."""

    found: list[list[str]] = []

    def agreed() -> bool:
        with suppress(InconsistentHosts):
            found[:] = served.slots(target)
        return bool(found)

    wait_until(agreed, f"all hosts say the same of {target}")
    return found[0]


def restart_agent(served: NativeSite, host: str) -> None:
    """Kill the host's agent, and start another one."""
    agent = served.agents[host].process
    agent.kill()
    agent.wait()
    served.start_agent(host)


@contextmanager
def record_changes(lab: NativeLab, host: str) -> Iterator[list[str]]:
    """Changes of nftables, links, addresses, routes and rules on this host during the context, for use after it.

    Changes of its routing daemons are left out.
    """
    lines = list[str]()
    with (
        record_monitor(lab, host, "nft monitor", "nft {} table inet mark{}") as rules,
        record_monitor(
            lab, host, "ip -o monitor link address route rule", "ip route {} blackhole 192.0.2.25{}"
        ) as routes,
    ):
        yield lines
    lines += [*rules, *routes]


@contextmanager
def record_monitor(lab: NativeLab, host: str, monitor: str, mark: str) -> Iterator[list[str]]:
    """Lines that this monitor prints during the context, for use after it.

    Marks, written before and after the context until they appear in the output, prove that the monitor listens.
    """
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
            wait_until(lambda: is_heard(1), f"{monitor} listens")
            yield lines
            wait_until(lambda: is_heard(2), f"{monitor} has said all")
        finally:
            process.kill()
            reader.join()
    whole = [each for each in lines if each.endswith("\n")]  # the end of a mark may be truncated
    own = (each.strip() for each in whole if " proto bgp " not in each and not each.startswith("#"))
    lines[:] = [each for each in own if not marked(each, 1) and not marked(each, 2)]
