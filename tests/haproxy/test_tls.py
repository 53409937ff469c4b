"""TLS of listeners and pools with a real HAProxy: certificates, versions, client certificates, changes at run time."""

import shutil
import socket
import ssl
import subprocess
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.haproxy import Frontend
from fairlead.dataplane.haproxy_commands import Command, commands, renewal_commands
from fairlead.dataplane.rows import Rows, diff
from fairlead.model.documents.loadbalancer import (
    ClientAuthentication,
    Http,
    Listener,
    ListenerProtocol,
    ListenerTls,
    PoolTls,
    Timeouts,
)
from fairlead.model.queries.secrets import Role, Secret
from harness.machines import as_member, machine, request
from harness.ports import free_port
from harness.proxied import (
    RunningProxy,
    listener,
    member,
    needs_haproxy,
    pool,
    rows_of,
    running,
    validation_error,
    view,
    write_files,
)
from harness.waiting import DEADLINE

pytestmark = [needs_haproxy, pytest.mark.client]
CERTIFICATE, AUTHORITY, REVOCATIONS = Role.CERTIFICATE, Role.AUTHORITY, Role.REVOCATIONS


def _openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=DEADLINE)


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """An authority, certificates of it with their keys, a list that revokes `gone`, and a self-signed certificate."""
    folder = tmp_path_factory.mktemp("pems")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    _openssl(folder, "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority")
    (folder / "index").write_text("")
    (folder / "number").write_text("01\n")
    settings = "[ca]\ndefault_ca=d\n[d]\ndatabase=index\ncrlnumber=number\ndefault_md=sha256\ndefault_crl_days=2\n"
    (folder / "ca.cnf").write_text(settings)
    for name in ("a.example", "b.example", "c.example", "client", "gone"):
        _openssl(folder, "req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/O=city/CN={name}")
        (folder / f"{name}.ext").write_text(f"subjectAltName=DNS:{name},IP:127.0.0.1\n")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext")
        _openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", *signed)
    by_authority = ("-config", "ca.cnf", "-cert", "ca.pem", "-keyfile", "ca.key")
    _openssl(folder, "ca", *by_authority, "-revoke", "gone.crt")
    _openssl(folder, "ca", *by_authority, "-gencrl", "-out", "crl.pem")
    found = {name: (folder / f"{name}.pem").read_text() for name in ("ca", "crl")}
    for path in folder.glob("*.crt"):
        found[path.stem] = path.read_text() + path.with_suffix(".key").read_text()
        (folder / f"{path.stem}.pem").write_text(found[path.stem])
    return {**found, "folder": str(folder)}


def secrets(pems: Mapping[str, str], *named: tuple[Role, str]) -> dict[str, str]:
    """Contents of the files of secrets. A reference is the name of its PEM."""
    return {Secret(role=role, reference=name).path: pems[name] for role, name in named}


def secure(tls: ListenerTls, *pools: Any, **known: Any) -> Listener:
    return listener("l", free_port(), *pools, protocol=ListenerProtocol.TERMINATED_HTTPS, tls=tls, **known)


def context(pems: Mapping[str, str], client: str = "") -> ssl.SSLContext:
    found = ssl.create_default_context(cadata=pems["ca"])
    if client:
        found.load_cert_chain(f"{pems['folder']}/{client}.pem")
    return found


def shown(pems: Mapping[str, str], port: int, name: str = "127.0.0.1", *offers: str, **known: Any) -> tuple[str, Any]:
    """Name in the certificate, and the negotiated protocol."""
    with_offers = context(pems, **known)
    with_offers.check_hostname = False
    with_offers.set_alpn_protocols(list(offers))
    with (
        socket.create_connection(("127.0.0.1", port), DEADLINE) as plain,
        with_offers.wrap_socket(plain, server_hostname=name) as client,
    ):
        client.settimeout(DEADLINE)
        subject = dict(pair for pairs in client.getpeercert()["subject"] for pair in pairs)  # type: ignore[index]
        return subject["commonName"], client.selected_alpn_protocol()


def fetch(pems: Mapping[str, str], port: int, client: str = "") -> tuple[str, Mapping[str, str]]:
    with closing(HTTPSConnection("127.0.0.1", port, timeout=DEADLINE, context=context(pems, client))) as connection:
        connection.request("GET", "/")
        answer = connection.getresponse()
        return answer.read().decode(), {name.title(): value for name, value in answer.getheaders()}


def tell(proxy: RunningProxy, pems: Mapping[str, str], told: tuple[Command, ...] | None) -> list[str]:
    assert told is not None
    return [
        proxy.send_command(each.text if each.secret is None else f"{each.text} <<\n{pems[each.secret.reference]}\n")
        for each in told
    ]


