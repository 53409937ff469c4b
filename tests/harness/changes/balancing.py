"""Fixtures for tests of load-balancing rules: a whole load balancer, as a front end with client-given ids builds it."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from fairlead.changes.balancers import create_load_balancer
from fairlead.changes.caller import ChangeContext
from fairlead.changes.refusal import Refusal, Refused
from fairlead.changes.vips import VipRequest, choose_vip
from fairlead.compilers import providers
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.loadbalancer import (
    Algorithm,
    Listener,
    ListenerProtocol,
    LoadBalancer,
    Member,
    Pool,
    PoolProtocol,
)
from fairlead.model.documents.port_ranges import one_port
from fairlead.model.documents.status import AppliedState
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps, run_to_completion
from harness.api import NOON
from harness.changes.world import NETWORK, OWNER, OWNERS, snapshot_with

LATER = NOON + timedelta(hours=1)
ALL_APPLIED = AppliedState(generation=2**40)
ASKER = ChangeContext(identity=OWNER, now=LATER, applied=lambda _: ALL_APPLIED, providers=providers.DEFAULT)


def member(identity: str, number: int, **fields: Any) -> Member:
    given = {"address": parse_address(f"10.0.0.{number}"), "port": 8080} | OWNERS | fields
    return Member(id=identity, **given)


def pool(identity: str, *members: Member, **fields: Any) -> Pool:
    given = {"protocol": PoolProtocol.TCP, "algorithm": Algorithm.SOURCE_IP_PORT} | OWNERS | fields
    return Pool(id=identity, members=members, **given)


def listener(identity: str, port: int, **fields: Any) -> Listener:
    return Listener(id=identity, ports=one_port(port), **{"protocol": ListenerProtocol.TCP} | OWNERS | fields)


def balancer_request(snapshot: Snapshot, identity: str = "lb", **fields: Any) -> Steps[Changes]:
    """Request of a front end for a whole load balancer, with an id for each part."""
    asked = VipRequest(balancer_id=identity, project_id="owner", new_port_id=f"vip-{identity}", subnet_id="four")
    vip = choose_vip(snapshot, ASKER, asked)
    wanted = {"provider": "fairlead", "vip": vip.vips[0]} | OWNERS | fields
    return create_load_balancer(snapshot, ASKER, LoadBalancer(id=identity, **wanted), vip)


def apply_work(snapshot: Snapshot, work: Steps[Changes]) -> Snapshot:
    return apply_changes(snapshot, run_to_completion(work), snapshot.revision + 1)


def network_and_balancer() -> Snapshot:
    """A network, and a load balancer `lb` with the listener `front` and its pool `app` of members `a` and `b`."""
    app = pool("app", member("a", 11), member("b", 12))
    front = listener("front", 80, default_pool_id="app")
    return apply_work(
        snapshot_with(NETWORK), balancer_request(snapshot_with(NETWORK), listeners=(front,), pools=(app,))
    )


def stored(snapshot: Snapshot) -> LoadBalancer:
    return snapshot.load_balancers["lb"]


def with_pool(snapshot: Snapshot, **fields: Any) -> LoadBalancer:
    """The stored load balancer with changed fields of its pool `app`."""
    (app,) = stored(snapshot).pools
    return replace(stored(snapshot), pools=(replace(app, **fields),))


def refusal_of(rule: Callable[..., Steps[Changes]], *arguments: Any, **named: Any) -> Refusal:
    with pytest.raises(Refused) as refused:
        run_to_completion(rule(*arguments, **named))
    return refused.value.why
