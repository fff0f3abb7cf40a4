#!/usr/bin/env python3
"""Tests of the tidy rules: each finds a planted violation and leaves its clean neighbour alone."""

from __future__ import annotations

import unittest

import tidy_rules
from cpp_functions import function_spans

HEADER = "// Widget: something that turns.\n#pragma once\n"
MARK = "TO" + "DO"
HOME = "/" + "home/somebody/x"


def function_of(lines: int, head: str = "void F()") -> str:
    """A C++ function that many lines long."""
    return head + " {\n" + "  f();\n" * (lines - 2) + "}\n"


class RuleCase(unittest.TestCase):
    """Finds what the rules say about one or more planted files."""

    def rules_for(self, **files: str) -> set[str]:
        """Names of the rules that fire; `engine__a_h` stands for engine/a.h."""
        tree = {}
        for name, text in files.items():
            stem, suffix = name.replace("__", "/").rsplit("_", 1)
            tree[f"{stem}.{suffix}"] = text
        return {finding.rule for finding in tidy_rules.check_all(tree)}

    def expect(self, rule: str, bad: dict[str, str], good: dict[str, str]) -> None:
        """`bad` breaks this rule alone, `good` breaks none."""
        self.assertEqual(self.rules_for(**bad), {rule})
        self.assertEqual(self.rules_for(**good), set())


class IncludeTest(RuleCase):
    """server -> engine -> models -> kernels."""

    def include(self, path: str, target: str) -> dict[str, str]:
        """A file with that one include."""
        return {path: f"{HEADER}#include {target}\n"}

    def test_direction(self) -> None:
        upward = [("kernels__a_h", '"models/b.h"'), ("kernels__a_cc", '"engine/b.h"'),
                  ("models__a_h", '"engine/b.h"'), ("engine__kv__a_h", '"server/b.h"'),
                  ("engine__a_h", '"fox/v1/x.pb.h"'), ("models__a_h", "<grpcpp/grpcpp.h>"),
                  ("kernels__a_h", '"absl/status/status.h"'),
                  ("engine__a_h", "<torch/extension.h>"), ("server__a_h", "<ATen/ATen.h>")]
        for path, target in upward:
            with self.subTest(path=path, target=target):
                self.assertEqual(self.rules_for(**self.include(path, target)), {"include"})
        downward = [("server__a_h", '"kernels/b.h"'), ("server__a_h", '"fox/v1/x.pb.h"'),
                    ("engine__a_h", '"models/b.h"'), ("models__a_h", '"absl/status/status.h"'),
                    ("kernels__torch__a_h", "<torch/extension.h>"), ("engine__a_h", "<vector>")]
        for path, target in downward:
            with self.subTest(path=path, target=target):
                self.assertEqual(self.rules_for(**self.include(path, target)), set())

    def test_tests_follow_what_they_test(self) -> None:
        source = {"engine__a_h": HEADER}
        self.expect("include", self.include("tests__engine__a_test_cc", '"server/b.h"') | source,
                    self.include("tests__engine__a_test_cc", '"engine/b.h"') | source)


class LengthTest(RuleCase):
    """Files, functions and lines."""

    def test_file(self) -> None:
        padding = "int x;\n"
        self.expect("file-length", {"engine__a_h": HEADER + padding * 499},
                    {"engine__a_h": HEADER + padding * 498})

    def test_line(self) -> None:
        self.expect("line-length", {"engine__a_h": HEADER + "//" + "x" * 99},
                    {"engine__a_h": HEADER + "//" + "x" * 98})

    def test_function(self) -> None:
        self.expect("function-length", {"engine__a_cc": HEADER + function_of(71)},
                    {"engine__a_cc": HEADER + function_of(70)})

    def test_device_function(self) -> None:
        head = "__global__ void K()"
        self.expect("function-length", {"kernels__a_cu": HEADER + function_of(251, head)},
                    {"kernels__a_cu": HEADER + function_of(250, head)})

    def test_python_and_shell(self) -> None:
        python = '"""It turns a widget."""\n\n\ndef f():\n' + "    x = 1\n"
        self.expect("function-length", {"models__a_py": python + "    x = 1\n" * 70},
                    {"models__a_py": python + "    x = 1\n" * 68})
        shell = "#!/bin/sh\n# It turns a widget.\nf() {\n"
        self.expect("function-length", {"docker__a_sh": shell + "  x\n" * 69 + "}\n"},
                    {"docker__a_sh": shell + "  x\n" * 68 + "}\n"})


