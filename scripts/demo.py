"""The demo: two compute nodes on this machine, with load balancers and a Local IP made by the stock clients.

Everything is real: OVN and Open vSwitch in network namespaces, Fairlead's server, the unmodified `openstack` and
`incus` commands. Each run starts from the beginning.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fairlead.changes.identity import DEFAULT_PROJECT
from fairlead.lab import Lab, LabError, Protocol, Traffic, TrafficResult, agents, take_down
from fairlead.lab import server as serving
from fairlead.lab.port_workloads import Placement, workload_of_port

LAB = os.environ.get("FAIRLEAD_DEMO_LAB", "demo")
LISTEN = os.environ.get("FAIRLEAD_DEMO_LISTEN", serving.DEFAULT_LISTEN)
BINARIES = Path(sys.executable).parent
OPENSTACK = (str(BINARIES / "openstack"),)
INCUS = ("incus",)
CONNECTIONS = 400
SITE = "shop.example"
MEMBERS = {"web1": ("chassis1", 3), "web2": ("chassis2", 1)}
CLIENTS = {"client1": ("blue", "chassis1"), "client2": ("blue", "chassis2"), "client3": ("green", "chassis2")}
BOLD, DIM, END = ("\033[1m", "\033[2m", "\033[0m") if sys.stdout.isatty() else ("", "", "")


def main() -> int:
    started = time.monotonic()
    try:
        lab, service = bring_up()
        client = Client(service)
        build_networks(client)
        plug_workloads(lab, service)
        vips = build_load_balancer(client)
        lab.wait_synced()
        everyone = list(CLIENTS)
        show_table(lab, vips, everyone)
        show_local_ip(lab, client)
        show_https(lab, client)
        show_both_apis(lab, service, client)
        finish(lab, service, vips, time.monotonic() - started)
    except LabError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\ndemo: interrupted; `fairlead lab down --name {LAB}` removes what is there", file=sys.stderr)
        return 1
    return 0


class Client:
    """A stock client that prints each command."""

    def __init__(self, service: serving.ServerProcess, program: Sequence[str] = OPENSTACK) -> None:
        self._program = program
        self._environment = {**os.environ, **service.client_environment()}

    def __call__(self, command: str, *, quiet: bool = False) -> str:
        """Run a command, and return its output. Raises LabError."""
        name = Path(self._program[0]).name
        if not quiet:
            print(f"{BOLD}$ {name} {command}{END}", flush=True)
        done = subprocess.run(
            [*self._program, *shlex.split(command)],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if done.returncode != 0:
            raise LabError(f"{name} {command}: {done.stderr.strip()}")
        return done.stdout

    def make(self, command: str, *columns: str) -> dict[str, str]:
        """Run a create command, and print some columns of its output."""
        made: dict[str, str] = json.loads(self(f"{command} -f json"))
        print(f"{DIM}  {'  '.join(f'{column}={made[column]}' for column in columns)}{END}")
        return made


def bring_up() -> tuple[Lab, serving.ServerProcess]:
    say("Two compute nodes, each with its own Open vSwitch, and OVN's central, in network namespaces")
    if take_down(LAB):
        print(f"{DIM}  an earlier demo was removed{END}")
    lab = Lab.up(LAB, chassis=2, progress=lambda line: print(f"{DIM}  {line}{END}", flush=True))
    service = serving.start(
        lab.layout,
        LISTEN,
        {"FAIRLEAD_HEALTH_PROBER": "agents", "FAIRLEAD_KEYS_DIRECTORY": str(make_key_containers(lab))},
    )
    agents.start(lab.layout, service.url)
    print(f"{DIM}  Fairlead listens on {service.url}; an agent on each node counts, probes, and runs proxies{END}")
    return lab, service


def build_networks(client: Client) -> None:
    say("Two networks, IPv4 and IPv6, joined by a router; a port for each machine")
    for name, v4, v6 in (("blue", "10.0.0.0/24", "fd00:a::/64"), ("green", "10.0.1.0/24", "fd00:b::/64")):
        client.make(f"network create {name}", "id")
        client.make(f"subnet create {name}-v4 --network {name} --subnet-range {v4}", "gateway_ip")
        client.make(f"subnet create {name}-v6 --network {name} --ip-version 6 --subnet-range {v6}", "gateway_ip")
    client.make("router create r1", "id")
    for subnet in ("blue-v4", "blue-v6", "green-v4", "green-v6"):
        client(f"router add subnet r1 {subnet}")
    for name, (network, _) in {**dict.fromkeys(MEMBERS, ("blue", 0)), **CLIENTS}.items():
        client.make(f"port create {name} --network {network}", "fixed_ips")


def plug_workloads(lab: Lab, service: serving.ServerProcess) -> None:
    say("The machines themselves: namespaces plugged in as virtual machines would be")
    places = {**{name: chassis for name, (chassis, _) in MEMBERS.items()}, **{n: c for n, (_, c) in CLIENTS.items()}}
    for name, chassis in places.items():
        placement = Placement(name=name, chassis=chassis, serve=(8080,) if name in MEMBERS else ())
        workload = workload_of_port(service.url, name, placement)
        lab.add_workload(workload)
        print(f"{DIM}  {name:<8} on {chassis}  {'  '.join(workload.addresses)}{END}")
    lab.wait_bound(*places)


def build_load_balancer(client: Client) -> dict[str, str]:
    """Create one load balancer over IPv4 and TCP, and one over IPv6 and UDP. Returns their VIPs."""
    say("A load balancer over TCP and IPv4, weights 3:1, and one over UDP and IPv6")
    ports = {port["Name"]: port["Fixed IP Addresses"] for port in json.loads(client("port list -f json", quiet=True))}
    vips = {}
    for name, protocol, version in (("shop", "TCP", 4), ("dns", "UDP", 6)):
        subnet = f"blue-v{version}"
        made = client.make(f"loadbalancer create --name {name} --vip-subnet-id {subnet} --wait", "vip_address")
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
            address = next(ip["ip_address"] for ip in ports[member] if (":" in ip["ip_address"]) == (version == 6))
            client.make(
                f"loadbalancer member create --name {member} --address {address} --protocol-port 8080"
                f" --weight {weight} {name}-pool",
                "address",
                "weight",
            )
        vips[name] = made["vip_address"]
    print(client("loadbalancer status show shop"))
    return vips


def show_table(lab: Lab, vips: dict[str, str], clients: Sequence[str]) -> None:
    say(f"{CONNECTIONS} connections from each client; asked for: 75 % to web1, 25 % to web2")
    print(f"  {'client':<9} {'on':<9} {'network':<8} {'to':<24} {'web1':>12} {'web2':>12}  failed")
    for name, protocol in (("shop", Protocol.TCP), ("dns", Protocol.UDP)):
        for client in clients:
            network, chassis = CLIENTS[client]
            traffic = Traffic(to=vips[name], port=80, protocol=protocol, count=CONNECTIONS, concurrency=8)
            result = lab.traffic(client, traffic)
            target = f"{protocol.value} {vips[name]}"
            print(f"  {client:<9} {chassis:<9} {network:<8} {target:<24} {render_shares(result)}", flush=True)
    for client in clients:
        lab.exec(client, ["ping", "-c", "1", "-W", "2", vips["shop"]])
    print(f"  The VIP answers ping to {', '.join(clients)}.")


def render_shares(result: TrafficResult) -> str:
    total = sum(result.answers.values()) or 1
    shares = [f"{result.answers.get(name, 0):>4} ({result.answers.get(name, 0) / total:5.1%})" for name in MEMBERS]
    return f"{shares[0]:>12} {shares[1]:>12}  {sum(result.errors.values())}"


def show_local_ip(lab: Lab, client: Client) -> None:
    """One address, on which the replica on each client's node answers, over IPv4 and IPv6."""
    say("A Local IP: one address, answered by the replica on the client's own node")
    for name, asked in (("cache", ""), ("cache6", " --local-ip-address fd00:a::cafe")):
        client.make(f"local ip create --name {name} --network blue{asked}", "local_ip_address")
        for member in MEMBERS:
            client.make(f"local ip association create {name} {member}", "fixed_ip", "host")
    made = json.loads(client("local ip list -f json", quiet=True))
    lab.wait_synced()
    for address in (each["Local IP address"] for each in made):
        for name, (network, chassis) in CLIENTS.items():
            result = lab.traffic(name, Traffic(to=address, port=8080, count=CONNECTIONS, concurrency=8))
            print(f"  {name:<9} {chassis:<9} {network:<8} {f'tcp {address}':<24} {render_shares(result)}", flush=True)


