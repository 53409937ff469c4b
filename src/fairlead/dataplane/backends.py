"""Text form of backend lists."""

from itertools import groupby


def render_backends(backends: tuple[str, ...]) -> str:
    """Render slots as text: `(a,b)x8` for a cycle, `a*3,b*2` for runs, `reject` for an empty list."""
    if not backends:
        return "reject"
    cycle = next(size for size in range(1, len(backends) + 1) if backends == backends[:size] * (len(backends) // size))
    runs = [(backend, len(list(run))) for backend, run in groupby(backends[:cycle])]
    text = ",".join(backend if count == 1 else f"{backend}*{count}" for backend, count in runs)
    return text if cycle == len(backends) else f"({text})x{len(backends) // cycle}"
