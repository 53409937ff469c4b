"""Texts with a format of their own: valid ones, and almost valid ones."""

import pytest

from fairlead.api.octavia import texts
from fairlead.schema import Parser
from harness.backtracking import count_match_steps

MAX_STEPS = 50 * 255
"""Upper bound of match steps; the longest text has 255 characters."""

GOOD = [
    (texts.url, "http://a"),
    (texts.url, "https://user@a.b:65535/c%20d/e;f?g=h/?i#j?"),
    (texts.url, "https://[fd00::1]:80/"),
    (texts.url_path, "/"),
    (texts.url_path, "/a//b?c=d?e"),
    (texts.domain_name, "a"),
    (texts.domain_name, "www.Example-1.com."),
    (texts.expected_codes, "200"),
    (texts.expected_codes, "200, 201,202"),
    (texts.expected_codes, "200-299"),
    (texts.line, "a b\t"),
]
BAD = [
    *(
        (texts.url, url)
        for url in ("", "a", "http://", "ftp://a", "http://a b", "http://a:x", "http://a:65536", "http://[a")
    ),
    *((texts.url, url) for url in ("http://a/%2", "http://a\n", "http://a/\u00e4", "http:///b", " http://a")),
    *((texts.url_path, path) for path in ("", "a", "//a b", "/%zz", "/a#b", "/\n")),
    *((texts.domain_name, name) for name in ("", ".", "-a", "a-", "a..b", "a b", "a" * 64, "a\n")),
    *((texts.expected_codes, codes) for codes in ("", "20", "2000", "200,", "200-", "200-201,202", "200 201")),
    *((texts.line, line) for line in ("a\nb", "a\r", "\0")),
]


@pytest.mark.parametrize(("parser", "text"), GOOD)
def test_valid_text_is_accepted_unchanged(parser: Parser[str], text: str):
    assert parser(text) == text


@pytest.mark.parametrize(("parser", "text"), BAD)
def test_almost_valid_text_is_refused(parser: Parser[str], text: str):
    with pytest.raises(ValueError, match=r"Value (should|must)"):
        parser(text)


@pytest.mark.parametrize("text", ["http://" + "a" * 240 + " ", "/" + "?" * 250 + " ", ("a" * 60 + ".") * 4 + " "])
def test_patterns_match_long_texts_in_bounded_steps(text: str):
    """A pattern that matches a part in two ways doubles its steps with each further character."""
    for pattern in (texts.URL, texts.URL_PATH, texts.DOMAIN_NAME, texts.EXPECTED_CODES):
        assert count_match_steps(pattern, text, most=MAX_STEPS) < MAX_STEPS


def test_ambiguous_pattern_exceeds_the_step_bound():
    assert count_match_steps("(a+)+b", "a" * 30, most=MAX_STEPS) > MAX_STEPS


@pytest.mark.parametrize(("written", "version"), [(1.0, "1.0"), (1, "1.0"), ("1.1", "1.1"), (1.1, "1.1")])
def test_an_http_version_is_a_number_or_a_text(written: object, version: str):
    assert texts.http_version(written) == version
