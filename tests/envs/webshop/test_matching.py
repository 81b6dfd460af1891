from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.webshop.matching import normalize_color, title_nouns, token_set_ratio

LONG_CORD = (
    "Saireed UL Listed 2 Prong Power Cord for JBL Bar 3.1 Bar 2.1 Channel 4K Ultra HD Soundbar Home Theater System "
    "Subwoofer"
)
OTHER_CORD = (
    "BRST AC Power Cord Outlet Socket Cable Plug Lead for Panasonic SC-HT830V DVD/VCR Combo Home Theater System"
)


@pytest.mark.parametrize(
    ("first", "second", "ratio"),
    [
        ("tea tree", "Tea-Tree", 100),
        ("tea tree", "tree", 100),  # all of one in the other
        ("x-large", "large", 100),
        ("essential oils", "essential oil", 96),  # LCS 13 of 13 + 14: 26/27 = 96.3
        # common "tea": "tea" / "tea tree" is 2·3/11, "tea" / "tea bag" 6/10, "tea tree" / "tea bag" 2·4/15
        ("tea tree", "tea bag", 60),
        ("black", "blue", 44),  # LCS "bl" of 5 + 4: 4/9
        ("abc", "xyz", 0),
        ("", "abc", 0),
        ("!?", "!?", 0),
        ("é", "é", 0),  # thefuzz drops what is not ASCII
        ("wide leg pant", "wide leg pants", 96),  # 26/27
    ],
)
def test_token_set_ratio_by_hand(first: str, second: str, ratio: int) -> None:
    assert token_set_ratio(first, second) == token_set_ratio(second, first) == ratio


@given(st.text(max_size=12), st.text(max_size=12))
def test_token_set_ratio_is_symmetric_and_bounded(first: str, second: str) -> None:
    assert token_set_ratio(first, second) == token_set_ratio(second, first)
    assert 0 <= token_set_ratio(first, second) <= 100


@pytest.mark.parametrize(
    ("option", "plain"),
    [
        ("", ""),
        ("black forest", "black"),
        ("violet lavender", "lavender"),  # in the order of the list, not of the option
        ("steelivy fuchsia", "fuchsia"),
        ("123alabaster", "alabaster"),
        ("webshop", "webshop"),
    ],
)
def test_normalize_color_gives_the_published_values(option: str, plain: str) -> None:
    assert normalize_color(option) == plain


@pytest.mark.parametrize(
    ("bought", "wanted", "score"),
    [
        # The published test of the title score, where spaCy tags the words.
        (
            "adidas Unisex-Adult D.o.n. Issue 2 Indoor Court Shoe",
            "adidas Unisex-Adult D.o.n. Issue 2 Basketball Shoe",
            0.85,
        ),
        (OTHER_CORD, LONG_CORD, 0.31),
        (OTHER_CORD, LONG_CORD.removesuffix(" Home Theater System Subwoofer"), 0.17),
        (
            "Minkissy 2pcs Stainless Steel Eyebrow Tweezers Blackhead Acne Remover Portable Makeup Tweezers (Silver)",
            "Rusticware 921ORB Kitchen and Bath Cabinet Knob",
            0.0,
        ),
    ],
)
def test_title_score_agrees_with_the_published_one(bought: str, wanted: str, score: float) -> None:
    nouns = title_nouns(wanted)
    assert len(set(nouns) & set(title_nouns(bought))) / len(nouns) == pytest.approx(score, abs=0.01)


def test_title_nouns() -> None:
    assert title_nouns("The Men's Quilted 4K Speed-Shoe with 2 pcs of a Soft Seed") == [
        "men", "speed", "shoe", "pcs", "seed",
    ]  # fmt: skip
    assert title_nouns("with 2.5 of the 100%") == []
