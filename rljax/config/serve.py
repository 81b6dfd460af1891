"""Keys of ``mode=serve``."""

from __future__ import annotations

from dataclasses import dataclass

from rljax.config.fields import key


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """The HTTP endpoint of ``mode=serve``: what it serves, where, and to whom."""

    version: str | None = key(
        None, "a published version in place of config.checkpoint: newest | batches seen; None: config.checkpoint"
    )
    follow: bool = key(False, "serve the newest version of the run, and each that it publishes from then on")
    model_name: str | None = key(None, "what requests call the model; None: the last part of run_dir")
    host: str = key("127.0.0.1", "address to listen at; loopback: this machine only")
    port: int = key(8000, "port to listen at; 0: any that is free", low=0, high=65_535)
    require_key: bool = key(True, "refuse requests without the key, all but those of /health")
    key_file: str | None = key(
        None, "file with the key; None: the variable RLJAX_SERVE_KEY, else serve/key in run_dir, made where it is not"
    )
    max_requests: int = key(1024, "answers under way at once; one more is refused", low=1)
    drain_timeout: float = key(
        30.0, "seconds that answers under way have to end in, after SIGTERM or Ctrl-C", low=0, high=10**9
    )

    @property
    def published(self) -> bool:
        """True where it serves versions that a run publishes, and no checkpoint."""
        return self.follow or self.version is not None
