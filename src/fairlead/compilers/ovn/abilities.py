"""What a switch can do: balance connections without looking inside, and ask whether a port is open."""

from fairlead.model.abilities import Abilities
from fairlead.model.loadbalancer import Algorithm, ListenerProtocol, PersistenceType, PoolProtocol
from fairlead.model.probes import TRANSPORTS

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
    monitors=frozenset(TRANSPORTS),
    options=frozenset(),
)
