"""A rule is found by what people call it, and what is no rule is told from one that removed nothing."""

from __future__ import annotations

import pytest

from manifests.audit.flow import removed_by_rule
from manifests.audit.rule_names import UnknownRule, rule_or_stage_called
from manifests.manifest import Manifest


def test_every_rule_and_stage_that_removed_documents_is_called_by_its_own_name(manifest: Manifest) -> None:
    removed = removed_by_rule(manifest.content)
    assert len(removed) > 10
    for stage, rule in removed:
        assert rule_or_stage_called(manifest.content, rule) == rule
        assert rule_or_stage_called(manifest.content, stage) == stage


def test_the_recipe_s_name_of_a_rule_is_that_rule(manifest: Manifest) -> None:
    assert rule_or_stage_called(manifest.content, "gopher_quality.min_words") == "gopher.min_words"


def test_a_rule_that_removed_nothing_is_one_all_the_same(manifest: Manifest) -> None:
    assert "gopher.max_words" not in {rule for _, rule in removed_by_rule(manifest.content)}
    assert rule_or_stage_called(manifest.content, "gopher_quality.max_words") == "gopher.max_words"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gopher.min_wrds", "did you mean gopher.min_words"),
        ("nonsense", "no rule or stage of this corpus is called 'nonsense'; there are .* more$"),
        ("gopher_quality", "several rules; name one: gopher"),
        ("' or 1=1 --", "no rule or stage"),
        ("", "no rule or stage"),
    ],
)
def test_what_is_no_rule_is_refused_with_what_comes_near(manifest: Manifest, name: str, said: str) -> None:
    with pytest.raises(UnknownRule, match=said) as refused:
        rule_or_stage_called(manifest.content, name)
    assert str(refused.value).count(",") < 20


def test_what_each_rule_removed_is_the_sum_over_components(manifest: Manifest) -> None:
    for (stage, rule), number in removed_by_rule(manifest.content).items():
        counts = [one for one in manifest.content.counts if one.stage == stage]
        assert number == sum(one.removed.get(rule, 0) for one in counts) > 0
    assert sum(removed_by_rule(manifest.content).values()) == sum(
        one.documents_in - one.documents_kept for one in manifest.content.components.values()
    )
