"""`fairlead health`: one line per probed member, with prober and last result."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from fairlead.model.documents.addresses import parse_address, render_address, render_endpoint
from fairlead.runtime.terminal import table

HEAD = ("MEMBER", "ADDRESS", "OWNER", "MONITOR", "PROBER", "CHASSIS", "STATUS", "SINCE", "LATENCY", "LAST ERROR")


def render(rows: Sequence[Mapping[str, Any]], now: datetime) -> list[str]:
    """Render rows of the operator API as lines."""
    return table([HEAD, *(_line(row, now) for row in rows)])


def _line(row: Mapping[str, Any], now: datetime) -> tuple[str, ...]:
    address = parse_address(row["address"])
    place = render_endpoint(address, row["number"]) if row["number"] else render_address(address)
    latency = "" if row["latency"] is None else f"{row['latency'] * 1000:.1f} ms"
    since = "" if row["since"] is None else _ago(now - datetime.fromisoformat(row["since"]).astimezone(UTC))
    of, error = row["owner_name"] or row["owner"], row["error"] or ("" if row["status"] == "ONLINE" else row["why"])
    names = (row["member"] or row["id"], place, of, row["monitor"], _prober(row), row["chassis"], row["status"])
    return (*names, since, latency, error)


def _prober(row: Mapping[str, Any]) -> str:
    """Return the prober; `agent on NAME` if that is another chassis than the member's."""
    return row["by"] if row["prober"] in ("", row["chassis"]) else f"agent on {row['prober']}"


def _ago(passed: Any) -> str:
    seconds = max(0, int(passed.total_seconds()))
    for name, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {name}"
    return f"{seconds} s"
