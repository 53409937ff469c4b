"""State of a plain host, as seen by a read-only client."""

from fairlead.drivers.native.driver import Native
from harness.native_host import ALL_ROWS, FIRST_OWNER, put, route_row, service
from harness.net_namespace import NetNamespace


def _whole(host: NetNamespace) -> list[str]:
    shown = "rule", "-6 rule", "route show table all", "-6 route show table all", "addr", "link"
    return [host.run("nft", "-a", "list", "ruleset"), *(host.run("ip", "-j", *each.split()) for each in shown)]


async def test_read_only_client_never_changes_the_host(
    host: NetNamespace,
) -> None:
    before = _whole(host)
    assert await Native().read_only() == {}
    assert _whole(host) == before
    driver = Native()
    await put(driver, *route_row())
    await put(driver, FIRST_OWNER, ALL_ROWS)
    await driver.close()
    host.nft("delete element inet fairlead served4 { 203.0.113.5 . 0:6 . 80 }")
    host.nft("add element inet fairlead served4 { 203.0.113.5 . 0:6 . 81 : 0:63 }")
    host.ip("rule del pref 4 fwmark 0x1002/0x3fff")
    amiss = _whole(host)
    gone = service().key
    found = await Native().read_only()
    assert found == {FIRST_OWNER: {key: row for key, row in ALL_ROWS.items() if key != gone}}
    assert _whole(host) == amiss
    again = Native()
    assert (await again.read_all())[FIRST_OWNER].keys() == found[FIRST_OWNER].keys()
    await again.close()
    assert _whole(host) != amiss, "whoever keeps the host mends it"
