"""Status of a load balancer and of its parts, derived from write generations, applied generations and health.

A load balancer is applied as a whole, but API clients read the status of each part. The snapshot therefore keeps, for
each part, the generation that created it and the newest generation that touched it (`touch`). A generation touches the
objects that Octavia's operation sets to PENDING: the changed part and the listeners that lead to it. The provisioning
status of a part is that of its newest generation.

Operating statuses follow Octavia's reference driver (octavia/amphorae/drivers/health/heartbeat_udp.py): the status of a
listener does not depend on its pools, the status of a pool follows from its members, and the status of the load
balancer follows from its pools and from listeners that use proxies.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from immutables import Map

from fairlead.model.documents.health import HealthKey
from fairlead.model.documents.l7 import L7Policy, L7Rule
from fairlead.model.documents.loadbalancer import (
    HealthMonitor,
    Listener,
    LoadBalancer,
    Member,
    Pool,
    pools_of,
)
from fairlead.model.documents.network import Resource
from fairlead.model.documents.status import AppliedState, OperatingStatus, ProvisioningStatus


@dataclass(frozen=True, slots=True)
class PartHistory:
    """Generations that created a part and that touched it last;
    0 for parts that existed when the snapshot was loaded."""

    created_generation: int = 0
    touched_generation: int = 0


UNCHANGED_SINCE_LOAD = PartHistory()
PartHistories = Map[str, PartHistory]
"""Part id -> its history. Parts that are unchanged since their load balancer was created or loaded have no entry."""


def update_histories(old: LoadBalancer, new: LoadBalancer, histories: PartHistories, generation: int) -> PartHistories:
    """Return the histories after `new` has replaced `old`."""
    before, after = dict(_parts(old)), dict(_parts(new))
    changed = {identity for identity, part in after.items() if _is_changed(before.get(identity), part)}
    for listener in new.listeners:
        if changed.intersection(pools_of(listener)):
            changed.add(listener.id)
    kept = {identity: history for identity, history in histories.items() if identity in after}
    for identity in changed:
        made = kept.get(identity, UNCHANGED_SINCE_LOAD).created_generation if identity in before else generation
        kept[identity] = PartHistory(made, generation)
    return Map(kept)


def _is_changed(old: Resource | None, new: Resource) -> bool:
    """Compare by identity first, because unchanged parts are the same object before and after."""
    return old is not new and old != new


def _parts(balancer: LoadBalancer) -> Iterator[tuple[str, Resource]]:
    for listener in balancer.listeners:
        yield listener.id, listener
        for policy in listener.l7policies:
            yield policy.id, policy
            yield from ((rule.id, rule) for rule in policy.rules)
    for pool in balancer.pools:
        yield pool.id, pool
        if pool.health_monitor:
            yield pool.health_monitor.id, pool.health_monitor
        yield from ((member.id, member) for member in pool.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancerStatus:
    """Status of one load balancer and of each of its parts."""

    balancer: LoadBalancer
    generation: int
    histories: PartHistories = Map()
    applied: AppliedState
    down: frozenset[str] = frozenset()
    """Members that their health monitor reports as down, at one port at least."""
    online: frozenset[HealthKey] = frozenset()
    """Members that answered the probes of their health monitor."""
    agents_probe: bool = False
    """Whether agents probe the members; otherwise their dataplane does."""
    cannot_answer: Callable[[Member], bool] = lambda _: False
    """Whether the model excludes any answer from the member's address, with no monitor needed."""
    is_unrouted: Callable[[Member], bool] = lambda _: False
    """Whether no node can forward traffic to the member, monitored or not."""
    is_fully_applied: Callable[[], bool] = lambda: True
    """Whether nodes apply and serve the load balancer completely. No node reports a failure, and all nodes that forward
    to its members are responsive. An unresponsive node continues with the last configuration that it received."""
    proxy_status: Callable[[Listener], OperatingStatus] = lambda _: OperatingStatus.ONLINE
    """Operating status of a listener that uses proxies."""

    def provisioning_status(self, part: Resource) -> ProvisioningStatus:
        """Return ERROR while the apply of the part's newest generation fails;
        for the load balancer, of any generation."""
        touched = self.generation if part is self.balancer else self._find_history(part).touched_generation
        if self.applied.generation and self.applied.generation >= touched:
            failing = part is self.balancer and self.applied.error is not None
            return ProvisioningStatus.ERROR if failing else ProvisioningStatus.ACTIVE
        if self.applied.error is not None:
            return ProvisioningStatus.ERROR
        is_new = not self._is_applied(part) and (self.applied.generation or part.updated_at is None)
        return ProvisioningStatus.PENDING_CREATE if is_new else ProvisioningStatus.PENDING_UPDATE

    def is_immutable(self, part: Resource) -> bool:
        """Return whether requests must wait for the part.
        A part that fails to apply is mutable, because a change may be the fix."""
        pending = (ProvisioningStatus.PENDING_CREATE, ProvisioningStatus.PENDING_UPDATE)
        return self.provisioning_status(part) in pending and not self.applied.stalled

    def of_balancer(self) -> OperatingStatus:
        """Return DEGRADED also while some nodes fail or are unresponsive, because other nodes serve clients."""
        if not self._serves(self.balancer):
            return OperatingStatus.OFFLINE
        led_to = self._find_pools_in_use()
        parts = {self._of_pool(pool, led_to) for pool in self.balancer.pools}
        parts.update(self.of_listener(listener) for listener in self.balancer.listeners if listener.proxy_port)
        worst = (status for status in (OperatingStatus.ERROR, OperatingStatus.DEGRADED) if status in parts)
        return next(worst, OperatingStatus.ONLINE if self.is_fully_applied() else OperatingStatus.DEGRADED)

    def of_listener(self, listener: Listener) -> OperatingStatus:
        """Return the status of its proxies for a listener that uses them, otherwise ONLINE or OFFLINE."""
        serves = self._serves(self.balancer, listener)
        return self.proxy_status(listener) if serves and listener.proxy_port else _online(serves)

    def of_policy(self, listener: Listener, policy: L7Policy) -> OperatingStatus:
        return _online(self._serves(self.balancer, listener, policy))

    def of_rule(self, listener: Listener, policy: L7Policy, rule: L7Rule) -> OperatingStatus:
        return _online(self._serves(self.balancer, listener, policy, rule))

    def of_pool(self, pool: Pool) -> OperatingStatus:
        return self._of_pool(pool, self._find_pools_in_use())

    def _of_pool(self, pool: Pool, led_to: frozenset[str]) -> OperatingStatus:
        """Return OFFLINE also if no serving listener leads to the pool. Members that are not applied yet are ignored,
        and members that are not probed yet count as serving."""
        if not self._serves(self.balancer, pool) or pool.id not in led_to:
            return OperatingStatus.OFFLINE
        there = [member for member in pool.members if self._is_applied(member)]
        members = {self.of_member(pool, member) for member in there}
        works = members & {OperatingStatus.ONLINE, OperatingStatus.NO_MONITOR}
        if there and not works and not any(self._is_unprobed(pool, member) for member in there):
            return OperatingStatus.ERROR
        return OperatingStatus.DEGRADED if OperatingStatus.ERROR in members else OperatingStatus.ONLINE

    def _find_pools_in_use(self) -> frozenset[str]:
        """Return the pools of the listeners that serve."""
        serving = (listener for listener in self.balancer.listeners if self._serves(listener))
        return frozenset(pool_id for listener in serving for pool_id in pools_of(listener))

    def of_monitor(self, pool: Pool, monitor: HealthMonitor) -> OperatingStatus:
        return _online(self._serves(self.balancer, pool, monitor))

    def of_member(self, pool: Pool, member: Member) -> OperatingStatus:
        if not (self.balancer.admin_state_up and pool.admin_state_up and member.admin_state_up):
            return OperatingStatus.OFFLINE
        if member.weight == 0:
            return OperatingStatus.DRAINING
        if self.is_unrouted(member):
            return OperatingStatus.ERROR
        if not _is_monitored(pool):
            return OperatingStatus.ERROR if self.cannot_answer(member) else OperatingStatus.NO_MONITOR
        if member.id in self.down:
            return OperatingStatus.ERROR
        return _online(member.id in self.online)

    def _find_history(self, part: Resource) -> PartHistory:
        return self.histories.get(part.id, UNCHANGED_SINCE_LOAD)

    def _is_unprobed(self, pool: Pool, member: Member) -> bool:
        """Return whether the member has no probe result yet. Such a member serves until it is reported as down."""
        is_known = member.id in self.down or member.id in self.online or self.is_unrouted(member)
        return _is_monitored(pool) and member.takes_connections and not is_known

    def _is_applied(self, part: Resource) -> bool:
        """Return whether any version of the part has been applied."""
        return 0 < self.applied.generation >= self._find_history(part).created_generation

    def _serves(self, *parts: LoadBalancer | Listener | Pool | HealthMonitor | L7Policy | L7Rule) -> bool:
        return all(part.admin_state_up and self._is_applied(part) for part in parts)


def _is_monitored(pool: Pool) -> bool:
    return pool.health_monitor is not None and pool.health_monitor.admin_state_up


def _online(serves: bool) -> OperatingStatus:
    return OperatingStatus.ONLINE if serves else OperatingStatus.OFFLINE
