"""Tables of the ledger, and the meaning of every column.

One row of `groups` is one task and what became of it. Its life::

    (claim) ──> claimed ──store──> ready ──lease──> leased ──trained──> trained
                 │  ▲                │                 │
                 │  └──claim── open <┴── retired       └── learner restarts ──> ready
                 ├──> filtered (reason)
                 └──> dropped (reason)

A trained group may be trained again by later steps, up to ``RunSpec.max_uses`` times and its deadline; that changes
nothing here: `batches` has a row for each time.

A claim whose explorer was declared dead, that is handed back, or whose tokens belong to a lost lineage returns to
``open`` and is claimed again, with a later deadline, before any new task.
"""

from __future__ import annotations

from sqlalchemy import (
    DDL,
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    event,
)

SCHEMA_VERSION = 6
"""Written into every ledger; a file of another version is refused."""

metadata = MetaData()

run = Table(
    "run",
    metadata,
    Column("id", Integer, primary_key=True, comment="always 1"),
    Column("schema_version", Integer, nullable=False),
    Column("spec", Text, nullable=False, comment="RunSpec as JSON: what all processes of the run must agree on"),
    Column("model", Text, comment="fingerprint of the model that the run trains; null until a process has opened it"),
    Column("validation", Text, comment="fingerprint of what the learner wants validated, and how; null before it says"),
    Column("demonstrations", Text, comment="fingerprint of what the run imitates; null where it imitates nothing"),
    Column("lineage", Integer, nullable=False, comment="the living lineage; 0 before the first learner"),
    Column("trained", Integer, nullable=False, comment="t: batches trained into the surviving weights"),
    Column("leasing", Boolean, nullable=False, comment="whether step t is leased"),
    Column("announced", Integer, nullable=False, comment="v: newest announced version; -1 before the first"),
    Column("announced_lineage", Integer, nullable=False, comment="lineage that published it"),
    Column("claims", BigInteger, nullable=False, comment="claims made so far; numbers them in order"),
    Column("pruned", Integer, nullable=False, comment="payloads of steps before this one are deleted"),
    Column("finished", Boolean, nullable=False, comment="the learner has ended the run"),
    Column("ended_epochs", Integer, comment="total_epochs with which the data ended before max_steps; else null"),
    Column("failure", Text, comment="why the run cannot go on; every process stops on it"),
)

