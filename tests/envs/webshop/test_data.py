"""The published files: read as published, refused with a line where they are something else."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from envs.webshop import catalogue
from envs.webshop.env import WebShop
from envs.webshop.goals import human_goals, shuffled, split_range, synthetic_goals
from envs.webshop.products import BadData, Product, Review, read_products, read_reviews
from envs.webshop.shop import Source, open_shop
from tests.envs.webshop.published import ATTRIBUTES, GOALS, ITEMS, REVIEWS, written


def products() -> list[Product]:
    return read_products(copy.deepcopy(ITEMS), "items.json", ATTRIBUTES, {})


def test_products_are_read_as_published() -> None:
    shampoo, speaker, conditioner = products()
    assert shampoo == Product(
        asin="B000000001",
        title="Acme Herbal Shampoo for Dry Hair, Tea Tree",
        description="A shampoo with natural ingredients.",
        bullets=("Essential oils", "No parabens"),
        category="beauty",
        query="shampoos",
        product_category="Beauty & Personal Care › Hair Care › Shampoo",
        price=12.99,
        price_tag="$12.99",
        options=(("size", ("8 oz", "16 oz")), ("scent", ("mint | lime", "rose"))),
        attributes=("tea tree", "natural ingredients", "dry hair"),
    )
    assert (speaker.description, speaker.bullets, speaker.options) == ("", ("Loud and long lasting",), ())
    assert speaker.price_tag == "$20.0 to $1030.0"
    assert 20 <= speaker.price <= 1030
    assert (conditioner.price, conditioner.price_tag) == (100.0, "$100.0")
    assert (conditioner.attributes, conditioner.bullets) == (("DUMMY_ATTR",), ())


def test_human_goals() -> None:
    goals = human_goals(products(), GOALS, "human.json")
    assert [(goal.asin, goal.attributes, goal.options) for goal in goals] == [
        ("B000000001", ("dry hair",), ("mint | lime", "16 oz")),
        ("B000000002", ("long lasting",), ()),
        ("B000000002", ("loud",), ("red",)),
    ]
    first = goals[0]
    # One of the next four tens above 12.99, never the lowest of them.
    assert first.price_upper in (30.0, 40.0, 50.0)
    assert (
        first.instruction == f"i want a mint shampoo for dry hair, and price lower than {first.price_upper:.2f} dollars"
    )
    assert {goal.weight for goal in goals} == {1.0}


def test_a_product_too_dear_for_a_bound_has_none() -> None:
    item = {**ITEMS[1], "pricing": "$985.00"}
    goals = human_goals(read_products([item], "items.json", {}, {}), GOALS, "human.json")
    assert (goals[0].instruction, goals[0].price_upper) == ("a speaker", 1_000_000)


def test_synthetic_goals() -> None:
    goals = synthetic_goals(products(), ATTRIBUTES, "ins.json")
    texts = [goal.instruction.split(", and price")[0] for goal in goals]
    assert texts == [
        f"Find me a herbal shampoo with scent: {scent}, and size: {size}"
        for scent in ("mint | lime", "rose")
        for size in ("8 oz", "16 oz")
    ]
    assert goals[1].options == ("mint | lime", "16 oz")
    assert [goal.weight for goal in goals] == [0.25] * 4  # each attribute is asked for four times


def test_weights_favour_rare_attributes() -> None:
    made = catalogue.generate(0, 20)
    goals = synthetic_goals(read_products(made.records, "", made.attributes, {}), made.attributes, "")
    count: dict[str, int] = {}
    for goal in goals:
        for attribute in goal.attributes:
            count[attribute] = count.get(attribute, 0) + 1
    for goal in goals:
        assert goal.weight == pytest.approx(sum(1 / count[a] for a in goal.attributes) / len(goal.attributes))


def test_the_order_of_goals_is_the_published_one() -> None:
    import random

    goals = human_goals(products(), GOALS, "human.json")
    expected = list(goals)
    random.seed(233)
    random.shuffle(expected)
    assert shuffled(goals) == expected


@pytest.mark.parametrize(
    ("split", "count", "expected"),
    [
        ("test", 12087, range(500)),
        ("validation", 12087, range(500, 1500)),
        ("train", 12087, range(1500, 12087)),
        ("train", 1501, range(1500, 1501)),
        ("test", 1500, range(150)),
        ("validation", 1500, range(150, 450)),
        ("train", 1500, range(450, 1500)),
        ("test", 3, range(1)),
        ("validation", 3, range(1, 2)),
        ("train", 3, range(2, 3)),
    ],
)
def test_splits(split: str, count: int, expected: range) -> None:
    assert split_range(split, count) == expected


def test_reviews(tmp_path: Path) -> None:
    found = read_reviews(written(tmp_path, reviews=REVIEWS)["reviews"])
    assert found == {
        "B000000001": ((Review("Nice", 5.0, "Smells fine."), Review("Hm", 2.0, "")), "4.5 out of 5 stars"),
    }


def test_an_environment_of_published_files(tmp_path: Path) -> None:
    paths = written(tmp_path, products=ITEMS, attributes=ATTRIBUTES, goals=GOALS, reviews=REVIEWS)
    env = WebShop(**paths, split="test")
    assert [len(WebShop(**paths, split=split).goal_range) for split in ("train", "validation", "test")] == [1, 1, 1]
    assert (len(env.shop.products), len(env.shop.goals)) == (3, 3)
    del paths["goals"]
    assert len(WebShop(**paths).shop.goals) == 4


def test_num_products(tmp_path: Path) -> None:
    paths = written(tmp_path, products=ITEMS, attributes=ATTRIBUTES)
    assert len(WebShop(**paths, num_products=2).shop.products) == 2
    with pytest.raises(ValueError, match=r"^0 goals: three splits need at least 3$"):
        WebShop(**written(tmp_path, products=ITEMS, attributes={}), num_products=1)


def changed(record: int, **fields: Any) -> list[Any]:
    items: list[Any] = copy.deepcopy(ITEMS)
    items[record].update(fields)
    return items


def without(record: int, name: str) -> list[Any]:
    items: list[Any] = copy.deepcopy(ITEMS)
    del items[record][name]
    return items


@pytest.mark.parametrize(
    ("files", "warn_once"),
    [
        ({"products": {}}, "products.json: holds a dict, but the published file is a list"),
        ({"products": ["x"]}, "products.json: record 0: a str, not an object"),
        ({"products": without(1, "asin")}, "products.json: record 1: no 'asin'"),
        ({"products": without(1, "name")}, "products.json: record 1 (B000000002): no 'name'"),
        ({"products": changed(1, query=7)}, "products.json: record 1 (B000000002): 'query' is a int, not a str"),
        (
            {"products": changed(0, pricing="cheap")},
            "products.json: record 0 (B000000001): 'pricing' is 'cheap', not dollars such as '$9.99'",
        ),
        (
            {"products": changed(0, pricing="$1.2.3")},
            "products.json: record 0 (B000000001): 'pricing' is '$1.2.3', not",
        ),
        ({"products": changed(0, pricing=[1])}, "products.json: record 0 (B000000001): 'pricing' is a list, not a str"),
        (
            {"products": changed(0, customization_options=["a"])},
            "products.json: record 0 (B000000001): 'customization_options' is a list, not a dict",
        ),
        (
            {"products": changed(0, customization_options={"size": "8"})},
            "products.json: record 0 (B000000001): option 'size' is a str, not a list",
        ),
        (
            {"products": changed(0, customization_options={"size": [{"price": 8}]})},
            "products.json: record 0 (B000000001): option 'size': no 'value'",
        ),
        ({"attributes": []}, "attributes.json: holds a list, but the published file is a dict"),
        ({"attributes": {"B000000001": {"attributes": [1]}}}, "attributes of B000000001: 'attributes' holds something"),
        (
            {"attributes": {"B000000001": {"instruction": "x", "instruction_attributes": []}}, "goals": None},
            "attributes.json: B000000001: 'instruction_attributes' is empty",
        ),
        ({"goals": {"B000000001": {}}}, "goals.json: 'B000000001' is a dict, not a list"),
        (
            {"goals": {"B000000001": [{"instruction": "x"}]}},
            "goals.json: B000000001, instruction 0: no 'instruction_attributes'",
        ),
        ({"reviews": [{"asin": "B"}]}, "reviews.json: record 0: no 'reviews'"),
        (
            {"reviews": [{"asin": "B", "reviews": [{"stars": "many"}], "average_rating": 1}]},
            "reviews.json: record 0: 'stars' is 'many', not a number",
        ),
    ],
)
def test_malformed_files_are_refused_by_file_and_record(tmp_path: Path, files: dict[str, Any], warn_once: str) -> None:
    content = {"products": ITEMS, "attributes": ATTRIBUTES, "goals": GOALS, **files}
    paths = written(tmp_path, **{name: value for name, value in content.items() if value is not None})
    with pytest.raises(BadData) as refused:
        WebShop(**paths)
    assert warn_once in str(refused.value)
    assert "\n" not in str(refused.value)


def test_files_that_are_missing_or_no_json(tmp_path: Path) -> None:
    paths = written(tmp_path, products=ITEMS, goals=GOALS)
    with pytest.raises(BadData, match=r"nowhere\.json: No such file or directory$"):
        WebShop(products=str(tmp_path / "nowhere.json"), goals=paths["goals"])
    Path(paths["goals"]).write_text("{", encoding="utf-8")
    with pytest.raises(BadData, match=r"goals\.json: not JSON: "):
        WebShop(**paths)


@pytest.mark.parametrize(
    ("arguments", "warn_once"),
    [
        ({"goals": "x"}, "give products=PATH too"),
        ({"products": "x"}, "give goals=PATH"),
        ({"num_products": 0}, "at least 1"),
        ({"num_products": 10_000}, "at most 9999"),
        ({"split": "dev"}, "train, validation, test"),
        ({"observation_mode": "html"}, "text, text_rich"),
        ({"num_products": 1, "split": "train", "catalogue_seed": 1}, None),
    ],
)
def test_arguments_that_do_not_fit(arguments: dict[str, Any], warn_once: str | None) -> None:
    if warn_once is None:
        WebShop(**arguments)
        return
    with pytest.raises(ValueError, match=warn_once):
        WebShop(**arguments)


def test_a_shop_is_loaded_once() -> None:
    assert open_shop(Source()) is open_shop(Source())
    assert WebShop(split="test").shop is WebShop(split="train").shop
    assert open_shop(Source(catalogue_seed=1)) is not open_shop(Source())


def test_the_made_catalogue() -> None:
    made = catalogue.generate(0)
    again = catalogue.generate(0)
    assert json.dumps(made.records) == json.dumps(again.records)
    assert made.records != catalogue.generate(1).records
    assert len({record["asin"] for record in made.records}) == catalogue.PRODUCTS == 300
    assert len({record["query"] for record in made.records}) == 10
    shop = open_shop(Source())
    assert len(shop.goals) > 1500  # so that the published ranges hold
    assert all(len(product.options) == 2 and len(product.attributes) == 4 for product in shop.products)
    assert any(product.reviews for product in shop.products)
    for goal in shop.goals:
        product = shop.by_asin[goal.asin]
        assert product.price < goal.price_upper
        assert set(goal.attributes) <= set(product.attributes)
