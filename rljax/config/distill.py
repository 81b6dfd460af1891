"""The section ``algorithm.distill`` of the config: teachers that the policy is drawn to on what it samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rljax.config.fields import key

TEACHERS = "algorithm.distill.teachers"
"""Key of the teachers."""
WITHOUT_KNOWLEDGE = "tiny"
"""Value of ``model.path`` that stands for a model yet to be made."""


@dataclass(frozen=True, kw_only=True)
class TeacherConfig:
    """A teacher: a model whose weights stay as they are. Its name is its key in `algorithm.distill.teachers`."""

    path: str = key("", "directory | hub id | smollm2-135m: a model that knows every token of the policy's vocabulary")
    url: str | None = key(
        None,
        "in the place of path: an OpenAI-compatible endpoint that scores, up to its version, such as "
        "http://127.0.0.1:8000/v1",
    )
    model: str = key("", "url: name of the teacher there")
    key_variable: str | None = key(None, "url: environment variable that has the endpoint's key; None: it needs none")
    coef: float = key(1.0, "weight of its reverse KL in the advantage", low=0, low_open=True)
    weights: Mapping[str, float] = key(
        {}, "factor of coef by taskset, or by tag of environments; 0 in those not named. Empty: 1 in all"
    )

    def weight_in(self, taskset: str) -> float:
        """Returns the weight of its reverse KL in the advantages of a taskset's tokens."""
        return self.coef * (self.weights.get(taskset, 0.0) if self.weights else 1.0)


@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """On-policy distillation: alone with ``adv_estimator=none``, else beside the reward."""

    teachers: Mapping[str, TeacherConfig] = key({}, "models that the policy is drawn to, by name")

    @property
    def stored(self) -> dict[str, TeacherConfig]:
        """Those whose weights the learner holds, by name."""
        return {name: one for name, one in self.teachers.items() if one.url is None}

    @property
    def served(self) -> dict[str, TeacherConfig]:
        """Those that are asked at an endpoint, by name."""
        return {name: one for name, one in self.teachers.items() if one.url is not None}
