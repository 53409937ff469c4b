"""Prove the case harness: plant one bug at a time and see that the stories kill it.

    python scripts/mutate.py            all of them, a line each; exit code 1 if one survives
    python scripts/mutate.py NAME ...   only these

Each mutant is a copy of the source in a temporary folder with one piece of text replaced.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    before: str
    after: str


MUTANTS = (
    Mutant("no deletes", "dataplane/rows.py", "if key not in desired}", "if False}"),
    Mutant("no updates", "dataplane/rows.py", "if key in applied and applied[key] != desired[key]", "if False"),
    Mutant("no creates", "dataplane/rows.py", "for key in sorted(desired) if key not in applied", "for key in ()"),
    Mutant("no retry", "reconciler/queue.py", "heapq.heappush(self._due, (due, str(owner), owner))", "pass"),
    Mutant(
        "stale belief after a failure",
        "reconciler/loop.py",
        "            self._memory.believed.pop(owner, None)\n            self._remember_failure(owner, error)",
        "            self._remember_failure(owner, error)",
    ),
    Mutant(
        "orphans forgotten at resync", "reconciler/loop.py", "for owner in (*owners, *orphans)", "for owner in owners"
    ),
    Mutant(
        "belief kept across an apply that went through",
        "reconciler/loop.py",
        "            self._memory.believed[owner] = desired",
        "            self._memory.believed.setdefault(owner, desired)",
    ),
    Mutant(
        "backups serve first",
        "model/pool_slots.py",
        "in (False, True):\n        weights",
        "in (True, False):\n        weights",
    ),
    Mutant(
        "additional VIPs without listeners",
        "compilers/ovn/compiler.py",
        "for vip, addresses in place.addresses:",
        "for vip, addresses in place.addresses[:1]:",
    ),
    Mutant(
        "who may connect is not looked at",
        "compilers/ovn/compiler.py",
        "if not listener.allowed_cidrs or",
        "if True or",
    ),
    Mutant("an error outlives its cure", "model/status.py", "applied.error is not None:", "applied.error != applied:"),
    Mutant(
        "news lost while waiting",
        "reconciler/queue.py",
        "        self._ready.setdefault(owner, now)\n",
        "",
    ),
    Mutant(
        "a router's change does not reach the VIP networks",
        "model/dependents.py",
        "        yield from vip_networks(topology, port.network_id, topology.projects_through(port.device_id))\n",
        "",
    ),
    Mutant(
        "a router's interface does not reach the router",
        "model/dependents.py",
        "        topology = Topology(snapshot)\n        yield Owner(Kind.ROUTER, port.device_id)\n",
        "        topology = Topology(snapshot)\n",
    ),
    Mutant(
        "affected looks only at the new model",
        "model/affected.py",
        "dependents(old, new, owner)",
        "dependents(new, new, owner)",
    ),
    Mutant(
        "the first VIP does not make its network's group",
        "model/dependents.py",
        "(project_id in before) != (project_id in after)",
        "False",
    ),
    Mutant(
        "shared rows go with their first owner",
        "model/indexes.py",
        "    if group:\n        mutation[key] = group\n",
        "    if group and number > 0:\n        mutation[key] = group\n",
    ),
    Mutant(
        "what a document no longer names stays in the index",
        "model/writing.py",
        "before = None if old is None else index.take(old)",
        "before = None",
    ),
    Mutant("health ignored", "model/pool_slots.py", " and m.id not in down}", "}"),
    Mutant(
        "one family's members are the other's",
        "model/pool_slots.py",
        "if member.address.version == version and ",
        "if ",
    ),
    Mutant("nobody has a home", "model/slots.py", "home if home in away and slot not in self.taken else ", ""),
    Mutant("a comer takes from anybody", "model/slots.py", "        self._replace()\n", ""),
    Mutant("nobody is next", "model/slots.py", "for rank in table.ranks[1:]:", "for rank in ():"),
    Mutant(
        "the next is anybody", "model/slots.py", "[first if first in living else second for first", "[second for first"
    ),
    Mutant(
        "those who stay are dealt anew",
        "model/slots.py",
        "[[m for m in slot if m in after] for slot in zip(*ranks, strict=True)]",
        "[]",
    ),
    Mutant(
        "disabled members served",
        "model/loadbalancer.py",
        "return self.admin_state_up and self.weight > 0",
        "return True",
    ),
    Mutant(
        "slots dealt anew each time",
        "model/pool_slots.py",
        "deal(_table(old, *tier), ",
        "deal(SlotTable(version=tier[0], backup=tier[1]), ",
    ),
    Mutant(
        "who serves parts as well", "compilers/ovn/parting.py", "left[version] - serving[transport]", "left[version]"
    ),
    Mutant("who was removed is forgotten at once", "compilers/ovn/parting.py", "in balancer.parted:", "in ():"),
    Mutant(
        "unsorted services",
        "compilers/ovn/compiler.py",
        "tuple(sorted(entries, key=lambda entry: entry.vip))",
        "tuple(entries)",
    ),
    Mutant(
        "a monitor probes what is disabled",
        "model/probes.py",
        "return (member for member in pool.members if member.admin_state_up)",
        "return iter(pool.members)",
    ),
    Mutant("a disabled monitor works", "model/probes.py", "monitor.admin_state_up and ", ""),
    Mutant(
        "a member whose machine is gone serves",
        "model/probes.py",
        "return Health.GONE",
        "return Health.UNPROBEABLE",
    ),
    Mutant(
        "a machine of another network is probed",
        "model/probes.py",
        "address = member_network(snapshot, balancer, member), probed_address(member)",
        'address = max((n for n, at in snapshot.addresses if at == probed_address(member)), default=""), '
        "probed_address(member)",
    ),
    Mutant(
        "a stranger's port is probed",
        "model/probes.py",
        "return port.project_id == balancer.project_id",
        "return True",
    ),
    Mutant(
        "a port does not reach who probes it",
        "model/dependents.py",
        "    yield from _watchers(snapshot, port)\n",
        "",
    ),
    Mutant(
        "the address of probes does not reach who is probed from it",
        "model/dependents.py",
        "if port.use is PortUse.PROBE:",
        "if False:",
    ),
    Mutant(
        "monitor_port is not looked at", "model/loadbalancer.py", "if member.monitor_port is None else", "if True else"
    ),
    Mutant(
        "a member is taken out for all ports",
        "compilers/ovn/tables.py",
        "member.id in self.out or (member.id, ports[member]) in self.out",
        "any(member.id in (key, key[0]) for key in self.out)",
    ),
    Mutant(
        "every port leads to the first target", "model/port_ranges.py", "tuple(expand(port))", "(port[0].first,) * 9"
    ),
    Mutant("of a range only the first is admitted", "compilers/ovn/compiler.py", "{each.last})", "{each.first})"),
    Mutant(
        "monitor_address is not looked at",
        "model/probes.py",
        "member.monitor_address or member.address",
        "member.address",
    ),
    Mutant(
        "no brackets around IPv6",
        "model/addresses.py",
        'f"[{address!s}]:{port}" if isinstance(address, IPv6Address) else ',
        "",
    ),
    Mutant(
        "a route for the first subnet only",
        "compilers/ovn/compiler.py",
        "in network.subnets:\n        if",
        "in network.subnets[:1]:\n        if",
    ),
    Mutant(
        "options share a row",
        "compilers/ovn/compiler.py",
        "where = (transport, _selection_fields(snapshot.abilities, pool, vip.address.version))",
        "where = (transport, ())",
    ),
    Mutant(
        "every router answers for a VIP outside",
        "model/domain.py",
        "            routers=frozenset({router.id}),\n",
        "            routers=connected.routers,\n",
    ),
    Mutant(
        "nobody answers ARP for a VIP outside",
        "compilers/ovn/uplink.py",
        '"neighbor_responder": "all"',
        '"neighbor_responder": "none"',
    ),
    Mutant(
        "networks beyond are not reached by VIPs outside",
        "model/dependents.py",
        "        for identity in connected.routers:\n            yield from _vip_gateway(snapshot, identity)\n",
        "",
    ),
    Mutant("only the next router is attached", "model/domain.py", "                todo.extend(found)\n", ""),
    Mutant(
        "ways lead through strangers' routers",
        "model/domain.py",
        "for network in networks if not network.shared}",
        "for network in networks}",
    ),
    Mutant(
        "a stranger's network is attached",
        "model/domain.py",
        "if each.project_id == project_id and not each.external)",
        "if not each.external)",
    ),
    Mutant(
        "a stranger's router is attached",
        "model/domain.py",
        "for each in connected.routers if self.serves_only(each, project_id)",
        "for each in connected.routers",
    ),
    Mutant(
        "a router that others use too is attached",
        "model/domain.py",
        "return all(network.project_id == project_id and",
        "return any(network.project_id == project_id and",
    ),
    Mutant(
        "where a subnet is another one the way goes on",
        "model/domain.py",
        "if ranges.overlap(self._subnets(router_id, start)):",
        "if False:",
    ),
    Mutant(
        "everybody is near nobody",
        "model/pool_slots.py",
        "if not living:\n        return everywhere",
        "return everywhere",
    ),
    Mutant("a backup that is near serves first", "model/pool_slots.py", "m.backup == backup and m.takes", "m.takes"),
    Mutant("a port that moves wakes nobody", "model/facts.py", "concerns=_near_members", "concerns=_nobody"),
    Mutant("a chassis that joins wakes nobody", "model/facts.py", "concerns=_near)", "concerns=_nobody)"),
    Mutant("somebody else's machine is near", "model/nearby.py", " and port.project_id == balancer.project_id", ""),
    Mutant(
        "a new address of a port wakes nobody",
        "model/dependents.py",
        "(snapshot.watched, snapshot.near_members)",
        "(snapshot.watched,)",
    ),
    Mutant(
        "groups of near load balancers come and go with nobody",
        "model/dependents.py",
        "if (project_id in near_before) != (project_id in near_after):",
        "if False:",
    ),
    Mutant(
        "a guest leads to machines elsewhere",
        "compilers/ovn/compiler.py",
        "if not ranges.hold(member.address)",
        "if False",
    ),
    Mutant(
        "a guest has floating IPs on another's network",
        "compilers/ovn/compiler.py",
        "vips = tuple((vip, (vip.address,)) for vip in balancer.vips)",
        "vips = addresses",
    ),
    Mutant(
        "guests share a group",
        "model/owner.py",
        'guest = "" if self.guest is None else f"/{self.guest}"',
        'guest = "" if self.guest is None else "/guest"',
    ),
    Mutant(
        "a network that is shared, or not any more, reaches nobody",
        "model/dependents.py",
        "return network and (network.project_id, network.shared, network.external, cidrs)",
        "return network and (network.project_id, network.external, cidrs)",
    ),
    Mutant(
        "a network that grows does not reach its guests",
        "model/dependents.py",
        "            yield from (Owner(Kind.LOAD_BALANCER, identity) for identity in balancers)\n",
        "            pass\n",
    ),
    Mutant(
        "a gateway does not reach the VIP networks",
        "model/dependents.py",
        "            yield from _vip_networks_of_router(snapshot, owner.id)\n",
        "",
    ),
    Mutant(
        "a gateway's address does not reach the router",
        "model/dependents.py",
        "if port.use is PortUse.ROUTER_GATEWAY:\n        yield Owner(Kind.ROUTER, port.device_id)",
        "if port.use is PortUse.ROUTER_GATEWAY:\n        yield from ()",
    ),
    Mutant(
        "an external network does not reach the routers that leave by it",
        "model/dependents.py",
        "for index in (snapshot.network_routers, snapshot.network_gateways):",
        "for index in (snapshot.network_routers,):",
    ),
    Mutant(
        "a floating IP does not reach the load balancer",
        "model/dependents.py",
        "yield Owner(Kind.LOAD_BALANCER, balancer_id)",
        "yield from ()",
    ),
    Mutant(
        "a port does not reach its floating IPs",
        "model/dependents.py",
        "    yield from _floating_ips(snapshot.port_floating_ips, port.id)\n",
        "",
    ),
    Mutant(
        "a router does not reach its floating IPs",
        "model/dependents.py",
        "            yield from _floating_ips(snapshot.router_floating_ips, owner.id)\n",
        "",
    ),
    Mutant(
        "a floating IP leads to an address that is somebody else's by now",
        "compilers/ovn/router.py",
        "if reached and router is not None",
        "if router is not None",
    ),
    Mutant(
        "a gateway asks for what the wire carries alone",
        "compilers/ovn/router.py",
        "for each in {gateway.network_id, *inside})",
        "for each in {gateway.network_id})",
    ),
    Mutant("translated in spite of all", "compilers/ovn/router.py", "if translated:", "if True:"),
    Mutant(
        "two ways to everywhere", "compilers/ovn/router.py", "is not None and anywhere not in taken:", "is not None:"
    ),
    Mutant(
        "every router on the same chassis",
        "compilers/ovn/router.py",
        'f"{router_id} {name}".encode()',
        "name.encode()",
    ),
    Mutant(
        "who comes from outside is not asked",
        "compilers/ovn/compiler.py",
        'words.insert(0, f"outport == @{outside}")',
        "return",
    ),
    Mutant(
        "a floating IP of one VIP leads to all",
        "compilers/ovn/compiler.py",
        " for floating_ip in found if floating_ip.fixed_address == vip.address]",
        " for floating_ip in found]",
    ),
    Mutant(
        "deleted before what refers to it",
        "model/affected.py",
        "key=creation_order, reverse=True",
        "key=creation_order",
    ),
    Mutant(
        "a dataplane has every provider's load balancers",
        "compilers/providers.py",
        "dataplane.compile(view, owner) if narrowed.concerns(view, owner) else NO_ROWS",
        "dataplane.compile(view, owner)",
    ),
    Mutant(
        "one dataplane of several is enough",
        "model/status.py",
        "min((applied.generation for applied in central.values()), default=newest)",
        "max((applied.generation for applied in central.values()), default=newest)",
    ),
    Mutant(
        "a dataplane's failure is everybody's",
        "reconciler/dataplanes.py",
        "if each.dataplane.concerns(snapshot, owner)",
        "if owner.kind in each.dataplane.kinds",
    ),
    Mutant("every chassis has all ports", "model/slices.py", "plugged=Map(plugged)", "plugged=snapshot.plugged"),
    Mutant(
        "a node that fails is not told",
        "model/balancer_status.py",
        "OperatingStatus.DEGRADED if self.applied.failing else OperatingStatus.ONLINE",
        "OperatingStatus.ONLINE",
    ),
)


def survives(mutant: Mutant) -> bool:
    with tempfile.TemporaryDirectory(prefix="fairlead-mutant-") as folder:
        shutil.copytree(ROOT / "src", Path(folder) / "src")
        target = Path(folder) / "src" / "fairlead" / mutant.file
        text = target.read_text()
        if text.count(mutant.before) != 1:
            raise SystemExit(f"{mutant.name}: its text is found {text.count(mutant.before)} times in {mutant.file}")
        target.write_text(text.replace(mutant.before, mutant.after))
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "tests/toy", "tests/cases"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(Path(folder) / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            timeout=120,
            check=False,
        )
    return run.returncode == 0


def main(names: list[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    alive = 0
    for number, mutant in enumerate(chosen, 1):
        lives = survives(mutant)
        alive += lives
        print(f"[{number}/{len(chosen)}] {'SURVIVED' if lives else 'killed  '} {mutant.name}", flush=True)
    print(f"{len(chosen) - alive} of {len(chosen)} killed")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
