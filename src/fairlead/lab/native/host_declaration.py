"""Declare the lab's hosts to a server, as an operator does with `fairlead chassis host set`."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterable

from fairlead.lab.errors import LabError
from fairlead.lab.native.plan import Site


def declare(url: str, hosts: Iterable[Site]) -> None:
    """Declare the hosts; existing declarations stay unchanged. Raises LabError."""
    for host in hosts:
        said = {
            "number": host.number,
            "addresses": list(host.loopback_addresses),
            "prefixes": [{"cidr": prefix} for prefix in host.prefixes],
        }
        request = urllib.request.Request(
            f"{url}/operator/hosts/{host.name}",
            json.dumps(said).encode(),
            {"Content-Type": "application/json"},
            method="PUT",
        )
        try:
            with urllib.request.urlopen(request, timeout=10):
                pass
        except urllib.error.HTTPError as error:
            raise LabError(f"host {host.name} rejected by {url}: {error.read().decode()}") from None
        except OSError as error:
            raise LabError(f"host {host.name}: {url} does not answer: {error}") from None
