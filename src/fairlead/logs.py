"""What the log looks like: a line for people, or a JSON object for programs that collect lines.

A record that is about something countable carries it as `extra={"fields": {...}}`: the same facts as its sentence.
"""

import logging
import sys
from datetime import UTC, datetime

import msgspec

FORMATS = ("text", "json")
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """`time` (ISO 8601, UTC), `level`, `logger`, `message`, the record's fields, and `exception` if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        facts = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(facts, enc_hook=str).decode()


def start_logging(level: str, style: str) -> None:
    """To standard error, from `level` on. `style` is one of FORMATS."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
