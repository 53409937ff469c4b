"""Apply status of an object, in LXD's words for the status of a network.

LXD has no status of load balancers and forwards. Their status is an option, because `show` prints options; the server
sets it until the newest change is applied.
"""

from collections.abc import Iterable, Mapping

from fairlead.api.http.front_end import ApiError, Services
from fairlead.api.lxd.go_texts import quote
from fairlead.model.documents.owner import Owner
from fairlead.model.documents.status import ProvisioningStatus, derive_provisioning_status
from fairlead.model.snapshot import Snapshot
from fairlead.schema import Values

CREATED, PENDING, ERRORED = "Created", "Pending", "Errored"
PROGRESS = (CREATED, PENDING, ERRORED)
STATUS = "volatile.fairlead.status"
"""Option with the status; `volatile` is LXD's prefix of options that the server sets."""


def status_of(services: Services, snapshot: Snapshot, owners: Iterable[Owner]) -> str:
    """Return `Created` if all owners are applied, `Errored` if an apply fails, otherwise `Pending`."""
    found = {
        derive_provisioning_status(snapshot.generations.get(owner, snapshot.revision), services.applied(owner))
        for owner in owners
    }
    if ProvisioningStatus.ERROR in found:
        return ERRORED
    return CREATED if found == {ProvisioningStatus.ACTIVE} else PENDING


def with_status(config: Mapping[str, str], status: str) -> Mapping[str, str]:
    """Return the options with the status."""
    return config if status == CREATED else dict(sorted({**config, STATUS: status}.items()))


def without_status(values: Values) -> Values:
    """Remove a status that the client read from a body. Raises ApiError 400 for any other value, because clients cannot
    set it."""
    config = values.get("config", {})
    if STATUS not in config:
        return values
    if config[STATUS] not in (PENDING, ERRORED):
        raise ApiError(400, f"Option {quote(STATUS)} is set by the server")
    return {**values, "config": {name: value for name, value in config.items() if name != STATUS}}
