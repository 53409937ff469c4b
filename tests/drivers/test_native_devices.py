"""Devices left by an agent that was killed, and devices removed by another process."""

import pytest

from fairlead.drivers.interface import DriverError
from fairlead.drivers.native import routing
from fairlead.drivers.native.driver import Native
from fairlead.drivers.native.nftables.ruleset import TUNNELS
from fairlead.drivers.native.routing import read_sysctl
from harness.native_host import kernel_state, put, route_row
from harness.net_namespace import NetNamespace

pytestmark = pytest.mark.slow

ACCEPT_LOCAL = "net/ipv4/conf/all/accept_local"
VXLAN = "type vxlan external gpe dstport"


class Killed(Exception):
    pass


@pytest.mark.parametrize("device", range(len(TUNNELS)))
@pytest.mark.parametrize("is_removed", [False, True])
async def test_device_of_a_killed_agent_is_recognised_as_managed(
    host: NetNamespace, device: int, is_removed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device left by a killed agent is recognised, although it has no ownership tag yet."""
    before = kernel_state(host)
    made: list[str] = []
    index_of = routing.socket.if_nametoindex

    def die(name: str) -> int:
        made.append(name)
        if len(made) > device:
            raise Killed
        return index_of(name)

    async def walk() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(routing.socket, "if_nametoindex", die)
            driver = Native()
            with pytest.raises(Killed):
                await driver.open()
            await driver.close()
        if is_removed:
            await Native().remove()
            return
        driver = Native()
        await put(driver, *route_row())
        assert await driver.read_all() == dict([route_row()])
        await driver.remove()

    await walk()
    assert kernel_state(host) == before


@pytest.mark.parametrize(
    "theirs", [f"{VXLAN} 4790 up", "type bridge", f"{VXLAN} 4999"], ids=["up", "another kind", "another port"]
)
async def test_unmanaged_device_is_left_unchanged(host: NetNamespace, theirs: str) -> None:
    host.ip(f"link add fl-table {theirs.removesuffix(' up')}")
    if theirs.endswith(" up"):
        host.ip("link set fl-table up")
    before = kernel_state(host)

    driver = Native()
    with pytest.raises(DriverError, match="does not belong to Fairlead"):
        await driver.open()
    await driver.remove()
    assert kernel_state(host) == before


@pytest.mark.parametrize("removed", [TUNNELS[:1], TUNNELS[1:], TUNNELS])
@pytest.mark.parametrize("was", [0, 1])
async def test_original_sysctl_is_restored_although_devices_were_removed(
    host: NetNamespace, removed: tuple[str, ...], was: int
) -> None:
    host.set_sysctl(ACCEPT_LOCAL, was)

    driver = Native()
    await put(driver, *route_row())
    if removed != TUNNELS:
        await driver.close()
        driver = Native()
    host.ip(*(f"link del {name}" for name in removed))
    await driver.read_all()
    assert read_sysctl(ACCEPT_LOCAL) == "1"
    await driver.close()
    await Native().remove()
    assert read_sysctl(ACCEPT_LOCAL) == str(was)
