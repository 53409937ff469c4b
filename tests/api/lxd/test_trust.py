"""Certificates and tokens: enrolment of clients, and the rights of a trusted client."""

import base64
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fairlead.api.http.authentication import FAILURES
from fairlead.api.http.front_end import ClientEndpoint
from fairlead.api.lxd.certificates import MAX_BODY_BYTES
from fairlead.api.lxd.tokens import read_secret, write_token
from fairlead.api.lxd.x509 import MAX_DER_BYTES
from fairlead.changes.trust import identity_of
from fairlead.model.documents import trust
from harness.api import NOON
from harness.front_ends.lxd_keys import base64_of, make_certificate
from harness.front_ends.lxd_world import LxdFrontEnd

HERE = ClientEndpoint(addresses=("192.0.2.1:8443",), fingerprint="ab" * 32, certificate="PEM", token_seconds=3600)
TOKEN = {"token": True, "type": "client", "name": "laptop"}


@pytest.fixture
def open_door(door: LxdFrontEnd) -> LxdFrontEnd:
    """Return an API front end that clients can reach by certificate."""
    door.server.reachable = HERE
    return door


def issue(door: LxdFrontEnd, **more: Any) -> dict[str, Any]:
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


def test_trust_token_admits_one_certificate_once(open_door: LxdFrontEnd):
    token = issue(open_door)
    assert (token["class"], token["status_code"], token["metadata"]["addresses"]) == ("token", 103, ["192.0.2.1:8443"])
    assert token["metadata"]["expiresAt"] == "2026-01-01T13:00:00Z"

    der, _ = make_certificate()
    open_door.use_certificate(der)
    made = open_door.send("POST", "/1.0/certificates", {"trust_token": written(token)}, by="stranger")
    assert made.status_code == 201, made.text
    (certificate,) = open_door.snapshot.certificates.values()
    assert made.headers["location"] == f"/1.0/certificates/{certificate.fingerprint}"
    assert (certificate.name, certificate.restricted) == ("laptop", False)
    who = identity_of(open_door.snapshot, certificate.fingerprint, NOON, frozenset({"admin"}))
    assert who is not None
    assert who.is_admin

    open_door.use_certificate(make_certificate("other")[0])
    again = open_door.call_error("POST", "/1.0/certificates", {"trust_token": written(token)}, by="stranger")
    assert again == (403, "No matching certificate add operation found")


def test_trust_token_is_accepted_in_the_password_field_of_older_clients(open_door: LxdFrontEnd):
    token = issue(open_door, restricted=True, projects=["default"])
    open_door.use_certificate(make_certificate()[0])
    open_door.call_ok("POST", "/1.0/certificates", {"type": "", "password": written(token), "name": ""}, by="stranger")
    (certificate,) = open_door.snapshot.certificates.values()
    assert (certificate.restricted, certificate.projects) == (True, ("default",))


def test_a_secret_is_neither_stored_nor_shown_again(open_door: LxdFrontEnd):
    token = issue(open_door)
    secret = token["metadata"]["secret"]
    assert len(secret) == 64
    assert secret not in repr(open_door.snapshot.trust_tokens)
    shown = open_door.call_ok("GET", "/1.0/operations?recursion=1")
    assert [each["metadata"]["secret"] for each in shown["running"]] == [""]
    assert open_door.call_ok("GET", "/1.0/operations") == {"running": [f"/1.0/operations/{token['id']}"]}
    assert open_door.call_ok("GET", f"/1.0/operations/{token['id']}")["metadata"]["secret"] == ""


def test_rights_come_from_the_token_and_not_from_the_client(open_door: LxdFrontEnd):
    token = issue(open_door, restricted=True, projects=["default"])
    open_door.use_certificate(make_certificate()[0])
    asked = {"trust_token": written(token), "restricted": False, "projects": [], "name": "root", "type": "client"}
    open_door.call_ok("POST", "/1.0/certificates", asked, by="stranger")
    (certificate,) = open_door.snapshot.certificates.values()
    assert (certificate.name, certificate.restricted, certificate.projects) == ("laptop", True, ("default",))


