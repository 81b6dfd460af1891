"""Phrase matching as WebShop does it, with nothing but the standard library."""

from __future__ import annotations

import re
from functools import lru_cache

# The published list, in its order: the first that occurs in an option stands for it ("black forest" is "black").
_COLORS = """
    alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo
    caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal
    dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo
    ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor
    mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand
    sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut
    wheat white wine yellow
"""

# What spaCy does not call a noun in product titles, where nearly every word is one.
_NO_NOUNS = """
    a an and are as at be been but by can could do does each every for from has have her his how if in into is it its
    may more most no nor not of off on or our out over per so such than that the their them then these they this those
    to too under up upon very via was we were what when where which while who will with within without you your
    all any both few many much other own same several some
    best big bigger black blue bright brown casual cheap classic clean comfortable compact cool cute dark deep different
    double dry easy elegant extra fast fat fine flat foldable free fresh full funny good gray great green grey
    handmade happy hard heavy high hot huge large larger lightweight little long loose low lower mini modern natural new
    nice old organic original perfect plain portable pure quick quiet red regular reusable rich round safe short simple
    slim small smaller smooth soft solid stretchy strong stylish sweet thick thin tiny tough warm washable waterproof
    wet white wide wireless wooden yellow
"""
_COLOR_ORDER = tuple(_COLORS.split())
_SKIPPED = frozenset(_NO_NOUNS.split())
_WORD = re.compile(r"(?<![\w'’])[^\W\d_](?:\w|\.(?=\w))*")


def normalize_color(option: str) -> str:
    """Returns the first colour of the published list that occurs anywhere in the option, else the option itself."""
    return next((color for color in _COLOR_ORDER if color in option), option)


def title_nouns(title: str) -> list[str]:
    """Returns the nouns of a product's title, lower-case, with repetitions: the words that count for its type.

    Stands in for spaCy's tagger (tags NOUN and PROPN): words that begin with a letter, less function words, frequent
    adjectives and participles. On the published examples it gives the published scores.
    """
    words = (word.lower() for word in _WORD.findall(title))
    return [word for word in words if word not in _SKIPPED and not _is_participle(word)]


def _is_participle(word: str) -> bool:
    return len(word) > 4 and word.endswith("ed") and not word.endswith("eed")


@lru_cache(maxsize=65536)
def token_set_ratio(first: str, second: str) -> int:
    """Computes thefuzz's ``token_set_ratio``: 0 (nothing in common) to 100.

    Tokens are runs of ASCII letters, digits and underscores, lower-case, as sets. With the common tokens C, sorted and
    joined, and each side's own A and B, it is the largest of the similarities of C, CA and CB, where that of two
    strings is 2·LCS/(sum of lengths): what thefuzz computes on rapidfuzz (Cohen 2011, "FuzzyWuzzy").
    """
    a, b = _tokens(first), _tokens(second)
    if not a or not b:
        return 0
    common = a & b
    if common and (a <= b or b <= a):
        return 100
    shared, left, right = (" ".join(sorted(tokens)) for tokens in (common, a - b, b - a))
    left, right = f"{shared} {left}".strip(), f"{shared} {right}".strip()
    pairs = ((shared, left), (shared, right), (left, right)) if shared else ((left, right),)
    return max(round(100 * _similarity(x, y)) for x, y in pairs)


def _tokens(text: str) -> set[str]:
    return set(re.sub(r"\W", " ", text.encode("ascii", "ignore").decode()).lower().split())


def _similarity(x: str, y: str) -> float:
    """Computes 2·LCS/(len x + len y), with the longest common subsequence (not substring) found row by row."""
    row = [0] * (len(y) + 1)
    for letter in x:
        diagonal = 0
        for j, other in enumerate(y, start=1):
            above = row[j]
            row[j] = diagonal + 1 if letter == other else max(above, row[j - 1])
            diagonal = above
    return 2 * row[-1] / (len(x) + len(y))
