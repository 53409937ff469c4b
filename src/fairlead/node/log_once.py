"""Log deduplication: a repeated failure and its end are logged once."""

import logging

LOG = logging.getLogger(__name__)


class LogOnce:
    def __init__(self, doing: str) -> None:
        """`doing` names the activity, as in "collecting and reporting counters"."""
        self._doing = doing
        self._last = ""

    def report(self, error: Exception, again: float) -> None:
        """`again` is the retry interval in seconds."""
        if str(error) != self._last:
            LOG.warning("%s; retrying every %g s", error, again)
        self._last = str(error)

    def report_recovery(self) -> None:
        if self._last:
            LOG.info("recovered: %s", self._doing)
        self._last = ""
