"""Golden documents of each stored format, which never change.

`python -m harness.goldens`, run in `tests`, writes those of a new format, once.
"""

import hashlib
import json
from pathlib import Path

from fairlead.model.registry.kinds import KINDS
from fairlead.store import formats
from fairlead.store.codec import encode
from harness.shapes import sample_document, shape

FOLDER = Path(__file__).parent.parent / "store" / "documents"
SHAPES_FILE = "shapes.json"


def folder(number: int) -> Path:
    return FOLDER / f"format-{number}"


def shapes() -> str:
    """Shapes of all kinds of documents, derived from the current classes, as JSON."""
    found = {kind.value: shape(declared.document) for kind, declared in KINDS.items()}
    return json.dumps(found, indent=1) + "\n"


def digest(number: int) -> str:
    """SHA-256 over the names and contents of all files of a format."""
    found = hashlib.sha256()
    for path in sorted(folder(number).iterdir()):
        found.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def write() -> None:
    new = folder(formats.current())
    new.mkdir()
    for kind in KINDS:
        (new / f"{kind.value}.json").write_bytes(encode(sample_document(kind)))
    (new / SHAPES_FILE).write_text(shapes())


if __name__ == "__main__":
    write()
    print(f"{formats.current()}: {digest(formats.current())!r}")
