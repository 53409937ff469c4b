"""End to end: Services of Kubernetes, from the cloud provider's requests to the answers for clients on two chassis."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead.lab import Lab, agents
from fairlead.lab.errors import LabCommandFailed
from harness.certificates import Authority
from harness.lab.echo_servers import echo_server_at
from harness.lab.kubernetes import CloudProvider, Service, ServicePort
from harness.lab.site import ACTIVE_TIMEOUT, LabSite, open_site
from harness.waiting import wait_until

pytestmark = [pytest.mark.lab]

NODES = {"kube1": "chassis1", "kube2": "chassis2", "kube3": "chassis2"}
TWO = ("kube1", "kube2")
CLIENTS = {"visitor1": "chassis1", "visitor2": "chassis2"}
"""Clients by chassis. The second one is behind a router."""
NODE_PORTS = (30080, 30081)
HEALTH_CHECK = 32100
CA = Authority()
SHOP = CA.issue("shop.example")
OPTIONS = {"FAIRLEAD_HEALTH_PROBER": "agents", "FAIRLEAD_HEALTH_MIN_DELAY": "1"}


@dataclass(frozen=True)
class Cluster:
    site: LabSite
    provider: CloudProvider
    version: int
    folder: Path
    rows: frozenset[str]
    """Rows in OVN without a Service."""

    def nodes(self, *names: str) -> Mapping[str, str]:
        return {name: self.site.address(name, self.version) for name in names}

    def set_pods(self, **counts: int) -> None:
        for name, count in counts.items():
            new = self.folder / f".{name}"
            new.write_text(str(count))
            new.rename(self.folder / name)

    @contextmanager
    def service(self, service: Service, *nodes: str) -> Iterator[Any]:
        """Load balancer of the Service. Asserts that nothing of it is left at the end."""
        made = self.provider.ensure(service, self.nodes(*nodes))
        try:
            yield made
            self.provider.delete(service)
            wait_until(lambda: not self._left(), "nothing is left")
        finally:
            self.site.cloud.load_balancer.delete_load_balancer(made["id"], cascade=True)

    def _left(self) -> list[object]:
        api, files = self.site.cloud.load_balancer, self.site.lab.layout.directory / "fairlead"
        parts = [*api.listeners(), *api.pools(), *api.health_monitors(), *self.site.our_rows() - self.rows]
        return [*parts, *files.glob("agent-*.proxies/*/secrets/*"), *files.glob("agent-*.proxies/*/pid")]

    def ask(self, client: str, url: str, *more: str) -> Any:
        """The node's response with the HTTP version, or the error code; None without a response."""
        words = ["curl", "-sS", "-m", "15", "-w", "\n%{http_code} %{http_version}", *more, url]
        with suppress(LabCommandFailed):
            body, last = self.site.lab.exec(client, words).rsplit("\n", 1)
            code, version = last.split()
            return {**json.loads(body), "http": version} if code == "200" else {"code": code}
        return {}

    def answers(self, client: str, url: str, *more: str) -> set[str]:
        return {self.ask(client, url, *more).get("node", "") for _ in range(6)}

    def served(self, url: str, nodes: set[str], *more: str) -> None:
        """Wait until clients are served by exactly these nodes."""
        for client in CLIENTS:
            wait_until(partial(self._serve, client, url, nodes, *more), f"{nodes} serve {client}")

    def _serve(self, client: str, url: str, nodes: set[str], *more: str) -> bool:
        return self.answers(client, url, *more) == nodes


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    (folder / "ca.pem").write_text(CA.pem)
    return folder


@pytest.fixture(scope="module")
def site(lab: Lab, keys: Path) -> Iterator[LabSite]:
    site = open_site(lab, FAIRLEAD_KEYS_DIRECTORY=str(keys), **OPTIONS)
    network = site.network("kubernetes", "10.0.0.0/24", "fd00:a::/64")
    site.network("visitors", "10.0.1.0/24", "fd00:b::/64")
    site.router("kubernetes", "kubernetes-v4", "kubernetes-v6", "visitors-v4", "visitors-v6")
    site.machines("kubernetes", {**NODES, "visitor1": "chassis1"})
    site.machines("visitors", {"visitor2": "chassis2"})
    (keys / network.project_id).mkdir()
    (keys / network.project_id / "shop.pem").write_text(SHOP.certificate_and_key)
    (keys / network.project_id / "shop.pem").chmod(0o600)
    yield site
    for name in (*NODES, *CLIENTS):
        lab.remove_workload(name)
    site.close()


