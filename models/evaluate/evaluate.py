"""Judges a model on a running fox-server by tasks that the field knows.

Exit status: 0 done; 1 failed, with the reason in one line; 2 usage.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from models.convert.refusal import Refusal
from models.evaluate import comparison, downstream, pictures, recall_tasks
from models.evaluate.client import SETTINGS, Client, Setting, serving
from models.evaluate.kept_rows import KeptRows, digest
from models.evaluate.options import WINDOW, make_parser
from models.finetune.text_tokens import TextError, read_pieces


def ids_of(path: Path, client: Client) -> list[int]:
    """The tokens of a text's documents, one behind the other, read as for training."""
    try:
        documents = [piece.text.decode() for piece in read_pieces(path)]
    except (TextError, OSError, UnicodeDecodeError) as error:
        raise Refusal(f"{path}: {error}") from None
    return [token for document in documents for token in client.tokens(document)]


def text_loss(path: Path, client: Client, setting: Setting) -> dict[str, Any]:
    """The loss in nats of each window of a text, but for its first token."""
    ids = ids_of(path, client)
    size = min(WINDOW, client.max_model_len - 1)
    beginning = client.beginning()
    step = size - len(beginning)
    windows = [[*beginning, *ids[i:i + step]] for i in range(0, len(ids) - step + 1, step)]
    if not windows:
        raise Refusal(f"{path}: {len(ids)} tokens are less than one window of {step}")
    scored = client.score([(window, step - 1) for window in windows], setting,
                          f"{path.name}, {setting.name}")
    return {"grades": {"nats_per_token": [-s.log_probability / (step - 1) for s in scored]},
            "certificate": downstream.worst([s.certificate for s in scored])}


def identity(model: str, client: Client, arguments: argparse.Namespace) -> dict[str, Any] | None:
    """What the rows of a model depend on beside the task: its weights, the server and its flags.
    None if `model` is a server that runs already: its rows are not kept, because it does not say
    which weights it has."""
    if not Path(model).is_dir():
        return None
    return {"model": digest(Path(model)), "server": client.fingerprint(),
            "flags": arguments.server_flags}


def measure(of: dict[str, Any] | None, client: Client, setting: Setting,
            arguments: argparse.Namespace, kept: KeptRows) -> dict[str, Any]:
    """All rows of one model at one setting, by their names. `of`: its identity()."""
    rows: dict[str, Any] = {}

    def add(name: str, depends_on: dict[str, Any], judge: Callable[[], dict[str, Any]]) -> None:
        whole = of and {**of, "setting": setting.name, "row": name, **depends_on}
        rows[name] = kept.row(whole, judge)

    for task in arguments.tasks:
        add(task, {"limit": arguments.limit}, functools.partial(
            downstream.judge, task, client, setting, arguments.limit))
    for tokens in arguments.lengths:
        for task in arguments.recall:
            add(f"{task}@{tokens}", {"questions": arguments.questions, "seed": arguments.seed},
                functools.partial(recall_tasks.judge, task, client, setting, tokens,
                                  arguments.questions, arguments.seed))
    if arguments.text:
        add("text", {"text": digest(arguments.text)},
            functools.partial(text_loss, arguments.text, client, setting))
    return rows


def summary(name: str, row: dict[str, Any]) -> dict[str, Any]:
    """One line of the table: a row's means, errors and certificate."""
    means = {measure: comparison.mean(grades) for measure, grades in row["grades"].items()}
    return {"row": name, "questions": len(next(iter(row["grades"].values()))),
            **{measure: {"mean": mean, "error": error}
               for measure, (mean, error) in means.items()},
            "certificate": row["certificate"]}