def test_revoked_or_expired_token_is_rejected(open_door: LxdFrontEnd):
    token = issue(open_door)
    open_door.call_ok("DELETE", f"/1.0/operations/{token['id']}")
    assert open_door.call_error("GET", f"/1.0/operations/{token['id']}") == (404, "Operation not found")
    late = issue(open_door)
    (kept,) = open_door.snapshot.trust_tokens.values()
    open_door.write(replace(kept, expires_at=NOON))
    assert open_door.call_ok("GET", "/1.0/operations") == {}
    open_door.use_certificate(make_certificate()[0])
    for spent in (token, late):
        told = open_door.call_error("POST", "/1.0/certificates", {"trust_token": written(spent)}, by="stranger")
        assert told == (403, "No matching certificate add operation found")
    issue(open_door)
    assert len(open_door.snapshot.trust_tokens) == 1, "one whose time is over goes when another comes"


def test_wrong_tokens_throttle_one_address(open_door: LxdFrontEnd):
    open_door.use_certificate(make_certificate()[0])
    guess = {"trust_token": base64.b64encode(b'{"secret":"guess"}').decode()}
    told = [open_door.call_error("POST", "/1.0/certificates", guess, by="stranger")[0] for _ in range(FAILURES + 1)]
    assert told == [403] * FAILURES + [429]
    token = issue(open_door)
    refused = open_door.send("POST", "/1.0/certificates", {"trust_token": written(token)}, by="stranger")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
    assert "wrong; try again in 2 s" in refused.json()["error"]
    open_door.use_certificate(make_certificate()[0], address="192.0.2.8")
    open_door.call_ok("POST", "/1.0/certificates", {"trust_token": written(token)}, by="stranger")


@pytest.mark.parametrize("text", ["", "x", "%%", "eyJhIjoxfQ==", base64.b64encode(b"[" * 5000).decode()])
def test_malformed_token_has_no_secret(text: str):
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
def test_unauthorized_or_invalid_certificate_request_is_rejected(open_door: LxdFrontEnd, by: str, body, told):
    assert open_door.call_error("POST", "/1.0/certificates", body, by=by) == told


def test_token_is_not_issued_while_the_server_does_not_listen_on_the_network(door: LxdFrontEnd):
    told = (400, "Can't issue token when server isn't listening on network")
    assert door.call_error("POST", "/1.0/certificates", TOKEN) == told


def test_enrolment_needs_a_client_certificate_over_tls(open_door: LxdFrontEnd):
    token = written(issue(open_door))
    told = open_door.call_error("POST", "/1.0/certificates", {"trust_token": token}, by="stranger")
    assert told == (400, "Can't use TLS data on non-TLS link")
    open_door.use_certificate(None)
    told = open_door.call_error("POST", "/1.0/certificates", {"trust_token": token}, by="stranger")
    assert told == (400, "No client certificate provided")


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"begins": NOON + timedelta(days=1)}, "The provided certificate isn't valid yet"),
        ({"begins": NOON - timedelta(days=9), "days": 3}, "The provided certificate is expired"),
        ({"weak": True}, "RSA key is too weak (minimum of 2048bit)"),
    ],
)
def test_invalid_or_weak_certificate_is_rejected(door: LxdFrontEnd, how, told: str):
    body = {"certificate": base64_of(make_certificate(**how)[0]), "type": "client"}
    assert door.call_error("POST", "/1.0/certificates", body) == (400, told)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (bytes.fromhex("06072a8648ce3d0201"), bytes.fromhex("06072a8648ce3d0209"), "Unknown key type"),
        (bytes.fromhex("06052b81040022"), bytes.fromhex("06052b81040029"), "Curve 1.3.132.0.41 is not supported"),
        (b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x07", "7 is not a valid X509 version"),
        (b"\x0c\x06client", b"\x0c\x06\xff\xff\xff\xff\xff\xff", "error parsing asn1 value"),
        (b"client", b"0" * MAX_DER_BYTES, f"more than {MAX_DER_BYTES} bytes"),
    ],
)
def test_unreadable_certificate_is_rejected_with_a_reason(open_door: LxdFrontEnd, old: bytes, new: bytes, told: str):
    der = make_certificate()[0].replace(old, new)
    token = {"trust_token": written(issue(open_door))}
    open_door.use_certificate(der)
    code, text = open_door.call_error("POST", "/1.0/certificates", token, by="stranger")
    assert (code, text[: text.index(": ")]) == (400, "Invalid certificate material")
    assert told in text


