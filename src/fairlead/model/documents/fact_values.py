"""Updates of a fact's values by news (`model/registry/facts.py`)."""

from typing import Any

from immutables import Map


def change_map(known: Map[Any, Any], news: Any) -> Map[Any, Any]:
    """Apply entries that differ; None removes an entry. The cost is that of the news."""
    changed = {key: value for key, value in news.items() if known.get(key) != value}
    return put_all(known, changed) if changed else known


def put_all(known: Map[Any, Any], news: Any) -> Map[Any, Any]:
    """Apply entries without comparison. Comparing two chassis with a thousand ports is slow,
    and the observer of health sends only differences."""
    with known.mutate() as mutation:
        for key, value in news.items():
            if value is None:
                mutation.pop(key, None)
            else:
                mutation[key] = value
    return mutation.finish()


def replace_all(known: object, news: object) -> object:
    return known if known == news else news
