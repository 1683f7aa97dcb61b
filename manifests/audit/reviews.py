"""Reviews: what people thought of removals, kept outside the corpus, and what they say of a rule.

A review file is JSON Lines and only ever grows: one line a verdict, with the reviewer's name and the time in UTC. A later
verdict of the same reviewer on the same removal takes the place of the earlier one, which stays in the file.

The false-positive rate of a rule is that of the sampled documents with a decided verdict, with the score interval of Wilson
(1927), two-sided 95 %: with p the share among n documents and z the 97.5 % point of the normal distribution (1.96),

    (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n)

A rule removed N documents, a finite population drawn from without replacement, so the variance of p is (N−n)/(N−1) of that of
independent draws (Cochran 1977, chapter 3): z² (N−n)/(N−1) stands in place of z². Of all N there is no
interval left. Nor does it reach below the false positives that were seen, or above those and all documents that were not.
"""

from __future__ import annotations

import datetime
import fcntl
import itertools
import json
import math
import os
import stat
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from manifests.storage import Folder

Verdict = Literal["right", "false_positive", "unsure", "withdrawn"]
VERDICTS: tuple[str, ...] = get_args(Verdict)
CONFIDENCE = 0.95
Z = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
REVIEW_COLUMNS = ("time", "reviewer", "corpus", "id", "rule", "verdict", "note", "seed", "place")
LONGEST_NOTE = 2_000
LONGEST_NAME = 100
LONGEST_ID = 10_000
"""Characters."""
SMALLEST_HALF_WIDTH = 0.001
"""Of an interval that is asked for: a tenth of a percent needs about a million documents."""


class ReviewError(Exception):
    """A review that is not stored, or a file that cannot be read; the message says why."""


@dataclass(frozen=True)
class Review:
    """One verdict. corpus: the digest of its manifest. seed: of the sample in which the document was met; None: it was picked by
    hand, and says nothing of a rate. place: among the documents of its rule in the sample's order, from 1; None in files that are
    older than it."""

    time: str
    reviewer: str
    corpus: str
    id: str
    rule: str
    verdict: Verdict
    note: str = ""
    seed: int | None = None
    place: int | None = None

    def as_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


@dataclass(frozen=True)
class RuleReviews:
    """What the reviews of a rule come to. sampled: documents of samples with a decided verdict; false_positives: of these.
    disputed: documents of samples on which reviewers differ; unsure: those that nobody was sure of; neither counts in the rate.
    by_hand: decided documents that no sample had, or that were picked from one out of turn (`in_turn`). population: documents
    that the rule removed, None where nobody said; low, high: the interval of the rate among them, None without a decided
    document."""

    rule: str
    sampled: int = 0
    false_positives: int = 0
    disputed: int = 0
    unsure: int = 0
    by_hand: int = 0
    reviewers: tuple[str, ...] = ()
    population: int | None = None

    @property
    def all_of_them(self) -> bool:
        """Is every document that the rule removed decided?"""
        return self.population is not None and 0 < self.population <= self.sampled

    @property
    def rate(self) -> float | None:
        return self.false_positives / self.sampled if self.sampled else None

    @property
    def interval(self) -> tuple[float, float] | None:
        return wilson(self.false_positives, self.sampled, self.population) if self.sampled else None

    def as_json(self) -> dict[str, Any]:
        low, high = self.interval or (None, None)
        return {**self.__dict__, "reviewers": list(self.reviewers), "rate": self.rate, "low": low, "high": high}


