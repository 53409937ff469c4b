"""Who may do what, in the names of Neutron's default rules (neutron, conf/policies), as far as its roles exist here.

What callers may not see does not exist for them (404); what they see and may not change is forbidden (403).
"""

from collections.abc import Iterable, Mapping

from fairlead.api.door import ApiError
from fairlead.api.network.attributes import Asked
from fairlead.api.network.errors import bad_request, forbidden
from fairlead.api.network.refusals import RESOURCES
from fairlead.changes.access import NotAllowed, Verb

PROVIDER = ("provider:network_type", "provider:physical_network", "provider:segmentation_id")
WRITERS = frozenset({"admin", "member"})
"""Roles that may change something: of others no body is read."""
_FIELDS: Mapping[str, str] = {
    "binding:host_id": "host",
    "binding:profile": "host",
    "router:external": "external",
    **dict.fromkeys(("segments", *PROVIDER), "segment"),
    "floating_ip_address": "address",
    "local_ip_address": "address",
}
"""What an attribute says, where the model calls it otherwise."""
_WITHIN: Mapping[tuple[str, str], str] = {
    ("port", "fixed_ips"): "fixed_ips:ip_address",
    ("router", "enable_snat"): "external_gateway_info:enable_snat",
    ("router", "fixed_ips"): "external_gateway_info:external_fixed_ips",
}
"""Fields of which a part of an attribute has the rule."""


_RULES: Mapping[tuple[Verb, str], str] = {
    (Verb.ADD, "local_ip"): "create_local_ip_port_association",
    (Verb.REMOVE, "local_ip"): "delete_local_ip_port_association",
}
"""Rules that are not called by the verb and the resource."""


def fields_of(attributes: Iterable[str]) -> frozenset[str]:
    """The model's names of what a request says."""
    return frozenset(_FIELDS.get(name, name) for name in attributes)


def check(allowed: bool, rule: str) -> None:
    """Raises ApiError 403."""
    if not allowed:
        raise forbidden(f"rule:{rule}")


def say_not_allowed(why: NotAllowed, body: object) -> ApiError:
    """By the rule that Neutron looks at. `body` is what the request asks."""
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
    """The attributes by which the body says these fields. In what is created, nothing may be said of them."""
    items = body.resources if isinstance(body, Asked) else [body] if isinstance(body, dict) else []
    fields = {field for field in why.fields if (RESOURCES[why.what], field) not in _WITHIN}
    for item in items:
        said = (name for name, value in item.items() if why.verb is Verb.UPDATE or value or value is False)
        found = {name for name in said if _FIELDS.get(name, name) in fields}
        if fields_of(found) == fields:
            return found
    return fields
