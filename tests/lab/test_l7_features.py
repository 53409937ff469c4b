"""End to end: each option of proxied listeners, with real clients on two nodes, over IPv4 and IPv6.

One load balancer has a listener for each option, identified by its port.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from fairlead.lab import Lab, agents
from fairlead.lab.errors import LabCommandFailed
from harness.lab.echo_servers import echo_server_at
from harness.lab.request_echo_server import COOKIE
from harness.lab.site import LabSite, open_site
from harness.waiting import wait_equal

pytestmark = [pytest.mark.lab]

MEMBERS = {"hazel1": "chassis1", "hazel2": "chassis2", "hazel3": "chassis2"}
CLIENTS = {"hears1": "chassis1", "hears2": "chassis2"}
ECHO_SERVERS, ANSWERS, GREETED = 8081, 8080, 8082
"""Ports of each member: `telling.py`; the lab's own server, for long connections; `telling.py` with a PROXY header."""
RULES = 80
ACTIONS, WRK, COOKIES, APP_COOKIES, WEIGHTS, BACKUPS, SLOW_MEMBER, NO_MEMBER, METRICS, HEADERS = range(81, 91)
LEAST_CONNECTIONS_SHARE, LIMITED, IDLE_CLIENT, IDLE_MEMBER, INSPECTED, PROXY, PROXYV2 = range(9000, 9007)


def rule(kind: str, how: str, value: str, **more: object) -> dict[str, object]:
    return {"type": kind, "compare_type": how, "value": value, **more}


MATCHED: list[tuple[dict[str, object], tuple[str, ...], tuple[str, ...]]] = [
    (rule("PATH", "STARTS_WITH", "/begins"), ("/begins/x",), ("/x/begins",)),
    (rule("PATH", "ENDS_WITH", "/ends"), ("/x/ends",), ("/ends/x",)),
    (rule("FILE_TYPE", "EQUAL_TO", "jpg"), ("/a.jpg",), ("/jpg",)),
    (rule("FILE_TYPE", "REGEX", "^(gif|png)$"), ("/a.png?b",), ("/a.pngx",)),
    (rule("HOST_NAME", "EQUAL_TO", "shop.example"), ("/", "-H", "Host: Shop.Example"), ("/", "-H", "Host: x.example")),
    (rule("HEADER", "CONTAINS", "'\"#$%", key="X-Odd"), ("/", "-H", "X-Odd: a'\"#$%b"), ("/", "-H", "X-Odd: a'b")),
    (rule("COOKIE", "EQUAL_TO", "yes", key="wants"), ("/", "-b", "wants=yes"), ("/", "-b", "wants=no")),
    (rule("PATH", "EQUAL_TO", "/", invert=True), ("/anything",), ("/", "-H", "Host: nobody.example")),
]
"""A rule, a matching request, and one that does not match. The last rule matches all other requests."""


def policies() -> Iterator[dict[str, object]]:
    for place, (matched, _, _) in enumerate(MATCHED):
        yield {"action": "REDIRECT_TO_URL", "redirect_url": f"http://rule.example/{place}", "rules": [matched]}


def path(value: str) -> list[dict[str, object]]:
    return [rule("PATH", "STARTS_WITH", value)]


ACTED: list[dict[str, object]] = [
    {"action": "REJECT", "rules": path("/secret")},
    {
        "action": "REDIRECT_TO_URL",
        "redirect_url": "https://new.example/",
        "redirect_http_code": 301,
        "rules": path("/old"),
    },
    {
        "action": "REDIRECT_PREFIX",
        "redirect_prefix": "https://moved.example",
        "redirect_http_code": 308,
        "rules": path("/moved"),
    },
    {"action": "REDIRECT_TO_POOL", "redirect_pool": {"name": "special"}, "rules": path("/special")},
]


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[LabSite]:
    site = open_site(lab, FAIRLEAD_HEALTH_PROBER="agents")
    site.network("hazel", "10.0.0.0/24", "fd00:a::/64")
    site.machines("hazel", MEMBERS, serve=[ANSWERS])
    site.machines("hazel", CLIENTS)
    started = agents.start(lab.layout, site.url)
    with ExitStack() as stack:
        for name in MEMBERS:
            stack.enter_context(echo_server_at(lab, name, [ECHO_SERVERS], "--greeted", str(GREETED)))
        yield site
    for agent in started:
        agent.stop()
    for name in (*MEMBERS, *CLIENTS):
        lab.remove_workload(name)
    site.close()