@dataclass
class ReviewFile:
    """The reviews of one corpus in one file, which may not be there yet. Several programs may add to it at the same time."""

    path: Path
    corpus: str
    unreadable: int = field(default=0, init=False)
    """Lines that the last `read` could make nothing of: none is dropped from the file."""
    others: int = field(default=0, init=False)
    """Lines about other corpora at the last `read`."""

    def read(self) -> list[Review]:
        """The reviews of this corpus, in the order in which they were made."""
        self.unreadable = self.others = 0
        _plain(self.path)
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ReviewError(f"reviews cannot be read: {error}") from None
        found = []
        for line in lines:
            if not line.strip():
                continue
            review = _parsed(line)
            if review is None:
                self.unreadable += 1
            elif review.corpus != self.corpus:
                self.others += 1
            else:
                found.append(review)
        return found

    def add(
        self,
        reviewer: str,
        document: str,
        rule: str,
        verdict: str,
        note: str = "",
        seed: int | None = None,
        place: int | None = None,
    ) -> Review:
        """Stores a verdict, on disk when this returns. ReviewError where it is none, or cannot be written. seed, place: as of
        `Review`."""
        name = reviewer.strip()
        if not name:
            raise ReviewError("a review needs the reviewer's name")
        for what, given, most in (("name", name, LONGEST_NAME), ("note", note, LONGEST_NOTE), ("id", document, LONGEST_ID)):
            if len(given) > most:
                raise ReviewError(f"the {what} has {len(given):,} characters, and {most:,} are the most")
        if verdict not in VERDICTS:
            raise ReviewError(f"{verdict!r} is no verdict: {', '.join(VERDICTS)}")
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        review = Review(now, name, self.corpus, document, rule, verdict, note.strip(), seed, place)  # type: ignore[arg-type]
        # ASCII alone: half a character in a note is an escape, and a line is a line for every reader.
        line = json.dumps(review.as_json()).encode("ascii") + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._append(line)
        except OSError as error:
            raise ReviewError(f"the review is not stored: {error}") from None
        return review

    def _append(self, line: bytes) -> None:
        _plain(self.path)
        handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":  # somebody was stopped in the middle of a line
                line = b"\n" + line
            written = os.write(handle, line)
            if written != len(line):
                os.ftruncate(handle, size)
                raise OSError(f"{written} of {len(line)} bytes could be written")
            os.fsync(handle)
        finally:
            os.close(handle)


def default_reviews(corpus: str) -> Path:
    """Where the reviews of a corpus with this digest lie unless another file is named: below the user's data folder."""
    home = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    name = "".join(one if one.isalnum() else "-" for one in corpus)
    return Path(home) / "corpusmill" / "reviews" / f"{name}.jsonl"


def review_file(folder: Folder, corpus: str, named: str | None = None) -> ReviewFile:
    """The review file of a corpus with this digest; ReviewError for one inside the corpus, which stays as it is."""
    path = Path(named).expanduser() if named else default_reviews(corpus)
    if folder.local and path.resolve().is_relative_to(Path(folder.root).resolve()):
        raise ReviewError(f"{path} lies in the corpus, which reviews do not change: name another with --reviews")
    _plain(path)
    return ReviewFile(path, corpus)


