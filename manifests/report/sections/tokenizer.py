"""The tokenizer, and how many bytes of each language a token is."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from manifests.report.charts import Bar, Piece, bars
from manifests.report.elements import element
from manifests.report.subject import LANGUAGES_SHOWN, Subject
from manifests.wording import byte_size


def section(subject: Subject) -> list[Element]:
    tokenizer = subject.content.tokenizer
    if tokenizer is None:
        return []
    training = tokenizer.training
    said = f"{tokenizer.vocabulary:,} entries, stored as {tokenizer.dtype}. "
    if training is None:
        said += "It was given, and not trained on this corpus."
    else:
        said += f"Trained on {training.documents:,} training documents, {byte_size(training.bytes)}."
        if training.reduced_to < 1:
            said += f" The sample was reduced to {training.reduced_to:.1%} to bound its distinct words."
    body = [element("p", said)]
    if training is not None and training.components:
        rows = [
            Bar(
                name,
                [Piece(one.share_got, "kept", f"{one.share_got:.1%} got")],
                f"{one.share_got:.1%}",
                f"{one.share_wanted:.1%} wanted",
            )
            for name, one in sorted(training.components.items(), key=lambda item: (-item[1].share_got, item[0]))
        ]
        body += [element("h3", "What it was trained on"), bars(rows, whole=1.0)]
    by_language: dict[tuple[str, bool], list[int]] = {}
    for usage in subject.content.token_usage:
        sums = by_language.setdefault((usage.language, usage.unspaced), [0, 0, 0])
        for n, value in enumerate((usage.bytes, usage.words, usage.tokens)):
            sums[n] += value
    usable = sorted(((key, sums) for key, sums in by_language.items() if sums[2]), key=lambda item: -item[1][2])
    if usable:
        rows = [
            Bar(
                language,
                [Piece(size / tokens, "kept", f"{size / tokens:.2f} bytes a token")],
                f"{size / tokens:.2f}",
                f"{tokens / words:.2f} tokens a {'character' if unspaced else 'word'}" if words else "",
            )
            for (language, unspaced), (size, words, tokens) in usable[:LANGUAGES_SHOWN]
        ]
        body += [element("h3", "Bytes of text a token"), bars(rows)]
    return body
