"""Caller of a change, common attributes of a new object, and the meaning of null in bodies."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from fairlead.api.octavia import specs
from fairlead.changes.caller import ChangeContext
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.schema import Values


@dataclass(frozen=True, slots=True, kw_only=True)
class CreationContext:
    project_id: str
    now: datetime
    new_id: Callable[[], str]

    def resource(self, values: Values) -> dict[str, Any]:
        """Return the common attributes of a new object. Only a body of the plug-in API has an id."""
        return {"id": values.get("id") or self.new_id(), "project_id": self.project_id, "created_at": self.now}

    def with_project_of(self, balancer: LoadBalancer) -> "CreationContext":
        """Return this origin with the load balancer's project, which owns every part created in it."""
        return replace(self, project_id=balancer.project_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCaller:
    identity: ChangeContext
    origin: CreationContext


def common_attributes(values: Values) -> dict[str, Any]:
    """Return the attributes that every resource has; null means the default."""
    return {
        name: default if values[name] is None else values[name]
        for name, default in specs.DEFAULTS.items()
        if name in values
    }


def without_nulls(values: Values) -> Values:
    """Drop nulls from the body of a POST, where they mean the default. A null `admin_state_up` means False, as in a
    PUT."""
    said = {name: value for name, value in values.items() if value is not None}
    return {**said, "admin_state_up": False} if values.get("admin_state_up", True) is None else said
