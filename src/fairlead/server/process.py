"""Server process: API front ends, store, and reconcilers of central dataplanes; the order of start and shutdown.

All state is derived again at the start: the model is loaded, the dataplanes are read, and differences are applied. So
the process may be killed at any time. While a dataplane is disconnected, requests are served; their changes are stored
and applied later.
"""

import asyncio
import contextlib
import gc
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial

from fairlead.api.agents.traffic_counters import NodeCounts
from fairlead.api.app import make_app
from fairlead.api.http.front_end import Services
from fairlead.api.keys import Keys
from fairlead.changes.proxy_limits import large_proxies
from fairlead.changes.proxy_placement import ProxyLimits
from fairlead.compilers.ovn import OVN
from fairlead.compilers.providers import (
    ProviderNames,
    checked_by,
    dataplanes_of,
    parse_names,
    proxied_names,
    with_advice,
    without_proxies,
)
from fairlead.config.errors import BadConfiguration
from fairlead.config.load import check_secrets, host_proxy_ports
from fairlead.config.options import AGENTS, Configuration
from fairlead.dataplane.interface import Dataplane, DataplaneScope
from fairlead.model.documents.quota import Limits
from fairlead.model.queries.proxies import depends_on_agents, proxied_listeners
from fairlead.model.registry.facts import (
    AGENTS_PROBE,
    COUNT_REPLY_BYTES,
    GATEWAY_CHASSIS,
    PROXIED_PROVIDERS,
    with_facts,
)
from fairlead.model.snapshot import Snapshot
from fairlead.reconciler.dataplanes import Dataplanes
from fairlead.runtime.gc_tuning import frozen
from fairlead.runtime.loop_lag import LoopLag
from fairlead.runtime.systemd import run_watchdog
from fairlead.server.authentication import challenge, check_authentication, make_authentication
from fairlead.server.central import DataplaneControl
from fairlead.server.keys import make_keys
from fairlead.server.listening import Secrets, host_names, listen
from fairlead.server.lxd import LxdServer, store_folder
from fairlead.server.maintenance import allocate_probe_addresses, forget_removed_members
from fairlead.server.nodes import NodesServer
from fairlead.server.ovn import OvnControl
from fairlead.server.probe_result_cache import FILE, ProbeResultCache
from fairlead.server.proxies import run_proxy_placement
from fairlead.server.standby import run_standby
from fairlead.server.tasks import background_tasks
from fairlead.server.unresponsive_nodes import UnresponsiveNodes
from fairlead.store.formats import NewerDocument
from fairlead.store.model import Model
from fairlead.store.opening import open_store

LOG = logging.getLogger(__name__)
CONTROLS: Mapping[str, Callable[[Dataplane, Model, Configuration], DataplaneControl]] = {OVN.name: OvnControl}
"""Central dataplane -> its control in a server."""


async def serve(configuration: Configuration) -> None:
    """Run until SIGINT or SIGTERM; as a standby while the store has documents of a newer version.

    Raises StoreUnavailable, BadPasswordFile, BadConfiguration and OSError.
    """
    while (newer := await _work(configuration)) is not None:
        newer.with_traceback(None)  # the traceback refers to the whole model in memory
        if not await run_standby(configuration, newer):
            return


async def _work(configuration: Configuration) -> NewerDocument | None:
    """Run until a signal, or until a newer version's document is read; everything is stopped on return."""
    try:
        return await _serve(configuration)
    except NewerDocument as error:
        return error


async def _serve(configuration: Configuration) -> NewerDocument | None:
    check_secrets(configuration)
    authenticate = make_authentication(configuration)
    await check_authentication(authenticate, configuration)
    keys = make_keys(configuration, authenticate)
    providers = parse_names(",".join(configuration.providers.names), configuration.providers.default)
    if configuration.health.prober != AGENTS:
        providers = without_proxies(providers)
    dataplanes = dataplanes_of(providers)
    gc.disable()  # until the model is loaded, because the collector would traverse the new documents repeatedly
    store = await open_store(configuration.store.where, configuration.store.access)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        lxd, nodes = LxdServer(configuration), NodesServer(configuration)
        model = Model(store, with_advice(checked_by(dataplanes), providers), _empty(configuration, providers))
        controls = _controls(dataplanes, model, configuration)
        for control in controls:
            stack.push_async_exit(control)
            control.connect()
        await model.read()
        LOG.info("loaded %d documents at revision %d", len(model.snapshot.generations), model.snapshot.revision)
        check_provider_names(model.snapshot, providers)
        log_large_proxies(model.snapshot, configuration.providers.max_proxy_servers)
        remembered = ProbeResultCache(store_folder(configuration) / FILE, model)
        if configuration.health.prober == AGENTS:
            await remembered.load()
        for control in controls:
            await control.__aenter__()
        upkeep = (
            partial(forget_removed_members, model),
            partial(allocate_probe_addresses, model),
            remembered.save_changes,
        )
        await stack.enter_async_context(background_tasks(model.follow, *upkeep))
        by_agents = depends_on_agents(model.snapshot)  # agents connect once requests are served
        waits = (control.wait_for_facts() if by_agents else control.central.wait_synced() for control in controls)
        await asyncio.gather(*waits)
        kept = Dataplanes(
            lambda: model.snapshot,
            [control.for_front_ends() for control in controls],
            [each for each in dataplanes if each.scope is DataplaneScope.NODE],
        )
        services = _services(configuration, model, providers, kept, controls, (lxd, nodes, keys))
        stack.push_async_callback(keys.close)
        stack.enter_context(frozen())
        loop_lag = LoopLag()
        placing = partial(run_proxy_placement, model, services.nodes.channel.chassis_reaching, _bounds(configuration))
        silences = UnresponsiveNodes(
            model, services.node_counts, services.nodes.agents, partial(_is_leader, kept), lambda: datetime.now(UTC)
        )
        nodes_work = services.nodes.channel.run, services.nodes.find_stale_agents, silences.run
        await stack.enter_async_context(background_tasks(loop_lag.measure, run_watchdog, placing, *nodes_work))
        apps = make_app(
            services,
            kept,
            authenticate,
            names=host_names(configuration.server),
            challenge=challenge(configuration),
            loop_lag=loop_lag,
        )
        told_to_end = await listen(
            apps,
            configuration,
            Secrets(authenticate=authenticate, lxd=lxd, nodes=nodes, renew_store=store.renew),
            until=model.newer_format_seen,
        )
    return None if told_to_end else model.newer_document


