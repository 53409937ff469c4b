"""Log formats: text lines, or JSON objects for log collectors.

A record may carry `extra={"fields": {...}}` with the facts of its message. Clients choose names, paths and ids, so
values are truncated and control characters escaped: a client can neither forge log lines nor control a terminal.
"""

import logging
import os
import stat
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

import msgspec

from fairlead.runtime.terminal import escaped

FORMATS = ("text", "json")
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
MAX_MESSAGE_LENGTH = 4000
"""Maximum characters of a message, and of a field."""
AUDIT = "fairlead.audit"
"""Logger of changes and failed authentications."""


def sanitize(text: str, longest: int = MAX_MESSAGE_LENGTH) -> str:
    """Return one line of limited length without control characters."""
    if len(text) > longest:
        text = f"{text[:longest]}..."
    return escaped(text)


def _clean(value: object) -> object:
    match value:
        case str():
            return sanitize(value)
        case Mapping():
            return {sanitize(str(name)): _clean(item) for name, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_clean(item) for item in value]
        case bool() | int() | float() | None:
            return value
        case _:
            return sanitize(str(value))


class TextFormatter(logging.Formatter):
    """Format a record as one line, followed by indented lines for an exception."""

    def __init__(self) -> None:
        super().__init__(TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - of logging.Formatter
        record.message = sanitize(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - of logging.Formatter
        return "\n".join(f"    {sanitize(line)}" for line in super().formatException(ei).split("\n"))


class JsonFormatter(logging.Formatter):
    """Format a record as JSON: `time` (ISO 8601, UTC), `level`, `logger`, `message`, fields, `exception` if present."""

    def format(self, record: logging.LogRecord) -> str:
        facts = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": sanitize(record.getMessage()),
            **{name: _clean(value) for name, value in getattr(record, "fields", {}).items()},
        }
        if record.exc_info:
            facts["exception"] = "\n".join(map(sanitize, self.formatException(record.exc_info).split("\n")))
        return msgspec.json.encode(facts, enc_hook=str).decode()


class TokenBucket:
    """Token bucket: `a_minute` per minute, and as burst, so that unauthenticated clients cannot fill the disk."""

    def __init__(self, a_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rejected = 0
        """Rejected requests since the last allowed one."""
        self._most = float(a_minute)
        self._left = self._most
        self._clock = clock
        self._then = clock()

    def take(self) -> bool:
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._then) * self._most / 60)
        self._then = now
        if self._left < 1:
            self.rejected += 1
            return False
        self._left -= 1
        return True


class RateLimit(logging.Filter):
    """Log filter with a rate limit; the next record that passes has the suppressed number. Errors always pass."""

    def __init__(self, a_minute: int) -> None:
        super().__init__()
        self._bucket = TokenBucket(a_minute)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.ERROR:
            return True
        if not self._bucket.take():
            return False
        if self._bucket.rejected:
            record.msg = f"{record.getMessage()} ({self._bucket.rejected} similar messages suppressed)"
            record.args = ()
            self._bucket.rejected = 0
        return True


class _Private(WatchedFileHandler):
    """Handler for a private file (no world access), which is reopened after rotation."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record. A failure to reopen the file must not fail the request that is logged."""
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)

    def _open(self) -> TextIOWrapper:
        Path(self.baseFilename).touch(mode=0o600)
        stream = super()._open()
        mode = os.fstat(stream.fileno()).st_mode
        if mode & 0o007:  # an existing file; its group access is intentional
            os.fchmod(stream.fileno(), stat.S_IMODE(mode) & ~0o007)
        return stream


def start_logging(level: str, style: str, audit: str = "") -> None:
    """Log to standard error from `level` on. `style` is one of FORMATS.

    `audit` is an additional file for audit records. Raises OSError.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger(AUDIT).setLevel(logging.INFO)
    if audit:
        own = _Private(audit, encoding="utf-8", errors="backslashreplace")
        own.setFormatter(JsonFormatter())
        logging.getLogger(AUDIT).addHandler(own)


def reopen() -> None:
    """Reopen the audit file, if any, after rotation (SIGHUP)."""
    for handler in logging.getLogger(AUDIT).handlers:
        if isinstance(handler, _Private):
            handler.reopenIfNeeded()
