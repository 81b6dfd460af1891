import gymnasium
import numpy as np
import pytest

import envs
from envs.agents import scripted_agent
from envs.sokoban_rooms import Room, generate_room
from envs.solvers import solve_sokoban
from tests.envs.test_sokoban_rooms import fewest_moves

envs.register()


@pytest.mark.parametrize(("size", "num_boxes", "depth", "seeds"), [(6, 1, 300, 150), (7, 2, 30, 50), (10, 2, 10, 30)])
def test_no_shorter_solution_is_found_by_brute_force(size, num_boxes, depth, seeds):
    for seed in range(seeds):
        room = generate_room(np.random.default_rng(seed), size, size, num_boxes, depth)
        plan = solve_sokoban(room, room.player, frozenset(room.boxes))
        assert plan is not None
        assert len(plan) == fewest_moves(room)


def test_a_room_without_a_solution_has_no_plan():
    #   ######
    #   #X_P_#   the box is in a corner
    #   #__O_#
    #   ######
    room = Room(4, 6, frozenset({7, 8, 9, 10, 13, 14, 15, 16}), (15,), (7,), 9)
    assert solve_sokoban(room, room.player, frozenset(room.boxes)) is None


def test_a_solver_refuses_another_game():
    with pytest.raises(TypeError, match="FrozenLakeSolver plays rljax/FrozenLake-v0, not"):
        scripted_agent("rljax/FrozenLake-v0").begin(gymnasium.make("rljax/SimpleSokoban-v0"), 0)
    with pytest.raises(TypeError, match="SokobanSolver plays Sokoban, not"):
        scripted_agent("rljax/SimpleSokoban-v0").begin(gymnasium.make("rljax/FrozenLake-v0"), 0)
