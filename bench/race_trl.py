"""The other side of `bench.race`: TRL's GRPOTrainer, by a Python of its own that has TRL and nothing of rljax.

    python race_trl.py JOB.json

The job says what both sides share: prompts in their order, answers, held-out tasks, batch, lengths and optimizer. What
happens when is written to its ``events``, JSON lines of Unix seconds.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

PLACE = re.compile(r"[0-9]|<\|\w+\|>")


def exact(answer: str, response: str) -> float:
    """Returns 1 for the answer itself; see `rljax.tasks.rewards.text`."""
    return float(response.strip() == answer.strip())


def digits(answer: str, response: str) -> float:
    """Returns the share of digits that are right; see `rljax.tasks.rewards.text`."""
    wanted, given = PLACE.findall(answer), PLACE.findall(response)
    right = sum(a == b and a.isdigit() for a, b in zip(wanted, given, strict=False))
    return right / max(len(wanted), len(given), 1)


def main() -> None:
    job: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    import torch

    torch.set_num_threads(job["cores"])
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(job["model"], padding_side="left")
    model: Any = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
    events = Path(job["events"])

    def note(event: str, **values: Any) -> None:
        with events.open("a") as file:
            file.write(json.dumps({"event": event, "time": time.time(), **values}) + "\n")

    def held_out() -> float:
        """Returns the share of held-out tasks that are answered, greedily."""
        right, size = 0.0, job["batch"]
        for start in range(0, len(job["held_out"]), size):
            some = job["held_out"][start : start + size]
            texts = [
                tokenizer.apply_chat_template(task["prompt"], tokenize=False, add_generation_prompt=True)
                for task in some
            ]
            asked = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
            with torch.no_grad():
                made = model.generate(**asked, max_new_tokens=job["response"], do_sample=False)
            replies = tokenizer.batch_decode(made[:, asked["input_ids"].shape[1] :], skip_special_tokens=True)
            right += sum(exact(task["answer"], reply) for task, reply in zip(some, replies, strict=True))
        return right / len(job["held_out"])

    class Notes(TrainerCallback):
        """Notes the beginning and each step, and validates where rljax does."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            note("begin")
            self._validate(0)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            note("step", step=state.global_step)
            if state.global_step % job["eval_steps"] == 0 or state.global_step == job["steps"]:
                self._validate(state.global_step)

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
            note("log", step=state.global_step, reward=(logs or {}).get("reward"))

        def _validate(self, step: int) -> None:
            if not job["held_out"]:
                return
            model.eval()
            note("held_out", step=step, score=held_out())
            model.train()

    def rewarded(function: Any) -> Any:
        def scores(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
            return [function(right, said[0]["content"]) for right, said in zip(answer, completions, strict=True)]

        scores.__name__ = function.__name__
        return scores

    each = job["trl_batch"]
    optimizer = job["optimizer"]
    arguments = GRPOConfig(
        output_dir=job["output"],
        per_device_train_batch_size=each,
        gradient_accumulation_steps=job["batch"] // each,
        num_generations=job["group_size"],
        max_completion_length=job["response"],
        max_steps=job["steps"],
        save_steps=job["save_steps"],
        learning_rate=optimizer["learning_rate"],
        warmup_steps=optimizer["warmup_steps"],
        lr_scheduler_type="constant_with_warmup",
        adam_beta1=optimizer["beta1"],
        adam_beta2=optimizer["beta2"],
        weight_decay=optimizer["weight_decay"],
        max_grad_norm=optimizer["grad_clip"],
        shuffle_dataset=False,
        gradient_checkpointing=job["gradient_checkpointing"],
        logging_steps=1,
        bf16=False,
        use_cpu=True,
        report_to=[],
        seed=job["seed"],
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[rewarded(exact), rewarded(digits)],
        args=arguments,
        train_dataset=Dataset.from_list(job["train"]),
        processing_class=tokenizer,
        callbacks=[Notes()],
    )
    trainer.train()
    note("end")


if __name__ == "__main__":
    main()
