"""Hosts, routers and the outside as namespaces, and the links between them.

A link is cut silently, as in a fabric with switches in between: neither end loses its carrier, so only periodic probes
detect it. The cut is an nftables rule at the router's end, because nftables on hosts belongs to the host.
"""

from collections.abc import Sequence

from fairlead.lab import namespaces
from fairlead.lab.layout import Layout
from fairlead.lab.namespaces import LinkEnd
from fairlead.lab.native.plan import MTU, ROUTERS, FabricLink, FabricRouter, Site, link
from fairlead.lab.processes import LabCommand, run

FORWARDING_SYSCTLS = {"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1"}
MULTIPATH_SYSCTLS = {
    f"{version}/fib_multipath_hash_{key}": value
    for version in ("ipv4", "ipv6")
    for key, value in (("policy", "3"), ("fields", "0x37"))
}
"""Multipath hash over the packet's 5-tuple (ip-sysctl). With policy 1 Linux uses the socket's random hash, because it
has access to the socket."""
RP_FILTER_SYSCTLS = {"ipv4/conf/default/rp_filter": "2"}
"""rp_filter of hosts, as systemd sets it."""


def create_router(layout: Layout, router: FabricRouter) -> None:
    namespace = layout.namespace(router.name)
    namespaces.add(namespace)
    namespaces.write_settings(namespace, {**FORWARDING_SYSCTLS, **MULTIPATH_SYSCTLS})
    namespaces.configure(namespace, [f"address add {own} dev lo" for own in router.loopback_addresses])
    set_multipath_seed(layout, router, router.number)


def create_site(layout: Layout, site: Site) -> None:
    """Create a site with links to both routers. Unused addresses of its prefixes are unreachable, because packets to
    them would otherwise loop."""
    namespace = layout.namespace(site.name)
    namespaces.add(namespace)
    settings = {**FORWARDING_SYSCTLS, **(RP_FILTER_SYSCTLS if site.number else MULTIPATH_SYSCTLS)}
    namespaces.write_settings(namespace, settings)
    refused = [f"route add unreachable {prefix} metric 4294967295" for prefix in site.prefixes]
    namespaces.configure(namespace, [*(f"address add {own} dev lo" for own in site.loopback_addresses), *refused])
    for router in ROUTERS:
        _connect(layout, link(router, site))


def _connect(layout: Layout, between: FabricLink) -> None:
    router, site = between.router.name, between.site.name
    ends = (
        (LinkEnd(namespace=layout.namespace(router), device=site), between.router_addresses),
        (LinkEnd(namespace=layout.namespace(site), device=router), between.site_addresses),
    )
    namespaces.join(ends[0][0], ends[1][0], MTU)
    for end, addresses in ends:
        lines = [f"address add {each} dev {end.device}" for each in addresses]
        namespaces.configure(end.namespace, [*lines, f"link set {end.device} up"])


def delete_site(layout: Layout, site: Site) -> None:
    """Remove a site, its links first, because with the namespace they would disappear at an unspecified time."""
    for router in ROUTERS:
        namespaces.remove_device(layout.namespace(router.name), site.name)
    namespaces.delete(layout.namespace(site.name))


def set_multipath_seed(layout: Layout, router: FabricRouter, seed: int) -> None:
    """Change the router's multipath hash seed, so that it spreads flows differently."""
    namespaces.write_settings(layout.namespace(router.name), {"ipv4/fib_multipath_hash_seed": str(seed)})


def drop_packets(layout: Layout, links: Sequence[FabricLink]) -> None:
    for each in links:
        table, device = f"netdev cut-{each.site.name}", f'device "{each.site.name}" priority -500'
        chains = [f"chain {way} {{ type filter hook {way} {device}; policy drop; }}" for way in ("ingress", "egress")]
        _nft(layout, each.router, [f"table {table}", f"delete table {table}", f"table {table} {{", *chains, "}"])


def restore_packets(layout: Layout, links: Sequence[FabricLink]) -> None:
    for each in links:
        table = f"netdev cut-{each.site.name}"
        _nft(layout, each.router, [f"table {table}", f"delete table {table}"])


def _nft(layout: Layout, router: FabricRouter, lines: Sequence[str]) -> None:
    argv = namespaces.inside(layout.namespace(router.name), ("nft", "-f", "-"))
    run(LabCommand(argv=argv), stdin="\n".join(lines) + "\n")
