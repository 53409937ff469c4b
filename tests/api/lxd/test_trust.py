"""Certificates and tokens: enrolment of clients, and the rights of a trusted client."""

import base64
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fairlead.api.http.authentication import FAILURES
from fairlead.api.http.front_end import Reachable
from fairlead.api.lxd.certificates import LARGEST_BODY
from fairlead.api.lxd.tokens import read_secret, write_token
from fairlead.api.lxd.x509 import LARGEST_DER
from fairlead.changes.trust import identity_of
from fairlead.model.documents import trust
from harness.api import NOON
from harness.front_ends.lxd_keys import base64_of, make_certificate
from harness.front_ends.lxd_world import Door

HERE = Reachable(addresses=("192.0.2.1:8443",), fingerprint="ab" * 32, certificate="PEM", token_seconds=3600)
TOKEN = {"token": True, "type": "client", "name": "laptop"}


@pytest.fixture
def open_door(door: Door) -> Door:
    """Return an API front end that clients can reach by certificate."""
    door.place.reachable = HERE
    return door


def issue(door: Door, **more: Any) -> dict[str, Any]:
    answer = door.send("POST", "/1.0/certificates", {**TOKEN, **more})
    assert answer.status_code == 202, answer.text
    told = answer.json()
    assert told["type"] == "async"
    assert told["operation"] == answer.headers["location"] == f"/1.0/operations/{told['metadata']['id']}"
    return dict(told["metadata"])


def written(operation: dict[str, Any]) -> str:
    """Build the token from the operation, as the client does."""
    told = operation["metadata"]
    body = {"client_name": told["request"]["name"], "secret": told["secret"], "fingerprint": told["fingerprint"]}
    return base64.b64encode(json.dumps({**body, "addresses": told["addresses"]}).encode()).decode()


def test_a_token_lets_one_certificate_in_once(open_door: Door):
    token = issue(open_door)
    assert (token["class"], token["status_code"], token["metadata"]["addresses"]) == ("token", 103, ["192.0.2.1:8443"])
    assert token["metadata"]["expiresAt"] == "2026-01-01T13:00:00Z"

    der, _ = make_certificate()
    open_door.come_by(der)
    made = open_door.send("POST", "/1.0/certificates", {"trust_token": written(token)}, by="stranger")
    assert made.status_code == 201, made.text
    (certificate,) = open_door.snapshot.certificates.values()
    assert made.headers["location"] == f"/1.0/certificates/{certificate.fingerprint}"
    assert (certificate.name, certificate.restricted) == ("laptop", False)
    who = identity_of(open_door.snapshot, certificate.fingerprint, NOON, frozenset({"admin"}))
    assert who is not None
    assert who.is_admin

    open_door.come_by(make_certificate("other")[0])
    again = open_door.bad("POST", "/1.0/certificates", {"trust_token": written(token)}, by="stranger")
    assert again == (403, "No matching certificate add operation found")


def test_the_older_client_sends_it_as_a_password(open_door: Door):
    token = issue(open_door, restricted=True, projects=["default"])
    open_door.come_by(make_certificate()[0])
    open_door.good("POST", "/1.0/certificates", {"type": "", "password": written(token), "name": ""}, by="stranger")
    (certificate,) = open_door.snapshot.certificates.values()
    assert (certificate.restricted, certificate.projects) == (True, ("default",))


def test_a_secret_is_neither_stored_nor_shown_again(open_door: Door):
    token = issue(open_door)
    secret = token["metadata"]["secret"]
    assert len(secret) == 64
    assert secret not in repr(open_door.snapshot.trust_tokens)
    shown = open_door.good("GET", "/1.0/operations?recursion=1")
    assert [each["metadata"]["secret"] for each in shown["running"]] == [""]
    assert open_door.good("GET", "/1.0/operations") == {"running": [f"/1.0/operations/{token['id']}"]}
    assert open_door.good("GET", f"/1.0/operations/{token['id']}")["metadata"]["secret"] == ""


def test_what_the_client_says_of_its_rights_is_not_heard(open_door: Door):
    token = issue(open_door, restricted=True, projects=["default"])
    open_door.come_by(make_certificate()[0])
    asked = {"trust_token": written(token), "restricted": False, "projects": [], "name": "root", "type": "client"}
    open_door.good("POST", "/1.0/certificates", asked, by="stranger")
    (certificate,) = open_door.snapshot.certificates.values()
    assert (certificate.name, certificate.restricted, certificate.projects) == ("laptop", True, ("default",))