groups = Table(
    "groups",
    metadata,
    Column("id", Integer, primary_key=True, comment="in order of first claim"),
    Column("taskset", String(200), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("task_index", BigInteger, nullable=False, comment="position in the epoch"),
    Column("state", String(10), nullable=False, comment="open claimed ready leased trained filtered dropped"),
    Column("claim", BigInteger, nullable=False, comment="number of the newest claim: its fencing token"),
    Column("explorer", String(200), nullable=False, comment="who made the newest claim"),
    Column("version", Integer, nullable=False, comment="v when claimed: no token is older"),
    Column("deadline", Integer, nullable=False, comment="last step that may train it: version + S"),
    Column("claimed_at", Float, nullable=False, comment="seconds of the ledger's clock"),
    Column("stored_at", Float),
    Column("max_version", Integer, comment="newest version of a trained token; null when no token is trained"),
    Column("version_counts", Text, comment="JSON {version: trained tokens}"),
    Column("step", Integer, comment="step that leased it, and trained it first; or came next when it was settled"),
    Column("position", Integer, comment="place in that step's batch"),
    Column("reason", Text, comment="why it was filtered or dropped"),
    Column("retired", Integer, nullable=False, comment="times its trajectories were lost with a lineage"),
    UniqueConstraint("taskset", "epoch", "task_index"),
    Index("groups_by_state", "state", "deadline"),
    Index("groups_by_step", "step", "position"),
)

# Each group leaves a dead row at every change of its state. PostgreSQL clears them away once they are a fifth of the
# table, which holds all groups of a run: until then every look at those in flight would come upon them.
_CLEAR = "ALTER TABLE groups SET (autovacuum_{0}_scale_factor = 0.01, autovacuum_{0}_threshold = 2000)"
for _kind in ("vacuum", "analyze"):
    event.listen(groups, "after_create", DDL(_CLEAR.format(_kind)).execute_if(dialect="postgresql"))

payloads = Table(
    "payloads",
    metadata,
    Column("group_id", Integer, primary_key=True),
    Column("data", LargeBinary, nullable=False, comment="rljax.trajectory.encode"),
)

tasksets = Table(
    "tasksets",
    metadata,
    Column("name", String(200), primary_key=True),
    Column("size", BigInteger, nullable=False, comment="tasks in an epoch"),
    Column("fingerprint", String(40), nullable=False, comment="rljax.tasks.task.Taskset.fingerprint"),
    Column("weight", Float, nullable=False),
    Column("issued", BigInteger, nullable=False, comment="tasks ever claimed: the cursor over all epochs"),
    Column("start", Float, nullable=False, comment="the set with the least start + issued / weight is next"),
)

lineages = Table(
    "lineages",
    metadata,
    Column("id", Integer, primary_key=True, comment="counted from 1"),
    Column("from_version", Integer, nullable=False, comment="version that it started from"),
    Column("started_at", Float, nullable=False),
    Column("retired", Integer, nullable=False, comment="groups whose trajectories its start retired"),
)

steps = Table(
    "steps",
    metadata,
    Column("lineage", Integer, primary_key=True),
    Column("step", Integer, primary_key=True),
    Column("publishes", Boolean, nullable=False, comment="its groups are consumed once version step+1 is announced"),
    Column("trained_at", Float, nullable=False),
    Column("demonstrations", Integer, nullable=False, comment="trained beside the groups; see RunSpec.demonstrated_at"),
)

batches = Table(
    "batches",
    metadata,
    Column("lineage", Integer, primary_key=True),
    Column("step", Integer, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("group_id", Integer, nullable=False),
    Column("version_counts", Text, nullable=False, comment="as trained: outlives a later retirement of the group"),
    Index("batches_by_group", "group_id"),
)

versions = Table(
    "versions",
    metadata,
    Column("version", Integer, primary_key=True),
    Column("lineage", Integer, primary_key=True),
    Column("path", Text, nullable=False, comment="directory, relative to the run directory"),
    Column("announced_at", Float, nullable=False),
    Column("withdrawn", Boolean, nullable=False, comment="belongs to a lost lineage"),
    Column("deleted", Boolean, nullable=False, comment="its files are gone"),
    Column("probe", LargeBinary, comment="float32 log-probabilities that the learner gives the probe"),
    Column("gap", Float, comment="largest difference of the engines' probe from the learner's, in nats"),
    Column("mean_gap", Float, comment="mean difference over the probe, of the explorer where it is largest"),
)

# Only makes it quicker to find them: a ledger of this schema version may lack it.
Index("versions_standing", versions.c.version, sqlite_where=~versions.c.deleted, postgresql_where=~versions.c.deleted)

validations = Table(
    "validations",
    metadata,
    Column("version", Integer, primary_key=True),
    Column("lineage", Integer, primary_key=True),
    Column("state", String(10), nullable=False, comment="requested claimed done"),
    Column("explorer", String(200), comment="who runs it"),
    Column("result", Text, comment="JSON of metrics"),
    Column("reported", Boolean, nullable=False, comment="the learner has logged it"),
    # Older ledgers are without, and slower.
    Index("validations_by_state", "state", "reported", "version"),
)
UNFINISHED = ("requested", "claimed")
"""States of validations that are not done."""

processes = Table(
    "processes",
    metadata,
    Column("name", String(200), primary_key=True, comment="trainer, or the explorer's name"),
    Column("role", String(10), nullable=False, comment="trainer explorer"),
    Column("host", String(200), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("started", Float, nullable=False, comment="when that pid began, wall clock: tells a reused pid"),
    Column("token", String(40), nullable=False, comment="one life of the process; fences an older life"),
    Column("heartbeat", Float, nullable=False, comment="seconds of the ledger's clock"),
    Column("alive", Boolean, nullable=False, comment="false once it has said goodbye or was declared dead"),
    Column("version", Integer, nullable=False, comment="version whose files it uses; -1 for none"),
    Column("loading", Integer, nullable=False, comment="version whose files it reads at the moment; -1 for none"),
    Column("tasksets", Text, comment="JSON list of the names that it serves; null where it has not said"),
    Column("gauges", Text, nullable=False, comment="JSON of what it measures of itself"),
)

events = Table(
    "events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("who", String(200), nullable=False),
    Column("kind", String(60), nullable=False, comment="what went wrong, as a word"),
    Column("message", Text, nullable=False),
)
