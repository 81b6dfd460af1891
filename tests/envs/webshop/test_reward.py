"""The reward of a purchase against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envs.webshop.goals import Goal
from envs.webshop.products import Product
from envs.webshop.reward import matched_attributes, matched_options, purchase_reward, type_reward

PRODUCT = Product(
    asin="B000000001",
    title="Acme Herbal Shampoo",
    description="made with natural ingredients",
    bullets=("This shampoo has essential oils", "smells like lemons"),
    category="beauty",
    query="shampoos",
    product_category="Beauty › Hair Care › Shampoo",
    price=35.0,
    price_tag="$35.0",
    options=(("color", ("grey", "powder snow")), ("size", ("xl", "m"))),
    attributes=("tea tree", "dry hair"),
)
GOAL = Goal(
    asin="B000000001",
    name="Acme Herbal Shampoo",
    query="shampoos",
    product_category="Beauty › Hair Care › Shampoo",
    instruction="",
    attributes=("tea tree", "dry hair"),
    options=("grey", "xl"),
    price_upper=40.0,
)
ELSEWHERE = {"query": "lamps", "product_category": "Home › Lighting › Lamps"}
OTHER = replace(PRODUCT, **ELSEWHERE)


def total(product: Product = PRODUCT, goal: Goal = GOAL, chosen: tuple[str, ...] = ("grey", "xl")) -> float:
    return purchase_reward(product, goal, chosen).total


def test_everything_right() -> None:
    reward = purchase_reward(PRODUCT, GOAL, ["grey", "xl"])
    assert reward.total == 1.0
    assert reward.metrics() == {"r_type": 1.0, "r_att": 1.0, "r_option": 1.0, "r_price": 1.0}


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        (total(chosen=()), 3 / 5),  # attributes 2, price 1 of 2 + 2 + 1
        (total(chosen=("grey",)), 4 / 5),
        (total(chosen=("xl", "light grey")), 1.0),  # in any order; "light grey" is "grey": the list has it first
        (total(chosen=("grey", "m")), 4 / 5),
        (total(goal=replace(GOAL, price_upper=30.0)), 4 / 5),  # too dear
        (total(goal=replace(GOAL, price_upper=35.0)), 1.0),  # the bound itself is fine
        (total(goal=replace(GOAL, attributes=("tea tree", "gluten free"))), 4 / 5),
        (total(goal=replace(GOAL, attributes=("gluten free",))), 3 / 4),
        (total(goal=replace(GOAL, options=())), 1.0),  # none asked for, some chosen
        (total(goal=replace(GOAL, options=(), price_upper=1.0)), 2 / 3),
        # Another kind of product: half of it, as query and category differ and 1 of 6 title words agrees.
        (total(OTHER, replace(GOAL, name="Acme Brass Table Lamp Shade Stand")), 0.5),
        # 1 of 11 title words: a tenth of 4/5.
        (total(OTHER, replace(GOAL, name="Acme b c d e f g h i j k", price_upper=1.0)), 0.1 * 4 / 5),
        (total(OTHER, replace(GOAL, name="Brass Lamp")), 0.0),
    ],
)
def test_rewards_by_hand(reward: float, expected: float) -> None:
    # "light" comes after "grey" in the published list of colours.
    assert reward == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("product", "name", "expected"),
    [
        (PRODUCT, GOAL.name, 1.0),
        (OTHER, GOAL.name, 1.0),  # the title alone: 3 of 3
        (OTHER, "Acme b c d", 1.0),  # 1/4 > 0.2
        (OTHER, "Acme b c d e", 0.5),  # 1/5 is not
        (replace(OTHER, query="shampoos"), "Acme b c d e", 1.0),  # the query is enough
        (replace(OTHER, product_category="Shampoo › Beauty › x"), "Acme b c d e", 1.0),  # two levels, in any order
        (replace(OTHER, product_category="Beauty › Beauty › x"), "Acme b c d e", 0.5),  # one level twice
        (PRODUCT, "Acme b c d e f g h i j k", 0.1),  # 1/11 < 0.1 beats query and category
        (PRODUCT, "Acme b c d e f g h i j", 1.0),  # 1/10 does not
        (PRODUCT, "b c", 0.0),
        (PRODUCT, "100 %", 1.0),  # no nouns: query and category decide
        (OTHER, "100 %", 0.5),
    ],
)
def test_the_type(product: Product, name: str, expected: float) -> None:
    # Single letters but "a" are words like any other.
    assert type_reward(product, replace(GOAL, name=name)) == expected


@pytest.mark.parametrize(
    ("attributes", "count"),
    [
        (("tea trees",), 1),  # near enough to "tea tree"
        (("natural ingredients", "essential oils"), 2),  # in the texts
        (("tea bag", "lipton"), 0),  # "tea bag": 60 of 100
        (("Essential Oils",), 0),  # as published, a goal's capitals are not found in lower-cased texts
    ],
)
def test_attributes(attributes: tuple[str, ...], count: int) -> None:
    product = replace(PRODUCT, attributes=("tea tree",))
    assert matched_attributes(product, replace(GOAL, attributes=attributes)) == count


@pytest.mark.parametrize(
    ("chosen", "wanted", "count"),
    [
        (["pack of 12", "grey", "xl"], ("grey", "xl", "pack of 12"), 3),
        (["pack of 12", "blue", "xl"], ("grey", "xl", "pack of 12"), 2),
        (["pack of 12", "powder snow", "xl"], ("cool powder snow", "xl", "pack of 12"), 3),
        (["one", "two"], (), 0),
        ([], ("one", "two"), 0),
        (["blue", "blue steel"], ("blue",), 1),  # no option counts twice
    ],
)
def test_options(chosen: list[str], wanted: tuple[str, ...], count: int) -> None:
    assert matched_options(chosen, replace(GOAL, options=wanted)) == count
