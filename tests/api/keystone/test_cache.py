"""The token cache: lifetime, size, and that it stores hashes instead of tokens."""

import pytest

from fairlead.api.keystone import cache
from fairlead.api.keystone.cache import REFUSED_SECONDS, TokenCache
from fairlead.changes.identity import Identity


def who(user: str) -> Identity:
    return Identity(user=user, project_id="shop", roles=frozenset({"member"}))


class CachedTokens:
    def __init__(self, fresh: float = 60, outage: float = 300) -> None:
        self.now = 1000.0
        self.memory = TokenCache(fresh, outage, lambda: self.now)

    def keep(self, token: str, user: str = "ann", seconds: float = 3600) -> None:
        self.memory.add(self.memory.digest(token), who(user), seconds)

    def state(self, token: str) -> str:
        digest = self.memory.digest(token)
        if self.memory.is_refused(digest):
            return "refused"
        known = self.memory.find(digest)
        if known is None:
            return "unknown"
        return "fresh" if self.memory.is_fresh(known) else "stale"


def test_a_token_is_fresh_then_stale_then_forgotten():
    kept = CachedTokens()
    kept.keep("a")
    found = {}
    for seconds in (0, 59, 61, 359, 361):
        kept.now = 1000.0 + seconds
        found[seconds] = kept.state("a")
    assert found == {0: "fresh", 59: "fresh", 61: "stale", 359: "stale", 361: "unknown"}
    assert len(kept.memory) == 0


def test_cached_token_ends_at_its_own_expiry():
    kept = CachedTokens()
    kept.keep("a", seconds=30)
    kept.keep("b", seconds=90)
    kept.now += 31
    assert (kept.state("a"), kept.state("b")) == ("unknown", "fresh")
    kept.now += 60
    assert kept.state("b") == "unknown"
    kept.keep("over", seconds=-1)
    assert kept.state("over") == "unknown"


def test_zero_cache_time_disables_the_token_cache():
    kept = CachedTokens(fresh=0)
    kept.keep("a")
    assert kept.state("a") == "unknown"


def test_refusal_replaces_a_cached_token_and_expires():
    kept = CachedTokens()
    kept.keep("a")
    kept.memory.refuse(kept.memory.digest("a"))
    assert kept.state("a") == "refused"
    kept.now += REFUSED_SECONDS
    assert kept.state("a") == "unknown"


def test_tokens_above_the_per_user_limit_evict_only_tokens_of_that_user(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache, "MAX_CACHED_PER_USER", 3)
    kept = CachedTokens()
    kept.keep("eve's")
    for number in range(5):
        kept.keep(f"a{number}", "ann")
    kept.keep("e", "eve")
    assert [number for number in range(5) if kept.state(f"a{number}") == "fresh"] == [2, 3, 4]
    assert kept.state("e") == "fresh"


def test_token_and_refusal_caches_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache, "MAX_CACHED", 4)
    monkeypatch.setattr(cache, "REFUSED", 2)
    kept = CachedTokens()
    for number in range(6):
        kept.keep(f"{number}", f"user {number}")
    assert [number for number in range(6) if kept.state(f"{number}") == "fresh"] == [2, 3, 4, 5]
    assert (len(kept.memory), len(kept.memory._of_user)) == (4, 4)
    for number in range(4):
        kept.memory.refuse(kept.memory.digest(f"bad {number}"))
    assert [number for number in range(4) if kept.state(f"bad {number}") == "refused"] == [2, 3]


def test_clearing_the_cache_removes_tokens_and_refusals():
    kept = CachedTokens()
    kept.keep("a")
    kept.memory.refuse(kept.memory.digest("b"))
    kept.memory.clear()
    assert (kept.state("a"), kept.state("b"), len(kept.memory)) == ("unknown", "unknown", 0)
    kept.keep("a")
    assert kept.state("a") == "fresh"


def test_cache_stores_process_specific_digests_instead_of_tokens():
    kept, other = CachedTokens(), CachedTokens()
    kept.keep("gAAAAAsecret")
    assert "gAAAAAsecret" not in repr(vars(kept.memory))
    assert kept.memory.digest("gAAAAAsecret") != other.memory.digest("gAAAAAsecret")
