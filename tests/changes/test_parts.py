"""Changes of single parts: effects on other parts, and refusals."""

from dataclasses import replace

import pytest

from fairlead.changes.l7 import create_policy, create_rule, update_policy
from fairlead.changes.l7_checks import InvalidRule, RuleProblem, TooManyRules
from fairlead.changes.listener_checks import PoolsNotSupported
from fairlead.changes.listeners import create_listener, delete_listener, update_listener
from fairlead.changes.lookup import NoSuch
from fairlead.changes.members import create_member, delete_member, replace_members, update_member
from fairlead.changes.monitor_checks import DelayTooShort, NoHttpVersion, WrongMonitorType
from fairlead.changes.monitors import HasMonitor, create_monitor
from fairlead.changes.persistence import BadCookieName, CookiePersistenceNotSupported, PersistenceTimeoutNotSupported
from fairlead.changes.pools import HasDefaultPool, PoolInUse, create_pool, delete_pool
from fairlead.changes.tls_checks import (
    DEFAULT_CIPHERS,
    NoCertificate,
    NoMemberCa,
    OldTlsVersions,
    complete_listener_tls,
)
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.l7 import L7Comparison, L7Policy, L7RuleType, RedirectToPool, Reject
from fairlead.model.documents.loadbalancer import (
    AppCookiePersistence,
    HttpCookiePersistence,
    HttpMonitor,
    ListenerProtocol,
    ListenerTls,
    MonitorType,
    PersistenceType,
    PlainMonitor,
    PoolProtocol,
    PoolTls,
    SourceIpPersistence,
)
from fairlead.model.documents.quota import QuotaResource
from fairlead.model.documents.sizes import MAX_L7RULES
from harness.changes.balancing import (
    ASKER,
    LATER,
    apply_work,
    listener,
    member,
    network_and_balancer,
    pool,
    refusal_of,
    stored,
)
from harness.changes.parts import rule, with_policy
from harness.changes.world import OWNERS

TIMES = {"delay": 5, "timeout": 3, "max_retries": 2}


def test_new_member_gets_an_unused_ordinal():
    first = network_and_balancer()
    second = apply_work(first, delete_member(first, ASKER, "app", "b"))
    third = apply_work(second, create_member(second, ASKER, "app", member("c", 13)))
    (app,) = stored(third).pools
    assert [(each.id, each.ordinal) for each in app.members] == [("a", 0), ("c", 2)]
    assert [each.address for each in stored(second).parted] == [parse_address("10.0.0.12")]


def test_member_update_sets_updated_at_of_the_member_and_its_parents():
    before = network_and_balancer()
    first, second = stored(before).pools[0].members
    made = stored(apply_work(before, update_member(before, ASKER, "app", replace(first, weight=7))))
    assert (made.updated_at, made.pools[0].updated_at, made.pools[0].members[0].updated_at) == (LATER, LATER, LATER)
    assert made.pools[0].members[1] is second


def test_member_batch_adds_and_removes_members_and_keeps_the_rest():
    before = network_and_balancer()
    first, _ = stored(before).pools[0].members
    batch = [first, member("c", 13)]
    (app,) = stored(apply_work(before, replace_members(before, ASKER, "app", batch))).pools
    assert app.members[0] is first
    assert [(each.id, each.ordinal) for each in app.members] == [("a", 0), ("c", 2)]


def test_new_pool_becomes_the_default_pool_of_a_listener_without_one():
    before = apply_work(
        network_and_balancer(), create_listener(network_and_balancer(), ASKER, "lb", listener("more", 81))
    )
    made = stored(apply_work(before, create_pool(before, ASKER, "lb", pool("next"), "more")))
    assert made.listeners[1].default_pool_id == "next"
    assert refusal_of(create_pool, before, ASKER, "lb", pool("next"), "front") == HasDefaultPool(listener_id="front")


