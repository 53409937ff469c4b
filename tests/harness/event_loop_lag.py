"""Reads the histogram of the event loop's lag in the text of `/metrics`."""

import re

_BUCKET = re.compile(r'^fairlead_event_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)


def longest_lag(metrics: str) -> float | None:
    """Upper bound of the longest lag in seconds: that of the first bucket with all samples. None without a sample."""
    counts = {float(bound): float(count) for bound, count in _BUCKET.findall(metrics)}
    total = max(counts.values(), default=0.0)
    return min(bound for bound, count in counts.items() if count == total) if total else None
