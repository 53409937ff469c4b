"""Finds which machine answers on an address, over TCP, UDP and ICMP, from one program of a workload.

Each line of standard input is a JSON list of addresses, which are requested concurrently. The output is a line of JSON
that maps each address and protocol to the name of the machine that answered, or to the kind of failure. A ping reply
has no name, so each machine has its own initial TTL (`mark_hops`).
"""

import asyncio
import errno
import json
import secrets
import socket
import struct
import sys
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from subprocess import PIPE, Popen

from fairlead.lab import Lab
from fairlead.lab.echo_server import MAX_DATAGRAM_BYTES

PORT = 8080
TOTAL_TIMEOUT = 2.5
RETRANSMIT_SECONDS = 0.8
"""seconds before a datagram is sent again: a switch may drop one while it learns"""
HOPS = range(90, 250, 10)
"""Initial TTLs of machines; fewer than ten routers are in between."""
RECVERR = {4: 11, 6: 25}
"""IP_RECVERR and IPV6_RECVERR of Linux's headers: the socket reports ICMP errors of routers."""
REPLY = {4: 0, 6: 129}
REQUEST = {4: 8, 6: 128}
"""ICMP types of echo (RFC 792 and RFC 4443)."""

Answers = Mapping[str, Mapping[str, str]]


class ReachabilityClient:
    """Client of the program through its pipes."""

    def __init__(self, process: "Popen[str]", hops: Mapping[int, str]) -> None:
        self._process = process
        self._hops = hops

    def send(self, addresses: Sequence[str]) -> None:
        assert self._process.stdin
        print(json.dumps(addresses), file=self._process.stdin, flush=True)

    def receive(self) -> Answers:
        assert self._process.stdout
        told = json.loads(self._process.stdout.readline())
        return {address: {how: self._name(word) for how, word in seen.items()} for address, seen in told.items()}

    def _name(self, word: str | int) -> str:
        if isinstance(word, str):
            return word
        return self._hops.get(-(-word // HOPS.step) * HOPS.step, f"somebody with {word} hops")


def mark_hops(lab: Lab, names: Sequence[str]) -> dict[int, str]:
    """Set a different initial TTL on each machine, and return the machines by TTL."""
    hops = dict(zip(HOPS, names, strict=False))
    assert len(hops) == len(names)
    for number, name in hops.items():
        settings = ("ipv4.ip_default_ttl", "ipv6.conf.all.hop_limit", "ipv6.conf.eth0.hop_limit")
        lab.exec(name, ["sysctl", "-qw", *(f"net.{setting}={number}" for setting in settings)])
    return hops


@contextmanager
def reachability_client(lab: Lab, place: str, hops: Mapping[int, str]) -> Iterator[ReachabilityClient]:
    command = lab.command(place, [sys.executable, __file__])
    with Popen(command.argv, env=command.full_environment(), stdin=PIPE, stdout=PIPE, text=True) as process:
        try:
            yield ReachabilityClient(process, hops)
        finally:
            process.kill()


# In the workload


async def main() -> None:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        addresses = json.loads(line)
        told = await asyncio.gather(*(query_address(address) for address in addresses))
        print(json.dumps(dict(zip(addresses, told, strict=True))), flush=True)


async def query_address(address: str) -> dict[str, str | int]:
    ways = {"tcp": query_stream, "udp": query_datagram, "icmp": query_echo}
    words = await asyncio.gather(*(print_results(way(address)) for way in ways.values()))
    return dict(zip(ways, words, strict=True))


async def print_results(asked: Awaitable[str | int]) -> str | int:
    try:
        async with asyncio.timeout(TOTAL_TIMEOUT):
            return await asked
    except TimeoutError:
        return "timeout"
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:
        unreachable = error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.ENOPROTOOPT)
        return "unreachable" if unreachable else str(error)


def opened(address: str, kind: socket.SocketKind, protocol: int = 0) -> socket.socket:
    version = 6 if ":" in address else 4
    client = socket.socket(socket.AF_INET6 if version == 6 else socket.AF_INET, kind, protocol)
    client.setblocking(False)
    if kind is not socket.SOCK_STREAM:
        client.setsockopt(socket.IPPROTO_IPV6 if version == 6 else socket.IPPROTO_IP, RECVERR[version], 1)
    return client


async def query_stream(address: str) -> str:
    loop = asyncio.get_running_loop()
    with opened(address, socket.SOCK_STREAM) as client:
        await loop.sock_connect(client, (address, PORT))
        await loop.sock_sendall(client, b"?\n")
        answer = await loop.sock_recv(client, MAX_DATAGRAM_BYTES)
        return answer.partition(b" ")[0].decode() or "reset"


async def query_datagram(address: str) -> str:
    loop = asyncio.get_running_loop()
    with opened(address, socket.SOCK_DGRAM) as client:
        await loop.sock_connect(client, (address, PORT))
        while True:
            await loop.sock_sendall(client, b"?")
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRANSMIT_SECONDS):
                    answer = await loop.sock_recv(client, MAX_DATAGRAM_BYTES)
                    return answer.partition(b" ")[0].decode()


async def query_echo(address: str) -> int:
    """TTL of the echo reply. The identifier is random, because a reused one would match an old tracked connection."""
    version = 6 if ":" in address else 4
    protocol = socket.IPPROTO_ICMPV6 if version == 6 else socket.IPPROTO_ICMP
    with opened(address, socket.SOCK_RAW, protocol) as client:
        if version == 6:
            client.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVHOPLIMIT, 1)
        client.connect((address, 0))
        request = echo(REQUEST[version], secrets.randbelow(1 << 16))
        while True:
            client.send(request)
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRANSMIT_SECONDS):
                    return await echo_answer(client, version, request[4:])


async def echo_answer(client: socket.socket, version: int, rest: bytes) -> int:
    while True:
        packet, ancillary, _, _ = await readable(client)
        if version == 4:
            begin = (packet[0] & 15) * 4
            if packet[begin] == REPLY[4] and packet[begin + 4 :] == rest:
                return packet[8]
        elif packet[0] == REPLY[6] and packet[4:] == rest:
            return next(struct.unpack("i", value)[0] for _, kind, value in ancillary if kind == socket.IPV6_HOPLIMIT)


async def readable(client: socket.socket) -> tuple[bytes, list[tuple[int, int, bytes]], int, object]:
    """Wait for a datagram. Raises OSError, also for an ICMP error of a router."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(client, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(client)
    return client.recvmsg(MAX_DATAGRAM_BYTES, socket.CMSG_SPACE(4))


def echo(kind: int, identity: int) -> bytes:
    """Echo request. The kernel writes the checksum of ICMPv6."""
    words = struct.pack("!BBHHH8s", kind, 0, 0, identity, 1, b"fairlead")
    total = sum(struct.unpack(f"!{len(words) // 2}H", words))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return words[:2] + struct.pack("!H", ~total & 0xFFFF) + words[4:]


if __name__ == "__main__":
    asyncio.run(main())
