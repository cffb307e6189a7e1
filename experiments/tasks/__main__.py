"""``python -m experiments.tasks check|pin|fetch``: examine the data files, print pins, write files from the hub."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.errors import EXIT_USER_ERROR, UserError
from experiments.files import canonical_json, write_atomic
from experiments.tasks import pinning, source_items
from experiments.tasks.files import ITEMS, file_name
from experiments.tasks.hub import HUB
from experiments.tasks.report import examine, format_report


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments.tasks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="report every set; exit code 2 when something is wrong")
    pin = commands.add_parser("pin", help="print the ids and hashes of one set, or write them where the checks read them")
    fetch = commands.add_parser("fetch", help="write files from the Hugging Face hub, for machines without a network")
    for command, what in ((check, f"directory with the files, or {HUB}"), (fetch, "directory to write to")):
        command.add_argument("--root", required=True, help=what)
        command.add_argument("sets", nargs="*", metavar="set", help=f"default: all ({', '.join(ITEMS)})")
    pin.add_argument("sets", nargs=1, metavar="set", help=", ".join(ITEMS))
    pin.add_argument("--root", required=True, help=f"directory with the files, or {HUB}")
    pin.add_argument("--write", action="store_true", help=f"write {pinning.FOLDER.name}/<set>.txt instead of printing")
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> int:
    """Carry out one command; the exit code."""
    sources = tuple(dict.fromkeys(args.sets)) or tuple(ITEMS)
    unknown = [s for s in sources if s not in ITEMS]
    if unknown:
        raise UserError(f"unknown set {', '.join(unknown)}; known: {', '.join(ITEMS)}")
    if args.command == "pin":
        text = pinning.format_pins(sources[0], source_items(sources[0], args.root))
        if args.write:
            write_atomic(pinning.FOLDER / f"{sources[0]}.txt", text)
        else:
            print(text, end="")
        return 0
    if args.command == "fetch":
        for source in sources:
            fetch(source, Path(args.root))
    reports = examine(args.root, sources)
    print(format_report(reports))
    return EXIT_USER_ERROR if any(r.wrong for r in reports) else 0


def fetch(source: str, root: Path) -> None:
    """Write one set's JSONL file from the hub. UserError when the file exists: it may be the only copy of another edition."""
    path = root / file_name(source)
    if path.exists():
        raise UserError(f"{path} exists; move it away to fetch {source} again")
    rows = [{"id": i.id, "problem": i.problem, "answer": i.gold} for i in source_items(source, HUB)]
    write_atomic(path, "".join(canonical_json(row) + "\n" for row in rows))


def main(argv: Sequence[str] | None = None) -> int:
    try:
        return run(parse(argv))
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return EXIT_USER_ERROR


if __name__ == "__main__":
    sys.exit(main())
