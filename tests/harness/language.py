"""Syntax of the model in a story, one document or fact per line:

    network net1 10.0.0.0/24 gw=10.0.0.1 fd00::/64 gw=none
    network public external wire=physnet:100 203.0.113.0/24 route=198.51.100.0/24
    router r1 net1=10.0.0.1,fd00::1 net2=10.1.0.1 route=0.0.0.0/0:10.1.0.9 disabled
    router r1 net1=10.0.0.1 gateway:public=203.0.113.10,2001:db8::10 no-snat snat6
    floating f1 public=203.0.113.50 r1=vm1:10.0.0.11
    floating f2 public=203.0.113.51 r1=web-vip:10.0.0.10
    port vm1 net1 10.0.0.11 fd00::11 host=chassis1 of=another-project disabled
    web vip=10.0.0.10,fd00::10 on=net1 disabled tcp:80=a/10.0.0.11:8080*3,b/10.0.0.12:8080 udp:53{persist=60}=-
    api vip=10.0.0.20 on=net1 tcp:80{allow=10.0.0.0/24+10.1.0.0/24}=a/10.0.0.11:8080
    probes net1 10.0.0.2
    web vip=203.0.113.10 on=public at=r1 for=net1 tcp:80+8080-8090=a/10.0.0.11,b/10.0.0.12:90+9080-9090 any:=a/10.0.0.11
    web vip=10.0.0.10 on=net1 parted=tcp/10.0.0.13:8080 tcp:80=-
    web vip=10.0.0.10 on=net1 taken tcp:80=-
    web vip=10.0.0.10 on=net1 tcp:80{monitor=TCP}=a/10.0.0.11:8080 udp:53{monitor=UDP-CONNECT+delay=5+off}=-
    down web a
    network net1 shared project=city mtu=1300 10.0.0.0/24
    plugged chassis1 vm1 vm2
    zones chassis1 az1 az2
    network net1 by=neutron 10.0.0.0/24
    router r1 by=neutron net1=10.0.0.1
    agents probe
    answers counted
    covers net1 10.0.0.3
    covering chassis1 net1
    web vip=10.0.0.10 on=net1 provider=fairlead http:80{proxy=2000}=a/10.0.0.11:8080
    proxy chassis1 net1 10.0.0.60 fd00::60
    proxy chassis1 net1 at=r1 10.0.0.60
    proxy chassis1 square of=guest 10.5.0.60
    serves chassis1 net1 2000
    network pool announced 203.0.113.0/24 2001:db8:5::/64
    host node1 1 10.20.0.21 fd00::21 10.1.0.0/24 fd00:1::/64=city draining

All documents, except `probes` and `covers`:
* `project=NAME` is the project, by default `demo`; `name=NAME` is the display name, by default empty.
* `by=neutron` marks an unmanaged document, which Neutron writes, with the ports of its network or router. It has no
  rows here, and its existing row is `neutron-<name>@<UUID>`.

Load balancers:
* `vip=` lists the VIP and the additional VIPs. `provider=NAME` is the provider, by default `ovn`.
* `at=ROUTER`: the gateway of this router has the VIPs. Gateway chassis of routers are gw1 and gw2.
* `for=NETWORK`: the load balancer is declared as part of this network (LXD, Incus).
* `given`: another service manages the same load balancer. `prepared` and `taken` are states of a takeover from another
  provider.
* `parted=` is a member that was removed and is draining.

Listeners and pools:
* Several ports are `80+81+8080-8090`. `any:=` receives the traffic of all ports without a listener of their own. A
  listener without `=` has no pool, and `-` is a pool without members.
* A pool with `near` prefers members on the client's chassis, then those in its zone; one with `near=zone` prefers
  members in the client's zone. One with `reset` resets the connections of members that go down.
* Slot tables are derived from those of the preceding states, as a store does.

Members are `name/endpoint`, with these suffixes: `@10.0.0.11:8081` is the monitor address and port, `*3` the weight,
`~` marks a backup member and `!` a disabled one. A member without a port is reached at the port of the listener.

Probes and health:
* `probes` is the address from which members on a subnet are probed. `covers` is the address for delegated probing by
  another node, and `covering` names the chassis that does it, with the networks.
* `down` lists members with a failed monitor: a member (`a`), one of its ports (`a:81`), or a replica of a Local IP, by
  its port. A member with a monitor and without a port may be down as well.

Nodes:
* `plugged` is a chassis with the ports bound to it, possibly none. `zones` lists the availability zones of a chassis.
* `host` is a plain host with its number, its addresses, and the prefixes that it routes, for one project or for all.

Proxies, for load balancers of the provider `fairlead`:
* A listener with `proxy=PORT` leads to the proxies of the VIP's network, at this port of the addresses in `proxy`
  lines.
* `serves` lists the ports on which a proxy accepts connections.
* With `at=r1` it is the proxy for VIPs on the gateway of a router (`serves chassis1 r1 2000`), and with `of=bob` that
  of another project on a shared network (`serves chassis1 square/bob 2000`).
* Other options of proxied listeners, and L7 policies, are in `harness/l7_language.py`.

Plain hosts that announce VIPs are in `harness/native_language.py`.
"""

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

