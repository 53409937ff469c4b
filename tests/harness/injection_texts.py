"""Texts that a tenant might enter to inject more than one word into HAProxy's configuration."""

from hypothesis import strategies as st

TEXT_PIECES = [
    "'", '"', "\\", "\n", "\r\n", "\0", "\t", " ", "#", "$", "${HOME}", "%[src]", "%", "%%", "{", "}", "(", ")", "[",
    "]", ",", ";", ":", "|", "*", "+", "?", "^", "-", "--", "-f", "-i", "-m", "if", "or", "unless", "!", "/etc/passwd",
    "é", "\U0001f4a9", "\ud800", "\x7f", "\x1b", "\u2028", "global\n", "\nfrontend evil\n    bind :1\n", "lua-load /x",
    "a", "b", "0", "99999", "example.com", "https://x/", "ECDHE-RSA-AES128-GCM-SHA256", "TLS_AES_128_GCM_SHA256",
    "@SECLEVEL=0", "<< EOF", "res.cook", "x" * 300,
]  # fmt: skip
TYPED_TEXTS = st.one_of(
    st.lists(st.sampled_from(TEXT_PIECES), min_size=1, max_size=5).map("".join), st.text(max_size=10)
)
CIPHERS = st.one_of(
    TYPED_TEXTS,
    st.lists(st.sampled_from(["!", "-", "+", ":", "AES128-SHA", "ALL", "kRSA", "TLS_X", "@STRENGTH"])).map(":".join),
)
