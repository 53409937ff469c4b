"""Refusals of proxy features before a node has a proxy, and the longest uninterrupted compile step."""

from dataclasses import replace

import pytest
from immutables import Map

from fairlead.compilers.haproxy import HAPROXY, policies
from fairlead.compilers.haproxy.abilities import ABILITIES
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.haproxy import Backend, Certificate, Frontend, Server
from fairlead.dataplane.haproxy_words import read_line
from fairlead.model.documents.abilities import Feature
from fairlead.model.documents.addresses import parse_address, parse_network
from fairlead.model.documents.l7 import L7Comparison, L7Policy, L7Rule, L7RuleType, RedirectToPool, Reject
from fairlead.model.documents.loadbalancer import (
    ListenerProtocol,
    ListenerTls,
    Locality,
    PoolProtocol,
    PoolTls,
    SourceIpPersistence,
    Timeouts,
)
from fairlead.model.documents.port_ranges import PortRange, one_port
from fairlead.model.documents.sizes import MAX_ALLOWED_CIDRS, MAX_MEMBERS
from fairlead.model.snapshot import Snapshot
from harness.language import COMMON
from harness.proxied import WEB, listener, member, pool, rows_of, view
from harness.step_counter import longest_between_yields
from harness.step_limits import MAX_STEPS


def nowhere(snapshot: Snapshot) -> Snapshot:
    """Return the whole model without any chassis."""
    return replace(snapshot, chassis=Map())


def test_unsupported_listener_is_rejected_before_any_node_has_a_proxy() -> None:
    each = pool("p", replace(member("m1", 1), port=None))
    one = listener("l", 2000, each, ports=(PortRange(80, 81),))
    with pytest.raises(Unsupported, match="port range"):
        HAPROXY.compile(nowhere(view([one], [each])), WEB)
    assert {} == HAPROXY.compile(nowhere(view([listener("l", 2000)], [])), WEB)


def test_rejected_options_match_the_declared_features() -> None:
    granular = SourceIpPersistence(granularity=parse_address("255.255.255.0"))
    its = pool("p", persistence=granular)
    with pytest.raises(Unsupported) as refused:
        rows_of(view([listener("l", 2000, its)], [its]))
    assert Feature("pool.persistence.granularity") == refused.value.feature
    assert {ListenerProtocol.UDP, ListenerProtocol.SCTP, ListenerProtocol.ANY}.isdisjoint(ABILITIES.listener_protocols)
    assert {PoolProtocol.UDP, PoolProtocol.SCTP, PoolProtocol.ANY}.isdisjoint(ABILITIES.pool_protocols)


def test_zone_locality_is_rejected_for_proxies() -> None:
    """Zone locality is refused for proxies, because a node knows only its own zone."""
    its = pool("p", locality=Locality.ZONE)
    with pytest.raises(Unsupported) as refused:
        rows_of(view([listener("l", 2000, its)], [its]))
    assert Feature("pool.locality", "ZONE") == refused.value.feature


def test_alpn_is_not_offered_to_members_of_tcp_listeners() -> None:
    its = pool("p", member("m1", 90), tls=PoolTls(enabled=True, alpn_protocols=("h2", "http/1.1")))
    told = [
        next(row.options for row in rows_of(view([one], [its])).values() if isinstance(row, Server))
        for one in (listener("l", 2000, its), listener("l", 2000, its, protocol=ListenerProtocol.TCP))
    ]
    assert [("ssl", "verify", "none", "alpn", "h2,http/1.1"), ("ssl", "verify", "none")] == told


@pytest.mark.parametrize(
    ("versions", "first", "last"),
    [
        (("TLSv1.2",), "TLSv1.2", "TLSv1.2"),
        (("TLSv1.3", "TLSv1.1", "TLSv1.2"), "TLSv1.1", "TLSv1.3"),
        (("TLSv1", "TLSv1.2"), "TLSv1.2", "TLSv1.2"),
        (("TLSv1", "TLSv1.1", "TLSv1.3"), "TLSv1.3", "TLSv1.3"),
    ],
)
def test_tls_version_that_was_left_out_is_not_offered(versions: tuple[str, ...], first: str, last: str) -> None:
    """HAProxy serves a range, so the versions below a gap are left out too."""
    its = pool("p", member("m1", 90), tls=PoolTls(enabled=True, versions=versions))
    rows = rows_of(view([listener("l", 2000, its)], [its])).values()
    options = next(row.options for row in rows if isinstance(row, Server))
    assert options[-4:] == ("ssl-min-ver", first, "ssl-max-ver", last)


