"""Addresses in the output of programs."""

import pytest

from harness.addresses import holds_address


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("203.0.113.3", "local 203.0.113.3 dev lo"),
        ("203.0.113.3", "203.0.113.3:80"),
        ("203.0.113.3", "203.0.113.3/32 is one. So is 203.0.113.30"),
        ("203.0.113.3", "nothing answers at 203.0.113.3."),
        ("2001:db8::3", "[2001:db8::3]:80"),
        ("2001:db8::3", "2001:db8::3/128"),
        ("2001:db8::3", "nothing answers at 2001:db8::3: refused"),
    ],
)
def test_address_is_found_as_a_whole_word_in_output(address: str, text: str) -> None:
    assert holds_address(text, address)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("203.0.113.3", "203.0.113.30 . 0:6"),
        ("203.0.113.3", "1203.0.113.3"),
        ("3.0.113.3", "203.0.113.3"),
        ("203.0.113.3", "203.0.113.3.7"),
        ("203.0.113.3", "203a0b113c3"),
        ("2001:db8::3", "2001:db8::31"),
        ("2001:db8::3", "2001:db8::3:1"),
        ("db8::3", "2001:db8::3"),
    ],
)
def test_substring_of_another_address_does_not_match(address: str, text: str) -> None:
    assert not holds_address(text, address)
