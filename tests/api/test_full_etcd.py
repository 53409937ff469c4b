"""A full etcd: each API front end reports it in its own format, reads work, and writes resume after space is freed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.etcd import EtcdCluster, etcd_cluster
from harness.whole_application import Caller

pytestmark = pytest.mark.slow

NETWORKS, BALANCERS = "/network/v2.0/networks", "/load-balancer/v2.0/lbaas/loadbalancers"
SMALL = 2**14
QUOTA = 2**22
TAGS = [f"{number:03}" + "x" * 252 for number in range(90)]


def make(etcd: EtcdCluster, folder: Path) -> Iterator[Caller]:
    made = Caller(folder, url=f"{etcd.url}/full")
    yield made
    made.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Caller]:
    """Yield a caller over an etcd whose request limit is smaller than a large load balancer."""
    with etcd_cluster(f"--max-request-bytes={SMALL}") as etcd:
        yield from make(etcd, tmp_path)


def error_text(door: str, answer: httpx.Response) -> tuple[int, str, str]:
    body: Any = answer.json()
    if door == "network":
        return answer.status_code, body["NeutronError"]["type"], body["NeutronError"]["message"]
    return answer.status_code, str(body["faultcode"]), body["faultstring"]


def request(caller: Caller, method: str, path: str, body: Any = None) -> httpx.Response:
    return caller._runner.run(caller.client.request(method, path, json=body))


def new_network(caller: Caller) -> str:
    made: str = caller.make(NETWORKS, "network")["id"]
    caller.make("/network/v2.0/subnets", "subnet", network_id=made, cidr="10.0.0.0/24")
    return made


def test_change_above_the_etcd_request_limit_is_rejected_in_api_format(small: Caller):
    net = new_network(small)
    balancer = {"vip_network_id": net, "tags": TAGS}
    status, _, words = error_text("load-balancer", request(small, "POST", BALANCERS, {"loadbalancer": balancer}))
    assert (status, "Nothing was written" in words, "--max-request-bytes" in words) == (413, True, True)
    answer = request(small, "PUT", f"{NETWORKS}/{net}/tags", {"tags": TAGS})
    status, kind, words = error_text("network", answer)
    assert (status, kind, "--max-request-bytes" in words) == (413, "RequestTooLarge", True)
    assert request(small, "GET", f"{NETWORKS}/{net}/tags").json() == {"tags": []}
    assert request(small, "GET", BALANCERS).json()["loadbalancers"] == []
    assert request(small, "POST", BALANCERS, {"loadbalancer": {"vip_network_id": net}}).status_code == 201


def test_full_etcd_serves_reads_and_accepts_writes_after_alarm_disarm(tmp_path: Path):
    with etcd_cluster(f"--quota-backend-bytes={QUOTA}") as etcd:
        for caller in make(etcd, tmp_path):
            net = new_network(caller)
            path, bodies = f"{NETWORKS}/{net}/tags", ({"tags": TAGS}, {"tags": TAGS[:-1]})
            until = (request(caller, "PUT", path, bodies[number % 2]) for number in range(2000))
            refused = next(each for each in until if not each.is_success)
            status, kind, words = error_text("network", refused)
            assert (status, kind, refused.headers["retry-after"]) == (503, "ServiceUnavailable", "1")
            assert "nothing was written" in words
            assert "etcdctl alarm disarm" in words
            answer = request(caller, "POST", BALANCERS, {"loadbalancer": {"vip_network_id": net}})
            status, _, words = error_text("load-balancer", answer)
            assert (status, "etcdctl alarm disarm" in words) == (503, True)
            assert request(caller, "GET", path).is_success
            for second in make(etcd, tmp_path):  # a server that starts while etcd is full
                assert request(second, "GET", path).json() == request(caller, "GET", path).json()
            revision = etcd.ctl("get", "full/head", "--write-out=fields").split('"Revision" : ')[1].split()[0]
            etcd.ctl("compact", "--physical", revision)
            etcd.ctl("defrag")
            etcd.ctl("alarm", "disarm")
            assert request(caller, "PUT", path, {"tags": ["it works again"]}).is_success
