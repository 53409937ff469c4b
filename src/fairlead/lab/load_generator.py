"""Steady traffic as a program, run inside the namespace of a workload: new connections, and held ones.

The load is bounded in count and in time. It ends early when its standard input is closed, and prints its result as one
JSON object. Each connection has a source port of its own. An established connection that fails is reported with its
member and is not reopened.

A datagram without a reply is retransmitted after a second, from the same port, as TCP does with its first segment,
because a single lost packet is not a failed connection. Retransmissions are counted for both protocols.
"""

import argparse
import asyncio
import os
import socket
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic, time

import msgspec

from fairlead.lab.client import CHUNK, InvalidReply, Protocol, Traffic, classify, exchange_line, open_socket
from fairlead.lab.load import STARTED_LINE, FailedConnection, Load, LoadResult, LoadTarget

RETRANSMIT_SECONDS = 1.0


async def run(load: Load, ended: asyncio.Event) -> LoadResult:
    result, answers, held = LoadResult(), Counter[str](), Counter[str]()
    ports = iter(range(load.source_port_from, load.source_port_from + load.held + load.count))
    keepers = [
        asyncio.create_task(
            _hold_connection(load, load.targets[number % len(load.targets)], next(ports), result, ended)
        )
        for number in range(load.held)
    ]
    asking: set[asyncio.Task[None]] = set()
    begun, number = monotonic(), 0
    while number < load.count and not ended.is_set() and monotonic() < begun + load.seconds:
        asking.add(
            task := asyncio.create_task(
                _open_and_exchange(load, load.targets[number % len(load.targets)], next(ports), result, answers)
            )
        )
        task.add_done_callback(asking.discard)
        number += 1
        await _pause(ended, begun + number / load.rate)
    ended.set()
    await asyncio.gather(*asking)
    for member in await asyncio.gather(*keepers):
        held[member] += 1
    del held[""]
    result.answers, result.held = dict(answers), dict(held)
    return result


async def _pause(ended: asyncio.Event, until: float) -> None:
    try:
        async with asyncio.timeout(max(0.0, until - monotonic())):
            await ended.wait()
    except TimeoutError:
        pass


def _traffic_to(load: Load, target: LoadTarget) -> Traffic:
    return Traffic(to=target.to, port=target.port, protocol=target.protocol, timeout=load.timeout)


async def _open_and_exchange(
    load: Load, target: LoadTarget, port: int, result: LoadResult, answers: Counter[str]
) -> None:
    began, traffic = monotonic(), _traffic_to(load, target)
    try:
        async with asyncio.timeout(load.timeout):
            with open_socket(traffic, port) as client:
                await asyncio.get_running_loop().sock_connect(client, (target.to, target.port))
                answers[await _exchange(traffic, client, b"%d" % port, result)] += 1
    except (OSError, InvalidReply) as error:
        result.failed.append(FailedConnection(at=time(), kind=classify(error), target=target, source_port=port))
    else:
        took = monotonic() - began
        if target.protocol is Protocol.TCP and took > RETRANSMIT_SECONDS:
            result.retransmissions.append(time() - took)


async def _exchange(traffic: Traffic, client: socket.socket, payload: bytes, result: LoadResult) -> str:
    if traffic.protocol is Protocol.TCP:
        return await exchange_line(payload, client)
    loop = asyncio.get_running_loop()
    while True:
        await loop.sock_sendall(client, payload)
        with suppress(TimeoutError):
            async with asyncio.timeout(RETRANSMIT_SECONDS):
                while True:
                    name, _, echoed = (await loop.sock_recv(client, CHUNK)).partition(b" ")
                    if echoed == payload:  # otherwise a reply to an earlier, retransmitted datagram
                        return name.decode()
        result.retransmissions.append(time() - RETRANSMIT_SECONDS)


async def _hold_connection(load: Load, target: LoadTarget, port: int, result: LoadResult, ended: asyncio.Event) -> str:
    """Hold a connection until the end. Returns its member, or "" if it failed."""
    member, traffic, asked = "", _traffic_to(load, target), 0
    try:
        with open_socket(traffic, port) as client:
            async with asyncio.timeout(load.timeout):
                await asyncio.get_running_loop().sock_connect(client, (target.to, target.port))
            while not ended.is_set():
                async with asyncio.timeout(load.timeout):
                    name = await _exchange(traffic, client, b"%d-%d" % (port, asked), result)
                if member not in ("", name):
                    raise InvalidReply(f"moved-to-{name}")
                member, asked = name, asked + 1
                result.exchanges += 1
                await _pause(ended, monotonic() + load.period)
    except (OSError, InvalidReply) as error:
        kind = classify(error)
        result.failed.append(
            FailedConnection(at=time(), kind=kind, target=target, source_port=port, member=member or "nobody")
        )
        return ""
    return member


async def _main(load: Load) -> LoadResult:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def heard() -> None:
        if not os.read(sys.stdin.fileno(), 1):
            loop.remove_reader(sys.stdin.fileno())
            ended.set()

    loop.add_reader(sys.stdin.fileno(), heard)
    print(STARTED_LINE, flush=True)
    return await run(load, ended)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fairlead.lab.load_generator",
        description="Generate steady traffic until the end of standard input.",
    )
    parser.add_argument("load", help="JSON: targets, rate, count, held, seconds, period, timeout, source_port_from")
    load = msgspec.json.decode(parser.parse_args(arguments).load, type=Load)
    print(msgspec.json.encode(asyncio.run(_main(load))).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
