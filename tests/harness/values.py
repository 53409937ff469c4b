"""Strategies of property-based tests: JSON as clients send it, and values that are nearly valid."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

FEW_EXAMPLES = settings(
    derandomize=True, deadline=None, max_examples=settings.default.max_examples * 3 // 2, database=None
)
"""Settings with the same examples in every run, so a failure on CI is reproducible elsewhere."""
HOSTS = st.ip_addresses().filter(lambda address: getattr(address, "ipv4_mapped", None) is None)
ADDRESSES = HOSTS.map(str)
NETWORKS = st.builds(lambda address, bits: f"{address}/{bits}", ADDRESSES, st.integers(0, 140))
NEARLY_VALID = st.one_of(
    ADDRESSES,
    NETWORKS,
    st.uuids().map(str),
    st.uuids().map(lambda value: value.hex),
    st.integers(-(10**20), 10**20).map(str),
    st.from_regex(r"([0-9a-fA-F]{1,2}[:.-]){2,8}[0-9a-fA-F]{0,4}(%eth0|/[0-9]{1,3}|\n)?", fullmatch=True),
    st.sampled_from(
        ["", " ", "\0", "true", "False", "ON", "null", "None", "-1", "0", "80", "65536", "٣", "４", "1e3", "0x10",
         "+1", "1_0", "::ffff:10.0.0.1", "fe80::1%eth0", "0.0.0.0", "::", "10.0.0.0/255.255.255.0",
         "10.0.0.0/0.0.0.255", "010.0.0.1", "9" * 5000, "TCP", "tcp", "SOURCE_IP", "slaac", "fa:16:3e:00:00:01",
         "FA-16-3E-00-00-01", "ff:ff:ff:ff:ff:ff", "x" * 256, "\U0001f4a9" * 255, "\ufeff", "\u202e", "a\nb",
         "a\r\nb: c"]
    ),
)  # fmt: skip
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 70_000),
    st.sampled_from([2**31 - 1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1.0, 80.0, 4.0]),
    st.text(),
    NEARLY_VALID,
)
JSON: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=8,
)
