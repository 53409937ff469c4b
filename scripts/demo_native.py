"""The demo without OVN: three plain Linux hosts behind two routers announce VIPs, and flows survive failures.

Everything is real: FRR on hosts and routers in network namespaces, Fairlead's server, an agent on each host, the
unmodified `openstack` command. Each run starts from the beginning.
"""

import os
import sys
import time
from collections import Counter

from demo import BINARIES, BOLD, DIM, END, Client, say

from fairlead.lab import LabError, Protocol, Traffic, agents, take_down
from fairlead.lab import server as serving
from fairlead.lab.load import Load, LoadResult, LoadTarget, RunningLoad
from fairlead.lab.native import Machine, NativeLab
from fairlead.lab.native.host_declaration import declare

LAB = os.environ.get("FAIRLEAD_DEMO_LAB", "native")
LISTEN = os.environ.get("FAIRLEAD_DEMO_LISTEN", "127.0.0.1:9878")
"""Different from the address of `make demo`, which may be running."""
POOLS = {4: "203.0.113.0/24", 6: "2001:db8:f::/64"}
"""Announced prefixes, which the files in `examples/native` permit."""
MEMBERS = {"web1": ("host1", 2), "web2": ("host2", 1), "web3": ("host3", 1)}
CLIENTS = {"client1": "outside", "client2": "host2"}
CONNECTIONS = 400
HELD = 200


def main() -> int:
    started = time.monotonic()
    try:
        lab, service, running = bring_up()
        client = Client(service)
        plug_machines(lab)
        vips = build_load_balancers(client, lab)
        show_routes(lab, vips)
        show_table(lab, vips)
        break_routers(lab, vips, running["host2"])
        lose_a_host(lab, service, vips)
        finish(service, vips, time.monotonic() - started)
    except LabError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\ndemo: interrupted; `fairlead lab down --name {LAB}` removes what is there", file=sys.stderr)
        return 1
    return 0


def bring_up() -> tuple[NativeLab, serving.ServerProcess, dict[str, agents.LabAgent]]:
    say("Three plain Linux hosts and two routers, each with FRR, in network namespaces; no OVN, no Open vSwitch")
    if take_down(LAB):
        print_dim("an earlier demo was removed")
    lab = NativeLab.up(LAB, chassis=3, progress=print_dim)
    service = serving.start(lab.layout, LISTEN)
    lab.forward_port(LISTEN)
    declare(service.url, lab.record.chassis)
    running = {agent.chassis: agent for agent in agents.start(lab.layout, service.url)}
    print_dim(f"Fairlead listens on {service.url}; an agent on each host")
    return lab, service, running


def plug_machines(lab: NativeLab) -> None:
    say("Machines behind the hosts, a client behind one of them, and a client outside, behind the routers")
    places = {name: host for name, (host, _) in MEMBERS.items()} | CLIENTS
    for number, (name, host) in enumerate(places.items(), 11):
        serve = (8080,) if name in MEMBERS else ()
        addresses = lab.chassis(host).addresses(number)
        lab.add_workload(Machine(name=name, chassis=host, addresses=addresses, serve=serve))
        print_dim(f"{name:<8} {'behind ' if host != 'outside' else ''}{host:<8} {'  '.join(addresses)}")


def build_load_balancers(client: Client, lab: NativeLab) -> dict[str, str]:
    """Create one load balancer over IPv4 and TCP, and one over IPv6 and UDP. Returns their VIPs."""
    say("Addresses that hosts announce, which an operator declares; on them two load balancers, weights 2:1:1")
    client.make("network create public --share --provider-network-type announced", "provider:network_type")
    for version, pool in POOLS.items():
        words = f"--network public --ip-version {version} --subnet-range {pool}"
        client.make(f"subnet create public{version} {words}", "cidr")
    vips = {}
    for name, protocol, version in (("shop", "TCP", 4), ("dns", "UDP", 6)):
        made = client.make(f"loadbalancer create --name {name} --vip-subnet-id public{version} --wait", "vip_address")
        client.make(
            f"loadbalancer listener create --name {name}-listener --protocol {protocol} --protocol-port 80 {name}",
            "protocol_port",
        )
        client.make(
            f"loadbalancer pool create --name {name}-pool --listener {name}-listener --protocol {protocol}"
            " --lb-algorithm SOURCE_IP_PORT",
            "lb_algorithm",
        )
        for member, (_, weight) in MEMBERS.items():
            address = lab.workload(member).addresses[version == 6]
            client.make(
                f"loadbalancer member create --name {member} --address {address} --protocol-port 8080"
                f" --weight {weight} {name}-pool",
                "address",
                "weight",
            )
        vips[name] = made["vip_address"]
    return vips


def show_routes(lab: NativeLab, vips: dict[str, str]) -> None:
    say("Each host has the VIPs on `lo`, and FRR has told both routers: equal ways to all of them")
    for vip in vips.values():
        for router in ("router1", "router2"):
            lab.wait_next_hops(router, vip, *(host.name for host in lab.record.chassis))
        print(lab.exec("router1", ["ip", "route", "show", vip]), end="")


