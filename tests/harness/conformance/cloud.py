"""The OpenStack that tempest tests: a Fairlead server with stand-ins for Keystone and Barbican."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from socket import socket

import httpx
import pytest
import uvicorn
from starlette.types import ASGIApp

from fairlead.api.http.authentication import HttpBasic, read_password_file
from fairlead.api.network import make_front_end
from fairlead.compilers.providers import IMPLEMENTATIONS
from harness.api import compile_anything, in_process_server
from harness.conformance.keystone import ADMINISTRATOR, PASSWORD, StandInKeystone, make_app, write_password_file
from harness.conformance.node import node, options_of, start_agent
from harness.fuzz.machine import CHASSIS, fuzzed_server
from harness.served import ReadyServer, make_application
from harness.waiting import DEADLINE

CONFIGURATION_FILE = "tempest.conf"
CONFIGURATION = """\
[DEFAULT]
log_dir = {folder}
log_file = tempest.log
use_stderr = false
default_log_levels = tempest=WARNING,octavia_tempest_plugin=WARNING

[oslo_concurrency]
lock_path = {folder}

[identity]
uri_v3 = {address}/v3
region = {region}

[auth]
use_dynamic_credentials = true
create_isolated_networks = false
admin_username = admin
admin_password = {password}
admin_project_name = admin
admin_domain_name = Default

[service_available]
# The plug-in wants Nova and Glance wherever there are networks; no test of the API calls them.
nova = true
glance = true
neutron = true
cinder = false
swift = false
horizon = false
barbican = true

[network]
project_networks_reachable = true
public_network_id = {public}

[load_balancer]
provider = {provider}
enabled_provider_drivers = {providers}
RBAC_test_type = {rbac}
test_with_ipv6 = {ipv6}
log_user_roles = false
default_ipv6_subnetpool =
build_interval = {interval}
lb_build_interval = {interval}
check_interval = {interval}
build_timeout = 300
lb_build_timeout = 300
check_timeout = 300
availability_zone = {zone}
availability_zone2 = {zone}2
availability_zone3 = {zone}3

[loadbalancer-feature-enabled]
not_implemented_is_error = {all}
l7_protocol_enabled = {all}
terminated_tls_enabled = {tls}
prometheus_listener_enabled = true
l4_protocol = TCP
"""
PROVIDER_DESCRIPTIONS = tuple(f"{name}:{IMPLEMENTATIONS['ovn'].description}" for name in ("fairlead", "ovn"))
"""Providers of Fairlead's own front end."""
PROXY_PROVIDER_DESCRIPTIONS = tuple(f"{name}:{IMPLEMENTATIONS[name].description}" for name in ("ovn", "fairlead"))
"""Providers of a front end with nodes that run proxies."""
FLAVOR_CAPABILITIES = {
    "loadbalancer_topology": "The load balancer topology. One of: SINGLE - One amphora per load balancer."
    " ACTIVE_STANDBY - Two amphora per load balancer."
}
ZONE_CAPABILITIES = {
    "compute_zone": "The compute availability zone.",
    "management_network": "The management network ID for the amphora.",
}
"""Keys of profiles in the tests, with the plug-in's default texts. The provider `ovn` has none of its own."""


def write_configuration(
    folder: Path,
    address: str,
    *,
    rbac: str,
    ipv6: bool,
    everything: bool,
    public: str = "",
    providers: tuple[str, ...] = PROVIDER_DESCRIPTIONS,
    tls: bool = True,
    interval: float = 0.1,
    region: str = "one",
    password: str = PASSWORD,
) -> None:
    """Write tempest's configuration.

    * `everything`: the provider supports all of Octavia's API, so a 501 is a failure.
    * `public`: an external network.
    * `providers`: the last one is used.
    * `tls`: certificates are in the stand-in for Barbican.
    * `interval`: seconds between two polls.
    * `region` and `password`: Keystone's region, and its administrator's password.
    """
    values = {
        "folder": folder,
        "address": address,
        "password": password,
        "region": region,
        "provider": providers[-1].partition(":")[0],
        "providers": ",".join(providers),
        "rbac": rbac,
        "ipv6": ipv6,
        "all": everything,
        "tls": tls,
        "interval": interval,
        "zone": "zone",
        "public": public,
    }
    (folder / CONFIGURATION_FILE).write_text(CONFIGURATION.format(**values))


