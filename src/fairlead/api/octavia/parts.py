"""The parts of a load balancer that have a resource of their own: one shape, so one set of requests for all of them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from fairlead.api.door import JsonObject
from fairlead.api.fields import Spec, Values
from fairlead.api.octavia import changes, encode, healthmonitors, l7policies, specs
from fairlead.api.octavia.caller import Caller
from fairlead.changes.identity import Identity
from fairlead.model.loadbalancer import LoadBalancer
from fairlead.model.snapshot import Snapshot
from fairlead.model.steps import Steps
from fairlead.model.writing import Changes

Names: TypeAlias = Mapping[str, str]
"""What the path names: `id`, and the parent's id where the path has one."""
Chain: TypeAlias = tuple[Any, ...]
"""What leads from the load balancer to the part, the part being the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """`find` and `siblings` raise ApiError. `siblings` are all that a list shows: those below the parent that the path
    names or, in the load balancers that a caller may see, all of a kind; then `index` knows which has which."""

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
    """The load balancer and what leads to the parent."""
    below: Callable[[Chain], Iterable[Chain]] = lambda _: ()
    find: Callable[[Snapshot, Names, Identity], Chain]
    """The load balancer, and what leads to the part."""
    encode: Callable[..., JsonObject]
    create: Callable[[Snapshot, Values, Caller, Names], Steps[changes.Made]]
    update: Callable[[Snapshot, Values, Caller, Names], Steps[Changes]]
    delete: Callable[[Snapshot, Caller, Names], Steps[Changes]]


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
    find=lambda snapshot, names, who: changes.find_listener(snapshot, names["id"], who),
    encode=encode.encode_listener,
    create=lambda snapshot, values, caller, _: changes.create_listener(snapshot, values, caller),
    update=lambda snapshot, values, caller, names: changes.update_listener(snapshot, values, caller, names["id"]),
    delete=lambda snapshot, caller, names: changes.delete_listener(snapshot, caller, names["id"]),
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
    find=lambda snapshot, names, who: changes.find_pool(snapshot, names["id"], who),
    encode=encode.encode_pool,
    create=lambda snapshot, values, caller, _: changes.create_pool(snapshot, values, caller),
    update=lambda snapshot, values, caller, names: changes.update_pool(snapshot, values, caller, names["id"]),
    delete=lambda snapshot, caller, names: changes.delete_pool(snapshot, caller, names["id"]),
)


def _find_member(snapshot: Snapshot, names: Names, who: Identity) -> Chain:
    balancer, pool = changes.find_pool(snapshot, names["pool_id"], who)
    return balancer, pool, changes.find_member(pool, names["id"])


MEMBER = Part(
    root="member",
    plural="members",
    path="/pools/{pool_id}/members",
    argument="member_",
    post=specs.MEMBER_POST,
    put=specs.MEMBER_PUT,
    shown=encode.MEMBER,
    index=None,
    parent=lambda snapshot, names, who: changes.find_pool(snapshot, names["pool_id"], who),
    below=lambda found: ((found[-1], member) for member in found[-1].members),
    find=_find_member,
    encode=encode.encode_member,
    create=lambda snapshot, values, caller, names: changes.create_member(snapshot, values, caller, names["pool_id"]),
    update=lambda snapshot, values, caller, names: changes.update_member(
        snapshot, values, caller, names["pool_id"], names["id"]
    ),
    delete=lambda snapshot, caller, names: changes.delete_member(snapshot, caller, names["pool_id"], names["id"]),
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
    find=lambda snapshot, names, who: healthmonitors.find_monitor(snapshot, names["id"], who),
    encode=encode.encode_monitor,
    create=lambda snapshot, values, caller, _: healthmonitors.create(snapshot, values, caller),
    update=lambda snapshot, values, caller, names: healthmonitors.update(snapshot, values, caller, names["id"]),
    delete=lambda snapshot, caller, names: healthmonitors.delete(snapshot, caller, names["id"]),
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
    find=lambda snapshot, names, who: l7policies.find(snapshot, names["id"], who),
    encode=encode.encode_policy,
    create=lambda snapshot, values, caller, _: l7policies.create(snapshot, values, caller),
    update=lambda snapshot, values, caller, names: l7policies.update(snapshot, values, caller, names["id"]),
    delete=lambda snapshot, caller, names: l7policies.delete(snapshot, caller, names["id"]),
)
L7_RULE = Part(
    root="rule",
    plural="rules",
    path="/l7policies/{l7policy_id}/rules",
    argument="rule_",
    post=specs.L7_RULE_POST,
    put=specs.L7_RULE_PUT,
    shown=encode.L7_RULE,
    index=None,
    parent=lambda snapshot, names, who: l7policies.find(snapshot, names["l7policy_id"], who),
    below=lambda found: ((*found[1:], rule) for rule in found[-1].rules),
    find=lambda snapshot, names, who: l7policies.find_rule(snapshot, names["l7policy_id"], names["id"], who),
    encode=encode.encode_rule,
    create=lambda snapshot, values, caller, names: l7policies.create_rule(
        snapshot, values, caller, names["l7policy_id"]
    ),
    update=lambda snapshot, values, caller, names: l7policies.update_rule(
        snapshot, values, caller, names["l7policy_id"], names["id"]
    ),
    delete=lambda snapshot, caller, names: l7policies.delete_rule(snapshot, caller, names["l7policy_id"], names["id"]),
)
PARTS = (LISTENER, POOL, MEMBER, HEALTH_MONITOR, L7_POLICY, L7_RULE)
