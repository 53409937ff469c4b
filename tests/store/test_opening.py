"""A URL means one store, or says what would be right."""

import asyncio
from pathlib import Path

import pytest

from fairlead.store.opening import check_url, open_store
from fairlead.store.sqlite import SqliteStore


def test_a_url_opens_its_store(tmp_path: Path):
    async def run() -> None:
        for url in (f"sqlite://{tmp_path}/one.db", f"sqlite:///{tmp_path}/one.db"):  # as others write it, too
            store = await open_store(url)
            assert isinstance(store, SqliteStore)
            await store.close()

    asyncio.run(run())
    assert [path.name for path in tmp_path.glob("*.db")] == ["one.db"]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "begins with none of sqlite://"),
        ("/var/lib/fairlead.db", "begins with none of sqlite://"),
        ("mysql://localhost/x", "begins with none of sqlite://"),
        ("mysql://fairlead:secret@host/x", r"'mysql://\.\.\.@host/x' begins with none of sqlite://"),
        ("sqlite://fairlead.db", "sqlite:///var/lib/fairlead/fairlead.db"),
        ("sqlite:///var/lib/", "names no file"),
    ],
)
def test_another_url_says_what_would_be_right(url: str, words: str):
    with pytest.raises(ValueError, match=words) as refused:
        check_url(url)
    assert "secret" not in str(refused.value)
