"""Run one benchmark in two checkouts in turn, and compare the medians of its figures.

    python benchmarks/compare.py OLD NEW [--runs 5] [--json] -- round.py
    python benchmarks/compare.py OLD NEW -- credit.py credit1 --data FOLDER

OLD and NEW are folders with a checkout each, set up with `make .venv/set-up`. Each checkout runs its own script with
its own packages, in its own folder, so FOLDER must be an absolute path. The two take turns, and every second pair runs
in the opposite order, so that a machine that becomes slower or busier slows both down alike. `ratio` is NEW divided by
OLD; `spread` is the range of the ratios of the pairs.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Figures = dict[str, float]


def flatten(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number in a JSON value, with the path to it."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from flatten(each, f"{name}.{key}" if name else key)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, float(value)


def run(checkout: Path, command: list[str]) -> Figures:
    """Run a benchmark once and return its figures."""
    script, *options = command
    words = [str(checkout / ".venv/bin/python"), str(checkout / "benchmarks" / script), *options]
    if "--json" not in options:
        words.append("--json")
    done = subprocess.run(words, cwd=checkout, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{script} failed in {checkout} with exit code {done.returncode}")
    return dict(flatten(json.loads(done.stdout)))


def compare(old: list[Figures], new: list[Figures]) -> dict[str, dict[str, Any]]:
    """Return the medians of every figure that both have, their ratio, and the range of the ratios of the pairs."""
    compared: dict[str, dict[str, Any]] = {}
    for name in old[0]:
        if not all(name in figures for figures in [*old, *new]):
            continue
        pairs = [(before[name], after[name]) for before, after in zip(old, new, strict=True)]
        before, after = (statistics.median(values) for values in zip(*pairs, strict=True))
        ratios = sorted(after / before for before, after in pairs if before)
        compared[name] = {
            "old": before,
            "new": after,
            "ratio": round(after / before, 4) if before else None,
            "spread": [round(ratios[0], 4), round(ratios[-1], 4)] if ratios else None,
        }
    return compared


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="folder of the first checkout")
    parser.add_argument("new", type=Path, help="folder of the second checkout")
    parser.add_argument("--runs", type=int, default=5, help="runs in each checkout (default: 5)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("command", nargs="+", metavar="-- SCRIPT", help="script in benchmarks/, with its arguments")
    arguments = parser.parse_args()
    figures: dict[str, list[Figures]] = {"old": [], "new": []}
    for number in range(arguments.runs):
        for which in ("old", "new") if number % 2 == 0 else ("new", "old"):
            print(f"run {number + 1} of {arguments.runs}: {which}", file=sys.stderr, flush=True)
            figures[which].append(run(getattr(arguments, which).absolute(), arguments.command))
    compared = compare(**figures)
    if arguments.json:
        print(json.dumps(compared))
        return
    width = max(map(len, compared))
    print(f"{'figure':{width}}  {'old':>12}  {'new':>12}  {'ratio':>7}  spread")
    for name, each in compared.items():
        ratio = "" if each["ratio"] is None else f"{each['ratio']:.3f}"
        spread = "" if each["spread"] is None else "{:.3f} to {:.3f}".format(*each["spread"])
        print(f"{name:{width}}  {each['old']:12.6g}  {each['new']:12.6g}  {ratio:>7}  {spread}")


if __name__ == "__main__":
    main()
