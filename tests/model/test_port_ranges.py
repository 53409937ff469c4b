"""Port ranges, and member ports behind them."""

from fairlead.model.documents.port_ranges import PortRange, count, expand, holds, one_port, render, targets

PORTS = (PortRange(80, 80), PortRange(81, 81), PortRange(8080, 8082))


def test_ranges_stay_as_they_were_given():
    assert render(PORTS) == "80,81,8080-8082"
    assert (count(PORTS), list(expand(PORTS))) == (5, [80, 81, 8080, 8081, 8082])
    assert [holds(PORTS, number) for number in (79, 80, 8082, 8083)] == [False, True, True, False]


def test_ports_are_one_to_65535_and_a_range_does_not_end_before_it_begins():
    valid = {PortRange(1, 65535), PortRange(7, 7)}
    assert {each for each in (*valid, PortRange(0, 1), PortRange(9, 8), PortRange(1, 65536)) if each.is_valid} == valid


def test_a_member_takes_all_at_one_port_or_each_at_its_place():
    numbers = list(expand(PORTS))
    assert targets(9000, numbers) == (9000,) * 5
    assert targets(None, numbers) == tuple(numbers)
    assert targets((PortRange(90, 91), PortRange(1, 3)), numbers) == (90, 91, 1, 2, 3)
    assert one_port(80) is one_port(80)
