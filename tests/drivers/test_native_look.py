"""State of a plain host, as seen by a read-only client."""

from fairlead.drivers.native.driver import Native
from harness.apart import Apart
from harness.native_host import EVERYTHING, ONE, put, service, way


def _whole(host: Apart) -> list[str]:
    shown = "rule", "-6 rule", "route show table all", "-6 route show table all", "addr", "link"
    return [host.run("nft", "-a", "list", "ruleset"), *(host.run("ip", "-j", *each.split()) for each in shown)]


async def test_a_look_changes_nothing_where_nothing_is_where_all_is_and_where_something_is_amiss(host: Apart) -> None:
    before = _whole(host)
    assert await Native().look() == {}
    assert _whole(host) == before
    driver = Native()
    await put(driver, *way())
    await put(driver, ONE, EVERYTHING)
    await driver.close()
    host.nft("delete element inet fairlead served4 { 203.0.113.5 . 0:6 . 80 }")
    host.nft("add element inet fairlead served4 { 203.0.113.5 . 0:6 . 81 : 0:63 }")
    host.ip("rule del pref 4 fwmark 0x1002/0x3fff")
    amiss = _whole(host)
    gone = service().key
    found = await Native().look()
    assert found == {ONE: {key: row for key, row in EVERYTHING.items() if key != gone}}
    assert _whole(host) == amiss
    again = Native()
    assert (await again.read_all())[ONE].keys() == found[ONE].keys()
    await again.close()
    assert _whole(host) != amiss, "whoever keeps the host mends it"
