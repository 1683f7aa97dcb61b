"""`corpusmill audit reviews`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from manifests.audit.answers import CsvOption, JsonOption, give, percent, show
from manifests.corpus_argument import CorpusArgument, opened
from manifests.terminal import fail, visible


def reviews(
    corpus: CorpusArgument,
    file: Annotated[
        str | None, typer.Option("--reviews", help="file of reviews; default: the one that `audit serve` writes for this corpus")
    ] = None,
    rule: Annotated[str | None, typer.Option(help="of this rule only")] = None,
    half_width: Annotated[
        float, typer.Option(help="wanted half width of each rule's interval, for the number of documents that it takes")
    ] = 0.05,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Print what people thought of removals in `audit serve`: each rule's false-positive rate with its 95 % interval (Wilson).
    --csv has every verdict ever given, --json both."""
    from manifests.audit.flow import removed_by_name
    from manifests.audit.reviews import REVIEW_COLUMNS, ReviewError, review_file, sample_size, summed

    folder, manifest = opened(corpus)
    removed = removed_by_name(manifest.content)
    try:
        stored = review_file(folder, manifest.digest, file)
        found = [one for one in stored.read() if rule in (None, one.rule)]
        rates = [
            {**one.as_json(), "needed": sample_size(half_width, one.false_positives, one.sampled, removed.get(one.rule))}
            for _, one in sorted(summed(found, populations=removed).items())
        ]
        sample_size(half_width)
    except ReviewError as error:
        fail(str(error))
    if stored.unreadable:
        typer.echo(visible(f"{stored.unreadable:,} lines of {stored.path} cannot be read"), err=True)
    rows = [one.as_json() for one in found]
    if give(rows, as_json, as_csv, {"corpus": manifest.digest, "rules": rates, "reviews": rows}, REVIEW_COLUMNS):
        return
    if not found:
        typer.echo(visible(f"no review of this corpus{f' and {rule}' if rule else ''} in {stored.path}"))
        return
    for one in rates:
        one["rate"], one["interval"] = (
            percent(one["rate"]),
            _interval(one),
        )
    columns = {
        "rule": "rule",
        "sampled": "sampled",
        "false_positives": "false positives",
        "rate": "rate",
        "interval": "95 % interval",
    }
    more = {"needed": f"for ± {percent(half_width)}", "unsure": "unsure", "disputed": "disputed", "by_hand": "by hand"}
    show(rates, columns | more)


def _interval(one: dict[str, Any]) -> str:
    if not one["sampled"]:
        return ""
    return "all of them" if one["low"] == one["high"] else f"{percent(one['low'])} to {percent(one['high'])}"
