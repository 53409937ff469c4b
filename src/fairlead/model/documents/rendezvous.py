"""Rendezvous hashing: every caller selects the same candidate, and adding or removing one moves only its own keys."""

from hashlib import blake2b


def score(name: str, key: str) -> bytes:
    """Return the score of a candidate for a key. Callers must agree on selecting the highest or the lowest."""
    return blake2b(f"{name}\0{key}".encode(), digest_size=8).digest()
