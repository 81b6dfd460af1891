"""The learner's update, compiled by libtpu for eight TPU chips that are not here.

Two layers of Qwen2.5-1.5B's shape: a layer has 2·1536² (query, output) + 2·1536·256 (key, value) + 3·1536·8960 + 2048
(biases) + 3072 (norms) = 46,797,824 parameters; with 151,936·1536 of the embedding, which is the head too, and the last
norm there are 326,970,880. A microbatch is 8 rows of 2048 tokens in bf16.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import libtpu

pytestmark = [pytest.mark.slow, pytest.mark.libtpu, pytest.mark.optimised]
GIB = 2**30
PARAMETERS = 326_970_880
WORDS, WIDTH, INSIDE = 151_936, 1536, 8960
MESHES: list[tuple[dict[str, int], int, float]] = [
    # Into how many parts parameters are cut, and a bound of the peak, GiB: 20 bytes a parameter and part (masters and
    # two moments, a sum and a microbatch's gradient, a copy in bf16), the head and its gradient in bf16, the logits of
    # 1024 tokens and their gradient in float32 (these four by `tensor`), two layers gathered in bf16, 0.5 to compute in
    ({"data": 8}, 1, 6.09 + 0.87 + 1.16 + 0.5),
    ({"fsdp": 8}, 8, 0.76 + 0.87 + 1.16 + 0.17 + 0.5),
    ({"fsdp": 2, "tensor": 4}, 8, 0.76 + 0.22 + 0.29 + 0.04 + 0.5),
    ({"fsdp": 2, "sequence": 4}, 2, 3.04 + 0.87 + 1.16 + 0.17 + 0.5),
]


@pytest.fixture(scope="module")
def programs() -> dict[str, dict[str, Any]]:
    """What the compiler says, by mesh. All of them in one process: each loads libtpu, and only one may at a time."""
    finished = subprocess.run(
        [libtpu.PYTHON, "-m", "bench.aot", "test"],
        cwd=Path(__file__).parents[3],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": ""},
        stdout=subprocess.PIPE,
        check=False,
        timeout=550,
    )
    assert finished.returncode == 0, finished.stdout.decode()
    found = [json.loads(line) for line in finished.stdout.splitlines()]
    return {str(one["mesh"]): one for one in found}


@pytest.mark.parametrize(("mesh", "parts", "peak"), MESHES, ids=[str(mesh) for mesh, *_ in MESHES])
def test_an_update_for_eight_chips(
    programs: dict[str, dict[str, Any]], mesh: dict[str, int], parts: int, peak: float
) -> None:
    found = programs[str(mesh)]
    assert found["kernels"] == ["splash"]
    # masters and two moments, float32, nothing of them whole that is cut; besides, the batch of 128 such microbatches
    state, tokens = 12 * PARAMETERS / parts, 128 * 8 * 2048 // (8 // mesh.get("tensor", 1))
    assert state < found["arguments"] < state + 14 * 4 * tokens
    assert found["peak"] < peak * GIB
    gathered = [one for one in found["collectives"] if one["kind"] == "all-gather"]
    head = [WORDS // mesh.get("tensor", 1), WIDTH]
    largest = WIDTH * INSIDE  # of the matrices of one layer; activations are smaller
    arrays = [shape for one in gathered for _, shape in one["arrays"]]
    assert [shape for shape in arrays if elements(shape) > largest] == [head] * ("fsdp" in mesh)
    assert all(one["times"] <= 2 for one in gathered), "once a layer"


def test_libtpu_describes_a_device_a_chip_of_every_kind() -> None:
    """Of a v4 too, whose two cores it could tell apart."""
    names = ("v4:2x2x1", "v5p:2x2x1", "v5e:2x2", "v6e:2x2")
    code = "from rljax.pipeline.plan.targets import devices_of\n" + "\n".join(
        f"print(len(devices_of({name!r})))" for name in names
    )
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": ""}
    finished = subprocess.run(
        [libtpu.PYTHON, "-c", code],
        cwd=Path(__file__).parents[3],
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
        timeout=120,
    )
    assert finished.stdout.split() == [b"4"] * len(names)


def elements(shape: list[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def test_a_device_has_its_own_experts_and_sends_the_others_their_tokens(programs: dict[str, dict[str, Any]]) -> None:
    """Two layers with 16 experts of 1024 × 512, two of them a token, over fsdp 2 and expert 4: of each matrix a device
    gathers the half that another has of its own four experts, and nothing of the other twelve.
    """
    found = programs[str({"fsdp": 2, "expert": 4})]
    arrays = [(one["kind"], shape) for one in found["collectives"] for _, shape in one["arrays"]]
    gathered = [shape[-3:] for kind, shape in arrays if kind == "all-gather"]
    assert [4, 1024, 512] in gathered
    assert [4, 512, 1024] in gathered
    matrices = ([1024, 512], [512, 1024], [512, 512], [1024, 256])
    assert not [shape for shape in gathered if shape[-2:] in matrices and len(shape) == 3 and shape[0] not in (1, 4)]
    # 8 rows of 2048 tokens on 8 devices, of which each goes to two experts
    sent = [shape for kind, shape in arrays if kind == "ragged-all-to-all"]
    assert sent
    assert all(shape[0] in (4096, 16384) for shape in sent)
