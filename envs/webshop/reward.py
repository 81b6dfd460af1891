"""The published reward of a WebShop purchase."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from envs.webshop.goals import Goal
from envs.webshop.matching import normalize_color, title_nouns, token_set_ratio
from envs.webshop.products import Product

_SAME = 85  # a token set ratio above it is a match


@dataclass(frozen=True, slots=True)
class Reward:
    """The reward and its parts, each in [0, 1]; ``option`` is None where the goal asks for none."""

    total: float
    type: float
    attribute: float
    option: float | None
    price: float

    def metrics(self) -> dict[str, float]:
        """Returns the parts under their published names."""
        parts = {"r_type": self.type, "r_att": self.attribute, "r_price": self.price}
        return parts if self.option is None else {**parts, "r_option": self.option}


def type_reward(product: Product, goal: Goal) -> float:
    """Returns 0, 0.1, 0.5 or 1: how far the product is of the kind that was asked for.

    With s the share of the goal title's nouns that the product's title has: 0 if s is 0, 0.1 if s < 0.1; else 1 if
    query, or two levels of the category, or more than 0.2 of the title agree, and 0.5 if none of these does.
    """
    wanted = title_nouns(goal.name)
    score = len(set(wanted) & set(title_nouns(product.title))) / len(wanted) if wanted else 0.2
    if score == 0:
        return 0.0
    if score < 0.1:
        return 0.1
    same_query = product.query == goal.query
    same_category = len(_levels(product.product_category) & _levels(goal.product_category)) >= 2
    return 1.0 if same_query or same_category or score > 0.2 else 0.5


def _levels(category: str) -> set[str]:
    return {level.strip() for level in category.split("›")}


def matched_attributes(product: Product, goal: Goal) -> int:
    """Counts the goal's attributes that the product has, by its attributes or by its texts."""
    pages = (product.title.lower(), " ".join(product.bullets).lower(), product.description.lower())
    return sum(
        any(token_set_ratio(own, wanted) > _SAME for own in product.attributes) or any(wanted in page for page in pages)
        for wanted in goal.attributes
    )


def matched_options(chosen: Iterable[str], goal: Goal) -> int:
    """Counts the goal's options that are among the chosen, colours by their plain name."""
    plain = [normalize_color(option) for option in chosen]
    return sum(
        any(token_set_ratio(option, normalize_color(wanted)) > _SAME for option in plain) for wanted in goal.options
    )


def purchase_reward(product: Product, goal: Goal, chosen: Iterable[str]) -> Reward:
    """Computes r = r_type · (attributes + options matched + [price ≤ bound]) / (attributes + options asked for + 1).

    Args:
        product: what is bought.
        goal: what was asked for; it has at least one attribute.
        chosen: the values of the chosen options.

    Returns:
        The reward and its parts. (Yao et al. 2022, section 3.1; the code is ``get_reward`` of ``engine/goal.py``.)
    """
    r_type = type_reward(product, goal)
    attributes = matched_attributes(product, goal)
    options = matched_options(chosen, goal)
    in_budget = product.price <= goal.price_upper
    asked = len(goal.attributes) + len(goal.options) + 1
    return Reward(
        total=r_type * (attributes + options + in_budget) / asked,
        type=r_type,
        attribute=attributes / len(goal.attributes),
        option=options / len(goal.options) if goal.options else None,
        price=float(in_budget),
    )