from fairlead.model.documents.addresses import IPAddress, IPNetwork, parse_address, parse_network
from fairlead.model.documents.health import HealthKey
from fairlead.model.documents.hosts import Host, HostPrefix
from fairlead.model.documents.loadbalancer import (
    HTTP_MONITORS,
    Algorithm,
    DeclarativeSpec,
    DownMember,
    ExternalService,
    HealthMonitor,
    HttpMonitor,
    Listener,
    ListenerProtocol,
    LoadBalancer,
    Locality,
    Member,
    MigrationStage,
    MonitorType,
    PlainMonitor,
    Pool,
    RemovedMember,
    SourceIpPersistence,
    SpecPurpose,
    Transport,
    Vip,
    find_pool,
)
from fairlead.model.documents.local_ip import Association, Fallback, LocalIP, Mode, ReplicaMonitor
from fairlead.model.documents.network import (
    AllocationPool,
    ExternalGateway,
    FixedIP,
    FloatingIP,
    Network,
    Port,
    PortUse,
    Route,
    Router,
    Segment,
    SegmentType,
    Subnet,
)
from fairlead.model.documents.observed_proxy import Proxy
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.port_ranges import PortRange, Ports, TargetPort
from fairlead.model.documents.proxy_place import proxy_device
from fairlead.model.documents.unmanaged import (
    PROXY_DEVICE_OWNER,
    UnmanagedFloatingIP,
    UnmanagedNetwork,
    UnmanagedPort,
    UnmanagedRouter,
    Writer,
)
from fairlead.model.queries.probes import delegate_port_id, probe_port_id
from fairlead.model.queries.proxies import proxy_port_id
from fairlead.model.queries.unmanaged_probe_ports import PROBE_DEVICE_PREFIX
from fairlead.model.registry.kinds import owner_of
from fairlead.model.snapshot import Aggregate
from harness.l7_language import l7_listener, l7_pool, pool_protocol, with_policy
from harness.native_language import DRAINED, TRANSITION, smallest_table, with_previous_owners
from harness.pools import with_members

CREATED_AT = datetime(2026, 1, 1, tzinfo=UTC)
COMMON = {"project_id": "demo", "created_at": CREATED_AT}
LISTENER = re.compile(r"^(\w+):(\d[\d+-]*|)(?:\{([^}]*)\})?(?:=(.*))?$")
MEMBER = re.compile(r"^(\w+)/(\[[^]]+\]|[\d.]+)(?::(\d[\d+-]*))?(?:@(\[[^]]+\]|[\d.]+):(\d+))?(?:\*(\d+))?(~?)(!?)$")

LOCALITIES = {"near": Locality.CHASSIS, "near=zone": Locality.ZONE}

FOREIGN_CLASSES: dict[type, Any] = {
    Network: UnmanagedNetwork,
    Router: UnmanagedRouter,
    Port: UnmanagedPort,
    FloatingIP: UnmanagedFloatingIP,
}

