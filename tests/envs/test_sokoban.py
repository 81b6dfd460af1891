import gymnasium
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envs
from envs.agents import RandomAgent, play, scripted_agent
from envs.sokoban import SYMBOLS, WORDS, SokobanEnv
from envs.sokoban_rooms import Room

envs.register()
IDS = ["rljax/SimpleSokoban-v0", "rljax/LargerSokoban-v0", "rljax/SokobanDifferentGridVocab-v0"]
BOXES = {"rljax/SimpleSokoban-v0": 1, "rljax/LargerSokoban-v0": 2, "rljax/SokobanDifferentGridVocab-v0": 1}


def put(*rows):
    """The game in a room of one's own."""
    text = "".join(rows)
    cells = [
        {cell for cell, symbol in enumerate(text) if symbol in symbols} for symbols in ("_OXP√S", "O√S", "X√", "PS")
    ]
    floor, targets, boxes, player = cells
    env = SokobanEnv(dim_room=(len(rows), len(rows[0])), num_boxes=len(boxes))
    env.reset(seed=0)
    room = Room(len(rows), len(rows[0]), frozenset(floor), tuple(targets), tuple(boxes), player.pop())
    env.room, env.player, env.boxes = room, room.player, frozenset(boxes)
    assert env.render() == "\n".join(rows)
    return env


def test_the_instruction_tells_the_rules():
    _, info = gymnasium.make(IDS[2]).reset(seed=0)
    assert info["instruction"] == (
        "You are solving the Sokoban puzzle. You are the player and you need to push all boxes to targets. "
        "When you are right next to a box, you can push it by moving in the same direction. "
        "You cannot push a box through a wall or another box, and you cannot pull a box. "
        "The answer must be one action in a turn.\n"
        "The meaning of each symbol in the state is:\n"
        "W: wall, .: empty, G: target, C: box on target, B: box, A: player, @: player on target\n"
        "Your available actions are:\nUp, Down, Left, Right"
    )
    assert info["actions"] == WORDS


def test_one_box_in_three_steps_gives_eleven_less_three_tenths():
    env = put("######", "#P___#", "#_X_O#", "#____#", "######")
    observation, reward, terminated, _, info = env.step("Down")
    assert observation == "######\n#____#\n#PX_O#\n#____#\n######"
    assert (reward, terminated, info["success"]) == (-0.1, False, False)
    assert env.step("right")[:2] == ("######\n#____#\n#_PXO#\n#____#\n######", -0.1)
    observation, reward, terminated, truncated, info = env.step("RIGHT")
    assert observation == "######\n#____#\n#__P√#\n#____#\n######"
    assert reward == pytest.approx(10.9)
    assert (terminated, truncated, info["success"]) == (True, False, True)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("Up")


def test_boxes_on_and_off_targets_give_and_take_one():
    env = put("#######", "#PXO__#", "#_XO__#", "#######")
    assert env.step("Right")[1] == pytest.approx(0.9)
    observation, reward, *_ = env.step("Right")  # off again, the player on the target
    assert observation == "#######\n#__SX_#\n#_XO__#\n#######"
    assert reward == pytest.approx(-1.1)
    env = put("#######", "#P√___#", "#_XO__#", "#######")
    total = sum(env.step(word)[1] for word in ("Down", "Right"))
    assert total == pytest.approx(10 + 1 - 0.2)


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        (("#####", "#P_X#", "##O##", "#####"), "Up"),  # a wall
        (("#####", "#_PX#", "##O##", "#####"), "Right"),  # a box before a wall
        (("######", "#PXX_#", "##OO##", "######"), "Right"),  # a box before a box
    ],
)
def test_a_move_that_is_blocked_changes_nothing_and_is_a_step(rows, word):
    env = put(*rows)
    observation, reward, terminated, _, info = env.step(word)
    assert observation == f"Your last action, {word}, changed nothing.\n" + "\n".join(rows)
    assert (reward, terminated, info["valid"], info["effective"]) == (-0.1, False, True, False)


