"""Bodies of the plug-in API: Octavia's attributes with ids given by the service."""

from dataclasses import replace

from fairlead.api.octavia import parts, specs
from fairlead.api.octavia.parts import Part
from fairlead.changes.identity import MAX_PROJECT_ID_LENGTH
from fairlead.model.documents import sizes
from fairlead.schema import Field, Parser, Spec, Values, boolean, list_of, mapping, text, uuid

MAX_LEAVES = 1_000
"""Maximum networks and routers in `leaves`; Fairlead's own."""


def _with_id(spec: Spec) -> Spec:
    return {**spec, "id": Field(uuid, required=True)}


MEMBER = _with_id(specs.MEMBER_POST)
_MONITOR_IN_TREE = _with_id(specs.HEALTH_MONITOR_IN_TREE)
_OF_POOL: Spec = {
    "healthmonitor": Field(specs.nested(_MONITOR_IN_TREE)),
    "members": Field(list_of(specs.nested(MEMBER), sizes.MAX_MEMBERS)),
}
POOL = _with_id({**specs.POOL_POST, **_OF_POOL})
_POOL_IN_TREE: Spec = {name: field for name, field in POOL.items() if name not in ("loadbalancer_id", "listener_id")}
L7_RULE = _with_id(specs.L7_RULE_POST)
_OF_POLICY: Spec = {"rules": Field(list_of(specs.nested(L7_RULE), sizes.MAX_L7RULES))}
L7_POLICY = _with_id({**specs.L7_POLICY_POST, **_OF_POLICY})
_POLICY_IN_TREE: Spec = {name: field for name, field in L7_POLICY.items() if name != "listener_id"}
_OF_LISTENER: Spec = {"l7policies": Field(list_of(specs.nested(_POLICY_IN_TREE), sizes.MAX_L7POLICIES))}
_LISTENER: Spec = {name: field for name, field in specs.LISTENER_POST.items() if name != "default_pool"}
LISTENER = _with_id({**_LISTENER, **_OF_LISTENER})
"""Listener spec; it references its pool by id, also in a nested body."""
_LISTENER_IN_TREE: Spec = {name: field for name, field in LISTENER.items() if name != "loadbalancer_id"}
LOAD_BALANCER: Spec = _with_id(
    {
        **specs.LOAD_BALANCER_PUT,
        "project_id": Field(text(MAX_PROJECT_ID_LENGTH), required=True),
        "additional_vips": specs.LOAD_BALANCER_POST["additional_vips"],
        "availability_zone": Field(mapping),
        "flavor": Field(mapping),
        "listeners": Field(list_of(specs.nested(_LISTENER_IN_TREE), sizes.MAX_LISTENERS)),
        "takeover": Field(boolean),
        "leaves": Field(list_of(text(), MAX_LEAVES)),
        "pools": Field(list_of(specs.nested(_POOL_IN_TREE), sizes.MAX_POOLS)),
        **{
            name: specs.LOAD_BALANCER_POST[name]
            for name in ("vip_address", "vip_network_id", "vip_port_id", "vip_subnet_id")
        },
    }
)
"""Load balancer spec. Flavor and zone contain the metadata of their profiles, because the service's ids are its own.
`takeover`: another provider serves the load balancer, so it is only prepared. `leaves`: networks and routers where
clients may stay with that provider; if present, any other such place is rejected."""
PROFILES: Spec = {"availability_zone": Field(mapping), "flavor": Field(mapping)}
MEMBERS: Parser[tuple[Values, ...]] = specs.under(
    "members", list_of(specs.nested(MEMBER), sizes.MAX_MEMBERS), "a list", argument="members_"
)
_POSTS = {
    "listener": LISTENER,
    "pool": POOL,
    "member": MEMBER,
    "healthmonitor": _with_id(specs.HEALTH_MONITOR_POST),
    "l7policy": L7_POLICY,
    "rule": L7_RULE,
}
PARTS: tuple[Part, ...] = tuple(replace(part, post=_POSTS[part.root]) for part in parts.PARTS)
"""Parts that are found, created and changed as by the Octavia front end."""
