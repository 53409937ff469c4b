"""What goes wrong again and again is said once, and so is its end."""

import logging

LOG = logging.getLogger(__name__)


class Complaints:
    def __init__(self, doing: str) -> None:
        """`doing` is what goes on when nothing is wrong: "counting and telling"."""
        self._doing = doing
        self._last = ""

    def say(self, error: Exception, again: float) -> None:
        """`again` is after how many seconds it is tried again."""
        if str(error) != self._last:
            LOG.warning("%s; trying again every %g s", error, again)
        self._last = str(error)

    def end(self) -> None:
        if self._last:
            LOG.info("%s again", self._doing)
        self._last = ""
