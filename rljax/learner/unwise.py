"""Warns of objectives that a config may ask for and that train little, or the wrong way."""

from __future__ import annotations

import logging
import math

from rljax.config.schema import Config, KlConfig

log = logging.getLogger(__name__)


def warn_of_objective(config: Config) -> None:
    """Logs a line for each setting of the objective that is allowed and rarely meant."""
    _warn_of_divergence(config.algorithm.kl)
    _warn_of_dropped(config)
    _warn_of_warm_up(config)
    _warn_of_dropout(config)


def _warn_of_divergence(kl: KlConfig) -> None:
    if kl.where == "reward" and kl.resolved_estimator != "k1":
        log.warning(
            "algorithm.kl.estimator=%s: in the reward it also charges tokens that the policy says less often than the "
            "reference, and drives the two apart; k1 has the gradient of their divergence",
            kl.estimator,
        )


def _warn_of_dropped(config: Config) -> None:
    # No refusal: where generation is slow, groups begin later than they may, or take in new weights under way.
    limit, alpha = config.algorithm.drop_staler_than, config.async_generation_ratio
    if limit is None:
        return
    if config.fill_interval and limit < config.sync_interval - 1:
        log.warning(
            "algorithm.drop_staler_than=%d: with fill_interval the last batches of sync_interval=%d are up to %d steps "
            "stale when they are trained, and dropped; lower sync_interval, or leave it out",
            limit,
            config.sync_interval,
            config.sync_interval - 1,
        )
    if limit < math.floor(alpha):
        log.warning(
            "algorithm.drop_staler_than=%d: what engines sample async_generation_ratio=%g batches ahead is mostly %d "
            "steps stale or more when it is trained, and dropped; lower async_generation_ratio, or leave it out",
            limit,
            alpha,
            math.floor(alpha),
        )


def _warn_of_warm_up(config: Config) -> None:
    # No refusal: a later command may raise max_steps and go on.
    warm_up = config.algorithm.critic.warmup_steps
    if warm_up >= config.max_steps:
        log.warning(
            "algorithm.critic.warmup_steps=%d: none of the max_steps=%d steps trains the policy; lower it, or raise "
            "max_steps",
            warm_up,
            config.max_steps,
        )


def _warn_of_dropout(config: Config) -> None:
    # No refusal: who comes from TRL or ROLL may mean it, and small ones do little harm.
    lora = config.model.lora
    if lora.dropout and not config.imitates_alone:
        log.warning(
            "model.lora.dropout=%g: updates leave out what engines and scores do not, so that ratios differ from 1 "
            "even where nothing is stale, and are clipped; write 0 unless the run imitates demonstrations",
            lora.dropout,
        )