def show_table(lab: NativeLab, vips: dict[str, str]) -> None:
    say(f"{CONNECTIONS} connections from each client; asked for: 50 %, 25 %, 25 %")
    for name, protocol in (("shop", Protocol.TCP), ("dns", Protocol.UDP)):
        for client, place in CLIENTS.items():
            asked = Traffic(to=vips[name], port=80, protocol=protocol, count=CONNECTIONS, concurrency=8)
            result = lab.traffic(client, asked)
            shares = "  ".join(f"{member} {result.answers.get(member, 0) / CONNECTIONS:5.1%}" for member in MEMBERS)
            target = f"{protocol.value} {vips[name]}"
            print(f"  {client:<8} {place:<8} {target:<42} {shares}  failed {sum(result.errors.values())}", flush=True)


def steady_load(vips: dict[str, str]) -> Load:
    """Persistent flows, and continuous new ones."""
    targets = (LoadTarget(to=vips["shop"], port=80), LoadTarget(to=vips["dns"], port=80, protocol=Protocol.UDP))
    return Load(targets=targets, rate=50, count=5000, held=HELD, seconds=90, period=0.3)


def break_routers(lab: NativeLab, vips: dict[str, str], agent: agents.LabAgent) -> None:
    say(f"{HELD} flows stay open, 50 new ones begin each second. Meanwhile:")
    with lab.load("client1", steady_load(vips)) as load:
        await_open(lab)
        run_printed("both routers spread all flows anew, over other hosts")
        for router in ("router1", "router2"):
            lab.rehash(router, 4711)
        time.sleep(1)
        run_printed("a session of BGP ends, and begins again")
        lab.end_session("router2", "host1")
        lab.wait_next_hops("router2", vips["shop"], "host2", "host3")
        lab.begin_session("router2", "host1")
        lab.wait_routed()
        run_printed("router1 loses its power, and comes back")
        lab.power_off("router1")
        lab.wait_next_hops("outside", vips["shop"], "router2")
        lab.power_on("router1")
        lab.wait_routed()
        run_printed(f"the agent of {agent.chassis} is killed, and started again")
        agent.process.kill()
        agent.process.wait()
        time.sleep(1)
        agents.start_one(lab.layout, f"http://{LISTEN}", agent.chassis)
        show_load(load)


def lose_a_host(lab: NativeLab, service: serving.ServerProcess, vips: dict[str, str]) -> None:
    say("A host loses its power: its own flows end, no other does, and new ones go to who is left")
    with lab.load("client1", steady_load(vips)) as load:
        await_open(lab)
        began = time.monotonic()
        lab.power_off("host3")
        for router in ("router1", "router2"):
            lab.wait_next_hops(router, vips["shop"], "host1", "host2")
        run_printed(f"no router leads there any more, after {time.monotonic() - began:.1f} s")
        time.sleep(3)
        show_load(load)
    lab.power_on("host3")
    agents.start_one(lab.layout, service.url, "host3")
    for vip in vips.values():
        lab.wait_next_hops("router1", vip, *(host.name for host in lab.record.chassis))
    run_printed("it boots, with nothing in its kernel, and has its share again")


def await_open(lab: NativeLab) -> None:
    """Wait until the TCP flows are established."""
    for _ in range(100):
        words = ("ss", "-Htn", "state", "established", "dport = :80")
        if len(lab.exec("client1", words).splitlines()) >= HELD // 2:
            break
        time.sleep(0.1)


def show_load(load: RunningLoad) -> None:
    seen: LoadResult = load.stop()
    lost = Counter(each.member or "nobody yet" for each in seen.failed)
    broken = ", ".join(f"{count} with {member}" for member, count in sorted(lost.items())) or "none"
    print(f"  {sum(seen.held.values())} of {HELD} flows stayed, {seen.opened} began; broken: {broken}", flush=True)


def finish(service: serving.ServerProcess, vips: dict[str, str], seconds: float) -> None:
    print(
        f"""
{BOLD}Done in {seconds:.0f} s. Everything still runs. Go on by hand:{END}
  source {service.openrc}; export PATH={BINARIES}:$PATH
  fairlead lab exec client1 -- curl -s http://{vips["shop"]}/     # who answers?
  fairlead lab fault power-off host2                          # and power-on
  fairlead lab fault rehash router1 17                        # spread flows anew
  fairlead lab exec router1 -- vtysh -c 'show bgp summary'
  fairlead lab exec host1 -- nft list table inet fairlead     # what the kernel decides by
  openstack loadbalancer member set --weight 0 shop-pool web1 # drain a member
  fairlead chassis list                                       # hosts, and what they say
  fairlead lab status
Stop and remove all of it:
  fairlead lab down --name {LAB}"""
    )


def run_printed(line: str) -> None:
    print(f"  {line}", flush=True)


def print_dim(line: str) -> None:
    print(f"{DIM}  {line}{END}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
