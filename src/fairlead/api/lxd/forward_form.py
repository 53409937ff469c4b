"""Decoder and encoder of forwards in LXD's form.

Each port of a forward has its own target, which has no name in LXD; here its name is the index of the port. Traffic to
other ports goes to the default target, which is an option.
"""

from collections.abc import Iterable, Iterator

from fairlead.api.http.front_end import ApiError
from fairlead.api.lxd.balancer_body import Document
from fairlead.api.lxd.balancer_config import USER, unknown_option
from fairlead.api.lxd.balancer_decode import Decoded, read_listen_ports, read_protocol, target_port, until_wrong
from fairlead.api.lxd.balancer_encode import encode_port, encode_target
from fairlead.api.lxd.listen_address import read_address
from fairlead.api.lxd.port_texts import BadRange, parse_ports
from fairlead.changes.balancer_spec_checks import BalancerSpec, SpecPort
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.addresses import IPAddress

DEFAULT_TARGET = "target_address"
"""Option with the default target."""


def decode_forward(document: Document, network_id: str) -> Decoded:
    """Decode a forward. Raises ApiError 400 for options, which LXD validates first."""
    config = document["config"]
    for name in config:
        if name != DEFAULT_TARGET and not name.startswith(USER):
            raise unknown_option(name)
    default = _default_target(config.get(DEFAULT_TARGET, ""))
    found, wrong = until_wrong(_ports(document["ports"]))
    asked = BalancerSpec(
        network_id=network_id,
        use=lb.SpecPurpose.FORWARD,
        description=document["description"],
        backends=tuple(backend for backend, _ in found),
        ports=tuple(port for _, port in found),
        config=tuple((name, value) for name, value in config.items() if name != DEFAULT_TARGET),
        default_target=default,
    )
    return Decoded(spec=asked, wrong=wrong)


def encode_forward(asked: BalancerSpec) -> Document:
    targets = {backend.name: backend for backend in asked.backends}
    default = {} if asked.default_target is None else {DEFAULT_TARGET: str(asked.default_target)}
    return {
        "description": asked.description,
        "config": dict(sorted({**dict(asked.config), **default}.items())),
        "ports": tuple({**encode_port(port), **encode_target(targets[port.backends[0]])} for port in asked.ports),
    }


def _default_target(text: str) -> IPAddress | None:
    if not text:
        return None
    try:
        return read_address(text)
    except ValueError:
        raise ApiError(400, "Invalid default target address") from None


def _ports(documents: Iterable[Document]) -> Iterator[tuple[lb.Backend, SpecPort]]:
    """Decode ports with their targets. Raises ApiError 400."""
    for place, each in enumerate(documents):
        protocol = read_protocol(place, each)
        try:
            address = read_address(each["target_address"])
        except ValueError:
            raise ApiError(400, f"Invalid target address in port specification {place}") from None
        listen = read_listen_ports(place, each)
        port = SpecPort(description=each["description"], protocol=protocol, ports=listen, backends=(str(place),))
        try:
            target = target_port(parse_ports(each["target_port"]))
        except BadRange:
            yield lb.Backend(name=str(place), address=address), port
            raise ApiError(400, f"Invalid target port in port specification {place}") from None
        yield lb.Backend(name=str(place), address=address, port=target), port
