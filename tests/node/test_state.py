"""Content of an agent's file."""

from pathlib import Path

import pytest

from fairlead.model.documents.traffic_counters import TrafficCounters
from fairlead.model.queries.counter_samples import CounterSample
from fairlead.node.listener_counters import CounterSums
from fairlead.node.state import read_state, write_state
from harness.counter_samples import DNS, WEB, add_to_tally, counted_sample


def test_counters_survive_an_agent_restart_and_a_reboot(tmp_path: Path):
    path, tally = tmp_path / "new" / "agent.json", CounterSums()
    add_to_tally(tally, {WEB: counted_sample(5, cookie=9, created=2.5, slack=2.0), DNS: CounterSample(active=1)})
    write_state(path, "boot1", tally)
    assert read_state(path, "boot1") == tally
    assert add_to_tally(read_state(path, "boot1"), {WEB: counted_sample(6, cookie=9, created=4.5)}) == TrafficCounters(
        connections=6
    )
    assert add_to_tally(read_state(path, "boot2"), {WEB: counted_sample(6, cookie=9, created=2.5)}) == TrafficCounters(
        connections=11
    )


def test_proxy_process_readings_survive_an_agent_restart_but_not_a_reboot(tmp_path: Path):
    path, tally = tmp_path / "agent.json", CounterSums()
    tally.add_process("12.345", {"web": TrafficCounters(connections=3, active=1)})
    write_state(path, "boot1", tally)
    assert read_state(path, "boot1") == tally
    assert read_state(path, "boot2") == CounterSums(sums={"web": TrafficCounters(connections=3)})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"boot": 1}', '{"boot":"b","last":[],"sums":{"x":{"nothing":1}}}'])
def test_unreadable_state_file_is_logged_and_counters_start_empty(tmp_path: Path, caplog, text: str):
    (tmp_path / "agent.json").write_text(text)
    assert read_state(tmp_path / "agent.json", "b") == CounterSums()
    assert "counters restart at zero" in caplog.text
