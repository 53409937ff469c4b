"""Real requests through a real HAProxy on loopback with a configuration rendered from rows."""

import re
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from fairlead.compilers.haproxy import frontends
from fairlead.dataplane.haproxy_commands import commands
from fairlead.dataplane.rows import Rows, diff
from fairlead.model.documents.addresses import parse_address, parse_network
from fairlead.model.documents.loadbalancer import (
    Algorithm,
    AppCookiePersistence,
    Http,
    HttpCookiePersistence,
    ListenerProtocol,
    PoolProtocol,
    RawMatch,
    SourceIpPersistence,
    Timeouts,
)
from fairlead.model.documents.port_ranges import one_port
from harness.machines import as_member, hex_echo_server, machine, machines, names, request, served
from harness.ports import free_port, is_listening
from harness.proxied import (
    PROGRAM,
    RunningProxy,
    listener,
    member,
    needs_haproxy,
    pool,
    rows_of,
    view,
    write_files,
)
from harness.waiting import DEADLINE, wait_equal, wait_until

pytestmark = [needs_haproxy, pytest.mark.client]
HEADERS = ("X-Forwarded-For", "X-Forwarded-Port", "X-Forwarded-Proto")


def change(proxy: RunningProxy, before: Rows, after: Rows) -> list[str]:
    """Change rows at run time, and return the responses of the process."""
    write_files(after, proxy.folder)
    told = commands(diff(after, before))
    assert told is not None
    return [proxy.send_command(each.text) for each in told]


def test_members_of_both_ip_versions_serve_clients_of_both_ip_versions() -> None:
    with machine("m1") as four, machine("m2", family=socket.AF_INET6) as six:
        its = pool("p", as_member(four), as_member(six, address="::1"))
        headers = Http(insert_headers=tuple((name, "true") for name in HEADERS))
        one = listener("l", free_port(), its, http=headers)
        with served(one, its):
            assert {"m1", "m2"} == set(names(one.proxy_port))
            assert {"m1", "m2"} == set(names(one.proxy_port, host="::1"))
        assert {"127.0.0.1", "::1"} == {seen["X-Forwarded-For"] for seen in four.received_headers}
        assert {("80", "http")} == {
            (seen["X-Forwarded-Port"], seen["X-Forwarded-Proto"]) for seen in six.received_headers
        }


def test_client_cannot_spoof_inserted_headers() -> None:
    with machine("m1") as one_machine:
        its = pool("p", as_member(one_machine))
        one = listener("l", free_port(), its, http=Http(insert_headers=tuple((name, "true") for name in HEADERS)))
        with served(one, its):
            request(one.proxy_port, X_Forwarded_Proto="https", X_Forwarded_Port="443", X_Forwarded_For="192.0.2.1")
        (seen,) = one_machine.received_headers
        assert ("http", "80") == (seen["X-Forwarded-Proto"], seen["X-Forwarded-Port"])
        assert "127.0.0.1" == seen["X-Forwarded-For"]  # the last of the two, which the proxy added


def test_disabled_down_draining_and_backup_members_get_no_requests() -> None:
    with machines("m1", "m2", "m3", "m4", "m5") as found:
        up, off, down, drained, backup = found
        its = pool(
            "p",
            as_member(up),
            as_member(off, admin_state_up=False),
            as_member(down),
            as_member(drained, weight=0),
            as_member(backup, backup=True),
        )
        one = listener("l", free_port(), its)
        with served(one, its, down=["m3"]) as (proxy, before):
            assert {"m1"} == set(names(one.proxy_port))
            after = rows_of(view([one], [its], down=["m1", "m3"]))
            assert [""] == change(proxy, before, after)
            assert {"m5"} == set(names(one.proxy_port))
            change(proxy, after, rows_of(view([one], [its], down=["m1", "m3", "m5"])))
            assert 503 == request(one.proxy_port)[0]


def test_requests_follow_member_weights() -> None:
    with machines("m1", "m2") as (first, second):
        its = pool("p", as_member(first, weight=30), as_member(second, weight=10))
        one = listener("l", free_port(), its)
        with served(one, its):
            assert 30 == names(one.proxy_port, 40).count("m1")


def test_disabled_and_empty_pools_answer_503() -> None:
    for its in (pool("p", admin_state_up=False), pool("p")):
        one = listener("l", free_port(), its)
        with served(one, its):
            assert 503 == request(one.proxy_port)[0]