def test_a_certificate_is_added_shown_edited_and_removed(door: LxdFrontEnd):
    door.make_project("one")
    body = {"certificate": base64_of(make_certificate()[0]), "type": "client", "name": "laptop"}
    door.call_ok("POST", "/1.0/certificates", body)
    assert door.call_error("POST", "/1.0/certificates", body) == (409, "Certificate already in trust store")
    (url,) = door.call_ok("GET", "/1.0/certificates")
    short = url[: len("/1.0/certificates/") + 12]
    shown = door.send("GET", short)
    told = shown.json()["metadata"]
    assert (told["name"], told["restricted"], told["projects"]) == ("laptop", False, [])
    assert told["certificate"].startswith("-----BEGIN CERTIFICATE-----")

    edit = {**told, "restricted": True, "projects": ["one"]}
    door.call_ok("PUT", short, edit, if_match=shown.headers["etag"])
    assert door.call_error("PUT", short, edit, if_match=shown.headers["etag"])[0] == 412
    door.call_ok("PATCH", short, {"name": "desktop"})
    assert (door.call_ok("GET", url)["name"], door.call_ok("GET", url)["projects"]) == ("desktop", ["one"])
    assert door.call_error("PATCH", short, {"type": "server"}) == (400, "The certificate type cannot be changed")
    assert door.call_error("PATCH", short, {"projects": ["nope"]}) == (404, "Project not found")
    assert door.call_error("GET", "/1.0/certificates/zz") == (404, "Certificate not found")

    door.call_ok("DELETE", short)
    assert door.call_ok("GET", "/1.0/certificates") == []


def test_ambiguous_fingerprint_prefix_is_rejected(door: LxdFrontEnd):
    for number in range(17):  # numbers of sixteen digits
        body = {"certificate": base64_of(make_certificate(f"c{number}")[0]), "type": "client"}
        door.call_ok("POST", "/1.0/certificates", body)
    found = [each.fingerprint[0] for each in door.snapshot.certificates.values()]
    twice = next(each for each in found if found.count(each) > 1)
    assert door.call_error("GET", f"/1.0/certificates/{twice}") == (400, "More than one certificate matches")


def test_restricted_client_sees_only_its_own_certificate(door: LxdFrontEnd):
    door.make_project("one")
    for name in ("mine", "theirs"):
        body = {"certificate": base64_of(make_certificate(name)[0]), "type": "client", "name": name}
        door.call_ok("POST", "/1.0/certificates", {**body, "restricted": True, "projects": ["one"]})
    mine, theirs = ({each.name: each for each in door.snapshot.certificates.values()}[n] for n in ("mine", "theirs"))
    who = identity_of(door.snapshot, mine.fingerprint, NOON, frozenset({"admin"}))
    assert who is not None
    assert (who.is_admin, who.project_id) == (False, "one")
    door.callers["mine"] = who
    assert door.call_ok("GET", "/1.0/certificates", by="mine") == [f"/1.0/certificates/{mine.fingerprint}"]
    assert door.call_error("GET", f"/1.0/certificates/{theirs.fingerprint}", by="mine") == (
        404,
        "Certificate not found",
    )
    assert door.call_error("DELETE", f"/1.0/certificates/{theirs.fingerprint}", by="mine") == (
        404,
        "Certificate not found",
    )
    told = door.call_error("PATCH", f"/1.0/certificates/{mine.fingerprint}", {"restricted": False}, by="mine")
    assert told == (403, "Only the certificate can be changed")
    assert door.call_ok("GET", "/1.0/operations", by="mine") == {}
    door.call_ok("DELETE", f"/1.0/certificates/{mine.fingerprint}", by="mine")


def test_deleted_project_is_removed_from_certificates_and_tokens(open_door: LxdFrontEnd):
    open_door.call_ok("POST", "/1.0/projects", {"name": "shop"})
    issue(open_door, restricted=True, projects=["shop", "default"])
    body = {"certificate": base64_of(make_certificate()[0]), "type": "client", "restricted": True}
    open_door.call_ok("POST", "/1.0/certificates", {**body, "projects": ["shop"]})
    open_door.call_ok("DELETE", "/1.0/projects/shop")
    open_door.call_ok("POST", "/1.0/projects", {"name": "shop"})
    (certificate,), (token,) = open_door.snapshot.certificates.values(), open_door.snapshot.trust_tokens.values()
    assert (certificate.projects, token.projects) == ((), ("default",))
    who = identity_of(open_door.snapshot, certificate.fingerprint, NOON, frozenset({"admin"}))
    assert who is not None
    open_door.callers["nobody"] = who
    assert open_door.call_ok("GET", "/1.0/projects", by="nobody") == []


