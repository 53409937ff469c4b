"""How the values of a fact become others by its news (`model/facts.py`)."""

from typing import Any

from immutables import Map


def change_map(known: Map[Any, Any], news: Any) -> Map[Any, Any]:
    """None says that an entry goes. It costs what is new."""
    changed = {key: value for key, value in news.items() if known.get(key) != value}
    return put_all(known, changed) if changed else known


def put_all(known: Map[Any, Any], news: Any) -> Map[Any, Any]:
    """Without a look at what was known: two chassis with a thousand ports take long to compare, and of health the
    observer tells only what differs."""
    with known.mutate() as mutation:
        for key, value in news.items():
            if value is None:
                mutation.pop(key, None)
            else:
                mutation[key] = value
    return mutation.finish()


def replace_all(known: object, news: object) -> object:
    return known if known == news else news
