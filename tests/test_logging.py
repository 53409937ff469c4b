"""Log lines as a program reads them."""

import json
import logging
import stat
from pathlib import Path

from fairlead.runtime.logging import AUDIT, JsonFormatter, RateLimit, TextFormatter, reopen, start_logging


def make_record(**extra: object) -> logging.LogRecord:
    logger = logging.Logger("fairlead.x")
    return logger.makeRecord("fairlead.x", logging.INFO, "f.py", 1, "did %s\nnow", ("it",), None, extra=extra)


def test_log_record_is_one_json_line_with_its_fields():
    text = JsonFormatter().format(make_record(fields={"owner": "network/a", "milliseconds": 1.5}))
    assert "\n" not in text
    facts = json.loads(text)
    assert facts.pop("time").endswith("+00:00")
    assert facts == {
        "level": "INFO",
        "logger": "fairlead.x",
        "message": "did it\\nnow",
        "owner": "network/a",
        "milliseconds": 1.5,
    }


def test_log_record_contains_its_exception():
    try:
        raise ValueError("odd")
    except ValueError as error:
        record = make_record()
        record.exc_info = (ValueError, error, error.__traceback__)
    assert "ValueError: odd" in json.loads(JsonFormatter().format(record))["exception"]


def test_caller_chosen_values_stay_on_one_bounded_log_line():
    """Values that callers chose stay on one bounded line, without cursor movements or text direction marks, in both
    formats."""
    chosen = "x\n2026-01-01 00:00:00 INFO all is well\x1b[2J\x9b2J\u202egnp\u2028\udcff" + "a" * 10_000
    try:
        raise ValueError(chosen)
    except ValueError as error:
        record = make_record(fields={"user": chosen, "objects": [chosen], "by": {chosen: 1}})
        record.msg, record.args = "%s", (chosen,)
        record.exc_info = (ValueError, error, error.__traceback__)
    for formatter in (JsonFormatter(), TextFormatter()):
        text = formatter.format(record)
        assert not set(text) & set("\x1b\x9b\u202e\u2028\udcff")
        assert "\\x1b[2J" in text
    lines = TextFormatter().format(record).split("\n")
    assert len(lines[0]) < 5000
    assert all(line.startswith("    ") for line in lines[1:])
    assert "\n" not in JsonFormatter().format(record)


def test_warnings_are_rate_limited_and_errors_are_not():
    log, found = logging.Logger("x"), list[str]()
    log.addFilter(RateLimit(2))
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    for number in range(5):
        log.warning("it %d", number)
    log.error("always")
    assert found == ["it 0", "it 1", "always"]


def test_audit_log_has_its_own_file_and_survives_rotation(tmp_path: Path):
    path = tmp_path / "audit"
    logger = logging.getLogger(AUDIT)
    before, level = logger.handlers[:], logger.level
    try:
        start_logging("error", "text", str(path))
        logger.info("one", extra={"fields": {"user": "ann"}})
        path.rename(tmp_path / "audit.1")
        reopen()
        logger.info("two")
    finally:
        for handler in set(logger.handlers) - set(before):
            logger.removeHandler(handler)
            handler.close()
        logger.setLevel(level)
    assert json.loads((tmp_path / "audit.1").read_text())["user"] == "ann"
    assert json.loads(path.read_text())["message"] == "two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_audit_file_mode_is_tightened_and_a_missing_folder_is_tolerated(tmp_path: Path):
    path = tmp_path / "logs" / "audit"
    path.parent.mkdir()
    path.touch(mode=0o644)
    path.chmod(0o644)
    logger = logging.getLogger(AUDIT)
    before, level, raising = logger.handlers[:], logger.level, logging.raiseExceptions
    try:
        logging.raiseExceptions = False
        start_logging("error", "text", str(path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.parent.rename(tmp_path / "away")
        logger.info("nobody is kept waiting by this")
        path.parent.mkdir()
        logger.info("again")
    finally:
        logging.raiseExceptions = raising
        for handler in set(logger.handlers) - set(before):
            logger.removeHandler(handler)
            handler.close()
        logger.setLevel(level)
    assert json.loads(path.read_text())["message"] == "again"
