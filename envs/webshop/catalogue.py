"""Synthetic catalogue made of a seed, for tests and first runs: records as the published files hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from envs.webshop.products import Review, fraction

PRODUCTS = 300  # by default
T = TypeVar("T")


@dataclass(frozen=True)
class _Kind:
    """A kind of product: its place in the shop, its words, its options and its prices in dollars."""

    query: str
    category: str
    path: str
    nouns: tuple[str, ...]
    attributes: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    prices: tuple[float, float]


_COLORS = ("black", "white", "navy blue", "burgundy", "forest green", "light grey", "coral pink", "mustard yellow")
_SIZES = ("small", "medium", "large", "xx-large")
_SHOE_SIZES = ("6", "7", "8.5", "9", "10.5", "12")
_PACKS = ("1 pack", "2 pack", "4 pack", "6 pack")

_KINDS = (
    _Kind(
        "men's shirts", "fashion", "Clothing, Shoes & Jewelry › Men › Clothing › Shirts",
        ("Shirt", "Henley Shirt", "Polo Shirt", "Flannel Shirt"),
        ("slim fit", "long sleeve", "machine wash", "moisture wicking", "button closure", "quality polyester"),
        (("color", _COLORS), ("size", _SIZES)), (12, 58),
    ),
    _Kind(
        "women's dresses", "fashion", "Clothing, Shoes & Jewelry › Women › Clothing › Dresses",
        ("Maxi Dress", "Wrap Dress", "Sundress", "Cocktail Dress"),
        ("hand wash", "high waist", "short sleeve", "elastic waistband", "cotton spandex", "unique design"),
        (("color", _COLORS), ("size", _SIZES)), (18, 96),
    ),
    _Kind(
        "running shoes", "fashion", "Clothing, Shoes & Jewelry › Shoes › Athletic › Running",
        ("Running Shoes", "Trail Running Shoes", "Sneakers"),
        ("rubber sole", "arch support", "non slip", "memory foam", "lace closure", "ethylene vinyl"),
        (("color", _COLORS), ("size", _SHOE_SIZES)), (32, 148),
    ),
    _Kind(
        "wireless headphones", "electronics", "Electronics › Headphones › Over-Ear Headphones",
        ("Bluetooth Headphones", "Headset", "Studio Headphones"),
        ("noise cancelling", "fast charging", "long lasting", "carrying case", "hands free", "stereo sound"),
        (("color", _COLORS), ("style", ("standard", "with microphone", "with stand"))), (24, 280),
    ),
    _Kind(
        "security cameras", "electronics", "Electronics › Camera & Photo › Video Surveillance › Cameras",
        ("Security Camera", "Dome Camera", "Doorbell Camera"),
        ("motion detection", "night vision", "easy install", "plug play", "high resolution", "batteries included"),
        (("size", _PACKS), ("style", ("indoor", "outdoor"))), (29, 420),
    ),
    _Kind(
        "face moisturizers", "beauty", "Beauty & Personal Care › Skin Care › Face › Creams & Moisturizers",
        ("Face Cream", "Moisturizer", "Night Cream", "Gel Lotion"),
        ("cruelty free", "paraben free", "hyaluronic acid", "fine lines", "sensitive skin", "tea tree"),
        (("scent", ("unscented", "lavender", "citrus", "vanilla")), ("size", ("1 fl oz", "3.4 fl oz", "8 fl oz"))),
        (6, 64),
    ),
    _Kind(
        "table lamps", "garden", "Tools & Home Improvement › Lighting & Ceiling Fans › Lamps & Shades › Table Lamps",
        ("Table Lamp", "Desk Lamp", "Bedside Lamp"),
        ("glass shade", "brushed nickel", "easy assemble", "energy efficient", "living room", "touch control"),
        (("color", _COLORS), ("size", ("12 inch", "18 inch", "24 inch"))), (15, 130),
    ),
    _Kind(
        "area rugs", "garden", "Home & Kitchen › Home Décor Products › Area Rugs, Runners & Pads › Area Rugs",
        ("Area Rug", "Runner Rug", "Shag Rug"),
        ("easy clean", "spot clean", "stain resistant", "dining room", "faux fur", "hand woven"),
        (("color", _COLORS), ("size", ("2 ft x 3 ft", "4 ft x 6 ft", "8 ft x 10 ft"))), (19, 310),
    ),
    _Kind(
        "granola bars", "grocery", "Grocery & Gourmet Food › Snack Foods › Bars › Granola & Trail Mix Bars",
        ("Granola Bars", "Oat Bars", "Protein Bars"),
        ("gluten free", "low sugar", "non gmo", "plant based", "high protein", "artificial flavors"),
        (("flavor name", ("almond", "peanut butter", "raspberry", "sea salt", "maple pecan")), ("size", _PACKS)),
        (4, 46),
    ),
    _Kind(
        "ground coffee", "grocery", "Grocery & Gourmet Food › Beverages › Coffee › Ground Coffee",
        ("Ground Coffee", "Espresso Coffee", "Decaf Coffee"),
        ("fair trade", "usda organic", "single origin", "low acid", "resealable bag", "small batch"),
        (("flavor name", ("dark roast", "hazelnut", "breakfast blend", "vanilla nut")), ("size", _PACKS)), (7, 72),
    ),
)  # fmt: skip
_BRANDS = (
    "Norvane", "Taldura", "Quillmark", "Ostrelle", "Brackenby", "Halvorix", "Pellucia", "Dunmere", "Zephra", "Kestwick",
    "Maribeau", "Orlindo", "Fennmoor", "Stavanne", "Ullapine",
)  # fmt: skip
_LINES = (
    "Aspen", "Meridian", "Juniper", "Summit", "Harbor", "Willow", "Cascade", "Ember", "Sierra", "Nimbus", "Prairie",
    "Lagoon", "Saffron", "Beacon", "Orchard", "Tundra", "Velvet", "Canyon", "Marlin", "Thistle",
)  # fmt: skip
_OPINIONS = (
    ("Exactly as described", 5, "It came quickly and does what it says."),
    ("Good value", 4, "Not perfect, but I would buy it again."),
    ("Disappointed", 2, "The picture promised more than the box held."),
)


@dataclass(frozen=True)
class Catalogue:
    """Contents of the three published files: products, attributes and instructions by product, reviews by product."""

    records: list[dict[str, Any]]
    attributes: dict[str, dict[str, Any]]
    reviews: dict[str, tuple[tuple[Review, ...], str]]


def generate(seed: int, count: int = PRODUCTS) -> Catalogue:
    """Generates ``count`` products, the kinds in turn; the same in every process."""
    made = Catalogue([], {}, {})
    for index in range(count):
        record, attributes = _product(seed, index)
        asin = record["asin"]
        made.records.append(record)
        made.attributes[asin] = attributes
        opinions = _some(_OPINIONS, int(4 * fraction(seed, index, "reviews")), seed, index, "review")
        if opinions:
            rating = sum(score for _, score, _ in opinions) / len(opinions)
            made.reviews[asin] = (tuple(Review(*opinion) for opinion in opinions), f"{rating:.1f} out of 5 stars")
    return made


def _product(seed: int, index: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Generates one record of the file of products, and its record of the file of attributes."""
    kind = _KINDS[index % len(_KINDS)]
    noun = _one(kind.nouns, seed, index, "noun")
    has = _some(kind.attributes, 4, seed, index, "attribute")
    wanted = has[:2]
    brand, line = _one(_BRANDS, seed, index, "brand"), _one(_LINES, seed, index, "line")
    record = {
        "asin": _asin(seed, index),
        "name": f"{brand} {line} {noun}, {has[0].title()}, {has[2].title()}",
        "full_description": f"The {line} {noun.lower()} by {brand}: {has[1]}, {has[3]}, and made to be used every day.",
        "small_description": [f"{attribute.capitalize()}: what our customers ask for." for attribute in has],
        "pricing": _pricing(kind.prices, seed, index),
        "customization_options": {
            name: [{"value": value} for value in sorted(_some(values, 3, seed, index, name), key=values.index)]
            for name, values in kind.options
        },
        "category": kind.category,
        "query": kind.query,
        "product_category": kind.path,
    }
    attributes = {
        "attributes": list(has),
        "instruction": f"Find me {', '.join(wanted)} {noun.lower()}",
        "instruction_attributes": list(wanted),
    }
    return record, attributes


def _pricing(prices: tuple[float, float], seed: int, index: int) -> str:
    low, high = prices
    price = low + (high - low) * fraction(seed, index, "price") ** 2  # most are cheap
    if fraction(seed, index, "range") < 0.15:
        return f"${price:.2f} - ${price * 1.3:.2f}"
    return f"${price:.2f}"


def _asin(seed: int, index: int) -> str:
    """Returns an id of ten characters, like the shop's own; the last four count, so that no two products share one."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return "B" + "".join(_one(digits, seed, index, "asin", place) for place in range(5)) + f"{index:04d}"


def _one(values: Sequence[T], *key: object) -> T:
    return values[int(len(values) * fraction(*key))]


def _some(values: Sequence[T], count: int, *key: object) -> tuple[T, ...]:
    """Returns ``count`` of the values, chosen and ordered by the key."""
    return tuple(sorted(values, key=lambda value: fraction(*key, value))[:count])