def make_key_containers(lab: Lab) -> Path:
    """Folder of key containers with a certificate and its key, for the project of this demo."""
    folder = lab.layout.directory / "keys"
    own = folder / DEFAULT_PROJECT
    own.mkdir(parents=True, mode=0o700)
    words = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "7"]
    name = ["-subj", f"/CN={SITE}", "-addext", f"subjectAltName=DNS:{SITE}"]
    made = ["-keyout", str(own / "site.key"), "-out", str(own / "site.crt")]
    subprocess.run(["openssl", "req", *words, *name, *made], check=True, capture_output=True)
    whole = own / "site.pem"
    whole.touch(mode=0o600)
    whole.write_text("".join((own / part).read_text() for part in ("site.crt", "site.key")))
    return folder


def show_https(lab: Lab, client: Client) -> None:
    """TLS termination and a rule for a path, in the HAProxy on the client's node."""
    say("HTTPS with a rule for a path: by one HAProxy on each node, which the client's own switch leads to")
    made = client.make(f"loadbalancer create --name {SITE} --vip-subnet-id blue-v4 --wait", "vip_address")
    address = made["vip_address"]
    client.make(
        f"loadbalancer listener create --name https --protocol TERMINATED_HTTPS --protocol-port 443"
        f" --default-tls-container-ref site.pem {SITE}",
        "protocol_port",
    )
    for member in MEMBERS:
        where = next(str(each.ip) for each in lab.workload(member).interfaces if each.version == 4)
        to = "--listener https" if member == "web1" else f"--loadbalancer {SITE}"
        client.make(
            f"loadbalancer pool create --name only-{member} {to} --protocol HTTP --lb-algorithm ROUND_ROBIN", "protocol"
        )
        client.make(f"loadbalancer member create --address {where} --protocol-port 8080 only-{member}", "address")
    client.make(
        "loadbalancer l7policy create --name images --action REDIRECT_TO_POOL --redirect-pool only-web2 https", "action"
    )
    client.make("loadbalancer l7rule create --type PATH --compare-type STARTS_WITH --value /images/ images", "value")
    lab.wait_synced()
    print(f"  {'client':<9} {'on':<9} {'network':<8} {f'https {address}':<24} /            /images/a.png")
    for name, (network, chassis) in CLIENTS.items():
        answers = [fetch(lab, name, address, path) for path in ("/", "/images/a.png")]
        print(f"  {name:<9} {chassis:<9} {network:<8} {'':<24} {answers[0]:<12} {answers[1]}", flush=True)