def test_first_sni_certificate_is_the_default() -> None:
    tls = ListenerTls(sni_container_refs=("b", "a", "b"))
    rows = rows_of(view([listener("l", 2000, protocol=ListenerProtocol.TERMINATED_HTTPS, tls=tls)], [])).values()
    shown = {row.reference: row.is_default for row in rows if isinstance(row, Certificate)}
    assert {"b": True, "a": False} == shown


def test_pool_without_a_proxied_listener_is_not_compiled() -> None:
    its = pool("p", persistence=SourceIpPersistence(granularity=parse_address("255.255.255.0")))
    assert rows_of(view([listener("l", 2000)], [its]))


def test_member_without_a_port_uses_the_listener_port() -> None:
    its = pool("p", replace(member("m1", 1), port=None), replace(member("m2", 1), port=(PortRange(90, 90),)))
    rows = rows_of(view([listener("l", 2000, its)], [its])).values()
    assert [80, 90] == [row.port for row in rows if isinstance(row, Server)]


def test_down_member_is_in_maintenance_at_that_port() -> None:
    its = pool("p", member("m1", 90), member("m2", 90))
    snapshot = replace(view([listener("l", 2000, its)], [its]), down=Map({"web": frozenset({("m1", 90), ("m2", 91)})}))
    assert [True, False] == [row.maintained for row in rows_of(snapshot).values() if isinstance(row, Server)]


def test_maximum_number_of_allowed_cidrs_is_compiled() -> None:
    cidrs = tuple(parse_network(f"10.0.{number}.0/24") for number in range(MAX_ALLOWED_CIDRS))
    (row,) = (
        row
        for row in rows_of(view([listener("l", 2000, allowed_cidrs=cidrs)], [])).values()
        if isinstance(row, Frontend)
    )
    named = [line[3:] for line in row.lines if line[:2] == ("acl", "allowed")]
    assert sorted(map(str, cidrs)) == sorted(prefix for prefixes in named for prefix in prefixes)
    assert all(read_line(" ".join(line)) == line for line in row.lines)


def test_longest_octavia_timeout_fits_haproxy() -> None:
    longest = 2_073_600_000
    one = listener("l", 2000, timeouts=Timeouts(client_data=longest, member_connect=longest, member_data=longest))
    assert rows_of(view([one], []))
    assert longest < 2**31


def test_a_thousand_members_are_compiled_in_small_steps() -> None:
    its = pool("p", *(member(f"m{number}", 80) for number in range(MAX_MEMBERS)))
    snapshot = view([listener("l", 2000, its)], [its])
    _, longest = longest_between_yields(HAPROXY.compile_in_steps(snapshot, WEB))
    assert longest < MAX_STEPS["reconciler"]


@pytest.mark.parametrize("protocol", [PoolProtocol.PROXY, PoolProtocol.PROXYV2])
def test_enabling_a_policy_changes_no_other_directive(protocol: PoolProtocol) -> None:
    """Otherwise it needs a new process. Members of its pool expect the destination in PROXY headers."""
    default, special = pool("p", member("m1", 80)), pool("special", member("m2", 80), protocol=protocol)
    one = L7Rule(id="r", type=L7RuleType.PATH, compare_type=L7Comparison.EQUAL_TO, value="/a", **COMMON)
    leading = L7Policy(id="l", action=RedirectToPool(pool_id="special"), rules=(one,), **COMMON)
    disabled, without_rules = replace(leading, admin_state_up=False), replace(leading, rules=())
    rows = [
        rows_of(view([listener("l", 2000, default, l7policies=(each,))], [default, special]))
        for each in (leading, disabled, without_rules)
    ]
    frontends = [row for its in rows for row in its.values() if isinstance(row, Frontend)]
    assert [len(each.policies) for each in frontends] == [1, 0, 0]
    assert [each.reload_attributes for each in frontends] == [frontends[0].reload_attributes] * 3
    assert ("tcp-request", "connection", "set-dst-port", "int(80)") in [line[:4] for line in frontends[1].lines]
    assert [its.keys() for its in rows] == [rows[0].keys()] * 3


