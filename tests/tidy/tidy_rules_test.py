#!/usr/bin/env python3
"""Tests of the tidy rules: each finds a planted violation and leaves its clean neighbour alone."""

from __future__ import annotations

import json
import unittest

import include_rules
import text_rules
import tidy_test
import tree_rules
from cpp_functions import function_spans
from expectation_rules import check_silent_loops
from source_tree import Tree, code_checksum

HEADER = "// Widget: something that turns.\n"
PYTHON = '"""It turns a widget."""\n'
SHELL = "#!/bin/sh\n# It turns a widget.\n"
MARK = "TO" + "DO"
HOME = "/" + "home/a/x"
WIDE = "x " * 51 + "\n"
LINK = "- [" + "x " * 51 + "](https://example.org/a).\n"


def file(path: str, body: str = "") -> Tree:
    """A file that opens as it should."""
    opening = SHELL if path.endswith(".sh") else PYTHON if path.endswith(".py") else HEADER
    return {path: opening + body}


def include(path: str, target: str) -> Tree:
    return file(path, f"#include {target}\n" if target[0] == "<" else f'#include "{target}"\n')


def function(path: str, lines: int, head: str = "void F()") -> Tree:
    """A file with a C++ function that many lines long."""
    return file(path, head + " {\n" + "  f();\n" * (lines - 2) + "}\n")


CHAIN = include("engine/a.h", "engine/b.h") | include("engine/b.cc", "engine/c.h") | \
    file("engine/b.h")
DOWN = include("engine/a.h", "engine/kv/b.h") | file("engine/kv/c.h") | file("engine/d.h")
TARGET = file("engine/a.h")


def test_file(name: str, lines: str) -> Tree:
    """A test of these lines."""
    return file(f"tests/engine/{name}",
                f"TEST(A, B) {{\n{lines}\n}}\n" if name.endswith(".cc") else lines)


README = {"README.md": "| `--host a\\|b`, `--grpc-port N` | address |\n"}
# Loops of a test, and whether a failure says its case.
LOOPS: list[tuple[bool, str]] = [
    (False, "for (int x : {1, 2}) EXPECT_TRUE(f(x));"),
    (False, "for (int x : xs) {\n  EXPECT_EQ(f(x, 1), 2);\n  EXPECT_TRUE(g(x));\n}"),
    (False, "for (const auto& [a, b] : Map<A::B>()) EXPECT_EQ(f(a), b + 1);"),
    (False, "for (size_t i = 0, n = 2; i < n; ++i) if (g(i)) { ASSERT_TRUE(f(i)); }"),
    (False, "SCOPED_TRACE(1);\nfor (int x : xs) EXPECT_TRUE(f(x));"),
    (False, "for (int x : xs) EXPECT_EQ(f(a, x), 1);"),
    (False, "for (int x : xs) {\n  EXPECT_TRUE(f(x));\n  SCOPED_TRACE(x);\n}"),
    (False, "for (int x : xs) {\n  SCOPED_TRACE(x);\n"
            "  for (int y : ys) EXPECT_TRUE(f(y) << 1);\n}"),
    (False, "for (int x : xs) while (g(x)) EXPECT_TRUE(f());"),
    (False, "for (int x : xs) // << x\n  EXPECT_EQ(f(x), \" << x\");"),
    (False, "for (int x : xs) EXPECT_THAT(f(x), Eq(1));"),
    (False, "for (int x : xs) { g(Point{x, 1}); EXPECT_TRUE(f()); }"),
    (True, "for (int x : xs) EXPECT_TRUE(f(x)) << x;"),
    (True, "for (int x : xs) {\n  SCOPED_TRACE(x);\n  if (f(x)) { EXPECT_TRUE(g()); }\n}"),
    (True, "for (int x : xs) EXPECT_EQ(f(x), x);"),
    (True, "for (int x : xs) EXPECT_THAT(f(), HasSubstr(g(x)));"),
    (True, "for (int i = 0; i < 9; ++i) EXPECT_TRUE(f());"),  # one case nine times
    (True, "while (g()) EXPECT_TRUE(f());"),
    (True, "for (int x : xs) g(x);\nEXPECT_TRUE(f());"),
    (True, "for (int x : xs) {\n  g(x);\n}\nEXPECT_TRUE(f());"),
    (True, "for (int x : xs) if (x) { g(x); } else { h(x); }\nEXPECT_TRUE(f());")]
