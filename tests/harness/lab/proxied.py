"""Proxied listeners of the lab, and their clients."""

from harness.lab.site import LabSite

OPTIONS = {"FAIRLEAD_HEALTH_PROBER": "agents"}


def get(site: LabSite, client: str, vip: str, path: str = "/", *more: str) -> tuple[str, str]:
    """Status code, and the name of the member or the redirect's target. Raises CommandFailed."""
    host = f"[{vip}]" if ":" in vip else vip
    words = ["curl", "-sS", "-m", "15", "-w", "\n%{http_code} %{redirect_url}", *more, f"http://{host}{path}"]
    *body, last = site.lab.exec(client, words).strip().splitlines()
    code, _, where = last.partition(" ")
    return code, where or "".join(body)