class FunctionSpansTest(unittest.TestCase):
    """The brace reader on the shapes of C++ that we write."""

    def spans(self, code: str) -> list[tuple[int, int]]:
        """Line ranges of the functions."""
        return [(first, last) for first, last, _ in function_spans(code)]

    def test_scopes_are_no_functions(self) -> None:
        self.assertEqual(self.spans("namespace a {\nclass B : public C {\n public:\n  int d() {\n"
                                    "    return 1;\n  }\n};\n}\n"), [(4, 6)])

    def test_constructor_with_braced_members(self) -> None:
        code = "A::A()\n    : b_(1),\n      c_{2} {\n  d();\n}\nvoid E() {\n}\n"
        self.assertEqual(self.spans(code), [(1, 5), (6, 7)])

    def test_template_and_lambda(self) -> None:
        self.assertEqual(self.spans("template <class T, int N = (1 > 0)>\nvoid F(T t) {\n"
                                    "  auto g = [&](int x) {\n    return x;\n  };\n}\n"), [(1, 6)])

    def test_braces_in_text_do_not_count(self) -> None:
        self.assertEqual(self.spans("void F() {\n  // }\n  s = \"}\"; c = '}'; n = 1'000;\n"
                                    "  r = R\"x(})x\";\n  /* } */\n}\n"), [(1, 6)])

    def test_data_is_no_function(self) -> None:
        self.assertEqual(self.spans("constexpr int kA[] = {1, 2};\nstruct B {\n  int c = 0;\n};\n"),
                         [])

    def test_macro_bodies_are_skipped(self) -> None:
        self.assertEqual(self.spans("#define A(x) \\\n  do {   \\\n  } while (0\nvoid F() {\n}\n"),
                         [(4, 5)])


class TextTest(RuleCase):
    """Opening comments, names, words, headers, paths."""

    def test_opening_comment(self) -> None:
        body = "#pragma once\n"
        self.expect("opening-comment", {"engine__a_h": body}, {"engine__a_h": HEADER})
        self.expect("opening-comment", {"engine__a_h": "// Widget\n" + body},
                    {"models__a_py": '#!/usr/bin/env python3\n"""It turns a widget."""\n'})
        self.expect("opening-comment", {"engine__CMakeLists_txt": "add_library(x)\n"},
                    {"engine__CMakeLists_txt": "# The widget's library.\nadd_library(x)\n"})

    def test_names(self) -> None:
        for name in ("engine__string_utils_h", "server__common__a_h", "models__helpers_py"):
            with self.subTest(name=name):
                text = '"""It turns a widget."""\n' if name.endswith("py") else HEADER
                self.assertEqual(self.rules_for(**{name: text}), {"name"})
        self.assertEqual(self.rules_for(engine__uncommon_h=HEADER), set())

    def test_words(self) -> None:
        self.expect("word", {"engine__a_h": HEADER + f"// {MARK}: turn\n"},
                    {"engine__a_h": HEADER + f"// {MARK}S is a name\n", "models__vocab_json": MARK})

    def test_headers(self) -> None:
        self.expect("header", {"engine__a_h": "// Widget: it turns.\n"}, {"engine__a_h": HEADER})
        self.expect("header", {"engine__a_h": HEADER + "using namespace std;\n"},
                    {"engine__a_cc": HEADER + "using namespace std::literals;\n"})

    def test_launch(self) -> None:
        bad, good = "K<<<grid(1, 2), 256>>>(x);\n", "K<<<grid(1, 2), 256, 0, stream>>>(x);\n"
        self.expect("launch", {"kernels__a_cu": HEADER + bad}, {"kernels__a_cu": HEADER + good})
        self.expect("launch", {"kernels__a_cu": HEADER + bad},
                    {"kernels__a_cu": HEADER + "// " + bad})

    def test_machine_path(self) -> None:
        self.expect("machine-path", {"engine__a_h": HEADER + f"// see {HOME}\n"},
                    {"engine__a_h": HEADER + "// see a/home/x and $ROOT/work/x\n"})


class TreeTest(RuleCase):
    """Rules about where files lie."""

    def test_mirror(self) -> None:
        source = {"engine__kv__a_h": HEADER, "engine__a_b_h": HEADER}
        self.expect("mirror", {"tests__engine__a_test_cc": HEADER} | source,
                    {"tests__engine__kv__a_test_cc": HEADER} | source)
        self.expect("mirror", {"tests__engine__kv__b_test_cc": HEADER} | source,
                    {"tests__engine__kv__a_full_test_cc": HEADER} | source)
        whole = '"""It tests the whole."""'
        self.assertEqual(self.rules_for(tests__e2e__anything_test_py=whole), set())
        self.assertEqual(self.rules_for(tests__engine__sim__anything_test_py=whole), set())

    def test_top_level(self) -> None:
        self.expect("top-level", {"widgets__a_h": HEADER}, {".hidden__a_h": HEADER})

    def test_links(self) -> None:
        target = {"engine__a_h": HEADER}
        good = "[`a`](a.h) [f](../engine) [w](https://example.org/x) [s](#part) `[b](b.h)`\n"
        self.expect("link", {"engine__README_md": "# A\n\n[`b`](b.h) and `c`\n"} | target,
                    {"engine__README_md": good + "```\n[b](b.h)\n```\n"} | target)


class CoverageTest(unittest.TestCase):
    """The list of rules itself."""

    def test_every_rule_runs(self) -> None:
        written = {value for name, value in vars(tidy_rules).items() if name.startswith("check_")}
        self.assertEqual(written - {tidy_rules.check_all}, set(tidy_rules.RULES))


if __name__ == "__main__":
    unittest.main()
