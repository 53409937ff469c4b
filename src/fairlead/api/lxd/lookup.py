"""Lookup of networks by LXD's names. In LXD the name is unique; here names may repeat and have any characters.

A network's LXD name is its name if that is valid in LXD and unique in its project, otherwise its id. Lookups accept
both. External networks are uplinks, which every project may use; they are listed in the project `default`.
"""

import re
from collections.abc import Iterator

from fairlead.api.http.front_end import ApiError
from fairlead.changes.access import can_use_network
from fairlead.changes.identity import DEFAULT_PROJECT, Identity
from fairlead.changes.restrictions import allows_network
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.network import Network
from fairlead.model.documents.unmanaged import is_managed_elsewhere
from fairlead.model.snapshot import ANY_PROJECT, OTHER_MANAGERS, Snapshot

MAX_NAME_LENGTH = 64
RESERVED = "$?&+\"'`*/"
"""Characters with a meaning in URLs, shells or LXD's texts."""
ENDS = re.compile(r"[a-zA-Z0-9]+(.*[a-zA-Z0-9]+)?")


def find_network(snapshot: Snapshot, project: str, name: str) -> Network:
    """Find a network. Raises ApiError 404."""
    found = _find(snapshot, scopes(project), name)
    if found is None or not allows_network(snapshot, project, name_of(snapshot, found)):
        raise ApiError(404, "Network not found")
    return found


def is_called(snapshot: Snapshot, project: str, name: str) -> bool:
    """Return whether a network of the project has this name or ID."""
    by_id = snapshot.project_networks
    return any((scope, name) in snapshot.network_names or name in by_id.get(scope, NO_IDS) for scope in scopes(project))


def find_uplink(snapshot: Snapshot, name: str) -> Network | None:
    """Find an external network by name, in any project."""
    return _find(snapshot, (ANY_PROJECT,), name)


def find_managed(snapshot: Snapshot, caller: Identity, name: str) -> Network | None:
    """Find a network that another program manages, by its row's name or its id. None if one of the project's own
    networks has the name, or the caller may not use the network."""
    if _find(snapshot, scopes(caller.project_id), name) is not None:
        return None
    ids = {name, *snapshot.network_names.get((OTHER_MANAGERS, name), NO_IDS)}
    found = (snapshot.networks[each] for each in sorted(ids) if each in snapshot.networks)
    return next((each for each in found if is_managed_elsewhere(each) and can_use_network(caller, each)), None)


def networks_of(snapshot: Snapshot, project: str) -> Iterator[Network]:
    """Yield the networks that the project may use, unordered."""
    for scope in scopes(project):
        found = (snapshot.networks[each] for each in snapshot.project_networks.get(scope, NO_IDS))
        yield from (each for each in found if allows_network(snapshot, project, name_of(snapshot, each)))


def project_of(network: Network) -> str:
    """Return the project in which the network is listed."""
    return DEFAULT_PROJECT if network.external else network.project_id


def name_of(snapshot: Snapshot, network: Network) -> str:
    name = network.name
    if name == network.id or name_fault(name) is not None or name in snapshot.networks:
        return network.id
    called = (snapshot.network_names.get((scope, name), NO_IDS) for scope in scopes(project_of(network)))
    return name if sum(map(len, called)) == 1 else network.id


def name_fault(name: str) -> str | None:
    """Return LXD's reason why a name is invalid; None if it is valid."""
    if len(name) > MAX_NAME_LENGTH:
        return f"Maximum name length is {MAX_NAME_LENGTH} characters"
    if any(character.isspace() for character in name):
        return "Name cannot contain white space"
    for character in RESERVED:
        if character in name:
            shown = {'"': '\\"'}.get(character, character)
            return f'Name contains invalid character "{shown}"'
    if not ENDS.fullmatch(name):
        return "Names must start and end with an alphanumeric character"
    return 'Cannot contain ":"' if ":" in name else None


def scopes(project: str) -> tuple[str, ...]:
    """Return the keys of `Snapshot.project_networks` that are listed in the project."""
    return (project, ANY_PROJECT) if project == DEFAULT_PROJECT else (project,)


def _find(snapshot: Snapshot, within: tuple[str, ...], name: str) -> Network | None:
    by_id = snapshot.networks.get(name)
    if by_id is not None:
        return by_id if any(by_id.id in snapshot.project_networks.get(scope, NO_IDS) for scope in within) else None
    found = [each for scope in within for each in snapshot.network_names.get((scope, name), NO_IDS)]
    return snapshot.networks[found[0]] if len(found) == 1 and name_fault(name) is None else None