def test_pool_deletion_clears_the_default_pool_of_its_listeners():
    before = network_and_balancer()
    made = stored(apply_work(before, delete_pool(before, ASKER, "app")))
    assert (made.pools, made.listeners[0].default_pool_id) == ((), None)
    assert stored(apply_work(before, delete_listener(before, ASKER, "front"))).listeners == ()


def test_pool_used_by_a_policy_cannot_be_deleted():
    http = pool("web", protocol=PoolProtocol.HTTP)
    before = network_and_balancer()
    before = apply_work(before, create_pool(before, ASKER, "lb", http))
    leading = L7Policy(id="no", action=RedirectToPool(pool_id="web"), **OWNERS)
    before = apply_work(before, create_policy(before, ASKER, "front", leading))
    assert refusal_of(delete_pool, before, ASKER, "web") == PoolInUse(pool_id="web", policy_id="no")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (
            {"protocol": PoolProtocol.UDP, "persistence": HttpCookiePersistence()},
            CookiePersistenceNotSupported(type=PersistenceType.HTTP_COOKIE),
        ),
        ({"persistence": SourceIpPersistence(timeout=7)}, PersistenceTimeoutNotSupported()),
        ({"persistence": AppCookiePersistence(cookie_name="a b")}, BadCookieName(name="a b")),
        ({"tls": PoolTls(crl_container_ref="x")}, NoMemberCa(was_there=None)),
        ({"tls": PoolTls(versions=("SSLv3", "TLSv1.3"))}, OldTlsVersions(versions=("SSLv3",))),
    ],
)
def test_invalid_pools_are_refused(fields: dict[str, object], why: object):
    assert refusal_of(create_pool, network_and_balancer(), ASKER, "lb", pool("p", **fields)) == why


@pytest.mark.parametrize(
    ("monitor", "why"),
    [
        (
            PlainMonitor(id="m", type=MonitorType.SCTP, **TIMES, **OWNERS),
            WrongMonitorType(type=MonitorType.SCTP, protocol=PoolProtocol.TCP),
        ),
        (HttpMonitor(id="m", type=MonitorType.HTTP, domain_name="a.example", **TIMES, **OWNERS), NoHttpVersion()),
    ],
)
def test_invalid_monitors_are_refused(monitor: PlainMonitor | HttpMonitor, why: object):
    assert refusal_of(create_monitor, network_and_balancer(), ASKER, "app", monitor) == why


def test_udp_monitor_has_a_minimum_delay_and_a_pool_has_one_monitor():
    before = network_and_balancer()
    before = apply_work(before, create_pool(before, ASKER, "lb", pool("dns", protocol=PoolProtocol.UDP)))
    often = PlainMonitor(id="m", type=MonitorType.UDP_CONNECT, **TIMES | {"delay": 2}, **OWNERS)
    assert refusal_of(create_monitor, before, ASKER, "dns", often) == DelayTooShort(
        type=MonitorType.UDP_CONNECT, delay=2, least=3
    )
    before = apply_work(before, create_monitor(before, ASKER, "dns", replace(often, delay=3)))
    assert refusal_of(create_monitor, before, ASKER, "dns", replace(often, delay=3)) == HasMonitor(pool_id="dns")


def test_tls_terminating_listener_requires_a_certificate():
    before = network_and_balancer()
    secure = listener("tls", 443, protocol=ListenerProtocol.TERMINATED_HTTPS)
    assert refusal_of(create_listener, before, ASKER, "lb", secure) == NoCertificate(for_clients=False)


def test_tls_listener_gets_default_ciphers_versions_and_alpn():
    secure = listener("tls", 443, protocol=ListenerProtocol.TERMINATED_HTTPS, tls=ListenerTls(container_ref="x"))
    made = complete_listener_tls(None, secure).tls
    assert made == ListenerTls(
        container_ref="x",
        ciphers=DEFAULT_CIPHERS,
        versions=("TLSv1.2", "TLSv1.3"),
        alpn_protocols=("h2", "http/1.1", "http/1.0"),
    )


