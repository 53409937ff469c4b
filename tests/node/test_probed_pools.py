"""Health monitors use the pool's protocol: every combination of pool and monitor with real members, and an amphora."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.model.documents.checks import Check, ProxyHeader, Verdict
from harness.probed import HELLO, HOSTS, HTTP, HTTPS, TCP, outcome, probe, probe_all, serving, target, type_of
from harness.probed_pools import (
    CELLS,
    Ports,
    ProbeCell,
    ProbeLocation,
    amphora_verdicts,
    cell_targets,
    haproxy_members,
    needs_nginx,
    nginx_members,
)
from harness.proxied import needs_haproxy
from harness.tls_files import certificate

pytestmark = pytest.mark.virtual_clock
AT_MEMBERS = tuple(cell for cell in CELLS if cell.place is ProbeLocation.MEMBER)


async def wrong(cells: Sequence[ProbeCell], ports: Ports) -> dict[str, tuple[Verdict, str]]:
    """Members with a wrong verdict, and the error."""
    found = await probe_all(cell_targets(cells, ports))
    return {str(cell): outcome(found[cell]) for cell in cells if found[cell].verdict is not cell.verdict}


@needs_haproxy
async def test_haproxy_members_get_the_expected_verdict_for_each_pool_protocol(tmp_path: Path):
    with haproxy_members(tmp_path, certificate(tmp_path, "member")) as ports:
        assert {} == await wrong(AT_MEMBERS, ports)


@needs_haproxy
@needs_nginx
@pytest.mark.extended
@pytest.mark.parametrize("members", [haproxy_members, nginx_members])
async def test_probe_verdicts_match_an_amphora_except_for_known_differences(members: Any, tmp_path: Path):
    """monitor_port and monitor_address are included. An amphora's verdicts differ only for some TLS-HELLO monitors."""
    with members(tmp_path, certificate(tmp_path, "member")) as ports:
        assert {} == await wrong(CELLS, ports)
        amphora = amphora_verdicts(CELLS, ports)
    differing = {str(cell) for cell in CELLS if amphora[cell] is not cell.verdict}
    assert {str(cell) for cell in CELLS if cell.differs_from_amphora} == differing


@pytest.mark.parametrize("version", HOSTS)
@pytest.mark.parametrize("check", [TCP, HTTP, HTTPS, HELLO], ids=type_of)
@pytest.mark.parametrize("header", ProxyHeader)
async def test_proxy_header_precedes_the_probe_request(header: ProxyHeader, check: Check, version: int):
    """Version 1 has the addresses of the probe's own connection, version 2 has none (LOCAL)."""
    read, peers = bytearray(), list[tuple[str, int]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(writer.get_extra_info("peername")[:2])
        read.extend(await reader.read(1000))

    async with serving(serve, version) as port:
        standing = await probe(target(replace(check, header=header), port, version))
    assert (standing.verdict is Verdict.UP) == (check is TCP)
    [(client, client_port)] = peers
    wanted = {
        ProxyHeader.V1: f"PROXY TCP{version} {client} {HOSTS[version]} {client_port} {port}\r\n".encode(),
        ProxyHeader.V2: b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0",
    }[header]
    question = {TCP: rb"", HTTP: rb"GET /up HTTP/1\.1\r\n.*\r\n\r\n"}.get(check, rb"\x16\x03.*")
    assert read.startswith(wanted)
    assert re.fullmatch(question, read[len(wanted) :], re.DOTALL)