Documents = dict[Owner, Aggregate]


def parse_plugged(text: str) -> dict[str, str]:
    """Chassis of each bound port."""
    return {port: chassis for _, chassis, *ports in _plugged(text) for port in ports}


def parse_chassis(text: str) -> frozenset[str]:
    return frozenset(chassis for _, chassis, *_ in _plugged(text))


def parse_zones(text: str) -> dict[str, frozenset[str]]:
    """Availability zones of each chassis that is in any."""
    words = (line.split() for line in text.splitlines() if line.startswith("zones "))
    return {chassis: frozenset(zones) for _, chassis, *zones in words}


def parse_proxies(text: str) -> dict[str, Proxy]:
    """Served ports of each proxy, by its port, or by `NETWORK/HOST` on a plain host."""
    hosts = {line.split()[1] for line in text.splitlines() if line.startswith("host ")}
    lines = (line.split() for line in text.splitlines() if line.startswith("serves "))
    return {
        f"{network}/{chassis}" if chassis in hosts else proxy_port_id(network, chassis): Proxy(
            serving=frozenset(map(int, ports))
        )
        for _, chassis, network, *ports in lines
    }


def parse_own_addresses(text: str) -> dict[str, frozenset[IPAddress]]:
    """Routed addresses of each plain host that are assigned to the host itself."""
    lines = (line.split() for line in text.splitlines() if line.startswith("owns "))
    return {host: frozenset(map(parse_address, addresses)) for _, host, *addresses in lines}


def parse_agents_probe(text: str) -> bool:
    """Whether agents probe members, instead of OVN."""
    return "agents probe" in text.splitlines()


def parse_counts_answers(text: str) -> bool:
    return "answers counted" in text.splitlines()


def parse_covering(text: str) -> dict[str, str]:
    """Chassis with delegated probing, by network."""
    words = (line.split() for line in text.splitlines() if line.startswith("covering "))
    return {network: chassis for _, chassis, *networks in words for network in networks}


def _plugged(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.startswith("plugged ")]


def parse_model(text: str, before: Documents) -> tuple[Documents, dict[str, frozenset[HealthKey]]]:
    documents: Documents = {}
    down: dict[str, frozenset[HealthKey]] = {}
    for line in text.splitlines():
        kind, *all_words = line.split()
        said = dict(word.split("=", 1) for word in all_words if word.startswith(("project=", "name=")))
        attributes = {{"project": "project_id"}.get(word, word): text for word, text in said.items()}
        words = [word for word in all_words if not word.startswith(("project=", "name=", "by="))]
        theirs = "by=neutron" in all_words
        match kind:
            case "network":
                made: Iterator[Aggregate] = iter([_network(*words)])
            case "host":
                made = iter([_host(*words)])
            case "router":
                made = _router(documents, *words)
            case "port":
                made = iter([_port(documents, *words)])
            case "probes":
                made = iter([_probes(documents, *words)])
            case "covers":
                made = iter([_probes(documents, *words, covers=True)])
            case "floating":
                made = _floating_ip(documents, *words)
            case "local-ip":
                made = _local_ip(documents, *words)
            case "down":
                is_local_ip = Owner(Kind.LOCAL_IP, words[0]) in documents
                found = {word if is_local_ip else _health_key(words[0], word) for word in words[1:]}
                down[words[0]] = down.get(words[0], frozenset()) | found
                continue
            case "policy":
                of = Owner(Kind.LOAD_BALANCER, words[0])
                made = iter([with_policy(_known_balancer(documents, of), words[1:], COMMON)])
            case "proxy":
                made = iter([_proxy(documents, *words)])
            case "plugged" | "zones" | "agents" | "answers" | "serves" | "owns" | "covering":
                continue  # parsed by functions of their own, such as `parse_plugged`
            case _:
                made = _balancer(documents, before, kind, words)
        found = [replace(each, **attributes) for each in made]
        found = [_foreign(each) if theirs or _is_on_foreign(documents, each) else each for each in found]
        documents |= {owner_of(each): each for each in found}
    return documents, down


