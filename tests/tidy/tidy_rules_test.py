#!/usr/bin/env python3
"""Tests of the tidy rules: each finds a planted violation and leaves its clean neighbour alone."""

from __future__ import annotations

import posixpath
import unittest

import code_rules
import include_rules
import text_rules
import tidy_rules
import tidy_test
import tree_rules
from cpp_functions import function_spans
from source_tree import Tree

HEADER = "// Widget: something that turns.\n#pragma once\n"
MARK = "TO" + "DO"
HOME = "/" + "home/a/x"


def function_of(lines: int, head: str = "void F()") -> str:
    """A C++ function that many lines long."""
    return head + " {\n" + "  f();\n" * (lines - 2) + "}\n"


def cover(tree: Tree) -> None:
    """Lists planted sources as covered, unless that is planted too."""
    tested = tree_rules.mirrored_sources(tree)
    sources = [path for path in tree if path.split("/")[0] in include_rules.LAYERS
               and path.endswith((".cc", ".cu", ".py"))
               and posixpath.splitext(path)[0] not in tested]
    if sources:
        tree.setdefault("tests/e2e/whole_test.py", '"""It tests the whole."""')
        tree.setdefault(tree_rules.COVERED_ELSEWHERE,
                        "".join(f"{path}: tests/e2e/whole_test.py\n" for path in sources))


