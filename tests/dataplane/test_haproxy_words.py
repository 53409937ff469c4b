"""Tenant input is quoted as one word in a configuration, or refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.dataplane.haproxy_words import Unwritable, name, read_line, render_line
from harness.values import FEW_EXAMPLES

NASTY = st.lists(
    st.sampled_from(
        ["'", '"', "\\", "\n", "\r", "\0", "\t", " ", "#", "$", "${HOME}", "%[src]", "%", "{", "}", "a", "é", "\ud800",
         "global\n", "\nfrontend x", "use_backend", "if", "-f", "--", "\\x00", "\\n", "'\\''", "\u2028", "\x85"]
    ),
    max_size=8,
).map("".join)  # fmt: skip
WORDS = st.lists(st.one_of(NASTY, st.text(max_size=12)), min_size=1, max_size=6).map(tuple)


@pytest.mark.thorough
@FEW_EXAMPLES
@given(WORDS)
def test_rendered_line_reads_back_as_the_same_words_or_is_rejected(words: tuple[str, ...]) -> None:
    try:
        text = render_line(words)
    except Unwritable:
        assert any(not word or set(word) & set("\0\n\r") or not _is_text(word) for word in words)
        return
    assert words == read_line(text)
    assert "\n" not in text
    assert words == read_line(f"    {text}  # a comment")


def _is_text(word: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in word)


@pytest.mark.parametrize("word", ["", "a\nb", "a\rb", "a\0b", "\n", "\ud800"])
def test_unquotable_word_is_rejected(word: str) -> None:
    with pytest.raises(Unwritable):
        render_line(("acl", word))


def test_line_is_limited_to_64_words() -> None:
    assert render_line(("a",) * 64)
    with pytest.raises(Unwritable, match="65 words"):
        render_line(("a",) * 65)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("/plain/path.html", "/plain/path.html"),
        ("two words", "'two words'"),
        ("it's", "'it'\\''s'"),
        ('"${HOME}"', "'\"${HOME}\"'"),
        ("#no comment", "'#no comment'"),
        ("back\\slash", "'back\\slash'"),
    ],
)
def test_special_characters_are_quoted(word: str, text: str) -> None:
    assert f"acl x {text}" == render_line(("acl", "x", word))


@pytest.mark.parametrize("text", ['a "b"', "a $HOME", "a 'b", "a \\q", "a \\"])
def test_reader_rejects_unsupported_quoting(text: str) -> None:
    with pytest.raises(Unwritable):
        read_line(text)


def test_reader_handles_comments_and_escapes() -> None:
    assert ("a", "b c", "#", "d") == read_line("a b\\ c \\# d # e f")
    assert () == read_line("   # nothing")
    assert ("a",) == read_line("a\0 b")


@pytest.mark.parametrize("text", ["", "a b", "a\n", "a'b", "x" * 129, "é", "a/b"])
def test_invalid_name_is_rejected(text: str) -> None:
    with pytest.raises(Unwritable):
        name(text)
