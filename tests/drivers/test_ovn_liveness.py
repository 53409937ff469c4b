"""Liveness of chassis, from their nb_cfg confirmations in the Southbound database."""

from dataclasses import dataclass, field

from fairlead.drivers.ovn.southbound.chassis import MILLISECONDS, ChassisLiveness

PATIENCE = 45.0


@dataclass
class Scene:
    """Chassis that share a clock with their reader."""

    now: float = 1000.0
    nodes: ChassisLiveness = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = ChassisLiveness(lambda: self.now, PATIENCE)

    def begin(self, **counts: int) -> None:
        """Set the initial contents of the database."""
        for name, count in counts.items():
            columns = {"name": name, "chassis": ["uuid", name], "nb_cfg": count, **self.at()}
            self.nodes.take(name, {"initial": columns})

    def confirm(self, count: int, *names: str) -> set[str]:
        """Confirm a count by some chassis, and return the dead ones."""
        for name in names:
            self.nodes.take(name, {"modify": {"nb_cfg": count, **self.at()}})
        self.nodes.evaluate()
        return set(self.nodes.dead)

    def at(self) -> dict[str, int]:
        return {"nb_cfg_timestamp": int(self.now * MILLISECONDS)}


def test_last_chassis_to_confirm_after_a_long_pause_is_not_dead():
    """A pause without servers kills no chassis: nb_cfg did not change, and one chassis is the first to confirm the next
    count."""
    scene = Scene()
    scene.begin(one=7, two=7)
    scene.now += 3600.0
    assert scene.confirm(8, "one") == set()
    scene.now += 0.1
    assert scene.confirm(8, "two") == set()


def test_silent_chassis_after_a_long_pause_is_dead_in_half_the_time():
    scene = Scene()
    scene.begin(one=7, two=7, three=7)
    scene.now += 3600.0
    found = []
    for count in range(8, 12):
        found.append(scene.confirm(count, "one", "two"))
        scene.now += 15.0
    assert found == [set(), set(), {"three"}, {"three"}]
    assert scene.confirm(12, "one", "two", "three") == set()


def test_silent_chassis_is_dead_after_the_timeout_while_others_confirm():
    scene = Scene()
    scene.begin(one=7, two=7, three=7)
    found = []
    for count in range(8, 13):
        scene.now += 15.0
        found.append(scene.confirm(count, "one", "two"))
    assert found == [set(), set(), set(), {"three"}, {"three"}]


def test_chassis_dead_before_the_reader_started_is_dead():
    scene = Scene()
    scene.begin(three=7)
    scene.now += 60.0
    scene.begin(one=11, two=11)
    scene.nodes.evaluate()
    assert scene.nodes.dead == {"three"}
    assert scene.confirm(12, "one") == {"three"}
