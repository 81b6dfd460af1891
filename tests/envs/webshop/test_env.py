"""Pages, clicks and the contract of `envs.text_env`."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

import envs
from envs.webshop.env import WebShop
from tests.envs.webshop.published import ATTRIBUTES, GOALS, ITEMS, REVIEWS, written
from tests.waiting import HANGS


def shop_of_files(folder: Path, **arguments: Any) -> WebShop:
    env = WebShop(**written(folder, products=ITEMS, attributes=ATTRIBUTES, goals=GOALS, reviews=REVIEWS), **arguments)
    env.reset(seed=0)
    # That of the shampoo, whatever split it fell into.
    env._begin(next(i for i, goal in enumerate(env.shop.goals) if goal.asin == "B000000001"))
    return env


def walk(env: gymnasium.Env[str, str], *actions: str) -> tuple[str, float, bool, dict[str, Any]]:
    for action in actions:
        observation, reward, done, _, info = env.step(action)
        assert info["valid"], action
    return observation, float(reward), done, info


def test_check_env() -> None:
    envs.register()
    envs.register()
    env = gymnasium.make("rljax/WebShop-v0", split="test", render_mode="ansi")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*No render fps")  # text has no frames
        check_env(env.unwrapped)
    assert env.reset(seed=3)[0] == env.unwrapped.render()


HEAD = "Instruction: [SEP] i want a mint shampoo for dry hair, and price lower than {bound} dollars [SEP] "


def test_golden_pages(tmp_path: Path) -> None:
    env = shop_of_files(tmp_path, show_attrs=True)
    bound = f"{env.goal.price_upper:.2f}"
    head = HEAD.format(bound=bound)
    assert env._page_text() == f"WebShop [SEP] {head}Search"
    results, _, _, info = walk(env, "search[acme herbal]")
    assert results == (
        f"{head}Back to Search [SEP] Page 1 (Total results: 2) [SEP] B000000003 [SEP] Acme Herbal Conditioner [SEP] "
        "$100.0 [SEP] B000000001 [SEP] Acme Herbal Shampoo for Dry Hair, Tea Tree [SEP] $12.99"
    )
    assert info["actions"] == ("click[back to search]", "click[b000000003]", "click[b000000001]")
    assert info["suffix"] == "Available actions: click[back to search], click[b000000003], click[b000000001]"
    item, _, _, info = walk(env, "click[B000000001]")
    assert item == (
        f"{head}Back to Search [SEP] < Prev [SEP] size [SEP] 8 oz [SEP] 16 oz [SEP] scent [SEP] mint | lime [SEP] rose "
        "[SEP] Acme Herbal Shampoo for Dry Hair, Tea Tree [SEP] Price: $12.99 [SEP] Rating: 4.5 out of 5 stars [SEP] "
        "Description [SEP] Features [SEP] Reviews [SEP] Attributes [SEP] Buy Now"
    )
    buttons = ("back to search", "< prev", "description", "features", "reviews", "attributes", "buy now")
    options = ("8 oz", "16 oz", "mint | lime", "rose")
    assert info["actions"] == tuple(f"click[{name}]" for name in buttons + options)
    head += "Back to Search [SEP] < Prev [SEP] "
    pages = {
        "description": "A shampoo with natural ingredients.",
        "features": "Essential oils [SEP] No parabens",
        "reviews": '"Nice" [SEP] 5.0 [SEP] Smells fine. [SEP] "Hm" [SEP] 2.0',
        "attributes": (
            "tea tree [SEP] natural ingredients [SEP] dry hair [SEP] beauty [SEP] shampoos [SEP] "
            "Beauty & Personal Care › Hair Care › Shampoo"
        ),
    }
    for name, text in pages.items():
        page, _, _, info = walk(env, f"click[{name}]")
        assert page == head + text
        assert info["actions"] == ("click[back to search]", "click[< prev]")
        assert walk(env, "click[< prev]")[0] == item
    done = walk(env, "click[16 oz]", "click[mint | lime]", "click[buy now]")
    assert done[0] == "Thank you for shopping with us! [SEP] Your score (min 0.0, max 1.0) [SEP] 1.0"
    assert done[1:3] == (1.0, True)
    assert done[3]["success"]
    assert done[3]["metrics"] == {"r_type": 1.0, "r_att": 1.0, "r_option": 1.0, "r_price": 1.0}
    assert (done[3]["actions"], done[3]["suffix"]) == ((), "")


def test_golden_pages_rich(tmp_path: Path) -> None:
    env = shop_of_files(tmp_path, observation_mode="text_rich")
    head = f"Instruction:\n{env.goal.instruction}\n"
    assert env._page_text() == f"WebShop\n{head}[button] Search [button_]"
    results, *_ = walk(env, "search[acme herbal]", "click[b000000003]", "click[< prev]")
    assert results == (
        f"{head}[button] Back to Search [button_]\nPage 1 (Total results: 2)\n"
        "\n[clicked button] B000000003 [clicked button_]\nAcme Herbal Conditioner\n$100.0\n"
        "\n[button] B000000001 [button_]\nAcme Herbal Shampoo for Dry Hair, Tea Tree\n$12.99"
    )
    again, *_ = walk(env, "click[back to search]", "search[acme herbal]")
    assert again == results.replace("clicked button", "button")
    item, *_ = walk(env, "click[b000000001]", "click[8 oz]", "click[rose]", "click[16 oz]")
    assert item == (
        f"You have clicked rose.\nYou have clicked 16 oz.\n{head}[button] Back to Search [button_]\n"
        "[button] < Prev [button_]\nsize\n  [button] 8 oz [button_]\n  [clicked button] 16 oz [clicked button_]\n"
        "scent\n  [button] mint | lime [button_]\n  [clicked button] rose [clicked button_]\n"
        "Acme Herbal Shampoo for Dry Hair, Tea Tree\nPrice: $12.99\nRating: 4.5 out of 5 stars\n"
        "[button] Description [button_]\n[button] Features [button_]\n[button] Reviews [button_]\n"
        "[button] Buy Now [button_]"
    )


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    env = shop_of_files(tmp_path)
    walk(env, "search[conditioner]", "click[b000000003]")
    for name, text in {
        "description": "No Description",
        "features": "No Features",
        "reviews": "No reviews found",
    }.items():
        assert walk(env, f"click[{name}]")[0].endswith(f"< Prev [SEP] {text}")
        walk(env, "click[< prev]")


def test_paging() -> None:
    env = WebShop()
    env.reset(seed=1)
    first, _, _, info = walk(env, "search[black]")
    assert "Page 1 (Total results: 50) [SEP] Next > [SEP]" in first
    assert "click[< prev]" not in info["actions"]
    seen = {first}
    for page in range(2, 6):
        text, _, _, info = walk(env, "click[Next >]")
        assert f"Page {page} (Total results: 50) [SEP] < Prev [SEP]" in text
        seen.add(text)
    assert len(seen) == 5
    assert "click[next >]" not in info["actions"]
    product = info["actions"][-1]
    fifth = text
    assert walk(env, product, "click[< prev]")[0] == fifth
    assert walk(env, "click[< prev]")[0] in seen
    page, _, _, info = walk(env, "click[back to search]", "search[zyzzyva]")
    assert "Page 1 (Total results: 0)" in page
    assert info["actions"] == ("click[back to search]",)


@pytest.mark.parametrize(
    "action",
    [
        "",
        "search",
        "search[]",
        "search[ ]",
        "click[search]",
        "click[buy now]",
        "click[",
        "buy now",
        "think[x]",
        "\ud800",
    ],
)
def test_invalid_actions_leave_the_page(action: str) -> None:
    env = WebShop()
    before, reset_info = env.reset(seed=0)
    observation, reward, done, truncated, info = env.step(action)
    assert observation == f"That action is not available, so nothing happened.\n{before}"
    assert (reward, done, truncated) == (0.0, False, False)
    assert (info["valid"], info["effective"], info["success"]) == (False, False, False)
    assert info["state"] == reset_info["state"]


def test_search_needs_a_search_bar() -> None:
    env = WebShop()
    env.reset(seed=0)
    walk(env, "search[lamp]")
    assert env.step("search[rug]")[4]["valid"] is False


def test_actions_are_read_leniently_in_case_and_space() -> None:
    env = WebShop()
    env.reset(seed=0)
    walk(env, " Search [ LAMP ]\n", "CLICK[ Back To Search]")


def test_an_option_that_is_called_like_a_button(tmp_path: Path) -> None:
    groups = {name: [{"value": name} for name in ("search", "attributes", "next >", "features")] for name in ("a", "b")}
    items = [{**ITEMS[0], "customization_options": groups}]
    goals = {"B000000001": GOALS["B000000001"][:1] * 3}
    env = WebShop(**written(tmp_path, products=items, goals=goals))
    env.reset(seed=0)
    walk(env, "search[shampoo]", "click[b000000001]", "click[search]", "click[attributes]", "click[next >]")
    assert env._place.chosen == (("b", "next >"),)  # of options with one name the last counts
    assert walk(env, "click[features]")[0].endswith("[SEP] Essential oils [SEP] No parabens")


def test_what_changes_the_state() -> None:
    env = WebShop()
    _, start = env.reset(seed=0)
    *_, info = walk(env, "search[lamp]", "click[back to search]")
    assert info["state"] == start["state"]
    *_, info = walk(env, "search[lamp]")
    *_, info = walk(env, info["actions"][-1])
    first, second = info["actions"][-1], info["actions"][-4]  # of two groups of three options
    *_, info = walk(env, first)
    assert info["effective"]
    *_, info = walk(env, first)
    assert (info["valid"], info["effective"]) == (True, False)
    *_, info = walk(env, second)
    chosen = info["state"]
    *_, info = walk(env, "click[< prev]")
    *_, info = walk(env, info["actions"][-1])
    assert info["state"] != chosen
    *_, info = walk(env, second, first)  # in the other order
    assert info["state"] == chosen


def test_the_end_is_the_end() -> None:
    env = WebShop()
    env.reset(seed=0)
    *_, info = walk(env, "search[rug]")
    _, _, done, info = walk(env, info["actions"][-1], "click[buy now]")
    assert done
    _, reward, done, _, after = env.step("click[back to search]")
    assert (reward, done, after["valid"], after["success"]) == (0.0, True, False, info["success"])


def test_goals_of_a_split() -> None:
    test, train = WebShop(split="test"), WebShop(split="train")
    seen: dict[str, set[int]] = {"test": set(), "train": set()}
    for seed in range(300):
        for name, env in (("test", test), ("train", train)):
            env.reset(seed=seed)
            assert env._goal_index in env.goal_range
            seen[name].add(env._goal_index)
    assert not seen["test"] & seen["train"]
    assert len(seen["test"]) > 200
    assert len(seen["train"]) > 200
    test.reset(seed=0, options={"goal": 7})
    assert test.goal is test.shop.goals[7]
    train.reset(seed=0, options={"goal": 7})
    assert train.goal is train.shop.goals[1507]


def test_goals_are_drawn_by_their_weights() -> None:
    env = WebShop(num_products=3, split="train")
    weights = np.array([env.shop.goals[i].weight for i in env.goal_range])
    drawn = np.zeros(len(weights))
    for seed in range(4000):
        env.reset(seed=seed)
        drawn[env._goal_index - env.goal_range[0]] += 1
    # Five standard deviations of a binomial share.
    share = weights / weights.sum()
    assert (np.abs(drawn / 4000 - share) < 5 * np.sqrt(share / 4000)).all()


EPISODE = """
from envs.webshop.env import WebShop
env = WebShop(split="validation", observation_mode="text_rich", catalogue_seed=3)
for seed in range(8):
    print(env.reset(seed=seed))
    info = env.step("search[black large]")[4]
    print(env.step(info["actions"][-1]))
    print(env.step("click[buy now]"))