def groups_of(rows: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """Rows and measures whose mean is one number of the comparison: downstream, and each length."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, row in rows.items():
        measure = next(m for m in ("acc", "greedy", "recall", "nats_per_token")
                       if m in row["grades"])
        group = f"recall@{name.split('@')[1]}" if "@" in name else (
            name if name == "text" else "downstream")
        groups.setdefault(group, []).append((name, measure))
    return groups


def compare(first: dict[str, Any], second: dict[str, Any]) -> list[dict[str, Any]]:
    """Second against first, question by question, with 95% intervals."""
    lines = []
    for group, members in groups_of(first).items():
        pairs = [(first[name]["grades"][measure], second[name]["grades"][measure])
                 for name, measure in members]
        share = comparison.ratio(pairs) if group.startswith("recall") else None
        lines.append({"mean of": group, "rows": len(pairs),
                      "difference": vars(comparison.difference(pairs)),
                      "ratio": vars(share) if share else None})
    return lines


def as_table(names: list[str], sides: list[dict[str, Any]],
             compared: list[dict[str, Any]]) -> str:
    """The readable form of the report."""
    lines = [f"{'':24}" + "".join(f"{name:>28}" for name in names)]
    for row in sides[0]:
        for measure in sides[0][row]["grades"]:
            cells = []
            for side in sides:
                mean, error = comparison.mean(side[row]["grades"][measure])
                kept = side[row]["certificate"]["kept"]
                cells.append(f"{mean:.4f} +- {error:.4f} ({kept:4.0%})")
            lines.append(f"{row + ' ' + measure:24}" + "".join(f"{cell:>28}" for cell in cells))
    for line in compared:
        d = line["difference"]
        text = (f"mean of {line['mean of']}: {names[1]} - {names[0]} = {d['value']:+.4f} "
                f"[{d['low']:+.4f}, {d['high']:+.4f}]")
        if line["ratio"]:
            r = line["ratio"]
            text += f", ratio {r['value']:.3f} [{r['low']:.3f}, {r['high']:.3f}]"
        lines.append(text)
    return "\n".join(lines)


def run(arguments: argparse.Namespace) -> int:
    flags = arguments.server_flags.split()
    names, sides, kept = [], [], KeptRows(arguments.out)
    if arguments.against:
        for model in (arguments.against, arguments.model):
            with serving(arguments.program, model, flags) as address, \
                    Client(address, arguments.parallel) as client:
                names.append(client.model)
                sides.append(measure(identity(model, client, arguments), client,
                                     SETTINGS["served"], arguments, kept))
        if names[0] == names[1]:
            names = ["other", "model"]
    else:
        with serving(arguments.program, arguments.model, flags) as address, \
                Client(address, arguments.parallel) as client:
            of = identity(arguments.model, client, arguments)
            for setting in (SETTINGS["off"], SETTINGS["served"]):
                names.append(setting.name)
                sides.append(measure(of, client, setting, arguments, kept))
    compared = compare(sides[0], sides[1])
    report = {
        "date": datetime.date.today().isoformat(),
        "model": arguments.model, "against": arguments.against, "seed": arguments.seed,
        "sides": [{"name": name, "rows": [summary(row, side[row]) for row in side]}
                  for name, side in zip(names, sides)],
        "compared": compared,
        "grades": {name: {row: side[row]["grades"] for row in side}
                   for name, side in zip(names, sides)},
        "depths": {row: sides[0][row]["depths"] for row in sides[0] if "depths" in sides[0][row]},
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "evaluation.json"
    path.write_text(json.dumps(_finite(report), indent=1) + "\n", encoding="utf-8")
    print(as_table(names, sides, compared))
    drawn = pictures.draw(report, arguments.out)
    if kept.reused:
        print(f"rows of an earlier run that did not end: {kept.reused}")
    kept.forget()
    print(f"written: {', '.join(str(p) for p in [path, *drawn])}")
    return 0


def _finite(value: Any) -> Any:
    """JSON has no infinity: null in its place."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def main() -> int:
    arguments = make_parser().parse_args()
    try:
        return run(arguments)
    except Refusal as refusal:
        print(f"evaluate: {refusal}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("evaluate: interrupted", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
