"""The engines' share of the time, by hand."""

from rljax.pipeline.metrics.engines import FORGET, EngineMeter


def test_share_between_readings_that_differ() -> None:
    now, gauges = [0.0], {"busy_seconds": 10.0, "engines": 2.0}
    meter = EngineMeter(lambda: gauges, lambda: now[0])

    def at(seconds: float, busy: float) -> float:
        now[0], gauges["busy_seconds"] = seconds, busy
        return meter.share()

    assert at(1.0, 11.0) == 0.5  # 1 s more over two engines in 1 s
    assert at(1.5, 11.0) == 0.5, "no news yet"
    assert at(2.0, 13.0) == 1.0
    assert at(3.0, 4.0) == 0.0, "an explorer left, and took its past with it"
    assert at(4.0, 400.0) == 1.0, "one joined"
    assert at(4.0 + FORGET + 0.1, 400.0) == 0.0, "idle"
