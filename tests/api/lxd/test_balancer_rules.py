"""Each rule of load balancers and forwards: error text, status code, and no write.

A request has the mistake that its row names and is otherwise valid. Texts are LXD's and Incus' where they have the
rule.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.model.documents import sizes
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes
from harness.api import compile_anything
from harness.front_ends.lxd_balancing import BODY, FORWARD, FORWARDS, LBS, LISTEN, LISTEN6, backend, port, settle
from harness.front_ends.lxd_world import LxdFrontEnd

A, A6 = backend("a"), backend("a", target_address="fd00::11")
PORT80 = port("80", "a")
NOT_A_NUMBER = 'strconv.ParseInt: parsing "x": invalid syntax'


def with_config(**options: str) -> dict[str, Any]:
    return {"config": {name.replace("__", "."): value for name, value in options.items()}}


def backends(*items: dict[str, Any]) -> dict[str, Any]:
    return {"backends": [*items], "ports": []}


def ports(*items: dict[str, Any]) -> dict[str, Any]:
    return {"backends": [A, backend("b", target_port="8080,8081", target_address="10.0.0.12")], "ports": [*items]}


BODIES: list[tuple[dict[str, Any], str]] = [
    # options
    (with_config(nonsense="1"), 'Invalid option "nonsense"'),
    (with_config(healthcheck__nonsense="1"), 'Invalid option "healthcheck.nonsense"'),
    (with_config(healthcheck="maybe"), 'Invalid value for a boolean "maybe"'),
    (
        with_config(healthcheck__interval="x"),
        'Invalid value for uint32 "x": strconv.ParseUint: parsing "x": invalid syntax',
    ),
    (
        with_config(healthcheck__timeout="-1"),
        'Invalid value for uint32 "-1": strconv.ParseUint: parsing "-1": invalid syntax',
    ),
    (
        with_config(healthcheck__interval="4294967296"),
        'Invalid value for uint32 "4294967296": strconv.ParseUint: parsing "4294967296": value out of range',
    ),
    (
        with_config(healthcheck__interval="0"),
        'Invalid value "0" for option "healthcheck.interval": must be between 1 and 3600',
    ),
    (
        with_config(healthcheck__failure_count="11"),
        'Invalid value "11" for option "healthcheck.failure_count": must be between 1 and 10',
    ),
    (
        with_config(fairlead__weight__a="257"),
        'Invalid value "257" for option "fairlead.weight.a": must be between 0 and 256',
    ),
    (with_config(fairlead__weight__nobody="2"), 'Invalid option "fairlead.weight.nobody": no such backend'),
    (
        with_config(fairlead__algorithm="least-connections"),
        'Invalid value "least-connections" for option "fairlead.algorithm": must be one of:'
        " round-robin, source-ip, source-ip-port",
    ),
    (
        with_config(fairlead__affinity="http-cookie"),
        'Invalid value "http-cookie" for option "fairlead.affinity": must be one of: source-ip',
    ),
    (
        with_config(fairlead__locality="rack"),
        'Invalid value "rack" for option "fairlead.locality": must be one of: chassis, none, zone',
    ),
    *(
        (
            with_config(fairlead__raw=value),
            f'Invalid value "{value}" for option "fairlead.raw": must be LOCATION:VALUE,'
            " up to 4095 and of up to 64 bytes in hexadecimal digits",
        )
        for value in ("SSH-", "0:535", "4096:53", f"0:{'53' * 65}", "0:", ":53")
    ),
    (
        with_config(fairlead__healthcheck__method="ping"),
        'Invalid value "ping" for option "fairlead.healthcheck.method": must be one of: tcp, udp-connect',
    ),
    (
        with_config(healthcheck="true", fairlead__healthcheck__method="udp-connect"),
        'Invalid value "udp-connect" for option "fairlead.healthcheck.method": not for ports of protocol "tcp"',
    ),
    # backends
    (backends(A, backend("")), "Missing name in backend specification 1"),
    (backends(backend("a b")), "Name cannot contain white space in backend specification 0"),
    (backends(backend("a\u2003")), "Name cannot contain white space in backend specification 0"),
    (backends(backend("a\u200b")), r'Invalid name "a\u200b" in backend specification 0'),
    (backends(A, A), 'Duplicate name "a" in backend specification 1'),
    (backends(backend("c", target_address="10.0.0.256")), 'Invalid target address for backend "c"'),
    (backends(backend("c", target_address="")), 'Invalid target address for backend "c"'),
    (backends(backend("c", target_address="fe80::1%eth0")), 'Invalid target address for backend "c"'),
    (
        backends(backend("c", target_address="fd00::11")),
        'Cannot mix IP versions in listen address and backend "c" target address',
    ),
    (
        backends(backend("c", target_address="10.0.1.11")),
        'Target address is not within the network subnet for backend "c"',
    ),
    (
        backends(backend("c", target_address="10.0.0.255")),
        'Target address cannot be a broadcast address for backend "c"',
    ),
    (backends(backend("c", target_address="10.0.0.0")), 'Target address cannot be a network address for backend "c"'),
    (
        backends(A, backend("c", target_port="80,x")),
        f"Invalid backend port specification 1 in backend specification 1: {NOT_A_NUMBER}",
    ),
    (
        backends(backend("c", target_port="9-8")),
        "Invalid backend port specification 0 in backend specification 0: End port should be higher than start port",
    ),
    (
        backends(backend("c", target_port="1-2-3")),
        'Invalid backend port specification 0 in backend specification 0: Invalid port range "1-2-3"',
    ),
    *(
        (
            backends(backend("c", target_port=wrong)),
            f"Invalid backend port specification 0 in backend specification 0: "
            f'Invalid port number "{wrong}", must be between 1 and 65535',
        )
        for wrong in ("0", "65536", "65535-65536", "1-9999999999")
    ),
    # ports
    (
        ports(port("80", "a", protocol="icmp")),
        "Invalid port protocol in port specification 0, protocol must be one of: tcp, udp",
    ),
    (
        ports(port("80", "a", protocol="TCP")),
        "Invalid port protocol in port specification 0, protocol must be one of: tcp, udp",
    ),
    (ports(PORT80, port("81")), "Missing target_backend or target_pool in port specification 1"),
    (ports(port(" , ", "a")), "Missing listen port in port specification 0"),
    (ports(PORT80, port("81,x", "a")), f"Invalid listen port in port specification 1: {NOT_A_NUMBER}"),
    (
        ports(port("81-81", "a")),
        "Invalid listen port in port specification 0: End port should be higher than start port",
    ),
    *(
        (
            ports(port(wrong, "a")),
            f'Invalid listen port in port specification 0: Invalid port number "{wrong}", must be between 1 and 65535',
        )
        for wrong in ("0", "0-80", "70000", "1-9999999999")
    ),
    (ports(PORT80, port("79-81", "a")), 'Duplicate listen port 80 for protocol "tcp" in port specification 1'),
    (ports(port("80,80", "a")), 'Duplicate listen port 80 for protocol "tcp" in port specification 0'),
    (ports(PORT80, port("81", "x")), 'Invalid target backend name "x" in port specification 1'),
    (ports(port("81", "a", "a")), 'Duplicate target backend name "a" in port specification 0'),
    (
        ports(PORT80, port("81-83", "a", "b")),
        'Mismatch of listen port(s) and target port(s) count for backend "b" in port specification 1',
    ),
    (
        ports(port("81", "b")),
        'Mismatch of listen port(s) and target port(s) count for backend "b" in port specification 0',
    ),
    (
        ports(port(f"1-{sizes.MAX_PORTS}", "a"), port("60000", "a")),
        f"Too many listen ports: a load balancer can have at most {sizes.MAX_PORTS}",
    ),
    (
        {
            **with_config(fairlead__affinity="source-ip"),
            "backends": [A, backend("b", target_address="10.0.0.12")],
            "ports": [port("1-401", "a", "b")],
        },
        'Too many listen ports: with a selection by source (options "fairlead.algorithm" and "fairlead.affinity") a'
        " load balancer can have at most 400",
    ),
    # order: the first error in LXD's order is reported, whatever other errors the request has
    ({**with_config(nonsense="1"), **backends(backend("a b"))}, 'Invalid option "nonsense"'),
    (backends(backend("a b"), backend("c", target_address="x")), "Name cannot contain white space in backend"
     " specification 0"),
    (backends(backend("c", target_address="x"), backend("a b")), 'Invalid target address for backend "c"'),
    (
        backends(backend("c", target_address="10.0.1.11", target_port="x")),
        'Target address is not within the network subnet for backend "c"',
    ),
    (
        {"backends": [backend("c", target_port="x")], "ports": [port("x", "nobody")]},
        f"Invalid backend port specification 0 in backend specification 0: {NOT_A_NUMBER}",
    ),
    (ports(port("81", "x"), port("x", "a")), 'Invalid target backend name "x" in port specification 0'),
    (ports(port("x", "a"), port("81", "x")), f"Invalid listen port in port specification 0: {NOT_A_NUMBER}"),
    (
        {**ports(port("x", "a")), **with_config(fairlead__weight__nobody="2")},
        f"Invalid listen port in port specification 0: {NOT_A_NUMBER}",
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LxdFrontEnd]:
    """Yield a site with one load balancer and one forward, which no test changes."""
    door = LxdFrontEnd(tmp_path_factory.mktemp("site"), compile_anything)
    settle(door)
    for path, body in ((LBS, BODY), (FORWARDS, FORWARD)):
        address = LISTEN if path == LBS else "198.51.100.20"
        door.call_ok("POST", path, {**body, "listen_address": address})
    yield door
    door.close()


@pytest.mark.parametrize(("said", "told"), BODIES)
def test_a_wrong_load_balancer_is_refused(site: LxdFrontEnd, said: dict[str, Any], told: str):
    new = {**BODY, **said, "listen_address": "198.51.100.11"}
    assert site.call_error("POST", LBS, new) == (400, f"Failed creating load balancer: {told}")
    assert site.call_error("PUT", f"{LBS}/{LISTEN}", {**BODY, **said}) == (
        400,
        f"Failed updating load balancer: {told}",
    )
    assert site.call_error("PATCH", f"{LBS}/{LISTEN}", said) == (400, f"Failed updating load balancer: {told}")


def forward_port(**said: Any) -> dict[str, Any]:
    return {"ports": [FORWARD["ports"][0], {**FORWARD["ports"][0], "listen_port": "81", **said}]}


FORWARD_BODIES: list[tuple[dict[str, Any], str]] = [
    (with_config(nonsense="1"), 'Invalid option "nonsense"'),
    (with_config(healthcheck="true"), 'Invalid option "healthcheck"'),
    (with_config(target_address="x"), "Invalid default target address"),
    (with_config(target_address="fd00::11"), "Cannot mix IP versions in listen address and default target address"),
    (with_config(target_address="10.0.1.11"), "Default target address is not within the network subnet"),
    (with_config(target_address="10.0.0.255"), "Default target address cannot be a broadcast address"),
    (with_config(target_address="10.0.0.0"), "Default target address cannot be a network address"),
    (
        with_config(target_address="10.0.0.11"),
        "Target address is same as default target address in port specification 0",
    ),
    (
        forward_port(protocol="sctp"),
        "Invalid port protocol in port specification 1, protocol must be one of: tcp, udp",
    ),
    (forward_port(target_address=""), "Invalid target address in port specification 1"),
    (forward_port(target_address="x"), "Invalid target address in port specification 1"),
    (
        forward_port(target_address="fd00::11"),
        "Cannot mix IP versions in listen address and port specification 1 target address",
    ),
    (
        forward_port(target_address="10.0.1.11"),
        "Target address is not within the network subnet in port specification 1",
    ),
    (
        forward_port(target_address="10.0.0.255"),
        "Target address cannot be a broadcast address in port specification 1",
    ),
    (forward_port(listen_port=""), "Missing listen port in port specification 1"),
    (forward_port(listen_port="x"), f"Invalid listen port in port specification 1: {NOT_A_NUMBER}"),
    (
        forward_port(listen_port="65536"),
        'Invalid listen port in port specification 1: Invalid port number "65536", must be between 1 and 65535',
    ),
    (forward_port(listen_port="79-80"), 'Duplicate listen port 80 for protocol "tcp" in port specification 1'),
    (forward_port(target_port="x"), "Invalid target port in port specification 1"),
    (forward_port(target_port="0"), "Invalid target port in port specification 1"),
    (
        forward_port(listen_port="81-83", target_port="1-2"),
        "Mismatch of listen port(s) and target port(s) count in port specification 1",
    ),
    (
        forward_port(target_port="1-2"),
        "Mismatch of listen port(s) and target port(s) count in port specification 1",
    ),
    (
        {**with_config(target_address="10.0.0.12"), **forward_port(target_address="10.0.0.12", listen_port="80")},
        "Target address is same as default target address in port specification 1",
    ),
    (
        forward_port(listen_port="80", target_port="x"),
        'Duplicate listen port 80 for protocol "tcp" in port specification 1',
    ),
]


@pytest.mark.parametrize(("said", "told"), FORWARD_BODIES)
def test_a_wrong_forward_is_refused(site: LxdFrontEnd, said: dict[str, Any], told: str):
    new = {**FORWARD, **said, "listen_address": "198.51.100.11"}
    one = f"{FORWARDS}/198.51.100.20"
    assert site.call_error("POST", FORWARDS, new) == (400, f"Failed creating forward: {told}")
    assert site.call_error("PUT", one, {**FORWARD, **said}) == (400, f"Failed updating forward: {told}")
    assert site.call_error("PATCH", one, said) == (400, f"Failed updating forward: {told}")


OVERLAPS = "overlaps with another network or NIC"
ADDRESSES: list[tuple[str, str, int, str]] = [
    (LBS, "x", 400, "Invalid load balancer listen address x"),
    (LBS, "", 400, "Invalid load balancer listen address "),
    (LBS, "198.51.100.0/24", 400, "Invalid load balancer listen address 198.51.100.0/24"),
    (FORWARDS, "x", 400, 'Failed parsing "x": Invalid IP representation'),
    (LBS, LISTEN, 409, "A load balancer for that listen address already exists"),
    (FORWARDS, LISTEN, 409, "A load balancer for that listen address already exists"),
    (FORWARDS, "198.51.100.20", 409, "A forward for that listen address already exists"),
    (LBS, "198.51.100.20", 409, "A forward for that listen address already exists"),
    (LBS, "203.0.113.1", 400, 'Uplink network does not contain "203.0.113.1/32" in its routes'),
    (LBS, "2001:db8:9::1", 400, 'Uplink network does not contain "2001:db8:9::1/128" in its routes'),
    (LBS, "2001:db8:1::7", 400, 'Uplink network does not contain "2001:db8:1::7/128" in its routes'),
    (LBS, "192.0.2.1", 409, f'Load balancer listen address "192.0.2.1" {OVERLAPS}'),
    (LBS, "192.0.2.101", 409, f'Load balancer listen address "192.0.2.101" {OVERLAPS}'),
    (FORWARDS, "192.0.2.101", 409, f'Forward listen address "192.0.2.101" {OVERLAPS}'),
    (
        LBS,
        "192.0.2.150",
        400,
        'Listen address "192.0.2.150" overlaps with "ipv4.ovn.ranges" ("192.0.2.100-192.0.2.199")',
    ),
    (LBS, "10.0.0.1", 409, 'Listen address "10.0.0.1" is already in use'),
    (LBS, "10.0.0.11", 409, 'Listen address "10.0.0.11" is already in use by instance NIC'),
    (LBS, "10.0.0.255", 409, 'Listen address "10.0.0.255" is already in use'),
]


@pytest.mark.parametrize(("path", "address", "code", "told"), ADDRESSES)
def test_unusable_listen_address_is_rejected(site: LxdFrontEnd, path: str, address: str, code: int, told: str):
    body = BODY if path == LBS else FORWARD
    if ":" in address:
        body = {**body, "backends": [A6], "ports": [PORT80]}
    noun = "load balancer" if path == LBS else "forward"
    assert site.call_error("POST", path, {**body, "listen_address": address}) == (
        code,
        f"Failed creating {noun}: {told}",
    )


@pytest.mark.parametrize(
    ("network", "address", "told"),
    [
        ("alone", LISTEN, "Isolated OVN network cannot use network load balancers"),
        ("alone", "0.0.0.0", "Isolated OVN network cannot use network load balancers"),
        ("four", LISTEN6, 'OVN network "four" is missing "ipv6.address" config option'),
    ],
)
def test_network_without_a_route_to_the_listen_address_is_rejected(
    site: LxdFrontEnd, network: str, address: str, told: str
):
    body = {"listen_address": address}
    refused = site.call_error("POST", f"/1.0/networks/{network}/load-balancers", body)
    assert refused == (400, f"Failed creating load balancer: {told}")
    if network == "alone":
        refused = site.call_error("POST", f"/1.0/networks/{network}/forwards", body)
        assert refused == (400, "Failed creating forward: Isolated OVN network cannot use network forwards")


def test_network_without_a_router_interface_is_rejected(tmp_path: Path):
    """A network is refused if its router has no interface in it any more, although the router keeps its gateway."""
    door = LxdFrontEnd(tmp_path)
    settle(door)
    door.run(door.server.model.write(lambda _: Changes(deletes=(Owner(Kind.PORT, "four-port1"),))))
    for plural, noun in (("load-balancers", "load balancer"), ("forwards", "forward")):
        refused = door.call_error("POST", f"/1.0/networks/four/{plural}", {"listen_address": "198.51.100.99"})
        assert refused == (400, f"Failed creating {noun}: Isolated OVN network cannot use network {noun}s")
    door.close()