def test_a_token_ends(open_door: Door):
    token = issue(open_door)
    open_door.good("DELETE", f"/1.0/operations/{token['id']}")
    assert open_door.bad("GET", f"/1.0/operations/{token['id']}") == (404, "Operation not found")
    late = issue(open_door)
    (kept,) = open_door.snapshot.trust_tokens.values()
    open_door.write(replace(kept, expires_at=NOON))
    assert open_door.good("GET", "/1.0/operations") == {}
    open_door.come_by(make_certificate()[0])
    for spent in (token, late):
        told = open_door.bad("POST", "/1.0/certificates", {"trust_token": written(spent)}, by="stranger")
        assert told == (403, "No matching certificate add operation found")
    issue(open_door)
    assert len(open_door.snapshot.trust_tokens) == 1, "one whose time is over goes when another comes"


def test_guessing_ends_soon(open_door: Door):
    open_door.come_by(make_certificate()[0])
    guess = {"trust_token": base64.b64encode(b'{"secret":"guess"}').decode()}
    told = [open_door.bad("POST", "/1.0/certificates", guess, by="stranger")[0] for _ in range(FAILURES + 1)]
    assert told == [403] * FAILURES + [429]
    token = issue(open_door)
    refused = open_door.send("POST", "/1.0/certificates", {"trust_token": written(token)}, by="stranger")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
    assert "wrong; try again in 2 s" in refused.json()["error"]
    open_door.come_by(make_certificate()[0], address="192.0.2.8")
    open_door.good("POST", "/1.0/certificates", {"trust_token": written(token)}, by="stranger")


@pytest.mark.parametrize("text", ["", "x", "%%", "eyJhIjoxfQ==", base64.b64encode(b"[" * 5000).decode()])
def test_what_is_no_token(text: str):
    assert read_secret(text) is None


@pytest.mark.parametrize(
    ("by", "body", "told"),
    [
        ("stranger", {}, (403, "not authorized")),
        ("stranger", {"token": True, "type": "client"}, (403, "not authorized")),
        ("stranger", {"trust_token": "x"}, (403, "not authorized")),
        ("stranger", {"certificate": "x", "type": "client"}, (403, "not authorized")),
        ("ann", {"token": True, "type": "client"}, (403, "not authorized")),
        ("ann", {"certificate": "x", "type": "client"}, (403, "not authorized")),
        ("root", {}, (400, "Client is already trusted")),
        ("ann", {}, (400, "Client is already trusted")),
        ("root", {"token": True, "certificate": "x"}, (400, "Can't use certificate if token is requested")),
        ("root", {"token": True}, (400, "Tokens can only be issued for client certificates")),
        ("root", {"certificate": "x"}, (400, "Invalid certificate type")),
        ("root", {"certificate": "%", "type": "client"},
         (400, "Invalid certificate material: it is neither PEM nor base64")),
        ("root", {**TOKEN, "projects": ["nope"], "restricted": True}, (404, "Project not found")),
    ],
)  # fmt: skip
def test_who_may_not(open_door: Door, by: str, body, told):
    assert open_door.bad("POST", "/1.0/certificates", body, by=by) == told


def test_where_nobody_can_come_no_token_is_issued(door: Door):
    told = (400, "Can't issue token when server isn't listening on network")
    assert door.bad("POST", "/1.0/certificates", TOKEN) == told


def test_without_a_certificate_nobody_joins(open_door: Door):
    token = written(issue(open_door))
    told = open_door.bad("POST", "/1.0/certificates", {"trust_token": token}, by="stranger")
    assert told == (400, "Can't use TLS data on non-TLS link")
    open_door.come_by(None)
    told = open_door.bad("POST", "/1.0/certificates", {"trust_token": token}, by="stranger")
    assert told == (400, "No client certificate provided")


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"begins": NOON + timedelta(days=1)}, "The provided certificate isn't valid yet"),
        ({"begins": NOON - timedelta(days=9), "days": 3}, "The provided certificate is expired"),
        ({"weak": True}, "RSA key is too weak (minimum of 2048bit)"),
    ],
)
def test_a_certificate_that_is_worth_nothing(door: Door, how, told: str):
    body = {"certificate": base64_of(make_certificate(**how)[0]), "type": "client"}
    assert door.bad("POST", "/1.0/certificates", body) == (400, told)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (bytes.fromhex("06072a8648ce3d0201"), bytes.fromhex("06072a8648ce3d0209"), "Unknown key type"),
        (bytes.fromhex("06052b81040022"), bytes.fromhex("06052b81040029"), "Curve 1.3.132.0.41 is not supported"),
        (b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x07", "7 is not a valid X509 version"),
        (b"\x0c\x06client", b"\x0c\x06\xff\xff\xff\xff\xff\xff", "error parsing asn1 value"),
        (b"client", b"0" * LARGEST_DER, f"more than {LARGEST_DER} bytes"),
    ],
)
def test_what_of_a_certificate_cannot_be_read_is_said(open_door: Door, old: bytes, new: bytes, told: str):
    der = make_certificate()[0].replace(old, new)
    token = {"trust_token": written(issue(open_door))}
    open_door.come_by(der)
    code, text = open_door.bad("POST", "/1.0/certificates", token, by="stranger")
    assert (code, text[: text.index(": ")]) == (400, "Invalid certificate material")
    assert told in text