def test_an_invalid_action_is_a_step_too():
    env = put("######", "#P___#", "#_X_O#", "#____#", "######")
    for action in ("", "push", "<answer>Right</answer>", "1", "Up Up", "√" * 5000):
        observation, reward, terminated, _, info = env.step(action)
        assert observation == "Your last action was not a valid action.\n" + env.render()
        assert (reward, terminated, info["valid"], info["effective"]) == (-0.1, False, False, False)


@pytest.mark.parametrize("env_id", IDS)
def test_the_solver_solves_every_room_within_the_search_and_chance_does_not(env_id):
    env = gymnasium.make(env_id)
    depth, boxes = env.spec.kwargs["search_depth"], BOXES[env_id]
    for seed in range(250):
        total, success, taken = play(env, scripted_agent(env_id), seed)
        assert success
        assert taken <= depth
        assert total == pytest.approx(10 + boxes - 0.1 * taken)  # on and off a target cancel out
    lucky = sum(play(env, RandomAgent(), seed, max_actions=10)[1] for seed in range(250))
    assert lucky < 75


@settings(max_examples=40, deadline=None)
@given(
    env_id=st.sampled_from(IDS),
    seed=st.integers(0, 2**32),
    actions=st.lists(st.sampled_from(WORDS) | st.text(max_size=8), max_size=60),
)
def test_whatever_is_done_walls_stay_boxes_are_as_many_and_there_is_one_player(env_id, seed, actions):
    env = gymnasium.make(env_id)
    env.reset(seed=seed)
    read = {symbol: meaning for meaning, symbol in env.unwrapped._symbol.items()}

    def places(state, *meanings):
        return [at for at, symbol in enumerate(state) if read.get(symbol) in meanings]

    first = env.unwrapped.render()
    walls, targets = places(first, "wall"), places(first, "target")
    boxes_on = 0
    for action in actions:
        _, reward, terminated, truncated, info = env.step(action)
        state = info["state"]
        assert places(state, "wall") == walls
        assert places(state, "target", "box on target", "player on target") == targets
        assert len(places(state, "player", "player on target")) == 1
        assert len(places(state, "box", "box on target")) == BOXES[env_id] == len(targets)
        on = len(places(state, "box on target"))
        assert reward == pytest.approx(-0.1 + (on - boxes_on) + 10 * (on == BOXES[env_id]))
        assert terminated == info["success"] == (on == BOXES[env_id])
        assert not truncated
        boxes_on = on
        if terminated:
            break


@pytest.mark.parametrize(
    ("kwargs", "error", "line"),
    [
        ({"dim_room": 6}, TypeError, "dim_room must be a height and a width, not 6"),
        ({"dim_room": (6, "6")}, TypeError, "dim_room must be a whole number, not '6'"),
        ({"dim_room": (3, 6)}, ValueError, "dim_room must be at least 4, not 3"),
        ({"num_boxes": 1.0}, TypeError, "num_boxes must be a whole number, not 1.0"),
        ({"num_boxes": 0}, ValueError, "num_boxes must be at least 1, not 0"),
        (
            {"num_boxes": 8},
            ValueError,
            "num_boxes=8 boxes, their targets and the player do not fit into dim_room=(6, 6)",
        ),
        ({"search_depth": None}, TypeError, "search_depth must be a whole number, not None"),
        ({"grid_vocab": "#_O"}, TypeError, "grid_vocab must be a mapping with texts as keys, not '#_O'"),
        (
            {"grid_vocab": {"W": "wall"}},
            ValueError,
            "grid_vocab must give one character for each of wall, empty, target",
        ),
        (
            {"grid_vocab": {**{f"{k}{k}": v for k, v in SYMBOLS.items()}}},
            ValueError,
            "grid_vocab must give one character for each of wall",
        ),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(kwargs, error, line):
    with pytest.raises(error) as raised:
        SokobanEnv(**kwargs)
    assert str(raised.value).startswith(line)
    assert "\n" not in str(raised.value)
