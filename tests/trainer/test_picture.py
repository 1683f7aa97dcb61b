"""What the picture of a run draws."""

from __future__ import annotations

from trainer.run_files.picture import curves


def test_a_short_run_has_no_line_that_is_called_smoothed_and_is_not() -> None:
    losses = [8.0, 7.0, 7.5] * 33
    assert curves(losses) == {"each step": losses}


def test_the_smoothed_line_of_a_long_run_scatters_less_and_begins_where_the_run_does() -> None:
    losses = [8.0, 6.0] * 100
    lines = curves(losses)
    assert list(lines) == ["each step", "smoothed"]
    assert lines["smoothed"][0] == 8.0 and len(lines["smoothed"]) == 200
    assert all(abs(value - 7.0) < 0.2 for value in lines["smoothed"][100:])
