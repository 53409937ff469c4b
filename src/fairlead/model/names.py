"""What people call things. Tenants choose these names, so they are cut and cleaned wherever they are shown."""

from collections.abc import Iterator

from fairlead.model.addresses import render_address, render_endpoint
from fairlead.model.kinds import has_rows
from fairlead.model.loadbalancer import Member
from fairlead.model.owner import Owner
from fairlead.model.port_ranges import render
from fairlead.model.snapshot import Snapshot
from fairlead.model.texts import shorten

LONGEST = 60


def name_of(snapshot: Snapshot, owner: Owner) -> str:
    """ "" for what has none, or is gone."""
    document = snapshot.find(owner) if has_rows(owner.kind) else None
    return shorten(getattr(document, "name", "") or "", LONGEST)


def describe_member(member: Member) -> Iterator[str]:
    """Where it is, and what it is called."""
    yield _place(member)
    if member.name:
        yield f"'{shorten(member.name, LONGEST)}'"


def _place(member: Member) -> str:
    match member.port:
        case None:
            return render_address(member.address)
        case int(port):
            return render_endpoint(member.address, port)
        case ports:
            return f"{render_address(member.address)}:{shorten(render(ports), LONGEST)}"


def describe_owner(snapshot: Snapshot, owner: Owner) -> str:
    """`loadbalancer/3fc8... 'web'`."""
    name = name_of(snapshot, owner)
    return f"{owner} '{name}'" if name else str(owner)
