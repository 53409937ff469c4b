"""Request bodies: declared attributes, refused in Neutron's words (neutron-lib, api/attributes.py)."""

from collections.abc import Mapping
from dataclasses import dataclass

from fairlead.api.door import Identity
from fairlead.api.fields import BadField, Field, MissingField, Parser, Values, read_fields
from fairlead.api.network import parsers
from fairlead.api.network.errors import bad_attribute, bad_request, invalid_input
from fairlead.api.network.limits import BULK

POST, PUT = "POST", "PUT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """`post` and `put` say who may give it; `sifts` says whether a list can be filtered by it."""

    parse: Parser = parsers.name
    post: bool = True
    put: bool = True
    required: bool = False
    nullable: bool = False
    sifts: bool = True


Attributes = Mapping[str, Attribute]
READ_ONLY = Attribute(post=False, put=False)
UNSIFTED = Attribute(post=False, put=False, sifts=False)
STANDARD: Attributes = {
    "id": READ_ONLY,
    "name": Attribute(),
    "description": Attribute(parse=parsers.description),
    "project_id": Attribute(put=False, nullable=True),
    "tenant_id": Attribute(put=False, nullable=True),
    "tags": Attribute(parse=parsers.tags, put=False, sifts=False),
    "created_at": READ_ONLY,
    "updated_at": READ_ONLY,
    "revision_number": READ_ONLY,
}
"""What every resource has."""


def read_one(body: object, singular: str, attributes: Attributes, verb: str) -> Values:
    """The values of `{"<singular>": {...}}`. Raises ApiError 400."""
    if not isinstance(body, dict):
        raise bad_request("Body contains invalid data")
    if singular not in body:
        raise bad_request(f"Unable to find '{singular}' in request body")
    return _values(body[singular], attributes, verb)


def read_many(body: object, singular: str, plural: str, attributes: Attributes) -> list[Values] | None:
    """The values of `{"<plural>": [{...}, ...]}`; None when the body is not of this form. Raises ApiError 400."""
    if not isinstance(body, dict) or plural not in body:
        return None
    items = body[plural]
    if not isinstance(items, list) or not items:
        raise bad_request("Resources required")
    if len(items) > BULK:
        raise invalid_input(f"one request creates at most {BULK} {plural}")
    # Neutron takes both forms of an item
    return [_values(item.get(singular, item) if isinstance(item, dict) else item, attributes, POST) for item in items]


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
    spec = {name: _field(attribute, verb) for name, attribute in attributes.items() if name in body or verb == POST}
    try:
        return read_fields(spec, body)
    except MissingField as error:
        raise bad_request(f"Failed to parse request. Required attribute '{error.name}' not specified") from None
    except BadField as error:
        raise bad_attribute(error.name, error.reason) from None


def _field(attribute: Attribute, verb: str) -> Field:
    return Field(parse=attribute.parse, required=attribute.required and verb == POST, nullable=attribute.nullable)


def project_of(caller: Identity, values: Values) -> str:
    """Whose the new resource is. Raises ApiError 400 when that is for an administrator to say."""
    project, tenant = values.get("project_id"), values.get("tenant_id")
    if project and tenant and project != tenant:
        raise bad_request("'project_id' and 'tenant_id' do not match")
    owner: str = project or tenant or caller.project_id
    if owner != caller.project_id and not caller.is_admin:
        raise bad_request(
            "Specifying 'project_id' or 'tenant_id' other than the authenticated project in request requires admin "
            "privileges"
        )
    return owner