def _is_on_foreign(documents: Documents, document: Aggregate) -> bool:
    return isinstance(document, Port) and isinstance(
        documents.get(Owner(Kind.NETWORK, document.network_id)), UnmanagedNetwork
    )


def _foreign(document: Aggregate) -> Aggregate:
    """Convert a document to the unmanaged one that Neutron's rows yield."""
    values = {field.name: getattr(document, field.name) for field in fields(document)}
    row = str(uuid5(NAMESPACE_DNS, values["id"]))
    if isinstance(document, Port) and document.use is PortUse.PROXY:
        values |= {"device_id": proxy_device(document.network_id, document.host), "device_owner": PROXY_DEVICE_OWNER}
    name = values["id"] if isinstance(document, Port) else f"neutron-{values['id']}"
    return FOREIGN_CLASSES[type(document)](**values, row=f"{name}@{row}", writer=Writer.NEUTRON)


def _network(name: str, *words: str) -> Network:
    subnets: list[Subnet] = []
    routes: list[IPNetwork] = []
    segment = None
    for word in words:
        if word.startswith("wire="):
            physical, _, tag = word.removeprefix("wire=").partition(":")
            kind = SegmentType.VLAN if tag else SegmentType.FLAT
            segment = Segment(type=kind, physical_network=physical, id=int(tag) if tag else None)
            continue
        if word in ("external", "shared", "announced") or word.startswith("mtu="):
            continue
        if word.startswith("gw="):
            gateway = None if word == "gw=none" else parse_address(word[3:])
            subnets[-1] = replace(subnets[-1], gateway=gateway)
            continue
        if word.startswith("route="):
            routes.append(parse_network(word.removeprefix("route=")))
            subnets.append(Subnet(id=word, cidr=routes[-1], gateway=None, allocation_pools=(), **COMMON))
            continue
        cidr = parse_network(word)
        pools = (AllocationPool(start=cidr[2], end=cidr[-2]),) if cidr.num_addresses > 4 else ()
        subnets.append(Subnet(id=word, cidr=cidr, gateway=cidr[1], allocation_pools=pools, **COMMON))
    return Network(
        id=name,
        mtu=next((int(word[4:]) for word in words if word.startswith("mtu=")), 1442),
        subnets=tuple(subnets),
        routes=tuple(routes),
        shared="shared" in words,
        external="external" in words,
        announced="announced" in words,
        segment=segment,
        **COMMON,
    )


def _host(name: str, number: str, *words: str) -> Host:
    prefixes = (word.partition("=") for word in words if "/" in word)
    return Host(
        name=name,
        number=int(number),
        addresses=tuple(parse_address(word) for word in words if "/" not in word and word not in DRAINED),
        prefixes=tuple(HostPrefix(cidr=parse_network(cidr), project_id=whose or None) for cidr, _, whose in prefixes),
        draining="draining" in words,
        returning_until=TRANSITION.expires_at if "returning" in words else None,
    )


def _fixed(documents: Documents, network_id: str, address: IPAddress) -> FixedIP:
    network = next(item for item in documents.values() if isinstance(item, Network) and item.id == network_id)
    return FixedIP(subnet_id=next(s.id for s in network.subnets if address in s.cidr), address=address)


def _mac(name: str) -> str:
    return "02:00:" + ":".join(f"{byte:02x}" for byte in name.encode()[-4:].rjust(4, b"\0"))


def _router(documents: Documents, name: str, *words: str) -> Iterator[Aggregate]:
    routes: list[Route] = []
    gateway = None
    for word in words:
        key, _, value = word.partition("=")
        if key.startswith("gateway:"):
            network_id = key.removeprefix("gateway:")
            gateway = ExternalGateway(
                network_id=network_id,
                port_id=f"{name}-{network_id}",
                enable_snat="no-snat" not in words,
                enable_snat_ipv6="snat6" in words,
            )
            yield _owned_port(documents, gateway.port_id, network_id, value, PortUse.ROUTER_GATEWAY, name)
            continue
        if key == "route":
            destination, _, nexthop = value.partition(":")
            routes.append(Route(destination=parse_network(destination), nexthop=parse_address(nexthop)))
        elif key not in ("disabled", "no-snat", "snat6"):
            yield _owned_port(documents, f"{name}-{key}", key, value, PortUse.ROUTER_INTERFACE, name)
    enabled = "disabled" not in words
    yield Router(id=name, routes=tuple(routes), admin_state_up=enabled, gateway=gateway, **COMMON)


