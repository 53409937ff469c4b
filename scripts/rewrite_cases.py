"""Rewrite the expected rows of every case file from the compilers. Read the diff before you believe it."""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from harness.story import read_story, write_story  # noqa: E402 - the harness is not installed

if __name__ == "__main__":
    for path in sorted((ROOT / "tests" / "cases").glob("*.txt")):
        write_story(read_story(path))
        print(path.relative_to(ROOT))