@contextmanager
def ovn_cloud(folder: Path, counted: frozenset[str], proxied: str = "") -> Iterator[str]:
    """Run a server with real OVN databases. Yields the address of its Keystone."""
    with fairlead_server(folder, proxied) as server, keystone(server, counted) as address:
        yield address


@contextmanager
def fairlead_server(folder: Path, proxied: str = "") -> Iterator[str]:
    """Run a server with Keystone's users and a registered node. Yields its address.

    `proxied` are providers and their names (providers.names), one of them with proxies. In that case the node is one of
    a lab, with an agent that runs the proxies.
    """
    passwords = folder / "passwords"
    write_password_file(passwords)
    options = {"FAIRLEAD_SERVER_AUTHENTICATION": "http_basic", "FAIRLEAD_SERVER_PASSWORD_FILE": str(passwords)}
    with ExitStack() as stack:
        lab = stack.enter_context(node()) if proxied else None
        server = stack.enter_context(fuzzed_server(folder, options | (options_of(lab, proxied) if lab else {})))
        if lab is not None:
            stack.callback(start_agent(lab, server.url, folder).stop)
        else:
            _report_empty_counters(server.url)
        yield server.url
        assert server.bug_reports() == []


@contextmanager
def accepting_cloud(folder: Path, counted: frozenset[str]) -> Iterator[str]:
    """Run the front ends with a provider that accepts everything and does nothing.

    Yields the address of its Keystone.
    """
    passwords = folder / "passwords"
    write_password_file(passwords)
    provider = replace(
        IMPLEMENTATIONS["ovn"],
        flavor_capabilities=FLAVOR_CAPABILITIES,
        availability_zone_capabilities=ZONE_CAPABILITIES,
    )

    @asynccontextmanager
    async def doors() -> AsyncIterator[ASGIApp]:
        async with in_process_server(make_front_end, folder, "/network", compile_anything) as place:
            work = asyncio.create_task(place.reconciler.run())
            yield make_application(place, HttpBasic(read_password_file(passwords)))[1]
            work.cancel()

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(IMPLEMENTATIONS, "ovn", provider)  # type: ignore[arg-type]
        with serving(doors) as server:
            _report_empty_counters(server)
            with keystone(server, counted) as address:
                yield address


def _report_empty_counters(fairlead: str) -> None:
    """Report empty counters, as the agent of OVN's only node."""
    body = {"interval": 3600, "listeners": {}}
    httpx.put(
        f"{fairlead}/agent/chassis/{CHASSIS}", json=body, headers=ADMINISTRATOR, timeout=DEADLINE
    ).raise_for_status()


@contextmanager
def keystone(fairlead: str, counted: frozenset[str], octavia: str = "") -> Iterator[str]:
    """Run the stand-in for Keystone, and yield its address; `octavia` is the address of a real Octavia."""
    with socket() as listening:
        listening.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"

        @asynccontextmanager
        async def app() -> AsyncIterator[ASGIApp]:
            async with httpx.AsyncClient(timeout=DEADLINE) as client:
                yield make_app(
                    StandInKeystone(fairlead=fairlead, address=address, octavia=octavia, counted_roles=counted), client
                )

        with serving(app, listening):
            yield address


@contextmanager
def serving(make: Callable[[], AbstractAsyncContextManager[ASGIApp]], *sockets: socket) -> Iterator[str]:
    """Run an application in a thread until the context exits, and yield its address."""
    started: list[uvicorn.Server] = []
    ready = threading.Event()

    async def serve() -> None:
        async with make() as app:
            config = uvicorn.Config(app, port=0, log_level="warning", lifespan="off")
            started.append(ReadyServer(config, ready))
            await started[0].serve(list(sockets) or None)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(DEADLINE)
        yield f"http://127.0.0.1:{started[0].servers[0].sockets[0].getsockname()[1]}"
    finally:
        started[0].should_exit = True
        thread.join()
