"""Count private language in docstrings, comments and documents, with a ceiling for each folder that may only fall.

    python scripts/prose.py            check the ceilings below; exit code 1 if a folder is above its ceiling
    python scripts/prose.py --list     print the count of each folder, in markers per 1,000 words

Markers are words that stand for a missing noun ("who", "whose", "somebody", "what is"), verbs that programs cannot do
(say, tell, hear, believe, ask) and adverbs without a meaning of their own ("anew", "besides"). Names of code in
backticks are not prose.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
CEILINGS: Mapping[str, float] = {
    "src/fairlead/api": 1.0,
    "src/fairlead/changes": 0.5,
    "src/fairlead/compilers": 1.0,
    "src/fairlead/config": 0.5,
    "src/fairlead/dataplane": 2.0,
    "src/fairlead/drivers": 1.0,
    "src/fairlead/keystores": 1.0,
    "src/fairlead/model": 1.5,
    "src/fairlead/node": 1.5,
    "src/fairlead/octavia_plugin": 0.5,
    "src/fairlead/reconciler": 0.5,
    "src/fairlead/server": 0.5,
    "src/fairlead/store": 0.5,
    "src": 1.5,
    "tests": 5.5,
    "ARCHITECTURE.md": 0.5,
    "CONTRIBUTING.md": 0.5,
    "README.md": 1.5,
}
"""Folder or file -> markers per 1,000 words: the present rate, rounded up to the next half."""
_MARKERS = re.compile(
    r"\b(?:who|whose|whom|whoever|nobody|somebody|everybody|anew|by now|all the same|at once|besides|meanwhile"
    r"|as far as|for good|lately|says?|said|tells?|told|asks?|asked|hears?|heard|believes?|believed"
    r"|(?:of|by|to|at|from|in|behind|for|with) which"
    r"|what (?:is|are|was|were|has|have|had|comes?|goes?|cannot|can|it|they|others|somebody|nobody|differs))\b",
    re.IGNORECASE,
)
_CODE = re.compile(r"`[^`\n]*`")
_COMMENT = re.compile(r"^(?:.*\S  |\s*)# (.*)$", re.MULTILINE)
"""Found without a tokenizer, which takes three times as long."""
_WORD = re.compile(r"[A-Za-z']+")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    counts = {path: count(path) for path in files()}
    rates = {place: rate(place, counts) for place in CEILINGS}
    if options.list:
        print("\n".join(f"{rates[place]:6.1f}  {ceiling:4.1f}  {place}" for place, ceiling in CEILINGS.items()))
    above = [place for place, ceiling in CEILINGS.items() if rates[place] > ceiling]
    for place in above:
        worst = max((path for path in counts if is_below(path, place)), key=lambda path: counts[path][0])
        print(
            f"{place}: {rates[place]:.1f} markers of private language per 1,000 words, more than {CEILINGS[place]};"
            f" most in {worst}",
            file=sys.stderr,
        )
    return int(bool(above))


def files() -> Iterator[str]:
    """All files below the places of CEILINGS, relative to the root."""
    for place in ("src", "tests"):
        yield from (str(path.relative_to(ROOT)) for path in (ROOT / place).rglob("*.py"))
    yield from (place for place in CEILINGS if (ROOT / place).is_file())


def is_below(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")


def rate(place: str, counts: Mapping[str, tuple[int, int]]) -> float:
    """Markers per 1,000 words."""
    found = [each for path, each in counts.items() if is_below(path, place)]
    return 1000 * sum(markers for markers, _ in found) / max(sum(words for _, words in found), 1)


def count(path: str) -> tuple[int, int]:
    """Markers and words of a file's prose."""
    text = _CODE.sub("", prose(ROOT / path))
    return len(_MARKERS.findall(text)), len(_WORD.findall(text))


def prose(path: Path) -> str:
    """Docstrings, attribute docstrings and comments of a Python file; the whole of another file."""
    text = path.read_text()
    if path.suffix != ".py":
        return text
    parts = [
        node.value.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    parts += _COMMENT.findall(text)
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
