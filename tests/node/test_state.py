"""Content of an agent's file."""

from pathlib import Path

import pytest

from fairlead.model.documents.traffic_counters import Figures
from fairlead.model.queries.counter_samples import Reading
from fairlead.node.listener_counters import Tally
from fairlead.node.state import read_state, write_state
from harness.counting import DNS, WEB, counted, take


def test_sums_outlive_the_agent_and_a_boot_begins_anew(tmp_path: Path):
    path, tally = tmp_path / "new" / "agent.json", Tally()
    take(tally, {WEB: counted(5, cookie=9, created=2.5, slack=2.0), DNS: Reading(active=1)})
    write_state(path, "boot1", tally)
    assert read_state(path, "boot1") == tally
    assert take(read_state(path, "boot1"), {WEB: counted(6, cookie=9, created=4.5)}) == Figures(connections=6)
    assert take(read_state(path, "boot2"), {WEB: counted(6, cookie=9, created=2.5)}) == Figures(connections=11)


def test_what_a_proxy_has_counted_outlives_the_agent_and_no_boot(tmp_path: Path):
    path, tally = tmp_path / "agent.json", Tally()
    tally.take_process("12.345", {"web": Figures(connections=3, active=1)})
    write_state(path, "boot1", tally)
    assert read_state(path, "boot1") == tally
    assert read_state(path, "boot2") == Tally(sums={"web": Figures(connections=3)})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"boot": 1}', '{"boot":"b","last":[],"sums":{"x":{"nothing":1}}}'])
def test_a_file_that_cannot_be_read_is_said_and_counting_begins_anew(tmp_path: Path, caplog, text: str):
    (tmp_path / "agent.json").write_text(text)
    assert read_state(tmp_path / "agent.json", "b") == Tally()
    assert "counting begins anew" in caplog.text
