"""Request bodies as declared attributes, rejected with Neutron's texts (neutron-lib, api/attributes.py)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fairlead.api.http.openapi import IDENTITY, NUMBER
from fairlead.api.network import parsers
from fairlead.api.network.errors import bad_attribute, bad_request, invalid_input
from fairlead.api.network.limits import BULK
from fairlead.changes.identity import Identity
from fairlead.schema import (
    BadField,
    Field,
    MissingField,
    Parser,
    Schema,
    Spec,
    Values,
    array_schema,
    fields_schema,
    object_schema,
    or_null,
    read_fields,
    reads,
)

POST, PUT = "POST", "PUT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """Attribute of a resource. `post` and `put`: allowed in these bodies. `sifts`: usable as a filter. `shows`: present
    in responses."""

    parse: Parser[Any] = parsers.name
    post: bool = True
    put: bool = True
    required: bool = False
    nullable: bool = False
    filterable: bool = True
    in_responses: bool = True


Attributes = Mapping[str, Attribute]


class CreateBody(NamedTuple):
    """Resources of a POST: one, or several in a list."""

    resources: list[Values]
    several: bool


def unsupported_attribute(*values: object, because: str, put: bool = True) -> Attribute:
    """Declare an attribute of a Neutron extension that is not implemented; only `values` are accepted."""
    parse = parsers.only(*values, because=because)
    return Attribute(parse=parse, put=put, nullable=True, filterable=False, in_responses=False)


def read_only(schema: Schema, *, sifts: bool = True) -> Attribute:
    """Declare an attribute of responses only."""
    return Attribute(parse=Parser(schema, parsers.name.read), post=False, put=False, filterable=sifts)


TIME: Schema = {"type": "string", "format": "date-time"}
STANDARD: Attributes = {
    "id": read_only(IDENTITY),
    "name": Attribute(),
    "description": Attribute(parse=parsers.description),
    "project_id": Attribute(put=False, nullable=True),
    "tenant_id": Attribute(put=False, nullable=True),
    "tags": Attribute(parse=parsers.tags, put=False, filterable=False),
    "created_at": read_only(TIME),
    "updated_at": read_only(TIME),
    "revision_number": read_only(NUMBER),
}
"""Attributes of every resource."""


def shown(attributes: Attributes) -> Mapping[str, Schema]:
    """Return the schema of the attributes in a response."""
    return {
        name: or_null(attribute.parse.schema) if attribute.nullable else attribute.parse.schema
        for name, attribute in attributes.items()
        if attribute.in_responses
    }


def one(singular: str, attributes: Attributes, verb: str) -> Parser[Values]:
    """Make a parser of `{"<singular>": {...}}`. Raises ApiError 400."""

    @reads(object_schema({singular: fields_schema(_spec(attributes, verb))}, [singular]))
    def parse(body: object) -> Values:
        if not isinstance(body, dict):
            raise bad_request("Body contains invalid data")
        if singular not in body:
            raise bad_request(f"Unable to find '{singular}' in request body")
        return _values(body[singular], attributes, verb)

    return parse


def one_or_several(singular: str, plural: str, attributes: Attributes) -> Parser[CreateBody]:
    """Make a parser of `{"<singular>": {...}}` or `{"<plural>": [{...}, ...]}` in a POST. Raises ApiError 400."""
    single = one(singular, attributes, POST)
    item = fields_schema(_spec(attributes, POST))
    several = object_schema({plural: {**array_schema(item, BULK), "minItems": 1}}, [plural])

    @reads({"oneOf": [single.schema, several]})
    def parse(body: object) -> CreateBody:
        if not isinstance(body, dict) or plural not in body:
            return CreateBody([single(body)], several=False)
        items = body[plural]
        if not isinstance(items, list) or not items:
            raise bad_request("Resources required")
        if len(items) > BULK:
            raise invalid_input(f"one request creates at most {BULK} {plural}")
        # Neutron accepts items with and without the inner root element
        bodies = [item.get(singular, item) if isinstance(item, dict) else item for item in items]
        return CreateBody([_values(body, attributes, POST) for body in bodies], several=True)

    return parse


def _values(body: object, attributes: Attributes, verb: str) -> Values:
    if not isinstance(body, dict):
        raise bad_request("Body contains invalid data")
    unknown = sorted(str(name) for name in body if name not in attributes)
    if unknown:
        raise bad_request(f"Unrecognized attribute(s) '{', '.join(unknown)}'")
    for name in body:
        if verb == POST and not attributes[name].post:
            raise bad_request(f"Attribute '{name}' not allowed in POST")
        if verb == PUT and not attributes[name].put:
            raise bad_request(f"Cannot update read-only attribute {name}")
    try:
        return read_fields(_spec(attributes, verb), body)
    except MissingField as error:
        raise bad_request(f"Failed to parse request. Required attribute '{error.name}' not specified") from None
    except BadField as error:
        raise bad_attribute(error.name, error.reason) from None


def _spec(attributes: Attributes, verb: str) -> Spec:
    """Return the spec of the attributes that a body may have."""
    return {
        name: Field(parse=item.parse, required=item.required and verb == POST, nullable=item.nullable)
        for name, item in attributes.items()
        if (item.post if verb == POST else item.put)
    }


def project_of(caller: Identity, values: Values) -> str:
    """Return the project of the new resource. Raises ApiError 400."""
    project, tenant = values.get("project_id"), values.get("tenant_id")
    if project and tenant and project != tenant:
        raise bad_request("'project_id' and 'tenant_id' do not match")
    owner: str = project or tenant or caller.project_id
    if caller.system and not owner:
        raise bad_request("Running without keystone AuthN requires that tenant_id is specified")
    return owner
