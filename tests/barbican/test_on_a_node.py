"""A tenant's key in a real Barbican; curl and openssl on a lab node: TLS terminates at the node's own proxy."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead.lab.errors import LabCommandFailed
from fairlead.lab.port_workloads import Placement, workload_of_port
from harness.barbican.nodes import NodeWithBarbican, node_with_barbican
from harness.certificates import Authority, SignedCertificate, key_pem
from harness.lab.site import PORT
from harness.pools import upper_half
from harness.waiting import wait_equal, wait_until

pytestmark = [pytest.mark.client, pytest.mark.lab]

CA = Authority()
WEB, NEW, OTHER = (CA.issue(each) for each in ("web.example", "web.example", "other.example"))
CIDRS = ("10.0.0.0/24", "fd00:a::/64")
SERVERS = ("oak", "elm")
BALANCERS, LISTENERS = "/load-balancer/v2.0/lbaas/loadbalancers", "/load-balancer/v2.0/lbaas/listeners"
CURL_SECONDS = "30"
AGAIN = "for _ in $(seq 100); do curl -s -o /dev/null {words} -w '%{{http_code}}\n'; done"


@dataclass
class Tenant:
    """Alice, with two server machines and one client machine."""

    place: NodeWithBarbican
    authority: Path
    token: str
    subnets: dict[int, str] = field(default_factory=dict)
    """IP version -> id of its subnet."""

    def call(self, method: str, path: str, body: object = None) -> httpx.Response:
        return self.place.server.client.request(method, path, json=body, headers={"X-Auth-Token": self.token})

    def good(self, method: str, path: str, body: object = None) -> Any:
        answer = self.call(method, path, body)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def settle(self) -> None:
        """Wait until all pending changes are applied."""
        waiting = {"PENDING_CREATE", "PENDING_UPDATE"}

        def statuses() -> set[str]:
            return {each["provisioning_status"] for each in self.good("GET", BALANCERS)["loadbalancers"]}

        wait_until(statuses, is_enough=lambda found: not waiting & found)
        self.place.lab.wait_synced()

    def populate(self) -> None:
        network = self.good("POST", "/network/v2.0/networks", {"network": {"name": "rowan"}})["network"]["id"]
        for version, cidr in zip((4, 6), CIDRS, strict=True):
            said = {"network_id": network, "ip_version": version, "cidr": cidr, "allocation_pools": upper_half(cidr)}
            made = self.good("POST", "/network/v2.0/subnets", {"subnet": said})["subnet"]
            self.subnets[version] = made["id"]
        lab = self.place.lab
        [chassis] = (each.name for each in lab.record.chassis)
        for name in (*SERVERS, "asks"):
            port = self.good("POST", "/network/v2.0/ports", {"port": {"name": name, "network_id": network}})["port"]
            serve = (PORT,) if name in SERVERS else ()
            placement = Placement(name=name, chassis=chassis, serve=serve)
            lab.add_workload(workload_of_port(self.place.server.url, port["id"], placement, self.token))
        lab.wait_bound(*SERVERS, "asks")

    def stored(self, issued: SignedCertificate) -> str:
        """Store the certificate as a container of parts, the format of older clients; return its reference."""
        secrets = self.place.barbican
        parts = {"certificate": issued.pem, "private_key": key_pem(issued.key), "intermediates": CA.pem}
        named = {name: secrets.text(self.token, text) for name, text in parts.items()}
        return secrets.container(self.token, **named)

    def words(self, vip: str, *more: str) -> list[str]:
        """Return curl's arguments."""
        host = f"[{vip}]" if ":" in vip else vip
        where = ("--cacert", str(self.authority), "--connect-to", f"::{host}:", "https://web.example/")
        return ["-sS", "-m", CURL_SECONDS, *more, *where]

    def get(self, vip: str, *more: str) -> tuple[str, str, str]:
        """Return status code, major HTTP version and body of a response; empty strings without a response."""
        words = ["curl", "-w", "\n%{http_code} %{http_version}", *self.words(vip, *more)]
        try:
            *body, last = self.place.lab.exec("asks", words).strip().splitlines()
        except LabCommandFailed:
            return "", "", ""
        code, version = last.split()
        return code, version[0], "".join(body)

    def shown(self, vip: str, name: str) -> str:
        """Return subject and serial of the certificate for this server name, as openssl prints them."""
        host = f"[{vip}]" if ":" in vip else vip
        asked = f"openssl s_client -connect {host}:443 -servername {name} </dev/null 2>/dev/null"
        return self.place.lab.exec("asks", ["sh", "-c", f"{asked} | openssl x509 -noout -subject -serial"])


