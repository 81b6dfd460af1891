"""Converts requests to vLLM's parameters, and its outputs to completions."""

from __future__ import annotations

from typing import Any

import numpy as np
from vllm import SamplingParams
from vllm.inputs.engine import TokensInput, tokens_input
from vllm.sampling_params import RequestOutputKind

from sidecar.protocol import RequestError
from sidecar.stepping.jobs import Job


def continuation(job: Job, *, stepwise: bool, salt: int) -> tuple[TokensInput, SamplingParams]:
    """Returns prompt and parameters of a request, or of what is left of it. Stop strings are found by us, not by vLLM.

    Args:
        job: the request.
        stepwise: asks for the tokens as they are sampled, instead of all of them at the end.
        salt: requests share the KV of a common prefix with those of the same salt.
    """
    sampling = job.request.sampling
    params = SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p if sampling.temperature else 1.0,
        top_k=sampling.top_k if sampling.temperature else 0,
        min_p=sampling.min_p if sampling.temperature else 0.0,
        repetition_penalty=sampling.repetition_penalty,
        max_tokens=job.budget,
        stop_token_ids=list(sampling.stop_token_ids),
        seed=_seed(job),
        logprobs=0,
        flat_logprobs=True,
        ignore_eos=True,  # only the request's own stop tokens end it, none that the model's directory adds
        detokenize=False,
        output_kind=RequestOutputKind.DELTA if stepwise else RequestOutputKind.FINAL_ONLY,
    )
    return tokens_input(job.sequence().tolist(), cache_salt=str(salt)), params


def _seed(job: Job) -> int:
    """Returns the request's seed, or one derived from it after the first tokens: no random number is used twice."""
    seed = job.request.sampling.seed & (2**63 - 1)
    if not job.tokens:
        return seed
    return int(np.random.SeedSequence([seed, len(job.tokens)]).generate_state(1, np.uint64)[0] >> 1)


def check_no_routes(routes: np.ndarray | None) -> None:
    """Checks that tokens to be scored are sent along no recorded routes, which vLLM takes none of.

    Raises:
        RequestError: there are some.
    """
    if routes is not None:
        raise RequestError("score: vLLM sends tokens to the experts that its routers choose; leave routes out")


def probe(token_ids: np.ndarray, salt: int) -> tuple[TokensInput, SamplingParams]:
    """Returns prompt and parameters that have vLLM score given tokens; ``salt`` is as of `continuation`."""
    params = SamplingParams(
        temperature=0.0,
        max_tokens=1,
        prompt_logprobs=0,
        flat_logprobs=True,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    return tokens_input(token_ids.tolist(), cache_salt=str(salt)), params


def scores(prompt_logprobs: Any) -> np.ndarray:
    """Returns float32 ``[n - 1]``: the scores of a request of `probe`; the first position of a prompt has no score."""
    starts = prompt_logprobs.start_indices[1:]  # the token itself comes first at its position, the likeliest after it
    return np.asarray([prompt_logprobs.logprobs[start] for start in starts], np.float32)


def sampled_logprobs(logprobs: Any) -> list[float]:
    """Returns the log-probability of each sampled token of a delta."""
    return [logprobs.logprobs[start] for start in logprobs.start_indices]
