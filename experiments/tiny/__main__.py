"""``python -m experiments.tiny --out DIR``: build the stand-in base models (about 8 minutes each on one core)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from experiments.tiny import hash_file


def write_sums(out: Path) -> None:
    """SHA256SUMS of everything under ``out``, as sha256sum prints it."""
    files = sorted(p for p in out.rglob("*") if p.is_file() and p.name != "SHA256SUMS")
    text = "".join(f"{hash_file(p)}  {p.relative_to(out).as_posix()}\n" for p in files)
    (out / "SHA256SUMS").write_text(text, encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    from experiments.engine import set_threads
    from experiments.tiny.build import RECIPES, STEPS, write

    names = [r.name for r in RECIPES]
    parser = argparse.ArgumentParser(prog="python -m experiments.tiny", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--only", choices=names, action="append", help="may be repeated; default: all")
    args = parser.parse_args(argv)
    set_threads(1)
    for recipe in RECIPES:
        if args.only is None or recipe.name in args.only:
            print(f"writing {args.out / recipe.name}", flush=True)
            write(recipe, args.out, args.steps, lambda text: print(text, flush=True))
    write_sums(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
