"""Pages of WebShop as text, in the published observation modes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from envs.webshop.products import Product

ObservationMode = Literal["text", "text_rich"]
Kind = Literal["text", "button", "product", "option"]

PER_PAGE = 10
SEARCH, BACK, NEXT, PREVIOUS, BUY = "Search", "Back to Search", "Next >", "< Prev", "Buy Now"
SUB_PAGES = ("Description", "Features", "Reviews", "Attributes")


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a page; everything but text can be clicked, under its lower-case name. ``clicked``: was before."""

    text: str
    kind: Kind = "text"
    clicked: bool = False


def search_page(instruction: str) -> list[Piece]:
    """Returns the search page, on which an episode begins."""
    return [Piece("WebShop"), *_head(instruction), Piece(SEARCH, "button")]


def results_page(
    instruction: str, results: Sequence[Product], page: int, visited: frozenset[str] = frozenset()
) -> list[Piece]:
    """Returns page ``page`` (from 1) of the results, ten a page."""
    pieces = [*_head(instruction), Piece(BACK, "button"), Piece(f"Page {page} (Total results: {len(results)})")]
    if page > 1:
        pieces.append(Piece(PREVIOUS, "button"))
    if page * PER_PAGE < len(results):
        pieces.append(Piece(NEXT, "button"))
    for product in results[(page - 1) * PER_PAGE : page * PER_PAGE]:
        pieces.append(Piece(product.asin, "product", product.asin in visited))
        pieces += [Piece(product.title), Piece(product.price_tag)]
    return pieces


def item_page(instruction: str, product: Product, chosen: Mapping[str, str], show_attrs: bool) -> list[Piece]:
    """Returns the page of one product, its options (``chosen``: value by name), and the way to its sub-pages."""
    pieces = [*_head(instruction), Piece(BACK, "button"), Piece(PREVIOUS, "button")]
    for name, values in product.options:
        pieces.append(Piece(name))
        pieces += [Piece(value, "option", chosen.get(name) == value) for value in values]
    pieces += [Piece(product.title), Piece(f"Price: {product.price_tag}"), Piece(f"Rating: {product.rating}")]
    pieces += [Piece(name, "button") for name in SUB_PAGES if show_attrs or name != "Attributes"]
    return [*pieces, Piece(BUY, "button")]


def sub_page(instruction: str, product: Product, name: str) -> list[Piece]:
    """Returns one of the product's sub-pages, ``name`` of `SUB_PAGES`."""
    head = [*_head(instruction), Piece(BACK, "button"), Piece(PREVIOUS, "button")]
    return head + [Piece(text) for text in _sub_page_texts(product, name)]


def _sub_page_texts(product: Product, name: str) -> Iterable[str]:
    if name == "Description":
        return [product.description or "No Description"]
    if name == "Features":
        return [bullet for bullet in product.bullets if bullet] or ["No Features"]
    if name == "Reviews":
        texts = [(f'"{review.title}"', f"{review.score}", review.body) for review in product.reviews]
        return [text for review in texts for text in review if text] or ["No reviews found"]
    return [*product.attributes, product.category, product.query, product.product_category]


def done_page(reward: float) -> list[Piece]:
    """Returns the page after the purchase."""
    return [
        Piece("Thank you for shopping with us!"),
        Piece("Your score (min 0.0, max 1.0)"),
        Piece(str(round(reward, 6))),
    ]


def _head(instruction: str) -> list[Piece]:
    return [Piece("Instruction:"), Piece(instruction)]


def as_text(pieces: Sequence[Piece], mode: ObservationMode) -> str:
    """Renders the page as the published environment writes it.

    ``text`` joins the pieces with [SEP]. ``text_rich`` writes a line each and marks what can be clicked and what was:
    unlike ``text`` it shows which options are chosen.
    """
    if mode == "text":
        return " [SEP] ".join(piece.text.strip() for piece in pieces)
    chosen = [f"You have clicked {piece.text}." for piece in pieces if piece.kind == "option" and piece.clicked]
    return "\n".join([*reversed(chosen), *(_rich(piece) for piece in pieces)])


def _rich(piece: Piece) -> str:
    if piece.kind == "text":
        return piece.text
    mark = "clicked button" if piece.clicked else "button"
    indent = {"product": "\n", "option": "  ", "button": ""}[piece.kind]
    return f"{indent}[{mark}] {piece.text} [{mark}_]"
