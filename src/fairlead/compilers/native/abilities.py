"""What a plain Linux host can do by its own packet filter: choose a member by a packet's addresses and ports. The rest
is for the HAProxy beside it, where agents probe.

A choice is by hash, on whichever host a packet comes in. ROUND_ROBIN is the same choice as SOURCE_IP_PORT: stock
clients ask for it and want evenness, and nobody counts turns over many hosts.
"""

from dataclasses import replace

from fairlead.model.abilities import Abilities
from fairlead.model.health import ASKED_OVER
from fairlead.model.loadbalancer import (
    Algorithm,
    DownMember,
    ListenerProtocol,
    Locality,
    PersistenceType,
    PoolProtocol,
)
from fairlead.model.snapshot import Snapshot

ABILITIES = Abilities(
    listener_protocols=frozenset(
        {ListenerProtocol.TCP, ListenerProtocol.HTTPS, ListenerProtocol.UDP, ListenerProtocol.SCTP}
    ),
    pool_protocols=frozenset(
        {PoolProtocol.TCP, PoolProtocol.HTTP, PoolProtocol.HTTPS, PoolProtocol.UDP, PoolProtocol.SCTP}
    ),
    algorithms=frozenset(Algorithm) - {Algorithm.LEAST_CONNECTIONS},
    persistence=frozenset({PersistenceType.SOURCE_IP}),
    monitors=frozenset(),
    localities=frozenset({Locality.NONE}),
    down_members=frozenset({DownMember.KEEP}),
    options=frozenset(),
)
WITH_AGENTS = replace(ABILITIES, monitors=frozenset(ASKED_OVER), options=frozenset({"pool.health_monitor.delay_ms"}))
"""Of a deployment whose agents probe: each host asks the members behind it."""


OF_ANY_PATH = Abilities(localities=ABILITIES.localities)
"""What a host cannot do by a proxy either."""


def abilities_here(view: Snapshot) -> Abilities:
    return WITH_AGENTS if view.agents_probe else ABILITIES
