"""A compute node of the lab with its agent, which runs the proxies that listeners need to be served."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from fairlead.lab import Lab, agents, take_down
from harness.conformance.keystone import PASSWORD, PROJECTS, user_name
from harness.lab.servers import until
from lab.conftest import NAME, require_lab

LAB = f"{NAME}tempest"
WITH_PROXIES = "ovn=ovn,fairlead=fairlead"
PROXIES_ALONE = "fairlead=fairlead"
"""For an Octavia, which gives all to the default provider, `fairlead`."""
HEARD_SECONDS = 60
ADMIN = user_name(PROJECTS[0], frozenset({"admin"}))


@contextmanager
def node() -> Iterator[Lab]:
    """A lab with one chassis; nothing of it is left."""
    require_lab()
    take_down(LAB)
    try:
        yield Lab.up(LAB, chassis=1)
    finally:
        take_down(LAB)


def options_of(lab: Lab, providers: str) -> dict[str, str]:
    """Of a server that writes this lab's OVN and whose agents run proxies."""
    return {
        "FAIRLEAD_PROVIDERS_NAMES": providers,
        "FAIRLEAD_PROBES_BY": "agents",
        "FAIRLEAD_OVN_NORTHBOUND": lab.northbound,
        "FAIRLEAD_OVN_SOUTHBOUND": lab.southbound,
    }


def start_agent(lab: Lab, fairlead: str, folder: Path, user: str = ADMIN, password: str = PASSWORD) -> agents.Agent:
    """Returns when it is heard."""
    file = folder / "agent-password"
    file.touch(mode=0o600)
    file.write_text(password)
    who = {"FAIRLEAD_AGENT_USER": user, "FAIRLEAD_AGENT_PASSWORD_FILE": str(file)}
    [chassis] = (each.name for each in lab.record.chassis)
    agent = agents.start_one(lab.layout, fairlead, chassis, who | agents.settings(renewal=1))

    def is_heard() -> bool:
        answer = httpx.get(f"{fairlead}/operator/chassis", auth=(user, password)).raise_for_status()
        return bool(answer.json()["chassis"][0]["agent"])

    until(is_heard, HEARD_SECONDS)
    return agent
