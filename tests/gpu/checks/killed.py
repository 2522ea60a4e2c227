"""After SIGKILL or exec the memory goes to the next program, and never before the driver has freed
it.
"""

from __future__ import annotations

import json
import os
import signal
import time

from harness import (
    GIB,
    MIB,
    Outcome,
    capped,
    check,
    compare_at_rest,
    gpu_index,
    gpulimit,
    judged,
    mib,
    python,
    started,
)
from judge import Nvml

DYING_MS = 100
"""A killed process holds its locks until it is really dead, some 0.3 to 30 ms later (more on a busy
machine); a refusal is correct until then. From then on a request must wait for the driver, which
needs 70 to 190 ms, and succeed.
"""


@check("kill-holder", timeout=90)
def kill_holder(outcome: Outcome) -> None:
    """After a holder of 40 GiB is killed, the next process gets 40 GiB, within 44 GiB."""
    # A smaller GPU is tested with a smaller size.
    size = min(40, Nvml(gpu_index()).total() // GIB - 6) * GIB
    cap = size + 4 * GIB
    with judged(outcome, cap) as judge:
        holder, heir = (
            capped(python("driver.py"), f"{cap // MIB}M", name="inherit") for _ in range(2)
        )
        pid, _ = (started(outcome, program) for program in (holder, heir))
        taken = holder.ask("alloc", size=GIB, times=size // GIB)
        outcome.expect(taken.get("done") == size // GIB, f"the holder got {taken}")
        refused = heir.ask("alloc", size=size)
        outcome.expect(refused.get("status") == 2, f"beside a living holder: {refused}")
        os.kill(pid, signal.SIGKILL)
        begin, refusals = time.monotonic(), -1
        sent = 0.0
        answer: dict = {}
        while answer.get("done") != 1 and sent <= DYING_MS:
            refusals += 1
            sent = (time.monotonic() - begin) * 1e3
            answer = heir.ask("alloc", size=size)
        waited = (time.monotonic() - begin) * 1e3
        outcome.expect(
            answer.get("done") == 1,
            f"the heir's request of {sent:.0f} ms after the kill got {answer}",
        )
        holder_status = holder.finish()
        outcome.expect(
            holder_status in (-9, 137), f"the killed program's status came out as {holder_status}"
        )
        outcome.expect(heir.finish() == 0, f"the heir ended badly: {heir.tail()}")
        seen = judge.read()
    outcome.figures |= {
        "held": size,
        "waited_ms": round(waited, 1),
        "asked_ms": round(sent, 1),
        "refused_while_dying": refusals,
    }
    outcome.key.append(
        f"{size // GIB} GiB after {waited:.0f} ms (asked at {sent:.0f}), peak"
        f" {mib(seen['sum_peak'])} of {mib(cap)}"
    )


@check("exec", timeout=60)
def memory_before_exec(outcome: Outcome) -> None:
    """What a process held before exec is uncharged when it has a context again."""
    cap = 6 * GIB
    with judged(outcome, cap) as judge:
        program = capped(python("driver.py"), "6G", name="exec")
        pid = started(outcome, program)
        taken = program.ask("alloc", size=GIB, times=4)
        outcome.expect(taken.get("done") == 4, f"before exec: {taken}")
        program.say("become")
        outcome.expect(started(outcome, program) == pid, "it is another process")
        [group] = json.loads(gpulimit("show", "exec", "--json").stdout)["groups"]
        [usage] = [gpu["usage"] for gpu in group["gpus"] if gpu["index"] == judge.index]
        outcome.expect(usage < 2 * GIB, f"with the new context {mib(usage)} are charged")
        # The room of the old program is the new one's.
        taken = program.ask("alloc", size=GIB, times=5)
        outcome.expect(taken.get("done") == 5, f"after exec: {taken}")
        compare_at_rest(outcome, judge, "after exec")
        outcome.expect(program.finish() == 0, f"it ended badly: {program.tail()}")
    outcome.key.append(f"{mib(usage)} with the new context")