def test_a_certificate_is_added_shown_edited_and_removed(door: Door):
    door.make_project("one")
    body = {"certificate": base64_of(make_certificate()[0]), "type": "client", "name": "laptop"}
    door.good("POST", "/1.0/certificates", body)
    assert door.bad("POST", "/1.0/certificates", body) == (409, "Certificate already in trust store")
    (url,) = door.good("GET", "/1.0/certificates")
    short = url[: len("/1.0/certificates/") + 12]
    shown = door.send("GET", short)
    told = shown.json()["metadata"]
    assert (told["name"], told["restricted"], told["projects"]) == ("laptop", False, [])
    assert told["certificate"].startswith("-----BEGIN CERTIFICATE-----")

    edit = {**told, "restricted": True, "projects": ["one"]}
    door.good("PUT", short, edit, if_match=shown.headers["etag"])
    assert door.bad("PUT", short, edit, if_match=shown.headers["etag"])[0] == 412
    door.good("PATCH", short, {"name": "desktop"})
    assert (door.good("GET", url)["name"], door.good("GET", url)["projects"]) == ("desktop", ["one"])
    assert door.bad("PATCH", short, {"type": "server"}) == (400, "The certificate type cannot be changed")
    assert door.bad("PATCH", short, {"projects": ["nope"]}) == (404, "Project not found")
    assert door.bad("GET", "/1.0/certificates/zz") == (404, "Certificate not found")

    door.good("DELETE", short)
    assert door.good("GET", "/1.0/certificates") == []


def test_several_that_begin_alike(door: Door):
    for number in range(17):  # numbers of sixteen digits
        body = {"certificate": base64_of(make_certificate(f"c{number}")[0]), "type": "client"}
        door.good("POST", "/1.0/certificates", body)
    found = [each.fingerprint[0] for each in door.snapshot.certificates.values()]
    twice = next(each for each in found if found.count(each) > 1)
    assert door.bad("GET", f"/1.0/certificates/{twice}") == (400, "More than one certificate matches")


def test_who_is_restricted_sees_their_own_certificate_alone(door: Door):
    door.make_project("one")
    for name in ("mine", "theirs"):
        body = {"certificate": base64_of(make_certificate(name)[0]), "type": "client", "name": name}
        door.good("POST", "/1.0/certificates", {**body, "restricted": True, "projects": ["one"]})
    mine, theirs = ({each.name: each for each in door.snapshot.certificates.values()}[n] for n in ("mine", "theirs"))
    who = identity_of(door.snapshot, mine.fingerprint, NOON, frozenset({"admin"}))
    assert who is not None
    assert (who.is_admin, who.project_id) == (False, "one")
    door.callers["mine"] = who
    assert door.good("GET", "/1.0/certificates", by="mine") == [f"/1.0/certificates/{mine.fingerprint}"]
    assert door.bad("GET", f"/1.0/certificates/{theirs.fingerprint}", by="mine") == (404, "Certificate not found")
    assert door.bad("DELETE", f"/1.0/certificates/{theirs.fingerprint}", by="mine") == (404, "Certificate not found")
    told = door.bad("PATCH", f"/1.0/certificates/{mine.fingerprint}", {"restricted": False}, by="mine")
    assert told == (403, "Only the certificate can be changed")
    assert door.good("GET", "/1.0/operations", by="mine") == {}
    door.good("DELETE", f"/1.0/certificates/{mine.fingerprint}", by="mine")


