"""Validates requests and updates against what an engine can do, before they cost anything."""

from __future__ import annotations

import numpy as np

from sidecar.protocol import GenerateRequest, RequestError, UpdatePolicy, WeightUpdate, WeightUpdateError


def check_request(request: GenerateRequest, max_length: int, vocab_size: int) -> None:
    """Checks a request against an engine's limits.

    Raises:
        RequestError: it can never be served.
    """
    prompt = check_tokens(f"request {request.id}", request.prompt_ids, max_length, vocab_size)
    total = len(prompt) + request.sampling.max_new_tokens
    if total > max_length:
        raise RequestError(
            f"request {request.id}: {len(prompt)} prompt tokens and {request.sampling.max_new_tokens} new ones "
            f"exceed the engine's context of {max_length}; shorten the prompt or the budget"
        )
    if not 0 <= request.resumed_tokens <= len(prompt):
        raise RequestError(f"request {request.id}: {request.resumed_tokens} of {len(prompt)} tokens are resumed")
    if "" in request.sampling.stop_strings:
        raise RequestError(f"request {request.id}: a stop string is empty")


def check_tokens(what: str, token_ids: np.ndarray, max_length: int, vocab_size: int) -> np.ndarray:
    """Returns the tokens as int32 ``[n]``, checked.

    Raises:
        RequestError: there are none, too many, or some beyond the vocabulary.
    """
    tokens = np.asarray(token_ids, np.int32)
    if tokens.ndim != 1 or not len(tokens):
        raise RequestError(f"{what}: there must be one sequence of at least one token, not {list(tokens.shape)}")
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        raise RequestError(f"{what}: token ids must lie within the vocabulary of {vocab_size}")
    if len(tokens) > max_length:
        raise RequestError(f"{what}: {len(tokens)} tokens exceed the engine's context of {max_length}")
    return tokens


def check_policy(update: WeightUpdate, held: int, name: str) -> None:
    """Checks that an engine, which holds that many versions at once, can do with requests what an update asks.

    Raises:
        WeightUpdateError: it holds one, and they are to keep theirs; or it holds several, and they are not.
    """
    if (update.policy is UpdatePolicy.PIN) != (held > 0):
        holds = f"holds {held} versions at once" if held else "holds one version at a time"
        raise WeightUpdateError(f"{name} {holds}: version {update.version} cannot be loaded by policy {update.policy}")
