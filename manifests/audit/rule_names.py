"""What people call a rule: its own name (`gopher.min_words`), or the recipe's stage and option (`gopher_quality.min_words`)."""

from __future__ import annotations

import difflib

from manifests.audit.flow import removed_by_rule
from manifests.blocks import deciding_rules
from manifests.manifest import Content, StageRecord
from manifests.rules import Rule
from manifests.wording import some

NAMED = 8
NEAR = 3


class UnknownRule(Exception):
    """A name that no rule or stage has; the message says which come near."""


def names_of(record: StageRecord, rule: Rule) -> set[str]:
    """All that a rule of this stage can be called."""
    return {rule.name, f"{record.stage}.{option_of(rule)}"}


def option_of(rule: Rule) -> str:
    """The bare name of its option, which means it where no other rule has that: `min_words`."""
    return rule.name.rpartition(".")[2]


def rule_or_stage_called(content: Content, name: str) -> str:
    """The rule, or the stage of the removals, that `name` means; it may have removed nothing. UnknownRule where there is none."""
    removed = removed_by_rule(content)
    stages = {count.stage for count in content.counts}
    if name in stages.union(*removed):
        return name
    known = list(deciding_rules(content))
    if found := next((rule.name for *_, record, rule in known if name in names_of(record, rule)), None):
        return found
    if len(bare := {rule.name for *_, rule in known if option_of(rule) == name}) == 1:
        return bare.pop()
    if rules := sorted({rule.name for *_, record, rule in known if record.stage == name}):
        raise UnknownRule(f"{name} is a filter of several rules; name one: {', '.join(rules)}")
    every = sorted({one for _, one in removed} | {one for *_, record, rule in known for one in names_of(record, rule)})
    near = difflib.get_close_matches(name, [*every, *stages], NEAR)
    most = [one for _, one in removed] or every
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {some(most, NAMED)}" if most else "there are none"
    raise UnknownRule(f"no rule or stage of this corpus is called {name!r}; {hint}")
