"""A plain host in a network namespace, and rows for its driver."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import ip_address, ip_network

from fairlead.dataplane.native import HostTunnel, LocalMember, NativeRow, OtherHost, Service, Target, Vip
from fairlead.dataplane.rows import Rows, diff
from fairlead.drivers.native.driver import Native
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.owner import Kind, Owner
from harness.net_namespace import NetNamespace, net_namespace, require_root
from harness.waiting import wait_until

FIRST_OWNER, SECOND_OWNER = (Owner(Kind.LOAD_BALANCER, f"{each * 8}-1111-4111-8111-{each * 12}") for each in "ab")
FOUR, SIX = ip_address("203.0.113.5"), ip_address("2001:db8::5")
FOREIGN_RULESET = """
table inet theirs {
    set vips4 { type ipv4_addr; elements = { 203.0.113.5 }; }
    chain input { type filter hook input priority filter; policy accept; ip saddr @vips4 counter; }
}
table ip fairlead {
    chain mine { meta mark 0x1001 accept; }
}
"""
"""Tables of another program, one of them with the same name as Fairlead's in another family."""


@contextmanager
def plain_host() -> Iterator[NetNamespace]:
    """Enter a namespace with an address, routes and rules that belong to other programs."""
    require_root("/usr/sbin/nft")
    with net_namespace() as made:
        made.set_sysctl("net/ipv6/conf/default/accept_dad", 0)
        made.ip(
            "link add d0 type veth peer name d1",
            "addr add 10.20.0.11/24 dev d0",
            "addr add fd20::11/64 dev d0 nodad",
            "link set d0 up",
            "link set d1 up",
            "addr add 192.0.2.77/32 dev lo",
            "route add default via 10.20.0.1",
            "route add 10.99.0.0/16 via 10.20.0.1 table 1007",
            "rule add fwmark 0x1001 lookup 1007 pref 300",
        )
        made.nft(FOREIGN_RULESET)
        with made.inside():
            wait_until(
                lambda: made.run("ip", "route") + made.run("ip", "-6", "route"),
                "no route is linkdown",
                is_enough=lambda routes: "linkdown" not in routes,
            )
            yield made


def as_rows(*rows: NativeRow) -> dict[tuple[str, ...], NativeRow]:
    return {row.key: row for row in rows}


def service(slots: bytes = bytes(slot % 3 for slot in range(256)), **known: object) -> Service:
    targets: tuple[Target, ...] = (
        LocalMember(address=ip_address("10.30.1.2"), port=8080),
        OtherHost(host=2),
        LocalMember(address=ip_address("10.30.1.3"), port=8081),
    )
    whole = Service(
        vip=FOUR,
        transport=Transport.TCP,
        port=80,
        by_source=False,
        slots=slots,
        targets=targets[: max(slots, default=-1) + 1],
    )
    return replace(whole, **known)  # type: ignore[arg-type]


def route_row(number: int = 2) -> tuple[Owner, Mapping[tuple[str, ...], NativeRow]]:
    return Owner(Kind.HOST, f"host{number}"), as_rows(HostTunnel(host=number, address=ip_address(f"10.20.0.1{number}")))


ALL_ROWS = as_rows(
    Vip(address=FOUR, is_local=True),
    Vip(address=SIX, is_local=False),
    service(previous_owners=((0, 2), (255, 2)), clients=(ip_network("10.0.0.0/8"), ip_network("192.0.2.128/25"))),
    service(transport=Transport.UDP, by_source=True, clients=()),
    service(transport=Transport.SCTP, port=65535, slots=b""),
    service(
        vip=SIX,
        port=443,
        targets=(LocalMember(address=ip_address("fd30::2"), port=1), OtherHost(host=2), OtherHost(host=2)),
        clients=(ip_network("::/0"),),
    ),
)


async def put(driver: Native, owner: Owner, rows: Rows) -> None:
    await driver.apply(owner, diff(rows, await driver.read(owner)))


def kernel_state(host: NetNamespace) -> list[str]:
    """State that a driver could change: nftables, routing rules, routes, addresses, devices and sysctls."""
    shown: Iterable[str] = ("rule", "-6 rule", "route show table all", "-6 route show table all", "addr", "link")
    found = [host.run("nft", "list", "ruleset")]
    found += [host.run("ip", "-j", *each.split()) for each in shown]
    return [*found, host.run("sysctl", "-a", "--pattern", r"net\.ipv[46]\.conf")]
