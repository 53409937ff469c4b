"""Port ranges, and member ports behind them."""

from fairlead.model.documents.port_ranges import (
    PortRange,
    contains_port,
    count_ports,
    expand,
    expand_targets,
    one_port,
    render,
)

PORTS = (PortRange(80, 80), PortRange(81, 81), PortRange(8080, 8082))


def test_port_ranges_keep_their_given_form():
    assert render(PORTS) == "80,81,8080-8082"
    assert (count_ports(PORTS), list(expand(PORTS))) == (5, [80, 81, 8080, 8081, 8082])
    assert [contains_port(PORTS, number) for number in (79, 80, 8082, 8083)] == [False, True, True, False]


def test_valid_port_ranges_are_ordered_and_within_1_to_65535():
    valid = {PortRange(1, 65535), PortRange(7, 7)}
    assert {each for each in (*valid, PortRange(0, 1), PortRange(9, 8), PortRange(1, 65536)) if each.is_valid} == valid


def test_listener_ports_map_to_one_port_equal_ports_or_a_range_at_a_member():
    numbers = list(expand(PORTS))
    assert expand_targets(9000, numbers) == (9000,) * 5
    assert expand_targets(None, numbers) == tuple(numbers)
    assert expand_targets((PortRange(90, 91), PortRange(1, 3)), numbers) == (90, 91, 1, 2, 3)
    assert one_port(80) is one_port(80)