class RuleCase(unittest.TestCase):
    """Finds what the rules say about one or more planted files."""

    def rules_for(self, **files: str) -> set[str]:
        """Names of the rules that fire; `engine__a_h` stands for engine/a.h."""
        tree = {}
        for name, text in files.items():
            stem, suffix = name.replace("__", "/").rsplit("_", 1)
            tree[f"{stem}.{suffix}"] = text
        cover(tree)
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


    def test_rooms_of_cuda(self) -> None:
        good = [("kernels__cuda__append__a_cu", '"kernels/cuda/primitives/b.cuh"'),
                ("kernels__cuda__append__a_cu", '"kernels/cuda/append/b.h"'),
                ("kernels__cuda__runtime__a_h", '"kernels/core/dtype.h"'),
                ("kernels__cuda__a_cc", '"kernels/cuda/linear/b.h"')]
        bad = [("kernels__cuda__append__a_cu", '"kernels/cuda/linear/b.h"'),  # siblings
               ("kernels__cuda__primitives__a_cu", '"kernels/cuda/runtime/b.h"'),
               ("kernels__cuda__ptx__a_cuh", '"kernels/cuda/primitives/b.cuh"'),
               ("kernels__cuda__linear__a_cu", '"kernels/cuda/cuda_ops.h"')]
        for rules, cases in (({"room"}, bad), (set(), good)):
            for path, target in cases:
                with self.subTest(path=path, target=target):
                    self.assertEqual(self.rules_for(**self.include(path, target)), rules)
        self.expect("room", {"kernels__cuda__cellar__a_h": HEADER},
                    {"kernels__cuda__paging__a_h": HEADER})

    def test_circles(self) -> None:
        def include(target: str) -> str:
            return f'{HEADER}#include "{target}"\n'
        chain = {"engine__a_h": include("engine/b.h"), "engine__b_cc": include("engine/c.h"),
                 "engine__b_h": HEADER}
        self.expect("circle", chain | {"engine__c_h": include("engine/a.h")},
                    chain | {"engine__c_h": include("kernels/a.h"), "kernels__a_h": HEADER})
        down = {"engine__a_h": include("engine/kv/b.h"), "engine__kv__c_h": HEADER}
        self.expect("circle", down | {"engine__kv__b_h": include("engine/d.h"),
                                      "engine__d_h": HEADER},
                    down | {"engine__kv__b_h": include("engine/kv/c.h")})

    def test_shortest_circle_of_each_kind(self) -> None:
        graph = {"a": {"b", "c"}, "b": {"c"}, "c": {"a"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
        self.assertEqual(list(include_rules.circles(graph)), [["a", "c", "a"], ["d", "e", "d"]])

    def test_device_headers(self) -> None:
        body = HEADER + "__device__ int f();\n"
        self.expect("device-header", {"kernels__a_h": body},
                    {"kernels__a_cuh": body, "kernels__core__host_device_h": body})
        self.expect("device-header", self.include("kernels__a_cc", '"kernels/b.cuh"'),
                    self.include("kernels__a_cuh", '"kernels/b.cuh"'))
        self.assertEqual(self.rules_for(kernels__a_h=HEADER + "// calls __device__ f\n"), set())


class LengthTest(RuleCase):
    """Files, functions and lines."""

    def test_file(self) -> None:
        padding = "int x;\n"
        self.expect("file-length", {"engine__a_h": HEADER + padding * 499},
                    {"engine__a_h": HEADER + padding * 498})

    def test_line(self) -> None:
        self.expect("line-length", {"engine__a_h": HEADER + "//" + "x" * 99},
                    {"engine__a_h": HEADER + "//" + "x" * 98})

    def test_prose(self) -> None:
        wide = "x " * 51 + "\n"
        link = "- [" + "x " * 51 + "](a.md).\n"
        self.expect("prose-width", {"engine__a_md": wide},
                    {"engine__a_md": f"| {wide}\n```\n{wide}```\n{link}"})
        self.expect("prose-width", {"engine__a_md": "see " + link}, {"engine__a_md": wide[:100]})

    def test_included_text(self) -> None:
        self.expect("line-length", {"engine__a_inc": "// Data of widgets.\n" + "1, " * 34},
                    {"engine__a_inc": "// Data of widgets.\n" + "1, " * 33})
        self.assertEqual(self.rules_for(engine__a_inc="1, 2,\n"), {"opening-comment"})

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
    """Opening comments, names, words, pronouns, headers, paths."""

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

    def test_pronouns(self) -> None:
        lines = "// It turns.\n" * (1000 // text_rules.MAX_PRONOUNS)
        whose = "// Whose widget?\nint nobody, who;\n"
        for path, mark in (("engine__a_h", "//"), ("proto__a_proto", "//"), ("docker__a_sh", "#"),
                           ("engine__CMakeLists_txt", "#"), ("models__a_py", "#")):
            with self.subTest(path=path):
                opening = HEADER if mark == "//" else f"{mark} It turns a widget.\n"
                if path.endswith("_py"):
                    opening = '"""It turns a widget."""\n'
                bad = {path: f"{opening}{mark} Nobody turns.\n"}
                self.expect("pronoun", bad, bad | {"engine__b_h": HEADER + lines + whose})
        self.expect("pronoun", {"engine__a_md": "Whoever turns.\n"}, {"engine__a_md": "Whose?\n"})

    def test_amounts(self) -> None:
        places = ("docker/a", "engine/a.md", "tests/golden/a.py", "engine/a.cc", "run",
                  "models/fox_model.cc", "kernels/cuda/linear/a.cu", "engine/schedule/a.h")
        for place, (name, _, _, limit) in zip(places, tree_rules.AMOUNTS, strict=True):
            for amount in (limit, limit + 1):
                tree = {place: "// not code\n\n" * (place == "engine/a.cc") + "x\n" * amount}
                if name == "files":
                    tree = {f"docker/{i}": "" for i in range(amount)}
                found = [finding for finding in tree_rules.check_amounts(tree)
                         if f" {name}, at most {limit};" in finding.message]
                with self.subTest(name=name, amount=amount):
                    self.assertEqual(len(found), amount - limit)

    def test_headers(self) -> None:
        self.expect("header", {"engine__a_h": "// Widget: it turns.\n"}, {"engine__a_h": HEADER})
        self.expect("header", {"engine__a_h": HEADER + "using namespace std;\n"},
                    {"engine__a_cc": HEADER + "using namespace std::literals;\n"})

    def test_launch(self) -> None:
        bad, good = "K<<<grid(1, 2), 256>>>(x);\n", "K<<<grid(1, 2), 256, 0, stream>>>(x);\n"
        self.expect("launch", {"kernels__a_cu": HEADER + bad}, {"kernels__a_cu": HEADER + good})
        self.expect("launch", {"kernels__a_cu": HEADER + bad},
                    {"kernels__a_cu": HEADER + "// " + bad})

    def test_type_names(self) -> None:
        tile = HEADER + "namespace {\nstruct alignas(16) Tile final : Box {\n  int x;\n};\n}\n"
        own = HEADER + "struct A::Tile {};\nstruct Tile;\ntemplate <> struct Tile<1> {};\n"
        self.expect("type-name", {"kernels__a_h": tile, "kernels__b_h": tile},
                    {"kernels__a_h": tile, "kernels__b_h": own, "kernels__cpu__b_h": tile})
        self.expect("type-name", {"kernels__a_h": HEADER + "enum class E : int { kA };\n",
                                  "kernels__b_h": HEADER + "class E {};\n"},
                    {"kernels__a_h": HEADER + "enum class E : int { kA };\nE e{E::kA};\n"})

    def test_instructions(self) -> None:
        for body in ("int f(int x) { return __shfl_xor_sync(~0u, x, 1); }\n",
                     'void f() { asm volatile("wait;" ::: "memory"); }\n'):
            with self.subTest(body=body):
                self.expect("instruction", {"kernels__cuda__append__a_cuh": HEADER + body},
                            {"kernels__cuda__primitives__a_cuh": HEADER + body,
                             "kernels__cuda__ptx__a_cuh": HEADER + body,
                             "kernels__cuda__append__a_cuh": HEADER + "// not asm, __shfl_sync\n"})

    def test_suite_names(self) -> None:
        source = {"engine__a_h": HEADER}
        for macro in ("TEST", "TEST_F", "TEST_P", "TYPED_TEST"):
            with self.subTest(macro=macro):
                bad, good = (f"{HEADER}{macro}({suite}, B) {{}}" for suite in ("A", "ATest"))
                self.expect("suite-name", {"tests__engine__a_test_cc": bad} | source,
                            {"tests__engine__a_test_cc": good} | source)

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


    def test_named_documents(self) -> None:
        proof = {"kernels__docs__proof_md": "# Proof\n\n## 2. Bounds\n\n### 2a Keys\n"}
        good = ("// see proof.md, docs/proof.md section 2a and proof.md 2a, 2\n"
                'const char* kName = "other.md";\n')
        for comment in ("// see other.md\n", "// see engine/proof.md\n", "/* proof.md\n 2b */\n",
                        "// proof.md sections 2a and 3\n"):
            with self.subTest(comment=comment):
                self.expect("document", {"engine__a_h": HEADER + comment} | proof,
                            {"engine__a_h": HEADER + good} | proof)
        python = '"""It turns a widget as proof.md says."""\n'
        self.expect("document", {"models__a_py": python}, {"models__a_py": python} | proof)

    def test_coverage(self) -> None:
        covered, whole = "tests__tidy__covered_elsewhere_txt", '"""It tests the whole."""'
        test = {"tests__e2e__whole_test_py": whole}
        line = "engine/a.cc: tests/e2e/whole_test.py\n"
        for text in ("", line * 2, line + "engine/b.cc: tests/e2e/whole_test.py\n",
                     "engine/a.cc: tests/e2e/gone_test.py\n", "engine/a.cc: engine/a.cc\n"):
            with self.subTest(text=text):
                self.expect("coverage", {"engine__a_cc": HEADER, covered: text} | test,
                            {"engine__a_cc": HEADER, covered: line} | test)
        own = {"engine__a_cc": HEADER, "tests__engine__a_b_test_cc": HEADER} | test
        self.expect("coverage", own | {covered: line}, own)


class ListTest(unittest.TestCase):
    """The list of rules itself, and what is excused."""

    def test_every_rule_runs(self) -> None:
        written = {value for module in (code_rules, include_rules, text_rules, tree_rules)
                   for name, value in vars(module).items() if name.startswith("check_")}
        self.assertEqual(written, set(tidy_rules.RULES))

    def test_every_rule_gives_its_reason(self) -> None:
        for rule in tidy_rules.RULES:
            self.assertGreater(len((rule.__doc__ or "").split()), 5, rule.__name__)

    def test_exceptions_say_why(self) -> None:
        def read(line: str) -> dict[tuple[str, str], int]:
            return tidy_test.read_exceptions({tidy_test.EXCEPTIONS: f"# Title.\n\n{line}\n"})
        self.assertEqual(read("room kernels/a.cu: shared by: two"), {("room", "kernels/a.cu"): 3})
        for line in ("room kernels/a.cu", "room kernels/a.cu:", "kernels/a.cu: reason"):
            with self.subTest(line=line), self.assertRaises(SystemExit):
                read(line)


if __name__ == "__main__":
    unittest.main()
