"""Display names of objects. Tenants choose names, so they are shortened and sanitised wherever they are shown."""

import re
from collections.abc import Container, Iterator
from typing import assert_never

from fairlead.model.documents.addresses import render_address, render_endpoint
from fairlead.model.documents.loadbalancer import LoadBalancer, Member
from fairlead.model.documents.local_ip import LocalIP
from fairlead.model.documents.network import Resource
from fairlead.model.documents.owner import Owner
from fairlead.model.documents.port_ranges import render
from fairlead.model.documents.sanitize import shorten
from fairlead.model.queries.probes import Monitored
from fairlead.model.registry.kinds import has_rows
from fairlead.model.snapshot import Snapshot

MAX_NAME_LENGTH = 60
_UNMANAGED_ROW = re.compile(r"(\S+)@[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Name of an unmanaged row, as `foreign.row_of` returns it."""


def display_name(snapshot: Snapshot, owner: Owner) -> str:
    """Return the owner's display name; empty if it has none or is gone."""
    document = snapshot.find(owner) if has_rows(owner.kind) else None
    return shorten(getattr(document, "name", "") or "", MAX_NAME_LENGTH)


def describe_member(member: Member) -> Iterator[str]:
    """Yield the member's address and port, then its name if it has one."""
    yield _format_endpoint(member)
    if member.name:
        yield f"'{shorten(member.name, MAX_NAME_LENGTH)}'"


def _format_endpoint(member: Member) -> str:
    match member.port:
        case None:
            return render_address(member.address)
        case int(port):
            return render_endpoint(member.address, port)
        case ports:
            return f"{render_address(member.address)}:{shorten(render(ports), MAX_NAME_LENGTH)}"


def describe_monitored(snapshot: Snapshot, probing: Monitored, ids: Container[str]) -> Iterator[tuple[str, str]]:
    """Yield id and description of each of these members or replicas. A replica is identified by its port."""
    match probing:
        case LoadBalancer(pools=pools):
            members = (member for pool in pools for member in pool.members if member.id in ids)
            yield from ((member.id, " ".join(describe_member(member))) for member in members)
        case LocalIP(associations=associations):
            for each in associations:
                if each.port_id in ids:
                    port = snapshot.ports.get(each.port_id)
                    name = f" '{shorten(port.name, MAX_NAME_LENGTH)}'" if port and port.name else ""
                    yield each.port_id, f"{render_address(each.address)}{name}"
        case unknown:
            assert_never(unknown)


def find_parts_named(balancer: LoadBalancer, text: str) -> Iterator[str]:
    """Yield a description of each part with this name or id: `member 10.0.0.11:80 'web2' of pool 'web'`."""
    for pool in balancer.pools:
        of_pool = f"pool {_display_name_or_id(pool)}"
        if text in (pool.id, pool.name):
            yield of_pool
        monitor = pool.health_monitor
        if monitor is not None and text in (monitor.id, monitor.name):
            yield f"health monitor {_display_name_or_id(monitor)} of {of_pool}"
        for member in pool.members:
            if text in (member.id, member.name):
                yield f"member {' '.join(describe_member(member))} of {of_pool}"
    for listener in balancer.listeners:
        if text in (listener.id, listener.name):
            yield f"listener {_display_name_or_id(listener)}"
        for policy in listener.l7policies:
            if text in (policy.id, policy.name):
                yield f"L7 policy {_display_name_or_id(policy)} of listener {_display_name_or_id(listener)}"


def _display_name_or_id(part: Resource) -> str:
    return f"'{shorten(part.name, MAX_NAME_LENGTH)}'" if part.name else part.id


def describe_owner(snapshot: Snapshot, owner: Owner) -> str:
    """Return the owner with its name: `loadbalancer/3fc8... 'web'`."""
    name = display_name(snapshot, owner)
    return f"{owner} '{name}'" if name else str(owner)


def describe_refused(snapshot: Snapshot, owner: Owner) -> str:
    balancer = snapshot.load_balancers[owner.id]
    why = snapshot.refused_proxies.get(balancer.vip.network_id, "allocated again")
    return f"proxy ports of {describe_owner(snapshot, owner)}: {why}"


def with_display_names(snapshot: Snapshot, text: str) -> str:
    """Replace names of unmanaged rows in a row's text by their display names: `neutron-9d3b... 'web-net'`."""
    return _UNMANAGED_ROW.sub(lambda found: _row_display_name(snapshot, found[1]), text) if "@" in text else text


def _row_display_name(snapshot: Snapshot, row: str) -> str:
    identity = snapshot.called.get(row, row)
    found = snapshot.networks.get(identity) or snapshot.routers.get(identity) or snapshot.ports.get(identity)
    name = shorten(found.name, MAX_NAME_LENGTH) if found is not None else ""
    return row if name in ("", row) else f"{row} '{name}'"