def pool(site: LabSite, name: str, port: int = ECHO_SERVERS, **more: Any) -> dict[str, Any]:
    """Pool of the first two members, or of the members in `of` with their attributes."""
    members: Mapping[str, Mapping[str, object]] = more.pop("of", {"hazel1": {}, "hazel2": {}})
    found = [
        {"name": each, "address": site.address(each, version), "protocol_port": port, **its}
        for each, its in members.items()
        for version in ((4,) if port == ECHO_SERVERS else (4, 6))
    ]
    known = {"protocol": "TCP" if port == ANSWERS else "HTTP", "lb_algorithm": "ROUND_ROBIN"}
    return {"name": name, **known, "members": found, **more}


def asked(site: LabSite) -> Iterator[tuple[int, dict[str, Any], dict[str, Any] | None]]:
    """Port, listener and pool of each option."""
    nobody = [{"address": "10.0.0.99", "protocol_port": 1}]
    backed = {"hazel1": {}, "hazel2": {}, "hazel3": {"backup": True}}
    yield RULES, {"l7policies": list(policies())}, pool(site, "rules")
    yield ACTIONS, {"l7policies": ACTED}, pool(site, "actions", of={"hazel1": {}})
    yield WRK, {}, pool(site, "wrk", ANSWERS, protocol="HTTP")
    yield COOKIES, {}, pool(site, "cookies", session_persistence={"type": "HTTP_COOKIE"})
    app = {"type": "APP_COOKIE", "cookie_name": COOKIE}
    yield APP_COOKIES, {}, pool(site, "app-cookies", session_persistence=app)
    yield (
        WEIGHTS,
        {},
        pool(site, "weights", of={"hazel1": {"weight": 3}, "hazel2": {"weight": 1}, "hazel3": {"weight": 0}}),
    )
    yield BACKUPS, {}, pool(site, "backups", of=backed)
    yield SLOW_MEMBER, {"timeout_member_data": 1000}, pool(site, "slow")
    yield NO_MEMBER, {"timeout_member_connect": 200}, {**pool(site, "nobody"), "members": nobody}
    yield METRICS, {"protocol": "PROMETHEUS"}, None
    headers = dict.fromkeys(("X-Forwarded-For", "X-Forwarded-Port", "X-Forwarded-Proto"), "true")
    yield HEADERS, {"insert_headers": headers}, pool(site, "headers")
    tcp = {"protocol": "TCP"}
    yield LEAST_CONNECTIONS_SHARE, tcp, pool(site, "least", ANSWERS, lb_algorithm="LEAST_CONNECTIONS")
    yield LIMITED, {**tcp, "connection_limit": 2}, pool(site, "limited", ANSWERS)
    proxied = {**tcp, "connection_limit": 100}
    yield IDLE_CLIENT, {**proxied, "timeout_client_data": 1000}, pool(site, "idle-client", ANSWERS)
    yield IDLE_MEMBER, {**proxied, "timeout_member_data": 1000}, pool(site, "idle-member", ANSWERS)
    raw = {"raw": {"location": 0, "value": b"OURS".hex()}, "timeout_tcp_inspect": 1000}
    yield INSPECTED, {**tcp, **raw}, pool(site, "inspected", ANSWERS)
    times = {"delay": 1, "timeout": 1, "max_retries": 1, "max_retries_down": 2}
    for port, protocol in ((PROXY, "PROXY"), (PROXYV2, "PROXYV2")):
        monitored = {"healthmonitor": {"type": "HTTP", **times}, "protocol": protocol}
        yield port, tcp, pool(site, f"greeted-{port}", GREETED, **monitored)


@pytest.fixture(scope="module")
def vips(site: LabSite) -> Iterator[Mapping[int, str]]:
    """VIP of each IP version."""
    found = list(asked(site))
    pools = [{**its} for _, _, its in found if its is not None] + [pool(site, "special", of={"hazel2": {}})]
    balancers = site.cloud.load_balancer
    made = balancers.create_load_balancer(
        name="hazel",
        vip_subnet_id=site.subnet("hazel-v4").id,
        additional_vips=[{"subnet_id": site.subnet("hazel-v6").id}],
        listeners=[
            {
                "name": f"at{port}",
                "protocol": "HTTP",
                "protocol_port": port,
                **({} if its is None else {"default_pool": {"name": its["name"]}}),
                **said,
            }
            for port, said, its in found
        ],
        pools=pools,
    )
    try:
        site.settle(made.id)
        addresses = {4: made.vip_address, 6: made.additional_vips[0]["ip_address"]}
        for client in CLIENTS:
            for vip in addresses.values():
                wait_equal(lambda c=client, v=vip: get(site, c, v, HEADERS)["code"], "200")
        yield addresses
    finally:
        balancers.delete_load_balancer(made.id, cascade=True)


@pytest.fixture(params=[4, 6])
def vip(vips: Mapping[int, str], request: pytest.FixtureRequest) -> str:
    return vips[request.param]


def url(vip: str, port: int, where: str = "/") -> str:
    return f"http://{f'[{vip}]' if ':' in vip else vip}:{port}{where}"


