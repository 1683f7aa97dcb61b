"""The page: one HTML file that loads nothing and runs nothing, for people who look before they read."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

from manifests.logs import Logs
from manifests.manifest import Manifest
from manifests.mixture import Plan
from manifests.overview import by_component, by_licence
from manifests.report import figures
from manifests.report.charts import Bar, Level, Piece, bars, condition, counted, curve, funnel, histogram, legend, number, share
from manifests.report.distributions import SAMPLED_ROWS, Distribution, distributions
from manifests.report.elements import element, raw_style, written
from manifests.report.style import STYLE
from manifests.storage import Folder

RULES_SHOWN = 25
LANGUAGES_SHOWN = 20
DOMAINS_SHOWN = 20
COMPONENTS_SHOWN = 40
LARGEST_SHOWN = 5
UNCHECKED_ITEMS_SHOWN = 12
RULES_NAMED = 4
HEAT = (0.0, 0.001, 0.02, 0.08, 0.2, 0.4)
"""Shares from which a cell of the table of removals has the next shade."""
SPLIT_COLOURS = {"train": "kept", "validation": "second", "test": "fourth"}


def report(
    corpus: Folder,
    manifest: Manifest,
    runs: Sequence[Path] = (),
    planned: Plan | None = None,
    most: int = SAMPLED_ROWS,
) -> str:
    """The page of a corpus, the same for the same corpus; `most` is how many documents distributions are taken of.

    figures.RunError for a folder of `runs` that is none; duckdb.Error where a log cannot be read.
    """
    told = [figures.run_figures(run, manifest.digest) for run in runs]
    with Logs(corpus, manifest) as logs:
        made = _Report(manifest, logs, told, planned, list(distributions(logs, most)))
        sections = made.sections()
    content = manifest.content
    style_digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{style_digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", f"{content.name}: corpus report"),
        element("link", rel="icon", href="data:,"),
        raw_style(STYLE),
    )
    links = [element("a", title, href=f"#{anchor}") for anchor, title, _ in sections]
    top = element(
        "header",
        element("h1", content.name),
        element(
            "p",
            "A corpus whose every document is accounted for: kept, or removed by a rule with its evidence. ",
            element("small", "Identity ", element("code", manifest.digest)),
            class_="soft",
        ),
        made.tiles(),
        element("nav", links, aria_label="Sections"),
    )
    main = element(
        "main",
        [element("section", element("h2", title), body, id=anchor) for anchor, title, body in sections],
    )
    foot = element(
        "footer",
        "Made by corpusmill report from the manifest and the logs it lists. Nothing was hashed for it: ",
        element("code", "corpusmill verify"),
        " does that. ",
        element("code", "corpusmill why"),
        " tells the life of a single document.",
    )
    return written(element("html", head, element("body", top, main, foot), lang="en"))


Section = tuple[str, str, list[Element]]


class _Report:
    def __init__(
        self, manifest: Manifest, logs: Logs, runs: list[figures.RunFigures], planned: Plan | None, signals: list[Distribution]
    ) -> None:
        self.manifest, self.content, self.logs = manifest, manifest.content, logs
        self.runs, self.planned, self.signals = runs, planned, signals
        self.stages = figures.stages_of(self.content)
        self.documents_in = sum(component.documents_in for component in self.content.components.values())
        self.kept = sum(component.documents_kept for component in self.content.components.values())
        self.licences = by_licence(self.content)
        self.tokens = sum(one.all_tokens for one in self.licences)
        self.languages = figures.languages_of(logs)

    def sections(self) -> list[Section]:
        found = [
            ("funnel", "From documents in to documents kept", self._funnel()),
            ("rules", "What removed documents", self._rules()),
            ("where", "Where documents were removed", self._where()),
            ("signals", "What the filters measured", self._signals()),
            ("duplicates", "Duplicates and near-duplicates", self._duplicates()),
            ("tokens", "Tokens and licences", self._tokens()),
            ("mixture", "Mixture and epochs", self._mixture()),
            ("decontamination", "Decontamination", self._decontamination()),
            ("split", "Held-out documents", self._split()),
            ("tokenizer", "Tokenizer", self._tokenizer()),
            ("unchecked", "What was not checked", self._unchecked()),
        ]
        return [(anchor, title, body) for anchor, title, body in found if body]

    def tiles(self) -> Element:
        removed = self.documents_in - self.kept
        kept_bytes = sum(one.bytes for one in self.licences) or sum(row["bytes"] for row in self.languages)
        spoken = sum(1 for row in self.languages if row["language"] and row["kept"])
        tiles = [
            ("documents in", number(self.documents_in), counted(len(self.content.components), "component")),
            ("kept", number(self.kept), share(self.kept, self.documents_in)),
            ("removed", number(removed), share(removed, self.documents_in)),
            ("text kept", _bytes(kept_bytes), f"{number(kept_bytes / self.kept)} bytes a document" if self.kept else ""),
            ("tokens", number(self.tokens) if self.tokens else "–", counted(len(self.licences), "licence")),
            ("languages", number(spoken) if spoken else "–", "of kept documents"),
        ]
        return element(
            "dl",
            [element("div", element("dt", name), element("dd", value, element("small", note))) for name, value, note in tiles],
            class_="tiles",
        )

    def _funnel(self) -> list[Element]:
        left = self.documents_in
        levels = [Level("came in", left, left)]
        passed = []
        for stage in self.stages:
            if not stage.gone:
                passed.append(stage.stage)
                continue
            levels.append(Level(stage.stage, left, left - stage.gone, self._about(stage)))
            left -= stage.gone
        levels.append(Level("kept", left, left))
        dropped = self.content.dropped
        body = [
            element(
                "p",
                "The width of the band is the number of documents; what a stage removed is drawn at its sides. ",
                "Every document that came in is either kept or in the log of removals.",
            ),
            funnel(levels, self.documents_in),
        ]
        quiet = [one for one in passed if not one.endswith(".measure")]
        if quiet:
            body.append(element("p", f"Removed nothing: {', '.join(quiet)}.", class_="soft"))
        if dropped:
            named = ", ".join(str(one.get("component", "?")) for one in dropped)
            body.append(element("p", f"Left out of this corpus after it was made, and not counted here: {named}.", class_="soft"))
        rows = [
            (
                count.component,
                count.stage,
                f"{count.documents_in:,}",
                f"{count.documents_kept:,}",
                f"{sum(count.removed.values()):,}",
                f"{sum(count.edited.values()):,}",
                _bytes(count.bytes_in),
                _bytes(count.bytes_kept),
            )
            for count in self.content.counts
        ]
        headings = ("component", "stage", "in", "kept", "removed", "edits by rule", "text in", "text kept")
        return [*body, _details(f"All {len(rows)} counts, by component and stage", headings, rows, words=(1,))]

    def _about(self, stage: figures.StageTotal) -> str:
        """What hides behind the name of a filter block."""
        blocks = list(
            dict.fromkeys(rule.partition(".")[0] for rule in sorted(stage.removed, key=lambda one: -stage.removed[one]))
        )
        return ", ".join(blocks) if blocks != [stage.stage] else ""

    def _rules(self) -> list[Element]:
        rules = figures.rules_of(self.logs)
        if not rules:
            return [element("p", "No document was removed.")]
        removed = sum(rule.documents for rule in rules)
        rows = [
            Bar(
                rule.rule,
                [
                    Piece(rule.alone, "removed", f"{rule.alone:,} failed this rule alone"),
                    Piece(
                        rule.documents - rule.alone,
                        "faint",
                        f"{rule.documents - rule.alone:,} failed other rules of its block too",
                    ),
                ],
                f"{rule.documents:,} ({share(rule.documents, removed)})",
            )
            for rule in rules[:RULES_SHOWN]
        ]
        body = [
            element(
                "p",
                "A document is removed by the first rule that it fails. Where it failed only one rule of its block, ",
                "that rule decided alone; otherwise another rule of the block would have removed it as well.",
            ),
            legend(("removed", "failed this rule alone"), ("faint", "failed other rules of the block too")),
            bars(rows),
        ]
        by_component = figures.rules_by(self.logs, "component")
        by_language = figures.rules_by(self.logs, "language")
        table = [
            (
                rule.rule,
                rule.stage,
                f"{rule.documents:,}",
                share(rule.documents, self.documents_in),
                f"{rule.alone:,}",
                _largest(by_component[rule.rule]),
                _largest(by_language[rule.rule]),
            )
            for rule in rules
        ]
        headings = ("rule", "stage", "removed", "of all documents in", "by it alone", "components", "languages")
        return [
            *body,
            _details(
                f"All {len(rules)} rules that removed documents, with components and languages", headings, table, words=(1, 5, 6)
            ),
        ]

    def _where(self) -> list[Element]:
        stages = [stage for stage in self.stages if stage.gone]
        body = [
            element("h3", "By component"),
            element("p", "The share of a component's documents that each stage removed.", class_="soft"),
            self._heat(stages),
            element("h3", "By language"),
        ]
        kept_or_not = legend(("kept", "kept"), ("removed", "removed"))
        languages = [
            _kept_bar(row["language"] or "not known", row["kept"], row["documents"]) for row in self.languages[:LANGUAGES_SHOWN]
        ]
        note = "A document has no language where it was removed before the stage that tells it, or where the recipe has none."
        body += [element("p", note, class_="soft"), kept_or_not, bars(languages)]
        if len(self.languages) > LANGUAGES_SHOWN:
            table = [
                (row["language"] or "not known", f"{row['documents']:,}", f"{row['kept']:,}", f"{row['tokens']:,}")
                for row in self.languages
            ]
            body.append(_details(f"All {len(table)} languages", ("language", "documents", "kept", "tokens"), table))
        domains = figures.domains_of(self.logs, DOMAINS_SHOWN)
        if domains:
            body += [
                element("h3", "By domain"),
                element("p", f"The {len(domains)} domains with most documents." if len(domains) > 1 else "", class_="soft"),
                bars([_kept_bar(row["domain"], row["kept"], row["documents"]) for row in domains]),
            ]
        return body

    def _heat(self, stages: list[figures.StageTotal]) -> Element:
        shown = sorted(self.content.components.items(), key=lambda item: (-item[1].documents_in, item[0]))
        head = element("tr", [element("th", one, scope="col") for one in ("component", "in", *(s.stage for s in stages), "kept")])
        rows = []
        for name, component in shown[:COMPONENTS_SHOWN]:
            cells = []
            for stage in stages:
                if name not in stage.components:
                    cells.append(element("td", "·", class_="soft"))
                    continue
                part = stage.by_component.get(name, 0) / (component.documents_in or 1)
                shade = sum(part >= bound for bound in HEAT[1:])
                said = share(stage.by_component.get(name, 0), component.documents_in) if part else "0"
                cells.append(element("td", said, class_=f"heat{shade}"))
            kept = share(component.documents_kept, component.documents_in)
            rows.append(
                element(
                    "tr",
                    element("th", name, scope="row"),
                    element("td", f"{component.documents_in:,}"),
                    cells,
                    element("td", kept),
                )
            )
        if len(shown) > COMPONENTS_SHOWN:
            rows.append(element("tr", element("th", f"and {len(shown) - COMPONENTS_SHOWN} smaller ones", scope="row")))
        table = element("table", element("thead", head), element("tbody", rows), class_="heat")
        return element(
            "div", table, class_="scroll", tabindex=0, role="region", aria_label="Share removed by component and stage"
        )

    def _signals(self) -> list[Element]:
        if not self.signals:
            return [element("p", "The recipe has no filters.")]
        body = [
            element(
                "p",
                "Every document that reached a block of filters was measured, whatever removed it. Dashed lines are bounds, ",
                "and what lies beyond one is orange. The first and the last bar hold all that lies further out; ",
                "a bar that would dwarf the others is cut off, and says its share.",
            ),
            legend(("kept", "within the bounds"), ("removed", "beyond a bound")),
        ]
        sampled = [one for one in self.signals if one.sampled]
        if sampled:
            most = max(one.documents for one in sampled)
            body.append(
                element(
                    "p",
                    f"Of large logs a sample is shown, drawn by a hash of the id: "
                    f"at most {most:,} documents here. Shares are estimates there.",
                    class_="soft",
                )
            )
        groups: dict[str, list[Distribution]] = {}
        empty: list[Distribution] = []
        for one in self.signals:
            if one.documents == one.undefined:
                empty.append(one)
            else:
                groups.setdefault(one.signal.partition(".")[0], []).append(one)
        several = len(self.content.components) > 1
        for name, signals in groups.items():
            ruled = [one for one in signals if one.beyond]
            others = [one for one in signals if not one.beyond]
            rare = [one for one in ruled if one.undefined > 0.9 * one.documents]
            common = [one for one in ruled if one not in rare]
            body.append(element("h3", name))
            if common:
                body.append(element("div", [_card(one, several) for one in common], class_="cards"))
            for title, few in (("defined for less than a tenth of the documents", rare), ("that no rule looks at", others)):
                if few:
                    cards = element("div", [_card(one, several) for one in few], class_="cards")
                    body.append(element("details", element("summary", f"{counted(len(few), 'signal')} {title}"), cards))
        table = [row for one in self.signals for row in _signal_rows(one)]
        headings = ("signal", "rule", "keep if", "documents", "undefined", "beyond", "share", "smallest", "median", "largest")
        body.append(_details(f"All {len(self.signals)} signals in figures", headings, table, words=(1, 2)))
        if empty:
            named = ", ".join(one.signal for one in empty)
            body.append(element("p", f"Defined for no document here: {named}.", class_="soft"))
        return body

    def _duplicates(self) -> list[Element]:
        body = []
        for stage, sizes in figures.clusters_of(self.logs).items():
            clusters = sum(sizes.values())
            largest = max(sizes)
            rows = [
                Bar(f"{group} documents", [Piece(count, "kept", f"{count:,} clusters")], f"{count:,}")
                for group, count in figures.grouped_sizes(sizes)
            ]
            body += [
                element("h3", f"{stage}: {clusters:,} clusters"),
                element(
                    "p",
                    f"How many documents a cluster had before all but one were removed; the largest had {largest:,}.",
                    class_="soft",
                ),
                bars(rows),
            ]
        table = [
            (str(one.get("stage", "")), *(f"{one[key]:,}" if isinstance(one.get(key), int) else "" for key in _DEDUPLICATION))
            for one in self.content.deduplication
        ]
        if table:
            headings = ("stage", *(name.replace("_", " ") for name in _DEDUPLICATION))
            body.append(_details("What was compared", headings, table))
        return body or [element("p", "The recipe removes no near-duplicates.")]

    def _tokens(self) -> list[Element]:
        if not self.tokens:
            return [element("p", "The recipe ends before its text became tokens.")]
        used = dict.fromkeys(split for one in self.licences for split in one.tokens)
        entries = legend(*((SPLIT_COLOURS.get(split, "other"), split) for split in SPLIT_COLOURS if split in used))
        body = [entries, element("h3", "By licence"), bars([_token_bar(one.name, one.tokens) for one in self.licences])]
        components = sorted(by_component(self.content), key=lambda one: (-one.all_tokens, one.name))
        body += [
            element("h3", "By component"),
            bars(
                [
                    _token_bar(one.name, one.tokens, self.content.components[one.name].licence)
                    for one in components[:COMPONENTS_SHOWN]
                ]
            ),
        ]
        spoken = sorted((row for row in self.languages if row["tokens"]), key=lambda row: (-row["tokens"], row["language"] or ""))
        body += [
            element("h3", "By language"),
            bars(
                [
                    Bar(
                        row["language"] or "not known",
                        [Piece(row["tokens"], "kept", f"{row['tokens']:,} tokens")],
                        f"{number(row['tokens'])} ({share(row['tokens'], self.tokens)})",
                    )
                    for row in spoken[:LANGUAGES_SHOWN]
                ]
            ),
        ]
        table = [
            (
                one.name,
                self.content.components[one.name].licence,
                self.content.components[one.name].source,
                f"{one.documents:,}",
                f"{one.bytes:,}",
                *(f"{one.tokens.get(split, 0):,}" for split in SPLIT_COLOURS),
                f"{one.shards:,}",
            )
            for one in components
        ]
        headings = ("component", "licence", "source", "documents", "bytes of text", *SPLIT_COLOURS, "shards")
        return [*body, _details("All components in figures", headings, table, words=(1, 2))]

    def _mixture(self) -> list[Element]:
        training = {one.name: one.tokens["train"] for one in by_component(self.content) if one.tokens.get("train")}
        total = sum(training.values())
        if not total:
            return []
        body = []
        if self.planned is not None:
            body += [
                element("h3", f"Planned: {number(self.planned.tokens)} tokens"),
                bars(
                    [
                        Bar(
                            row.component,
                            [Piece(row.tokens, "kept", f"{number(row.tokens)} tokens")],
                            f"{share(row.tokens, self.planned.tokens)} · {row.epochs:.2f} epochs",
                        )
                        for row in self.planned.rows
                    ]
                ),
                *(
                    [element("ul", [element("li", warning) for warning in self.planned.warnings])]
                    if self.planned.warnings
                    else []
                ),
            ]
        for run in self.runs:
            body += self._run(run)
        if not body:
            rows = [
                Bar(name, [Piece(tokens, "kept", f"{tokens:,} training tokens")], f"{share(tokens, total)}")
                for name, tokens in sorted(training.items(), key=lambda item: (-item[1], item[0]))
            ]
            said = "What a run without weights takes: each component by its training tokens, once an epoch. Name runs or a "
            return [element("p", said, "mixture to see theirs."), bars(rows)]
        return body

    def _run(self, run: figures.RunFigures) -> list[Element]:
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
        body += [element("p", "How often each component was gone through:"), bars(rows, once)]
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

    def _decontamination(self) -> list[Element]:
        if not self.content.decontamination:
            return [element("p", "No benchmark was looked for: the recipe has no decontamination.")]
        body = []
        removed = figures.contaminated_of(self.logs)
        for record in self.content.decontamination:
            rows, table = [], []
            for one in record.get("benchmarks", []):
                items, found, unchecked = one.get("items", 0), len(one.get("found", {})), len(one.get("unchecked", []))
                rest = max(0, items - found - unchecked)
                rows.append(
                    Bar(
                        one.get("benchmark", "?"),
                        [
                            Piece(rest, "kept", f"{rest:,} not found"),
                            Piece(found, "removed", f"{found:,} found"),
                            Piece(unchecked, "other", f"{unchecked:,} too short to be looked for"),
                        ],
                        f"{found:,} of {items:,} found",
                    )
                )
                table.append(
                    (
                        one.get("benchmark", "?"),
                        f"{items:,}",
                        f"{found:,}",
                        f"{unchecked:,}",
                        f"{removed.get(one.get('benchmark', ''), 0):,}",
                    )
                )
            where = f"{record['component']}: " if record.get("component") else ""
            body += [
                element(
                    "p",
                    f"{where}{number(record.get('ngrams', 0))} n-grams of {record.get('n', '?')} words were looked for in ",
                    "every document that came so far. An item counts as found when a document held any of its n-grams.",
                ),
                legend(("kept", "items not found"), ("removed", "items found"), ("other", "too short to be looked for")),
                bars(rows),
                _details("Benchmarks in figures", ("benchmark", "items", "found", "unchecked", "documents removed"), table),
            ]
        return body

    def _split(self) -> list[Element]:
        split = self.content.split
        if split is None:
            return [element("p", "Nothing is held out: the recipe has no split.")]
        total = sum(split.documents.values())
        rows = [
            Bar(
                name,
                [Piece(split.documents.get(name, 0), colour, f"{split.documents.get(name, 0):,} documents")],
                f"{split.documents.get(name, 0):,} ({share(split.documents.get(name, 0), total)})",
            )
            for name, colour in SPLIT_COLOURS.items()
            if name in split.documents
        ]
        body = [
            element("p", f"Documents that resemble each other (Jaccard {split.threshold:g} or more) are in the same split."),
            bars(rows),
        ]
        if split.closest is not None:
            pair = split.closest
            said = (
                f"{pair.held_out_documents:,} held-out documents were compared with all {pair.documents:,} documents of other "
                f"splits: the two most alike have a Jaccard similarity of {pair.jaccard:.3f}"
            )
            beyond = f"; {pair.pairs_at_threshold:,} pairs reached the threshold" if pair.pairs_at_threshold else ""
            body.append(element("p", said + beyond + "."))
        else:
            body.append(element("p", "How alike documents of different splits are was not measured."))
        return body

    def _tokenizer(self) -> list[Element]:
        tokenizer = self.content.tokenizer
        if tokenizer is None:
            return []
        training = tokenizer.training
        said = f"{tokenizer.vocabulary:,} entries, stored as {tokenizer.dtype}. "
        if training is None:
            said += "It was given, and not trained on this corpus."
        else:
            said += f"Trained on {training.documents:,} training documents, {_bytes(training.bytes)}."
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
        for usage in self.content.token_usage:
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

    def _unchecked(self) -> list[Element]:
        content, said = self.content, list[str]()
        stages = {record.stage for component in content.components.values() for record in component.stages}
        stages |= {record.stage for record in content.stages}
        absent = {
            "language": "No language was told apart.",
            "exact_dedup": "Exact duplicates were not looked for.",
            "minhash": "Near-duplicates were not looked for.",
            "decontamination": "No benchmark was looked for.",
            "personal_data": "Personal data were not looked for.",
            "split": "Nothing was held out.",
        }
        said += [sentence for stage, sentence in absent.items() if stage not in stages]
        for stage in absent:
            having = [name for name, one in content.components.items() if stage in {record.stage for record in one.stages}]
            if having and len(having) < len(content.components) and stage not in {record.stage for record in content.stages}:
                without = [name for name in content.components if name not in having]
                said.append(f"{stage} did not run on {_some(without)}.")
        for record in content.decontamination:
            for one in record.get("benchmarks", []):
                if one.get("unchecked"):
                    items = [str(item) for item in one["unchecked"]]
                    said.append(f"Items of {one.get('benchmark', '?')} too short to be looked for: {_some(items)}.")
            limits = record.get("limits")
            named = [str(one) for one in limits] if isinstance(limits, list) else [str(limits)] if limits else []
            said += [f"Decontamination: {one}." for one in named]
        for one in content.deduplication:
            if one.get("skipped_pairs"):
                said.append(f"{one.get('stage', '?')}: {one['skipped_pairs']:,} pairs of crowded buckets were not compared.")
        for name, component in content.components.items():
            if component.unread_files:
                kinds = ", ".join(f"{ending or 'no ending'} {count:,}" for ending, count in component.unread_files.items())
                said.append(f"{name}: files of the source that were not read: {kinds}.")
            if component.skipped_records:
                kinds = ", ".join(f"{kind} {count:,}" for kind, count in component.skipped_records.items())
                said.append(f"{name}: records that are no documents: {kinds}.")
        said += self._undecided()
        if content.split is not None and content.split.closest is None:
            said.append("Documents of different splits were not compared with each other after the split.")
        said.append("Licences are those that the recipe states for each source; no document was asked for its own.")
        said.append("This page reads the manifest and the logs. It did not hash the files: corpusmill verify does.")
        return [element("ul", [element("li", one) for one in dict.fromkeys(said)], class_="unchecked")]

    def _undecided(self) -> list[str]:
        """Rules that kept documents whose signal was undefined, those of a block together."""
        found: dict[tuple[str, int, int], list[str]] = {}
        for one in self.signals:
            for beyond in one.beyond:
                if 0 < one.undefined < one.documents and beyond.rule.when_undefined == "keep":
                    block, _, rule = beyond.rule.name.partition(".")
                    found.setdefault((block, one.undefined, one.documents), []).append(rule)
        return [
            f"{block}: {counted(len(rules), 'rule')} had nothing to measure in {undefined:,} of {documents:,} documents "
            f"({share(undefined, documents)}) and kept them: {_some(rules, RULES_NAMED)}."
            for (block, undefined, documents), rules in found.items()
        ]


def _card(one: Distribution, several: bool) -> Element:
    lines = []
    for beyond in one.beyond:
        part = share(beyond.documents, one.documents)
        said = f"about {part} beyond" if one.sampled else f"{beyond.documents:,} beyond ({part})"
        hit = element("span", said if beyond.documents else "none beyond", class_="hit" if beyond.documents else None)
        lines.append(element("p", f"{condition(beyond.rule)}: ", hit, title=beyond.rule.name))
    notes = []
    if one.quantiles:
        notes.append(f"median {number(one.quantiles[2])}, 90 % between {number(one.quantiles[1])} and {number(one.quantiles[3])}")
    if one.undefined:
        notes.append(f"undefined {share(one.undefined, one.documents)}")
    if several:
        notes.append(_some(one.components))
    picture: Element | None = histogram(one) if one.edges else None
    if one.words is not None:
        whole = one.documents
        picture = bars(
            [Bar(word, [Piece(count, "kept", f"{count:,} documents")], share(count, whole)) for word, count in one.words.items()],
            whole,
        )
    name = one.signal.partition(".")[2] or one.signal
    return element(
        "div", element("h4", name.replace("_", " ")), picture, lines, element("p", "; ".join(notes), class_="soft"), class_="card"
    )


def _signal_rows(one: Distribution) -> Iterable[tuple[str, ...]]:
    spread = (number(one.smallest), number(one.quantiles[2]), number(one.largest)) if one.quantiles else ("", "", "")
    if not one.beyond:
        yield (one.signal, "", "", f"{one.documents:,}", f"{one.undefined:,}", "", "", *spread)
    for beyond in one.beyond:
        yield (
            one.signal,
            beyond.rule.name,
            condition(beyond.rule).removeprefix("keep if "),
            f"{one.documents:,}",
            f"{one.undefined:,}",
            f"{beyond.documents:,}",
            share(beyond.documents, one.documents),
            *spread,
        )


def _kept_bar(label: str, kept: int, documents: int) -> Bar:
    pieces = [Piece(kept, "kept", f"{kept:,} kept"), Piece(documents - kept, "removed", f"{documents - kept:,} removed")]
    return Bar(label, pieces, f"{share(kept, documents)} of {number(documents)} kept")


def _token_bar(label: str, tokens: dict[str, int], note: str = "") -> Bar:
    pieces = [Piece(tokens.get(split, 0), colour, f"{split} {tokens.get(split, 0):,}") for split, colour in SPLIT_COLOURS.items()]
    return Bar(label, pieces, number(sum(tokens.values())), note)


def _details(summary: str, headings: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int] = ()) -> Element:
    head = element("tr", [element("th", heading, scope="col") for heading in headings])
    body = [
        element("tr", [element("td", cell, class_="words" if n in words else None) for n, cell in enumerate(row)]) for row in rows
    ]
    table = element("table", element("thead", head), element("tbody", body))
    return element(
        "details",
        element("summary", summary),
        element("div", table, class_="scroll", tabindex=0, role="region", aria_label=summary),
    )


def _some(names: Sequence[str], most: int = UNCHECKED_ITEMS_SHOWN) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def _largest(counts: list[tuple[str, int]]) -> str:
    shown = ", ".join(f"{name} {count:,}" for name, count in counts[:LARGEST_SHOWN])
    return shown + (f" and {len(counts) - LARGEST_SHOWN} more" if len(counts) > LARGEST_SHOWN else "")


def _bytes(size: float) -> str:
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:.0f} B"


_DEDUPLICATION = ("removed", "candidate_pairs", "verified_pairs", "skipped_pairs")
