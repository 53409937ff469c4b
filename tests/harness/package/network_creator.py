"""Creates networks through the API, one after the other until it is terminated, as a client with retries does.

If the response to a POST is lost, the network is looked up by its name before the POST is repeated. Only the newest
networks are kept. A printed line per network has the number of networks so far and the longest duration of one.
"""

import json
import signal
import ssl
import sys
import time

import httpx

NETWORKS = "/network/v2.0/networks"
RETRY_CODES = (502, 503, 504)
MAX_NETWORKS = 20
response_times: list[int] = []


class NetworkCreator:
    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def _request(self, method: str, path: str, **more: object) -> httpx.Response | None:
        """Response to a request, or None if its effect is unknown."""
        try:
            answer = self._client.request(method, path, **more)  # type: ignore[arg-type]
        except httpx.TransportError:
            answer = None
        if answer is None or answer.status_code in RETRY_CODES:
            time.sleep(0.1)
            return None
        return answer if answer.status_code == 404 else answer.raise_for_status()

    def create(self, name: str) -> str:
        """Id of the network, once it exists."""
        while True:
            found = self._request("GET", NETWORKS, params={"name": name})
            if found is not None and found.json()["networks"]:
                return str(found.json()["networks"][0]["id"])
            if found is not None:
                self._request("POST", NETWORKS, json={"network": {"name": name}})

    def remove(self, identity: str) -> None:
        while self._request("DELETE", f"{NETWORKS}/{identity}") is None:
            pass


def main() -> None:
    url, ca, user, password = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: response_times.append(1))
    longest, made = 0.0, list[str]()
    tls = ssl.create_default_context(cafile=ca)
    with httpx.Client(base_url=url, auth=(user, password), verify=tls, timeout=5) as client:
        caller = NetworkCreator(client)
        while not response_times:
            began = time.monotonic()
            made.append(caller.create(f"asked-{len(made)}"))
            if len(made) > MAX_NETWORKS:
                caller.remove(made[-MAX_NETWORKS - 1])
            longest = max(longest, time.monotonic() - began)
            print(json.dumps({"made": len(made), "longest": round(longest, 2)}), flush=True)
            time.sleep(0.02)


if __name__ == "__main__":
    main()
