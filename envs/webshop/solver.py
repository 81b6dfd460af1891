"""Scripted agent of WebShop that knows the goal."""

from __future__ import annotations

from collections import deque
from typing import Any

import gymnasium

from envs.webshop.env import WebShop


class WebShopSolver:
    """Searches by the goal's words, pages to the goal's product, chooses its options and buys it.

    It knows which product was described, but finds it only as a player can. What it does not find by the words of the
    instruction it searches by title, and if that fails too it buys what comes first.
    """

    def __init__(self) -> None:
        self._asin = ""
        self._searches: deque[str] = deque()
        self._options: deque[str] = deque()

    def begin(self, env: gymnasium.Env[str, str], seed: int) -> None:
        """Looks up the goal."""
        shop = env.unwrapped
        if not isinstance(shop, WebShop):
            raise TypeError(f"WebShopSolver plays WebShop, not {type(shop).__name__}")
        goal = shop.goal
        self._asin = goal.asin.lower()
        self._searches = deque([" ".join((goal.query, *goal.attributes, *goal.options)), goal.name])
        self._options = deque(goal.options)

    def act(self, observation: str, info: dict[str, Any]) -> str:
        """Returns the next action towards the purchase."""
        actions = info["actions"]
        if "search[<text>]" in actions:
            return f"search[{self._searches.popleft()}]"
        if "click[buy now]" in actions:
            while self._options:
                click = f"click[{self._options.popleft().lower()}]"
                if click in actions:
                    return click
            return "click[buy now]"
        for click in (f"click[{self._asin}]", "click[next >]"):
            if click in actions:
                return click
        if self._searches:
            return "click[back to search]"
        # Not found: a product of the page, if there is one, else anything.
        return str(actions[-1])
