"""Certificates have arbitrary text: in headers about clients for members, and in the certificates of listeners."""

import socket
import ssl
import tempfile
from collections.abc import Mapping
from contextlib import closing
from http.client import HTTPSConnection
from pathlib import Path

import pytest

from fairlead.drivers.haproxy.secrets import secrets_of
from fairlead.keystores.material import normalize
from fairlead.model.documents.loadbalancer import ClientAuthentication, Http, ListenerProtocol, ListenerTls
from fairlead.model.queries.secrets import Role, Secret
from harness.certificates import Authority, SignedCertificate
from harness.machines import as_member, machine
from harness.ports import free_port
from harness.proxied import listener, needs_haproxy, pool, rows_of, running, view
from harness.waiting import DEADLINE

pytestmark = [needs_haproxy, pytest.mark.client]

CA = Authority()
SUBJECTS = [
    "x\r\nX-Admin: yes",
    "x\nX-Admin: yes\n\n",
    "x\r\n\r\nGET /admin HTTP/1.1\r\nHost: a\r\n\r\n",
    "'\"\\ %[src] ${HOME} %{+Q}o",
    "é\u2028\x7f\x1b",
    "a/CN=root,O=city",
]
TOLD = {"X-Ssl-Client-Cn", "X-Ssl-Client-Dn", "X-Ssl-Client-Verify"}
HEADERS = ("X-SSL-Client-CN", "X-SSL-Client-DN", "X-SSL-Client-Verify")


def fetch(port: int, client: SignedCertificate) -> str:
    context = ssl.create_default_context(cadata=CA.pem)
    context.check_hostname = False
    with tempfile.TemporaryDirectory() as folder:
        (path := Path(folder, "it.pem")).write_text(client.certificate_and_key)
        context.load_cert_chain(path)
    with closing(HTTPSConnection("127.0.0.1", port, timeout=DEADLINE, context=context)) as connection:
        connection.request("GET", "/")
        return connection.getresponse().read().decode()


def test_certificate_subject_of_a_client_injects_no_header_or_request() -> None:
    """It adds no other header, and no other request."""
    tls = ListenerTls(
        container_ref="shown", client_authentication=ClientAuthentication.MANDATORY, client_ca_container_ref="ca"
    )
    http = Http(insert_headers=tuple((name, "true") for name in HEADERS))
    with machine("m1") as found:
        its = pool("p", as_member(found))
        secure = {"protocol": ListenerProtocol.TERMINATED_HTTPS, "tls": tls, "http": http}
        one = listener("l", free_port(), its, **secure)
        rows = rows_of(view([one], [its]))
        pems: Mapping[Role, str] = {
            Role.CERTIFICATE: CA.issue("web.example").certificate_and_key,
            Role.AUTHORITY: CA.pem,
        }
        with running(rows, {secret.path: pems[secret.role] for secret in secrets_of(rows.values())}):
            assert fetch(one.proxy_port, CA.issue("friend")) == "m1"
            plain = set(found.received_headers[0])
            for subject in SUBJECTS:
                assert fetch(one.proxy_port, CA.issue("friend", subject=subject)) == "m1"
        assert plain >= TOLD
        assert [set(seen) for seen in found.received_headers] == [plain] * (len(SUBJECTS) + 1)


def test_certificates_with_arbitrary_subjects_are_served() -> None:
    """Certificates are loaded as from a key store; a client that requests an unusual name gets the default one."""
    several = [CA.issue(name, subject=subject) for name, subject in zip("abcdef", SUBJECTS, strict=True)]
    odd = [CA.issue(name) for name in ("*", "!a", "*.b.example", "x y", "a'b")]
    found = {f"r{place}": each for place, each in enumerate([CA.issue("web.example"), *several, *odd])}
    texts = {name: normalize(Role.CERTIFICATE, each.certificate_and_key.encode()) for name, each in found.items()}
    tls = ListenerTls(container_ref="r0", sni_container_refs=tuple(found)[1:])
    one = listener("l", free_port(), protocol=ListenerProtocol.TERMINATED_HTTPS, tls=tls)
    files = {Secret(role=Role.CERTIFICATE, reference=name).path: text for name, text in texts.items()}
    with running(rows_of(view([one], [])), files) as proxy:
        for asked in ("nobody.example", "x\ty", "%[src]", ".".join(["a" * 60] * 4), "lua-load"):
            assert shown(one.proxy_port, asked)
        assert proxy.process.poll() is None


def shown(port: int, name: str) -> bytes | None:
    context = ssl.create_default_context(cadata=CA.pem)
    context.check_hostname = False
    with (
        socket.create_connection(("127.0.0.1", port), DEADLINE) as plain,
        context.wrap_socket(plain, server_hostname=name) as client,
    ):
        return client.getpeercert(binary_form=True)