def _plain(path: Path) -> None:
    """ReviewError for what is there and no plain file: a pipe would be waited for, and a device has no end."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return  # not there, or not to be looked at: opening it says so
    if stat.S_ISDIR(mode):
        raise ReviewError(f"{path} is a folder; reviews need a file")
    if not stat.S_ISREG(mode):
        raise ReviewError(f"{path} is no plain file; reviews need one")


def latest(reviews: Iterable[Review]) -> list[Review]:
    """The last verdict of each reviewer on each removal, withdrawn ones left out. A seed once given stays: a document of a sample
    that is looked at again is still one of the sample."""
    found: dict[tuple[str, str, str], Review] = {}
    for one in reviews:
        key = (one.reviewer, one.id, one.rule)
        before = found.pop(key, None)
        if before is not None and one.seed is None and before.seed is not None:
            one = Review(**{**one.__dict__, "seed": before.seed, "place": before.place})
        found[key] = one
    return [one for one in found.values() if one.verdict != "withdrawn"]


def summed(
    reviews: Iterable[Review], rules: Sequence[str] = (), populations: Mapping[str, int] | None = None
) -> dict[str, RuleReviews]:
    """Rule → what its reviews come to; `rules` are told of even where nobody reviewed them. populations: rule → documents that it
    removed."""
    by_rule: dict[str, dict[str, list[Review]]] = {rule: {} for rule in rules}
    for one in in_turn(latest(reviews)):
        by_rule.setdefault(one.rule, {}).setdefault(one.id, []).append(one)
    return {
        rule: _summed(rule, documents, None if populations is None else populations.get(rule))
        for rule, documents in by_rule.items()
    }


def in_turn(standing: Iterable[Review]) -> list[Review]:
    """Reviews of `latest`, those out of turn without their seed: of a sample only the first documents in its order, up to the
    first one that nobody has reviewed, are one that chance has drawn. Whoever picks the fortieth has chosen it."""
    standing = list(standing)
    places: dict[tuple[str, int], set[int]] = {}
    for one in standing:
        if one.seed is not None and one.place is not None:
            places.setdefault((one.rule, one.seed), set()).add(one.place)
    first_missing = {key: next(n for n in itertools.count(1) if n not in there) for key, there in places.items()}
    return [
        Review(**{**one.__dict__, "seed": None})
        if one.seed is not None and one.place is not None and one.place > first_missing[one.rule, one.seed]
        else one
        for one in standing
    ]


def _summed(rule: str, documents: dict[str, list[Review]], population: int | None) -> RuleReviews:
    counts = dict.fromkeys(("sampled", "false_positives", "disputed", "unsure", "by_hand"), 0)
    for verdicts in documents.values():
        decided = {one.verdict for one in verdicts if one.verdict != "unsure"}
        in_sample = any(one.seed is not None for one in verdicts)
        if not in_sample:
            counts["by_hand"] += len(decided) == 1
        elif not decided:
            counts["unsure"] += 1
        elif len(decided) > 1:
            counts["disputed"] += 1
        else:
            counts["sampled"] += 1
            counts["false_positives"] += decided == {"false_positive"}
    names = sorted({one.reviewer for verdicts in documents.values() for one in verdicts})
    return RuleReviews(rule, **counts, reviewers=tuple(names), population=population)


def wilson(hits: int, of: int, population: int | None = None) -> tuple[float, float]:
    """Both ends of the score interval for `hits` among `of` documents (at least one), drawn from a `population` of so many (None:
    endless). The rate itself, twice, where all of them were drawn."""
    middle, half = _wilson(hits / of, of, population)
    least, most = 0.0, 1.0
    if population is not None and population > of:
        least, most = hits / population, (population - of + hits) / population
    elif population is not None:
        return hits / of, hits / of
    # At the ends the formula gives 0 and 1 but for rounding.
    return (least if hits == 0 else max(least, middle - half)), (most if hits == of else min(most, middle + half))


def _wilson(p: float, n: int, population: int | None) -> tuple[float, float]:
    """Its middle and half its width."""
    z2 = Z * Z
    if population is not None:
        z2 *= (population - n) / (population - 1) if population > n else 0.0
    widened = 1 + z2 / n
    return (p + z2 / (2 * n)) / widened, math.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n))) / widened


def sample_size(half_width: float, hits: int = 0, of: int = 0, population: int | None = None) -> int:
    """How many decided documents give an interval of ± `half_width` at most, those that there are (`hits` among `of`) counted in.

    For the rate in the present interval that needs most; without any review, for one half. Of a `population`, which is never
    exceeded, it takes fewer.
    ReviewError unless `half_width` is between SMALLEST_HALF_WIDTH and one half."""
    if not SMALLEST_HALF_WIDTH <= half_width <= 0.5:
        raise ReviewError(f"half the width of an interval is between {SMALLEST_HALF_WIDTH:g} and 0.5, not {half_width:g}")
    if population is not None and population < 1:
        return 0
    low, high = wilson(hits, of, population) if of else (0.0, 1.0)
    p = min(max(0.5, low), high)
    fewest, most = 0, 1
    while _wilson(p, most, population)[1] > half_width:
        fewest, most = most, most * 2
    while most - fewest > 1:
        middle = (fewest + most) // 2
        if _wilson(p, middle, population)[1] > half_width:
            fewest = middle
        else:
            most = middle
    return most


def _parsed(line: bytes) -> Review | None:
    try:
        plain = json.loads(line)
        review = Review(**plain)
    except (ValueError, TypeError, RecursionError):
        return None
    words = (review.time, review.reviewer, review.corpus, review.id, review.rule, review.verdict, review.note)
    if not all(isinstance(one, str) for one in words) or review.verdict not in VERDICTS:
        return None
    if len(review.reviewer) > LONGEST_NAME or len(review.note) > LONGEST_NOTE or max(map(len, words)) > LONGEST_ID:
        return None  # none that `add` would have stored
    for number in (review.seed, review.place):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
            return None
    return review