MAX_LOGGED = 20
"""Maximum places named in the log."""


def check_provider_names(snapshot: Snapshot, providers: ProviderNames) -> None:
    """Raise BadConfiguration for load balancers with an unconfigured provider name, because its meaning is unknown.

    Also for load balancers that need proxies where no agents run them. Nothing has been written then: rows stay as they
    are, and connections continue.
    """
    unknown = Counter(each.provider for each in snapshot.load_balancers.values() if each.provider not in providers)
    if unknown:
        found = ", ".join(f"'{name}' ({count})" for name, count in sorted(unknown.items()))
        raise BadConfiguration(
            f"providers.names: stored load balancers have provider names that are not configured: {found}; add these"
        )
    proxied = sum(bool(proxied_listeners(each)) for each in snapshot.load_balancers.values())
    if proxied and not proxied_names(providers):
        raise BadConfiguration(
            f"{proxied} load balancers need proxies, which agents run: set health.prober to agents, and map a name of"
            " providers.names to the implementation fairlead"
        )


def log_large_proxies(snapshot: Snapshot, most: int) -> None:
    """Log the places with HAProxies above the server limit, the largest first."""
    found = sorted(large_proxies(most, snapshot).items(), key=lambda each: (-each[1], each[0]))
    for place, servers in found[:MAX_LOGGED]:
        LOG.warning(
            "the HAProxies of project %s at %s have %d servers, more than providers.max_proxy_servers = %d: they serve,"
            " but new servers are rejected",
            place.project_id,
            place.at,
            servers,
            most,
        )
    if len(found) > MAX_LOGGED:
        LOG.warning("%d more groups of HAProxies exceed providers.max_proxy_servers", len(found) - MAX_LOGGED)


def _empty(configuration: Configuration, providers: ProviderNames) -> Snapshot:
    """Return the snapshot before any document is read, with the configured facts."""
    ports = host_proxy_ports(configuration)
    empty = Snapshot(parting_seconds=configuration.ovn.drain_timeout, host_proxy_ports=ports)
    empty = with_facts(empty, GATEWAY_CHASSIS, configuration.ovn.gateways)
    empty = with_facts(empty, AGENTS_PROBE, configuration.health.prober == AGENTS)
    empty = with_facts(empty, COUNT_REPLY_BYTES, configuration.ovn.count_reply_bytes)
    return with_facts(empty, PROXIED_PROVIDERS, proxied_names(providers))


def _controls(
    dataplanes: Sequence[Dataplane], model: Model, configuration: Configuration
) -> Sequence[DataplaneControl]:
    central = (each for each in dataplanes if each.scope is DataplaneScope.CENTRAL)
    return [CONTROLS[each.name](each, model, configuration) for each in central]


def _is_leader(dataplanes: Dataplanes) -> bool:
    return all(each.condition().is_leader for each in dataplanes.central)


def _bounds(configuration: Configuration) -> ProxyLimits:
    return ProxyLimits(
        own=configuration.providers.max_proxies_per_network,
        guests=configuration.providers.max_guest_proxies_per_network,
    )


def _services(
    configuration: Configuration,
    model: Model,
    providers: ProviderNames,
    dataplanes: Dataplanes,
    controls: Sequence[DataplaneControl],
    parts: tuple[LxdServer, NodesServer, Keys],
) -> Services:
    lxd, nodes, keys = parts
    ovn = next((control for control in controls if isinstance(control, OvnControl)), None)
    services = Services(
        model=model,
        applied=dataplanes.applied,
        now=lambda: datetime.now(UTC),
        new_id=lambda: str(uuid.uuid4()),
        mtu=configuration.network.mtu,
        external_mtu=configuration.network.external_mtu,
        resync_owner=dataplanes.read_again,
        providers=providers,
        limits=Limits(**asdict(configuration.quota)),
        probes=configuration.health.limits,
        proxy_servers=configuration.providers.max_proxy_servers,
        keys=keys,
        wait_for_outcome=dataplanes.wait_for_outcome,
        outcome=dataplanes.outcome,
        on_applied_change=dataplanes.subscribe,
        node_counts=NodeCounts(stored=lambda: model.snapshot.unresponsive_nodes),
        client_endpoint=lxd.reachable,
        enrolment=nodes.enrolment,
        socket_chassis=nodes.options.socket_chassis,
    )
    if ovn is None:
        return services
    return replace(
        services,
        resolve_counting_place=ovn.resolve_counting_place,
        ports_of_chassis=ovn.ports_of_chassis,
        check_synced=ovn.check_synced,
        placements_at_other_provider=ovn.placements_at_other_provider,
    )
