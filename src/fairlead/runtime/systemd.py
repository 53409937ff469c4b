"""sd_notify(3): state notifications to systemd or another supervisor, as datagrams to the socket in NOTIFY_SOCKET.

Without the variable nothing is sent.
"""

import asyncio
import os
import socket

READY, STOPPING, ALIVE = "READY=1", "STOPPING=1", "WATCHDOG=1"
IDLE_INTERVAL = 3600.0
"""Seconds between checks while no watchdog is configured."""


def sd_notify(words: str) -> None:
    """Send a notification. Errors are ignored, because the supervisor may be gone or not reading."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if path[:1] not in ("/", "@"):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as speaking:
        try:
            speaking.sendto(words.encode(), f"\0{path[1:]}" if path[0] == "@" else path)
        except OSError:
            return


async def run_watchdog() -> None:
    """Notify the watchdog from the event loop, at the interval of WatchdogSec (systemd.service(5)), until cancelled."""
    while True:
        asked = watchdog_seconds()
        if asked is not None:
            sd_notify(ALIVE)
        await asyncio.sleep((asked or IDLE_INTERVAL) / 2)


def watchdog_seconds() -> float | None:
    """Return the watchdog timeout; None if this process has none."""
    text, whose = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", str(os.getpid()))
    if not text.isdecimal() or int(text) == 0 or whose != str(os.getpid()):
        return None
    return int(text) / 1e6