def test_listener_terminates_tls_and_adds_hsts_and_forwarded_headers(pems: Mapping[str, str]) -> None:
    headers = (("X-Forwarded-Proto", "true"), ("X-Forwarded-Port", "true"))
    http = Http(insert_headers=headers, hsts_max_age=300, hsts_include_subdomains=True, hsts_preload=True)
    with machine("m1") as found:
        its = pool("p", as_member(found))
        one = secure(ListenerTls(container_ref="a.example"), its, http=http)
        with running(rows_of(view([one], [its])), secrets(pems, (CERTIFICATE, "a.example"))):
            text, told = fetch(pems, one.proxy_port)
            assert ("m1", "max-age=300; includeSubDomains; preload") == (text, told["Strict-Transport-Security"])
        assert ("https", "80") == (
            found.received_headers[0]["X-Forwarded-Proto"],
            found.received_headers[0]["X-Forwarded-Port"],
        )


def test_sni_selects_the_certificate_and_alpn_the_common_protocol(pems: Mapping[str, str]) -> None:
    tls = ListenerTls(container_ref="a.example", sni_container_refs=("b.example",), alpn_protocols=("h2", "http/1.1"))
    one = secure(tls)
    files = secrets(pems, (CERTIFICATE, "a.example"), (CERTIFICATE, "b.example"))
    with running(rows_of(view([one], [])), files):
        assert ("a.example", None) == shown(pems, one.proxy_port)
        assert ("a.example", "h2") == shown(pems, one.proxy_port, "other.example", "h2")
        assert ("b.example", "http/1.1") == shown(pems, one.proxy_port, "b.example", "http/1.1")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed here")
@pytest.mark.parametrize(("option", "version"), [("--http2", "2"), ("--http1.1", "1.1")])
def test_tls_listener_serves_http_1_1_and_http_2(pems: Mapping[str, str], option: str, version: str) -> None:
    with machine("m1") as found:
        its = pool("p", as_member(found))
        one = secure(ListenerTls(container_ref="a.example"), its)
        with running(rows_of(view([one], [its])), secrets(pems, (CERTIFICATE, "a.example"))):
            url, ca = f"https://127.0.0.1:{one.proxy_port}/", f"{pems['folder']}/ca.pem"
            command = ["curl", "-s", option, "--cacert", ca, "-w", " %{http_version}", url]
            told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE)
            assert f"m1 {version}" == told.stdout


def test_only_configured_tls_versions_and_ciphers_are_accepted(pems: Mapping[str, str]) -> None:
    tls = ListenerTls(container_ref="a.example", versions=("TLSv1.2",), ciphers="ECDHE-ECDSA-AES256-GCM-SHA384")
    one = secure(tls)
    with running(rows_of(view([one], [])), secrets(pems, (CERTIFICATE, "a.example"))):
        with (
            socket.create_connection(("127.0.0.1", one.proxy_port), DEADLINE) as plain,
            context(pems).wrap_socket(plain, server_hostname="a.example") as client,
        ):
            assert ("TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384") == (client.version(), (client.cipher() or ("",))[0])
        newest = context(pems)
        newest.minimum_version = ssl.TLSVersion.TLSv1_3
        with (
            socket.create_connection(("127.0.0.1", one.proxy_port), DEADLINE) as plain,
            pytest.raises((ssl.SSLError, OSError)),
        ):
            newest.wrap_socket(plain, server_hostname="a.example")


def test_mandatory_client_authentication_rejects_missing_and_revoked_certs(pems: Mapping[str, str]) -> None:
    names = ("X-SSL-Client-CN", "X-SSL-Client-Has-Cert", "X-SSL-Client-Verify", "X-SSL-Issuer", "X-SSL-Client-SHA1")
    tls = ListenerTls(
        container_ref="a.example",
        client_authentication=ClientAuthentication.MANDATORY,
        client_ca_container_ref="ca",
        client_crl_container_ref="crl",
    )
    files = secrets(pems, (CERTIFICATE, "a.example"), (AUTHORITY, "ca"), (REVOCATIONS, "crl"))
    with machine("m1") as found:
        its = pool("p", as_member(found))
        one = secure(tls, its, http=Http(insert_headers=tuple((name, "true") for name in names)))
        with running(rows_of(view([one], [its])), files):
            assert "m1" == fetch(pems, one.proxy_port, "client")[0]
            for refused in ("", "gone"):
                with pytest.raises((ssl.SSLError, OSError)):
                    fetch(pems, one.proxy_port, refused)
        (seen,) = found.received_headers
        assert ("client", "1", "0") == tuple(seen[name.title()] for name in names[:3])
        assert "/CN=authority" == seen["X-Ssl-Issuer"]


@pytest.mark.parametrize(("authority", "status"), [("ca", 200), ("client", 503)])
def test_tls_members_need_a_certificate_of_the_pools_ca(pems: Mapping[str, str], authority: str, status: int) -> None:
    with machine("m1", tls=f"{pems['folder']}/c.example.pem") as found:
        its = pool("p", as_member(found), tls=PoolTls(enabled=True, ca_container_ref=authority))
        one = listener("l", free_port(), its, timeouts=Timeouts(member_connect=100))
        with running(rows_of(view([one], [its])), secrets(pems, (AUTHORITY, authority))):
            assert status == request(one.proxy_port)[0]


