"""BM25 search over the texts of the products."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from envs.webshop.products import Product
from envs.webshop.stem import stem

# Lucene's parameters as pyserini sets them, which the published engine searches with.
K1, B = 0.9, 0.4
RESULTS = 50  # SEARCH_RETURN_N of the published engine

# Lucene's English stop words.
_STOP_WORDS = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with"
)
_STOP = frozenset(_STOP_WORDS.split())


# Words as Lucene cuts them: a point or an apostrophe joins letters, a point or a comma digits ("2.5", "d.o.n").
_TOKEN = re.compile(r"\w+(?:(?:(?<=[^\W\d])['’.](?=[^\W\d])|(?<=\d)[.,](?=\d))\w+)*")


def tokens(text: str) -> list[str]:
    """Returns lower-case stems without possessive ending and stop words: what Lucene's
    English analyzer makes of a text.
    """
    words = (re.sub(r"['’]s$", "", word) for word in _TOKEN.findall(text.lower()))
    return [stem(word) for word in words if word not in _STOP]


def document(product: Product) -> str:
    """Returns the published index's text of a product: title, description, first bullet point and options."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options)
    return " ".join([product.title, product.description, *product.bullets[:1], options])


class SearchEngine:
    """Ranks products by BM25; reading it is safe from several threads."""

    def __init__(self, products: Sequence[Product]) -> None:
        """Indexes the products. Raises ImportError, in a line, where bm25s is missing."""
        corpus = [tokens(document(product)) for product in products]
        # bm25s cannot index nothing at all.
        self._index: Any = None
        if any(corpus):
            self._index = _bm25s().BM25(k1=K1, b=B, method="lucene")
            self._index.index(corpus, show_progress=False)

    def search(self, words: str) -> tuple[int, ...]:
        """Returns the positions of the best matches, at most 50; equal scores in the products' order.

        Products that share no word with the query do not match. A repeated word counts repeatedly, as in Lucene.
        """
        known = [] if self._index is None else self._index.get_tokens_ids(tokens(words))
        if not known:
            return ()
        scores = self._index.get_scores_from_ids(known)
        found = np.flatnonzero(scores > 0)
        if len(found) > RESULTS:
            least = np.partition(scores[found], -RESULTS)[-RESULTS]
            found = found[scores[found] >= least]
        best = found[np.argsort(-scores[found], kind="stable")]
        return tuple(int(position) for position in best[:RESULTS])


def _bm25s() -> ModuleType:
    """Imports the library bm25s as if there were no JAX.

    It would otherwise run a JAX operation when it is imported, for a way of sorting that is not used here, and so take
    an accelerator (and most of its memory) that this process has no business with. While it lasts no other thread can
    import ``jax.lax`` by that name; what was imported before goes on working.
    """
    loaded = sys.modules.get("bm25s")
    if loaded is not None:
        return loaded
    absent = object()
    hidden: Any = sys.modules.get("jax.lax", absent)
    sys.modules["jax.lax"] = None  # type: ignore[assignment]
    try:
        import bm25s
    except ImportError as error:
        raise ImportError("WebShop searches with bm25s, which rljax's extra webshop installs") from error
    finally:
        if hidden is absent:
            del sys.modules["jax.lax"]
        else:
            sys.modules["jax.lax"] = hidden
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it logs every index that it builds
    return bm25s
