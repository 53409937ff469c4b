"""Normal form of load balancers and forwards in LXD's API, for requests and responses.

As in LXD, descriptions and protocols are stripped, addresses are canonical, and port lists have no blanks. Null means
empty. Unknown attributes are ignored, as by Go's decoder, because clients send back the objects they have read, and
newer clients know more attributes.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from fairlead.api.lxd.bodies import config, merged, struct
from fairlead.api.lxd.listen_address import canonical
from fairlead.api.lxd.port_texts import tidy
from fairlead.model.documents import sizes
from fairlead.schema import Field, Parser, Values, list_of, mapping, text

Document: TypeAlias = Mapping[str, Any]
"""Body with all attributes present."""
MAX_NAME_LENGTH = 200
"""Maximum characters of a backend's name (which can be part of an option's name), of a protocol, and of an address."""
MAX_TEXT_LENGTH = 1_024
"""Maximum characters of a description and of a port list."""


def _normal(parser: Parser[str], normal: Callable[[str], str]) -> Parser[str]:
    return Parser(parser.schema, lambda value: normal(parser(value)))


def _complete(empty: Document, fields: Mapping[str, Field]) -> Parser[Document]:
    """Make a parser of an object that takes missing attributes from `empty`."""
    read = struct(fields)
    return Parser(read.schema, lambda value: {**empty, **read(mapping(value))})


_NAME = text(MAX_NAME_LENGTH)
_TEXT, _PORTS = _normal(text(MAX_TEXT_LENGTH), str.strip), _normal(text(MAX_TEXT_LENGTH), tidy)
_WORD, _ADDRESS = _normal(_NAME, str.strip), _normal(_NAME, canonical)
_BACKEND = {
    "name": Field(_NAME),
    "description": Field(_TEXT),
    "target_port": Field(_PORTS),
    "target_address": Field(_ADDRESS),
}
_PORT = {"description": Field(_TEXT), "protocol": Field(_WORD), "listen_port": Field(_PORTS)}
_NO_BACKEND, _NO_PORT = dict.fromkeys(_BACKEND, ""), dict.fromkeys(_PORT, "")
_BALANCER_PORT = {**_PORT, "target_backend": Field(list_of(_NAME, sizes.MAX_BACKENDS))}
_FORWARD_PORT = {**_PORT, "target_port": Field(_PORTS), "target_address": Field(_ADDRESS)}
_ANY = {"description": Field(_TEXT), "config": Field(config)}
BALANCER: Mapping[str, Field] = {
    **_ANY,
    "backends": Field(list_of(_complete(_NO_BACKEND, _BACKEND), sizes.MAX_BACKENDS)),
    "ports": Field(list_of(_complete({**_NO_PORT, "target_backend": ()}, _BALANCER_PORT), sizes.MAX_LISTENERS)),
}
FORWARD: Mapping[str, Field] = {
    **_ANY,
    "ports": Field(list_of(_complete(dict.fromkeys(_FORWARD_PORT, ""), _FORWARD_PORT), sizes.MAX_LISTENERS)),
}
LISTEN = {"listen_address": Field(_ADDRESS)}
NO_BALANCER: Document = {"description": "", "config": {}, "backends": (), "ports": ()}
NO_FORWARD: Document = {"description": "", "config": {}, "ports": ()}


def complete(values: Values, rest: Document) -> Document:
    """Return the attributes of a body, completed from `rest`. An option with an empty value is unset."""
    said = {name: values.get(name, other) for name, other in rest.items()}
    options = {name: value for name, value in sorted(said["config"].items()) if value}
    return {**said, "config": options}


def merge(values: Values, stored: Document) -> Document:
    """Return the document after a PATCH: missing attributes and options are unchanged."""
    return complete({**values, "config": merged(stored["config"], values.get("config", {}))}, stored)
