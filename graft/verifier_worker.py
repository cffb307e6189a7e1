"""The process that runs math-verify: JSON lines in, JSON lines out. It may be killed at any moment; nothing else lives in it.

One request is ``[gold, answer]``, one reply is one of the words equal, different, parse error. It ends when its input ends.
"""

from __future__ import annotations

import json
import resource
import sys


def judge(gold: str, answer: str) -> str:
    """math-verify on \\boxed{gold} and \\boxed{answer}; gold first, since its verify is order-sensitive.

    math-verify's own time limits are off (they need the main thread and signals): the parent owns the clock.
    """
    from math_verify import parse, verify

    reference = parse(f"\\boxed{{{gold}}}", parsing_timeout=None)
    given = parse(f"\\boxed{{{answer}}}", parsing_timeout=None)
    if not reference or not given:
        return "parse error"
    return "equal" if verify(reference, given, timeout_seconds=None) else "different"


def main() -> None:
    memory_mb = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb * 2**20, memory_mb * 2**20))
    replies = sys.stdout
    sys.stdout = sys.stderr  # nothing that a library prints may reach the protocol
    judge("1", "1")  # import and warm up before the first answer's clock starts
    print(json.dumps("ready"), file=replies, flush=True)
    for line in sys.stdin:
        gold, answer = json.loads(line)
        try:
            reply = judge(gold, answer)
        except MemoryError:
            raise SystemExit(3) from None  # the parent reports a dead worker and starts a fresh one
        except Exception:
            reply = "parse error"
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
