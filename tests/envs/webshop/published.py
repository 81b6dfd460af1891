"""Tiny files of the published structure, written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ITEMS: list[dict[str, Any]] = [
    {
        "name": "Acme Herbal Shampoo for Dry Hair, Tea Tree",
        "asin": "B000000001",
        "category": "beauty",
        "query": " Shampoos ",
        "product_category": "Beauty & Personal Care › Hair Care › Shampoo",
        "full_description": "A shampoo with natural ingredients.",
        "small_description": ["Essential oils", "No parabens"],
        "pricing": "$12.99",
        "customization_options": {
            "Size": [{"value": "8 oz", "price": 12.99}, {"value": "16 oz", "price": 15.99}],
            "Scent": [{"value": "Mint/Lime ", "image": "x.jpg"}, {"value": "rose", "image": None}],
            "Style": None,
        },
        "images": ["a.jpg"],
        "brand": "Acme",
    },
    {
        "name": "Bolt Bluetooth Speaker",
        "asin": "B000000002",
        "category": "electronics",
        "query": "speakers",
        "product_category": "Electronics › Audio › Speakers",
        "full_description": None,
        "small_description": "Loud and long lasting",
        "pricing": "$20.00 - $1,030.00",
        "customization_options": "",
        "images": ["b.jpg"],
    },
    {
        "name": "Acme Herbal Conditioner",
        "asin": "B000000003",
        "category": "beauty",
        "query": "conditioners",
        "product_category": "Beauty & Personal Care › Hair Care › Conditioners",
        "full_description": "",
        "small_description": [],
        "pricing": None,
        "customization_options": {},
        "images": ["c.jpg"],
    },
    # The published reader leaves these three out.
    {"asin": "nan"},
    {"asin": "B0000000000"},
    {"asin": "B000000001"},
]
ATTRIBUTES: dict[str, Any] = {
    "B000000001": {
        "attributes": ["tea tree", "natural ingredients", "dry hair"],
        "instruction": "Find me a herbal shampoo",
        "instruction_attributes": ["tea tree", "dry hair"],
    },
    "B000000002": {"attributes": ["long lasting"], "instruction": None, "instruction_attributes": None},
}
GOALS: dict[str, Any] = {
    "B000000001": [
        {
            "asin": "B000000001",
            "instruction": "i want a mint shampoo for dry hair.",
            "instruction_attributes": ["dry hair"],
            "instruction_options": ["mint | lime", "16 oz"],
            "worker_id": "W1",
        },
        {"instruction": "anything", "instruction_attributes": [], "instruction_options": []},
    ],
    "B000000002": [
        {"instruction": "a speaker", "instruction_attributes": ["long lasting"], "instruction_options": []},
        {"instruction": "loud one", "instruction_attributes": ["loud"], "instruction_options": {"color": "red"}},
    ],
    "B000000009": [{"instruction": "of no product here"}],
}
REVIEWS: list[Any] = [
    {
        "asin": "B000000001",
        "average_rating": "4.5 out of 5 stars",
        "reviews": [{"title": "Nice", "stars": 5, "review": "Smells fine."}, {"title": "Hm", "score": "2"}],
    }
]


def written(folder: Path, **files: Any) -> dict[str, str]:
    """Writes the files of these contents (by keyword of `WebShop`) and returns their paths."""
    paths = {}
    for name, content in files.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        paths[name] = str(path)
    return paths
