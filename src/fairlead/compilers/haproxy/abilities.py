"""Features of listeners and pools that HAProxy supports."""

from fairlead.model.documents.abilities import EVERY_OPTION, Abilities
from fairlead.model.documents.health import PROBE_TRANSPORTS
from fairlead.model.documents.loadbalancer import ListenerProtocol, Locality, PoolProtocol

ABILITIES = Abilities(
    listener_protocols=frozenset(ListenerProtocol)
    - {ListenerProtocol.ANY, ListenerProtocol.SCTP, ListenerProtocol.UDP},
    pool_protocols=frozenset(PoolProtocol) - {PoolProtocol.ANY, PoolProtocol.SCTP, PoolProtocol.UDP},
    monitors=frozenset(PROBE_TRANSPORTS),
    localities=frozenset({Locality.NONE, Locality.CHASSIS}),
    options=EVERY_OPTION - {"pool.persistence.granularity"},
)
