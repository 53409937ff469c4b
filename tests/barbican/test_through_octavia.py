"""TLS through a real Octavia with Fairlead's provider driver, a real Barbican and a real Keystone."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from harness.barbican import cloud as barbican_cloud
from harness.barbican.cloud import Barbican, barbican, octavia_options
from harness.certificates import Authority, key_pem
from harness.fuzz.machine import SCHEMA, SERVER, FuzzedServer, fuzzed_server
from harness.keystone.cloud import INSTALLED, keystone
from harness.neutron_lab.services import NETWORK_DRIVER, OCTAVIA, octavia
from harness.waiting import DEADLINE, wait_equal

pytestmark = [pytest.mark.client, pytest.mark.tempest]

CA = Authority()
WEB = CA.issue("web.example")
LISTENERS = "/v2.0/lbaas/listeners"


@dataclass(frozen=True)
class Databases:
    northbound: str
    southbound: str


@dataclass
class BarbicanThroughOctavia:
    barbican: Barbican
    server: FuzzedServer
    octavia: str
    alice: str
    bob: str

    def call(self, method: str, url: str, body: object = None, who: str = "") -> httpx.Response:
        headers = {"X-Auth-Token": who or self.alice}
        return httpx.request(method, url, json=body, headers=headers, timeout=DEADLINE)

    def good(self, method: str, url: str, body: object = None) -> Any:
        answer = self.call(method, url, body)
        assert answer.is_success, answer.text
        return answer.json()

    def balancer(self) -> str:
        network = self.good("POST", f"{self.server.url}/network/v2.0/networks", {"network": {}})["network"]["id"]
        subnet = {"network_id": network, "ip_version": 4, "cidr": "10.0.0.0/24"}
        made = self.good("POST", f"{self.server.url}/network/v2.0/subnets", {"subnet": subnet})["subnet"]
        body = {"loadbalancer": {"vip_subnet_id": made["id"], "provider": "fairlead"}}
        made = self.good("POST", f"{self.octavia}/v2.0/lbaas/loadbalancers", body)["loadbalancer"]
        self.settle(made["id"])
        return str(made["id"])

    def settle(self, balancer: str) -> None:
        def status() -> str:
            found = self.good("GET", f"{self.octavia}/v2.0/lbaas/loadbalancers/{balancer}")["loadbalancer"]
            return str(found["provisioning_status"])

        wait_equal(status, "ACTIVE")

    def listen(self, balancer: str, port: int, **more: object) -> httpx.Response:
        said = {"protocol": "TERMINATED_HTTPS", "protocol_port": port, "loadbalancer_id": balancer, **more}
        return self.call("POST", self.octavia + LISTENERS, {"listener": said})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BarbicanThroughOctavia]:
    there = (INSTALLED, barbican_cloud.INSTALLED, OCTAVIA / ".installed", SERVER, SCHEMA)
    if not all(each.exists() for each in there):
        reason = f"needs {', '.join(map(str, there))}: scripts/setup makes them"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    folder = tmp_path_factory.mktemp("cloud")
    ovn = Databases(*(f"unix:{folder}/{name}.sock" for name in ("nb", "sb")))
    with keystone(folder) as cloud, barbican(folder, cloud) as secrets:
        cloud.create_service_user("octavia")
        with fuzzed_server(folder, octavia_options(cloud, secrets, folder)) as server:
            networking = f"{server.url}/network"
            with octavia(
                folder / "octavia", ovn, cloud, networking, server.url, "plugged in", NETWORK_DRIVER
            ) as service:
                service.await_answer()
                tokens = (cloud.token(who) for who in ("alice", "bob"))
                yield BarbicanThroughOctavia(secrets, server, service.url, *tokens)
                for log in ("api", "agent"):
                    assert "PRIVATE KEY" not in service.log(log)
            assert server.bug_reports() == []


def test_reference_granted_to_octavia_reaches_fairlead_unchanged(place: BarbicanThroughOctavia):
    secrets, web = place.barbican, place.balancer()
    parts = {"certificate": WEB.pem, "private_key": key_pem(WEB.key), "intermediates": CA.pem}
    container = secrets.container(
        place.alice, **{name: secrets.text(place.alice, text) for name, text in parts.items()}
    )
    bundle, authority = secrets.binary(place.alice, WEB.bundle), secrets.text(place.alice, CA.pem)
    more = {"client_authentication": "OPTIONAL", "client_ca_tls_container_ref": authority}
    for port, said in (
        (443, {"default_tls_container_ref": container, **more}),
        (444, {"default_tls_container_ref": bundle, "sni_container_refs": [container]}),
    ):
        made = place.listen(web, port, **said)
        assert made.status_code == 201, made.text
        place.settle(web)
        listener = made.json()["listener"]["id"]
        ours = place.good("GET", f"{place.server.url}/load-balancer{LISTENERS}/{listener}")["listener"]
        assert said == {name: ours[name] for name in said}


def test_secret_of_another_user_is_rejected_by_octavia_and_fairlead(place: BarbicanThroughOctavia):
    web, theirs = place.balancer(), place.barbican.binary(place.bob, WEB.bundle)
    refused = place.listen(web, 443, default_tls_container_ref=theirs)
    assert (refused.status_code, theirs in refused.json()["faultstring"]) == (400, True)
    ours = place.server.client.post(
        f"/load-balancer{LISTENERS}",
        json={
            "listener": {
                "protocol": "TERMINATED_HTTPS",
                "protocol_port": 444,
                "loadbalancer_id": web,
                "default_tls_container_ref": theirs,
            }
        },
        headers={"X-Auth-Token": place.alice},
    )
    assert ours.status_code == 400, ours.text
    assert "Could not retrieve certificate" in ours.json()["faultstring"]
