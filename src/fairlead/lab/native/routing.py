"""FRR in a namespace: its configuration, and its daemons, started one by one with a run directory of their own.

It is independent of an FRR service of the machine. Hosts have the file that operators are given
(`examples/native/frr.conf`), loaded in the same way, by `vtysh -b`. Daemons run as the user of the Debian package,
because zebra and bfdd accept no other, and each detaches when ready.
"""

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from fairlead.lab import namespaces, processes
from fairlead.lab.errors import LabError
from fairlead.lab.layout import Layout
from fairlead.lab.native.plan import ROUTERS, VIP_PREFIXES, FabricLink, FabricRouter, Site, link, strip_prefix_length
from fairlead.lab.processes import LabCommand, run

DAEMON_FOLDER = Path("/usr/lib/frr")
USER = "frr"
PROGRAMS = ("zebra", "bfdd", "bgpd")
"""Daemons in the order of their start: zebra first, because the others connect to it."""
SOCKET_VARIABLE = "FAIRLEAD_LAB_FRR"
VTYSH_SCRIPT = f"""#!/bin/sh
exec /usr/bin/vtysh --vty_socket "${SOCKET_VARIABLE}" --config_dir "${SOCKET_VARIABLE}" "$@"
"""
EXAMPLE_FOLDERS = (
    Path(__file__).parents[4] / "examples" / "native",
    Path(sys.prefix) / "share" / "fairlead" / "native",
)
"""Locations: in the repository, and after `pip install`."""
HIGH_PRIORITY = ("nice", "-n", "-20")
"""High priority, so that BFD keeps its timing while tests use the same CPUs."""
PRIVATE_VAR_TMP = ("sh", "-c", 'mount --bind "$0" /var/tmp && exec "$@"')
"""Private /var/tmp in the mount namespace of `ip netns exec`, so that files of killed daemons are removed with the
lab."""

TRANSIT_CONFIGURATION = """frr defaults datacenter
bgp route-map delay-timer 1
bfd
 profile fabric
  detect-multiplier 3
  receive-interval 100
  transmit-interval 100
 exit
exit
router bgp {system}
 bgp router-id {identity}
 bgp graceful-restart-disable
 coalesce-time 50
 no bgp ebgp-requires-policy
 no bgp network import-check
 bgp bestpath as-path multipath-relax
 neighbor fabric peer-group
 neighbor fabric remote-as external
 neighbor fabric timers 1 3
 neighbor fabric timers connect 1
 neighbor fabric bfd profile fabric
{neighbors}
 address-family ipv4 unicast
{networks4}
  maximum-paths 16
 exit-address-family
 address-family ipv6 unicast
  neighbor fabric activate
{networks6}
  maximum-paths 16
 exit-address-family
exit
"""


def environment(layout: Layout, place: str) -> Mapping[str, str]:
    """Return an environment in which `vtysh` uses the place's daemons."""
    return {**layout.environment(place), SOCKET_VARIABLE: str(folder(layout, place))}


def folder(layout: Layout, place: str) -> Path:
    return layout.node_directory(place) / "frr"


def provide_vtysh(layout: Layout) -> None:
    layout.programs.mkdir(parents=True)
    script = layout.programs / "vtysh"
    script.write_text(VTYSH_SCRIPT)
    script.chmod(0o755)


def read_example(name: str) -> str:
    """Return the text of a file for operators."""
    for place in EXAMPLE_FOLDERS:
        if (place / name).exists():
            return (place / name).read_text()
    raise LabError(f"no {name} in {' or '.join(map(str, EXAMPLE_FOLDERS))}")


def placeholder_values(host: Site) -> Mapping[str, str]:
    """Return the values of the placeholders between at signs in a host's file."""
    routers = [strip_prefix_length(link(router, host).router_addresses[0]) for router in ROUTERS]
    named = {"ADDRESS": host.loopback_addresses, "MACHINES": host.prefixes, "VIPS": VIP_PREFIXES}
    both = {f"{name}{version}": pair[i] for name, pair in named.items() for i, version in enumerate((4, 6))}
    return {"AS": str(host.asn), "ROUTER1": routers[0], "ROUTER2": routers[1], **both}


def render_host(host: Site, file: str = "frr.conf") -> str:
    text = read_example(file)
    for name, value in placeholder_values(host).items():
        text = text.replace(f"@{name}@", value)
    return text


