"""Decoder of load balancers in LXD's form. Only values that the model cannot represent are rejected here.

LXD validates the options, then each backend from its name to its last port, then each port, and reports the first
error. The rule in `changes/` validates in the same order, but cannot see unparsable values. The rule is therefore
applied to everything before the first unparsable value. The error of that value is reported only if the rule finds
none (`Decoded.wrong`).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from fairlead.api.http.front_end import ApiError
from fairlead.api.lxd.balancer_body import Document
from fairlead.api.lxd.balancer_config import read_options
from fairlead.api.lxd.go_texts import quote
from fairlead.api.lxd.listen_address import read_address
from fairlead.api.lxd.port_texts import BadRange, parse_ports
from fairlead.changes.balancer_spec_checks import BalancerSpec, SpecPort
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.abilities import Abilities
from fairlead.model.documents.port_ranges import Ports, TargetPort

PROTOCOLS: Mapping[str, lb.ListenerProtocol] = {"tcp": lb.ListenerProtocol.TCP, "udp": lb.ListenerProtocol.UDP}
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """Decoded load balancer. `wrong` is the error of the first unparsable value; `asked` has the values before it."""

    spec: BalancerSpec
    wrong: ApiError | None = None


def decode_balancer(document: Document, network_id: str, abilities: Abilities) -> Decoded:
    """Decode a load balancer. Raises ApiError 400 for options, which LXD validates first."""
    options = read_options(document["config"], abilities)
    backends, wrong = until_wrong(_backends(document["backends"]))
    ports, wrong = until_wrong(_ports(document["ports"])) if wrong is None else ((), wrong)
    asked = BalancerSpec(
        network_id=network_id,
        use=lb.SpecPurpose.LOAD_BALANCER,
        description=document["description"],
        backends=backends,
        ports=ports,
        config=tuple(document["config"].items()),
        algorithm=options.algorithm,
        persistence=options.persistence,
        locality=options.locality,
        down_member=options.down_member,
        weights=options.weights if wrong is None else {},
        probing=options.probing,
        raw=options.raw,
    )
    return Decoded(spec=asked, wrong=wrong)


def until_wrong(found: Iterator[_T]) -> tuple[tuple[_T, ...], ApiError | None]:
    """Collect the items before the first ApiError, and return them with the error."""
    items = list[_T]()
    try:
        for item in found:
            items.append(item)
    except ApiError as error:
        return tuple(items), error
    return tuple(items), None


def _backends(documents: Iterable[Document]) -> Iterator[lb.Backend]:
    """Decode backends. Raises ApiError 400."""
    for place, each in enumerate(documents):
        name = each["name"]
        try:
            address = read_address(each["target_address"])
        except ValueError:
            raise ApiError(400, f"Invalid target address for backend {quote(name)}") from None
        backend = lb.Backend(name=name, description=each["description"], address=address)
        try:
            port = target_port(parse_ports(each["target_port"]))
        except BadRange as bad:
            yield backend
            where = f"Invalid backend port specification {bad.place} in backend specification {place}"
            raise ApiError(400, f"{where}: {bad.reason}") from None
        yield replace(backend, port=port)


def _ports(documents: Iterable[Document]) -> Iterator[SpecPort]:
    """Decode ports. Raises ApiError 400."""
    for place, each in enumerate(documents):
        protocol = read_protocol(place, each)
        if not each["target_backend"]:
            raise ApiError(400, f"Missing target_backend or target_pool in port specification {place}")
        yield SpecPort(
            description=each["description"],
            protocol=protocol,
            ports=read_listen_ports(place, each),
            backends=tuple(each["target_backend"]),
        )


def read_protocol(place: int, port: Document) -> lb.ListenerProtocol:
    """Decode the protocol of a port. Raises ApiError 400."""
    if port["protocol"] not in PROTOCOLS:
        known = ", ".join(PROTOCOLS)
        raise ApiError(400, f"Invalid port protocol in port specification {place}, protocol must be one of: {known}")
    return PROTOCOLS[port["protocol"]]


def read_listen_ports(place: int, port: Document) -> Ports:
    """Decode the listen ports. Raises ApiError 400."""
    if not port["listen_port"]:
        raise ApiError(400, f"Missing listen port in port specification {place}")
    try:
        return parse_ports(port["listen_port"])
    except BadRange as bad:
        raise ApiError(400, f"Invalid listen port in port specification {place}: {bad.reason}") from None


def target_port(ports: Ports) -> TargetPort:
    """Return the target port; None for an empty list, which means the listen port."""
    if len(ports) == 1 and ports[0].first == ports[0].last:
        return ports[0].first
    return ports or None
