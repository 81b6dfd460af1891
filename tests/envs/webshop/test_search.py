from __future__ import annotations

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from envs.webshop.products import Product
from envs.webshop.search import SearchEngine, document, tokens
from envs.webshop.shop import Source, open_shop
from envs.webshop.stem import stem
from tests.waiting import HANGS

STEMS = """
    caresses caress ponies poni ties ti caress caress cats cat feed feed agreed agre plastered plaster bled bled
    motoring motor sing sing conflated conflat troubled troubl sized size hopping hop tanned tan falling fall
    hissing hiss fizzed fizz failing fail filing file happy happi sky sky relational relat conditional condit
    rational ration digitizer digit radically radic vietnamization vietnam predication predic operator oper
    feudalism feudal decisiveness decis hopefulness hope callousness callous formality formal sensitivity sensit
    sensibility sensibl triplicate triplic formative form formalize formal electrical electr hopeful hope goodness
    good revival reviv allowance allow inference infer airliner airlin gyroscopic gyroscop adjustable adjust
    defensible defens irritant irrit replacement replac adjustment adjust dependent depend adoption adopt communism
    commun activate activ angularity angular homologous homolog effective effect bowdlerize bowdler probate probat
    rate rate cease ceas controlling control roll roll generalizations gener oscillators oscil dresses dress lamps
    lamp as as
"""
SHOP = open_shop(Source())


def bm25(documents: list[list[str]], query: list[str], k1: float = 0.9, b: float = 0.4) -> np.ndarray:
    """Σ idf·tf/(tf + k1·(1 − b + b·|d|/mean|d|)), idf = ln(1 + (N − n + ½)/(n + ½)): Lucene's BM25 since version 8."""
    lengths = np.array([len(words) for words in documents], np.float64)
    counts = [Counter(words) for words in documents]
    scores = np.zeros(len(documents))
    for word in query:
        tf = np.array([count[word] for count in counts], np.float64)
        n = np.count_nonzero(tf)
        idf = np.log(1 + (len(documents) - n + 0.5) / (n + 0.5))
        scores += idf * tf / (tf + k1 * (1 - b + b * lengths / lengths.mean()))
    return scores


@pytest.mark.parametrize(
    "query",
    [
        "running shoes with arch support",
        "gluten free granola bars almond 2 pack",
        "women's dresses, burgundy",
        "black black lamp",
        "Norvane",
    ],
)
def test_results_are_those_of_the_formula(query: str) -> None:
    documents = [tokens(document(product)) for product in SHOP.products]
    scores = bm25(documents, tokens(query))
    results = SHOP.engine.search(query)
    assert len(results) == min(50, np.count_nonzero(scores))
    np.testing.assert_allclose(scores[list(results)], np.sort(scores)[::-1][: len(results)], rtol=1e-5)


def product(asin: str, title: str) -> Product:
    return Product(asin, title, "", (), "", "", "", 1.0, "$1.0", (), ())


def test_equal_scores_come_in_the_order_of_the_products() -> None:
    shop = SearchEngine([product(f"B{i}", "green lamp" if i % 2 else "green rug") for i in range(200)])
    assert shop.search("lamp") == tuple(range(1, 101, 2))
    assert shop.search("rug") == tuple(range(0, 100, 2))
    assert shop.search("green") == tuple(range(50))
    assert shop.search("green rug lamp lamp") == tuple(range(1, 101, 2))


@pytest.mark.parametrize("query", ["", "the of and", "zyzzyva", "!?", "☃"])
def test_nothing_found(query: str) -> None:
    assert SHOP.engine.search(query) == ()


def test_an_empty_shop_finds_nothing() -> None:
    assert SearchEngine([]).search("lamp") == ()
    assert SearchEngine([product("B1", "the")]).search("the lamp") == ()


def test_what_is_indexed() -> None:
    options = (("color", ("red", "blue")), ("size", ("m",)))
    thing = Product("B1", "Title", "Text.", ("First", "second"), "c", "q", "p", 1.0, "$1.0", options, ("attr",))
    assert document(thing) == "Title Text. First color: red, blue, and size: m"


def test_tokens() -> None:
    assert tokens("The Women's Dresses, batteries & 2.5-inch glasses for 1,000 D.o.n. shoes.Lamp") == [
        "women", "dress", "batteri", "2.5", "inch", "glass", "1,000", "d.o.n", "shoes.lamp",
    ]  # fmt: skip


def test_stems_are_those_of_the_paper() -> None:
    words = STEMS.split()
    pairs = list(zip(words[::2], words[1::2], strict=True))
    assert [(word, stem(word)) for word, _ in pairs] == pairs


def test_searching_touches_no_jax() -> None:
    code = (
        "import sys, envs.webshop.shop as shop; shop.open_shop(shop.Source()); assert 'jax' not in sys.modules; "
        "import jax.lax"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=HANGS)


def test_a_missing_library_is_one_line() -> None:
    code = (
        "import sys; sys.modules['bm25s'] = None\n"
        "import envs.webshop.shop as shop\n"
        "try: shop.open_shop(shop.Source())\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=HANGS, capture_output=True, text=True)
    assert done.stdout == "WebShop searches with bm25s, which rljax's extra webshop installs\n"