def get(site: LabSite, client: str, vip: str, port: int, where: str = "/", *more: str) -> dict[str, Any]:
    """Status code, redirect target, and the member's response. Without a response the code is empty."""
    words = ["curl", "-sS", "-m", "9", "-w", "\n%{http_code} %{redirect_url}", *more, url(vip, port, where)]
    try:
        body, last = site.lab.exec(client, words).rsplit("\n", 1)
    except LabCommandFailed:
        return {"code": ""}
    code, _, leads = last.partition(" ")
    told = json.loads(body) if body.startswith("{") else {"text": body}
    return {"code": code, "leads": leads, **told}


def nodes(site: LabSite, client: str, vip: str, port: int, times: int, *more: str) -> Counter[str]:
    return Counter(get(site, client, vip, port, "/", *more).get("node", "") for _ in range(times))


def test_rules_of_each_type_and_comparison_match(site: LabSite, vip: str):
    for client in CLIENTS:
        for place, (matched, about, other) in enumerate(MATCHED):
            assert get(site, client, vip, RULES, *about)["leads"] == f"http://rule.example/{place}", matched
            assert get(site, client, vip, RULES, *other).get("leads") != f"http://rule.example/{place}", matched


def test_each_l7_policy_action_is_applied(site: LabSite, vip: str):
    for client in CLIENTS:
        found = {
            where: get(site, client, vip, ACTIONS, where) for where in ("/secret", "/old", "/moved/x?y", "/special")
        }
        assert {where: (each["code"], each["leads"], each.get("node")) for where, each in found.items()} == {
            "/secret": ("403", "", None),
            "/old": ("301", "https://new.example/", None),
            "/moved/x?y": ("308", "https://moved.example/moved/x?y", None),
            "/special": ("200", "", "hazel2"),
        }
        assert get(site, client, vip, ACTIONS)["node"] == "hazel1"


def test_inserted_headers_name_client_address_port_and_protocol(site: LabSite, vip: str):
    for client in CLIENTS:
        told = get(site, client, vip, HEADERS, "/", "-H", "X-Forwarded-Proto: https")["headers"]
        address = site.address(client, 6 if ":" in vip else 4)
        assert {name: text for name, text in told.items() if name.startswith("x-forwarded")} == {
            "x-forwarded-for": address,
            "x-forwarded-port": str(HEADERS),
            "x-forwarded-proto": "http",
        }


@pytest.mark.parametrize("port", [PROXY, PROXYV2])
def test_members_that_require_proxy_headers_are_online_and_get_vip_and_port(site: LabSite, vip: str, port: int):
    api, version = site.cloud.load_balancer, 6 if ":" in vip else 4
    found = api.find_pool(f"greeted-{port}")
    wait_equal(lambda: [each.operating_status for each in api.members(found.id)], ["ONLINE"] * 4)
    for client in CLIENTS:
        said = get(site, client, vip, port)["said"]
        assert (said["client"], said["to"]) == (site.address(client, version), [vip, port])


def test_http_cookie_selects_the_same_member_on_every_node(site: LabSite, vip: str):
    head = site.lab.exec("hears1", ["curl", "-sS", "-m", "15", "-o", "/dev/null", "-D", "-", url(vip, COOKIES)])
    (cookie,) = re.findall(r"(?i)set-cookie: (SRV=[^;\r]+)", head)
    found = [nodes(site, client, vip, COOKIES, 4, "-b", cookie) for client in CLIENTS]
    assert len(found[0]) == 1
    assert found[0] == found[1]


def test_app_cookie_keeps_a_client_on_its_member(site: LabSite, vip: str):
    for client in CLIENTS:
        name = get(site, client, vip, APP_COOKIES, "/login")["node"]
        assert nodes(site, client, vip, APP_COOKIES, 6, "-b", f"{COOKIE}={name}") == {name: 6}


def test_proxy_follows_weights_and_uses_backups_without_other_members(site: LabSite, vip: str):
    for client in CLIENTS:
        assert nodes(site, client, vip, WEIGHTS, 8) == {"hazel1": 6, "hazel2": 2}
        assert nodes(site, client, vip, BACKUPS, 4) == {"hazel1": 2, "hazel2": 2}
    api = site.cloud.load_balancer
    (backups,) = api.pools(name="backups")
    for member in api.members(backups.id):
        api.update_member(member, backups.id, is_admin_state_up=member.name == "hazel3")
    for client in CLIENTS:
        wait_equal(lambda c=client: nodes(site, c, vip, BACKUPS, 4), {"hazel3": 4})
    for member in api.members(backups.id):
        api.update_member(member, backups.id, is_admin_state_up=True)
    for client in CLIENTS:
        wait_equal(lambda c=client: nodes(site, c, vip, BACKUPS, 4), {"hazel1": 2, "hazel2": 2})


