"""What mode=export writes beside the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from rljax.config.schema import Config, ModelConfig, TasksConfig, TasksetConfig, TinyConfig
from rljax.pipeline.assemble.run import open_model
from rljax.pipeline.evaluate import export
from rljax.pipeline.run_dir import RunDir

TINY = TinyConfig(hidden_size=16, intermediate_size=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8)
THINKS = """\
{% for message in messages %}<|{{ message.role }}|>{{ message.content }}é<|end|>{% endfor %}
{% if enable_thinking is defined and not enable_thinking %}ab{% endif %}
"""
CHAT = [{"role": "user", "content": "1, 2"}]


def exported(tmp_path: Path, **model: Any) -> tuple[Path, Path]:
    """The directories of the model and of its export."""
    tasks = TasksConfig(train={"digits": TasksetConfig(source="reverse_digits")})
    policy = ModelConfig(tiny=TINY, **model)
    config = Config(mode="export", checkpoint="initial", run_dir=str(tmp_path / "run"), tasks=tasks, model=policy)
    run = RunDir.create(config)
    opened = open_model(config, run)
    (target,) = export(config, run, opened)
    return opened.directory, Path(target)


@pytest.mark.parametrize("old", [False, True], ids=["read by today's transformers", "read from the settings alone"])
def test_an_exported_model_chats_as_it_was_trained(old: bool, tmp_path: Path) -> None:
    directory, target = exported(tmp_path, chat_template=THINKS, enable_thinking=False)
    before = AutoTokenizer.from_pretrained(directory)
    expected = before.apply_chat_template(CHAT, tokenize=False, chat_template=THINKS, enable_thinking=False)
    if old:
        (target / "chat_template.jinja").unlink()
    assert "ab" in expected
    assert AutoTokenizer.from_pretrained(target).apply_chat_template(CHAT, tokenize=False) == expected


def test_without_a_template_of_ones_own_the_files_are_the_models(tmp_path: Path) -> None:
    directory, target = exported(tmp_path)
    for file in directory.iterdir():
        if file.name.startswith(("tokenizer", "chat")):
            assert (target / file.name).read_bytes() == file.read_bytes()
    assert (target / "tokenizer.json").exists()
