"""Parsers of formatted strings: URLs, domain names, codes and headers, with the patterns for the OpenAPI document.

Patterns are in ECMA-262 syntax (JSON Schema, "Regular Expressions"), and the parsers accept exactly what these match.
"""

import re
from typing import TypeVar

from fairlead import schema
from fairlead.api.octavia import limits
from fairlead.changes.tls_checks import ALPN_PROTOCOLS, CLIENT_HEADERS, FORWARDED_HEADERS
from fairlead.model.documents.addresses import IPNetwork
from fairlead.schema import Parser, array_schema, object_schema, reads, text

_T = TypeVar("_T")
_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
DOMAIN_NAME = rf"^{_LABEL}(\.{_LABEL})*\.?$"
EXPECTED_CODES = r"^([0-9]{3}( *, *[0-9]{3})*|[0-9]{3}-[0-9]{3})$"
ONE_LINE = r"^[^\r\n\u0000]*$"
_PATH_CHARACTERS = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})"
_QUERY = rf"(\?({_PATH_CHARACTERS}|\?)*)?"
_PORT = "(:([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?"
_NAME = r"([A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+"
_USER = r"(([A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*@)?"
URL = (
    rf"^https?://{_USER}({_NAME}|\[[0-9A-Fa-f:.]+\]){_PORT}(/{_PATH_CHARACTERS}*)?{_QUERY}(#({_PATH_CHARACTERS}|\?)*)?$"
)
URL_PATH = rf"^/{_PATH_CHARACTERS}*{_QUERY}$"
"""Patterns of URL components by RFC 3986, section 3."""
HTTP_METHODS = ("CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE")
HTTP_VERSIONS = ("1.0", "1.1")
REDIRECT_CODES = (301, 302, 303, 307, 308)


def matching(pattern: str, reason: str, longest: int = limits.MAX_TEXT_LENGTH) -> Parser[str]:
    expression = re.compile(pattern, re.ASCII)
    plain = text(longest)

    @reads({"type": "string", "maxLength": longest, "pattern": pattern})
    def parse(value: object) -> str:
        found = plain(value)
        if not expression.fullmatch(found):
            raise ValueError(reason)
        return found

    return parse


domain_name = matching(
    DOMAIN_NAME,
    "Value should match the pattern"
    r" ^(?=.{1,253}\.?$)(?:(?!-|[^.]+_)[A-Za-z0-9-_]{1,63}(?<!-)(?:\.|$))+$",
)
expected_codes = matching(EXPECTED_CODES, r"Value should match the pattern ^(\d{3}(\s*,\s*\d{3})*)$|^(\d{3}-\d{3})$")
line = matching(ONE_LINE, r"Value should match the pattern ^[^\r\n]*$")
url = matching(URL, "Value must be a valid URL string")
url_path = matching(URL_PATH, "Value must be a valid URL Path string")


def _with_error_text(parser: Parser[_T], words: str) -> Parser[_T]:
    """Return the parser with Octavia's error text."""

    @reads(parser.schema)
    def parse(value: object) -> _T:
        try:
            return parser(value)
        except ValueError:
            raise ValueError(words) from None

    return parse


address = _with_error_text(schema.address, "Value should be IPv4 or IPv6 format")
written_address = _with_error_text(schema.written_address, "Value should be IPv4 or IPv6 format")


@reads(schema.cidr.schema)
def _network(value: object) -> IPNetwork:
    """Parse a CIDR; an address without a length means a host prefix, as in Octavia."""
    if isinstance(value, str) and "/" not in value:
        return schema.cidr(f"{value}/{schema.address(value).max_prefixlen}")
    return schema.cidr(value)


cidr = _with_error_text(_network, "Value should be IPv4 or IPv6 CIDR format")


def one_of(*words: str) -> Parser[str]:
    @reads({"type": "string", "enum": list(words)})
    def parse(value: object) -> str:
        if value not in words:
            raise ValueError(f"Value should be one of: {', '.join(words)}")
        return str(value)

    return parse


@reads({"type": "string", "enum": list(HTTP_VERSIONS)})
def http_version(value: object) -> str:
    """Parse an HTTP version, which clients send as a string or a number."""
    if isinstance(value, float):
        value = str(value)
    elif value == 1 and not isinstance(value, bool):
        value = "1.0"
    return one_of(*HTTP_VERSIONS)(value)


@reads({"type": "integer", "enum": list(REDIRECT_CODES)})
def redirect_code(value: object) -> int:
    found = int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() else value
    if isinstance(found, bool) or found not in REDIRECT_CODES:
        raise ValueError(f"Value should be one of: {', '.join(map(str, REDIRECT_CODES))}")
    return int(str(found))


def some_of(*words: str) -> Parser[tuple[str, ...]]:
    """Make a parser of a list of strings. The check of the whole listener or pool rejects unknown ones with its own
    text."""

    @reads(array_schema({"type": "string", "enum": list(words)}, len(words)))
    def parse(value: object) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise ValueError("Value should be a list.")
        if len(value) > limits.REFERENCES:
            raise ValueError(f"Value should have at most {limits.REFERENCES} items.")
        return tuple(dict.fromkeys(map(text(limits.MAX_WORD_LENGTH), value)))

    return parse


@reads(array_schema({"type": "string", "enum": list(ALPN_PROTOCOLS)}, len(ALPN_PROTOCOLS)))
def alpn_protocols(value: object) -> tuple[str, ...]:
    found = some_of(*ALPN_PROTOCOLS)(value)
    if not set(found) <= set(ALPN_PROTOCOLS):
        raise ValueError("Value should be a valid ALPN protocol ID")
    return found


@reads(object_schema({name: {"enum": ["true", "false"]} for name in (*FORWARDED_HEADERS, *CLIENT_HEADERS)}))
def headers(value: object) -> tuple[tuple[str, str], ...]:
    """Parse header insertion; sorted, so that equal values compare equal."""
    if not isinstance(value, dict) or not all(isinstance(word, str) for pair in value.items() for word in pair):
        raise ValueError("Value should be an object of texts.")
    if len(value) > limits.REFERENCES:
        raise ValueError(f"Value should have at most {limits.REFERENCES} attributes.")
    return tuple(sorted(value.items()))