def test_http_cookie_keeps_the_client_and_is_the_same_on_every_node() -> None:
    with machines("m1", "m2", "m3") as found:
        its = pool("p", *map(as_member, found), persistence=HttpCookiePersistence())
        one = listener("l", free_port(), its)
        other = replace(one, proxy_port=free_port())
        with served(one, its), served(other, its):
            _, name, answer = request(one.proxy_port)
            cookie = (answer.getheader("Set-Cookie") or "").partition(";")[0]
            assert cookie.startswith("SRV=")
            assert {name} == {*names(one.proxy_port, Cookie=cookie), *names(other.proxy_port, Cookie=cookie)}


def test_app_cookie_keeps_the_client_and_survives_a_reload() -> None:
    with machines("m1", "m2", cookie="APP=one") as found:
        its = pool("p", *map(as_member, found), persistence=AppCookiePersistence(cookie_name="APP"))
        one = listener("l", free_port(), its)
        with served(one, its) as (proxy, _):
            name = request(one.proxy_port)[1]
            assert {name} == set(names(one.proxy_port, Cookie="APP=one"))
            proxy.reload()
            assert {name} == set(names(one.proxy_port, Cookie="APP=one"))


@pytest.mark.parametrize("algorithm", [Algorithm.ROUND_ROBIN, Algorithm.LEAST_CONNECTIONS])
def test_source_ip_persistence_keeps_the_client_on_one_member(algorithm: Algorithm) -> None:
    with machines("m1", "m2", "m3") as found:
        its = pool("p", *map(as_member, found), persistence=SourceIpPersistence(), algorithm=algorithm)
        one = listener("l", free_port(), its)
        with served(one, its):
            assert 1 == len(set(names(one.proxy_port)))
            assert 1 == len(set(names(one.proxy_port, host="::1")))


def test_source_ip_algorithm_is_independent_of_node_and_member_order() -> None:
    with machines("m1", "m2", "m3") as found:
        its = pool("p", *map(as_member, found), algorithm=Algorithm.SOURCE_IP)
        turned = replace(its, members=tuple(reversed(its.members)))
        one = listener("l", free_port(), its)
        other = replace(one, proxy_port=free_port())
        with served(one, its), served(other, turned):
            assert 1 == len({*names(one.proxy_port), *names(other.proxy_port)})


def test_client_outside_allowed_cidrs_is_disconnected() -> None:
    with machine("m1") as found:
        its = pool("p", as_member(found))
        one = listener("l", free_port(), its, allowed_cidrs=(parse_network("::1/128"), parse_network("127.0.0.2/32")))
        with served(one, its):
            assert "m1" == request(one.proxy_port, host="::1")[1]
            with pytest.raises((OSError, HTTPException)):
                request(one.proxy_port)


