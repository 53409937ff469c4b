"""Load balancers of the model that use every kind of part."""

from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any

from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.l7 import L7Comparison, L7Policy, L7Rule, L7RuleType, Reject
from fairlead.model.documents.loadbalancer import (
    Algorithm,
    Listener,
    ListenerProtocol,
    LoadBalancer,
    Member,
    MonitorType,
    PlainMonitor,
    Pool,
    PoolProtocol,
    Vip,
)
from fairlead.model.documents.port_ranges import one_port

ADDRESS = parse_address("10.0.0.1")


def some_balancer(identity: str, project: str, dice: Random | None = None) -> LoadBalancer:
    """Load balancer with one of each part, or with a random number of each if `dice` is given."""
    own = {"project_id": project, "created_at": datetime(2026, 1, 1, tzinfo=UTC)}

    def some(kind: Any, most: int, **attributes: Any) -> tuple[Any, ...]:
        number = dice.randint(0, most) if dice else 1
        return tuple(kind(id=f"{identity}-{kind.__name__}-{n}", **own, **attributes) for n in range(number))

    monitor = {"type": MonitorType.TCP, "delay": 1, "timeout": 1, "max_retries": 1}
    rule = {"type": L7RuleType.PATH, "compare_type": L7Comparison.EQUAL_TO, "value": "/"}
    pools = tuple(
        replace(
            pool,
            members=some(Member, 3, ordinal=0, address=ADDRESS, port=80),
            health_monitor=next(iter(some(PlainMonitor, 1, **monitor)), None),
        )
        for pool in some(Pool, 2, protocol=PoolProtocol.TCP, algorithm=Algorithm.SOURCE_IP)
    )
    listeners = tuple(
        replace(
            listener,
            l7policies=tuple(
                replace(policy, rules=some(L7Rule, 2, **rule)) for policy in some(L7Policy, 2, action=Reject())
            ),
        )
        for listener in some(Listener, 2, protocol=ListenerProtocol.TCP, ports=one_port(80))
    )
    vip = Vip(address=ADDRESS, port_id="p", subnet_id="s", network_id="n")
    return LoadBalancer(id=identity, provider="ovn", vip=vip, pools=pools, listeners=listeners, **own)
