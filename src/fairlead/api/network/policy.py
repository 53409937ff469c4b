"""Authorization by Neutron's default rules (neutron, conf/policies), for the roles that exist here.

A resource that the caller may not see returns 404; one that it sees and may not change returns 403.
"""

from collections.abc import Iterable, Mapping

from fairlead.api.http.front_end import ApiError
from fairlead.api.network.attributes import CreateBody
from fairlead.api.network.errors import bad_request, forbidden
from fairlead.api.network.refusals import RESOURCES
from fairlead.changes.access import NotAllowed, Verb

PROVIDER = ("provider:network_type", "provider:physical_network", "provider:segmentation_id")
WRITERS = frozenset({"admin", "member"})
"""Roles that may write; requests of others are rejected before the body is read."""
_FIELDS: Mapping[str, str] = {
    "binding:host_id": "host",
    "binding:profile": "host",
    "router:external": "external",
    **dict.fromkeys(("segments", *PROVIDER), "segment"),
    "floating_ip_address": "address",
    "local_ip_address": "address",
}
"""Attribute -> field of the model, where the names differ."""
_WITHIN: Mapping[tuple[str, str], str] = {
    ("port", "fixed_ips"): "fixed_ips:ip_address",
    ("router", "enable_snat"): "external_gateway_info:enable_snat",
    ("router", "fixed_ips"): "external_gateway_info:external_fixed_ips",
}
"""(Resource, field) -> rule suffix, where the rule names a sub-attribute."""


_RULES: Mapping[tuple[Verb, str], str] = {
    (Verb.ADD, "local_ip"): "create_local_ip_port_association",
    (Verb.REMOVE, "local_ip"): "delete_local_ip_port_association",
}
"""(Verb, resource) -> rule, where it is not "verb_resource"."""


def fields_of(attributes: Iterable[str]) -> frozenset[str]:
    """Return the model's fields of the attributes in a request."""
    return frozenset(_FIELDS.get(name, name) for name in attributes)


def check(allowed: bool, rule: str) -> None:
    """Raise ApiError 403 unless allowed."""
    if not allowed:
        raise forbidden(f"rule:{rule}")


def forbidden_error(why: NotAllowed, body: object) -> ApiError:
    """Return the error with the rule that Neutron would evaluate. `body` is the parsed request."""
    resource = RESOURCES[why.what]
    rule = _RULES.get((why.verb, resource), f"{why.verb}_{resource}")
    if not why.fields:
        return forbidden(f"rule:{rule}")
    if "project_id" in why.fields:
        return bad_request(
            "Specifying 'project_id' or 'tenant_id' other than the authenticated project in request requires admin "
            "privileges"
        )
    within = {_WITHIN[resource, field] for field in why.fields if (resource, field) in _WITHIN}
    names = sorted(within | _named(why, body))
    return forbidden(f"(rule:{rule} and ({' and '.join(f'rule:{rule}:{name}' for name in names)}))")


def _named(why: NotAllowed, body: object) -> set[str]:
    """Return the attributes of the body that set these fields. Empty values are ignored in a POST."""
    items = body.resources if isinstance(body, CreateBody) else [body] if isinstance(body, dict) else []
    fields = {field for field in why.fields if (RESOURCES[why.what], field) not in _WITHIN}
    for item in items:
        said = (name for name, value in item.items() if why.verb is Verb.UPDATE or value or value is False)
        found = {name for name in said if _FIELDS.get(name, name) in fields}
        if fields_of(found) == fields:
            return found
    return fields