@pytest.mark.parametrize(
    ("asked", "status", "passed"), [("c.example", 200, "c.example"), ("b.example", 503, "b.example"), ("", 200, None)]
)
def test_member_tls_uses_and_checks_the_sni_of_the_client(
    pems: Mapping[str, str], asked: str, status: int, passed: str | None
) -> None:
    """With an authority the members' names are checked, except for clients without SNI."""
    files = secrets(pems, (CERTIFICATE, "a.example"), (AUTHORITY, "ca"))
    with machine("m1", tls=f"{pems['folder']}/c.example.pem") as found:
        its = pool("p", as_member(found), tls=PoolTls(enabled=True, ca_container_ref="ca"))
        one = replace(secure(ListenerTls(container_ref="a.example"), its), timeouts=Timeouts(member_connect=1000))
        with running(rows_of(view([one], [its])), files):
            assert status == status_of(pems, one.proxy_port, asked)
        assert {passed} == {*found.received_server_names}


def status_of(pems: Mapping[str, str], port: int, name: str) -> int:
    """Status of a request with this SNI, or without one if it is empty."""
    with_name = context(pems)
    with_name.check_hostname = False
    with (
        socket.create_connection(("127.0.0.1", port), DEADLINE) as plain,
        with_name.wrap_socket(plain, server_hostname=name or None) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        return int(client.recv(4096).split()[1])


def test_member_tls_has_no_sni_for_a_listener_without_tls(pems: Mapping[str, str]) -> None:
    """The client sent no SNI, and the Host header is not used for verification."""
    with machine("m1", tls=f"{pems['folder']}/c.example.pem") as found:
        its = pool("p", as_member(found), tls=PoolTls(enabled=True))
        one = listener("l", free_port(), its)
        with running(rows_of(view([one], [its]))):
            assert 200 == request(one.proxy_port, host="127.0.0.1")[0]
        assert [None] == found.received_server_names


def test_certificates_are_added_renewed_and_removed_at_run_time(pems: Mapping[str, str]) -> None:
    one = secure(ListenerTls(container_ref="a.example", sni_container_refs=("b.example",)))
    more = replace(one, tls=ListenerTls(container_ref="a.example", sni_container_refs=("b.example", "c.example")))
    files = secrets(pems, (CERTIFICATE, "a.example"), (CERTIFICATE, "b.example"))
    before, after = rows_of(view([one], [])), rows_of(view([more], []))
    with running(before, files) as proxy:
        assert "a.example" == shown(pems, one.proxy_port, "c.example")[0]
        tell(proxy, pems, commands(diff(after, before)))
        assert "c.example" == shown(pems, one.proxy_port, "c.example")[0]
        renewed = {**pems, "c.example": pems["client"]}
        tell(proxy, renewed, renewal_commands(Secret(role=CERTIFICATE, reference="c.example")))
        assert "client" in {shown(pems, one.proxy_port, name)[0] for name in ("client", "c.example")}
        tell(proxy, pems, commands(diff(before, after)))
        assert "a.example" == shown(pems, one.proxy_port, "c.example")[0]
        assert proxy.process.poll() is None


def test_parts_without_their_secrets_are_left_out_of_the_configuration(pems: Mapping[str, str], tmp_path: Path) -> None:
    its, other = (
        pool("p", member("m1", 9)),
        pool("q", member("m1", 9), tls=PoolTls(enabled=True, ca_container_ref="ca")),
    )
    listeners = [
        secure(ListenerTls(container_ref="a.example"), its),
        replace(secure(ListenerTls(container_ref="b.example"), its), id="l2"),
        replace(listener("l3", 2000, other), id="l3"),
    ]
    rows: Rows = rows_of(view(listeners, [its, other]))
    (tmp_path / "secrets").mkdir()
    for path, text in secrets(pems, (CERTIFICATE, "a.example")).items():
        (tmp_path / path).write_text(text)
    missing = [Secret(role=CERTIFICATE, reference="b.example"), Secret(role=AUTHORITY, reference="ca")]
    texts = write_files(rows, tmp_path, missing)
    assert "" == validation_error(tmp_path)
    assert ["haproxy.cfg", "lists/l"] == sorted(texts)
    assert 3 == sum(isinstance(row, Frontend) for row in rows.values())
    assert 1 == texts["haproxy.cfg"].count("frontend ")


@pytest.mark.parametrize(
    "tls",
    [
        None,
        ListenerTls(),
        ListenerTls(container_ref="c", client_authentication=ClientAuthentication.OPTIONAL),
        ListenerTls(container_ref="c", versions=("SSLv3",)),
        ListenerTls(container_ref="c", ciphers="NOTHING"),
        ListenerTls(container_ref="c", ciphers="TLS_FOO"),
        ListenerTls(container_ref="c", alpn_protocols=("spdy/3",)),
    ],
)
def test_unsupported_listener_tls_is_rejected(tls: ListenerTls | None) -> None:
    with pytest.raises(Unsupported):
        rows_of(view([replace(secure(ListenerTls()), tls=tls)], []))
