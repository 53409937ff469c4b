"""A log line as a program reads it."""

import json
import logging

from fairlead.logs import JsonFormatter


def make_record(**extra: object) -> logging.LogRecord:
    logger = logging.Logger("fairlead.x")
    return logger.makeRecord("fairlead.x", logging.INFO, "f.py", 1, "did %s\nnow", ("it",), None, extra=extra)


def test_a_record_is_one_line_with_its_fields():
    text = JsonFormatter().format(make_record(fields={"owner": "network/a", "milliseconds": 1.5}))
    assert "\n" not in text
    facts = json.loads(text)
    assert facts.pop("time").endswith("+00:00")
    assert facts == {
        "level": "INFO",
        "logger": "fairlead.x",
        "message": "did it\nnow",
        "owner": "network/a",
        "milliseconds": 1.5,
    }


def test_an_exception_is_in_its_record():
    try:
        raise ValueError("odd")
    except ValueError as error:
        record = make_record()
        record.exc_info = (ValueError, error, error.__traceback__)
    assert "ValueError: odd" in json.loads(JsonFormatter().format(record))["exception"]
