"""Who asks for a change, what a new object gets that no body says, and what a null means, once for every way in."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from fairlead.api.fields import Values
from fairlead.api.octavia import specs
from fairlead.changes.asker import Asker
from fairlead.model.loadbalancer import LoadBalancer


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    project_id: str
    now: datetime
    new_id: Callable[[], str]

    def resource(self, values: Values) -> dict[str, Any]:
        """What every new object begins with. Only a body of the door for plug-ins has an id."""
        return {"id": values.get("id") or self.new_id(), "project_id": self.project_id, "created_at": self.now}

    def on(self, balancer: LoadBalancer) -> "Origin":
        """What is made on a load balancer belongs to its project, whoever makes it."""
        return replace(self, project_id=balancer.project_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    asker: Asker
    origin: Origin


def common(values: Values) -> dict[str, Any]:
    """The attributes that every resource has; a null is the default."""
    return {
        name: default if values[name] is None else values[name]
        for name, default in specs.DEFAULTS.items()
        if name in values
    }


def given(values: Values) -> Values:
    """In a POST a null is as good as nothing said; but `admin_state_up` it switches off, as in a PUT."""
    said = {name: value for name, value in values.items() if value is not None}
    return {**said, "admin_state_up": False} if values.get("admin_state_up", True) is None else said
