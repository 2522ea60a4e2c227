"""A storm: many processes take memory of every kind, and are killed, stopped and restarted at
random.
"""

from __future__ import annotations

import os
import random
import signal
import time

from harness import (
    GIB,
    MIB,
    Outcome,
    Program,
    check,
    compare_at_rest,
    gpulimit,
    judged,
    mib,
    preloaded,
    python,
)

PROCESSES = 16
CAP = 20 * GIB
"""The contexts of the processes take some 8 GiB of this limit."""
SECONDS = float(os.environ.get("GPU_CHECK_STORM_SECONDS", "150"))
SEED = int(os.environ.get("GPU_CHECK_STORM_SEED", "0")) or random.randrange(1, 1 << 31)
OUT_OF_MEMORY = 2
GROUP = "storm"


class Seat:
    """A place in the storm, with the process that runs there now, if any."""

    def __init__(self) -> None:
        self.program: Program | None = None
        self.wakes = 0.0
        """The time at which a stopped process goes on; 0 while it runs."""

    def pid(self) -> int:
        """The pid of the process that runs."""
        assert self.program
        return self.program.pid

    def fill(self, seed: int) -> None:
        """Starts a new process, which begins by itself."""
        self.program = preloaded(python("storm.py"), None, GPULIMIT_GROUP=GROUP)
        self.program.say("begin", seed=seed)

    def empty(self) -> None:
        """Kills the process."""
        assert self.program
        self.program.kill()
        self.program, self.wakes = None, 0.0


@check("storm", timeout=SECONDS + 120, lane="storm")
def storm(outcome: Outcome) -> None:
    """16 processes take and free memory while they are killed, stopped and restarted."""
    dice, seats = random.Random(SEED), [Seat() for _ in range(PROCESSES)]
    outcome.figures["seed"] = SEED
    made = gpulimit("create", GROUP, f"max={CAP}")
    outcome.expect(
        made.returncode == 0, f"create ended with {made.returncode}: {made.stderr.strip()}"
    )
    counts = dict.fromkeys(("started", "killed", "stopped", "limits"), 0)
    with judged(outcome, CAP) as judge:
        end = time.monotonic() + SECONDS
        # On a slow machine the storm goes on until a process was killed.
        while (now := time.monotonic()) < end or (counts["killed"] == 0 and now < end + 60):
            play(dice, dice.choice(seats), counts)
            time.sleep(dice.uniform(0, 0.05))
        limit = gpulimit("set", GROUP, f"max={CAP}")
        outcome.expect(
            limit.returncode == 0, f"set ended with {limit.returncode}: {limit.stderr.strip()}"
        )
        found = survivors(outcome, seats)
        # The driver and gpulimit must have forgotten the processes that died since the last look.
        time.sleep(1.5)
        worst = compare_at_rest(outcome, judge, "survivors")
        for seat in seats:
            if seat.program:
                seat.empty()
        outcome.expect(
            emptied(), f"left in the group: {gpulimit('get', GROUP, '--json').stdout.strip()}"
        )
        seen = judge.read()
    outcome.figures |= {"seconds": SECONDS, "processes": PROCESSES, **counts, **found}
    outcome.key.append(
        f"{counts['killed']} kills, {counts['stopped']} stops, {found['granted']} granted and"
        f" {found['refused']} refused by {found['survivors']} survivors, peak"
        f" {mib(seen['sum_peak'])} of {mib(CAP)}, at rest {worst / MIB:+.2f} MiB"
    )
    outcome.expect(counts["killed"] > 0, "no process was killed")


def play(dice: random.Random, seat: Seat, counts: dict[str, int]) -> None:
    """Lets one random event happen to a process."""
    if seat.wakes:
        if time.monotonic() > seat.wakes:
            os.kill(seat.pid(), signal.SIGCONT)
            seat.wakes = 0.0
    elif seat.program is None:
        seat.fill(dice.randrange(1 << 30))
        counts["started"] += 1
    elif dice.random() < 0.12:
        seat.empty()
        counts["killed"] += 1
    elif dice.random() < 0.1:
        os.kill(seat.pid(), signal.SIGSTOP)
        seat.wakes = time.monotonic() + dice.uniform(0, 3)
        counts["stopped"] += 1
    elif dice.random() < 0.05:
        # The limit is lowered only slightly: lowering it frees no memory, and the judge knows one
        # limit only.
        gpulimit("set", GROUP, f"max={CAP - dice.choice([0, 1, 2]) * MIB}")
        counts["limits"] += 1


def survivors(outcome: Outcome, seats: list[Seat]) -> dict[str, int]:
    """Makes all processes rest, and sums up their reports."""
    found = {"granted": 0, "refused": 0, "survivors": 0, "without_context": 0}
    for seat in seats:
        if not seat.program:
            continue
        if seat.wakes:
            os.kill(seat.pid(), signal.SIGCONT)
            seat.wakes = 0.0
        seat.program.reply(60)  # the reply that the program has started
        begun = seat.program.reply(60)
        if begun.get("status") == OUT_OF_MEMORY:
            found["without_context"] += 1
            continue
        outcome.expect(begun.get("status") == 0, f"no context: {begun} {seat.program.tail()}")
        told = seat.program.ask("rest", timeout=60)
        outcome.expect(told.get("wrong") == [], f"answers of the driver: {told}")
        found["survivors"] += 1
        for name in ("granted", "refused"):
            found[name] += told.get(name, 0)
    return found


def emptied() -> bool:
    """Returns whether the group gets empty within ten seconds."""
    for _ in range(100):
        answer = gpulimit("ps", GROUP, "--json")
        if answer.returncode == 0 and '"processes":[]' in answer.stdout.replace(" ", "").replace(
            "\n", ""
        ):
            return True
        time.sleep(0.1)
    return False
