"""Mixture and epochs: of a planned run, and of runs."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from manifests.overview import by_component
from manifests.report import figures
from manifests.report.charts import Bar, Piece, bars, curve
from manifests.report.elements import element
from manifests.report.subject import Subject
from manifests.wording import number, share


def section(subject: Subject) -> list[Element]:
    training = {one.name: one.tokens["train"] for one in by_component(subject.content) if one.tokens.get("train")}
    total = sum(training.values())
    if not total:
        return []
    body = []
    if subject.planned is not None:
        body += [
            element("h3", f"Planned: {number(subject.planned.tokens)} tokens"),
            bars(
                [
                    Bar(
                        row.component,
                        [Piece(row.tokens, "kept", f"{number(row.tokens)} tokens")],
                        f"{share(row.tokens, subject.planned.tokens)} · {row.epochs:.2f} epochs",
                    )
                    for row in subject.planned.rows
                ]
            ),
            *(
                [element("ul", [element("li", warning) for warning in subject.planned.warnings])]
                if subject.planned.warnings
                else []
            ),
        ]
    for run in subject.runs:
        body += _run(subject, run)
    if not body:
        rows = [
            Bar(name, [Piece(tokens, "kept", f"{tokens:,} training tokens")], f"{share(tokens, total)}")
            for name, tokens in sorted(training.items(), key=lambda item: (-item[1], item[0]))
        ]
        said = "What a run without weights takes: each component by its training tokens, once an epoch. Name runs or a "
        return [element("p", said, "mixture to see theirs."), bars(rows)]
    return body


def _run(subject: Subject, run: figures.RunFigures) -> list[Element]:
    score = run.result.get("score") if isinstance(run.result.get("score"), dict) else None
    facts = [
        f"{number(run.tokens)} tokens",
        f"{run.facts['parameters']:,} parameters" if isinstance(run.facts.get("parameters"), int) else "",
        f"{score['val_bpb']:.4f} bits per byte of the {score.get('split', 'held-out')} split"
        if score and isinstance(score.get("val_bpb"), float)
        else "",
        "" if run.result else "has not ended, or was stopped",
    ]
    body = [
        element("h3", f"Run {run.name}"),
        element("p", "; ".join(fact for fact in facts if fact) + ".", class_="soft"),
    ]
    if not run.same_corpus:
        body.append(element("p", "This run was trained on another corpus, or another state of this one.", class_="hit"))
    rows = [
        Bar(name, [Piece(passes, "kept", f"{passes:.3f} epochs")], f"{passes:.2f} epochs")
        for name, passes in sorted(run.epochs.items(), key=lambda item: (-item[1], item[0]))
    ]
    once = max(1.0, *run.epochs.values()) if run.epochs else 1.0
    how = "How often each component was gone through, by what was served of it:"
    if not run.served:
        how = (
            "How often each component was gone through as the run states it, by rows: components that are served together have "
            "one figure. Its ledger, with the corpus it is of, would tell what was served of each."
        )
    body += [element("p", how), bars(rows, once)]
    if len(run.losses) > 1:
        card = element(
            "div",
            element("h4", "loss"),
            curve(run.losses, f"Loss of {run.name}", "nats"),
            element("p", "Nats per token of training data.", class_="soft"),
            class_="card",
        )
        body.append(element("div", card, class_="cards"))
    return body