def _owned_port(documents: Documents, identity: str, network: str, addresses: str, owner: str, device: str) -> Port:
    """A port that belongs to a router or a floating IP; `gateway:public=` is one without an address."""
    return Port(
        id=identity,
        network_id=network,
        mac_address=_mac(identity.replace("-", "")),
        fixed_ips=tuple(
            _fixed(documents, network, parse_address(address)) for address in addresses.split(",") if address
        ),
        device_owner=owner,
        device_id=device,
        **COMMON,
    )


def _floating_ip(documents: Documents, name: str, where: str, target: str = "") -> Iterator[Aggregate]:
    network_id, _, address = where.partition("=")
    router_id, _, place = target.partition("=")
    port_id, _, fixed = place.partition(":")
    yield _owned_port(documents, f"{name}-{network_id}", network_id, address, PortUse.FLOATING_IP, name)
    yield FloatingIP(
        id=name,
        network_id=network_id,
        address=parse_address(address),
        address_port_id=f"{name}-{network_id}",
        router_id=router_id or None,
        port_id=port_id or None,
        fixed_address=parse_address(fixed) if fixed else None,
        **COMMON,
    )


def _local_ip(documents: Documents, name: str, network: str, address: str, *words: str) -> Iterator[Aggregate]:
    """Local IP and its port.

    `port=NAME` is the port with the address; by default a port is made. `+NAME` is a replica, at the first address of
    its port with the same IP version, or `+NAME/ADDRESS`. `monitor=TCP+port=80+delay=5` is the health monitor of the
    replicas. Other words are the mode and the fallback.
    """
    fixed = _fixed(documents, network, parse_address(address))
    port_id = next((word.removeprefix("port=") for word in words if word.startswith("port=")), None)
    if port_id is None:
        port_id = f"{name}-{network}"
        yield _owned_port(documents, port_id, network, address, PortUse.LOCAL_IP, name)
    yield LocalIP(
        id=name,
        network_id=network,
        port_id=port_id,
        address=fixed.address,
        mode=next((mode for mode in Mode if mode in words), Mode.TRANSLATE),
        fallback=next((fallback for fallback in Fallback if fallback in words), Fallback.FORWARD),
        associations=tuple(
            _association(documents, fixed.address.version, word[1:]) for word in words if word.startswith("+")
        ),
        health_monitor=next((_replica_monitor(word[8:]) for word in words if word.startswith("monitor=")), None),
        **COMMON,
    )


def _replica_monitor(text: str) -> ReplicaMonitor:
    kind, *words = text.split("+")
    return ReplicaMonitor(type=MonitorType(kind), **{key: int(value) for key, _, value in _parse_replicas(words)})


def _parse_replicas(words: list[str]) -> Iterator[tuple[str, str, str]]:
    return (word.partition("=") for word in words)


def _association(documents: Documents, version: int, text: str) -> Association:
    port_id, _, address = text.partition("/")
    port = next(item for item in documents.values() if isinstance(item, Port) and item.id == port_id)
    fixed = next(fixed.address for fixed in port.fixed_ips if fixed.address.version == version)
    return Association(port_id=port_id, address=parse_address(address) if address else fixed, created_at=CREATED_AT)


def _known_balancer(documents: Documents, owner: Owner) -> LoadBalancer:
    found = documents[owner]
    assert isinstance(found, LoadBalancer)
    return found


