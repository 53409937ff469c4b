"""Load balancers and forwards in LXD's normal form: what a request says, and what is shown.

LXD writes descriptions and protocols without blanks around them, addresses in their canonical form, and lists of ports
without blanks. Null is empty. What a body has beyond this is passed over, as Go's decoder does: clients send what they
have read, and newer ones know more.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from fairlead.api.fields import Field, Parser, Values, list_of, mapping, text
from fairlead.api.lxd.bodies import config, merged, struct
from fairlead.api.lxd.listen_address import canonical
from fairlead.api.lxd.port_texts import tidy
from fairlead.model import sizes

Document: TypeAlias = Mapping[str, Any]
"""A body in which all is said."""
LONGEST_NAME = 200
"""Characters: of a backend's name, which can be in the name of an option; of a protocol, and of an address."""
LONGEST_TEXT = 1_024
"""Characters: of a description, and of a list of ports."""


def _normal(parser: Parser[str], normal: Callable[[str], str]) -> Parser[str]:
    return Parser(parser.schema, lambda value: normal(parser(value)))


def _complete(empty: Document, fields: Mapping[str, Field]) -> Parser[Document]:
    """A struct in which all that is not said is as in `empty`."""
    read = struct(fields)
    return Parser(read.schema, lambda value: {**empty, **read(mapping(value))})


_NAME = text(LONGEST_NAME)
_WORDS, _PORTS = _normal(text(LONGEST_TEXT), str.strip), _normal(text(LONGEST_TEXT), tidy)
_WORD, _ADDRESS = _normal(_NAME, str.strip), _normal(_NAME, canonical)
_BACKEND = {
    "name": Field(_NAME),
    "description": Field(_WORDS),
    "target_port": Field(_PORTS),
    "target_address": Field(_ADDRESS),
}
_PORT = {"description": Field(_WORDS), "protocol": Field(_WORD), "listen_port": Field(_PORTS)}
_NO_BACKEND, _NO_PORT = dict.fromkeys(_BACKEND, ""), dict.fromkeys(_PORT, "")
_BALANCER_PORT = {**_PORT, "target_backend": Field(list_of(_NAME, sizes.BACKENDS))}
_FORWARD_PORT = {**_PORT, "target_port": Field(_PORTS), "target_address": Field(_ADDRESS)}
_ANY = {"description": Field(_WORDS), "config": Field(config)}
BALANCER: Mapping[str, Field] = {
    **_ANY,
    "backends": Field(list_of(_complete(_NO_BACKEND, _BACKEND), sizes.BACKENDS)),
    "ports": Field(list_of(_complete({**_NO_PORT, "target_backend": ()}, _BALANCER_PORT), sizes.LISTENERS)),
}
FORWARD: Mapping[str, Field] = {
    **_ANY,
    "ports": Field(list_of(_complete(dict.fromkeys(_FORWARD_PORT, ""), _FORWARD_PORT), sizes.LISTENERS)),
}
LISTEN = {"listen_address": Field(_ADDRESS)}
NO_BALANCER: Document = {"description": "", "config": {}, "backends": (), "ports": ()}
NO_FORWARD: Document = {"description": "", "config": {}, "ports": ()}


def complete(values: Values, rest: Document) -> Document:
    """What a body says, and the rest that it does not say. An option that is empty is none."""
    said = {name: values.get(name, other) for name, other in rest.items()}
    options = {name: value for name, value in sorted(said["config"].items()) if value}
    return {**said, "config": options}


def merge(values: Values, stored: Document) -> Document:
    """What is true after a PATCH: what it does not say stays, options one by one."""
    return complete({**values, "config": merged(stored["config"], values.get("config", {}))}, stored)
