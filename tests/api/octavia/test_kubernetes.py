"""Requests of the Kubernetes cloud provider, as its library (gophercloud) writes them, on OVN.

The bodies are those of cloud-provider-openstack's `createOctaviaLoadBalancer`, `buildListenerCreateOpt`,
`buildPoolCreateOpt`, `buildMonitorCreateOpts` and `buildBatchUpdateMemberOpts`.
"""

from urllib.parse import urlsplit

from harness.front_ends.kubernetes import NAME, TIMEOUTS, members, service
from harness.front_ends.octavia_world import ROOT, SUBNET, OctaviaFrontEnd


def test_newest_api_version_is_listed_last(ovn: OctaviaFrontEnd):
    """Clients enable features by the last version: access lists from 2.12, availability zones from 2.14, and more."""
    versions = ovn.run(ovn.server.call("GET", "/")).json()["versions"]
    numbers = [tuple(map(int, version["id"].removeprefix("v").split("."))) for version in versions]
    assert numbers == sorted(numbers)
    assert numbers[-1] >= (2, 16)


def test_service_from_create_to_delete(ovn: OctaviaFrontEnd):
    cidrs = ["192.0.2.0/24", "198.51.100.0/24"]
    asked = service("fairlead", allowed_cidrs=cidrs, **TIMEOUTS)
    made = ovn.call_ok("POST", "/loadbalancers", asked)["loadbalancer"]
    ovn.reconcile()
    ovn.ids["lb"] = made["id"]
    assert made["provider"] == "fairlead"
    (listener,) = made["listeners"]
    assert {name: listener[name] for name in TIMEOUTS} == TIMEOUTS
    (found,) = ovn.call_ok("GET", f"/loadbalancers?name={NAME}")["loadbalancers"]
    assert (found["id"], found["provisioning_status"]) == (made["id"], "ACTIVE")
    (found,) = ovn.call_ok("GET", "/listeners?loadbalancer_id={lb}")["listeners"]
    assert (found["allowed_cidrs"], found["tags"]) == (cidrs, [NAME])
    (pool,) = ovn.call_ok("GET", "/pools?loadbalancer_id={lb}")["pools"]
    ovn.ids |= {"pool": pool["id"], "listener": found["id"], "monitor": pool["healthmonitor_id"]}
    ovn.call_ok("PUT", "/pools/{pool}/members", {"members": members(12, 13)})
    ovn.reconcile()
    names = {member["name"] for member in ovn.call_ok("GET", "/pools/{pool}/members")["members"]}
    assert names == {"node12", "node13"}
    ovn.call_ok("PUT", "/healthmonitors/{monitor}", {"healthmonitor": {"delay": 10, "timeout": 5, "max_retries": 2}})
    ovn.reconcile()
    ovn.call_ok("PUT", "/listeners/{listener}", {"listener": {"allowed_cidrs": cidrs[:1], "timeout_client_data": 1000}})
    ovn.reconcile()
    ovn.call_ok("PUT", "/pools/{pool}", {"pool": {"lb_algorithm": "SOURCE_IP_PORT", "session_persistence": None}})
    ovn.reconcile()
    ovn.call_ok("DELETE", "/loadbalancers/{lb}?cascade=true")
    assert ovn.call_ok("GET", f"/loadbalancers?name={NAME}")["loadbalancers"] == []


def test_service_for_provider_ovn_has_no_allowed_cidrs_or_timeouts(ovn: OctaviaFrontEnd):
    """A Service for a provider named ovn has no access list and no timeouts, and is otherwise the same."""
    made = ovn.call_ok("POST", "/loadbalancers", service("ovn"))["loadbalancer"]
    assert (made["provider"], made["listeners"][0]["allowed_cidrs"]) == ("ovn", None)


def test_unsupported_service_options_are_named_and_create_nothing(ovn: OctaviaFrontEnd):
    """`externalTrafficPolicy: Local` requests an HTTP monitor unless the provider is named ovn; `x-forwarded-for` makes
    a listener HTTP."""
    asked = service("fairlead")
    asked["loadbalancer"]["listeners"][0]["default_pool"]["healthmonitor"]["type"] = "HTTP"
    words = "Provider 'fairlead' does not support a requested option: health monitors of type HTTP"
    assert ovn.call_error("POST", "/loadbalancers", asked) == (501, words)
    forwarded = service("fairlead", protocol="HTTP", insert_headers={"X-Forwarded-For": "true"})
    forwarded["loadbalancer"]["listeners"][0]["default_pool"]["protocol"] = "HTTP"
    words = "Provider 'fairlead' does not support a requested option: protocol HTTP"
    assert ovn.call_error("POST", "/loadbalancers", forwarded) == (501, words)
    assert ovn.call_ok("GET", "/loadbalancers")["loadbalancers"] == []


def test_next_links_lead_gophercloud_to_the_last_page(ovn: OctaviaFrontEnd):
    """gophercloud follows each `next` link verbatim, until a page has none."""
    made = {ovn.create("lb", vip_subnet_id=SUBNET)["id"] for _ in range(5)}
    seen, path = list[str](), "/loadbalancers?limit=2"
    while path:
        page = ovn.call_ok("GET", path)
        assert len(page["loadbalancers"]) <= 2
        seen += [each["id"] for each in page["loadbalancers"]]
        links = [urlsplit(link["href"]) for link in page["loadbalancers_links"] if link["rel"] == "next"]
        path = f"{links[0].path.partition(ROOT)[2]}?{links[0].query}" if links else ""
    assert (len(seen), set(seen)) == (5, made)


def test_quotas_are_served_without_the_lbaas_prefix(ovn: OctaviaFrontEnd):
    """gophercloud requests `v2.0/quotas/PROJECT`, not `v2.0/lbaas/quotas/PROJECT`."""
    answer = ovn.run(ovn.server.call("GET", "/v2.0/quotas/demo")).json()["quota"]
    assert answer["loadbalancer"] == answer["load_balancer"]