def test_each_rule_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also disabled ones, because they can be enabled later."""
    compiled, compile_rule = list[str](), policies._condition
    monkeypatch.setattr(policies, "_condition", lambda rule: compiled.append(rule.id) or compile_rule(rule))
    rules = tuple(
        L7Rule(id=f"r{number}", type=L7RuleType.PATH, compare_type=L7Comparison.EQUAL_TO, value="/a", **COMMON)
        for number in range(3)
    )
    its = L7Policy(id="l", action=Reject(), rules=(*rules[:2], replace(rules[2], admin_state_up=False)), **COMMON)
    off = replace(its, id="off", admin_state_up=False)
    rows = rows_of(view([listener("l", 2000, l7policies=(its, off))], []))
    assert compiled == ["r0", "r1", "r2"] * 2
    assert [2] == [each.patterns for row in rows.values() if isinstance(row, Frontend) for each in row.policies]


HTTPS = {"protocol": ListenerProtocol.TERMINATED_HTTPS, "tls": ListenerTls(container_ref="ref")}


def backends_of(snapshot: Snapshot) -> list[str]:
    return sorted(row.name for row in rows_of(snapshot).values() if isinstance(row, Backend))


def test_listeners_share_the_servers_of_a_pool() -> None:
    """A configuration has one server per member of the pool, for any number of listeners."""
    its = pool("p", *(member(f"m{number}", 80) for number in range(10)))
    rows = rows_of(view([listener(f"l{number}", 2000 + number, its) for number in range(30)], [its])).values()
    assert (10, 1, 30) == tuple(sum(isinstance(row, kind) for row in rows) for kind in (Server, Backend, Frontend))


def test_listeners_with_different_settings_have_separate_backends() -> None:
    its = pool("p", member("m1", 90))
    slow = Timeouts(member_data=1)
    listeners = [
        listener("http", 2000, its),
        listener("terminated", 2001, its, **HTTPS),
        listener("tcp", 2002, its, protocol=ListenerProtocol.TCP),
        listener("slow", 2003, its, timeouts=slow),
        listener("off", 2004, its, admin_state_up=False),
    ]
    shared, of_tcp, of_slow = "p:http:5000:50000", "p:tcp:5000:50000", "p:http:5000:1"
    assert sorted([shared, of_tcp, of_slow]) == backends_of(view(listeners, [its]))
    found = rows_of(view(listeners, [its])).values()
    led = {row.name: row.backends for row in found if isinstance(row, Frontend)}
    assert led == {"http": (shared,), "terminated": (shared,), "tcp": (of_tcp,), "slow": (of_slow,)}


@pytest.mark.parametrize("known", [{"protocol": PoolProtocol.PROXYV2}, {"tls": PoolTls(enabled=True)}])
def test_pools_that_receive_client_tls_data_have_separate_backends(known: dict[str, object]) -> None:
    """Pools whose members receive TLS attributes of the client get a backend of their own, by PROXY header and SNI
    name."""
    its = pool("p", member("m1", 90), **known)
    listeners = [listener("http", 2000, its), listener("terminated", 2001, its, **HTTPS)]
    assert ["p:http:5000:50000", "p:https:5000:50000"] == backends_of(view(listeners, [its]))


def test_members_without_a_port_have_one_backend_per_listener_port() -> None:
    its = pool("p", replace(member("m1", 1), port=None))
    listeners = [listener("l1", 2000, its), listener("l2", 2001, its, ports=one_port(81))]
    assert ["p:http:5000:50000:80", "p:http:5000:50000:81"] == backends_of(view(listeners, [its]))


def test_backend_of_a_disabled_listener_is_validated_and_omitted() -> None:
    """A disabled listener has no backend, but its backend is validated; here it sorts before an enabled one that shares
    it."""
    its = pool("p", member("m1", 90))
    off, on = listener("a", 2000, its, admin_state_up=False), listener("b", 2001, its)
    assert ["p:http:5000:50000"] == backends_of(view([off, on], [its]))
    assert [] == backends_of(view([off], [its]))
    unsound = replace(its, persistence=SourceIpPersistence(granularity=parse_address("255.255.255.0")))
    with pytest.raises(Unsupported):
        rows_of(view([off], [unsound]))


def test_a_pool_has_one_stick_table() -> None:
    its = pool("p", member("m1", 90), persistence=SourceIpPersistence())
    listeners = [listener("l1", 2000, its), listener("l2", 2001, its, protocol=ListenerProtocol.TCP)]
    rows = [row for row in rows_of(view(listeners, [its])).values() if isinstance(row, Backend)]
    assert [("table", "p", "type", "ipv6", "size", "10k")] * 2 == [row.table for row in rows]
    assert all(("stick", "on", "src", "table", "kept/p") in row.lines for row in rows)
