"""A machine with one server for each way in which a server can fail: a program of a workload.

    ill_servers.py ill|well CERTIFICATE

The servers are those of `harness.probed`, each on a port of its own from `FIRST`, in both families. With `well`, the
same ports have servers of the same kinds that work correctly.
"""

import asyncio
import contextlib
import ssl
import sys
from dataclasses import replace

from fairlead.model.documents.checks import HttpCheck
from fairlead.node.sctp import ABORT, INIT_ACK
from harness.probed import CASES, HELLO, HTTP_OK, ProbeCase, keep_silent
from harness.sctp_servers import sctp_servers

ADDRESSES = ("10.0.0.11", "fd00:a::11")
"""Addresses of the machine."""
FIRST_PORT = 9000
SCTP = {"ill": {7001: INIT_ACK, 7002: ABORT}, "well": dict.fromkeys((7001, 7002, 7004), INIT_ACK)}
"""Chunk that is answered at each port."""


def passing_case(case: ProbeCase) -> ProbeCase:
    """The same check with a server that passes it."""
    if isinstance(case.check, HttpCheck):
        answer = replace(case, serve=HTTP_OK, tls=case.check.is_tls, error="")
        return answer if 200 in case.check.codes else replace(case, error="")
    return replace(case, serve=keep_silent, tls=case.check == HELLO, error="")


async def main(words: list[str]) -> None:
    kind, certificate = words
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    async with contextlib.AsyncExitStack() as stack:
        for port, case in enumerate(CASES.values(), FIRST_PORT):
            each = case if kind == "ill" else passing_case(case)
            server = await asyncio.start_server(_bounded(each), None, port, ssl=context if each.tls else None)
            await stack.enter_async_context(server)
        for address in ADDRESSES:
            stack.enter_context(sctp_servers(address, SCTP[kind]))
        print("listening", flush=True)
        await asyncio.Event().wait()


def _bounded(case: ProbeCase):  # type: ignore[no-untyped-def]
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await case.serve(reader, writer)
        with contextlib.suppress(OSError):
            writer.close()

    return serve


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
