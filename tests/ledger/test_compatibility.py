"""What processes of a run agree on beyond their spec."""

from __future__ import annotations

import pytest

from rljax.ledger import validations
from rljax.ledger.backend import Backend
from rljax.ledger.compatibility import check_demonstrations, check_model, record_validation_plan
from rljax.ledger.database import LedgerError
from tests.ledger.builders import LedgerBench, make_spec


def test_a_guest_with_another_model_is_refused_in_one_line(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=1, b=2))
    check_model(bench.db, "one", "models/one")
    check_model(bench.db, "one", "elsewhere/one")
    with pytest.raises(LedgerError, match=r"model\.path=models/two: .* not those of the run's; .* or another run_dir$"):
        check_model(bench.db, "two", "models/two")


def test_demonstrations_may_not_become_others_once_some_are_trained(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=1, demonstrations=2))
    check_demonstrations(bench.db, "one", "one.jsonl")
    check_demonstrations(bench.db, "two", "two.jsonl")  # nothing is trained yet
    bench.store(bench.claim()[0])
    bench.lease()
    bench.trained()
    with pytest.raises(
        LedgerError,
        match=r"tasks\.expert\.source=one\.jsonl: other demonstrations, or another order, template or limit, than",
    ):
        check_demonstrations(bench.db, "one", "one.jsonl")


def test_validations_are_claimed_only_by_who_measures_what_the_learner_asks_for(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=1, b=2))
    bench.publish(1, validate=True)
    record_validation_plan(bench.db, "the learner's")
    with pytest.raises(validations.OtherPlanError, match=r"^e: validation tasks, sampling or val_batch_size are not"):
        validations.claim_validation(bench.db, "e", "another")
    assert validations.claim_validation(bench.db, "e", "the learner's") is not None
