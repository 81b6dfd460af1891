"""Schema of the learner: its devices, their mesh, and what they compute at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

from rljax.config.algorithm import OptimizerConfig
from rljax.config.fields import key


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Sizes of the mesh axes; their product is the number of learner devices."""

    data: int = key(1, "replicas", low=1)
    fsdp: int = key(1, "shards of parameters and batch", low=1)
    sequence: int = key(1, "shards of the time axis", low=1)
    expert: int = key(1, "shards of the experts, and of batch and other parameters like fsdp; dense models: 1", low=1)
    tensor: int = key(1, "shards of heads and MLP; divides the model's query heads", low=1)

    @property
    def size(self) -> int:
        """Number of devices."""
        return self.data * self.fsdp * self.sequence * self.expert * self.tensor

    @property
    def row_shards(self) -> int:
        """Devices that share the rows of a microbatch."""
        return self.data * self.fsdp * self.expert


OF_ONE_HOST = ("learner.hosts.rank", "learner.hosts.coordinator")
"""Keys in which the hosts of one run differ, and its starts."""


@dataclass(frozen=True, kw_only=True)
class HostsConfig:
    """Processes that are one learner together, each with devices of its own: `learner.mesh` goes over those of all."""

    number: int = key(1, "processes of the learner, one a host; of jax.distributed", low=1)
    start: str = key(
        "auto",
        "here: this command starts all; environment: it is the one that torchrun, SLURM, Open MPI or a TPU slice says; "
        "auto: environment where that says of several, else here; launcher=ray: on the cluster",
        choices=("auto", "here", "environment"),
    )
    rank: int | None = key(None, "number of this process, from 0, where each is started by hand", low=0)
    coordinator: str | None = key(
        None, "HOST:PORT at which host 0 listens for the others; None: as learner.hosts.start finds it"
    )
    heartbeat_timeout: int = key(60, "seconds without a sign of life of a host, after which all end", low=5)


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """The learner: how the policy is trained."""

    devices: str = key("auto", "auto | cpu | cpu:0-3 | gpu:0-3,6 | tpu:0-7")
    gpu_memory_utilization: float | None = key(
        None, "share of a GPU's memory; None: JAX's own, with sidecar.colocate 0.5", low=0, high=1, low_open=True
    )
    mesh: MeshConfig = field(default_factory=MeshConfig)
    hosts: HostsConfig = field(default_factory=HostsConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    sequence_parallel: bool = key(
        False, "cut what is between blocks over mesh.tensor, along time (Megatron's): less memory, as much traffic"
    )
    reduce_dtype: str = key(
        "auto",
        "dtype of a microbatch's gradients, and of their sum over devices; auto: model.dtype, in bf16 half the traffic",
        choices=("auto", "fp32"),
    )
    autotune: bool | None = key(
        None, "GPU: XLA may choose kernels by timing them; None: unless compile_cache=off, which keeps no choice"
    )
    max_tokens_per_row: int | None = key(None, "length of a packed row; None: longest prompt plus response", low=1)
    share_prompts: bool | None = key(
        None,
        "a row computes the prompt that its attempts share once, without the kernels of a GPU or TPU; None: on CPUs",
    )
    rows_per_microbatch: int = key(8, "packed rows in one forward and backward pass", low=1)
    max_nonfinite_steps: int = key(3, "non-finite updates in a row before the run stops", low=1)
    checkpoints_to_keep: int | None = key(
        2, "committed checkpoints kept, None: all; the oldest is where a replay can start", low=1
    )

    @property
    def time_shards(self) -> int:
        """Devices that share the places of a row."""
        return self.mesh.sequence * (self.mesh.tensor if self.sequence_parallel else 1)