"""


def test_a_seed_is_the_same_episode_in_another_process() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", EPISODE],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True, timeout=HANGS, capture_output=True, text=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]  # fmt: skip
    assert outputs[0] == outputs[1]
    assert outputs[0].count("Thank you") == 8


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**31), data=st.data())
def test_random_play_never_raises(seed: int, data: st.DataObject) -> None:
    env = WebShop(split="test", show_attrs=True, observation_mode=data.draw(st.sampled_from(["text", "text_rich"])))
    observation, info = env.reset(seed=seed)
    words = st.sampled_from(env.shop.queries()) | st.text(max_size=20)
    done = False
    for _ in range(25):
        assert observation in env.observation_space
        mess = st.text(max_size=30) | st.builds("click[{}]".format, st.text(max_size=10))
        action = data.draw(st.sampled_from(info["actions"]) if info["actions"] else mess)
        if data.draw(st.integers(0, 9)) == 0:
            action = data.draw(mess)
        offered = action in info["actions"]
        text = data.draw(words) if "<text>" in action else ""
        state = info["state"]
        observation, reward, over, truncated, info = env.step(action.replace("<text>", text))
        assert 0 <= reward <= 1
        assert reward == 0 or (over and not done)
        assert not truncated
        assert over or not done
        assert info["effective"] == (info["state"] != state)
        assert info["valid"] or not info["effective"]
        if offered and text.strip():
            assert info["valid"]
        done = over
