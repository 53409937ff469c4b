"""Who of several gets something, the same whoever asks (rendezvous hashing): when one of them goes, or comes, only what
that one had, or gets, moves."""

from hashlib import blake2b


def score(name: str, key: str) -> bytes:
    """The highest one wins, or the lowest, as long as all say the same."""
    return blake2b(f"{name}\0{key}".encode(), digest_size=8).digest()
