"""Abilities of a plain Linux host's packet filter: selecting a member by a packet's addresses and ports.

Everything else needs the HAProxy on the host, if agents probe. Selection is by hash, on any host that receives the
packet. ROUND_ROBIN is the same as SOURCE_IP_PORT, because stock clients request it for an even spread, and turns cannot
be counted over many hosts.
"""

from dataclasses import replace

from fairlead.model.documents.abilities import Abilities
from fairlead.model.documents.health import PROBE_TRANSPORTS
from fairlead.model.documents.loadbalancer import (
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
WITH_AGENTS = replace(
    ABILITIES, monitors=frozenset(PROBE_TRANSPORTS), options=frozenset({"pool.health_monitor.delay_ms"})
)
"""Abilities in a deployment where agents probe: each host probes the members that it routes."""


NOT_EXTENDED_BY_PROXY = Abilities(localities=ABILITIES.localities)
"""Abilities that a proxy on a host does not extend."""


def abilities_here(view: Snapshot) -> Abilities:
    return WITH_AGENTS if view.agents_probe else ABILITIES
