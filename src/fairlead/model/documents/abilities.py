"""Abilities of a provider, declared as data in the model's terms, and checks of listeners and pools against them.

Compilers and API front ends read the same declaration. Attributes that every provider supports (ports, names, weights)
are not listed.
"""

from dataclasses import dataclass, fields

from fairlead.model.documents.loadbalancer import (
    Algorithm,
    DownMember,
    Http,
    Listener,
    ListenerProtocol,
    ListenerTls,
    Locality,
    MonitorType,
    PersistenceType,
    Pool,
    PoolProtocol,
    PoolTls,
    SourceIpPersistence,
)


@dataclass(frozen=True, slots=True)
class Feature:
    """Optional attribute of the model that a provider may support, with the value where support differs by value."""

    attribute: str
    value: str = ""

    def __str__(self) -> str:
        return f"{self.attribute} {self.value}".rstrip()


def _option_names(name: str, values: type[ListenerTls] | type[PoolTls] | type[Http]) -> frozenset[str]:
    return frozenset(f"{name}.{field.name}" for field in fields(values))


LISTENER_OPTIONS = frozenset(
    {
        "listener.l7policies",
        "listener.connection_limit",
        "listener.raw",
        *_option_names("listener.tls", ListenerTls),
        *_option_names("listener.http", Http),
    }
)
POOL_OPTIONS = frozenset(
    {"pool.persistence.granularity", "pool.health_monitor.delay_ms", *_option_names("pool.tls", PoolTls)}
)
EVERY_OPTION = LISTENER_OPTIONS | POOL_OPTIONS
_NO_LISTENER_TLS, _NO_POOL_TLS, _NO_HTTP = ListenerTls(), PoolTls(), Http()


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """Features that a provider supports. The defaults support everything in the model."""

    listener_protocols: frozenset[ListenerProtocol] = frozenset(ListenerProtocol)
    pool_protocols: frozenset[PoolProtocol] = frozenset(PoolProtocol)
    algorithms: frozenset[Algorithm] = frozenset(Algorithm)
    persistence: frozenset[PersistenceType] = frozenset(PersistenceType)
    monitors: frozenset[MonitorType] = frozenset(MonitorType)
    localities: frozenset[Locality] = frozenset(Locality)
    down_members: frozenset[DownMember] = frozenset(DownMember)
    options: frozenset[str] = EVERY_OPTION
    """Names of the optional attributes that have an effect, such as `pool.health_monitor.delay_ms`."""


def combine_abilities(first: Abilities, second: Abilities) -> Abilities:
    """Return the union of two abilities, for a provider that selects one of two dataplanes per listener."""
    return Abilities(
        **{each.name: getattr(first, each.name) | getattr(second, each.name) for each in fields(Abilities)}
    )


def find_unsupported_listener_feature(abilities: Abilities, listener: Listener) -> Feature | None:
    """Return the first feature that the listener uses and the provider does not support; None if all are supported."""
    if listener.protocol not in abilities.listener_protocols:
        return Feature("listener.protocol", listener.protocol.value)
    options = abilities.options
    if listener.l7policies and "listener.l7policies" not in options:
        return Feature("listener.l7policies")
    if listener.connection_limit != -1 and "listener.connection_limit" not in options:
        return Feature("listener.connection_limit")
    if listener.raw is not None and "listener.raw" not in options:
        return Feature("listener.raw")
    found = None
    if listener.tls is not None:
        found = _find_unsupported_option("listener.tls", listener.tls, _NO_LISTENER_TLS, options)
    if found is None and listener.http is not None:
        found = _find_unsupported_option("listener.http", listener.http, _NO_HTTP, options)
    return found


def find_unsupported_pool_feature(abilities: Abilities, pool: Pool) -> Feature | None:
    """Return the first feature that the pool uses and the provider does not support, used by a listener or not."""
    options, persistence, monitor = abilities.options, pool.persistence, pool.health_monitor
    if pool.tls is not None and (found := _find_unsupported_option("pool.tls", pool.tls, _NO_POOL_TLS, options)):
        return found
    if persistence is not None and persistence.type not in abilities.persistence:
        return Feature("pool.persistence", persistence.type.value)
    masked = isinstance(persistence, SourceIpPersistence) and persistence.granularity is not None
    if masked and "pool.persistence.granularity" not in options:
        return Feature("pool.persistence.granularity")
    if monitor is not None and monitor.type not in abilities.monitors:
        return Feature("pool.health_monitor", monitor.type.value)
    quick = monitor is not None and monitor.delay_ms is not None
    if quick and "pool.health_monitor.delay_ms" not in options:
        return Feature("pool.health_monitor.delay_ms")
    if pool.locality not in abilities.localities:
        return Feature("pool.locality", pool.locality.value)
    if pool.down_member not in abilities.down_members:
        return Feature("pool.down_member", pool.down_member.value)
    if pool.algorithm not in abilities.algorithms:
        return Feature("pool.algorithm", pool.algorithm.value)
    if pool.protocol not in abilities.pool_protocols:
        return Feature("pool.protocol", pool.protocol.value)
    return None


def _find_unsupported_option(
    name: str,
    value: ListenerTls | PoolTls | Http,
    nothing: ListenerTls | PoolTls | Http,
    options: frozenset[str],
) -> Feature | None:
    """Return the first attribute that differs from its default and is not in `options`."""
    for field in fields(value):
        attribute = f"{name}.{field.name}"
        if getattr(value, field.name) != getattr(nothing, field.name) and attribute not in options:
            return Feature(attribute)
    return None