@pytest.mark.parametrize("client_data", [0, 50_000])
@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"])
def test_slow_request_headers_time_out_with_408(
    first: bytes, client_data: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeout for headers applies after an earlier request too, and whatever the client timeout is."""
    monkeypatch.setattr(frontends, "HEADER_TIMEOUT_MS", 2_000)
    with machine("m1") as found:
        its = pool("p", as_member(found))
        one = listener("l", free_port(), its, timeouts=Timeouts(client_data=client_data))
        with served(one, its), socket.create_connection(("127.0.0.1", one.proxy_port), DEADLINE) as client:
            if first:
                client.sendall(first)
                _read_to(client, b"m1")
            client.sendall(b"GET / HTTP/1.1\r\nX-A: ")
            answer, sent = b"", 0
            while not answer:
                assert sent < 200
                client.sendall(b"a")
                answer, sent = _read(client, 0.1), sent + 1
            assert b" 408 " in answer.partition(b"\r\n")[0]


def test_preconnected_client_without_a_request_gets_no_408(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Browsers connect in advance, and would take a 408 as the response to the request that they send then."""
    monkeypatch.setattr(frontends, "HEADER_TIMEOUT_MS", 300)
    with machine("m1") as found:
        its = pool("p", as_member(found))
        one = listener("l", free_port(), its)
        with served(one, its), socket.create_connection(("127.0.0.1", one.proxy_port), DEADLINE) as client:
            client.settimeout(DEADLINE)
            assert client.recv(4096) == b""


@pytest.mark.parametrize("client_data", [0, 50_000])
def test_idle_client_after_a_request_outlives_the_header_timeout(
    client_data: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frontends, "HEADER_TIMEOUT_MS", 500)
    with machine("m1") as found:
        its = pool("p", as_member(found))
        one = listener("l", free_port(), its, timeouts=Timeouts(client_data=client_data))
        with served(one, its), socket.create_connection(("127.0.0.1", one.proxy_port), DEADLINE) as client:
            for _ in range(2):
                client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                _read_to(client, b"m1")
                assert _read(client, 1.5) == b""


def _read_to(client: socket.socket, end: bytes) -> None:
    """Read a response that ends with these bytes."""
    client.settimeout(DEADLINE)
    answer = b""
    while not answer.endswith(end):
        more = client.recv(4096)
        assert more, answer
        answer += more


def _read(client: socket.socket, seconds: float) -> bytes:
    """Read until nothing arrives for this time, or the connection is closed."""
    client.settimeout(seconds)
    answer = b""
    with suppress(TimeoutError):
        while more := client.recv(4096):
            answer += more
    return answer


# TCP, PROXY protocol


PROXIED = pytest.mark.parametrize("protocol", [PoolProtocol.PROXY, PoolProtocol.PROXYV2])
OF_BOTH = pytest.mark.parametrize(("host", "vip"), [("127.0.0.1", "127.0.0.10"), ("::1", "::10")])


@PROXIED
@OF_BOTH
def test_proxy_protocol_header_contains_client_vip_and_port(protocol: PoolProtocol, host: str, vip: str) -> None:
    """The first bytes have the client's addresses, whatever IP version the member has."""
    with hex_echo_server() as port:
        its = pool("p", member("m1", port), protocol=protocol)
        one = listener("l", free_port(), its, protocol=ListenerProtocol.HTTPS, ports=one_port(443))
        with served(one, its), socket.create_connection((host, one.proxy_port), DEADLINE) as client:
            client.sendall(b"hello")
            source = client.getsockname()[:2]
            header = header_of(protocol, source, (vip, 443))
            assert header == bytes.fromhex(client.recv(1000).decode())[: len(header)]


def header_of(protocol: PoolProtocol, source: tuple[str, int], destination: tuple[str, int]) -> bytes:
    """PROXY protocol header (haproxy, doc/proxy-protocol.txt, sections 2.1 and 2.2)."""
    ends = [(parse_address(host), port) for host, port in (source, destination)]
    (client, client_port), (vip, port) = ends
    if protocol is PoolProtocol.PROXY:
        return f"PROXY TCP{vip.version} {client} {vip} {client_port} {port}\r\n".encode()
    addresses = client.packed + vip.packed + struct.pack("!HH", client_port, port)
    family = {4: b"\x11", 6: b"\x21"}[vip.version]
    return b"\r\n\r\n\0\r\nQUIT\n\x21" + family + struct.pack("!H", len(addresses)) + addresses


@PROXIED
@OF_BOTH
@pytest.mark.parametrize("listens", [ListenerProtocol.HTTP, ListenerProtocol.TCP])
def test_member_with_accept_proxy_receives_client_vip_and_port(
    protocol: PoolProtocol, host: str, vip: str, listens: ListenerProtocol, tmp_path: Path
) -> None:
    """Each request on a connection gets the same addresses."""
    with destination_teller(tmp_path) as port:
        its = pool("p", member("m1", port), protocol=protocol)
        http = Http(insert_headers=(("X-Forwarded-Port", "true"),)) if listens is ListenerProtocol.HTTP else None
        one = listener("l", free_port(), its, protocol=listens, ports=one_port(8443), http=http)
        with served(one, its):
            client = HTTPConnection(host, one.proxy_port, timeout=DEADLINE)
            for _ in range(2):
                client.request("GET", "/")
                told = client.getresponse().read().decode()
                assert f"{host} {vip} 8443 {'8443' if http else ''}".strip() == told.strip()
            client.close()


@contextmanager
def destination_teller(folder: Path) -> Iterator[int]:
    """A real HAProxy that requires a PROXY header, and answers with its content."""
    port, path = free_port(), folder / "member.cfg"
    told = '"%[src] %[dst] %[dst_port] %[req.hdr(X-Forwarded-Port)]"'
    path.write_text(
        f"defaults\n    mode http\n    timeout client 1m\nfrontend member\n    bind 127.0.0.1:{port} accept-proxy\n"
        f"    http-request return status 200 content-type text/plain lf-string {told}\n"
    )
    with subprocess.Popen([PROGRAM, "-db", "-q", "-f", str(path)]) as process:
        try:
            wait_until(lambda: is_listening(port), "the member to listen")
            yield port
        finally:
            process.terminate()


def test_connections_beyond_the_limit_wait_until_another_one_closes() -> None:
    with hex_echo_server() as port:
        its = pool("p", member("m1", port), protocol=PoolProtocol.TCP, algorithm=Algorithm.LEAST_CONNECTIONS)
        one = listener("l", free_port(), its, protocol=ListenerProtocol.TCP, connection_limit=2)
        with served(one, its), ExitStack() as stack:
            clients = [
                stack.enter_context(socket.create_connection(("127.0.0.1", one.proxy_port), DEADLINE)) for _ in range(3)
            ]
            for client in clients:
                client.sendall(b"a")
            assert [b"61", b"61"] == [client.recv(10) for client in clients[:2]]
            clients[2].settimeout(0.2)
            with pytest.raises(TimeoutError):
                clients[2].recv(10)
            clients[0].close()
            clients[2].settimeout(DEADLINE)
            assert b"61" == clients[2].recv(10)


def test_connection_limit_of_zero_rejects_every_client() -> None:
    its = pool("p")
    one = listener("l", free_port(), its, connection_limit=0)
    with served(one, its), pytest.raises((OSError, HTTPException)):
        request(one.proxy_port)


RAW = RawMatch(location=2, value=b"SSH-\0'")


@pytest.mark.parametrize(
    ("said", "is_led"),
    [
        ([b"..SSH-\0' and more"], True),
        ([b"..SS", b"H-\0", b"'"], True),
        ([b"..SSH-\0`"], False),
        ([b"SSH-\0'.."], False),
        ([b"..SSH-"], False),
        ([b""], False),
    ],
)
def test_only_connections_with_the_raw_match_bytes_reach_a_member(said: list[bytes], is_led: bool) -> None:
    """A client that sends too little is rejected after the timeout."""
    with hex_echo_server() as port:
        its = pool("p", member("m1", port), protocol=PoolProtocol.TCP)
        waits = Timeouts(tcp_inspect=1000)
        one = listener("l", free_port(), its, protocol=ListenerProtocol.TCP, raw=RAW, timeouts=waits)
        with served(one, its), socket.create_connection(("127.0.0.1", one.proxy_port), DEADLINE) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for piece in said:
                client.sendall(piece)
            answer = _answer(client)
            assert (is_led, b"".join(said).hex().encode().startswith(answer)) == (bool(answer), True)


def _answer(client: socket.socket) -> bytes:
    """Answer, or an empty one if the connection is closed or reset."""
    with suppress(ConnectionResetError):
        return client.recv(1000)
    return b""


# At run time


DONE = re.compile(r"^New server registered|^Server deleted|changed from|^no need to change")


def test_members_are_added_changed_and_removed_without_a_reload() -> None:
    with machines("m1", "m2") as (first, second):
        persistence = HttpCookiePersistence()
        its = pool("p", as_member(first), persistence=persistence)
        one = listener("l", free_port(), its)
        steps = [
            (pool("p", as_member(first), as_member(second), persistence=persistence), {"m1", "m2"}),
            (pool("p", as_member(first), as_member(second, weight=0), persistence=persistence), {"m1"}),
            (pool("p", as_member(first, admin_state_up=False), as_member(second), persistence=persistence), {"m2"}),
            (pool("p", as_member(first), persistence=persistence), {"m1"}),
            (pool("p", member("m1", second.port), persistence=persistence), {"m2"}),
        ]
        with served(one, its) as (proxy, before):
            process, known = proxy.process.pid, before
            for changed, serving in steps:
                after = rows_of(view([one], [changed]))
                assert {text for text in change(proxy, known, after) if not DONE.search(text)} <= {""}
                known = after
                assert serving == set(names(one.proxy_port))
                answer = request(one.proxy_port)[2]
                assert "SRV=" in (answer.getheader("Set-Cookie") or "")
            assert (process, None) == (proxy.process.pid, proxy.process.poll())


def test_members_added_at_run_time_have_the_same_hash_after_a_reload() -> None:
    with machines("m1", "m2", "m3", "m4") as found:
        few = pool("p", *map(as_member, found[:2]), algorithm=Algorithm.SOURCE_IP)
        all_of_them = replace(few, members=tuple(map(as_member, found)))
        one = listener("l", free_port(), few)
        with served(one, few) as (proxy, before):
            change(proxy, before, rows_of(view([one], [all_of_them])))
            clients = [f"127.0.0.{number}" for number in range(2, 40)]
            chosen = [_from(client, one.proxy_port) for client in clients]
            assert len(set(chosen)) > 1
            proxy.reload()
            wait_equal(lambda: [_from(client, one.proxy_port) for client in clients], chosen)


def _from(client: str, port: int) -> str:
    connection = HTTPConnection("127.0.0.1", port, timeout=DEADLINE, source_address=(client, 0))
    connection.request("GET", "/")
    name = connection.getresponse().read().decode()
    connection.close()
    return name
