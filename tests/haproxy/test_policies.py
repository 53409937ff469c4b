"""L7 policies, by real requests through a real HAProxy."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.model.l7 import (
    L7Action,
    L7Comparison,
    L7Policy,
    L7Rule,
    L7RuleType,
    RedirectPrefix,
    RedirectToPool,
    RedirectToUrl,
    Reject,
)
from fairlead.model.sizes import POLICIES, RULES
from harness.language import COMMON
from harness.machines import as_member, ask, machine, machines, served
from harness.ports import free_port
from harness.proxied import listener, needs_haproxy, pool, rows_of, running, view

pytestmark = [needs_haproxy, pytest.mark.client]


def rule(name: str, kind: L7RuleType, how: L7Comparison, value: str, **known: Any) -> L7Rule:
    return L7Rule(id=name, type=kind, compare_type=how, value=value, **{**known, **COMMON})


def policy(name: str, action: L7Action, *rules: L7Rule, **known: Any) -> L7Policy:
    return L7Policy(id=name, action=action, rules=rules, **{**known, **COMMON})


MATCHES = [
    (L7RuleType.PATH, L7Comparison.EQUAL_TO, "/a", {}, {"path": "/a?b"}, {"path": "/ab"}),
    (L7RuleType.PATH, L7Comparison.STARTS_WITH, "/a", {}, {"path": "/ab"}, {"path": "/b/a"}),
    (L7RuleType.PATH, L7Comparison.ENDS_WITH, "z", {}, {"path": "/a/z"}, {"path": "/z/a"}),
    (L7RuleType.PATH, L7Comparison.CONTAINS, "%[src]'$", {}, {"path": "/a%[src]'$b"}, {"path": "/127.0.0.1"}),
    (L7RuleType.PATH, L7Comparison.REGEX, r"^/v\d+/(a|b)#?$", {}, {"path": "/v12/b"}, {"path": "/v12/c"}),
    (L7RuleType.FILE_TYPE, L7Comparison.EQUAL_TO, "jpg", {}, {"path": "/a/b.jpg?c=d"}, {"path": "/jpg"}),
    (L7RuleType.FILE_TYPE, L7Comparison.EQUAL_TO, "tar.gz", {}, {"path": "/b.tar.gz"}, {"path": "/b.tar"}),
    (L7RuleType.FILE_TYPE, L7Comparison.REGEX, "^(jpg|png)$", {}, {"path": "/x.y/b.png"}, {"path": "/x.png/b"}),
    (L7RuleType.HOST_NAME, L7Comparison.EQUAL_TO, "a.example", {}, {"Host": "A.Example:8080"}, {"Host": "b.a.example"}),
    (L7RuleType.HOST_NAME, L7Comparison.ENDS_WITH, ".example", {}, {"Host": "a.example"}, {"Host": "example"}),
    (L7RuleType.HEADER, L7Comparison.EQUAL_TO, "-f", {"key": "X-A"}, {"X_A": "-f"}, {"X_B": "-f"}),
    (L7RuleType.HEADER, L7Comparison.EQUAL_TO, '"a, b"', {"key": "X-A"}, {"X_A": "a, b"}, {"X_A": "a"}),
    (L7RuleType.HEADER, L7Comparison.CONTAINS, "if", {"key": "X-A"}, {"X_A": "gift"}, {"X_A": "gi ft"}),
    (L7RuleType.COOKIE, L7Comparison.EQUAL_TO, "1", {"key": "c"}, {"Cookie": "a=2; c=1"}, {"Cookie": "cc=1"}),
]


def test_every_type_and_comparison_of_rules() -> None:
    """One listener with a policy for each: the answer says which applied."""
    policies = [
        policy(f"l{place}", RedirectToUrl(url=f"http://x/{place}"), rule(f"r{place}", kind, how, value, **known))
        for place, (kind, how, value, known, _, _) in enumerate(MATCHES)
    ]
    acted: list[tuple[L7Policy, dict[str, str], dict[str, str]]] = []
    for inverted in (False, True):
        for place, (*_, hit, miss) in enumerate(MATCHES):
            rules = tuple(replace(each, invert=inverted) for each in policies[place].rules)
            acted.append((replace(policies[place], rules=rules), miss if inverted else hit, hit if inverted else miss))
    ports = [free_port() for _ in acted]
    listeners = [
        replace(listener(f"l{place}", port), l7policies=(its,))
        for place, (port, (its, _, _)) in enumerate(zip(ports, acted, strict=True))
    ]
    with running(rows_of(view(listeners, []))):
        for port, (asked, hit, miss) in zip(ports, acted, strict=True):
            assert (asked.rules[0], 302) == (asked.rules[0], ask(port, **hit)[0])
            assert (asked.rules[0], 503) == (asked.rules[0], ask(port, **miss)[0])


def path_is(name: str, value: str, **known: Any) -> L7Rule:
    return rule(name, L7RuleType.PATH, L7Comparison.STARTS_WITH, value, **known)


def test_every_action_and_the_order_of_octavia() -> None:
    with machines("m1", "m2") as (first, second):
        its, special = pool("p", as_member(first)), pool("q", as_member(second))
        policies = (
            policy("a", RedirectToPool(pool_id="q"), path_is("r1", "/")),
            policy("b", RedirectPrefix(prefix="https://b.example", code=308), path_is("r2", "/b")),
            policy("c", RedirectToUrl(url="http://c.example/%[src]", code=301), path_is("r3", "/bc")),
            policy("d", RedirectToUrl(url="http://d.example/"), path_is("r4", "/d")),
            policy("e", Reject(), path_is("r5", "/b/e"), path_is("r6", "/b/e/f", invert=True)),
            policy("f", Reject(), admin_state_up=False),
            policy("g", Reject(), path_is("r7", "/", admin_state_up=False)),
        )
        one = listener("l", free_port(), its, l7policies=policies)
        with served(one, its, special):
            assert "m2" == ask(one.proxy_port, "/any")[1]
            answers = {path: ask(one.proxy_port, path) for path in ("/b/x?y=z", "/bc", "/d", "/b/e", "/b/e/f")}
            told = {path: (status, answer.getheader("Location")) for path, (status, _, answer) in answers.items()}
            assert {
                "/b/x?y=z": (308, "https://b.example/b/x?y=z"),
                "/bc": (308, "https://b.example/bc"),
                "/d": (302, "http://d.example/"),
                "/b/e": (403, None),
                "/b/e/f": (308, "https://b.example/b/e/f"),
            } == told


def test_a_policy_to_a_pool_that_is_off_is_passed_over() -> None:
    with machine("m1") as found:
        its, special = pool("p", as_member(found)), pool("q", admin_state_up=False)
        one = listener("l", free_port(), its, l7policies=(policy("a", RedirectToPool(pool_id="q"), path_is("r", "/")),))
        with served(one, its, special):
            assert "m1" == ask(one.proxy_port)[1]


def test_a_policy_has_as_many_rules_as_the_model_lets_it() -> None:
    rules = tuple(path_is(f"r{number}", "/") for number in range(RULES))
    url = RedirectToUrl(url="http://full.example/")
    one = listener("l", free_port(), l7policies=tuple(policy(f"l{place}", url, *rules) for place in range(POLICIES)))
    with served(one):
        assert 302 == ask(one.proxy_port)[0]