def test_prometheus_listener_cannot_have_a_default_pool():
    before = network_and_balancer()
    counting = listener("m", 9100, protocol=ListenerProtocol.PROMETHEUS, default_pool_id="app")
    assert refusal_of(create_listener, before, ASKER, "lb", counting) == PoolsNotSupported(
        protocol=ListenerProtocol.PROMETHEUS
    )


def test_missing_object_is_refused_with_its_kind_and_id():
    before = network_and_balancer()
    assert refusal_of(update_listener, before, ASKER, listener("x", 1)) == NoSuch(what=QuotaResource.LISTENER, id="x")
    assert refusal_of(delete_member, before, ASKER, "app", "x") == NoSuch(what=QuotaResource.MEMBER, id="x")
    assert refusal_of(create_rule, before, ASKER, "x", rule("r")) == NoSuch(what=QuotaResource.L7POLICY, id="x")


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"value": ""}, RuleProblem.NO_VALUE),
        ({"type": L7RuleType.HEADER}, RuleProblem.NO_KEY),
        ({"type": L7RuleType.COOKIE, "key": "a b"}, RuleProblem.BAD_KEY),
        ({"value": "a b"}, RuleProblem.BAD_VALUE),
        ({"type": L7RuleType.FILE_TYPE}, RuleProblem.BAD_COMPARISON),
        ({"type": L7RuleType.SSL_DN_FIELD}, RuleProblem.NO_FIELD_OR_VALUE),
        ({"type": L7RuleType.SSL_DN_FIELD, "key": "1"}, RuleProblem.BAD_FIELD),
        ({"type": L7RuleType.SSL_CONN_HAS_CERT, "key": "k"}, RuleProblem.KEY_NOT_USED),
        ({"type": L7RuleType.SSL_CONN_HAS_CERT, "value": "no"}, RuleProblem.NOT_TRUE),
        ({"type": L7RuleType.SSL_VERIFY_RESULT, "value": "-1"}, RuleProblem.NOT_A_NUMBER),
        ({"type": L7RuleType.SSL_VERIFY_RESULT, "value": "1"}, RuleProblem.ONLY_EQUAL),
    ],
)
def test_invalid_rules_are_refused(wrong: dict[str, object], problem: RuleProblem):
    before, new = with_policy(), rule("r", **wrong)
    assert refusal_of(create_rule, before, ASKER, "no", new) == InvalidRule(problem=problem, rule=new)


def test_invalid_regular_expression_is_refused_with_the_reason():
    before, new = with_policy(), rule("r", compare_type=L7Comparison.REGEX, value="(")
    why = refusal_of(create_rule, before, ASKER, "no", new)
    assert isinstance(why, InvalidRule)
    assert (why.problem, "unterminated" in why.reason) == (RuleProblem.BAD_EXPRESSION, True)


def test_number_of_rules_per_policy_is_limited():
    before = with_policy()
    (no,) = stored(before).listeners[0].l7policies
    full = replace(no, rules=tuple(rule(f"r{number}") for number in range(MAX_L7RULES)))
    before = apply_work(before, update_policy(before, ASKER, full))
    too_many = TooManyRules(policy_id="no", most=MAX_L7RULES)
    assert refusal_of(create_rule, before, ASKER, "no", rule("more")) == too_many
    assert refusal_of(update_policy, before, ASKER, replace(full, rules=(*full.rules, rule("more")))) == too_many


def test_policy_keeps_its_position_unless_a_position_is_given():
    before = with_policy()
    for name in ("second", "third"):
        policy = L7Policy(id=name, action=Reject(), **OWNERS)
        before = apply_work(before, create_policy(before, ASKER, "front", policy))
    second = stored(before).listeners[0].l7policies[1]
    stays = apply_work(before, update_policy(before, ASKER, replace(second, name="x")))
    assert [each.id for each in stored(stays).listeners[0].l7policies] == ["no", "second", "third"]
    moves = apply_work(before, update_policy(before, ASKER, second, 1))
    assert [each.id for each in stored(moves).listeners[0].l7policies] == ["second", "no", "third"]
