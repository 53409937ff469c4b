"""What each command makes of a load balancer: pure, the whole in and the whole out, because the API is changed so.

The sentences of what they refuse are those of `incus`. What only the server can know (is the name free, is the address
in the network) is left to it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fairlead.network_cli.document import Backend, Description, LoadBalancer, Port
from fairlead.network_cli.failure import Failure


def description_of(balancer: LoadBalancer) -> Description:
    """What can be changed of it."""
    return Description(
        description=balancer.description, config=balancer.config, backends=balancer.backends, ports=balancer.ports
    )


def add_backend(old: Description, backend: Backend) -> Description:
    return replace(old, backends=(*old.backends, backend))


def remove_backend(old: Description, name: str) -> Description:
    left = tuple(each for each in old.backends if each.name != name)
    if left == old.backends:
        raise Failure("No matching backend found")
    return replace(old, backends=left)


def add_port(old: Description, port: Port) -> Description:
    return replace(old, ports=(*old.ports, port))


def remove_ports(old: Description, protocol: str | None, listen_port: str | None, *, force: bool) -> Description:
    """Those that match what is said; several only by force."""
    matching = [
        each
        for each in old.ports
        if (protocol is None or each.protocol == protocol) and (listen_port is None or each.listen_port == listen_port)
    ]
    if not matching:
        raise Failure("No matching port(s) found")
    if len(matching) > 1 and not force:
        raise Failure("Multiple ports match. Use --force to remove them all")
    return replace(old, ports=tuple(each for each in old.ports if each not in matching))


def set_config(old: Description, pairs: Mapping[str, str]) -> Description:
    """A key without a value is one that is taken away; the server sees to that."""
    return replace(old, config={**old.config, **pairs})


def set_properties(old: Description, pairs: Mapping[str, str]) -> Description:
    for name in pairs:
        if name != "description":
            raise Failure(f'Error setting properties: The property with tag "{name}" does not exist')
    return replace(old, description=pairs.get("description", old.description))


def unset_property(old: Description, name: str) -> Description:
    if name != "description":
        raise Failure(f'Error unsetting property: The property with tag "{name}" does not exist')
    return replace(old, description="")


def property_of(balancer: Description, network: str, name: str) -> str:
    """As `incus` prints it: lists and maps as Go does."""
    match name:
        case "description":
            return balancer.description
        case "config":
            return f"map[{' '.join(f'{key}:{value}' for key, value in sorted(balancer.config.items()))}]"
        case "backends":
            return _go_list((b.name, b.description, b.target_port, b.target_address) for b in balancer.backends)
        case "ports":
            return _go_list(
                (p.description, p.protocol, p.listen_port, f"[{' '.join(p.target_backend)}]") for p in balancer.ports
            )
    raise Failure(
        f'The property "{name}" does not exist on the load balancer "{network}":'
        f' The property with tag "{name}" does not exist'
    )


def _go_list(items: Iterable[Sequence[str]]) -> str:
    return f"[{' '.join('{' + ' '.join(each) + '}' for each in items)}]"


def parse_new_pairs(words: Sequence[str]) -> dict[str, str]:
    """`create`: KEY=VALUE and nothing else."""
    pairs = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise Failure(f"Bad key/value pair: {word}")
        pairs[key] = value
    return pairs


def parse_pairs(words: Sequence[str]) -> dict[str, str]:
    """`set`: KEY=VALUE..., or KEY VALUE, as it was once said."""
    if len(words) == 2 and "=" not in words[0]:
        return {words[0]: words[1]}
    pairs = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise Failure(f"Invalid key=value configuration: {word}")
        pairs[key] = value
    return pairs
