"""Seeds of environments: whose they are, and that they never meet."""

from __future__ import annotations

from rljax.config.environments import built_in
from rljax.rollout.environments.session import LocalEnvironment
from rljax.tasks.environments import environment_tasksets

TAGS = {"FrozenLake": 300, "SimpleSokoban": 300}


def test_seeds_of_validation_are_no_seeds_of_training_nor_of_another_tag() -> None:
    held = environment_tasksets(TAGS, built_in(), 7, "validation")
    train = environment_tasksets(TAGS, built_in(), 7, "train")
    seeds = [LocalEnvironment.seed_of(held[tag].task(0, index).seed) for tag in TAGS for index in range(300)]
    assert len(set(seeds)) == len(seeds)
    trained = {
        LocalEnvironment.seed_of(train[tag].task(epoch, index).seed)
        for tag in TAGS
        for epoch in range(2)
        for index in range(2000)
    }
    assert not trained & set(seeds)


def test_they_are_the_run_seed_s() -> None:
    def seeds(seed: int) -> list[int]:
        held = environment_tasksets(TAGS, built_in(), seed, "validation")["FrozenLake"]
        return [held.task(0, index).seed for index in range(20)]

    assert seeds(7) == seeds(7)
    assert not set(seeds(7)) & set(seeds(8))
