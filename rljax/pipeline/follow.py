"""Follows host 0 of a learner of several hosts: does on this host what it announces, until the run ends."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rljax.config.fields import ConfigError
from rljax.config.schema import Config
from rljax.learner.hosts import Announcement, Hosts, HostsError
from rljax.learner.leading import (
    CHECKSUMS,
    EXPORT,
    LOAD,
    RESTORE,
    SAVE,
    SCORE,
    TRAIN,
    WRITTEN,
    FollowingCheckpoints,
    batch_named,
    metadata_named,
    own_checksums,
    owners_of,
    weights_named,
)
from rljax.learner.learner import Learner
from rljax.learner.orbax_lock import go_on_after
from rljax.learner.packing import Batch
from rljax.learner.programs import Compilation, shape_of, told_of_memory
from rljax.models.files import stored_tensors
from rljax.pipeline.assemble.compile_cache import keep_compiled
from rljax.pipeline.assemble.hosts import END, STOP, own_output_of_libraries
from rljax.pipeline.assemble.learner import BEGIN, begin, check_saved_adapter, compile_ahead, load_base
from rljax.pipeline.assemble.run import Model, open_model
from rljax.pipeline.assemble.teachers import open_teachers
from rljax.pipeline.run_dir import RunDir
from rljax.trajectory import Trajectory, decode
from rljax.weights.parts import PartWriter
from rljax.weights.publisher import PublishError
from sidecar.channels.versions import part_directory
from sidecar.failpoints import failpoint

_LOOK = 0.2
"""Seconds between looks at whether a program is compiled."""


def follow(config: Config, hosts: Hosts) -> None:
    """Does what host 0 announces, until that has ended.

    Raises:
        HostsError: host 0 cannot go on, or this host is not what it expects.
        ConfigError, ModelNotFound, CheckpointError, NonFiniteError: as a learner of one process.
    """
    keep_compiled(config)
    follower: Follower | None = None
    while True:
        heard = hosts.hear()
        if heard.what == STOP:
            hosts.gather("end", b"")
            raise HostsError(f"{hosts.names[0]} has ended: {heard.said['why']}", heard.said["exit_code"])
        if heard.what == END:
            break
        failpoint("follow")
        if heard.what == BEGIN:
            follower = Follower(config, hosts, heard)
        elif follower is not None:
            follower.does[heard.what](heard)
    if follower is not None:
        follower.close()


class Follower:
    """The learner of a host that follows."""

    def __init__(self, config: Config, hosts: Hosts, heard: Announcement) -> None:
        """Opens the model and the checkpoints, and builds a learner without state."""
        run = RunDir.at(config)
        if not run.is_seen(heard.said["sign"]):
            raise ConfigError(
                f"run_dir={run.root}: {hosts.names[hosts.rank]} does not see there what {hosts.names[0]} has written; "
                "write a directory that all hosts share"
            )
        own_output_of_libraries(run.root, hosts.rank)
        self._hosts = hosts
        self._model: Model = open_model(config, run)
        hosts.agree("open the model", {"model": self._model.fingerprint})
        self._learner = Learner(
            config, self._model.architecture, teachers=open_teachers(config, self._model, hosts=hosts)
        )
        self._checkpoints = FollowingCheckpoints(run.checkpoints, config.learner.checkpoints_to_keep)
        prompts = heard.said["prompts"]
        self._prompts = None if prompts is None else np.array(prompts)
        self._ahead: Compilation | None = None
        self._saving: Any = None
        self._part: PartWriter | None = None
        self.does: Mapping[str, Callable[[Announcement], None]] = {
            LOAD: self._load,
            RESTORE: self._restore,
            TRAIN: self._train,
            SCORE: self._score,
            EXPORT: self._export,
            CHECKSUMS: self._checksums,
            SAVE: self._save,
            WRITTEN: self._written,
        }
        """For each announcement the method that does on this host what it says."""

    def close(self) -> None:
        """Waits for what is being written."""
        self._await_save()
        self._give_up_part()
        if self._ahead is not None:
            self._ahead.close()

    def _load(self, _: Announcement) -> None:
        self._hosts.agree("read the model", weights_named(stored_tensors(self._model.directory)))
        begin(self._learner, self._model)

    def _restore(self, heard: Announcement) -> None:
        step = heard.said["step"]
        check_saved_adapter(self._learner.config, self._model, self._checkpoints, step)
        self._hosts.agree(f"restore the checkpoint of step {step}", metadata_named(self._checkpoints, step))
        go_on_after(heard.said["operation"])
        self._learner.restore(self._checkpoints, step)
        load_base(self._learner, self._model)

    def _train(self, heard: Announcement) -> None:
        groups = [decode(part) for part in heard.parts]
        new, reused = heard.said["groups"], heard.said["groups"] + heard.said["reused"]
        shown: Sequence[Trajectory] = [t for group in groups[reused:] for t in group.trajectories]

        def agreed(batches: Sequence[Batch]) -> None:
            self._await_programs(batches)
            failpoint("agree")
            named = batch_named(self._learner.steps, batches)
            self._hosts.agree(f"train step {self._learner.steps}", named)

        with told_of_memory(f"step {self._learner.steps}"):
            self._learner.train(groups[:new], reused=groups[new:reused], demonstrations=shown, before=agreed)

    def _await_programs(self, batches: Sequence[Batch]) -> None:
        if self._ahead is not None and self._ahead.prefer({shape_of(batch) for batch in batches}):
            while not self._ahead.wait(_LOOK):
                pass

    def _score(self, heard: Announcement) -> None:
        tokens = np.array(heard.said["tokens"], np.int32)
        if self._ahead is None:  # as host 0 does before its first version
            self._ahead = compile_ahead(self._learner, len(tokens), self._prompts)
        self._hosts.agree("score the probe")
        self._learner.score(tokens)

    def _export(self, heard: Announcement) -> None:
        self._hosts.agree("export weights", {"number of trained batches": str(self._learner.steps)})
        weights, beside = self._learner.weights(heard.said["dtype"]), heard.said["beside"]
        made = weights.make(heard.said["layer"])
        if beside is None:
            return
        path = part_directory(Path(beside), self._hosts.rank)
        if self._part is None or self._part.path != path:
            self._give_up_part()
            owners = owners_of(weights, self._learner, self._hosts.number)
            ours = [name for name, rank in owners.items() if rank == self._hosts.rank]
            self._part = PartWriter(path, self._hosts.rank, ours, heard.said["dtype"])
        self._part.put(made)

    def _give_up_part(self) -> None:
        if self._part is not None:  # host 0 has not finished that version
            with contextlib.suppress(PublishError):
                self._part.close()

    def _written(self, _: Announcement) -> None:
        infos = {} if self._part is None else self._part.close()
        self._part = None
        what = "write a version"
        self._hosts.agree(what, {"number of trained batches": str(self._learner.steps)})
        self._hosts.gather(what, json.dumps({name: asdict(info) for name, info in infos.items()}).encode())

    def _checksums(self, _: Announcement) -> None:
        state, what = self._learner.state, f"save step {self._learner.steps}"
        self._await_save()
        self._hosts.agree(what, {"number of trained batches": str(state.step)})
        self._hosts.gather(what, own_checksums(state, leads=False))

    def _save(self, heard: Announcement) -> None:
        self._hosts.agree(f"save step {self._learner.steps}")
        where = Path(heard.said["path"])
        self._saving = self._checkpoints.save_shards(where, self._learner.state, heard.said["operation"])

    def _await_save(self) -> None:
        if self._saving is not None:
            self._saving.result()
            self._saving = None
