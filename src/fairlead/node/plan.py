"""Plan of changes to this plain host's kernel by the last slice, without writing."""

from collections.abc import Mapping
from pathlib import Path

from fairlead.api.operator.rows import plans
from fairlead.compilers.native import NATIVE
from fairlead.compilers.unsupported import Unsupported
from fairlead.config.options import AgentOptions
from fairlead.dataplane.rows import NO_ROWS, Diff, Rows, diff
from fairlead.drivers.native.driver import Native
from fairlead.model.documents.owner import Owner
from fairlead.model.registry.changeset import owners_with_rows
from fairlead.model.snapshot import Snapshot
from fairlead.node.channel import NodeSlice, slice_path
from fairlead.runtime.cooperative import run_in_steps


class SliceUnavailable(Exception):
    """No slice is available; the message has the reason."""


async def plan_host(options: AgentOptions) -> Mapping[str, object]:
    """Return the planned changes by owner, in the form of the operator API. Only the agent knows lost hosts and members
    that were recently down: here every host counts as available, and rows with substitutes of such members are shown as
    differences. Raises Untold, DriverError."""
    if not options.host:
        raise SliceUnavailable(
            "agent.host is not set, and servers write the rows of Open vSwitch: run the command on a server"
        )
    path = slice_path(Path(options.state_file))
    given = NodeSlice(options.host, path)
    if not given.ready.is_set():
        raise SliceUnavailable(
            f"no slice of host {options.host} in {path}: the agent has received nothing from a server"
        )
    snapshot, actual = given.snapshot, await Native().read_only()
    owners = [owner for owner in owners_with_rows(snapshot) if owner.kind in NATIVE.kinds]
    changes = dict[Owner, Diff]()
    for owner in dict.fromkeys([*owners, *sorted(actual, key=str)]):
        had = actual.get(owner, NO_ROWS)
        change = diff(_compile(snapshot, owner, had), had)
        if change:
            changes[owner] = change
    return await run_in_steps(plans(snapshot, {NATIVE.name: changes}))


def _compile(snapshot: Snapshot, owner: Owner, had: Rows) -> Rows:
    """Compile an owner; an unsupported one keeps its rows."""
    try:
        return NATIVE.compile(snapshot, owner)
    except Unsupported:
        return had
