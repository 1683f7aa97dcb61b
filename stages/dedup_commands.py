"""Commands about near-duplicates: dedup parameters."""

from __future__ import annotations

import json
from typing import Annotated

import typer

dedup = typer.Typer(no_args_is_help=True, add_completion=False, help="Choose what finds near-duplicates.")
Bands = tuple[int, int]


@dedup.callback()
def _group() -> None:
    """A group also while it has one command."""


@dedup.command()
def parameters(
    threshold: Annotated[float, typer.Option(help="Jaccard from which on two documents are duplicates")] = 0.8,
    recall: Annotated[float, typer.Option(help="share of the pairs at the threshold that are to be compared")] = 0.95,
    max_permutations: Annotated[int, typer.Option(min=1, help="minima of a signature: bands x rows at most")] = 256,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table and a plot")] = False,
) -> None:
    """Choose bands and rows for a threshold and a recall, and show which share of pairs they compare, beside the default."""
    from stages.minhash import MOST_MINIMA, MinHashOptions, choose_parameters, collision_probability

    if max_permutations > MOST_MINIMA:
        raise typer.BadParameter(f"{MOST_MINIMA:,} at most", param_hint="--max-permutations")
    try:
        chosen = choose_parameters(threshold, recall, max_permutations)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    default = MinHashOptions().bands, MinHashOptions().rows
    curve = [
        {"jaccard": place, "chosen": collision_probability(place, *chosen), "default": collision_probability(place, *default)}
        for place in sorted({*(number / 20 for number in range(1, 20)), threshold})
    ]
    if as_json:
        found = {"threshold": threshold, "recall": recall, "bands": chosen[0], "rows": chosen[1], "minima": chosen[0] * chosen[1]}
        typer.echo(json.dumps({**found, "default": {"bands": default[0], "rows": default[1]}, "curve": curve}, indent=1))
        return
    names = [f"{bands} x {rows}" for bands, rows in (chosen, default)]
    reached = collision_probability(threshold, *chosen)
    typer.echo(
        f"{names[0]} (bands x rows, {chosen[0] * chosen[1]} minima) compares {reached:.4f} of the pairs at Jaccard {threshold:g}"
    )
    more = "" if max_permutations == MinHashOptions().max_permutations else f", max_permutations: {max_permutations}"
    typer.echo(f"in a recipe: - minhash: {{threshold: {threshold}, recall: {recall}{more}}}\n")
    typer.echo("Jaccard   share of the pairs that are compared")
    typer.echo(f"{'':7}  {names[0]:>9}  {names[1]:>9}, the default")
    for row in curve:
        mark = "  threshold" if row["jaccard"] == threshold else ""
        typer.echo(f"{row['jaccard']:7.2f}  {row['chosen']:9.4f}  {row['default']:9.4f}{mark}")
    typer.echo("")
    for line in s_curves(chosen, default):
        typer.echo(line)
    typer.echo(f"{'':7}* {names[0]}   o {names[1]}, the default   @ both")


PLOT_WIDTH, PLOT_HEIGHT = 61, 16


def s_curves(chosen: Bands, other: Bands) -> list[str]:
    """Lines of a plot: the share of compared pairs, from 1 down to 0, over their Jaccard from 0 to 1."""
    from stages.minhash import collision_probability

    canvas = [[" "] * PLOT_WIDTH for _ in range(PLOT_HEIGHT)]
    for column in range(PLOT_WIDTH):
        heights = [round(collision_probability(column / (PLOT_WIDTH - 1), *one) * (PLOT_HEIGHT - 1)) for one in (chosen, other)]
        for height, mark in zip(heights, "*o", strict=True):
            canvas[PLOT_HEIGHT - 1 - height][column] = mark if heights[0] != heights[1] else "@"
    labels = {0: "1.0", PLOT_HEIGHT // 2: "0.5", PLOT_HEIGHT - 1: "0.0"}
    lines = [f"{labels.get(number, ''):>5} |{''.join(row).rstrip()}" for number, row in enumerate(canvas)]
    axis = "".join(f"{number / 10:<6.1f}" for number in range(11)).rstrip()
    return [*lines, f"{'':5} +{'-' * PLOT_WIDTH}", f"{'':7}{axis}  Jaccard"]
