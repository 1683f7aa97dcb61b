"""Do the clusters that the logs tell of hang together over the whole corpus: who stayed, who went, and in which split they are?

Twins stand all over a corpus, so these are DuckDB's questions, which spill to disk; ids are compared by their MD5s. Each finding
names file, document and both sides.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from manifests.logs import Logs, read_parquet
from manifests.manifest import TAKEDOWN, Content, Manifest, SplitRecord
from manifests.storage import Folder
from manifests.verification.findings import MOST_FINDINGS
from manifests.verification.removal_checks import TWIN_RULES

JOIN_MEMORY = "1GB"
"""That a question about all documents takes; more of it goes to disk."""
ESTIMATE = 0.005
"""Jaccards are exact up to a million shingles, and beyond estimates from a million hashes: a standard error of 0.0005."""


def check_twins(corpus: Folder, manifest: Manifest) -> Iterator[str]:
    """Documents that are said to have been kept instead of others, and are none, or had gone before; clusters whose rows do
    not agree; clusters and texts in two splits."""
    try:
        with _all_logs(corpus, manifest) as logs:
            content = manifest.content
            if not content.references and not content.dropped:  # else the twin may be in a corpus that is not here
                yield from _check_clusters(corpus, logs)
            yield from _check_keys(corpus, logs)
            yield from _check_splits(corpus, logs)
    except (duckdb.Error, pa.ArrowException) as error:
        yield f"logs/documents and logs/removals: cannot be compared: {error}"


_TWINS = """
create temp table twins as
select md5_number(r.id) as own, md5_number(kept_id) as kept, md5_number(linked_id) as linked, md5_number(cluster) as cluster,
    a.stage, r.component, file, position, text_bytes, linked_jaccard, kept_jaccard, cluster_size