PYTHON_LOOPS: list[tuple[bool, str]] = [
    (False, "for x in xs:\n    self.assertTrue(f(x))\n    self.assertEqual(f(x), 1)\n"),
    (False, "with self.subTest(x=1):\n    for x in xs:\n        self.assertEqual(f(x), 1)\n"),
    (True, "for x in xs:\n    with self.subTest(x=x):\n        self.assertTrue(f(x))\n"),
    (True, "for x in xs:\n    self.assertTrue(f(x), x)\n"),
    (True, "for x in xs:\n    self.assertEqual(f(x), 1, msg=x)\n"),
    (True, "for x in xs:\n    self.assertEqual(f(x), (x, 1))\n"),
    (True, "for x in xs:\n    self.assertIn(f'{x}', f())\n"),
    (True, "for x in xs:\n    with self.assertRaises(Error):\n        f(x)\n"),
    (True, "for _ in range(3):\n    self.assertTrue(f())\n")]
# A rule, a tree that breaks this rule alone, and a tree that breaks none.
PLANTED: list[tuple[str, Tree, Tree]] = [
    ("circle", CHAIN | include("engine/c.h", "engine/a.h"),
     CHAIN | include("engine/c.h", "kernels/a.h") | file("kernels/a.h")),
    ("circle", DOWN | include("engine/kv/b.h", "engine/d.h"),
     DOWN | include("engine/kv/b.h", "engine/kv/c.h")),
    ("room", file("kernels/cuda/cellar/a.h"), file("kernels/cuda/paging/a.h")),
    ("device-header", file("kernels/a.h", "__device__ int f();\n"),
     file("kernels/a.cuh", "__device__ int f();\n")),
    ("device-header", file("kernels/a.h", "__global__ void f();\n"),
     file("kernels/core/host_device.h", "__device__ int f();\n")),
    ("device-header", include("kernels/a.cc", "kernels/b.cuh"),
     include("kernels/a.cuh", "kernels/b.cuh") | file("kernels/a.h", "// calls __device__ f\n")),
    ("function-length", function("engine/a.cc", 71), function("engine/a.cc", 70)),
    ("function-length", function("kernels/a.cu", 251, "__global__ void K()"),
     function("kernels/a.cu", 250, "__global__ void K()")),
    ("function-length", file("models/a.py", "def f():\n" + "    x = 1\n" * 70),
     file("models/a.py", "def f():\n" + "    x = 1\n" * 69)),
    ("function-length", file("docker/a.sh", "f() {\n" + "  x\n" * 69 + "}\n"),
     file("docker/a.sh", "f() {\n" + "  x\n" * 68 + "}\n")),
    ("launch", file("kernels/a.cu", "K<<<grid(1, 2), 256>>>(x);\n"),
     file("kernels/a.cu", "K<<<grid(1, 2), 256, 0, stream>>>(x);\n// K<<<1, 2>>>(x);\n")),
    ("opening-comment", {"engine/a.h": "#pragma once\n"}, {"engine/a.h": HEADER}),
    ("opening-comment", {"engine/a.h": "// Widget\n#pragma once\n"},
     {"models/a.py": f"#!/usr/bin/env python3\n{PYTHON}"}),
    ("opening-comment", {"engine/CMakeLists.txt": "add_library(x)\n"},
     {"engine/CMakeLists.txt": "# The widget's library.\nadd_library(x)\n"}),
    ("opening-comment", {"engine/a.inc": "1, 2,\n"}, {"engine/a.inc": "// Data of widgets.\n1,\n"}),
    ("width", file("engine/a.h", "//" + "x" * 99), file("engine/a.h", "//" + "x" * 98)),
    ("width", file("engine/a.inc", "1, " * 34), file("engine/a.inc", "1, " * 33)),
    ("width", {"engine/a.md": WIDE}, {"engine/a.md": f"| {WIDE}\n```\n{WIDE}```\n{LINK}"}),
    ("width", {"engine/a.md": "see " + LINK}, {"engine/a.md": WIDE[:100]}),
    ("width", file("engine/a.h", f"// | {WIDE}"), file("engine/a.h", f"// | {WIDE[:90]}\n")),
    ("word", file("engine/a.h", f"// {MARK}: turn\n"),
     file("engine/a.h", f"// {MARK}S is a name\n") | {"models/vocab.json": MARK}),
    ("word", {"engine/a.json": f"see {HOME}\n"}, {"engine/a.json": "a/home/x and $ROOT/work/x\n"}),
    ("headless", {"engine/a.md": "It turns one that stands.\n"},
     {"engine/a.md": "Whatever turns. It turns what stands; the same of it.\n"}),
    ("link", {"engine/README.md": "# A\n\n[`b`](b.h) and `c`\n"} | TARGET,
     {"engine/README.md": "[`a`](a.h) [f](../engine) [w](https://example.org/x) [s](#part) "
                          "`[b](b.h)`\n```\n[b](b.h)\n```\n"} | TARGET),
    ("file-length", file("engine/a.h", "int x;\n" * 500), file("engine/a.h", "int x;\n" * 499)),
    ("name", file("engine/string_utils.h"), file("engine/uncommon.h")),
    ("name", file("models/helpers.py"), file("models/help.py")),
    ("name", file("server/common/a.h"), file("server/commons/a.h")),
    ("readme-flags", README | file("server/main.cc", 'kCommonFlags[] = {"host"};\n'),
     README | file("server/main.cc", 'kCommonFlags[] = {"host", "grpc-port"};\n')),
    ("readme-flags", README, {"README.md": "| `x` | `--host` |\n"}),
    ("silent-loop", test_file("a_test.cc", LOOPS[0][1]), file("engine/a.cc", LOOPS[0][1] + "\n")),
    ("top-level", file("widgets/a.h"), file(".hidden/a.h")),
]
INCLUDES = [
    ("include", [("kernels/a.h", "models/b.h"), ("kernels/a.cc", "engine/b.h"),
                 ("models/a.h", "engine/b.h"), ("engine/kv/a.h", "server/b.h"),
                 ("engine/a.h", "fox/v1/x.pb.h"), ("models/a.h", "<grpcpp/grpcpp.h>"),
                 ("kernels/a.h", "absl/status/status.h"), ("engine/a.h", "<torch/extension.h>"),
                 ("server/a.h", "<ATen/ATen.h>"), ("tests/engine/a_test.cc", "server/b.h")],
     [("server/a.h", "kernels/b.h"), ("server/a.h", "fox/v1/x.pb.h"), ("engine/a.h", "models/b.h"),
      ("models/a.h", "absl/status/status.h"), ("kernels/torch/a.h", "<torch/extension.h>"),
      ("engine/a.h", "<vector>"), ("tests/engine/a_test.cc", "engine/b.h")]),
    ("room", [("kernels/cuda/append/a.cu", "kernels/cuda/linear/b.h"),  # siblings
              ("kernels/cuda/primitives/a.cu", "kernels/cuda/runtime/b.h"),
              ("kernels/cuda/ptx/a.cuh", "kernels/cuda/primitives/b.cuh"),
              ("kernels/cuda/linear/a.cu", "kernels/cuda/cuda_ops.h")],
     [("kernels/cuda/append/a.cu", "kernels/cuda/primitives/b.cuh"),
      ("kernels/cuda/append/a.cu", "kernels/cuda/append/b.h"),
      ("kernels/cuda/runtime/a.h", "kernels/core/dtype.h"),
      ("kernels/cuda/a.cc", "kernels/cuda/linear/b.h")])]
