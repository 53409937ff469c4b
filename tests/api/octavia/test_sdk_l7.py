"""openstacksdk methods for L7 policies and rules, with a provider that supports them; the real OVN provider refuses
them."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import openstack
import pytest

from harness.api import compile_anything
from harness.sdk import assert_attributes, assert_equal_resources, check_queries, refused
from harness.served import served, write_clouds

pytestmark = pytest.mark.client


@pytest.fixture
def lb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with served(tmp_path, compile_anything) as address:
        monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(write_clouds(tmp_path, address)))
        with openstack.connect(cloud="fairlead") as cloud:
            network = cloud.network.create_network(name="net")
            cloud.network.create_subnet(network_id=network.id, cidr="10.0.0.0/24", ip_version=4)
            cloud.load_balancer.create_load_balancer(name="web", vip_network_id=network.id)
            yield cloud.load_balancer


@pytest.fixture
def listener(lb: Any) -> Any:
    balancer = lb.find_load_balancer("web")
    return lb.create_listener(name="http", load_balancer_id=balancer.id, protocol="HTTP", protocol_port=80)


def test_sdk_manages_l7_policies(lb: Any, listener: Any):
    pool = lb.create_pool(
        name="files", loadbalancer_id=listener.load_balancers[0]["id"], protocol="HTTP", lb_algorithm="ROUND_ROBIN"
    )
    first = lb.create_l7_policy(
        name="static", listener_id=listener.id, action="REDIRECT_TO_POOL", redirect_pool_id=pool.id, tags=["t"]
    )
    assert_attributes(
        first, name="static", action="REDIRECT_TO_POOL", redirect_pool_id=pool.id, listener_id=listener.id, tags=["t"]
    )
    assert_attributes(first, position=1, rules=[], redirect_url=None, redirect_prefix=None, is_admin_state_up=True)
    url = "https://example.com/"
    second = lb.create_l7_policy(
        listener_id=listener.id, name="moved", action="REDIRECT_TO_URL", redirect_url=url, position=1, description="d"
    )
    assert_attributes(second, action="REDIRECT_TO_URL", redirect_url=url, position=1, description="d")
    assert [policy.name for policy in lb.l7_policies(listener_id=listener.id)] == ["static", "moved"]
    assert_equal_resources(
        lb.get_l7_policy(second.id), lb.find_l7_policy("moved"), lb.l7_policies(action="REDIRECT_TO_URL")
    )
    assert lb.get_l7_policy(first.id).position == 2
    changed = lb.update_l7_policy(second.id, action="REJECT", is_admin_state_up=False, position=2)
    assert_attributes(changed, action="REJECT", redirect_url=None, is_admin_state_up=False, position=2)
    assert [each["id"] for each in lb.get_listener(listener.id).l7_policies] == [first.id, second.id]
    with refused(409, f"Pool {pool.id} is in use by L7 policy {first.id}"):
        lb.delete_pool(pool.id)
    lb.delete_l7_policy(first.id)
    assert lb.find_l7_policy("static") is None
    with refused(404, f"L7 Policy {first.id} not found."):
        lb.delete_l7_policy(first.id, ignore_missing=False)


def test_sdk_manages_l7_rules(lb: Any, listener: Any):
    policy = lb.create_l7_policy(listener_id=listener.id, action="REJECT")
    path = lb.create_l7_rule(policy, type="PATH", compare_type="STARTS_WITH", rule_value="/static", tags=["t"])
    assert_attributes(
        path, type="PATH", compare_type="STARTS_WITH", rule_value="/static", invert=False, key=None, tags=["t"]
    )
    assert_attributes(path, l7_policy_id=policy.id, is_admin_state_up=True)
    header = lb.create_l7_rule(policy, type="HEADER", compare_type="EQUAL_TO", key="X-A", rule_value="b", invert=True)
    assert_attributes(header, type="HEADER", key="X-A", rule_value="b", invert=True)
    assert_equal_resources(
        lb.get_l7_rule(header.id, policy), lb.find_l7_rule(header.id, policy), lb.l7_rules(policy, type="HEADER")
    )
    assert_attributes(
        lb.update_l7_rule(header.id, policy, rule_value="c", invert=False), rule_value="c", invert=False, key="X-A"
    )
    assert [each["id"] for each in lb.get_l7_policy(policy.id).rules] == [path.id, header.id]
    lb.delete_l7_rule(path.id, policy)
    assert [rule.id for rule in lb.l7_rules(policy)] == [header.id]
    with refused(404, f"L7 Rule {path.id} not found."):
        lb.delete_l7_rule(path.id, policy, ignore_missing=False)


def test_sdk_queries_filter_by_every_attribute(lb: Any, listener: Any):
    prefix = "https://example.com/"
    policy = lb.create_l7_policy(
        name="p", description="d", listener_id=listener.id, redirect_prefix=prefix, action="REDIRECT_PREFIX", tags=["t"]
    )
    rule = lb.create_l7_rule(
        policy, type="HEADER", compare_type="EQUAL_TO", key="X-A", rule_value="b", invert=True, tags=["t"]
    )
    balancer = listener.load_balancers[0]["id"]
    ended = lb.create_listener(
        load_balancer_id=balancer,
        protocol="TERMINATED_HTTPS",
        protocol_port=443,
        default_tls_container_ref="https://secrets/1",
        sni_container_refs=["https://secrets/2", "https://secrets/3"],
        insert_headers={"X-Forwarded-For": "true"},
        tls_ciphers="A:B",
        hsts_max_age=60,
        is_hsts_preload=True,
    )
    check_queries(lb.get_l7_policy(policy.id), lb.l7_policies)
    check_queries(lb.get_l7_rule(rule.id, policy), partial(lb.l7_rules, policy))
    check_queries(lb.get_listener(ended.id), lb.listeners)
