"""The process that runs math-verify: JSON lines in, JSON lines out. It may be killed at any moment; nothing else lives in it.

Started by file name, without any import of the package: ``verifier_worker.py MEMORY_MB CPU_SECONDS_PER_ANSWER``. A request is
``[number, gold, answer]``, its reply ``[number, word]`` with a word of equal, different, parse error. The first line out is
``[0, "ready"]``. It ends when its input ends. A parent that vanishes during a hanging answer cannot kill it any more, so the
kernel's CPU limit does, which also works while one long integer operation keeps the interpreter from running anything else.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
import time

# Sent by terminals and batch systems to every process of a job, so that the job can write a checkpoint. The worker has nothing
# to save, and its death would be an answer that scores 0; it leaves by end of input or SIGKILL.
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
EXIT_OUT_OF_MEMORY = 3


def judge(gold: str, answer: str) -> str:
    """math-verify on ``\\boxed{gold}`` and ``\\boxed{answer}``; gold first, since its verify is order-sensitive.

    "parse error": not equal, and one side has no expression. math-verify then compares strings, so a gold that does not parse
    still equals its own text. Its own time limits are off (they need the main thread and signals): the parent owns the clock.
    """
    from math_verify import parse, verify
    from sympy.core.random import seed

    seed(0)  # sympy tests equality at random points: a verdict must not depend on the answers before it
    reference = parse(f"\\boxed{{{gold}}}", parsing_timeout=None)
    given = parse(f"\\boxed{{{answer}}}", parsing_timeout=None)
    if verify(reference, given, timeout_seconds=None):
        return "equal"
    parsed = all(any(not isinstance(value, str) for value in side) for side in (reference, given))
    return "different" if parsed else "parse error"


def reply_to(line: str) -> str:
    """The reply to one request line."""
    number, gold, answer = json.loads(line)
    try:
        word = judge(gold, answer)
    except MemoryError:
        raise SystemExit(EXIT_OUT_OF_MEMORY) from None  # the parent reports a dead worker and starts a fresh one
    except Exception:  # math-verify returns its own errors as "no"; what escapes is an input that it cannot read
        word = "parse error"
    return json.dumps([number, word])


def limit_process(memory_mb: int) -> None:
    """Address space limited, no core files, deaf to the job's signals."""
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb * 2**20, memory_mb * 2**20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_cpu(seconds: int) -> None:
    """The kernel kills this process after ``seconds`` more of CPU time."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    wanted = int(time.process_time()) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def main() -> None:
    memory_mb, cpu_seconds = map(int, sys.argv[1:])
    limit_process(memory_mb)
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing that a library prints may reach the protocol
    logging.disable(logging.CRITICAL)
    judge("1", "1")  # import and warm up before the first answer's clock starts
    print(json.dumps([0, "ready"]), file=replies, flush=True)
    for line in sys.stdin:
        limit_cpu(cpu_seconds)
        print(reply_to(line), file=replies, flush=True)


if __name__ == "__main__":
    main()
