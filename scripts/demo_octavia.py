"""The demo in an OpenStack: a real Keystone, Neutron (ML2/OVN) and Octavia, with Fairlead as Octavia's provider.

Everything is real, runs with a lab of two compute nodes, and is created with the unmodified `openstack` command by a
user who finds the services in Keystone's catalogue. It ends with the demo, and each run starts from the beginning.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from fairlead.lab import Lab, LabError, Protocol, take_down  # noqa: E402
from harness.neutron_lab.cloud import PORT, OpenStackOnLab, cloud  # noqa: E402
from harness.neutron_lab.services import missing  # noqa: E402

LAB = "openstack"
NETWORKS = {"blue": ("10.0.0.0/24", "fd00:a::/64"), "green": ("10.0.1.0/24", "fd00:b::/64")}
SERVERS = {"web1": ("blue", "chassis1"), "web2": ("green", "chassis2")}
CLIENTS = {"client1": ("blue", "chassis2"), "client2": ("green", "chassis1")}
OUTSIDE = "outside"
CONNECTIONS = 100
BOLD, DIM, END = ("\033[1m", "\033[2m", "\033[0m") if sys.stdout.isatty() else ("", "", "")


def main() -> int:
    if absent := missing():
        print(f"demo-octavia: not installed: {', '.join(each.name for each in absent)}", file=sys.stderr)
        return 1
    started = time.monotonic()
    take_down(LAB)
    try:
        say("Two compute nodes, each with its own Open vSwitch, and OVN's central, in network namespaces")
        lab = Lab.up(LAB, chassis=2, progress=print_dim)
        say("Keystone, Neutron (ML2/OVN), Octavia with the provider `fairlead`, and Fairlead's server")
        with tempfile.TemporaryDirectory() as folder, cloud(Path(folder), lab, print_dim) as stack:
            show(stack, time.monotonic() - started)
    except (LabError, AssertionError) as error:
        print(f"demo-octavia: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 1
    finally:
        take_down(LAB)
    return 0


def show(stack: OpenStackOnLab, seconds: float) -> None:
    print_dim(f"up after {seconds:.0f} s")
    say("Neutron's networks, made by Alice, and a way out, made by an administrator")
    build_networks(stack)
    say("Machines: ports that are bound as Nova does it, and namespaces plugged in with their names")
    stack.machines({**SERVERS, **CLIENTS})
    for name, (_, chassis) in {**SERVERS, **CLIENTS}.items():
        print_dim(f"{name:<8} on {chassis}  {stack.address(name)}  {stack.address(name, 6)}")
    say("A load balancer of Octavia's, with --provider fairlead, and a floating IP of Neutron's")
    vip, floating = build_balancer(stack)
    say("Who answers")
    render_table(stack, {"client1": vip, "client2": vip, OUTSIDE: floating})
    say("The members, as Octavia's status tree has them")
    tree = stack.openstack("alice", "loadbalancer status show shop")["loadbalancer"]
    for member in tree["listeners"][0]["pools"][0]["members"]:
        print_dim(f"{member['name']:<8} {member['provisioning_status']}  {member['operating_status']}")


def build_networks(stack: OpenStackOnLab) -> None:
    wire = "--external --provider-network-type flat --provider-physical-network physnet"
    run_shown(stack, "admin", f"network create public {wire}")
    run_shown(stack, "admin", "subnet create public4 --network public --subnet-range 203.0.113.0/24 --no-dhcp")
    for name, (v4, v6) in NETWORKS.items():
        run_shown(stack, "alice", f"network create {name}")
        run_shown(stack, "alice", f"subnet create {name}-v4 --network {name} --subnet-range {v4}")
        run_shown(stack, "alice", f"subnet create {name}-v6 --network {name} --ip-version 6 --subnet-range {v6}")
    alice = stack.connection_of("alice").network
    public = alice.find_network("public", ignore_missing=False)
    router = alice.create_router(name="r1", external_gateway_info={"network_id": public.id})
    print_dim(f"router r1 leads out to public: {router.id}")
    for name in NETWORKS:
        for version in (4, 6):
            run_shown(stack, "alice", f"router add subnet r1 {name}-v{version}")
    group = next(alice.security_groups(name="default", project_id=stack.keystone.ids["shop"]))
    run_shown(stack, "alice", f"security group rule create {group.id} --protocol tcp")


def build_balancer(stack: OpenStackOnLab) -> tuple[str, str]:
    """Create the load balancer; return its internal and its floating address."""
    made = run_shown(
        stack, "alice", "loadbalancer create --name shop --vip-subnet-id blue-v4 --provider fairlead --wait"
    )
    run_shown(stack, "alice", "loadbalancer listener create --name in --protocol TCP --protocol-port 80 --wait shop")
    pool = "--protocol TCP --lb-algorithm SOURCE_IP_PORT"
    run_shown(stack, "alice", f"loadbalancer pool create --name pool --listener in {pool} --wait")
    for name, (network, _) in SERVERS.items():
        where = f"--subnet-id {network}-v4 --address {stack.address(name)} --protocol-port {PORT}"
        run_shown(stack, "alice", f"loadbalancer member create --name {name} {where} --wait pool")
    floating = run_shown(stack, "alice", f"floating ip create public --port {made['vip_port_id']}")
    stack.lab.wait_synced()
    return made["vip_address"], floating["floating_ip_address"]


def render_table(stack: OpenStackOnLab, asked: dict[str, str]) -> None:
    print(f"  {'from':<10}{'to':<16}{'':<6}" + "".join(f"{name:>8}" for name in SERVERS) + f"{'lost':>8}")
    for client, address in asked.items():
        result = stack.traffic(client, address, 80, Protocol.TCP, CONNECTIONS)
        answers = "".join(f"{result.answers.get(name, 0):>8}" for name in SERVERS)
        print(f"  {client:<10}{address:<16}{'TCP':<6}{answers}{sum(result.errors.values()):>8}")


def run_shown(stack: OpenStackOnLab, user: str, line: str) -> Any:
    """Run and print a command of this user."""
    print(f"{BOLD}{user}$ openstack {line}{END}", flush=True)
    quiet = line.startswith(("router add", "router remove"))
    return stack.openstack(user, line if quiet else f"{line} -f json")


def say(line: str) -> None:
    print(f"\n{line}", flush=True)


def print_dim(line: str) -> None:
    print(f"{DIM}  {line}{END}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
