"""Lists in every format, letter by letter as `incus` prints them."""

import pytest

from fairlead.network_cli.document import LoadBalancer, Port
from fairlead.network_cli.failure import Failure
from fairlead.network_cli.tables import render

LISTED = [
    LoadBalancer(listen_address="192.0.2.10", description='a "long", text'),
    LoadBalancer(listen_address="2001:db8::1", ports=(Port(protocol="tcp", listen_port="80"),) * 2),
    LoadBalancer(listen_address="192.0.2.9", description="<é>"),
]
TABLE = """\
+----------------+----------------+-------+
| LISTEN ADDRESS |  DESCRIPTION   | PORTS |
+----------------+----------------+-------+
| 192.0.2.9      | <é>            | 0     |
+----------------+----------------+-------+
| 192.0.2.10     | a "long", text | 0     |
+----------------+----------------+-------+
| 2001:db8::1    |                | 2     |
+----------------+----------------+-------+
"""
COMPACT = """\
  LISTEN ADDRESS   DESCRIPTION    PORTS\x20\x20
  192.0.2.9       <é>             0\x20\x20\x20\x20\x20\x20
  192.0.2.10      a "long", text  0\x20\x20\x20\x20\x20\x20
  2001:db8::1                     2\x20\x20\x20\x20\x20\x20
"""
CSV = '192.0.2.9,<é>,0\n192.0.2.10,"a ""long"", text",0\n2001:db8::1,,2\n'


@pytest.mark.parametrize(
    ("form", "drawn"),
    [
        ("table", TABLE),
        ("compact", COMPACT),
        ("csv", CSV),
        ("csv,header", "LISTEN ADDRESS,DESCRIPTION,PORTS\n" + CSV),
    ],
)
def test_formats_for_people(form: str, drawn: str):
    assert render(LISTED, form, "ldp") == drawn


def test_a_table_without_a_header_is_as_narrow_as_its_rows():
    assert render(LISTED[2:], "table,noheader", "lp") == "+-----------+---+\n| 192.0.2.9 | 0 |\n+-----------+---+\n"


def test_an_empty_list():
    empty = TABLE.splitlines(keepends=True)[:3]
    assert render([], "table", "ldp") == "".join(empty).replace("---+-------+", "+-------+").replace(
        "|  DESCRIPTION   |", "| DESCRIPTION |"
    )
    assert [render([], form, "ldp") for form in ("csv", "json", "yaml")] == ["", "[]\n", "[]\n"]


def test_json_and_yaml_are_whole_and_in_the_servers_order():
    assert render(LISTED[2:], "json", "l") == (
        '[{"description":"\\u003cé\\u003e","config":{},"backends":[],"ports":[],'
        '"listen_address":"192.0.2.9","location":""}]\n'
    )
    addresses = [line for line in render(LISTED, "yaml", "l").splitlines() if "listen_address" in line]
    assert addresses == [f"  listen_address: {address}" for address in ("192.0.2.10", "2001:db8::1", "192.0.2.9")]


def test_columns_in_any_order_and_what_is_empty_last():
    assert render(LISTED, "csv", "p,l") == "0,192.0.2.9\n0,192.0.2.10\n2,2001:db8::1\n"
    assert render(LISTED, "csv", "d") == '<é>\n"a ""long"", text"\n\n'
    assert render(LISTED[2:], "csv,header", "lL") == "LISTEN ADDRESS,LOCATION\n192.0.2.9,\n"


@pytest.mark.parametrize(
    ("form", "columns", "complaint"),
    [
        ("xx", "l", 'Invalid value "xx" for flag "--format"'),
        ("csv,foo", "l", 'Invalid modifier "foo" on flag "--format" ("csv,foo")'),
        ("csv", "lx", "Unknown column shorthand char 'x' in 'lx'"),
        ("csv", "l,", "Empty column entry (redundant, leading or trailing command) in 'l,'"),
    ],
)
def test_what_there_is_not_is_refused_in_incus_words(form: str, columns: str, complaint: str):
    with pytest.raises(Failure) as refused:
        render([], form, columns)
    assert str(refused.value) == complaint


def test_wide_letters_and_several_lines():
    drawn = render([LoadBalancer(listen_address="::1", description="広い\nx")], "table,noheader", "ld")
    assert drawn == "+-----+------+\n| ::1 | 広い |\n|     | x    |\n+-----+------+\n"
