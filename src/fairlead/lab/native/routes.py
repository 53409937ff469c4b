"""Next hops of a place's kernel, as `ip` prints them; the routing daemons' tables may differ."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from fairlead.lab.layout import Layout
from fairlead.lab.native import routing
from fairlead.lab.native.plan import OUTSIDE_SITE, ROUTERS, Site, link, strip_prefix_length
from fairlead.lab.processes import LabCommand, run


class _Hop(msgspec.Struct):
    dev: str
    flags: tuple[str, ...] = ()


class _Route(msgspec.Struct):
    dst: str
    dev: str = ""
    flags: tuple[str, ...] = ()
    nexthops: tuple[_Hop, ...] = ()


def read_next_hops(layout: Layout, place: str, version: int) -> Mapping[str, frozenset[str]]:
    """Return destination -> devices of its next hops; each device is named after its peer."""
    argv = ("ip", "-n", layout.namespace(place), f"-{version}", "-json", "route", "show")
    routes = msgspec.json.decode(run(LabCommand(argv=argv)), type=list[_Route])
    return {route.dst: frozenset(_devices(route)) for route in routes if route.dst != "default"}


def _devices(route: _Route) -> Iterator[str]:
    """Yield devices of links that are up."""
    for hop in route.nexthops or (_Hop(route.dev, route.flags),):
        if hop.dev and "dead" not in hop.flags:
            yield hop.dev


def has_all_routes(layout: Layout, hosts: Sequence[Site]) -> bool:
    """Return whether every place has all routes to the addresses and machines of every site, with BFD sessions that
    detect a failure immediately."""
    sites = (*hosts, OUTSIDE_SITE)
    routers = frozenset(router.name for router in ROUTERS)
    for i, version in enumerate((4, 6)):
        for router in ROUTERS:
            ways = read_next_hops(layout, router.name, version)
            if not all(ways.get(to) == frozenset({site.name}) for site in sites for to in _destinations(site, i)):
                return False
        for site in sites:
            ways = read_next_hops(layout, site.name, version)
            others = [other for other in sites if other != site]
            if not all(ways.get(to) == routers for other in others for to in _destinations(other, i)):
                return False
    return all(
        {strip_prefix_length(link(router, site).site_addresses[0]) for site in sites}
        <= routing.list_bfd_peers(layout, router.name)
        for router in ROUTERS
    )


def _destinations(site: Site, i: int) -> tuple[str, str]:
    return site.loopback_addresses[i], site.prefixes[i]
