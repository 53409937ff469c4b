"""Files that are there whole or not at all, whenever the process ends."""

from pathlib import Path


def write_whole(path: Path, octets: bytes) -> None:
    """Whole or not at all, for our own eyes. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    new.touch(mode=0o600)
    new.write_bytes(octets)
    new.replace(path)
