"""Atomic file writes."""

from pathlib import Path


def write_atomic(path: Path, octets: bytes) -> None:
    """Write a file atomically, with mode 0600. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    new.touch(mode=0o600)
    new.write_bytes(octets)
    new.replace(path)