def test_a_project_that_goes_takes_the_rights_along(open_door: Door):
    open_door.good("POST", "/1.0/projects", {"name": "shop"})
    issue(open_door, restricted=True, projects=["shop", "default"])
    body = {"certificate": base64_of(make_certificate()[0]), "type": "client", "restricted": True}
    open_door.good("POST", "/1.0/certificates", {**body, "projects": ["shop"]})
    open_door.good("DELETE", "/1.0/projects/shop")
    open_door.good("POST", "/1.0/projects", {"name": "shop"})
    (certificate,), (token,) = open_door.snapshot.certificates.values(), open_door.snapshot.trust_tokens.values()
    assert (certificate.projects, token.projects) == ((), ("default",))
    who = identity_of(open_door.snapshot, certificate.fingerprint, NOON, frozenset({"admin"}))
    assert who is not None
    open_door.callers["nobody"] = who
    assert open_door.good("GET", "/1.0/projects", by="nobody") == []


def test_a_certificate_ends_by_itself(door: Door):
    body = {"certificate": base64_of(make_certificate(days=30)[0]), "type": "client"}
    door.good("POST", "/1.0/certificates", body)
    (fingerprint,) = door.snapshot.certificates
    assert identity_of(door.snapshot, fingerprint, NOON + timedelta(days=30), frozenset()) is None
    assert identity_of(door.snapshot, "none", NOON, frozenset()) is None


def test_there_is_an_end(open_door: Door, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fairlead.changes.trust.MOST_TOKENS", 1)
    monkeypatch.setattr("fairlead.changes.trust.MOST_CERTIFICATES", 1)
    assert trust.MOST_TOKENS > 1
    issue(open_door)
    assert open_door.bad("POST", "/1.0/certificates", TOKEN) == (409, "There are 1 tokens already; revoke some")
    first, second = ({"certificate": base64_of(make_certificate(n)[0]), "type": "client"} for n in "ab")
    open_door.good("POST", "/1.0/certificates", first)
    assert open_door.bad("POST", "/1.0/certificates", second) == (409, "There are 1 certificates already")


def test_a_stranger_sends_no_large_body(open_door: Door):
    told = open_door.bad("POST", "/1.0/certificates", {"trust_token": "x" * LARGEST_BODY}, by="stranger")
    assert told[0] == 413


def test_the_command_writes_what_a_client_takes(open_door: Door):
    operation = issue(open_door)
    (token,) = open_door.snapshot.trust_tokens.values()
    text = write_token(token, operation["metadata"]["secret"], HERE)
    assert read_secret(text) == operation["metadata"]["secret"]
    assert json.loads(base64.b64decode(text))["addresses"] == ["192.0.2.1:8443"]


def test_the_server_says_how_it_can_be_reached(open_door: Door):
    told = open_door.good("GET", "/1.0")
    assert told["config"] == {"core.https_address": "192.0.2.1:8443", "core.remote_token_expiry": "3600S"}
    assert told["environment"]["certificate_fingerprint"] == "ab" * 32
    assert open_door.good("GET", "/1.0", by="ann")["config"] == {}
    open_door.good("PUT", "/1.0", {"config": told["config"]})
    code, text = open_door.bad("PATCH", "/1.0", {"config": {"core.x": "1"}})
    assert (code, text) == (400, "cannot set 'core.x' to '1': unknown key")
    assert open_door.bad("PATCH", "/1.0", {"config": {"core.x": "1"}}, by="ann") == (403, "not authorized")


def test_servers_on_one_store_take_each_others_tokens_once(open_door: Door, tmp_path: Path):
    token = written(issue(open_door))
    other = Door(tmp_path)
    try:
        other.come_by(make_certificate("here")[0])
        other.good("POST", "/1.0/certificates", {"trust_token": token}, by="stranger")
    finally:
        other.close()
    open_door.come_by(make_certificate("there")[0])
    assert len(open_door.snapshot.trust_tokens) == 1, "this server has not heard of it yet"
    answer = open_door.send("POST", "/1.0/certificates", {"trust_token": token}, by="stranger")
    assert (answer.status_code, answer.json()["error"]) == (403, "No matching certificate add operation found")
    assert len(open_door.snapshot.certificates) == 1


def test_anything_may_stand_where_a_certificate_should(door: Door):
    whole = make_certificate()[0]
    for place in range(0, len(whole), 7):
        broken = whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :]
        answer = door.send("POST", "/1.0/certificates", {"certificate": base64_of(broken), "type": "client"})
        assert answer.status_code in (201, 400), answer.text
