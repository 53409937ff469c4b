"""Forwards of a network, below /1.0: a listen address with one target for each port."""

from collections.abc import Mapping

from fairlead.api.http.front_end import Services
from fairlead.api.http.openapi import TEXT, Operation
from fairlead.api.lxd.balancer_body import FORWARD, LISTEN, NO_FORWARD
from fairlead.api.lxd.balancer_refusals import OF_FORWARDS
from fairlead.api.lxd.bodies import struct
from fairlead.api.lxd.forward_form import decode_forward, encode_forward
from fairlead.api.lxd.go_texts import quote
from fairlead.api.lxd.spec_handlers import COMMON_SCHEMA, SpecHandlers, SpecKind
from fairlead.model.documents import loadbalancer as lb
from fairlead.schema import Schema, object_schema

_PORT = dict.fromkeys(("description", "protocol", "listen_port", "target_port", "target_address"), TEXT)
_SHOWN: Mapping[str, Schema] = {**COMMON_SCHEMA, "ports": {"type": "array", "items": object_schema(_PORT, _PORT)}}
FORWARDS = SpecKind(
    use=lb.SpecPurpose.FORWARD,
    plural="forwards",
    noun="forward",
    no_address=lambda text: f"Failed parsing {quote(text)}: Invalid IP representation",
    put=struct(FORWARD),
    post=struct({**LISTEN, **FORWARD}),
    empty=NO_FORWARD,
    shown=object_schema(_SHOWN, _SHOWN),
    decode=lambda document, network_id, _: decode_forward(document, network_id),
    encode=encode_forward,
    error_texts=OF_FORWARDS,
)


def routes(services: Services) -> list[Operation]:
    return SpecHandlers(services, FORWARDS).routes()