def fetch(lab: Lab, client: str, address: str, path: str) -> str:
    """Name of the answering member. Raises LabError."""
    certificate = lab.layout.directory / "keys" / DEFAULT_PROJECT / "site.crt"
    words = ["curl", "-sS", "--retry", "20", "--retry-all-errors", "--retry-delay", "1", "--cacert", str(certificate)]
    told = lab.exec(client, [*words, "--resolve", f"{SITE}:443:{address}", f"https://{SITE}{path}"], timeout=60)
    return told.split()[0]


def show_both_apis(lab: Lab, service: serving.ServerProcess, openstack: Client) -> None:
    """List load balancers made by `openstack` with `incus`, and create one with port ranges."""
    if shutil.which("incus") is None:
        say("LXD's API is left out: there is no `incus` here (package incus-client)")
        return
    say("The same load balancers by LXD's API, and one that is made there: ports 80 and 8000 to 8009 lead to 8080")
    incus = Client(service, INCUS)
    print(incus("network load-balancer list blue"), end="")
    taken = openstack("port list -f json -c 'Fixed IP Addresses'", quiet=True)
    addresses = (f"10.0.0.{last}" for last in range(250, 1, -1))
    listen = next(address for address in addresses if f'"{address}"' not in taken)
    incus(f"network load-balancer create blue {listen} --description 'made by incus'")
    for member in MEMBERS:
        address = next(str(each.ip) for each in lab.workload(member).interfaces if each.version == 4)
        incus(f"network load-balancer backend add blue {listen} {member} {address} 8080")
    incus(f"network load-balancer port add blue {listen} tcp 80,8000-8009 {','.join(MEMBERS)}")
    print(incus("network load-balancer list blue"), end="")
    print(openstack("loadbalancer list -c name -c vip_address -c provisioning_status"), end="")
    lab.wait_synced()
    result = lab.traffic("client3", Traffic(to=listen, port=8005, count=CONNECTIONS, concurrency=8))
    print(f"  client3 to tcp {listen}:8005: web1 and web2 answer {render_shares(result)} failed")


def finish(lab: Lab, service: serving.ServerProcess, vips: dict[str, str], seconds: float) -> None:
    print(
        f"""
{BOLD}Done in {seconds:.0f} s. Everything still runs. Go on by hand:{END}
  source {service.openrc}; export PATH={BINARIES}:$PATH
  openstack loadbalancer stats show shop                          # what the nodes have counted
  openstack loadbalancer member set --weight 0 shop-pool web1     # drain a member
  openstack local ip association list cache                       # who answers on which node
  fairlead lab exec client1 -- curl -s http://{vips["shop"]}/         # who answers?
  fairlead chassis show chassis1                                  # a node, and what it serves
  fairlead lab trace client3 {vips["shop"]} --tcp 80                  # what OVN does with the packet
  fairlead show shop                                              # the rows in OVN
  incus network load-balancer list blue
  fairlead lab exec central -- ovn-nbctl lb-list
  fairlead lab status
Stop and remove all of it:
  {"make down" if LAB == "demo" else f"fairlead lab down --name {LAB}"}"""
    )


def say(headline: str) -> None:
    print(f"\n{BOLD}== {headline}{END}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