PLANTED += [(rule, include(*bad), include(*good)) for rule, bad_ones, good_ones in INCLUDES
            for bad in bad_ones for good in good_ones]
PLANTED += [("instruction", file("kernels/cuda/append/a.cuh", body),
             file(f"kernels/cuda/{room}/a.cuh", body)
             | file("kernels/cuda/append/a.cuh", "// not asm, __shfl_sync\n"))
            for body in ("int f(int x) { return __shfl_xor_sync(~0u, x, 1); }\n",
                         'void f() { asm volatile("wait;" ::: "memory"); }\n')
            for room in ("primitives", "ptx")]


def portable_run(count: int) -> Tree:
    """A run after which `count` sources of kernels have changed."""
    now = {f"kernels/cuda/linear/{i}.h": HEADER for i in range(count)}
    ran = {"source": {"files": dict.fromkeys(now, "stale")}}
    return now | {tree_rules.PORTABLE_RUN: json.dumps(ran)}


PLANTED.append(("portable-run", portable_run(tree_rules.MAX_UNRUN_FILES + 1),
                portable_run(tree_rules.MAX_UNRUN_FILES)))


class RulesTest(unittest.TestCase):
    def rules_for(self, tree: Tree) -> set[str]:
        return {finding.rule for finding in tidy_test.check_all(tree)}

    def test_planted(self) -> None:
        for rule, bad, good in PLANTED:
            with self.subTest(rule=rule, bad=bad, good=good):
                self.assertEqual(self.rules_for(bad), {rule})
                self.assertEqual(self.rules_for(good), set())

    def test_every_rule_is_planted_and_gives_its_reason(self) -> None:
        self.assertGreater(len(tidy_test.RULES), 10)
        for rule in tidy_test.RULES:
            with self.subTest(rule=rule.__name__):
                self.assertGreater(len((rule.__doc__ or "").split()), 5)
                self.assertTrue(rule is tree_rules.check_amounts or
                                any(list(rule(bad)) for _, bad, _ in PLANTED))

    def test_comments_and_spaces_do_not_change_the_checksum_of_code(self) -> None:
        code = 'int a = 1;  // one\n/* two */ char b[] = "//";\n'
        same = '\n// 1\nint a =  1;\nchar b[] = "//";'
        self.assertEqual(code_checksum(code), code_checksum(same))
        for other in ("int a = 2;", 'int a = 1;\nchar b[] = "/";\n', code + "int c;"):
            self.assertNotEqual(code_checksum(code), code_checksum(other), other)

    def test_circles(self) -> None:
        graph = {"b": {"c"}, "c": {"a"}, "a": {"b"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
        self.assertEqual(sorted(include_rules.circles(graph)),
                         [["a", "b", "c", "a"], ["d", "e", "d"]])

    def test_headless(self) -> None:
        plain = {"engine/b.md": "It turns the widget.\n" * 1000}
        heads = ("By nobody.", "It turns what is there.", "Whatever the widget holds.",
                 "It turns. Of two it takes one.", "Likewise to the left.", "One, one that turns.",
                 "So it turns so many widgets.", "The same to the left, those of the right.")
        for path, mark in (("engine/a.h", "//"), ("proto/a.proto", "//"), ("docker/a.sh", "#"),
                           ("models/a.py", "#")):
            for head in heads:
                with self.subTest(path=path, head=head):
                    bad = file(path, f"{mark} {head}\n")
                    count, found = text_rules.headless_lines(bad)
                    self.assertEqual([finding.line for finding in found], [count])
                    self.assertTrue(list(text_rules.check_headless(bad)))
                    self.assertFalse(list(text_rules.check_headless(bad | plain)))

    def test_the_case_of_a_loop(self) -> None:
        """A loop's lines, and whether its failure says which case it is of."""
        for path, loops in (("a_test.cc", LOOPS), ("a_test.py", PYTHON_LOOPS)):
            for says, lines in loops:
                with self.subTest(lines=lines):
                    found = list(check_silent_loops(test_file(path, lines)))
                    self.assertEqual(len(found), 0 if says else 1)
        loop = LOOPS[0][1]
        two = test_file("a_test.cc", f"{loop}\n{loop}")
        self.assertEqual([finding.line for finding in check_silent_loops(two)], [3, 4])

    def test_amounts(self) -> None:
        places = ("docker/a", "tests/golden/a.py", "engine/a.cc", "run",
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

    def test_functions_by_their_braces(self) -> None:
        for code, spans in (
                ("namespace a {\nclass B : public C {\n public:\n  int d() {\n    return 1;\n  }\n"
                 "};\n}\n", [(4, 6)]),  # scopes are no functions
                ("A::A()\n    : b_(1),\n      c_{2} {\n  d();\n}\nvoid E() {\n}\n",
                 [(1, 5), (6, 7)]),
                ("template <class T, int N = (1 > 0)>\nvoid F(T t) {\n  auto g = [&](int x) {\n"
                 "    return x;\n  };\n}\n", [(1, 6)]),
                ("void F() {\n  // }\n  s = \"}\"; c = '}'; n = 1'000;\n  r = R\"x(})x\";\n"
                 "  /* } */\n}\n", [(1, 6)]),
                ("constexpr int kA[] = {1, 2};\nstruct B {\n  int c = 0;\n};\n", []),
                ("#define A(x) \\\n  do {   \\\n  } while (0\nvoid F() {\n}\n", [(4, 5)])):
            with self.subTest(code=code):
                self.assertEqual([span[:2] for span in function_spans(code)], spans)

    def test_exceptions_say_why(self) -> None:
        def read(line: str) -> dict[tuple[str, str], int]:
            return tidy_test.read_exceptions({tidy_test.EXCEPTIONS: f"# Title.\n\n{line}\n"})
        self.assertEqual(read("room kernels/a.cu: shared by: two"), {("room", "kernels/a.cu"): 3})
        for line in ("room kernels/a.cu", "room kernels/a.cu:", "kernels/a.cu: reason"):
            with self.subTest(line=line), self.assertRaises(SystemExit):
                read(line)


if __name__ == "__main__":
    unittest.main()
