"""WebShop environment: pages, clicks and the purchase."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, get_args

from envs.text_env import Info, TextEnv
from envs.webshop import pages
from envs.webshop.goals import Goal, Split, split_range
from envs.webshop.pages import ObservationMode, Piece
from envs.webshop.products import Product
from envs.webshop.reward import purchase_reward
from envs.webshop.shop import Source, open_shop

INSTRUCTION = """You are shopping on the web. An instruction says what to buy: find the product, choose its options \
and buy it. The closer it is to the instruction in kind, attributes, options and price, the higher is your score. \
There is one purchase.

Every turn you see a page and the actions that are available on it. There are two kinds of actions:
search[words] looks for products, where there is a search bar.
click[value] clicks a button, a product or an option of the page; value is one of those listed as available.
An action that is not available changes nothing."""

_ACTION = re.compile(r"\s*(search|click)\s*\[(.*)\]\s*", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Place:
    """Position of the customer: ``page`` is search, results, item, done or the name of a sub-page."""

    page: str = "search"
    words: str = ""
    number: int = 1
    asin: str = ""
    chosen: tuple[tuple[str, str], ...] = ()  # option and value, sorted


class WebShop(TextEnv):
    """A shop of which one product is to be bought: `search[words]` and `click[value]`, and the score at the purchase.

    Unlike the published environment, which searches from any page, search is an action only where there is a search
    bar, as in the paper.
    """

    def __init__(
        self,
        render_mode: str | None = None,
        *,
        products: str | None = None,
        attributes: str | None = None,
        goals: str | None = None,
        reviews: str | None = None,
        num_products: int | None = None,
        catalogue_seed: int = 0,
        split: Split = "train",
        observation_mode: ObservationMode = "text",
        show_attrs: bool = False,
    ) -> None:
        """Opens a shop: that of published files, or without ``products`` one with a made catalogue.

        Args:
            render_mode: ``"ansi"`` or None.
            products: path of ``items_shuffle.json`` or ``items_shuffle_1000.json``.
            attributes: path of ``items_ins_v2.json`` or ``items_ins_v2_1000.json``: what products are like, and the
                synthetic instructions.
            goals: path of ``items_human_ins.json``, the human instructions; without it the synthetic ones are used.
            reviews: path of ``reviews.json``.
            num_products: take that many of the first products (of a made catalogue: make that many).
            catalogue_seed: what the made catalogue is made of.
            split: train, validation or test, by the published ranges of goals.
            observation_mode: ``"text"``: pieces of the page joined by [SEP]. ``"text_rich"``: a line each, with marks
                on what can be clicked and on what was.
            show_attrs: whether items have a page of their attributes.

        Raises:
            BadData: a file is missing or malformed.
            ImportError: bm25s is missing.
            ValueError: the arguments do not fit together, or the split has no goals.
        """
        super().__init__(render_mode)
        if observation_mode not in get_args(ObservationMode):
            raise ValueError(f"observation_mode {observation_mode!r}: one of {', '.join(get_args(ObservationMode))}")
        self.shop = open_shop(Source(products, attributes, goals, reviews, num_products, catalogue_seed))
        self.goal_range = split_range(split, len(self.shop.goals))
        self._mode: ObservationMode = observation_mode
        self._show_attrs = show_attrs
        self.goal: Goal = self.shop.goals[self.goal_range[0]]
        self._begin(self.goal_range[0])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Begins an episode with a goal drawn, by its weight, from the split.

        ``options={"goal": i}`` takes the i-th goal of the split instead, to go through all of them.
        """
        super().reset(seed=seed)
        if options and "goal" in options:
            index = self.goal_range[options["goal"]]
        else:
            index = self.shop.draw(self.goal_range, self.np_random.random())
        self._begin(index)
        return self._page_text(), {"instruction": INSTRUCTION, **self._info()}

    def _begin(self, index: int) -> None:
        self.goal = self.shop.goals[index]
        self._goal_index = index
        self._place = _Place()
        self._results: tuple[Product, ...] = ()
        self._visited: frozenset[str] = frozenset()
        self._score = 0.0
        self._pieces = self._page()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Takes an action; the reward is 0 until the purchase, which ends the episode."""
        before = self._place
        valid = self._act(action)
        done, reward, metrics = self._place.page == "done", 0.0, {}
        if done and before.page != "done":
            bought = purchase_reward(self._product(), self.goal, [value for _, value in before.chosen])
            self._score = reward = bought.total
            metrics = {"metrics": bought.metrics()}
        self._pieces = self._page()
        observation = self._page_text()
        if not valid:
            observation = f"That action is not available, so nothing happened.\n{observation}"
        info: Info = {
            **self._info(),
            **metrics,
            "valid": valid,
            "effective": self._place != before,
            "success": done and self._score == 1.0,
        }
        return observation, reward, done, False, info

    def render(self) -> str | None:
        """Renders the page as text."""
        return self._page_text() if self.render_mode == "ansi" else None

    def _act(self, action: str) -> bool:
        """Goes where the action leads; returns False if it is none of this page."""
        match = _ACTION.fullmatch(action)
        if match is None:
            return False
        name, argument = match[1].lower(), match[2].strip().lower()
        if name == "search":
            if self._place.page != "search" or not argument:
                return False
            self._results = self.shop.search(argument)
            self._place = _Place("results", argument)
            return True
        piece = self._clickable().get(argument)
        if piece is not None:
            self._click(piece)
        return piece is not None

    def _clickable(self) -> dict[str, Piece]:
        """Returns what can be clicked now, by name. Of options with one name the last counts, as published."""
        options = {piece.text.strip().lower(): piece for piece in self._pieces if piece.kind in ("option", "product")}
        buttons = {piece.text.lower(): piece for piece in self._pieces if piece.kind == "button"}
        buttons.pop(pages.SEARCH.lower(), None)  # it only sends what was written into the search bar
        return {**buttons, **options, **buttons}

    def _click(self, piece: Piece) -> None:
        place = self._place
        if piece.kind == "button":
            self._place = {
                pages.BUY: replace(place, page="done"),
                pages.BACK: _Place(),
                pages.NEXT: replace(place, number=place.number + 1),
                pages.PREVIOUS: self._previous(),
            }.get(piece.text, replace(place, page=piece.text))
            if piece.text == pages.BACK:  # a new beginning, as published
                self._visited = frozenset()
        elif piece.kind == "product":
            self._place = replace(place, page="item", asin=piece.text)
            self._visited |= {piece.text}
        else:
            option = next(option for option, values in reversed(self._product().options) if piece.text in values)
            self._place = replace(place, chosen=tuple(sorted({**dict(place.chosen), option: piece.text}.items())))

    def _previous(self) -> _Place:
        place = self._place
        if place.page == "results":
            return replace(place, number=place.number - 1)
        if place.page == "item":  # back to the results, where nothing is chosen
            return _Place("results", place.words, place.number)
        return replace(place, page="item")

    def _product(self) -> Product:
        return self.shop.by_asin[self._place.asin]

    def _page(self) -> list[Piece]:
        place, instruction = self._place, self.goal.instruction
        if place.page == "search":
            return pages.search_page(instruction)
        if place.page == "results":
            return pages.results_page(instruction, self._results, place.number, self._visited)
        if place.page == "item":
            return pages.item_page(instruction, self._product(), dict(place.chosen), self._show_attrs)
        if place.page == "done":
            return pages.done_page(self._score)
        return pages.sub_page(instruction, self._product(), place.page)

    def _page_text(self) -> str:
        return pages.as_text(self._pieces, self._mode)

    def _info(self) -> Info:
        search = ("search[<text>]",) if self._place.page == "search" else ()
        actions = (*search, *(f"click[{name}]" for name in self._clickable()))
        return {
            "actions": actions,
            "suffix": f"Available actions: {', '.join(actions)}" if actions else "",
            "state": f"{self._goal_index} {self._place}",
        }
