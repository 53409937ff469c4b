"""Encoder of load balancers in LXD's form; it reverses the decoder exactly."""

from collections.abc import Sequence

from fairlead.api.http.front_end import JsonObject
from fairlead.api.lxd.balancer_body import Document
from fairlead.api.lxd.balancer_config import imply_options
from fairlead.changes.balancer_spec_checks import BalancerSpec, SpecPort
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.port_ranges import TargetPort, render


def encode_balancer(asked: BalancerSpec) -> Document:
    """Encode a load balancer. One created by another API has the equivalent options."""
    return {
        "description": asked.description,
        "config": dict(asked.config or imply_options(asked)),
        "backends": tuple(_encode_backend(backend) for backend in asked.backends),
        "ports": tuple({**encode_port(port), "target_backend": port.backends} for port in asked.ports),
    }


def show(document: Document, address: IPAddress) -> JsonObject:
    """Add the address and an empty `location` (a cluster member in LXD) to a document."""
    return {**document, "listen_address": str(address), "location": ""}


def tagged(document: Document, address: IPAddress) -> Sequence[object]:
    """Return the values that the ETag covers (LXD's shared/api, Etag)."""
    return [str(address), *document.values()]


def encode_port(port: SpecPort) -> JsonObject:
    return {
        "description": port.description,
        "protocol": lb.transport(port.protocol).value,
        "listen_port": render(port.ports),
    }


def encode_target(backend: lb.Backend) -> JsonObject:
    return {"target_port": _render(backend.port), "target_address": str(backend.address)}


def _encode_backend(backend: lb.Backend) -> JsonObject:
    return {"name": backend.name, "description": backend.description, **encode_target(backend)}


def _render(port: TargetPort) -> str:
    match port:
        case None:
            return ""
        case int():
            return str(port)
        case _:
            return render(port)