def render_router(router: FabricRouter, sites: Sequence[Site]) -> str:
    """Render a router's configuration; it announces its own address and its ends of links."""
    links = [link(router, site) for site in sites]
    networks = [
        (f"{router.loopback_addresses[0]}/32", f"{router.loopback_addresses[1]}/128"),
        *(each.router_addresses for each in links),
    ]
    return _transit(router.asn, router.loopback_addresses[0], [each.site_addresses[0] for each in links], networks)


def render_outside(outside: Site) -> str:
    """Render the configuration of the outside, which stands for the Internet: it uses both routers for every route."""
    networks = [(f"{outside.loopback_addresses[0]}/32", f"{outside.loopback_addresses[1]}/128"), outside.prefixes]
    neighbors = [link(router, outside).router_addresses[0] for router in ROUTERS]
    return _transit(outside.asn, outside.loopback_addresses[0], neighbors, networks)


def _transit(system: int, identity: str, neighbors: Sequence[str], networks: Sequence[tuple[str, str]]) -> str:
    return TRANSIT_CONFIGURATION.format(
        system=system,
        identity=identity,
        neighbors="\n".join(f" neighbor {strip_prefix_length(each)} peer-group fabric" for each in neighbors),
        networks4="\n".join(f"  network {four}" for four, _ in networks),
        networks6="\n".join(f"  network {six}" for _, six in networks),
    )


def start(layout: Layout, place: str, configuration: str) -> None:
    """Start the daemons of a place, after ending earlier ones; returns when they have read the configuration, before
    sessions are established."""
    kill(layout, place)
    own = folder(layout, place)
    own.mkdir(parents=True, exist_ok=True)
    (own / "frr.conf").write_text(configuration)
    (own / "vtysh.conf").touch()
    shutil.chown(own, USER, USER)
    for program in PROGRAMS:
        command = (*HIGH_PRIORITY, *PRIVATE_VAR_TMP, str(own), *_start_daemon(own, program))
        run(
            LabCommand(argv=namespaces.inside(layout.namespace(place), command), environment=environment(layout, place))
        )
    said = run_vtysh(layout, place, "-b")
    if "%" in said:  # the exit code is 0 even after errors
        raise LabError(f"{place}: FRR rejects its configuration: {said.strip()}")


def _start_daemon(own: Path, program: str) -> Iterator[str]:
    yield from (str(DAEMON_FOLDER / program), "--daemon", "--user", USER, "--group", USER, "--vty_port", "0")
    yield from ("--vty_socket", str(own), "--socket", str(own / "zserv.api"), "--pid_file", str(own / f"{program}.pid"))
    yield from ("--log", f"file:{own / program}.log")
    if program == "zebra":
        # otherwise an IPv6 route is replaced by deletion and addition, and is missing for a moment
        yield "--v6-rr-semantics"
    if program == "bfdd":
        yield from ("--bfdctl", str(own / "bfdd.sock"))


def run_vtysh(layout: Layout, place: str, *words: str) -> str:
    """Run vtysh with these arguments and return its output."""
    return run(LabCommand(argv=(str(layout.programs / "vtysh"), *words), environment=environment(layout, place)))


def configure(layout: Layout, place: str, *lines: str) -> None:
    words = [word for line in ("configure terminal", *lines) for word in ("-c", line)]
    if "%" in (said := run_vtysh(layout, place, *words)):
        raise LabError(f"{place}: FRR rejects {lines}: {said.strip()}")


class _Peer(msgspec.Struct):
    peer: str
    status: str


def list_bfd_peers(layout: Layout, router: str) -> frozenset[str]:
    """Return the addresses of peers with a BFD session that is up."""
    peers = msgspec.json.decode(run_vtysh(layout, router, "-c", "show bfd peers json"), type=list[_Peer])
    return frozenset(each.peer for each in peers if each.status == "up")


def pids(layout: Layout, place: str) -> Mapping[str, int | None]:
    return {program: processes.read_pidfile(folder(layout, place) / f"{program}.pid") for program in PROGRAMS}


def kill(layout: Layout, place: str) -> None:
    """Kill the daemons immediately, as a crash does."""
    found = [pid for pid in pids(layout, place).values() if pid is not None]
    processes.kill(found, lambda pid: processes.is_marked(pid, layout.directory))


def end_session(layout: Layout, between: FabricLink) -> None:
    _configure_session(layout, between, "neighbor {} shutdown")


def begin_session(layout: Layout, between: FabricLink) -> None:
    _configure_session(layout, between, "no neighbor {} shutdown")


def _configure_session(layout: Layout, between: FabricLink, line: str) -> None:
    """Configure a session at the router."""
    router = between.router
    configure(
        layout, router.name, f"router bgp {router.asn}", line.format(strip_prefix_length(between.site_addresses[0]))
    )
