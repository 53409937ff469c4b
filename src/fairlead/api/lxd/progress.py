"""How far a change is in the dataplane, in LXD's words for the status of a network.

LXD has no status of load balancers and forwards. Theirs is an option that the server sets while the newest change is
not applied: `show` prints options.
"""

from collections.abc import Iterable, Mapping

from fairlead.api.door import ApiError, Services
from fairlead.api.fields import Values
from fairlead.api.lxd.go_texts import quote
from fairlead.model.owner import Owner
from fairlead.model.snapshot import Snapshot
from fairlead.model.status import ProvisioningStatus, derive_provisioning_status

CREATED, PENDING, ERRORED = "Created", "Pending", "Errored"
PROGRESS = (CREATED, PENDING, ERRORED)
STATUS = "volatile.fairlead.status"
"""The option. It begins as LXD's options that a server sets do."""


def status_of(services: Services, snapshot: Snapshot, owners: Iterable[Owner]) -> str:
    """`Created` once all of these are applied; `Errored` while attempts fail."""
    found = {
        derive_provisioning_status(snapshot.generations.get(owner, snapshot.revision), services.applied(owner))
        for owner in owners
    }
    if ProvisioningStatus.ERROR in found:
        return ERRORED
    return CREATED if found == {ProvisioningStatus.ACTIVE} else PENDING


def with_status(config: Mapping[str, str], status: str) -> Mapping[str, str]:
    """Options as they are shown."""
    return config if status == CREATED else dict(sorted({**config, STATUS: status}.items()))


def without_status(values: Values) -> Values:
    """A body without the status that its sender has read. Raises ApiError 400 for any other: nobody sets it."""
    config = values.get("config", {})
    if STATUS not in config:
        return values
    if config[STATUS] not in (PENDING, ERRORED):
        raise ApiError(400, f"Option {quote(STATUS)} is set by the server")
    return {**values, "config": {name: value for name, value in config.items() if name != STATUS}}