@pytest.fixture(scope="module")
def tenant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenant]:
    folder = tmp_path_factory.mktemp("cloud")
    (folder / "ca.pem").write_text(CA.pem)
    with node_with_barbican(folder) as place:
        place.cloud.register_fairlead(place.server.url)
        made = Tenant(place, folder / "ca.pem", place.cloud.token("alice"))
        made.populate()
        yield made


@dataclass(frozen=True)
class Served:
    listener: str
    vips: tuple[str, str]


@pytest.fixture(scope="module")
def served(tenant: Tenant) -> Iterator[Served]:
    """Yield a listener on both IP versions with an additional SNI certificate."""
    ports = {name: tenant.place.lab.workload(name).interfaces for name in SERVERS}
    members = [{"address": str(each.ip), "protocol_port": PORT} for each in (found[0] for found in ports.values())]
    listener = {
        "protocol": "TERMINATED_HTTPS",
        "protocol_port": 443,
        "default_tls_container_ref": tenant.stored(WEB),
        "sni_container_refs": [tenant.place.barbican.binary(tenant.token, OTHER.bundle)],
        "alpn_protocols": ["h2", "http/1.1"],
        "name": "l",
        "default_pool": {"name": "p", "protocol": "HTTP", "lb_algorithm": "ROUND_ROBIN", "members": members},
    }
    said = {
        "vip_subnet_id": tenant.subnets[4],
        "additional_vips": [{"subnet_id": tenant.subnets[6]}],
        "listeners": [listener],
    }
    made = tenant.good("POST", BALANCERS, {"loadbalancer": said})["loadbalancer"]
    tenant.settle()
    vips = (made["vip_address"], made["additional_vips"][0]["ip_address"])
    wait_equal(lambda: [tenant.get(vip)[0] for vip in vips], ["200", "200"])
    yield Served(made["listeners"][0]["id"], vips)
    tenant.good("DELETE", f"{BALANCERS}/{made['id']}?cascade=true")


def test_http1_and_http2_are_served_over_ipv4_and_ipv6(tenant: Tenant, served: Served):
    for vip in served.vips:
        for option, version in (("--http1.1", "1"), ("--http2", "2")):
            assert {tenant.get(vip, option) for _ in range(4)} == {("200", version, each) for each in SERVERS}
        assert "CN = other.example" in tenant.shown(vip, "other.example")
        assert f"{WEB.certificate.serial_number:X}" in tenant.shown(vip, "web.example")


def test_certificate_renewal_fails_no_request(tenant: Tenant, served: Served):
    """Barbican secrets are immutable: a renewal stores a new secret and changes the reference."""
    asked = " ".join(tenant.words(served.vips[1]))
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(tenant.place.lab.exec, "asks", ["sh", "-c", AGAIN.format(words=asked)])
        said = {"listener": {"default_tls_container_ref": tenant.stored(NEW)}}
        tenant.good("PUT", f"{LISTENERS}/{served.listener}", said)
        new = f"{NEW.certificate.serial_number:X}"
        wait_until(
            lambda: [tenant.shown(vip, "web.example") for vip in served.vips],
            f"certificate {new}",
            is_enough=lambda shown: all(new in each for each in shown),
        )
        assert Counter(asking.result().split()) == {"200": 100}


def test_unreadable_certificate_is_rejected_with_the_reason(tenant: Tenant, served: Served):
    theirs = tenant.place.barbican.binary(tenant.place.cloud.token("bob"), WEB.bundle)
    said = {"listener": {"default_tls_container_ref": theirs}}
    refused = tenant.call("PUT", f"{LISTENERS}/{served.listener}", said)
    assert (refused.status_code, "Could not retrieve certificate" in refused.text) == (400, True)
    assert tenant.get(served.vips[0])[0] == "200"
