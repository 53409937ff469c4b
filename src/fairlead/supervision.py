"""What systemd, or whoever else has started a process, hears of it: sd_notify(3), a datagram to the socket that the
environment names. Without one nothing is said."""

import asyncio
import os
import socket

READY, STOPPING, ALIVE = "READY=1", "STOPPING=1", "WATCHDOG=1"
IDLE = 3600.0
"""Seconds from look to look where nobody asks for a sign of life."""


def tell_supervisor(words: str) -> None:
    """A supervisor that is gone, or reads nothing, is its own affair."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if path[:1] not in ("/", "@"):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as speaking:
        try:
            speaking.sendto(words.encode(), f"\0{path[1:]}" if path[0] == "@" else path)
        except OSError:
            return


async def keep_alive() -> None:
    """Say that the event loop turns, as often as it is asked for (WatchdogSec of systemd.service(5)): until it is
    cancelled."""
    while True:
        asked = watchdog_seconds()
        if asked is not None:
            tell_supervisor(ALIVE)
        await asyncio.sleep((asked or IDLE) / 2)


def watchdog_seconds() -> float | None:
    """None where nobody waits for a sign of life of this process."""
    text, whose = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", str(os.getpid()))
    if not text.isdecimal() or int(text) == 0 or whose != str(os.getpid()):
        return None
    return int(text) / 1e6