BEGIN = """
import json, socket, sys
def asked():
    client = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)
    client.sendall(b"who\\n")
    return client
def named(client, seconds=60):
    client.settimeout(seconds)
    return client.recv(100).decode().split()[0]
"""
MIN_RESPONSES = (
    BEGIN
    + """
four = [(client, named(client)) for client in [asked() for _ in range(4)]]
for client, name in four:
    if name == "hazel1":
        client.close()
while named(next_one := asked()) != "hazel1":  # the proxy has not seen that they are closed
    next_one.close()
print(json.dumps([sorted(name for _, name in four), named(last := asked())]))
"""
)
LIMIT = (
    BEGIN
    + """
clients = [asked() for _ in range(2)]
names, late = list(map(named, clients)), asked()
try:
    raise SystemExit(named(late, 0.5))
except TimeoutError:
    clients[0].close()
    print(json.dumps([names, named(late)]))
"""
)


def run(site: LabSite, client: str, program: str, vip: str, port: int) -> Any:
    return json.loads(site.lab.exec(client, [sys.executable, "-c", program, vip, str(port)]))


def test_member_with_the_fewest_connections_gets_the_next_one(site: LabSite, vip: str):
    """After two connections of one member are closed, it gets the next two; round robin would use both members."""
    for client in CLIENTS:
        four, last = run(site, client, MIN_RESPONSES, vip, LEAST_CONNECTIONS_SHARE)
        assert (four, last) == (["hazel1", "hazel1", "hazel2", "hazel2"], "hazel1")


def test_connection_limit_applies_on_each_node(site: LabSite, vip: str):
    with ThreadPoolExecutor() as threads:
        for names, late in threads.map(lambda client: run(site, client, LIMIT, vip, LIMITED), CLIENTS):
            assert {*names, late} == {"hazel1", "hazel2"}


UNTIL_CUT = """
import socket, sys
vip, own, other, says = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].encode()


def opened(port):
    client = socket.create_connection((vip, port), 60)
    client.sendall(says)
    while says and b"\\n" not in client.recv(100):
        pass
    return client


with opened(other) as patient, opened(own) as idle:
    idle.settimeout(None)
    try:
        idle.recv(1)
    except ConnectionResetError:
        pass
    patient.sendall(b"again\\n")
    print("again" in patient.makefile().readline())
"""


@pytest.mark.parametrize(
    ("port", "says"), [(IDLE_CLIENT, ""), (IDLE_CLIENT, "hello\n"), (IDLE_MEMBER, "hello\n"), (INSPECTED, "")]
)
def test_idle_connection_is_closed_after_the_timeout_of_its_listener(site: LabSite, vip: str, port: int, says: str):
    """Only one of two idle connections is closed: its listener has a timeout of one second, the default is 50."""
    argv = [sys.executable, "-c", UNTIL_CUT, vip, str(port), str(LEAST_CONNECTIONS_SHARE), says]
    assert site.lab.exec("hears1", argv).strip() == "True"


def test_slow_member_causes_504_and_unreachable_member_causes_503(site: LabSite, vip: str):
    assert get(site, "hears1", vip, SLOW_MEMBER, "/slow")["code"] == "504"
    wait_equal(lambda: get(site, "hears1", vip, SLOW_MEMBER)["code"], "200")
    assert get(site, "hears2", vip, NO_MEMBER)["code"] == "503"


def test_prometheus_listener_serves_metrics_only_at_its_path(site: LabSite, vip: str):
    listener = next(iter(site.cloud.load_balancer.listeners(name=f"at{METRICS}"))).id
    for client in CLIENTS:
        assert f'octavia_listener_status{{listener="{listener}"' in get(site, client, vip, METRICS, "/metrics")["text"]
        assert get(site, client, vip, METRICS)["code"] == "404"


def test_every_request_under_load_is_answered(site: LabSite, vip: str):
    for client in CLIENTS:
        told = site.lab.exec(client, ["wrk", "-t", "1", "-c", "10", "-d", "1s", url(vip, WRK)])
        assert int(re.findall(r"(\d+) requests in", told)[0]) > 10
        assert not re.findall("Non-2xx|Socket errors", told)


def test_malformed_requests_are_counted_as_request_errors(site: LabSite, vip: str):
    api = site.cloud.load_balancer
    listener = next(iter(api.listeners(name=f"at{HEADERS}"))).id
    wanted = api.get_listener_statistics(listener).request_errors + len(CLIENTS)
    for client in CLIENTS:
        words = f"printf 'none of HTTP\\r\\n\\r\\n' | curl -sS -m 5 telnet://{url(vip, HEADERS)[7:-1]} || true"
        assert "400 Bad request" in site.lab.exec(client, ["sh", "-c", words])
    wait_equal(lambda: api.get_listener_statistics(listener).request_errors, wanted)
