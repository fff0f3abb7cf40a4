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
from source_tree import Tree

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
# A rule, a tree that breaks it alone, and one that breaks none.
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
    ("pronoun", {"engine/a.md": "Whoever turns.\n"}, {"engine/a.md": "Whose?\n"}),
    ("link", {"engine/README.md": "# A\n\n[`b`](b.h) and `c`\n"} | TARGET,
     {"engine/README.md": "[`a`](a.h) [f](../engine) [w](https://example.org/x) [s](#part) "
                          "`[b](b.h)`\n```\n[b](b.h)\n```\n"} | TARGET),
    ("file-length", file("engine/a.h", "int x;\n" * 500), file("engine/a.h", "int x;\n" * 499)),
    ("name", file("engine/string_utils.h"), file("engine/uncommon.h")),
    ("name", file("models/helpers.py"), file("models/help.py")),
    ("name", file("server/common/a.h"), file("server/commons/a.h")),
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
    ran = {"source": {"files": dict.fromkeys(now, "00000000")}}
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

    def test_circles(self) -> None:
        graph = {"b": {"c"}, "c": {"a"}, "a": {"b"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
        self.assertEqual(sorted(include_rules.circles(graph)),
                         [["a", "b", "c", "a"], ["d", "e", "d"]])

    def test_pronouns(self) -> None:
        enough = file("engine/b.h", "// It turns.\n" * (1000 // text_rules.MAX_PRONOUNS)
                      + "// Whose widget?\nint nobody, who;\n")
        for path in ("engine/a.h", "proto/a.proto", "docker/a.sh", "models/a.py"):
            with self.subTest(path=path):
                mark = "//" if path.endswith(("h", "proto")) and not path.endswith("sh") else "#"
                bad = file(path, f"{mark} Nobody turns.\n")
                self.assertEqual(self.rules_for(bad), {"pronoun"})
                self.assertEqual(self.rules_for(bad | enough), set())

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