from removals r join stages a on r.step = a.step and r.stage = a.name
where kept_id is not null and linked_id is not null and cluster is not null and list_contains($rules, rule)
"""
_STANDING = """
create temp table standing as
select own, component, file, position, place, text_bytes from (
    select md5_number(id) as own, component, file, position, null as place, text_bytes from documents where removed_by is null
    union all
    select md5_number(r.id), r.component, file, position, p.place, text_bytes
    from removals r left join stages a on r.step = a.step and r.stage = a.name
    left join places p on p.component = r.component and p.stage = a.stage
) semi join (select kept as own from twins union select linked from twins) wanted using (own)
"""
_PLACE = "{{'c': {0}.component, 'f': {0}.file, 'p': {0}.position}}"
"""Ids in id order, for DuckDB."""
_GONE = (
    "select t.own from twins t join standing s on s.own = t.{column} left join places p on p.component = s.component "
    "and p.stage = t.stage where s.place is not null and (p.place is null or s.place {sign} p.place)"
)

_ROWS: dict[str, str] = {
    "its kept_id had been removed before": _GONE.format(column="kept", sign="<="),
    "its linked_id had been removed before": _GONE.format(column="linked", sign="<"),
    "its kept_id is of a component that it was not compared with": (
        "select t.own from twins t join stages a using (stage) join standing s on s.own = t.kept "
        "where a.scope = 'component' and s.component <> t.component"
    ),
    "its kept_id would not have stayed, by priority, length and id": (
        "select t.own from twins t join stages a using (stage) join standing s on s.own = t.kept "
        "join priorities mine on mine.component = t.component join priorities other on other.component = s.component "
        "where other.priority < mine.priority or (other.priority = mine.priority and case "
        f"when a.keep = 'first' then {_PLACE.format('s')} > {_PLACE.format('t')} "
        "when a.edited_later or a.keep is null or s.text_bytes is null or t.text_bytes is null then false "
        f"else s.text_bytes < t.text_bytes or (s.text_bytes = t.text_bytes and {_PLACE.format('s')} > {_PLACE.format('t')}) end)"
    ),
    "its linked_id is not of its cluster": (
        "select t.own from (select * from twins where linked <> kept) t left join twins o "
        "on o.own = t.linked and o.stage = t.stage and o.cluster = t.cluster where o.own is null"
    ),
    "its kept_jaccard cannot be, by its linked_jaccard and the kept_jaccard of its linked_id": (
        "select t.own from twins t join twins o on o.own = t.linked and o.stage = t.stage where t.linked <> t.kept "
        f"and (t.kept_jaccard < t.linked_jaccard + o.kept_jaccard - 1 - {ESTIMATE} "
        f"or t.kept_jaccard > 1 - abs(t.linked_jaccard - o.kept_jaccard) + {ESTIMATE})"
    ),
    "others of its cluster have another kept_id or cluster_size": (
        "select min(own) from twins group by stage, cluster "
        "having min(kept) <> max(kept) or min(cluster_size) <> max(cluster_size)"
    ),
    "its cluster_size is not one more than the documents that were removed from its cluster": (
        "select min(own) from twins group by stage, cluster having max(cluster_size) <> count(*) + 1"
    ),
    "its kept_id was kept for another cluster too": (
        "select min(own) from twins group by stage, kept having min(cluster) <> max(cluster)"
    ),
    "its cluster is not the smallest id in it": (
        f"select c.own from (select stage, cluster, min(own) as own, min(kept) as kept, min({_PLACE.format('twins')}) as place, "
        f"arg_min(own, {_PLACE.format('twins')}) as smallest from twins group by stage, cluster) c "
        "join standing s on s.own = c.kept "
        f"where c.cluster <> case when {_PLACE.format('s')} < c.place then c.kept else c.smallest end"
    ),
}
"""What is wrong with a row → the rows, by the MD5 of their ids. A Jaccard distance obeys the triangle inequality (Levandowsky and
Winter 1971), so two of a chain bound the third."""


_NAMED = ("kept_id", "linked_id", "kept_jaccard", "linked_jaccard", "cluster", "cluster_size")
"""What a finding tells of a row, where it speaks of it."""


def _check_clusters(corpus: Folder, logs: Logs) -> Iterator[str]:
    content, connection = logs.manifest.content, logs.connection
    _tell_stages(logs)
    connection.execute(_TWINS, {"rules": sorted(TWIN_RULES)})
    connection.execute(_STANDING)
    wrong: dict[str, list[str]] = {}
    strangers = "from twins t left join standing s on s.own = t.{0} where s.own is null"
    for name in ("kept", "linked"):
        wrong[f"its {name}_id"] = _some(logs, f"select t.own {strangers.format(name)}")
    for said, query in _ROWS.items():
        wrong[said] = _some(logs, query)
    wrong["its linked_ids lead in a circle, and not to its kept_id"] = _circling(logs)
    asked = sorted({one for some in wrong.values() for one in some})
    if not asked:
        return
    rows = {
        row["own"]: row
        for row in logs.sql(
            f"select md5_number(id)::varchar as own, id, rule, {', '.join(_NAMED)} from removals "
            "where list_contains($asked::uhugeint[], md5_number(id)) and kept_id is not null",
            {"asked": asked},
        )
    }
    paths = _paths_of(corpus, content, "removals", [row["id"] for row in rows.values()])
    for said, some in wrong.items():
        for row in sorted((rows[one] for one in some if one in rows), key=lambda row: str(row["id"])):
            where = f"{paths[row['id']]}: {row['id']}"
            if said in ("its kept_id", "its linked_id"):
                yield f"{where}: {said} {row[said.removeprefix('its ')]} is no document of the corpus"
                continue
            told = ", ".join(f"{name} {row[name]}" for name in _NAMED if name in said or (name == "kept_id" and "circle" in said))
            yield f"{where}: {said} ({told or 'rule ' + row['rule']})"


def _tell_stages(logs: Logs) -> None:
    """stages: the steps that removed, with the options that say who stays; places: their order in each component; priorities."""
    content, connection = logs.manifest.content, logs.connection
    numbers: dict[tuple[str, str], int] = {}
    places: list[tuple[str, int, int]] = []
    later: dict[int, bool] = {}
    for component in content.components:
        mine = [one for one in content.counts if one.component == component]
        for place, one in enumerate(mine):
            number = numbers.setdefault((one.step, one.stage), len(numbers))
            places.append((component, number, place))
            later[number] = later.get(number, False) or any(other.edited for other in mine[place + 1 :])
    options = {(one.step, one.stage): one.options for one in content.stages}
    connection.execute(
        "create temp table stages (step varchar, name varchar, stage integer, scope varchar, keep varchar, edited_later boolean)"
    )
    connection.execute("create temp table places (component varchar, stage integer, place integer)")
    connection.execute("create temp table priorities (component varchar, priority bigint)")
    for (step, name), number in numbers.items():
        # The step that removes is one of several of its stage: `corpus.1.exact_dedup.remove` of `corpus.1.exact_dedup`.
        about = options.get((step, name)) or options.get((step.rpartition(".")[0], name)) or {}
        scope, keep = (str(about[key]) if key in about else None for key in ("scope", "keep"))
        # Whoever removed something, all removed texts have the length that the stage saw; a kept one may have been edited later.
        connection.execute("insert into stages values (?, ?, ?, ?, ?, ?)", [step, name, number, scope, keep, later[number]])
    if places:
        connection.executemany("insert into places values (?, ?, ?)", places)
    priorities = [(name, one.priority) for name, one in content.components.items()]
    if priorities:
        connection.executemany("insert into priorities values (?, ?)", priorities)


def _some(logs: Logs, query: str) -> list[str]:
    """The first few rows, in an order that does not depend on threads."""
    rows = logs.sql(f"select own::varchar as own from ({query}) found(own) order by found.own limit {MOST_FINDINGS}")
    return [row["own"] for row in rows]


def _circling(logs: Logs) -> list[str]:
    """Rows from which no number of links leads to the kept document. Each round follows twice as many as the one before."""
    connection = logs.connection
    connection.execute("create temp table ways as select own, stage, linked from twins where linked <> kept")
    rows = _rows(logs, "ways")
    for _ in range(max(1, rows.bit_length() + 1)):
        if not rows:
            return []
        connection.execute(
            "create or replace temp table further as select w.own, w.stage, o.linked from ways w join ways o "
            "on o.own = w.linked and o.stage = w.stage"
        )
        connection.execute("create or replace temp table ways as select * from further")
        rows = _rows(logs, "ways")
    return _some(logs, "select own from ways")


def _rows(logs: Logs, table: str) -> int:
    return int(logs.sql(f"select count(*) as rows from {table}")[0]["rows"])


def _check_keys(corpus: Folder, logs: Logs) -> Iterator[str]:
    """Documents of one key have one URL, so what the logs show of it is the same."""
    rows = logs.sql(
        "with twice as (select url_key from documents where url_key is not null group by url_key "
        "having min(md5_number_lower(url)) <> max(md5_number_lower(url))) "
        "select arg_min(id, id) as id, url_key, min(url) as url, max(url) as other from documents "
        f"where url_key in (select url_key from twice) group by url_key order by id limit {MOST_FINDINGS}"
    )
    paths = _paths_of(corpus, logs.manifest.content, "documents", [row["id"] for row in rows])
    for row in rows:
        told = f"{row['url']} and {row['other']} both have the url_key {row['url_key']}"
        yield f"{paths[row['id']]}: {row['id']}: {told}, which is of one URL"


def _check_splits(corpus: Folder, logs: Logs) -> Iterator[str]:
    content = logs.manifest.content
    split = content.split
    if split is None or not split.documents:
        return
    if not content.dropped:  # else the document after which a cluster is named may have been
        yield from _check_names(corpus, logs)
        yield from _check_sizes(logs)
        yield from _check_closest(logs, split)
    largest = max(split.documents.items(), key=lambda item: item[1])[0]  # the others are few, and held
    for column in ("split_cluster", "text_sha256"):
        shared = logs.sql(
            f"select d.id, d.split, d.{column} as shared, h.split as other, h.id as other_id from documents d "
            f"join (select id, split, {column} from documents where split <> $1) h "
            f"on d.{column} = h.{column} and d.split <> h.split order by d.id, h.id limit {MOST_FINDINGS}",
            [largest],
        )
        paths = _paths_of(corpus, content, "documents", [row["id"] for row in shared])
        for row in shared:
            where = f"{paths[row['id']]}: {row['id']} is in {row['split']}"
            if column == "split_cluster":
                yield f"{where}, others of its cluster {row['shared']} in {row['other']}, such as {row['other_id']}"
            else:
                told = f"{row['other_id']} in {row['other']}"
                yield f"{where} and {told}: they have the same text and its copies stand in two splits"


def _check_sizes(logs: Logs) -> Iterator[str]:
    """The pairs that were verified hold clusters together, and no cluster has more of them than it has pairs."""
    content = logs.manifest.content
    told = [one.get("verified_pairs") for one in content.deduplication if one.get("stage") == "split"]
    if len(told) != 1 or not isinstance(told[0], int):
        return
    query = "select count(*) as n from documents where split_cluster is not null group by split_cluster having n > 1"
    found = logs.sql(
        f"select coalesce(sum(n - 1), 0)::bigint as least, coalesce(sum(n * (n - 1) // 2), 0)::hugeint as most from ({query})"
    )
    least, most = int(found[0]["least"]), int(found[0]["most"])
    cut = any(record.stage == TAKEDOWN for record in content.stages)  # who was taken down is in no cluster any more
    if told[0] < least or (told[0] > most and not cut):
        pairs = f"the manifest says that {told[0]} pairs were found alike"
        yield f"logs/documents: clusters of the split need {least} to {most} pairs by split_cluster, and {pairs}"


def _check_closest(logs: Logs, split: SplitRecord) -> Iterator[str]:
    """The closest pair of two splits are two documents, of two splits."""
    pair = split.closest
    if pair is None or (pair.held_out is None and pair.other is None):
        return
    rows = logs.sql(
        "select id, split, removed_by from documents where id in ($held_out, $other)",
        {"held_out": pair.held_out, "other": pair.other},
    )
    known = {row["id"]: row for row in rows}
    taken = [row["id"] for row in rows if row["removed_by"] == TAKEDOWN]
    for name, one in (("held_out", pair.held_out), ("other", pair.other)):
        row = known.get(one)
        if row is None or (row["split"] is None and one not in taken):
            yield f"split, closest: {name} is {one}, which is no document of the corpus"
        elif name == "held_out" and row["split"] == "train":
            yield f"split, closest: held_out is {one}, which is in train"
    splits = {row["split"] for row in rows if row["split"] is not None}
    if len(rows) == 2 and len(splits) == 1 and not taken:
        yield f"split, closest: {pair.held_out} and {pair.other} are both in {splits.pop()}"


def _check_names(corpus: Folder, logs: Logs) -> Iterator[str]:
    """A cluster of the split has the name of its smallest document, which is in it, unless it was taken down."""
    place = _PLACE
    rows = logs.sql(
        "with named as (select id, split_cluster, component, file, position from documents "
        "where split_cluster is not null and split_cluster <> id), "
        "heads as (select id, split_cluster, removed_by, component, file, position from documents "
        "where md5_number(id) in (select md5_number(split_cluster) from named)) "
        "select n.id, n.split_cluster, h.id as head, coalesce(h.split_cluster = h.id or h.removed_by = $taken, false) as heads "
        "from named n left join heads h on h.id = n.split_cluster "
        f"where h.id is null or not heads or {place.format('h')} > {place.format('n')} order by n.id limit {MOST_FINDINGS}",
        {"taken": TAKEDOWN},
    )
    paths = _paths_of(corpus, logs.manifest.content, "documents", [row["id"] for row in rows])
    for row in rows:
        told = "no document of the corpus" if row["head"] is None else "not in it" if not row["heads"] else "not its smallest"
        yield f"{paths[row['id']]}: {row['id']}: its split_cluster is named after {row['split_cluster']}, which is {told}"


@contextmanager
def _all_logs(corpus: Folder, manifest: Manifest) -> Generator[Logs, None, None]:
    with (
        tempfile.TemporaryDirectory(prefix="corpusmill-verify-") as spill,
        Logs(corpus, manifest, ["documents", "removals"]) as logs,
    ):
        logs.connection.execute(f"set memory_limit='{JOIN_MEMORY}'")
        logs.connection.execute(f"set temp_directory='{spill}'")
        logs.connection.execute("set preserve_insertion_order=false")
        yield logs


def _paths_of(corpus: Folder, content: Content, kind: str, ids: list[str]) -> dict[str, str]:
    """The log in which each of a few documents has its row."""
    found: dict[str, str] = dict.fromkeys(ids, f"logs/{kind}")
    for log in content.logs if ids else []:
        if log.kind == kind:
            column = read_parquet(corpus, log.path)["id"]
            here = column.filter(pc.is_in(column, value_set=pa.array(ids, pa.string())))
            found.update(dict.fromkeys(here.to_pylist(), log.path))
    return found
