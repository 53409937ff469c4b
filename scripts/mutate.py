"""Prove the case harness: plant one bug at a time and see that the stories kill it.

    python scripts/mutate.py            all of them, a line each; exit code 1 if one survives
    python scripts/mutate.py NAME ...   only these
    python scripts/mutate.py --changed [--base REVISION]
                                        only those in files that changed since REVISION (default: origin/main, or main)

Each mutant is one piece of a source's text replaced: in a fork of a process that has all tests and modules; where only
an import would make the difference, in a copy of the sources in a temporary folder.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from fault_planting import ForkedRuns, plant_bug
from parts import changed_files, default_base

ROOT = Path(__file__).parent.parent
MAX_CONCURRENT = 2
"""Concurrent runs, in parallel with tests that wait most of the time."""
RUN_TIMEOUT = 900
"""Seconds; the stories take twenty on an idle machine, and this one may be busy."""


HOSTS = (
    "tests/native/test_stories.py",
    "tests/native/test_explaining.py",
    "tests/native/test_peers.py",
    "tests/native/test_returns.py",
    "tests/changes/test_behind.py",
    "tests/changes/test_hosts.py",
    "tests/changes/test_moved_slots.py",
    "tests/model/test_host_proxies.py",
    "tests/model/test_own_addresses.py",
)
"""Tests of plain hosts that serve announced VIPs."""
STORIES = ("tests/toy", "tests/cases", "tests/haproxy/test_stories.py")


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...] = STORIES
    """Tests that must fail."""


MUTANTS = (
    Mutant(
        "a drained host gets what is new",
        "compilers/native/compiler.py",
        "host is not None and host.draining}",
        "False}",
        HOSTS,
    ),
    Mutant(
        "a host that is back breaks what others got meanwhile",
        "compilers/native/compiler.py",
        "host is not None and host.returning_until is not None}",
        "False}",
        HOSTS,
    ),
    Mutant(
        "a member that is up again breaks what others got meanwhile",
        "compilers/native/compiler.py",
        "back | view.returned.get(balancer.id, frozenset())",
        "back",
        HOSTS,
    ),
    Mutant(
        "what no host serves is online",
        "model/queries/balancer_state.py",
        "return host is not None and host.name in snapshot.agents",
        "return True",
        ("tests/model/test_balancer_status.py",),
    ),
    Mutant(
        "nobody knows that a host is silent",
        "model/queries/balancer_state.py",
        "host is None or is_responsive(snapshot, host.name) for",
        "True for",
        ("tests/model/test_balancer_status.py",),
    ),
    Mutant("who is up again is remembered for ever", "node/returned_members.py", "if until > now}", "}", HOSTS),
    Mutant(
        "a host that is drained loses what was begun",
        "compilers/native/compiler.py",
        ", **_moved(slots, now)}",
        "}",
        HOSTS,
    ),
    Mutant(
        "on hosts who is down serves",
        "compilers/native/compiler.py",
        "view.down.get(balancer.id, frozenset()) | nowhere",
        "nowhere",
        HOSTS,
    ),
    Mutant("a lost host serves", "compilers/native/compiler.py", " or host.name in view.lost_hosts", "", HOSTS),
    Mutant(
        "on hosts slots that moved are forgotten",
        "compilers/native/compiler.py",
        "if is_here and (had := self.other_host_of(address)) is not None:",
        "if False:",
        HOSTS,
    ),
    Mutant(
        "every host asks who had a slot before",
        "compilers/native/compiler.py",
        "if is_here and (had",
        "if (had",
        HOSTS,
    ),
    Mutant("hosts let everybody in", "compilers/native/compiler.py", "    if not allowed:", "    if True:", HOSTS),
    Mutant(
        "hosts let in addresses of another IP version",
        "compilers/native/compiler.py",
        "for each in allowed if each.version == version)",
        "for each in allowed)",
        HOSTS,
    ),
    Mutant("every host announces", "compilers/native/compiler.py", "is_local=is_held", "is_local=True", HOSTS),
    Mutant(
        "a drained proxy's packets end nowhere",
        "compilers/native/compiler.py",
        "is_received=has_proxy and not is_held",
        "is_received=False",
        HOSTS,
    ),
    Mutant(
        "a drained proxy gets new connections",
        "model/queries/host_proxies.py",
        "staying = tuple(sorted(host.name for host in found if not host.draining)) or names",
        "staying = names",
        HOSTS,
    ),
    Mutant(
        "a proxy serves whatever it says",
        "model/queries/host_proxies.py",
        "if proxy is not None and number in proxy.serving]",
        "if proxy is not None]",
        HOSTS,
    ),
    Mutant(
        "a host that is drained changes no proxies' slots",
        "model/registry/dependents.py",
        "        yield from owners_with_host_proxies(after.snapshot)\n",
        "        yield from ()\n",
        HOSTS,
    ),
    Mutant(
        "the first proxied load balancer brings no process",
        "model/registry/dependents.py",
        "if is_on_hosts(snapshot, place) and (place in old.proxied) != (place in new.proxied):",
        "if False:",
        HOSTS,
    ),
    Mutant(
        "clients that a proxy remembers come to any",
        "model/queries/host_proxies.py",
        "return any(each is not None and each.type in _STATEFUL_PERSISTENCE for each in persistence)",
        "return False",
        HOSTS,
    ),
    Mutant(
        "a host has a way to itself",
        "compilers/native/compiler.py",
        "    elif (address := find_tunnel_endpoint",
        "    if (address := find_tunnel_endpoint",
        HOSTS,
    ),
    Mutant(
        "services lead to all addresses of a host itself",
        "model/queries/placement.py",
        "for each in host.addresses if find_routing_host(snapshot, each) is not None)",
        "for each in host.addresses)",
        HOSTS,
    ),
    Mutant(
        "members are where a host is itself",
        "model/queries/placement.py",
        "return host if address in list_member_addresses(snapshot, host) else None",
        "return host",
        HOSTS,
    ),
    Mutant(
        "no members run on hosts",
        "model/queries/placement.py",
        "return host if address in list_member_addresses(snapshot, host) else None",
        "return None",
        HOSTS,
    ),
    Mutant(
        "proxies lead to hosts themselves",
        "compilers/haproxy/backends.py",
        "failed |= find_unrouted_members(view, balancer, pool.members)",
        "pass",
        HOSTS,
    ),
    Mutant(
        "a host's own addresses concern nobody",
        "model/queries/host_facts.py",
        "for address in before ^ after}",
        "for address in before & after}",
        HOSTS,
    ),
    Mutant(
        "a host says what is behind others",
        "model/queries/placement.py",
        "if behind is not None and behind[0].name == name)",
        "if behind is not None)",
        HOSTS,
    ),
    Mutant(
        "a flow by its source has another slot",
        "compilers/native/flow_lookup.py",
        "source_slot(flow.client[0], service.vip) if service.hashes_source_only else _slot(flow)",
        "_slot(flow)",
        HOSTS,
    ),
    Mutant(
        "members behind hosts for others",
        "model/queries/placement.py",
        "if found is not None and found[1].project_id in (None, balancer.project_id) else",
        "if found is not None else",
        HOSTS,
    ),
    Mutant(
        "a slot of another IP version moved",
        "model/documents/previous_slot_owners.py",
        "setdefault((moved.listener_id, moved.before.version)",
        "setdefault((moved.listener_id, 10 - moved.previous_owners.version)",
        HOSTS,
    ),
    Mutant(
        "a slot remembers for ever", "model/documents/previous_slot_owners.py", "moved.until > when.now and ", "", HOSTS
    ),
    Mutant(
        "a host that is gone is asked for what it had",
        "model/registry/kinds.py",
        "there | {each.before for each in balancer.moved}",
        "there",
        HOSTS,
    ),
    Mutant(
        "members are probed anywhere",
        "changes/member_placement.py",
        "yield probed, True",
        "yield member.address, True",
        HOSTS,
    ),
    Mutant(
        "hosts are changed and nobody hears of it",
        "model/registry/dependents.py",
        "host.draining, host.returning_until is not None",
        "False, False",
        HOSTS,
    ),
    Mutant("no deletes", "dataplane/rows.py", "if key not in desired}", "if False}"),
    Mutant("no updates", "dataplane/rows.py", "if key in applied and applied[key] != desired[key]", "if False"),
    Mutant("no creates", "dataplane/rows.py", "for key in keys if key not in applied", "for key in ()"),
    Mutant("no retry", "reconciler/queue.py", "heapq.heappush(self._due, (due, str(owner), owner))", "pass"),
    Mutant(
        "stale belief after a failure",
        "reconciler/outcomes.py",
        "        self._memory.last_applied.pop(owner, None)\n        self.record_failure(owner, error)",
        "        self.record_failure(owner, error)",
    ),
    Mutant(
        "orphans forgotten at resync",
        "reconciler/resync.py",
        "for owner in (*owners, *orphans)",
        "for owner in owners",
    ),
    Mutant(
        "owners that were refused together are forgotten",
        "reconciler/outcomes.py",
        "        self._queue.requeue_first(owners, self._clock())",
        "        pass",
        (*HOSTS, "tests/reconciler/test_together.py"),
    ),
    Mutant(
        "belief kept across an apply that went through",
        "reconciler/outcomes.py",
        "            self._memory.last_applied[owner] = desired",
        "            self._memory.last_applied.setdefault(owner, desired)",
    ),
    Mutant("proxies lead to who is down", "compilers/haproxy/backends.py", "or member.id in failed", ""),
    Mutant("proxies lead near to who is down", "compilers/haproxy/backends.py", "own - failed", "own"),
    Mutant("proxies lead to all who are near", "compilers/haproxy/backends.py", " or member.id not in near", ""),
    Mutant("first bytes of anything", "compilers/haproxy/frontends.py", '"-m", "bin", "--"', '"-m", "len", "--"'),
    Mutant(
        "first bytes for ever",
        "compilers/haproxy/frontends.py",
        "DEFAULT_INSPECT_DELAY_MS, MAX_INSPECT_DELAY_MS))",
        "DEFAULT_INSPECT_DELAY_MS, 2**31))",
    ),
    Mutant("proxies let everybody in", "compilers/haproxy/frontends.py", '"reject", "unless", "allowed"', '"accept"'),
    Mutant(
        "policies in slots that are in use",
        "dataplane/haproxy_policies.py",
        "if rank == FREE_RANK and slot not in recent",
        "if slot not in recent",
        ("tests/dataplane/test_haproxy_policies.py",),
    ),
    Mutant(
        "values of rules are commands",
        "dataplane/haproxy_commands.py",
        'f"\\\\{chr(code)}"',
        "chr(code)",
        ("tests/dataplane/test_haproxy_policies.py",),
    ),
    Mutant(
        "commands of policies without a limit",
        "dataplane/haproxy_commands.py",
        "number > MAX_POLICY_COMMANDS",
        "number > 2**31",
        ("tests/dataplane/test_haproxy_policies.py",),
    ),
    Mutant(
        "values of any number in one HAProxy",
        "drivers/haproxy/network.py",
        "total > MAX_PROCESS_PATTERNS",
        "desired_policies > MAX_PROCESS_PATTERNS",
        ("tests/drivers/test_haproxy_files.py",),
    ),
    Mutant("policies by position alone", "compilers/haproxy/policies.py", "_ORDER[type(each[0].action)]", "0"),
    Mutant(
        "a guest in a proxy of another",
        "model/documents/proxy_place.py",
        "return ProxyPlace(balancer.router_id or balancer.vip.network_id, balancer.project_id)",
        'return ProxyPlace(balancer.router_id or balancer.vip.network_id, "city")',
    ),
    Mutant(
        "a guest's proxy leaves by the gateway of the network's owner",
        "model/queries/proxy_homes.py",
        "        elif is_guest:\n",
        "        elif not is_guest:\n",
    ),
    Mutant(
        "a guest's proxy leaves by another guest's router",
        "model/queries/proxy_homes.py",
        "for each in there if topology.is_exclusive_to(each, project_id))",
        "for each in there)",
    ),
    Mutant(
        "proxies of all projects on a network are one process",
        "model/queries/proxies.py",
        'return f"{place.at}/{place.project_id}" if is_guest else place.at',
        "return place.at",
    ),
    Mutant(
        "proxies for VIPs outside leave by another router",
        "model/queries/proxy_homes.py",
        "            default = _address_of(snapshot, place.at, network, subnet)",
        "            default = subnet.gateway",
    ),
    Mutant(
        "the proxy's port told to members",
        "compilers/haproxy/destinations.py",
        "str(listener.port)",
        "str(listener.proxy_port)",
    ),
    Mutant("another server with the number of a member", "compilers/haproxy/backends.py", "member.ordinal + 1", "1"),
    Mutant(
        "backups serve first",
        "model/documents/pool_slot_tables.py",
        "in (False, True):\n        if living",
        "in (True, False):\n        if living",
    ),
    Mutant(
        "additional VIPs without listeners",
        "compilers/ovn/balancers.py",
        "for vip, addresses in place.addresses:",
        "for vip, addresses in place.addresses[:1]:",
    ),
    Mutant(
        "who may connect is not looked at",
        "compilers/ovn/admission.py",
        "if not listener.allowed_cidrs or",
        "if True or",
    ),
    Mutant(
        "an error outlives its cure",
        "model/documents/status.py",
        "applied.error is not None:",
        "applied.error != applied:",
    ),
    Mutant(
        "a project with many owners keeps another one waiting for all of them",
        "reconciler/queue.py",
        "            self._turns.move_to_end(tenant)\n",
        "",
        ("tests/reconciler/test_tenants.py", "tests/reconciler/test_queue.py"),
    ),
    Mutant(
        "each listener repeats the members of its pool",
        "model/queries/proxy_backends.py",
        'return ":".join((pool.id, *self._settings(pool, listener)))',
        'return ":".join((pool.id, listener.id, *self._settings(pool, listener)))',
        ("tests/compilers/test_haproxy.py",),
    ),
    Mutant(
        "an HAProxy may have any number of servers",
        "changes/proxy_limits.py",
        "                if total > most:\n",
        "                if False:\n",
        ("tests/api/octavia/test_proxy_servers.py",),
    ),
    Mutant(
        "an owner beside one whose sections HAProxy does not load is left out, too",
        "drivers/haproxy/validation.py",
        "        if len(owners) == 1:\n",
        "        if len(owners) <= 2:\n",
        ("tests/drivers/test_haproxy_unsound.py::test_broken_owners_are_found_with_few_checks",),
    ),
    Mutant(
        "datagrams of disabled members go on",
        "model/queries/conntrack_flush.py",
        "if not each.admin_state_up}",
        "if False}",
        ("tests/model/test_cutting.py",),
    ),
    Mutant(
        "datagrams of a deleted load balancer go on",
        "model/queries/conntrack_flush.py",
        "had & has if twin_id else had\n",
        "had & has\n",
        ("tests/model/test_cutting.py",),
    ),
    Mutant(
        "news lost while waiting",
        "reconciler/queue.py",
        "                line.add(owner, self._tenant_of(owner), now)\n",
        "                pass\n",
    ),
    Mutant(
        "a router's change does not reach the VIP networks",
        "model/registry/dependents.py",
        "        yield from vip_networks(topology, port.network_id, topology.projects_crossing(port.device_id))\n",
        "",
    ),
    Mutant(
        "a router's interface does not reach the router",
        "model/registry/dependents.py",
        "        yield Owner(Kind.ROUTER, port.device_id)\n        yield from vip_networks(",
        "        yield from vip_networks(",
    ),
    Mutant(
        "affected looks only at the new model",
        "model/registry/affected.py",
        "dependents(before, after, owner)",
        "dependents(after, after, owner)",
    ),
    Mutant(
        "the first VIP does not make its network's group",
        "model/registry/dependents.py",
        "if _is_presence_changed(old.vip_projects, new.vip_projects, network_id, project_id):",
        "if False:",
    ),
    Mutant(
        "shared rows go with their first owner",
        "model/documents/indexes.py",
        "    if group:\n        mutation[key] = group\n",
        "    if group and number > 0:\n        mutation[key] = group\n",
    ),
    Mutant(
        "what a document no longer names stays in the index",
        "model/registry/changeset.py",
        "before = None if old is None else index.extract(old)",
        "before = None",
    ),
    Mutant("health ignored", "model/documents/pool_slot_tables.py", " and m.id not in down\n", "\n"),
    Mutant(
        "one family's members are the other's",
        "model/documents/pool_slot_tables.py",
        "if m.address.version == version and ",
        "if ",
    ),
    Mutant(
        "nobody has a home",
        "model/documents/slots.py",
        "home if home in away and slot not in self.reassigned else ",
        "",
    ),
    Mutant("a comer takes from anybody", "model/documents/slots.py", "        self._replace_removed()\n", ""),
    Mutant("nobody is next", "model/documents/slots.py", "for rank in table.ranks[1:]:", "for rank in ():"),
    Mutant(
        "the next is anybody",
        "model/documents/slots.py",
        "[first if first in living else second for first",
        "[second for first",
    ),
    Mutant(
        "those who stay are dealt anew",
        "model/documents/slots.py",
        "[[m for m in slot if m in after] for slot in zip(*ranks, strict=True)]",
        "[]",
    ),
    Mutant(
        "disabled members served",
        "model/documents/loadbalancer.py",
        "return self.admin_state_up and self.weight > 0",
        "return True",
    ),
    Mutant(
        "slots dealt anew each time",
        "model/documents/pool_slot_tables.py",
        "_table(old, *tier), _weights(old, *tier)",
        "SlotTable(version=tier[0], backup=tier[1]), _weights(old, *tier)",
    ),
    Mutant(
        "who serves parts as well", "compilers/ovn/draining.py", "left[version] - serving[transport]", "left[version]"
    ),
    Mutant("who was removed is forgotten at once", "compilers/ovn/draining.py", "in balancer.parted:", "in ():"),
    Mutant(
        "unsorted services",
        "compilers/ovn/balancers.py",
        "tuple(sorted(entries, key=lambda entry: entry.vip))",
        "tuple(entries)",
    ),
    Mutant(
        "a monitor probes what is disabled",
        "model/queries/probes.py",
        "return (member for member in pool.members if member.admin_state_up)",
        "return iter(pool.members)",
    ),
    Mutant("a disabled monitor works", "model/queries/probes.py", "monitor.admin_state_up and ", ""),
    Mutant(
        "a member whose machine is gone serves",
        "model/queries/probes.py",
        "return Health.GONE",
        "return Health.UNPROBEABLE",
    ),
    Mutant("a replica that is down serves", "model/queries/replicas.py", " and each.port_id not in down", ""),
    Mutant(
        "somebody else's port is a replica",
        "model/queries/replicas.py",
        "if (port.project_id, port.network_id) != (local_ip.project_id, local_ip.network_id):",
        "if False:",
    ),
    Mutant(
        "replicas are probed where the first service is",
        "model/queries/replica_probes.py",
        "replica.address, monitor.port",
        "replica.address, 1",
    ),
    Mutant(
        "a monitor of a Local IP is of any type",
        "compilers/ovn/monitors.py",
        'raise Unsupported(f"health monitors of type {monitor.type} for Local IPs", PROVIDER)',
        "return",
    ),
    Mutant(
        "a machine of another network is probed",
        "model/queries/probes.py",
        "address = member_network(snapshot, balancer, member), probed_address(member)",
        'address = max((n for n, at in snapshot.addresses if at == probed_address(member)), default=""), '
        "probed_address(member)",
    ),
    Mutant(
        "a stranger's port is probed",
        "model/queries/probes.py",
        "return port.project_id == balancer.project_id",
        "return True",
    ),
    Mutant(
        "a port does not reach who probes it",
        "model/registry/dependents.py",
        "    yield from _dependents_of_probed_port(snapshot, port)\n",
        "",
    ),
    Mutant(
        "the address of probes does not reach who is probed from it",
        "model/registry/dependents.py",
        "if port.use is PortUse.PROBE and not is_unmanaged(port):",
        "if False:",
    ),
    Mutant(
        "monitor_port is not looked at",
        "model/documents/member_ports.py",
        "if member.monitor_port is None else (",
        "if True else (",
    ),
    Mutant(
        "a member is taken out for all ports",
        "compilers/ovn/tables.py",
        "member.id in self.down or (member.id, ports[member]) in self.down",
        "any(member.id in (key, key[0]) for key in self.down)",
    ),
    Mutant(
        "every port leads to the first target",
        "model/documents/port_ranges.py",
        "tuple(expand(port))",
        "(port[0].first,) * 9",
    ),
    Mutant("of a range only the first is admitted", "compilers/ovn/admission.py", "{each.last})", "{each.first})"),
    Mutant(
        "monitor_address is not looked at",
        "model/documents/loadbalancer.py",
        "member.monitor_address or member.address",
        "member.address",
    ),
    Mutant(
        "no brackets around IPv6",
        "model/documents/addresses.py",
        'f"[{address!s}]:{port}" if isinstance(address, IPv6Address) else ',
        "",
    ),
    Mutant(
        "a route for the first subnet only",
        "compilers/ovn/vip_networks.py",
        "in network.subnets:\n        if",
        "in network.subnets[:1]:\n        if",
    ),
    Mutant(
        "options share a row",
        "compilers/ovn/balancers.py",
        "where = (transport, selection_fields(snapshot.abilities, pool, vip.address.version))",
        "where = (transport, ())",
    ),
    Mutant(
        "SOURCE_IP_PORT is left to the datapath's own hash",
        "model/documents/loadbalancer.py",
        "return self.hashes_source_only or self.algorithm is Algorithm.SOURCE_IP_PORT",
        "return self.hashes_source_only",
    ),
    Mutant(
        "every router answers for a VIP outside",
        "model/queries/domain.py",
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
        "model/registry/dependents.py",
        "        for identity in connected.routers:\n            yield from _vip_gateway(snapshot, identity)\n",
        "",
    ),
    Mutant("only the next router is attached", "model/queries/domain.py", "                todo.extend(found)\n", ""),
    Mutant(
        "ways lead through strangers' routers",
        "model/queries/domain.py",
        "for network in networks if not network.shared}",
        "for network in networks}",
    ),
    Mutant(
        "a stranger's network is attached",
        "model/queries/domain.py",
        "if each.project_id == project_id and not each.external)",
        "if not each.external)",
    ),
    Mutant(
        "a stranger's router is attached",
        "model/queries/domain.py",
        "for each in connected.routers if self.is_exclusive_to(each, project_id)",
        "for each in connected.routers",
    ),
    Mutant(
        "a router that others use too is attached",
        "model/queries/domain.py",
        "return all(network.project_id == project_id and",
        "return any(network.project_id == project_id and",
    ),
    Mutant(
        "where a subnet is another one the way goes on",
        "model/queries/domain.py",
        "if ranges.overlap(self._subnets(router_id, start)):",
        "if False:",
    ),
    Mutant(
        "who keeps connections of members that are down has them reset",
        "model/queries/connection_resets.py",
        "pool.down_member is DownMember.RESET and pool.protocol in STREAM_PROTOCOLS",
        "pool.protocol in STREAM_PROTOCOLS",
    ),
    Mutant(
        "datagrams go where only streams are reset",
        "model/queries/connection_resets.py",
        "pool.down_member is DownMember.RESET and pool.protocol in STREAM_PROTOCOLS",
        "pool.down_member is DownMember.RESET",
    ),
    Mutant(
        "streams are reset by an address of the other family",
        "model/queries/connection_resets.py",
        "if address.version == version",
        "if address",
    ),
    Mutant(
        "streams are reset while a member serves",
        "compilers/ovn/balancers.py",
        "backends or nobody",
        "nobody or backends",
    ),
    Mutant(
        "everybody is near nobody", "model/documents/pool_slot_tables.py", "for members in near:", "for members in ():"
    ),
    Mutant(
        "the nearest or nobody",
        "model/documents/pool_slot_tables.py",
        "for members in near:",
        "for members in list(near)[:1]:",
    ),
    Mutant(
        "the zone serves before the chassis",
        "model/queries/locality_tiers.py",
        "tiers = (own, *tiers)",
        "tiers = (*tiers, own)",
    ),
    Mutant(
        "only equal zones are one", "model/queries/locality_tiers.py", "if not zones.isdisjoint(its)", "if zones == its"
    ),
    Mutant(
        "nobody is alone in a zone",
        "model/queries/locality_tiers.py",
        "if pool.locality is Locality.CHASSIS else {}",
        "",
    ),
    Mutant(
        "a chassis in another zone wakes nobody",
        "model/registry/facts.py",
        "if any(_zones(old, name) != _zones(new, name) for name in news):",
        "if any((name in old.chassis) != (name in new.chassis) for name in news):",
    ),
    Mutant(
        "a backup that is near serves first",
        "model/documents/pool_slot_tables.py",
        "m.backup == backup and m.takes",
        "m.takes",
    ),
    Mutant(
        "a port that moves wakes nobody",
        "model/registry/facts.py",
        "yield from _balancers_with_locality_at(old, new, news)",
        "yield from ()",
    ),
    Mutant(
        "a chassis that joins wakes nobody",
        "model/registry/facts.py",
        "affected_owners=_dependents_of_chassis,",
        "affected_owners=_no_owners,",
    ),
    Mutant(
        "somebody else's machine is near",
        "model/queries/locality_tiers.py",
        " and port.project_id == balancer.project_id",
        "",
    ),
    Mutant(
        "a new address of a port wakes nobody",
        "model/registry/dependents.py",
        "(snapshot.watched, snapshot.near_members)",
        "(snapshot.watched,)",
    ),
    Mutant(
        "groups of near load balancers come and go with nobody",
        "model/registry/dependents.py",
        "if _is_presence_changed(old.near_projects, new.near_projects, network_id, project_id):",
        "if False:",
    ),
    Mutant(
        "groups of near load balancers at a gateway come and go with nobody",
        "model/registry/dependents.py",
        "if (balancer.router_id in old.near_gateways) != (balancer.router_id in new.near_gateways):",
        "if False:",
    ),
    Mutant(
        "a guest leads to machines elsewhere",
        "compilers/ovn/balancers.py",
        "if not ranges.contains(member.address)",
        "if False",
    ),
    Mutant(
        "a guest has floating IPs on another's network",
        "compilers/ovn/balancers.py",
        "vips = tuple((vip, (vip.address,)) for vip in held)",
        "vips = addresses",
    ),
    Mutant(
        "guests share a group",
        "model/documents/owner.py",
        'guest = "" if self.guest is None else f"/{self.guest}"',
        'guest = "" if self.guest is None else "/guest"',
    ),
    Mutant(
        "a network that is shared, or not any more, reaches nobody",
        "model/registry/dependents.py",
        "return network and (network.project_id, network.shared, network.external, cidrs)",
        "return network and (network.project_id, network.external, cidrs)",
    ),
    Mutant(
        "a network that grows does not reach its guests",
        "model/registry/dependents.py",
        "            yield from (Owner(Kind.LOAD_BALANCER, identity) for identity in balancers)\n",
        "            pass\n",
    ),
    Mutant(
        "a gateway does not reach the VIP networks",
        "model/registry/dependents.py",
        "            yield from _vip_networks_of_router(topology, owner.id)\n",
        "",
    ),
    Mutant(
        "a gateway's address does not reach the router",
        "model/registry/dependents.py",
        "if port.use is PortUse.ROUTER_GATEWAY:\n        yield Owner(Kind.ROUTER, port.device_id)",
        "if port.use is PortUse.ROUTER_GATEWAY:\n        yield from ()",
    ),
    Mutant(
        "an external network does not reach the routers that leave by it",
        "model/registry/dependents.py",
        "for index in (snapshot.network_routers, snapshot.network_gateways):",
        "for index in (snapshot.network_routers,):",
    ),
    Mutant(
        "a floating IP does not reach the load balancer",
        "model/registry/dependents.py",
        "yield Owner(Kind.LOAD_BALANCER, balancer_id)",
        "yield from ()",
    ),
    Mutant(
        "a port does not reach its floating IPs",
        "model/registry/dependents.py",
        "    yield from _floating_ips(snapshot.port_floating_ips, port.id)\n",
        "",
    ),
    Mutant(
        "a router does not reach its floating IPs",
        "model/registry/dependents.py",
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
        "compilers/ovn/admission.py",
        'words.insert(0, f"outport == @{groups.outside}")',
        "return",
    ),
    Mutant(
        "a floating IP of one VIP leads to all",
        "model/snapshot.py",
        "if floating_ip.fixed_address == vip.address and (",
        "if (",
    ),
    Mutant(
        "clients outside are not counted",
        "compilers/ovn/balancers.py",
        "                if address in place.outside:\n",
        "                if False:\n",
    ),
    Mutant(
        "deleted before what refers to it",
        "model/registry/affected.py",
        "key=creation_order, reverse=True",
        "key=creation_order",
    ),
    Mutant(
        "a dataplane has every provider's load balancers",
        "compilers/providers.py",
        "(yield from dataplane.compile_in_steps(view, owner)) if narrowed.concerns(view, owner) else NO_ROWS",
        "(yield from dataplane.compile_in_steps(view, owner))",
    ),
    Mutant(
        "one dataplane of several is enough",
        "model/documents/status.py",
        "min((applied.generation for applied in known.values()), default=newest)",
        "max((applied.generation for applied in known.values()), default=newest)",
    ),
    Mutant(
        "a dataplane's failure is everybody's",
        "reconciler/dataplanes.py",
        "if each.dataplane.concerns(snapshot, owner)",
        "if owner.kind in each.dataplane.kinds",
    ),
    Mutant(
        "the youngest replica answers", "compilers/ovn/local_ip.py", "str(here[0].address)", "str(here[-1].address)"
    ),
    Mutant("a guest's Local IP is not there", "compilers/ovn/local_ip.py", "if where.guest is not None:", "if False:"),
    Mutant(
        "who has the address of a Local IP is answered for",
        "compilers/ovn/ports.py",
        "if port.id in snapshot.port_local_ips else (own,)",
        "if False else (own,)",
    ),
    Mutant(
        "machines of others are replicas",
        "model/queries/replicas.py",
        "if (port.project_id, port.network_id) != (local_ip.project_id, local_ip.network_id):",
        "if port.network_id != local_ip.network_id:",
    ),
    Mutant(
        "a Local IP without replicas has no load balancer",
        "compilers/ovn/local_ip.py",
        "    where = vip_network(snapshot, local_ip.network_id, local_ip.project_id)\n    address,",
        "    if not local_ip.associations:\n        return\n"
        "    where = vip_network(snapshot, local_ip.network_id, local_ip.project_id)\n    address,",
    ),
    Mutant(
        "the first Local IP of a network does not reach its router",
        "model/registry/dependents.py",
        "if (local_ip.network_id in old.network_local_ips) != (local_ip.network_id in new.network_local_ips):",
        "if False:",
    ),
    Mutant(
        "a Local IP does not reach who has its address",
        "model/registry/dependents.py",
        "if (local_ip.port_id in old.port_local_ips) != (local_ip.port_id in new.port_local_ips):",
        "if False:",
    ),
    Mutant(
        "a replica that moves moves nobody",
        "model/registry/facts.py",
        "    yield from _local_ips_with_replicas(new, news)\n",
        "    return\n",
    ),
    Mutant(
        "who has no replica is never refused",
        "compilers/ovn/local_ip.py",
        "    if local_ip.fallback is Fallback.FORWARD:\n        return",
        "    return",
    ),
    Mutant(
        "what answers the owner is refused",
        "compilers/ovn/local_ip.py",
        '[_to_it(local_ip), "ct.new"] if owner else [_to_it(local_ip)]',
        "[_to_it(local_ip)]",
    ),
    Mutant(
        "a guest refuses at home only",
        "compilers/ovn/local_ip.py",
        ", *([guest_groups(where).inside] if where.guest is not None else [])]",
        "]",
    ),
    Mutant(
        "replicas may not reach the owner",
        "compilers/ovn/local_ip.py",
        "if local_ip.mode is Mode.TRANSLATE and _replica_ports",
        "if False and",
    ),
    Mutant(
        "who has a replica that is down is spared",
        "compilers/ovn/local_ip.py",
        "for each in list_usable_replicas(snapshot, local_ip)]",
        "for each in local_ip.associations]",
    ),
    Mutant(
        "routers lead to who is down",
        "compilers/ovn/local_ip_policies.py",
        "for replica in list_usable_replicas(snapshot, local_ip)",
        "for replica in local_ip.associations",
    ),
    Mutant(
        "routers lead where they are not",
        "compilers/ovn/local_ip_policies.py",
        "if any(replica.address in subnet for subnet in subnets):",
        "if True:",
    ),
    Mutant(
        "routers of others lead to replicas", "compilers/ovn/local_ip_policies.py", "sorted(own & set(", "sorted(set("
    ),
    Mutant(
        "where nobody has the address replicas answer",
        "compilers/ovn/local_ip_policies.py",
        "if find_owner(snapshot, local_ip) is None:",
        "if False:",
    ),
    Mutant(
        "a router that joins leads to no replica",
        "model/registry/affected.py",
        "    owners.update(*(passthrough_local_ips(each, shared) for each in (old, new)))\n",
        "",
    ),
    Mutant(
        "a replica may not have the address that it gets packets for",
        "compilers/ovn/ports.py",
        "if each.mode is Mode.PASSTHROUGH and",
        "if False and",
    ),
    Mutant(
        "an address that was lent is kept",
        "model/registry/dependents.py",
        "_passthrough_ports(was) ^ _passthrough_ports(becomes)",
        "_passthrough_ports(becomes) - _passthrough_ports(was)",
    ),
    Mutant(
        "the first Local IP of a project does not reach its switches",
        "model/registry/dependents.py",
        "            yield from _per_chassis_owners(old, new, snapshot, local_ip.network_id, local_ip.project_id)\n",
        "",
    ),
    Mutant(
        "every chassis has all ports",
        "model/registry/slices.py",
        "plugged=own_plugged(snapshot, chassis)",
        "plugged=snapshot.plugged",
    ),
    Mutant(
        "a node that fails is not told",
        "model/queries/balancer_state.py",
        "(_are_hosts_responsive(snapshot, balancer) and not _has_apply_failure(snapshot, balancer))",
        "_are_hosts_responsive(snapshot, balancer)",
        ("tests/model/test_balancer_status.py",),
    ),
    Mutant(
        "rows of others are called as ours are",
        "model/documents/unmanaged.py",
        "return document.row if is_unmanaged(document) else document.id",
        "return document.id",
    ),
    Mutant(
        "a change by others concerns nobody",
        "model/queries/unmanaged_updates.py",
        "        for owner, document in told.items():",
        "        for owner, document in ():",
    ),
    Mutant(
        "a guest of a network that became its own stays one",
        "compilers/ovn/vip_networks.py",
        "if where.guest == network.project_id:",
        "if False:",
    ),
    Mutant(
        "failures count that are not in a row",
        "node/tracker.py",
        "successes=answers, failures=0,",
        "successes=answers, failures=self.failures,",
        ("tests/node/test_tracker.py",),
    ),
    Mutant(
        "a cover probes by the port that reaches its own node alone",
        "node/probing.py",
        " and each.endpoint.port_id not in node.ports",
        " and False",
        ("tests/node/test_probing.py",),
    ),
    Mutant(
        "what a cover saw is forgotten when the node is back",
        "api/agents/liveness.py",
        "                news[endpoint] = self._reassigned(endpoint, last)\n",
        "",
        ("tests/node/test_channel.py",),
    ),
    Mutant(
        "an agent that was silent is not told so",
        "api/agents/routes.py",
        ".{self._nodes.agents.reconnects(chassis)}",
        "",
        ("tests/node/test_channel.py",),
    ),
    Mutant(
        "who cannot probe takes away what was seen",
        "model/documents/probe_result.py",
        "else replace(last, error=seen.error)",
        "else seen",
        ("tests/node/test_channel.py",),
    ),
    Mutant(
        "a node that overslept forgets what it saw",
        "node/reports.py",
        "        self._current_since = datetime.now(UTC)\n",
        "        self._results.clear()\n",
        ("tests/node/test_channel.py",),
    ),
    Mutant(
        "a server that begins tells agents that they have nothing",
        "api/agents/slice_stream.py",
        "        self._check_synced()\n",
        "",
        ("tests/node/test_channel.py",),
    ),
    Mutant(
        "a server takes an agent's first word for all that it sees",
        "api/agents/liveness.py",
        "heard.has_complete_report |= report.is_complete and",
        "is_responsive.has_complete_report |=",
        ("tests/node/test_channel.py",),
    ),
    Mutant(
        "a server that begins does not know who was down",
        "server/probe_result_cache.py",
        "            await run_in_steps(self._model.observe(PROBE_RESULTS, dict(self._seen)))\n",
        "",
        ("tests/server/test_remembering.py",),
    ),
    Mutant(
        "after a pause who confirms last is dead",
        "drivers/ovn/southbound/chassis.py",
        "            self._extend_deadlines()\n",
        "            pass\n",
        ("tests/drivers/test_ovn_liveness.py",),
    ),
    Mutant(
        "another node takes the silence of a datagram for an answer",
        "node/prober.py",
        "case ProtocolSuccess() if flight.target.is_delegated:",
        "case ProtocolSuccess() if False:",
        ("tests/node/test_doubtful_prober.py",),
    ),
    Mutant(
        "the slowness of all does not excuse the silence of one",
        "node/prober.py",
        "self._slowness(now) > tolerated",
        "False",
        ("tests/node/test_doubtful_prober.py",),
    ),
    Mutant(
        "a starved agent calls members down",
        "node/prober.py",
        "if lost > tolerated:",
        "if lost_at_start > tolerated and again:",
        ("tests/node/test_doubtful_prober.py",),
    ),
    Mutant(
        "an attempt after one that said nothing has no more time",
        "node/prober.py",
        " * 2 ** min(self._count_void(target), MAX_RETRIES)",
        "",
        ("tests/node/test_doubtful_prober.py",),
    ),
    Mutant(
        "time that is lost between two looks is not noticed",
        "node/prober.py",
        "self.lost_time += worked if worked > MAX_WAKEUP_DELAY else 0.0",
        "pass",
        ("tests/node/test_doubtful_prober.py",),
    ),
    Mutant(
        "a monitor speaks the pool's protocol at a port of its own",
        "model/queries/probes.py",
        "opening if is_served else PLAIN",
        "opening",
        ("tests/model/test_targets.py",),
    ),
    Mutant(
        "a monitor of a pool with TLS speaks none",
        "model/documents/checks.py",
        "is_tls=opening.is_tls or ",
        "is_tls=",
        ("tests/model/test_targets.py",),
    ),
    Mutant(
        "members are told the proxy's own port over IPv6",
        "compilers/haproxy/destinations.py",
        " or address.version == 6",
        "",
        ("tests/native/test_stories.py",),
    ),
    Mutant(
        "members are told a VIP of the other IP version",
        "compilers/haproxy/destinations.py",
        "if each.version == address.version",
        "if each.version != address.version",
        ("tests/haproxy/test_stories.py",),
    ),
    Mutant("any node may have the port of covers", "compilers/ovn/ports.py", "options=where", "options=()"),
    Mutant(
        "networks of others are covered without an address",
        "model/queries/delegated_probing.py",
        "    if is_unmanaged(snapshot.networks.get(network_id)):\n        return None\n",
        "",
        ("tests/model/test_covering.py",),
    ),
    Mutant(
        "nobody's address serves before anybody has seen it answer",
        "model/queries/delegated_probing.py",
        "return Health.GONE if is_hostless else",
        "return",
        ("tests/model/test_covering.py",),
    ),
    Mutant(
        "readers are content with a look that began before they came",
        "store/read_barrier.py",
        "self._running, self._next = self._next, None",
        "self._running = self._next",
        ("tests/store/test_looks.py",),
    ),
    Mutant(
        "one project's changes are always first",
        "runtime/fair_semaphore.py",
        "self._lines.move_to_end(key)",
        "pass",
        ("tests/store/test_fair_semaphore.py",),
    ),
    Mutant(
        "what others deleted stays with a server that is far behind",
        "store/full_read.py",
        "gone = set(known)",
        "gone = set()",
        ("tests/store/test_store.py",),
    ),
    Mutant(
        "the feed of a file begins late and says nothing",
        "store/sqlite.py",
        "if head > after and min(batches, default=head + 1) != after + 1:",
        "if False:",
        ("tests/store/test_store.py",),
    ),
    Mutant(
        "a revision from before a copy is that of a document that is not there",
        "store/revision_offset.py",
        "if revision > self._revision_offset else UNUSED_REVISION",
        "if revision > self._revision_offset else NO_REVISION",
        ("tests/store/test_shifted.py",),
    ),
    Mutant(
        "comparisons take no room from what etcd writes",
        "store/etcd_requests.py",
        "max(beside, MIN_TOP_OPERATIONS)",
        "max(0, MIN_TOP_OPERATIONS)",
        ("tests/store/test_etcd_requests.py",),
    ),
    Mutant(
        "a request holds the event loop for 200 ms, without a call",
        "api/octavia/requests.py",
        '    named = (values.get(name) or None for name in ("provider", "flavor_id", "availability_zone"))\n',
        "    number = 0\n    while number < 6_000_000:\n        number += 1\n"
        '    named = (values.get(name) or None for name in ("provider", "flavor_id", "availability_zone"))\n',
        ("tests/api/octavia/test_lists_with_ten_thousand_ports_do_not_block_the_loop.py",),
    ),
    Mutant(
        "a compilation looks through all load balancers",
        "compilers/ovn/compiler.py",
        "        case LoadBalancer() as balancer:\n",
        "        case LoadBalancer() as balancer:\n"
        "            for _ in snapshot.load_balancers:\n                pass\n",
        ("tests/reconciler/test_steps_of_a_change.py",),
    ),
    Mutant(
        "a dirty owner wakes no reconciler that rests",
        "reconciler/loop.py",
        "cause]\n        self._wake.set()\n",
        "cause]\n",
        ("tests/reconciler/test_loop.py",),
    ),
)


def survives(mutant: Mutant) -> bool:
    """Whether the tests pass in a new process with a copy of the mutated sources, for changes of import time."""
    with tempfile.TemporaryDirectory(prefix="fairlead-mutant-") as folder:
        shutil.copytree(ROOT / "src", Path(folder) / "src")
        target = Path(folder) / "src" / "fairlead" / mutant.file
        target.write_text(target.read_text().replace(mutant.before, mutant.after))
        command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *mutant.tests]
        environment = {**os.environ, "PYTHONPATH": str(Path(folder) / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            run = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, timeout=RUN_TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired:  # a story that does not end counts as failed
            return False
    return run.returncode == 0


def module_of(mutant: Mutant) -> str:
    return "fairlead." + mutant.file.removesuffix(".py").replace("/", ".")


def changed_mutants(base: str) -> list[str]:
    """Names of mutants in files of the product that differ from `base`, or whose tests differ."""
    changed = [path.removeprefix("src/fairlead/") for path in changed_files(base or default_base())]
    return [
        each.name for each in MUTANTS if each.file in changed or any(path.startswith(each.tests) for path in changed)
    ]


def main(names: list[str]) -> int:
    chosen = {mutant.name: mutant for mutant in MUTANTS if not names or mutant.name in names}
    for name, mutant in chosen.items():
        count = (ROOT / "src" / "fairlead" / mutant.file).read_text().count(mutant.before)
        if count != 1:
            raise SystemExit(f"{name}: its text is found {count} times in {mutant.file}")
    alive: list[str] = []
    again: list[str] = []
    told = 0

    def tell(name: str, *, lives: bool) -> None:
        nonlocal told
        told += 1
        if lives:
            alive.append(name)
        print(f"[{told}/{len(chosen)}] {'SURVIVED' if lives else 'killed  '} {name}", flush=True)

    def ended(name: str, noticed: bool | None) -> None:
        if noticed:
            tell(name, lives=False)
        else:  # it changes code of import time, or cannot be planted otherwise
            again.append(name)

    forks = ForkedRuns(
        {name: partial(plant_bug, module_of(each), each.before, each.after) for name, each in chosen.items()},
        {name: each.tests for name, each in chosen.items()},
        ended,
        MAX_CONCURRENT,
        RUN_TIMEOUT,
    )
    folders = sorted({tests for each in chosen.values() for tests in each.tests})
    collected = pytest.main(["-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}", *folders], [forks])
    if collected not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
        return 1
    with ThreadPoolExecutor(MAX_CONCURRENT) as pool:
        for name, lives in zip(again, pool.map(lambda name: survives(chosen[name]), again), strict=True):
            tell(name, lives=lives)
    print(f"{len(chosen) - len(alive)} of {len(chosen)} killed")
    return 1 if alive else 0


if __name__ == "__main__":
    os.chdir(ROOT)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changed", action="store_true")
    parser.add_argument("--base", default="")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if options.changed and not (options.names or changed_mutants(options.base)):
        print("no bug is planted in a file that changed")
        sys.exit(0)
    sys.exit(main(changed_mutants(options.base) if options.changed else options.names))
