"""Notifications to a supervisor, and none without one."""

import asyncio
import os
import socket
from configparser import ConfigParser
from pathlib import Path

import pytest

from fairlead.runtime.systemd import run_watchdog, sd_notify, watchdog_seconds


@pytest.mark.parametrize("where", ["/notify", "@"])
def test_sd_notify_reaches_path_and_abstract_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hears:
        path = f"{tmp_path}/notify" if where == "/notify" else f"@{tmp_path}"
        hears.bind(path if where == "/notify" else f"\0{path[1:]}")
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        sd_notify("READY=1")
        assert hears.recv(100) == b"READY=1"


@pytest.mark.parametrize("where", ["", "relative", "/nobody/listens"])
def test_sd_notify_without_a_listener_does_nothing(monkeypatch: pytest.MonkeyPatch, where: str):
    monkeypatch.setenv("NOTIFY_SOCKET", where)
    sd_notify("READY=1")


def test_sd_notify_does_not_block_when_the_supervisor_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hears:
        hears.bind(f"{tmp_path}/notify")
        monkeypatch.setenv("NOTIFY_SOCKET", f"{tmp_path}/notify")
        for _ in range(2000):
            sd_notify("WATCHDOG=1")


@pytest.mark.parametrize(
    ("asked", "whose", "seconds"),
    [("", "", None), ("60000000", "", 60.0), ("60000000", "own", 60.0), ("60000000", "1", None), ("soon", "", None)],
)
def test_watchdog_interval_is_read_for_the_own_process_only(
    monkeypatch: pytest.MonkeyPatch, asked: str, whose: str, seconds: float | None
):
    monkeypatch.setenv("WATCHDOG_USEC", asked)
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    if whose:
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()) if whose == "own" else whose)
    assert watchdog_seconds() == seconds


@pytest.mark.virtual_clock
async def test_watchdog_is_notified_twice_per_interval(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Watchdog notifications come twice per interval: at 0, 30, ... and 270 seconds."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as hears:
        hears.bind(f"{tmp_path}/notify")
        monkeypatch.setenv("NOTIFY_SOCKET", f"{tmp_path}/notify")
        monkeypatch.setenv("WATCHDOG_USEC", "60000000")
        living = asyncio.create_task(run_watchdog())
        await asyncio.sleep(299)
        living.cancel()
        assert [hears.recv(100) for _ in range(10)] == [b"WATCHDOG=1"] * 10
        with pytest.raises(BlockingIOError):
            hears.recv(100)


@pytest.mark.parametrize("name", ["agent", "server"])
def test_systemd_units_restart_without_a_start_limit(name: str):
    """Units restart without limit, because no change reaches a host without its agent. By default systemd stops after
    five starts in ten seconds."""
    unit = ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(Path(__file__).parents[1] / "packaging" / "systemd" / f"fairlead-{name}.service")
    known = unit["Service"].get("Restart"), unit["Service"].get("RestartSec"), unit["Unit"].get("StartLimitIntervalSec")
    assert known == ("always", "1", "0")
