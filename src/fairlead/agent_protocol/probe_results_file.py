"""File of probe results: an agent writes its own, a server those that it received."""

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from fairlead.agent_protocol.reports import read_endpoint
from fairlead.model.documents.health import Endpoint
from fairlead.model.documents.probe_result import ProbeResult
from fairlead.runtime.atomic_file import write_atomic
from fairlead.store.codec import encode_value, read_value

LOG = logging.getLogger(__name__)


def read_probe_results(path: Path) -> dict[Endpoint, ProbeResult]:
    """Read the results of an earlier process; empty if the file is missing or invalid."""
    try:
        return {
            read_endpoint(endpoint): read_value(seen, ProbeResult)
            for endpoint, seen in msgspec.json.decode(path.read_bytes(), type=list[tuple[list[object], object]])
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        LOG.warning("cannot read %s (%s); the health of members is unknown until the next probes", path, error)
        return {}


def write_probe_results(path: Path, seen: Sequence[tuple[Endpoint, ProbeResult]]) -> None:
    """Write the results. Raises OSError."""
    write_atomic(path, encode_value(seen))
