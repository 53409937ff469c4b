"""What a thousand probes a second cost the node, for each kind of monitor; and whether an overloaded node calls anybody
down who lives.

Members are servers on loopback in a process of their own. What is counted is the processor's time of the prober.

    python benchmarks/probes.py [--seconds 10] [--rate 1000] [--members 1000]
    python benchmarks/probes.py --overload 60 [--burners 8]
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import ssl
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.checks import Check, HttpCheck, PlainCheck, ProbeSchedule, Target, Verdict
from fairlead.model.documents.health import PROBE_TRANSPORTS, Endpoint
from fairlead.model.documents.loadbalancer import MonitorType
from fairlead.node.prober import Prober

WARM_UP = 6.0
"""Seconds until every member was probed once."""
HTTP = HttpCheck(is_tls=False, method="GET", path="/", version="1.1", host="a.example", codes=frozenset({200}))
CHECKS: Mapping[str, tuple[Check, str]] = {
    "TCP": (PlainCheck(type=MonitorType.TCP), "plain"),
    "HTTP": (HTTP, "plain"),
    "TLS-HELLO": (PlainCheck(type=MonitorType.TLS_HELLO), "tls"),
    "HTTPS": (replace(HTTP, is_tls=True), "tls"),
    "UDP-CONNECT": (PlainCheck(type=MonitorType.UDP_CONNECT), "plain"),
}


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
    writer.close()


def serve(ports: "multiprocessing.Queue[dict[str, int]]", certificate: str) -> None:
    async def main() -> None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
        plain = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=4096)
        secure = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=4096, ssl=tls)
        number = plain.sockets[0].getsockname()[1]
        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=("127.0.0.1", number))
        ports.put({"plain": number, "tls": secure.sockets[0].getsockname()[1]})
        await asyncio.Event().wait()

    asyncio.run(main())


def busy_loop() -> None:
    while True:
        pass


def targets(check: Check, number: int, members: int, rhythm: ProbeSchedule) -> list[Target]:
    kind = check.type if isinstance(check, PlainCheck) else MonitorType.HTTP
    over, address = PROBE_TRANSPORTS[kind], parse_address("127.0.0.1")
    endpoints = (Endpoint(f"vm{each}", address, number, over, "net1", "m") for each in range(members))
    return [Target(endpoint=each, check=check, schedule=rhythm) for each in endpoints]


class DownCounter:
    def __init__(self) -> None:
        self.downs = 0
        self.prober = Prober(device=lambda _: "lo", on_change=self.told)

    def told(self, changed: Collection[Endpoint]) -> None:
        self.downs += sum(self.prober.tracker.states[each].verdict is Verdict.DOWN for each in changed)


async def measure(asked: list[Target], seconds: float) -> tuple[float, float, DownCounter]:
    """Probes per second, share of a core, and final states of members."""
    counting = DownCounter()
    counting.prober.change((), asked)
    running = asyncio.create_task(counting.prober.run())
    await asyncio.sleep(WARM_UP)
    counting.prober.lost_time = 0.0
    probes, spent, began = counting.prober.probes, time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    took = time.monotonic() - began
    found = (counting.prober.probes - probes) / took, (time.process_time() - spent) / took
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    return *found, counting


@contextlib.contextmanager
def members() -> Iterator[dict[str, int]]:
    with tempfile.TemporaryDirectory() as folder:
        pem = Path(folder) / "server.pem"
        request = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        words = (*request, "-keyout", str(pem), "-out", str(pem) + ".crt", "-days", "2", "-subj", "/CN=a.example")
        subprocess.run(words, check=True, capture_output=True)
        pem.write_text(pem.read_text() + Path(str(pem) + ".crt").read_text())
        ports: multiprocessing.Queue[dict[str, int]] = multiprocessing.Queue()
        server = multiprocessing.Process(target=serve, args=(ports, str(pem)), daemon=True)
        server.start()
        try:
            yield ports.get(timeout=30)
        finally:
            server.terminate()
            server.join()


@contextlib.contextmanager
def burners(number: int) -> Iterator[None]:
    started = [multiprocessing.Process(target=busy_loop, daemon=True) for _ in range(number)]
    for each in started:
        each.start()
    try:
        yield
    finally:
        for each in started:
            each.terminate()
            each.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--overload", type=float, default=0.0)
    parser.add_argument("--burners", type=int, default=8)
    parser.add_argument("--down", type=int, default=3, help="max_retries_down, for --overload")
    parser.add_argument("--monitor", choices=CHECKS, default="HTTP", help="for --overload")
    given = parser.parse_args()
    with members() as ports:
        if given.overload:
            rhythm = ProbeSchedule(delay=1.0, timeout=1.0, max_retries=1, max_retries_down=given.down)
            asked = targets(*_of(given.monitor, ports), given.members, rhythm)
            with burners(given.burners):
                rate, share, counting = asyncio.run(measure(asked, given.overload))
            verdicts = Counter(each.verdict.value for each in counting.prober.tracker.states.values())
            print(
                f"overload, {given.monitor}, {given.burners} busy processes, {given.overload:.0f} s,"
                f" {given.members} members, max_retries_down {given.down}:"
                f" {rate:.0f} probes/s, {share:.2f} of a core, {counting.prober.lost_time:.1f} s lost,"
                f" {counting.downs} called down, {dict(verdicts)}"
            )
            return
        rhythm = ProbeSchedule(delay=given.members / given.rate, timeout=1.0, max_retries=1, max_retries_down=3)
        print("| monitor | probes a second | of a core | called down |\n|---|---|---|---|")
        for name in CHECKS:
            asked = targets(*_of(name, ports), given.members, rhythm)
            rate, share, counting = asyncio.run(measure(asked, given.seconds))
            print(f"| {name} | {rate:.0f} | {share:.2f} | {counting.downs} |", flush=True)


def _of(name: str, ports: Mapping[str, int]) -> tuple[Check, int]:
    check, server = CHECKS[name]
    return check, ports[server]


if __name__ == "__main__":
    sys.exit(main())
