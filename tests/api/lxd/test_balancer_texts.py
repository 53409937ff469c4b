"""Texts formatted as Go formats them: lists of ports, numbers, quotes, addresses."""

import pytest

from fairlead.api.lxd.go_texts import parse_int, parse_uint32, quote
from fairlead.api.lxd.listen_address import canonical, read_address
from fairlead.api.lxd.port_texts import BadRange, parse_ports, tidy
from fairlead.model.documents.port_ranges import PortRange, render


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("web", '"web"'),
        ("", '""'),
        ('a"b\\', r'"a\"b\\"'),
        ("a\tb\nc\x1b", r'"a\tb\nc\x1b"'),
        ("ü ☃", '"ü ☃"'),
        ("\u200b\U000e0001", r'"\u200b\U000e0001"'),
    ],
)
def test_a_text_is_quoted_as_go_does(text: str, quoted: str):
    assert quote(text) == quoted


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("x", 'strconv.ParseInt: parsing "x": invalid syntax'),
        ("", 'strconv.ParseInt: parsing "": invalid syntax'),
        ("1_0", 'strconv.ParseInt: parsing "1_0": invalid syntax'),
        ("٣", 'strconv.ParseInt: parsing "٣": invalid syntax'),
        ("9223372036854775808", 'strconv.ParseInt: parsing "9223372036854775808": value out of range'),
        ("9" * 5000, f'strconv.ParseInt: parsing "{"9" * 5000}": value out of range'),
    ],
)
def test_invalid_number_returns_the_error_text_of_go(text: str, error: str):
    with pytest.raises(ValueError, match="strconv") as caught:
        parse_int(text)
    assert str(caught.value) == error


def test_numbers_are_read_as_go_does():
    assert (parse_int("+080"), parse_int("-1"), parse_uint32("4294967295")) == (80, -1, 2**32 - 1)
    with pytest.raises(ValueError, match=r'^strconv\.ParseUint: parsing "4294967296": value out of range$'):
        parse_uint32("4294967296")
    with pytest.raises(ValueError, match=r'^strconv\.ParseUint: parsing "-1": invalid syntax$'):
        parse_uint32("-1")


def test_a_list_of_ports_keeps_its_order_and_its_ranges():
    ports = parse_ports(" 8080-8090 , 80,,81")
    assert ports == (PortRange(8080, 8090), PortRange(80, 80), PortRange(81, 81))
    assert render(ports) == tidy(" 8080-8090 , 80,,81") == "8080-8090,80,81"
    assert parse_ports(" , ") == ()


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("80,x", 1, 'strconv.ParseInt: parsing "x": invalid syntax'),
        ("1-2-3", 0, 'Invalid port range "1-2-3"'),
        ("80,90-90", 1, "End port should be higher than start port"),
        ("9-8", 0, "End port should be higher than start port"),
        ("-5", 0, 'strconv.ParseInt: parsing "": invalid syntax'),
        ("5-", 0, 'strconv.ParseInt: parsing "": invalid syntax'),
    ],
)
def test_invalid_port_range_is_reported_with_its_position(text: str, place: int, reason: str):
    with pytest.raises(BadRange) as caught:
        parse_ports(text)
    assert (caught.value.place, caught.value.reason) == (place, reason)


def test_ip_addresses_are_canonicalized():
    assert canonical("2001:DB8:0::1") == "2001:db8::1"
    assert str(read_address("::ffff:192.0.2.1")) == canonical("::ffff:192.0.2.1") == "192.0.2.1"
    assert canonical("no address") == "no address"