def _proxy(documents: Documents, chassis: str, network: str, *words: str) -> Port:
    """Port of a proxy: of a network, a router's gateway (`at=`), or a project on a shared network (`of=`)."""
    where = next((word[3:] for word in words if word.startswith("at=")), network)
    guest = next((word[3:] for word in words if word.startswith("of=")), "")
    addresses = [word for word in words if "=" not in word]
    name = f"{where}/{guest}" if guest else where
    identity = proxy_port_id(name, chassis)
    held = _owned_port(documents, identity, network, ",".join(addresses), PortUse.PROXY, where)
    known = documents[Owner(Kind.ROUTER if where != network else Kind.NETWORK, where)]
    mac = _mac(f"{chassis}{name}" if name != network else chassis)
    return replace(held, host=chassis, mac_address=mac, project_id=guest or known.project_id)


def _parse_persistence(words: list[str]) -> ExternalService | None:
    takeover = next((each for each in MigrationStage if each in words), None)
    return ExternalService(made_port=True, takeover=takeover) if takeover is not None or "given" in words else None


def _port(documents: Documents, name: str, network: str, *words: str) -> Port:
    host = next((word[5:] for word in words if word.startswith("host=")), "")
    project = next((word[3:] for word in words if word.startswith("of=")), COMMON["project_id"])
    addresses = [word for word in words if "=" not in word and word != "disabled"]
    return Port(
        id=name,
        network_id=network,
        mac_address=_mac(name),
        fixed_ips=tuple(_fixed(documents, network, parse_address(address)) for address in addresses),
        host=host,
        admin_state_up="disabled" not in words,
        **{**COMMON, "project_id": project},
    )


def _probes(documents: Documents, network: str, address: str, *, covers: bool = False) -> Port:
    fixed = _fixed(documents, network, parse_address(address))
    return Port(
        id=(delegate_port_id if covers else probe_port_id)(fixed.subnet_id),
        network_id=network,
        mac_address=_mac(f"{'c' if covers else 'p'}{network}"),
        fixed_ips=(fixed,),
        device_owner=PortUse.PROBE.value,
        device_id=f"{PROBE_DEVICE_PREFIX}{network}",
        **COMMON,
    )


def _balancer(documents: Documents, before: Documents, name: str, words: list[str]) -> Iterator[Aggregate]:
    options = dict(word.split("=", 1) for word in words if word.startswith(("vip=", "on=", "at=", "provider=")))
    addresses = [_fixed(documents, options["on"], parse_address(text)) for text in options["vip"].split(",")]
    vip, *more = (
        Vip(address=fixed.address, port_id=f"{name}-vip", subnet_id=fixed.subnet_id, network_id=options["on"])
        for fixed in addresses
    )
    yield Port(
        id=vip.port_id,
        network_id=vip.network_id,
        mac_address=_mac(vip.port_id),
        fixed_ips=tuple(addresses),
        device_owner=PortUse.VIP.value,
        device_id=f"lb-{name}",
        **COMMON,
    )
    old = next((item for item in before.values() if isinstance(item, LoadBalancer) and item.id == name), None)
    provider = options.get("provider", "ovn")
    size = smallest_table(provider)
    parts = [_listener(name, old, size, *found.groups()) for word in words if (found := LISTENER.match(word))]
    balancer = LoadBalancer(
        id=name,
        provider=provider,
        vip=vip,
        additional_vips=tuple(more),
        admin_state_up="disabled" not in words,
        listeners=tuple(listener for listener, _ in parts),
        pools=tuple(pool for _, pool in parts if pool is not None),
        router_id=options.get("at"),
        kept=_parse_persistence(words),
        described=next((_declared_name(word[4:]) for word in words if word.startswith("for=")), None),
        parted=tuple(_parse_draining(word[7:]) for word in words if word.startswith("parted=")),
        **COMMON,
    )
    yield with_previous_owners(old, balancer)


def _declared_name(network: str) -> DeclarativeSpec:
    return DeclarativeSpec(network_id=network, use=SpecPurpose.LOAD_BALANCER)


def _health_key(balancer: str, word: str) -> HealthKey:
    name, _, port = word.partition(":")
    return (f"{balancer}-{name}", int(port)) if port else f"{balancer}-{name}"