def test_expired_certificate_has_no_identity(door: LxdFrontEnd):
    body = {"certificate": base64_of(make_certificate(days=30)[0]), "type": "client"}
    door.call_ok("POST", "/1.0/certificates", body)
    (fingerprint,) = door.snapshot.certificates
    assert identity_of(door.snapshot, fingerprint, NOON + timedelta(days=30), frozenset()) is None
    assert identity_of(door.snapshot, "none", NOON, frozenset()) is None


def test_number_of_tokens_and_certificates_is_limited(open_door: LxdFrontEnd, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fairlead.changes.trust.MAX_TOKENS", 1)
    monkeypatch.setattr("fairlead.changes.trust.MAX_CERTIFICATES", 1)
    assert trust.MAX_TOKENS > 1
    issue(open_door)
    assert open_door.call_error("POST", "/1.0/certificates", TOKEN) == (409, "There are 1 tokens already; revoke some")
    first, second = ({"certificate": base64_of(make_certificate(n)[0]), "type": "client"} for n in "ab")
    open_door.call_ok("POST", "/1.0/certificates", first)
    assert open_door.call_error("POST", "/1.0/certificates", second) == (409, "There are 1 certificates already")


def test_large_body_of_an_untrusted_client_is_rejected(open_door: LxdFrontEnd):
    told = open_door.call_error("POST", "/1.0/certificates", {"trust_token": "x" * MAX_BODY_BYTES}, by="stranger")
    assert told[0] == 413


def test_command_line_token_has_the_format_of_clients(open_door: LxdFrontEnd):
    operation = issue(open_door)
    (token,) = open_door.snapshot.trust_tokens.values()
    text = write_token(token, operation["metadata"]["secret"], HERE)
    assert read_secret(text) == operation["metadata"]["secret"]
    assert json.loads(base64.b64decode(text))["addresses"] == ["192.0.2.1:8443"]


def test_server_configuration_is_shown_to_administrators_only(open_door: LxdFrontEnd):
    told = open_door.call_ok("GET", "/1.0")
    assert told["config"] == {"core.https_address": "192.0.2.1:8443", "core.remote_token_expiry": "3600S"}
    assert told["environment"]["certificate_fingerprint"] == "ab" * 32
    assert open_door.call_ok("GET", "/1.0", by="ann")["config"] == {}
    open_door.call_ok("PUT", "/1.0", {"config": told["config"]})
    code, text = open_door.call_error("PATCH", "/1.0", {"config": {"core.x": "1"}})
    assert (code, text) == (400, "cannot set 'core.x' to '1': unknown key")
    assert open_door.call_error("PATCH", "/1.0", {"config": {"core.x": "1"}}, by="ann") == (403, "not authorized")


def test_token_is_accepted_once_across_servers_of_one_store(open_door: LxdFrontEnd, tmp_path: Path):
    token = written(issue(open_door))
    other = LxdFrontEnd(tmp_path)
    try:
        other.use_certificate(make_certificate("here")[0])
        other.call_ok("POST", "/1.0/certificates", {"trust_token": token}, by="stranger")
    finally:
        other.close()
    open_door.use_certificate(make_certificate("there")[0])
    assert len(open_door.snapshot.trust_tokens) == 1, "this server has not heard of it yet"
    answer = open_door.send("POST", "/1.0/certificates", {"trust_token": token}, by="stranger")
    assert (answer.status_code, answer.json()["error"]) == (403, "No matching certificate add operation found")
    assert len(open_door.snapshot.certificates) == 1


def test_corrupted_certificate_causes_no_internal_error(door: LxdFrontEnd):
    whole = make_certificate()[0]
    for place in range(0, len(whole), 7):
        broken = whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :]
        answer = door.send("POST", "/1.0/certificates", {"certificate": base64_of(broken), "type": "client"})
        assert answer.status_code in (201, 400), answer.text
