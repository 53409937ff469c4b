"""L7 policies, with real requests through a real HAProxy."""

import ssl
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from http.client import HTTPSConnection
from typing import Any, TypeAlias

import pytest

from fairlead.changes.l7_checks import COMPARISONS, check_rule
from fairlead.drivers.haproxy.secrets import secrets_of
from fairlead.model.documents.l7 import (
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
from fairlead.model.documents.loadbalancer import ClientAuthentication, Listener, ListenerProtocol, ListenerTls
from fairlead.model.documents.sizes import MAX_L7POLICIES, MAX_L7RULES
from fairlead.model.queries.secrets import Role
from harness.certificates import Authority, SignedCertificate
from harness.language import COMMON
from harness.machines import as_member, machine, machines, request, served
from harness.ports import free_port
from harness.proxied import listener, needs_haproxy, pool, rows_of, running, view
from harness.waiting import DEADLINE

pytestmark = [needs_haproxy, pytest.mark.client]


def rule(name: str, kind: L7RuleType, how: L7Comparison, value: str, **known: Any) -> L7Rule:
    return L7Rule(id=name, type=kind, compare_type=how, value=value, **{**known, **COMMON})


def policy(name: str, action: L7Action, *rules: L7Rule, **known: Any) -> L7Policy:
    return L7Policy(id=name, action=action, rules=rules, **{**known, **COMMON})


Request: TypeAlias = Mapping[str, str]
"""A path and headers. One with a `client` uses TLS with that client's certificate, if the name is not empty."""


@dataclass(frozen=True, kw_only=True)
class PolicyCase:
    value: str
    hit: Request
    miss: Request
    key: str | None = None


def headers(value: str, hit: str, miss: str, name: str = "X_A") -> PolicyCase:
    return PolicyCase(value=value, hit={name: hit}, miss={name: miss}, key="X-A")


def paths(value: str, hit: str, miss: str) -> PolicyCase:
    return PolicyCase(value=value, hit={"path": hit}, miss={"path": miss})


def hosts(value: str, hit: str, miss: str) -> PolicyCase:
    return PolicyCase(value=value, hit={"Host": hit}, miss={"Host": miss})


def cookies(value: str, hit: str, miss: str) -> PolicyCase:
    return PolicyCase(value=value, hit={"Cookie": hit}, miss={"Cookie": miss}, key="c")


def clients(value: str, hit: str, miss: str) -> PolicyCase:
    return PolicyCase(value=value, hit={"client": hit}, miss={"client": miss}, key="CN")


COOKIE, HEADER, HOST, PATH = L7RuleType.COOKIE, L7RuleType.HEADER, L7RuleType.HOST_NAME, L7RuleType.PATH
TYPE, FIELD = L7RuleType.FILE_TYPE, L7RuleType.SSL_DN_FIELD
SHOWS, VERIFIED = L7RuleType.SSL_CONN_HAS_CERT, L7RuleType.SSL_VERIFY_RESULT
CONTAINS, ENDS, EQUAL = L7Comparison.CONTAINS, L7Comparison.ENDS_WITH, L7Comparison.EQUAL_TO
REGEX, STARTS = L7Comparison.REGEX, L7Comparison.STARTS_WITH
CLIENTS = ("friend of ours", "Friend of ours", "friend")
CASES: Mapping[tuple[L7RuleType, L7Comparison], Sequence[PolicyCase]] = {
    (PATH, EQUAL): [paths("/a", "/a?b", "/ab"), paths("/a", "/a", "/A"), paths('"/a"', "/a", "/b")],
    (PATH, STARTS): [paths("/a", "/ab", "/b/a")],
    (PATH, ENDS): [paths("z", "/a/z", "/z/a"), paths("z", "/z?a", "/a?z")],
    (PATH, CONTAINS): [paths("%[src]'$", "/a%[src]'$b", "/127.0.0.1"), paths("b", "/abc", "/ac?b")],
    (PATH, REGEX): [paths(r"^/v\d+/(a|b)#?$", "/v12/b", "/v12/c"), paths("b+", "/abbc", "/ac?b")],
    (TYPE, EQUAL): [
        paths("jpg", "/a/b.jpg?c=d", "/jpg"),
        paths(".jpg", "/b.c.jpg", "/b.jpg.c"),
        paths("tar.gz", "/b.tar.gz", "/b.tar"),
    ],
    (TYPE, REGEX): [paths("^(jpg|png)$", "/x.y/b.png", "/x.png/b"), paths("p", "/a.png", "/p.css")],
    (HOST, EQUAL): [hosts("a.example", "A.Example:8080", "b.a.example"), hosts("a.example:80", "a.example:80", "a")],
    (HOST, STARTS): [hosts("a.", "A.example:8080", "b.a.example")],
    (HOST, ENDS): [hosts(".example", "a.EXAMPLE", "example"), hosts(".example", "a.example:8080", "a.example.org")],
    (HOST, CONTAINS): [hosts(".Exam", "a.example:80", "example")],
    (HOST, REGEX): [hosts(r"^[ab]\.example$", "B.example:8080", "c.example"), hosts("^A$", "a", "ab")],
    (HEADER, EQUAL): [
        headers("-f", "-f", "f"),
        PolicyCase(value="-f", hit={"X_A": "-f"}, miss={"X_B": "-f"}, key="x-a"),
        headers('"a, b"', "a, b", "a"),
        headers("b", "a, b", "ab"),
    ],
    (HEADER, STARTS): [headers("b", "a, bc", "ab"), headers('"a, b"', "a, bc", "b, a")],
    (HEADER, ENDS): [headers("b", "ab, c", "ba"), headers('"a, b"', "c, a, b", "a, bc")],
    (HEADER, CONTAINS): [headers("if", "gift", "gi ft"), headers('", b"', "a, bc", "ab")],
    (HEADER, REGEX): [headers("^(a|b), c$", "b, c", "c, b"), headers("^c$", "b, c", "C")],
    (COOKIE, EQUAL): [cookies("1", "a=2; c=1", "cc=1"), cookies("1", "c=1", "c=11"), cookies("1", "c=2; c=1", "C=1")],
    (COOKIE, STARTS): [cookies("ab", "c=abc", "c=cab; d=ab")],
    (COOKIE, ENDS): [cookies("ab", "c=cab; d=e", "c=abc")],
    (COOKIE, CONTAINS): [cookies("b", "c=abc", "c=ac; d=b")],
    (COOKIE, REGEX): [cookies("^a+$", "b=c; c=aa", "c=aab")],
    (SHOWS, EQUAL): [replace(clients("True", "friend", ""), key=None)],
    (VERIFIED, EQUAL): [
        PolicyCase(value="0", hit={"client": "friend"}, miss={}),
        PolicyCase(value="0", hit={"client": ""}, miss={}),
        PolicyCase(value="000", hit={"client": "friend"}, miss={}),
    ],
    (FIELD, EQUAL): [clients(CLIENTS[0], CLIENTS[0], CLIENTS[1]), clients("friend", "friend", "")],
    (FIELD, STARTS): [clients("friend ", CLIENTS[0], "friend")],
    (FIELD, ENDS): [clients("nd", "friend", CLIENTS[0])],
    (FIELD, CONTAINS): [clients("d o", CLIENTS[0], "friend")],
    (FIELD, REGEX): [clients("^friend( of .*)?s$", CLIENTS[0], CLIENTS[1])],
}
TRIED = [
    (kind, how, place, inverted)
    for (kind, how), cases in CASES.items()
    for place in range(len(cases))
    for inverted in (False, True)
]
AUTHORITY = Authority()


def test_cases_cover_every_allowed_rule_type_and_comparison() -> None:
    allowed = {(kind, how) for kind, comparisons in COMPARISONS.items() for how in comparisons}
    assert (set(L7RuleType), allowed) == (COMPARISONS.keys(), CASES.keys())
    for kind, how in CASES:
        for its in case_rules(kind, how):
            check_rule(its)


def case_rules(kind: L7RuleType, how: L7Comparison) -> list[L7Rule]:
    return [rule("r", kind, how, case.value, key=case.key) for case in CASES[kind, how]]


Ports: TypeAlias = Mapping[tuple[Any, ...], int]


@pytest.fixture(scope="module")
def ports() -> Iterator[Ports]:
    """Port of a listener with one redirecting policy, for each case, with and without TLS."""
    found = {(*tried, secure): free_port() for tried in TRIED for secure in (False, True)}
    listeners = [case_listener(f"l{place}", port, *tried) for place, (tried, port) in enumerate(found.items())]
    pems = {Role.CERTIFICATE: AUTHORITY.issue("web.example").certificate_and_key, Role.AUTHORITY: AUTHORITY.pem}
    rows = rows_of(view(listeners, []))
    with running(rows, {secret.path: pems[secret.role] for secret in secrets_of(rows.values())}):
        yield found


def case_listener(
    name: str, port: int, kind: L7RuleType, how: L7Comparison, place: int, inverted: bool, secure: bool
) -> Listener:
    its = replace(case_rules(kind, how)[place], id=f"r-{name}", invert=inverted)
    plain = listener(name, port, l7policies=(policy(f"p-{name}", RedirectToUrl(url="http://x/"), its),))
    tls = ListenerTls(
        container_ref="shown", client_authentication=ClientAuthentication.OPTIONAL, client_ca_container_ref="ca"
    )
    return replace(plain, protocol=ListenerProtocol.TERMINATED_HTTPS, tls=tls) if secure else plain


@pytest.mark.parametrize(("kind", "how", "place", "inverted"), TRIED)
def test_rule_matches_the_expected_request_and_not_the_other(
    ports: Ports, kind: L7RuleType, how: L7Comparison, place: int, inverted: bool
) -> None:
    case = CASES[kind, how][place]
    hit, miss = (status(ports, (kind, how, place, inverted), asked) for asked in (case.hit, case.miss))
    assert ((503, 302) if inverted else (302, 503)) == (hit, miss)


def status(ports: Ports, tried: tuple[Any, ...], asked: Request) -> int:
    if "client" not in asked:
        return request(ports[*tried, False], **asked)[0]
    return status_in_tls(ports[*tried, True], certificate_of(asked["client"]))


def status_in_tls(port: int, context: ssl.SSLContext) -> int:
    with closing(HTTPSConnection("127.0.0.1", port, timeout=DEADLINE, context=context)) as connection:
        connection.request("GET", "/")
        return connection.getresponse().status


@cache
def certificate_of(client: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=AUTHORITY.pem)
    context.check_hostname = False
    if client:
        show(context, AUTHORITY.issue("friend", subject=client))
    return context


def show(context: ssl.SSLContext, issued: SignedCertificate) -> None:
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(issued.certificate_and_key)
        file.flush()
        context.load_cert_chain(file.name)


def test_client_certificate_of_an_unknown_ca_fails_the_handshake(ports: Ports) -> None:
    """The handshake fails, as on Octavia's own proxies, so a rule never sees a verification result other than 0."""
    context = ssl.create_default_context(cadata=AUTHORITY.pem)
    context.check_hostname = False
    show(context, Authority("another").issue("friend"))
    with pytest.raises(OSError):
        status_in_tls(ports[SHOWS, EQUAL, 0, False, True], context)


def path_is(name: str, value: str, **known: Any) -> L7Rule:
    return rule(name, L7RuleType.PATH, L7Comparison.STARTS_WITH, value, **known)


def test_policies_of_every_action_apply_in_octavia_order() -> None:
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
            assert "m2" == request(one.proxy_port, "/any")[1]
            answers = {path: request(one.proxy_port, path) for path in ("/b/x?y=z", "/bc", "/d", "/b/e", "/b/e/f")}
            told = {path: (status, answer.getheader("Location")) for path, (status, _, answer) in answers.items()}
            assert {
                "/b/x?y=z": (308, "https://b.example/b/x?y=z"),
                "/bc": (308, "https://b.example/bc"),
                "/d": (302, "http://d.example/"),
                "/b/e": (403, None),
                "/b/e/f": (308, "https://b.example/b/e/f"),
            } == told


def test_policy_redirecting_to_a_disabled_pool_is_skipped() -> None:
    with machine("m1") as found:
        its, special = pool("p", as_member(found)), pool("q", admin_state_up=False)
        one = listener("l", free_port(), its, l7policies=(policy("a", RedirectToPool(pool_id="q"), path_is("r", "/")),))
        with served(one, its, special):
            assert "m1" == request(one.proxy_port)[1]


def test_haproxy_accepts_the_maximum_number_of_policies_and_rules() -> None:
    rules = tuple(path_is(f"r{number}", "/") for number in range(MAX_L7RULES))
    url = RedirectToUrl(url="http://full.example/")
    one = listener(
        "l", free_port(), l7policies=tuple(policy(f"l{place}", url, *rules) for place in range(MAX_L7POLICIES))
    )
    with served(one):
        assert 302 == request(one.proxy_port)[0]