def _parse_draining(text: str) -> RemovedMember:
    transport, _, endpoint = text.partition("/")
    address, _, port = endpoint.rpartition(":")
    until = datetime(2026, 1, 2, tzinfo=UTC)
    return RemovedMember(
        transport=Transport(transport), address=parse_address(address.strip("[]")), port=int(port), until=until
    )


def _listener(
    name: str, old: LoadBalancer | None, size: int, protocol: str, port: str, options: str | None, members: str | None
) -> tuple[Listener, Pool | None]:
    words = (options or "").split(",")
    identity = f"{name}-{protocol}-{port}"
    pool = None if members is None else _pool(identity, old, size, protocol, words, members)
    listener = Listener(
        id=identity,
        protocol=ListenerProtocol(protocol.upper()),
        ports=_ports(port),
        default_pool_id=pool.id if pool else None,
        admin_state_up="off" not in words,
        allowed_cidrs=tuple(
            parse_network(cidr) for word in words if word.startswith("allow=") for cidr in word[6:].split("+")
        ),
        connection_limit=next((int(word[6:]) for word in words if word.startswith("limit=")), -1),
        proxy_port=next((int(word[6:]) for word in words if word.startswith("proxy=")), 0),
        **COMMON,
    )
    return l7_listener(listener, words), pool


def _ports(text: str) -> Ports:
    ends = (word.partition("-") for word in text.split("+") if word)
    return tuple(PortRange(int(first), int(last or first)) for first, _, last in ends)


def _target(text: str | None) -> TargetPort:
    return (text and (int(text) if text.isdecimal() else _ports(text))) or None


def _pool(identity: str, old: LoadBalancer | None, size: int, protocol: str, words: list[str], members: str) -> Pool:
    persistence = None
    for word in words:
        if word.startswith("persist"):
            timeout = int(word[8:]) if "=" in word else None
            persistence = SourceIpPersistence(timeout=timeout)
    pool = Pool(
        id=f"{identity}-pool",
        protocol=pool_protocol(protocol.upper(), words),
        algorithm=next((Algorithm(word) for word in words if word in list(Algorithm)), Algorithm.ROUND_ROBIN),
        persistence=persistence,
        health_monitor=next((_monitor(identity, word[8:]) for word in words if word.startswith("monitor=")), None),
        admin_state_up="pool-off" not in words,
        locality=next((LOCALITIES[word] for word in words if word in LOCALITIES), Locality.NONE),
        down_member=DownMember.RESET if "reset" in words else DownMember.KEEP,
        **COMMON,
    )
    pool = l7_pool(pool, words)
    known = find_pool(old, pool.id) if old else None
    if known:
        pool = replace(pool, tables=known.tables, next_ordinal=known.next_ordinal, members=known.members)
    return with_members(pool, tuple(_members(identity.split("-", maxsplit=1)[0], pool, members)), size)


def _monitor(identity: str, text: str) -> HealthMonitor:
    kind, *words = text.split("+")
    times = {"delay": 5, "timeout": 2, "max_retries": 2, "max_retries_down": 3}
    times |= {name: int(value) for name, _, value in (word.partition("=") for word in words if word != "off")}
    monitor = HttpMonitor if kind in HTTP_MONITORS else PlainMonitor
    return monitor(
        id=f"{identity}-monitor", type=MonitorType(kind), admin_state_up="off" not in words, **times, **COMMON
    )


def _members(balancer: str, pool: Pool, text: str) -> Iterator[Member]:
    ordinals = {member.id: member.ordinal for member in pool.members}
    fresh = pool.next_ordinal
    for word in text.split(",") if text != "-" else []:
        found = MEMBER.match(word)
        assert found, f"not a member: {word}"
        identity = f"{balancer}-{found[1]}"
        yield Member(
            id=identity,
            ordinal=ordinals.get(identity, fresh),
            address=parse_address(found[2].strip("[]")),
            port=_target(found[3]),
            monitor_address=parse_address(found[4].strip("[]")) if found[4] else None,
            monitor_port=int(found[5]) if found[5] else None,
            weight=int(found[6] or 1),
            backup=bool(found[7]),
            admin_state_up=not found[8],
            **COMMON,
        )
        fresh += identity not in ordinals
