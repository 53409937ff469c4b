"""A compute node of the lab with its agent, which runs the proxies that some listeners require."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from fairlead.lab import Lab, agents
from harness.conformance.keystone import PASSWORD, PROJECTS, user_name
from harness.lab.labs import lab_of, require_lab
from harness.waiting import DEADLINE, wait_until

WITH_PROXIES = "ovn=ovn,fairlead=fairlead"
PROXIES_ONLY = "fairlead=fairlead"
"""For an Octavia, which uses the default provider, `fairlead`."""
ADMIN = user_name(PROJECTS[0], frozenset({"admin"}))


@contextmanager
def node() -> Iterator[Lab]:
    """Run a lab with one chassis."""
    require_lab()
    with lab_of("tempest", chassis=1) as lab:
        yield lab


def options_of(lab: Lab, providers: str) -> dict[str, str]:
    """Options of a server that writes to this lab's OVN and whose agents run proxies."""
    return {
        "FAIRLEAD_PROVIDERS_NAMES": providers,
        "FAIRLEAD_HEALTH_PROBER": "agents",
        "FAIRLEAD_OVN_NORTHBOUND": lab.northbound,
        "FAIRLEAD_OVN_SOUTHBOUND": lab.southbound,
    }


def start_agent(lab: Lab, fairlead: str, folder: Path, user: str = ADMIN, password: str = PASSWORD) -> agents.LabAgent:
    """Start an agent, and wait until it is connected."""
    file = folder / "agent-password"
    file.touch(mode=0o600)
    file.write_text(password)
    who = {"FAIRLEAD_AGENT_USER": user, "FAIRLEAD_AGENT_PASSWORD_FILE": str(file)}
    [chassis] = (each.name for each in lab.record.chassis)
    agent = agents.start_one(lab.layout, fairlead, chassis, who | agents.settings(renewal=1))

    def connected_agent() -> object:
        answer = httpx.get(f"{fairlead}/operator/chassis", auth=(user, password), timeout=DEADLINE).raise_for_status()
        return answer.json()["chassis"][0]["agent"]

    wait_until(connected_agent)
    return agent
