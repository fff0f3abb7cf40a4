"""The style rules that a machine can check, one function a rule.

A rule takes a tree (source_tree.py) and yields findings; its reason stands in its docstring.
tidy_test.py applies them to the repository, tidy_rules_test.py plants a violation of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import code_rules
import include_rules
import text_rules
import tree_rules
from source_tree import Finding, Tree

RULES: tuple[Callable[[Tree], Iterator[Finding]], ...] = (
    include_rules.check_includes,
    include_rules.check_cuda_rooms,
    include_rules.check_circles,
    include_rules.check_device_headers,
    code_rules.check_function_length,
    code_rules.check_headers,
    code_rules.check_launches,
    code_rules.check_type_names,
    code_rules.check_instructions,
    code_rules.check_suite_names,
    text_rules.check_opening_comment,
    text_rules.check_line_length,
    text_rules.check_prose_width,
    text_rules.check_words,
    text_rules.check_pronouns,
    text_rules.check_machine_paths,
    text_rules.check_links,
    text_rules.check_named_documents,
    tree_rules.check_file_length,
    tree_rules.check_amounts,
    tree_rules.check_names,
    tree_rules.check_top_level,
    tree_rules.check_mirror,
    tree_rules.check_coverage,
)


def check_all(tree: Tree) -> list[Finding]:
    """Every finding of every rule, by path and line."""
    findings = [finding for rule in RULES for finding in rule(tree)]
    return sorted(findings, key=lambda f: (f.path, f.line, f.rule))
