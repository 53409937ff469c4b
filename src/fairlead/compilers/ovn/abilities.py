"""Abilities of an OVN switch: layer 4 load balancing, and probes of open ports; agents add more kinds of probes."""

from dataclasses import replace

from fairlead.model.documents.abilities import Abilities
from fairlead.model.documents.health import OVN_PROBE_TRANSPORTS, PROBE_TRANSPORTS
from fairlead.model.documents.loadbalancer import Algorithm, DownMember, ListenerProtocol, PersistenceType, PoolProtocol
from fairlead.model.snapshot import Snapshot

ABILITIES = Abilities(
    listener_protocols=frozenset(
        {
            *(ListenerProtocol.TCP, ListenerProtocol.HTTPS, ListenerProtocol.UDP, ListenerProtocol.SCTP),
            ListenerProtocol.ANY,
        }
    ),
    pool_protocols=frozenset(PoolProtocol) - {PoolProtocol.PROXY, PoolProtocol.PROXYV2},
    algorithms=frozenset(Algorithm) - {Algorithm.LEAST_CONNECTIONS},
    persistence=frozenset({PersistenceType.SOURCE_IP}),
    monitors=frozenset(OVN_PROBE_TRANSPORTS),
    down_members=frozenset({DownMember.KEEP}),
    options=frozenset(),
)
WITH_AGENTS = replace(
    ABILITIES,
    monitors=frozenset(PROBE_TRANSPORTS),
    down_members=frozenset(DownMember),
    options=frozenset({"pool.health_monitor.delay_ms"}),
)


def abilities_here(snapshot: Snapshot) -> Abilities:
    return WITH_AGENTS if snapshot.agents_probe else ABILITIES
