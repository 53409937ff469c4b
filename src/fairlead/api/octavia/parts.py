"""Parts of a load balancer that are API resources, described uniformly so that one set of handlers serves all."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from fairlead.api.http.front_end import JsonObject
from fairlead.api.octavia import encode, requests, specs
from fairlead.api.octavia.caller import RequestCaller
from fairlead.changes import l7, listeners, lookup, members, monitors, pools
from fairlead.changes.identity import Identity
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps
from fairlead.schema import Spec, Values

Names: TypeAlias = Mapping[str, str]
"""Path parameters: `id`, and the parent's id in nested paths."""
Chain: TypeAlias = tuple[Any, ...]
"""Objects on the path from the load balancer to the part, with the part last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Resource description of a part. A list has the parts of the parent in the path, or else all parts of the kind in
    visible load balancers; then `index` maps a part's id to its load balancer. `find` and `parent` raise ApiError."""

    root: str
    plural: str
    path: str
    argument: str
    post: Spec
    put: Spec
    shown: encode.Shown
    index: Callable[[Snapshot], Mapping[str, str]] | None
    within: Callable[[LoadBalancer], Iterable[Chain]] = lambda _: ()
    parent: Callable[[Snapshot, Names, Identity], Chain] = lambda *_: ()
    """Return the load balancer and the objects down to the parent."""
    below: Callable[[Chain], Iterable[Chain]] = lambda _: ()
    find: Callable[[Snapshot, Names, Identity], Chain]
    """Return the load balancer and the objects down to the part."""
    encode: Callable[..., JsonObject]
    create: Callable[[Snapshot, Values, RequestCaller, Names], Steps[requests.CreatedPart]]
    update: Callable[[Snapshot, Values, RequestCaller, Names], Steps[Changes]]
    delete: Callable[[Snapshot, RequestCaller, Names], Steps[Changes]]


LISTENER = Part(
    root="listener",
    plural="listeners",
    path="/listeners",
    argument="listener_",
    post=specs.LISTENER_POST,
    put=specs.LISTENER_PUT,
    shown=encode.LISTENER,
    index=lambda snapshot: snapshot.listener_owner,
    within=lambda balancer: ((listener,) for listener in balancer.listeners),
    find=lambda snapshot, names, who: lookup.find_listener(snapshot, names["id"], who),
    encode=encode.encode_listener,
    create=lambda snapshot, values, caller, _: requests.create_listener(snapshot, values, caller),
    update=lambda snapshot, values, caller, names: requests.update_listener(snapshot, values, caller, names["id"]),
    delete=lambda snapshot, caller, names: listeners.delete_listener(snapshot, caller.identity, names["id"]),
)
POOL = Part(
    root="pool",
    plural="pools",
    path="/pools",
    argument="pool_",
    post=specs.POOL_POST,
    put=specs.POOL_PUT,
    shown=encode.POOL,
    index=lambda snapshot: snapshot.pool_owner,
    within=lambda balancer: ((pool,) for pool in balancer.pools),
    find=lambda snapshot, names, who: lookup.find_pool(snapshot, names["id"], who),
    encode=encode.encode_pool,
    create=lambda snapshot, values, caller, _: requests.create_pool(snapshot, values, caller),
    update=lambda snapshot, values, caller, names: requests.update_pool(snapshot, values, caller, names["id"]),
    delete=lambda snapshot, caller, names: pools.delete_pool(snapshot, caller.identity, names["id"]),
)


def _find_member(snapshot: Snapshot, names: Names, who: Identity) -> Chain:
    balancer, pool = lookup.find_pool(snapshot, names["pool_id"], who)
    return balancer, pool, lookup.find_member(pool, names["id"])


MEMBER = Part(
    root="member",
    plural="members",
    path="/pools/{pool_id}/members",
    argument="member_",
    post=specs.MEMBER_POST,
    put=specs.MEMBER_PUT,
    shown=encode.MEMBER,
    index=None,
    parent=lambda snapshot, names, who: lookup.find_pool(snapshot, names["pool_id"], who),
    below=lambda found: ((found[-1], member) for member in found[-1].members),
    find=_find_member,
    encode=encode.encode_member,
    create=lambda snapshot, values, caller, names: requests.create_member(snapshot, values, caller, names["pool_id"]),
    update=lambda snapshot, values, caller, names: requests.update_member(
        snapshot, values, caller, names["pool_id"], names["id"]
    ),
    delete=lambda snapshot, caller, names: members.delete_member(
        snapshot, caller.identity, names["pool_id"], names["id"]
    ),
)
HEALTH_MONITOR = Part(
    root="healthmonitor",
    plural="healthmonitors",
    path="/healthmonitors",
    argument="health_monitor_",
    post=specs.HEALTH_MONITOR_POST,
    put=specs.HEALTH_MONITOR_PUT,
    shown=encode.HEALTH_MONITOR,
    index=lambda snapshot: snapshot.monitor_owner,
    within=lambda balancer: ((pool, pool.health_monitor) for pool in balancer.pools if pool.health_monitor),
    find=lambda snapshot, names, who: lookup.find_monitor(snapshot, names["id"], who),
    encode=encode.encode_monitor,
    create=lambda snapshot, values, caller, _: requests.create_monitor(snapshot, values, caller),
    update=lambda snapshot, values, caller, names: requests.update_monitor(snapshot, values, caller, names["id"]),
    delete=lambda snapshot, caller, names: monitors.delete_monitor(snapshot, caller.identity, names["id"]),
)
L7_POLICY = Part(
    root="l7policy",
    plural="l7policies",
    path="/l7policies",
    argument="l7policy_",
    post=specs.L7_POLICY_POST,
    put=specs.L7_POLICY_PUT,
    shown=encode.L7_POLICY,
    index=lambda snapshot: snapshot.l7policy_owner,
    within=lambda balancer: ((listener, policy) for listener in balancer.listeners for policy in listener.l7policies),
    find=lambda snapshot, names, who: lookup.find_policy(snapshot, names["id"], who),
    encode=encode.encode_policy,
    create=lambda snapshot, values, caller, _: requests.create_policy(snapshot, values, caller),
    update=lambda snapshot, values, caller, names: requests.update_policy(snapshot, values, caller, names["id"]),
    delete=lambda snapshot, caller, names: l7.delete_policy(snapshot, caller.identity, names["id"]),
)


def _find_rule(snapshot: Snapshot, names: Names, who: Identity) -> Chain:
    found = lookup.find_policy(snapshot, names["l7policy_id"], who)
    return *found, lookup.find_rule(found[-1], names["id"])


L7_RULE = Part(
    root="rule",
    plural="rules",
    path="/l7policies/{l7policy_id}/rules",
    argument="rule_",
    post=specs.L7_RULE_POST,
    put=specs.L7_RULE_PUT,
    shown=encode.L7_RULE,
    index=None,
    parent=lambda snapshot, names, who: lookup.find_policy(snapshot, names["l7policy_id"], who),
    below=lambda found: ((*found[1:], rule) for rule in found[-1].rules),
    find=_find_rule,
    encode=encode.encode_rule,
    create=lambda snapshot, values, caller, names: requests.create_rule(snapshot, values, caller, names["l7policy_id"]),
    update=lambda snapshot, values, caller, names: requests.update_rule(
        snapshot, values, caller, names["l7policy_id"], names["id"]
    ),
    delete=lambda snapshot, caller, names: l7.delete_rule(snapshot, caller.identity, names["l7policy_id"], names["id"]),
)
PARTS = (LISTENER, POOL, MEMBER, HEALTH_MONITOR, L7_POLICY, L7_RULE)
