"""The shop: catalogue, goals and search engine, loaded once and shared by every environment of the process."""

from __future__ import annotations

import threading
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from envs.webshop import catalogue
from envs.webshop.goals import Goal, human_goals, shuffled, synthetic_goals
from envs.webshop.products import Product, read_json, read_products, read_reviews
from envs.webshop.search import SearchEngine


@dataclass(frozen=True, slots=True)
class Source:
    """Source of a shop's data: published files by path or, with ``products`` None, a catalogue made of a seed."""

    products: str | None = None
    attributes: str | None = None
    goals: str | None = None
    reviews: str | None = None
    num_products: int | None = None
    catalogue_seed: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError for a combination that says nothing."""
        files = (self.attributes, self.goals, self.reviews)
        if self.products is None and any(path is not None for path in files):
            raise ValueError("attributes, goals and reviews belong to a file of products: give products=PATH too")
        if self.products is not None and self.attributes is None and self.goals is None:
            raise ValueError("a file of products needs goals: give goals=PATH (human) or attributes=PATH (synthetic)")
        if self.num_products is not None and self.num_products < 1:
            raise ValueError(f"num_products is {self.num_products}: it is at least 1")
        if self.products is None and self.num_products is not None and self.num_products > 9999:
            raise ValueError(f"num_products is {self.num_products}: a made catalogue has at most 9999")


class Shop:
    """The read-only data that environments share."""

    def __init__(self, products: Sequence[Product], goals: Sequence[Goal]) -> None:
        """Indexes the products; ``goals`` are in their published order."""
        self.products = tuple(products)
        self.goals = tuple(goals)
        self.engine = SearchEngine(self.products)
        self.by_asin = {product.asin: product for product in self.products}
        self._weight_before = [0.0, *accumulate(goal.weight for goal in self.goals)]

    def search(self, words: str) -> tuple[Product, ...]:
        """Returns the best matches, at most 50."""
        return tuple(self.products[position] for position in self.engine.search(words))

    def draw(self, among: range, chance: float) -> int:
        """Returns the goal among those that a uniform number ``chance`` in [0, 1) selects, by the goals' weights."""
        low, high = self._weight_before[among.start], self._weight_before[among.stop]
        index = bisect(self._weight_before, low + chance * (high - low), among.start, among.stop + 1) - 1
        return min(index, among.stop - 1)  # rounding may put the number on the very end

    def queries(self) -> tuple[str, ...]:
        """Returns the search queries of the products, each once: words for a random player."""
        return tuple(dict.fromkeys(product.query for product in self.products))


_lock = threading.Lock()


def open_shop(source: Source) -> Shop:
    """Opens the shop of that source; the same object for the same source.

    Raises:
        BadData: a file is missing or malformed.
        ImportError: bm25s is missing.
    """
    with _lock:  # else threads that start together would each load it
        return _load(source)


@lru_cache(maxsize=8)
def _load(source: Source) -> Shop:
    if source.products is None:
        count = catalogue.PRODUCTS if source.num_products is None else source.num_products
        made = catalogue.generate(source.catalogue_seed, count)
        products = read_products(made.records, "made catalogue", made.attributes, made.reviews)
        return Shop(products, shuffled(synthetic_goals(products, made.attributes, "made catalogue")))
    attributes = read_json(source.attributes, dict) if source.attributes else {}
    reviews = read_reviews(source.reviews) if source.reviews else {}
    records = read_json(source.products, list)[: source.num_products]
    products = read_products(records, source.products, attributes, reviews)
    if source.goals:
        goals = human_goals(products, read_json(source.goals, dict), source.goals)
    else:
        goals = synthetic_goals(products, attributes, source.attributes or "")
    return Shop(products, shuffled(goals))
