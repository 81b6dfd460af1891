"""Goals of WebShop: read from the published files, and split into train, validation and test."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from envs.webshop.products import BadData, Product, field, fraction, texts

Split = Literal["train", "validation", "test"]
NO_BOUND = 1_000_000.0  # the published bound of a product too dear for one


@dataclass(frozen=True, slots=True)
class Goal:
    """A shopping task: the product that was described, and its attributes and options that were asked for.

    ``price_upper`` is in dollars; ``weight`` is how likely the goal is drawn, relative to the others.
    """

    asin: str
    name: str
    query: str
    product_category: str
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price_upper: float
    weight: float = 1.0


def human_goals(products: Sequence[Product], content: Mapping[str, Any], source: str) -> list[Goal]:
    """Reads the crowd-sourced goals of ``items_human_ins.json``, of the products that there are, in their order.

    As published, instructions without attributes are left out.

    Raises:
        BadData: a record lacks a field or holds another type.
    """
    goals = []
    for product in products:
        if product.asin not in content:
            continue
        records = field(content, product.asin, list, source)
        for index, record in enumerate(records):
            where = f"{source}: {product.asin}, instruction {index}"
            attributes = texts(record, "instruction_attributes", where)
            if not attributes:
                continue
            options = field(record, "instruction_options", (list, dict), where)
            values = options.values() if isinstance(options, dict) else options
            bound, bound_text = _price_bound(product, index)
            text = field(record, "instruction", str, where).strip(".") + bound_text
            goals.append(_goal(product, text, attributes, tuple(map(str, values)), bound))
    return goals


def synthetic_goals(products: Sequence[Product], content: Mapping[str, Any], source: str) -> list[Goal]:
    """Makes a goal for every combination of options of each product that ``items_ins_v2*.json`` has an instruction for.

    A goal weighs the more, the rarer its attributes are: the mean of 1/(goals that ask for the attribute).

    Raises:
        BadData: a record lacks a field or holds another type.
    """
    drafts: list[tuple[Product, str, tuple[str, ...], tuple[str, ...], float]] = []
    for product in products:
        record = content.get(product.asin)
        where = f"{source}: {product.asin}"
        if not isinstance(record, dict) or record.get("instruction") is None:
            continue
        instruction = field(record, "instruction", str, where)
        attributes = texts(record, "instruction_attributes", where)
        if not attributes:
            raise BadData(f"{where}: 'instruction_attributes' is empty")
        bound, bound_text = _price_bound(product, 0)
        groups = sorted(product.options)
        for values in itertools.product(*(values for _, values in groups)):
            asked = ", and ".join(f"{name}: {value}" for (name, _), value in zip(groups, values, strict=True))
            text = f"{instruction}{' with ' + asked if asked else ''}{bound_text}"
            drafts.append((product, text, attributes, values, bound))
    count = Counter(attribute for draft in drafts for attribute in draft[2])
    return [_goal(*draft, weight=sum(1 / count[a] for a in draft[2]) / len(draft[2])) for draft in drafts]


def _goal(
    product: Product,
    text: str,
    attributes: tuple[str, ...],
    options: tuple[str, ...],
    bound: float,
    weight: float = 1.0,
) -> Goal:
    return Goal(
        product.asin, product.title, product.query, product.product_category, text, attributes, options, bound, weight
    )


def _price_bound(product: Product, index: int) -> tuple[float, str]:
    """Returns the upper of two of the next four multiples of ten dollars, and the words that say so.

    The published code draws the two without a seed, so that its goals differ from start to start; here product and
    index decide.
    """
    above = [10.0 * i for i in range(1, 100) if 10.0 * i > product.price][:4]
    pairs = list(itertools.combinations(above, 2))
    if not pairs:
        return NO_BOUND, ""
    _, upper = pairs[int(len(pairs) * fraction("bound", product.asin, index))]
    return upper, f", and price lower than {upper:.2f} dollars"


def shuffled(goals: list[Goal]) -> list[Goal]:
    """Returns the goals in the published order, so that index ranges mean the published splits."""
    goals = list(goals)
    random.Random(233).shuffle(goals)
    return goals


def split_range(split: str, count: int) -> range:
    """Returns which of ``count`` goals, in their published order, a split holds.

    The published ranges are 0-499 (test), 500-1499 (validation) and the rest (train). A catalogue with no more than
    1500 goals is cut at the tenth and at three tenths instead.

    Raises:
        ValueError: there is no such split, or it would be empty.
    """
    if split not in get_args(Split):
        raise ValueError(f"split {split!r}: it is one of {', '.join(get_args(Split))}")
    if count < 3:
        raise ValueError(f"{count} goals: three splits need at least 3")
    test = 500 if count > 1500 else max(1, count // 10)
    train = 1500 if count > 1500 else test + max(1, count // 5)
    return {"test": range(test), "validation": range(test, train), "train": range(train, count)}[split]
