"""What would change in the kernel of this plain host, by what a server told last. Nothing is written."""

from collections.abc import Mapping
from pathlib import Path

from fairlead.api.operator_rows import plans
from fairlead.compilers.native import NATIVE
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.rows import NO_ROWS, Diff, Rows, diff
from fairlead.drivers.native.driver import Native
from fairlead.model.owner import Owner
from fairlead.model.snapshot import Snapshot
from fairlead.model.writing import owners_with_rows
from fairlead.node.channel import Slice, slice_path
from fairlead.options import AgentOptions
from fairlead.resting import in_steps


class Untold(Exception):
    """Nothing is known by which this host could have anything; the message says why."""


async def plan_host(options: AgentOptions) -> Mapping[str, object]:
    """By owner, as the operator's door says it. The agent alone knows which hosts are lost, and which members were down
    lately: here all hosts count as there, and rows that say who stood in for such a member are shown as different.

    Raises Untold, DriverError.
    """
    if not options.host:
        raise Untold("agent.host is not set, and what is in Open vSwitch is not this agent's: ask a server")
    path = slice_path(Path(options.state))
    given = Slice(options.host, path)
    if not given.ready.is_set():
        raise Untold(f"no server has told {options.host} anything: there is nothing in {path}")
    snapshot, actual = given.snapshot, await Native().look()
    owners = [owner for owner in owners_with_rows(snapshot) if owner.kind in NATIVE.kinds]
    changes = dict[Owner, Diff]()
    for owner in dict.fromkeys([*owners, *sorted(actual, key=str)]):
        had = actual.get(owner, NO_ROWS)
        change = diff(_compile(snapshot, owner, had), had)
        if change:
            changes[owner] = change
    return await in_steps(plans(snapshot, {NATIVE.name: changes}))


def _compile(snapshot: Snapshot, owner: Owner, had: Rows) -> Rows:
    """What is refused stays as it is."""
    try:
        return NATIVE.compile(snapshot, owner)
    except Unsupported:
        return had
