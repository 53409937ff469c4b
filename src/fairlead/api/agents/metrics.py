"""Renders the counters of agents in Prometheus' text format 0.0.4.

It renders in steps, because a thousand nodes have more samples than the Prometheus client library renders in the
time that the event loop may be blocked.
"""

from collections.abc import Iterable, Mapping
from itertools import groupby

from fairlead.model.documents.agent_counters import AGENT_COUNTERS, AgentCounter, Counts
from fairlead.runtime.steps import Steps

_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
"""Escapes in the value of a label."""


def render_agent_counters(counted: Mapping[str, Counts]) -> Steps[str]:
    """Render the counters, by node. A counter that a node's agent does not report has no sample."""
    lines = list[str]()
    for metric, counters in groupby(AGENT_COUNTERS, lambda each: each.metric):
        lines += yield from _family(metric, tuple(counters), counted)
    return "".join(lines)


def _family(metric: str, counters: tuple[AgentCounter, ...], counted: Mapping[str, Counts]) -> Steps[Iterable[str]]:
    first = counters[0]
    name, kind = (metric, "gauge") if first.is_gauge else (f"{metric}_total", "counter")
    lines = [f"# HELP {name} {first.help_text}\n# TYPE {name} {kind}\n"]
    for node in counted:
        for each in counters:
            if each in counted[node]:
                labels = f'node="{node.translate(_ESCAPED)}"' + (f',reason="{each.reason}"' if each.reason else "")
                lines.append(f"{name}{{{labels}}} {counted[node][each]}\n")
        yield
    return lines