@pytest.fixture(scope="module")
def pods(site: LabSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder with a file for each node with the number of the Service's pods there."""
    folder = tmp_path_factory.mktemp("pods")
    with ExitStack() as stack:
        for name in NODES:
            (folder / name).write_text("1")
            more = ("--health", str(HEALTH_CHECK), "--pods", str(folder / name))
            stack.enter_context(echo_server_at(site.lab, name, NODE_PORTS, *more))
        yield folder


@pytest.fixture(scope="module", autouse=True)
def nodes(site: LabSite) -> Iterator[None]:
    started = agents.start(site.lab.layout, site.url)
    yield
    for agent in started:
        agent.stop()


@pytest.fixture(params=[4, 6])
def cluster(site: LabSite, pods: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with httpx.Client(base_url=site.url, timeout=ACTIVE_TIMEOUT) as client:
        subnet = site.subnet(f"kubernetes-v{request.param}").id
        provider = CloudProvider(client=client, subnet=subnet)
        rows = frozenset(site.our_rows())
        yield Cluster(site=site, provider=provider, version=request.param, folder=pods, rows=rows)


def url(balancer: Any, port: int = 80, scheme: str = "http") -> str:
    vip = balancer["vip_address"]
    return f"{scheme}://{f'[{vip}]' if ':' in vip else vip}:{port}/"


def test_service_with_x_forwarded_for_follows_node_port_and_range_changes(cluster: Cluster):
    visitors = {each: cluster.site.address(each, cluster.version) for each in CLIENTS}
    service = Service(name="forwarded", x_forwarded_for=True, connection_limit=100)
    with cluster.service(service, *TWO) as balancer:
        cluster.served(url(balancer), set(TWO))
        for client, address in visitors.items():
            told = cluster.ask(client, url(balancer))
            assert (told["headers"]["x-forwarded-for"], told["peer"] == address) == (address, False)
        cluster.provider.update(service, cluster.nodes(*NODES))
        cluster.served(url(balancer), set(NODES))
        cluster.provider.update(service, cluster.nodes("kube2", "kube3"))
        cluster.served(url(balancer), {"kube2", "kube3"})

        alone = f"{visitors['visitor2']}/{32 if cluster.version == 4 else 128}"
        service = replace(service, source_ranges=(alone,), connection_limit=50)
        cluster.provider.ensure(service, cluster.nodes("kube2", "kube3"))
        wait_until(lambda: not cluster.ask("visitor1", url(balancer), "-m", "1"), "the other is not let in")
        assert cluster.answers("visitor2", url(balancer)) == {"kube2", "kube3"}

        ports = (ServicePort(port=8080), ServicePort(port=8081, node_port=30081))
        service = replace(service, source_ranges=(), ports=ports)
        cluster.provider.ensure(service, cluster.nodes(*TWO))
        for port in (8080, 8081):
            cluster.served(url(balancer, port), set(TWO))
        assert not cluster.ask("visitor1", url(balancer), "-m", "1")  # the listener of the old port is deleted
        service = replace(service, ports=(ServicePort(port=8080, node_port=30081),))
        cluster.provider.ensure(service, cluster.nodes(*TWO))
        cluster.served(url(balancer, 8080), set(TWO))
        assert not cluster.ask("visitor1", url(balancer, 8081), "-m", "1")


def test_proxy_protocol_of_a_service_is_enabled_changed_and_disabled(cluster: Cluster):
    service = Service(name="greeted", client_affinity=True)
    with cluster.service(service, *TWO) as balancer:
        for said in ("", "PROXY", "PROXYV2", ""):
            service = replace(service, proxy_protocol=said)
            cluster.provider.ensure(service, cluster.nodes(*TWO))
            for client in CLIENTS:
                version = {"": None, "PROXY": 1, "PROXYV2": 2}[said]
                wait_until(partial(_is_said, cluster, client, url(balancer), version), f"{said} is said")
                wait_until(partial(_stays, cluster, client, url(balancer)), "a client stays with its node")
                told, address = cluster.ask(client, url(balancer)), cluster.site.address(client, cluster.version)
                assert (told["said"]["client"] if said else told["peer"]) == address
                assert told["said"].get("to") == ([balancer["vip_address"], 80] if said else None)


def _stays(cluster: Cluster, client: str, url: str) -> bool:
    """Whether all of many requests reach one node, which is improbable without affinity.

    The pool is a new one, and its members are added one by one.
    """
    return len(set[str]().union(*(cluster.answers(client, url) for _ in range(4)))) == 1


def _is_said(cluster: Cluster, client: str, where: str, version: int | None) -> bool:
    told = cluster.ask(client, where)
    return bool(told) and told["said"].get("version") == version


def test_tls_is_terminated_before_the_nodes(cluster: Cluster, keys: Path):
    service = Service(
        name="shop", tls_container="shop.pem", x_forwarded_for=True, ports=(ServicePort(port=443),), connection_limit=9
    )
    named = ("--cacert", str(keys / "ca.pem"))
    with cluster.service(service, *TWO) as balancer:
        vip = url(balancer)[len("http://") : -len(":80/")]
        there, secure = ("--connect-to", f"::{vip}:", *named), "https://shop.example/"
        cluster.served(secure, set(TWO), *there)
        for client in CLIENTS:
            for option, version in (("--http1.1", "1.1"), ("--http2", "2")):
                told = cluster.ask(client, secure, option, *there)
                assert told["http"] == version
                assert told["headers"]["x-forwarded-for"] == cluster.site.address(client, cluster.version)
            assert '"node": "kube' in by_openssl(cluster, client, f"{vip}:443", keys)
        service = replace(service, x_forwarded_for=False, proxy_protocol="PROXYV2")
        cluster.provider.ensure(service, cluster.nodes(*TWO))
        for client, address in {each: cluster.site.address(each, cluster.version) for each in CLIENTS}.items():
            said = {"version": 2, "client": address, "to": [balancer["vip_address"], 443], "tls": True}
            wait_until(partial(_tells, cluster, client, secure, there, said), "it is told by a PROXY header")


def _tells(cluster: Cluster, client: str, where: str, more: tuple[str, ...], said: object) -> bool:
    return bool(cluster.ask(client, where, *more).get("said") == said)


def by_openssl(cluster: Cluster, client: str, where: str, keys: Path) -> str:
    checked = f"-verify_return_error -verify_hostname shop.example -CAfile {keys / 'ca.pem'}"
    words = f"openssl s_client -quiet -connect {where} -servername shop.example {checked} 2>/dev/null"
    return cluster.site.lab.exec(client, ["sh", "-c", f"printf 'GET / HTTP/1.0\\r\\n\\r\\n' | {words}"])


def test_traffic_policy_local_forwards_only_to_nodes_with_a_pod(cluster: Cluster):
    """OVN does it, so the nodes receive the clients' own addresses."""
    cluster.set_pods(kube1=1, kube2=0, kube3=1)
    try:
        service = Service(name="local", health_check_node_port=HEALTH_CHECK)
        with cluster.service(service, *NODES) as balancer:
            cluster.served(url(balancer), {"kube1", "kube3"})
            for client in CLIENTS:
                assert cluster.ask(client, url(balancer))["peer"] == cluster.site.address(client, cluster.version)
            cluster.set_pods(kube1=0, kube2=1)
            cluster.served(url(balancer), {"kube2", "kube3"})
            forwarded = replace(service, proxy_protocol="PROXY")
            cluster.provider.ensure(forwarded, cluster.nodes(*NODES))
            cluster.served(url(balancer), {"kube2", "kube3"})
            cluster.set_pods(kube3=0)
            cluster.served(url(balancer), {"kube2"})
            cluster.set_pods(kube1=1, kube3=1)
            everywhere = replace(forwarded, health_check_node_port=0)
            cluster.provider.ensure(everywhere, cluster.nodes(*NODES))
            cluster.served(url(balancer), set(NODES))
    finally:
        cluster.set_pods(**dict.fromkeys(NODES, 1))
