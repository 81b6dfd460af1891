"""Products of WebShop, and the reading of the published files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class BadData(ValueError):
    """Raised for a file that is not what the published one of its kind is; the message names file and record."""


@dataclass(frozen=True, slots=True)
class Review:
    """A customer's review."""

    title: str
    score: float
    body: str


@dataclass(frozen=True, slots=True)
class Product:
    """A product. ``options`` are names and values in the order of the file, lower-case.

    ``price`` (dollars) is what it costs at purchase, ``price_tag`` what pages say: of a product with two prices the tag
    gives the range.
    """

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    category: str
    query: str
    product_category: str
    price: float
    price_tag: str
    options: tuple[tuple[str, tuple[str, ...]], ...]
    attributes: tuple[str, ...]
    reviews: tuple[Review, ...] = ()
    rating: str = "N.A."


def fraction(*key: object) -> float:
    """Returns a number in [0, 1) that depends on the key alone, in every process: what the
    published code draws unseeded.
    """
    digest = hashlib.sha256("\x1f".join(map(str, key)).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def read_json(path: str, kind: type) -> Any:
    """Reads the file's content, which must be a `list` or a `dict`.

    Raises:
        BadData: the file cannot be read, is no JSON, or holds something else.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadData(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise BadData(f"{path}: not JSON: {error}") from error
    if not isinstance(content, kind):
        raise BadData(f"{path}: holds a {type(content).__name__}, but the published file is a {kind.__name__}")
    return content


def field(record: Any, name: str, kind: type | tuple[type, ...], where: str) -> Any:
    """Returns ``record[name]``, if it is of that kind.

    Raises:
        BadData: it is missing or of another kind; ``where`` begins the message.
    """
    if not isinstance(record, dict):
        raise BadData(f"{where}: a {type(record).__name__}, not an object")
    if name not in record:
        raise BadData(f"{where}: no '{name}'")
    value = record[name]
    if not isinstance(value, kind):
        wanted = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
        raise BadData(f"{where}: '{name}' is a {type(value).__name__}, not a {wanted}")
    return value


def texts(record: Any, name: str, where: str) -> tuple[str, ...]:
    """Returns ``record[name]``, a list of strings; raises `BadData` as `field` does."""
    values = field(record, name, list, where)
    if not all(isinstance(value, str) for value in values):
        raise BadData(f"{where}: '{name}' holds something that is not text")
    return tuple(values)


def read_products(
    records: Iterable[Any],
    source: str,
    attributes: Mapping[str, Any],
    reviews: Mapping[str, tuple[tuple[Review, ...], str]],
) -> list[Product]:
    """Reads the products of the records of ``items_shuffle*.json``, in their order.

    As published, records without a proper number (``nan``, longer than 10 characters) and repetitions are left out.
    ``source`` names the file in messages; ``attributes`` is the content of ``items_ins_v2*.json``.

    Raises:
        BadData: a record lacks a field or holds another type.
    """
    products: dict[str, Product] = {}
    for index, record in enumerate(records):
        where = f"{source}: record {index}"
        asin = field(record, "asin", str, where)
        if asin == "nan" or len(asin) > 10 or asin in products:
            continue
        products[asin] = _product(record, asin, f"{where} ({asin})", attributes, reviews)
    return list(products.values())


def _product(
    record: dict[str, Any],
    asin: str,
    where: str,
    attributes: Mapping[str, Any],
    reviews: Mapping[str, tuple[tuple[Review, ...], str]],
) -> Product:
    bullets = field(record, "small_description", (list, str, type(None)), where)
    price, tag = _price(record.get("pricing"), asin, where)
    its_reviews, rating = reviews.get(asin, ((), "N.A."))
    has_attributes = isinstance(attributes.get(asin), dict) and "attributes" in attributes[asin]
    return Product(
        asin=asin,
        title=field(record, "name", str, where),
        description=field(record, "full_description", (str, type(None)), where) or "",
        bullets=tuple(str(bullet) for bullet in bullets) if isinstance(bullets, list) else (bullets or "",),
        category=field(record, "category", str, where),
        query=field(record, "query", str, where).lower().strip(),
        product_category=field(record, "product_category", str, where),
        price=price,
        price_tag=tag,
        options=_options(record.get("customization_options"), where),
        # The published stand-in for a product of which nothing is known; it matches no goal.
        attributes=texts(attributes[asin], "attributes", f"attributes of {asin}")
        if has_attributes
        else ("DUMMY_ATTR",),
        reviews=its_reviews,
        rating=rating,
    )


def _price(pricing: Any, asin: str, where: str) -> tuple[float, str]:
    """Parses "$9.99", "$9.99 - $12.50" or nothing at all (as published, 100 dollars) into the price and its tag."""
    if not pricing:
        return 100.0, "$100.0"
    if not isinstance(pricing, str):
        raise BadData(f"{where}: 'pricing' is a {type(pricing).__name__}, not a str")
    try:
        prices = [float(re.sub(r"[^\d.]", "", part)) for part in pricing.split("$")[1:]]
    except ValueError:
        prices = []
    if not prices:
        raise BadData(f"{where}: 'pricing' is {pricing!r}, not dollars such as '$9.99'")
    if len(prices) == 1:
        return prices[0], f"${prices[0]}"
    low, high = prices[:2]
    return low + (high - low) * fraction("price", asin), f"${low} to ${high}"


def _options(groups: Any, where: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if not groups:  # null, "" and {} all occur
        return ()
    if not isinstance(groups, dict):
        raise BadData(f"{where}: 'customization_options' is a {type(groups).__name__}, not a dict")
    options: dict[str, tuple[str, ...]] = {}
    for name, contents in groups.items():
        if contents is None:
            continue
        if not isinstance(contents, list):
            raise BadData(f"{where}: option '{name}' is a {type(contents).__name__}, not a list")
        values = (field(content, "value", str, f"{where}: option '{name}'") for content in contents)
        # Repetitions would be one button twice.
        options[name.lower()] = tuple(dict.fromkeys(value.strip().replace("/", " | ").lower() for value in values))
    return tuple(options.items())


def read_reviews(path: str) -> dict[str, tuple[tuple[Review, ...], str]]:
    """Reads reviews and average rating by product of the published ``reviews.json``;
    raises `BadData` as `field` does.
    """
    found = {}
    for index, record in enumerate(read_json(path, list)):
        where = f"{path}: record {index}"
        reviews = []
        for review in field(record, "reviews", list, where):
            score_key = "score" if isinstance(review, dict) and "score" in review else "stars"
            score = field(review, score_key, (int, float, str), where)
            try:
                reviews.append(Review(str(review.get("title", "")), float(score), str(review.get("review") or "")))
            except ValueError as error:
                raise BadData(f"{where}: '{score_key}' is {score!r}, not a number") from error
        rating = str(field(record, "average_rating", (int, float, str), where))
        found[field(record, "asin", str, where)] = (tuple(reviews), rating)
    return found
