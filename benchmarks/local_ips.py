"""Many Local IPs: number of rows, time to compile one, and cost of a chassis event.

    python benchmarks/local_ips.py --local-ips 1000 --chassis 50
    python benchmarks/local_ips.py --local-ips 1000 --chassis 1000 --replicas 50

Each has a replica on every chassis, or on the given number of them. An additional one has the maximum number of
replicas, two per chassis. The output is the number of rows by table, and CPU times in milliseconds.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address, ip_network
from itertools import count
from time import process_time_ns
from typing import TypeVar

from immutables import Map

from fairlead.compilers.ovn import compile_owner
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.local_ip import Association, Fallback, LocalIP, Mode
from fairlead.model.documents.network import FixedIP, Network, Port, Router, Subnet
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.sizes import MAX_ASSOCIATIONS
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.registry.facts import CHASSIS, PLUGGED, with_facts
from fairlead.model.snapshot import Aggregate, Snapshot

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
CIDR = ip_network("10.0.0.0/14")
MILLION = 1_000_000
_T = TypeVar("_T")


def main() -> None:
    parser = argparse.ArgumentParser(description="Many Local IPs.")
    parser.add_argument("--local-ips", type=int, default=1000)
    parser.add_argument("--chassis", type=int, default=50)
    parser.add_argument("--replicas", type=int, default=0)
    for mode in Mode:
        for fallback in (Fallback.FORWARD, Fallback.REJECT):
            show(parser.parse_args(), mode, fallback)


def show(arguments: argparse.Namespace, mode: Mode, fallback: Fallback) -> None:
    replicas = arguments.replicas or arguments.chassis
    snapshot = populate(arguments.local_ips, arguments.chassis, replicas, mode, fallback)
    owners = [Owner(Kind.LOCAL_IP, identity) for identity in snapshot.local_ips]
    kinds: Counter[str] = Counter()
    times = []
    for owner in owners:
        rows, spent = measured(lambda owner=owner: compile_owner(snapshot, owner))
        times.append(spent)
        kinds.update(type(row).__name__ for row in rows.values())
    print(f"{arguments.local_ips} Local IPs, {arguments.chassis} chassis, {mode.value}, {fallback.value}:")
    print(f"  {kinds.total()} rows: {', '.join(f'{number} {kind}' for kind, number in kinds.most_common())}")
    print(f"  compiled in {sum(times):.0f} ms; one {sum(times) / len(times):.2f} ms, the longest {max(times):.2f} ms")
    name = "chassis0"
    concerned, spent = measured(lambda: list(PLUGGED.affected_owners(snapshot, snapshot, dict.fromkeys(["r0-0"], "x"))))
    print(f"  a replica moves: {len(concerned)} owners, found in {spent:.2f} ms")
    gone = with_facts(snapshot, CHASSIS, {name: None})
    concerned, spent = measured(lambda: list(CHASSIS.affected_owners(snapshot, gone, {name: None})))
    _, recompiled = measured(lambda: sum(len(compile_owner(gone, owner)) for owner in concerned))
    print(f"  a chassis goes: {len(concerned)} owners, found in {spent:.1f} ms, compiled in {recompiled:.0f} ms")
    large = populate(1, MAX_ASSOCIATIONS // 2, MAX_ASSOCIATIONS, mode, fallback)
    rows, spent = measured(lambda: compile_owner(large, Owner(Kind.LOCAL_IP, "lip0")))
    print(f"  {MAX_ASSOCIATIONS} replicas on {MAX_ASSOCIATIONS // 2} chassis: {len(rows)} rows in {spent:.1f} ms")


def measured(work: Callable[[], _T]) -> tuple[_T, float]:
    """Result of a function, and its CPU time in milliseconds."""
    before = process_time_ns()
    result = work()
    return result, (process_time_ns() - before) / MILLION


def populate(number: int, chassis: int, replicas: int, mode: Mode, fallback: Fallback) -> Snapshot:
    documents = [*_documents(number, replicas, mode, fallback)]
    snapshot = apply_changes(Snapshot(), Changes(puts=tuple(documents)), 1)
    names = [f"chassis{place}" for place in range(chassis)]
    where = {f"r{which}-{place}": names[place % chassis] for which in range(number) for place in range(replicas)}
    ports: dict[str, dict[str, bool]] = {name: {} for name in names}
    for port, name in where.items():
        ports[name][port] = True
    known = {name: Chassis(name=name, host=name, ports=Map(ports[name])) for name in names}
    return with_facts(with_facts(snapshot, CHASSIS, known), PLUGGED, where)


def _documents(number: int, replicas: int, mode: Mode, fallback: Fallback) -> Iterator[Aggregate]:
    """A network with a router, and all Local IPs on it."""
    common = {"project_id": "p", "created_at": BEGINNING}
    subnet = Subnet(id="s", cidr=CIDR, gateway=CIDR[1], allocation_pools=(), **common)
    yield Network(id="n", mtu=1442, subnets=(subnet,), **common)
    yield Router(id="r", **common)
    yield Port(
        **{**common, "id": "i", "network_id": "n", "mac_address": "02:00:00:00:00:01", "device_id": "r"},
        device_owner="network:router_interface",
        fixed_ips=(FixedIP(subnet_id="s", address=CIDR[1]),),
    )
    places = count(2)

    def port(name: str) -> Port:
        place = next(places)
        fixed = FixedIP(subnet_id="s", address=CIDR[place])
        mac = f"02:01:{place >> 24:02x}:{place >> 16 & 255:02x}:{place >> 8 & 255:02x}:{place & 255:02x}"
        return Port(id=name, network_id="n", mac_address=mac, fixed_ips=(fixed,), **common)

    def address(port: Port) -> IPAddress:
        return ip_address(port.fixed_ips[0].address)

    for which in range(number):
        owner, ports = port(f"o{which}"), [port(f"r{which}-{place}") for place in range(replicas)]
        yield from (owner, *ports)
        yield LocalIP(
            id=f"lip{which}",
            network_id="n",
            port_id=owner.id,
            address=address(owner),
            mode=mode,
            fallback=fallback,
            associations=tuple(
                Association(port_id=each.id, address=address(each), created_at=BEGINNING + timedelta(seconds=place))
                for place, each in enumerate(ports)
            ),
            **common,
        )


if __name__ == "__main__":
    main()
