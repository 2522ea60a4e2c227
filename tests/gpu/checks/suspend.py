"""Programs whose GPU memory goes to the host and comes back: `gpulimit suspend` and `resume`.

No check kills a program that was resumed: with some drivers that hangs the machine half a minute
later (NVIDIA/cuda-checkpoint issue 53). Such a program ends by itself when its input is closed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from checks.checkpoint import CHECKPOINTED, LOCKED, RUNNING, tool
from checks.groups import events, is_silent, made
from harness import (
    CAP,
    EXACT,
    GIB,
    MIB,
    Outcome,
    Program,
    bare,
    binary,
    check,
    gpu_index,
    gpulimit,
    judged,
    mib,
    plain_environment,
    python,
)
from judge import Judge

PIECE = 256 * MIB
WAITS = 1.0
"""How long something that waits is watched, in seconds."""


@dataclass(frozen=True)
class Moved:
    """What `gpulimit suspend` or `resume` answered: its status, the state of each process, its
    messages, and how long it ran.
    """

    status: int
    states: dict[int, str]
    errors: str
    seconds: float


def move(verb: str, *arguments: str, timeout: float = 150) -> Moved:
    """Suspends or resumes a group, or processes."""
    began = time.monotonic()
    answer = gpulimit(verb, *arguments, "--json", timeout=timeout)
    seconds = time.monotonic() - began
    listed = json.loads(answer.stdout)["processes"] if answer.stdout.strip() else []
    states = {process["pid"]: process["state"] for process in listed}
    return Moved(answer.returncode, states, answer.stderr.strip()[-500:], seconds)


def moved(verb: str, state: str, programs: list[Program], *arguments: str) -> float:
    """Suspends or resumes programs, which must come to this state. Returns the seconds."""
    found = move(verb, *arguments)
    if found.status or found.states != {program.pid: state for program in programs}:
        raise RuntimeError(f"{verb} {' '.join(arguments)}: {found}")
    return found.seconds


def of(program: Program) -> tuple[str, str]:
    """Returns the arguments that name a program."""
    return "--pid", str(program.pid)


@contextmanager
def programs_of_check() -> Iterator[list[Program]]:
    """Keeps a list of programs. At the end, those that still run are brought back and end by
    themselves. One that cannot be brought back is killed, which is safe then.
    """
    programs: list[Program] = []
    try:
        yield programs
    finally:
        # Those that were started later may hold the room of the others.
        for program in reversed(programs):
            if program.is_over:
                continue
            try:
                back = move("resume", *of(program), "--timeout", "10s", timeout=60)
                if back.states.get(program.pid) in ("suspended", "frozen", "lost"):
                    program.kill()
                else:
                    program.finish(30)
            except (OSError, ValueError, subprocess.TimeoutExpired):
                pass


def joined(programs: list[Program], group: str, script: str = "driver.py") -> Program:
    """Starts a program in a group."""
    command = [str(binary("gpulimit")), "run", "--name", group, "--", *python(script)]
    program = Program(command, plain_environment())
    programs.append(program)
    pid = program.reply(120)["ready"]
    if pid != program.pid:
        raise RuntimeError(f"the program has the pid {pid}, its command {program.pid}")
    return program


def holder(outcome: Outcome, programs: list[Program], group: str, pieces: int) -> Program:
    """Starts a program of plain driver calls with marked memory."""
    program = joined(programs, group)
    outcome.expect(program.ask("start").get("status") == 0, f"no context: {program.tail()}")
    taken = program.ask("alloc", size=PIECE, times=pieces)
    outcome.expect(taken == {"done": pieces, "status": 0}, f"taken: {taken} {program.tail()}")
    outcome.expect(program.ask("mark", size=PIECE).get("status") == 0, "not marked")
    return program


def intact(outcome: Outcome, found: dict, label: str) -> None:
    """Asserts that marked memory has its contents."""
    outcome.expect(found == {"status": 0, "wrong": 0}, f"{label}: the contents: {found}")


def compare(outcome: Outcome, judge: Judge, group: str, label: str) -> int:
    """Asserts that the usage of the group equals NVML's sum. Returns NVML's sum."""
    until = time.monotonic() + 5
    while True:
        seen = judge.settled()
        answer = gpulimit("show", group, "--json")
        groups = json.loads(answer.stdout)["groups"]
        [gpus] = [found["gpus"] for found in groups if found["name"] == group]
        here = [gpu for gpu in gpus if gpu["index"] == judge.index]
        usage, suspended = (sum(gpu[figure] for gpu in here) for figure in ("usage", "suspended"))
        # What a killed command has charged counts until somebody has found it dead.
        is_equal = abs(usage - seen["sum_last"]) <= EXACT * max(1, len(seen["last"]))
        if is_equal or time.monotonic() > until:
            break
        time.sleep(0.2)
    outcome.figures.setdefault("at_rest", {})[label] = {
        "nvml": seen["sum_last"],
        "usage": usage,
        "suspended": suspended,
    }
    outcome.expect(
        is_equal,
        f"{label}: gpulimit counts {mib(usage)}, NVML {mib(seen['sum_last'])}",
    )
    return seen["sum_last"]


def timed(outcome: Outcome, size: int, down: float, up: float) -> None:
    """Keeps the times of a suspension and of its end."""
    gib = size / GIB
    outcome.figures |= {"moved": size, "down_s": round(down, 3), "up_s": round(up, 3)}
    outcome.key.append(
        f"{mib(size)}: down {down:.2f} s ({gib / down:.1f} GiB/s), up {up:.2f} s"
        f" ({gib / up:.1f} GiB/s)"
    )


def ended(outcome: Outcome, *programs: Program) -> None:
    """Ends programs, which must end well."""
    for program in programs:
        status = program.finish()
        outcome.expect(status == 0, f"ended with {status}: {program.tail()}")


# ---- frameworks

CYCLES = 50


@check("suspend-pytorch", timeout=240, needs=("torch",), lane="suspend")
def pytorch(outcome: Outcome) -> None:
    """PyTorch trains with 50 suspensions between its steps: the same losses, bit for bit."""
    made(outcome, "train", f"max={CAP}")
    with programs_of_check() as programs, judged(outcome, CAP):
        # The disturbed run and the undisturbed one begin with the same steps.
        sleeper, other = (joined(programs, "train", "torch_sleeper.py") for _ in range(2))
        for program in (sleeper, other):
            outcome.expect("error" not in program.ask("begin", 120), f"begin: {program.tail()}")
        losses, times = sleeper.ask("train", 120, steps=2)["losses"], []
        for cycle in range(CYCLES):
            down = moved("suspend", "suspended", [sleeper], *of(sleeper))
            waits = cycle % 10 == 0
            if waits:
                sleeper.say("train", steps=1)
                outcome.expect(is_silent(sleeper, 0.3), f"cycle {cycle}: the step did not wait")
            up = moved("resume", "running", [sleeper], *of(sleeper))
            found = sleeper.reply(60) if waits else sleeper.ask("train", steps=1)
            if "losses" not in found:
                raise RuntimeError(f"cycle {cycle}: {found} {sleeper.tail()}")
            losses += found["losses"]
            times.append((down, up))
        expected = other.ask("train", 120, steps=len(losses)).get("losses", [])
        same = sum(one == two for one, two in zip(losses, expected, strict=True))
        outcome.expect(same == len(losses), f"{same} of {len(losses)} losses are the same")
        ended(outcome, sleeper, other)
    seen = events("train")
    counts = {kind: seen.count(kind) for kind in sorted(set(seen))}
    outcome.expect(
        counts.get("suspend") == counts.get("resume") == CYCLES and "lost" not in counts,
        f"events: {counts}",
    )
    down, up = (sorted(each)[CYCLES // 2] for each in zip(*times))
    outcome.figures |= {"down_s": down, "up_s": up, "times_s": times, "losses": losses[-1:]}
    outcome.key.append(
        f"{CYCLES} cycles, {same} losses the same, median down {down:.2f} s, up {up:.2f} s"
    )


def calculation(outcome: Outcome, script: str, size: int) -> None:
    """Suspends a framework's program: its arrays, and a calculation from one of them, must be the
    same afterwards, and new memory and new kernels must work.
    """
    made(outcome, "calculation", f"max={CAP}")
    with programs_of_check() as programs, judged(outcome, CAP) as judge:
        program = joined(programs, "calculation", script)
        kept = program.ask("keep", 120, size=size)
        outcome.expect("error" not in kept, f"keep: {kept} {program.tail()}")
        before = program.ask("steps", 120, count=4)
        outcome.expect(before.get("same"), f"before: {before} {program.tail()}")
        held = compare(outcome, judge, "calculation", "before")
        down = moved("suspend", "suspended", [program], "calculation")
        outcome.expect(compare(outcome, judge, "calculation", "down") == 0, "NVML lists it")
        program.say("steps", count=4)
        outcome.expect(is_silent(program, WAITS), "the calculation did not wait")
        up = moved("resume", "running", [program], "calculation")
        after = program.reply(60)
        outcome.expect(after == before, f"before {before}, after {after}")
        compare(outcome, judge, "calculation", "after")
        new = program.ask("alloc", 120, size=300 * MIB)
        outcome.expect("error" not in new, f"new memory: {new}")
        timed(outcome, held, down, up)
        ended(outcome, program)


@check("suspend-calls", timeout=150, lane="suspend")
def calls(outcome: Outcome) -> None:
    """Threads that query, wait and allocate all the time survive ten suspensions."""
    made(outcome, "calls", f"max={CAP}")
    with programs_of_check() as programs:
        program = joined(programs, "calls", "caller.py")
        outcome.expect(program.ask("start").get("status") == 0, f"no context: {program.tail()}")
        began = program.ask("begin")
        outcome.expect("threads" in began, f"begin: {began} {program.tail()}")
        for _ in range(10):
            time.sleep(0.2)
            moved("suspend", "suspended", [program], *of(program))
            time.sleep(0.5)
            moved("resume", "running", [program], *of(program))
        answers = program.ask("end", 60).get("answers", {})
        # The stream that is asked has the work of the thread that uses the pool.
        right = {"stream query": {"0", "600"}}
        bad = {
            name: found
            for name, found in answers.items()
            if set(found) - right.get(name, {"0"})
        }
        outcome.expect(bool(answers) and not bad, f"answers: {bad or answers} {program.tail()}")
        outcome.figures["answers"] = answers
        count = sum(sum(found.values()) for found in answers.values())
        outcome.key.append(f"{len(answers)} threads, {count} calls")
        ended(outcome, program)


@check("suspend-jax", timeout=240, needs=("jax",), lane="suspend")
def jax(outcome: Outcome) -> None:
    """A JAX program with its preallocated memory goes to the host and calculates on."""
    calculation(outcome, "jax_agent.py", GIB)


@check("suspend-cupy", timeout=180, needs=("cupy",), lane="suspend")
def cupy(outcome: Outcome) -> None:
    """A CuPy program goes to the host and calculates on."""
    calculation(outcome, "cupy_agent.py", GIB)


LARGE = 20 * GIB
AIM = 1.25
"""The time of a suspension, or of its end, beside that of the driver's functions alone."""


@check("suspend-large", timeout=300, needs=("torch",), lane="alone")
def large(outcome: Outcome) -> None:
    """PyTorch with 20 GiB, a graph and pinned memory, beside the bare functions of the driver."""
    cap = LARGE + 4 * GIB
    made(outcome, "large", f"max={cap}")
    mover = tool()
    times: dict[str, list[tuple[float, float]]] = {"limited": [], "bare": []}
    with programs_of_check() as programs, Judge(gpu_index()) as judge:
        limited = joined(programs, "large", "torch_sleeper.py")
        plain = bare(python("torch_sleeper.py"))
        # `gpulimit resume` does nothing with a program outside all groups.
        programs.append(plain)
        plain.reply(120)
        states = {}
        for way, program in (("limited", limited), ("bare", plain)):
            filled = program.ask("large", 120, size=LARGE)
            outcome.expect("error" not in filled, f"{way}: {filled} {program.tail()}")
            states[way] = program.ask("look", 120)
            outcome.expect(
                states[way].get("wrong") == 0 and states[way].get("pinned") is True,
                f"{way}, before: {states[way]}",
            )
        sizes = {
            way: judge.settled()["last"].get(str(program.pid), 0)
            for way, program in (("limited", limited), ("bare", plain))
        }
        outcome.expect(min(sizes.values()) >= LARGE, f"NVML shows {sizes}")
        for order in (("limited", "bare"), ("bare", "limited")):
            for way in order:
                if way == "limited":
                    down = moved("suspend", "suspended", [limited], "large")
                    outcome.expect(
                        str(limited.pid) not in judge.settled()["last"], "NVML lists it"
                    )
                    up = moved("resume", "running", [limited], "large")
                else:
                    down, up = bare_cycle(mover, plain.pid)
                times[way].append((down, up))
        for way, program in (("limited", limited), ("bare", plain)):
            after = program.ask("look", 120)
            outcome.expect(after == states[way], f"{way}: before {states[way]}, after {after}")
        peak = judge.read()["peak"].get(str(limited.pid), 0)
        outcome.expect(peak <= cap, f"NVML showed {mib(peak)}, more than the limit")
        ended(outcome, limited, plain)
    mover.finish()
    outcome.figures |= {"sizes": sizes, "times_s": times}
    for at, direction in enumerate(("down", "up")):
        rates = {
            way: 2 * sizes[way] / GIB / sum(each[at] for each in times[way]) for way in times
        }
        ratio = rates["bare"] / rates["limited"]
        outcome.figures[direction] = {"gib_per_s": rates, "ratio": ratio}
        outcome.key.append(
            f"{direction} {rates['limited']:.2f} GiB/s, bare {rates['bare']:.2f}, ratio"
            f" {ratio:.3f}{' SLOW' if ratio > AIM else ''}"
        )


def bare_cycle(mover: Program, pid: int) -> tuple[float, float]:
    """Suspends and resumes a process by the driver's functions. Returns the seconds of both."""

    def step(name: str) -> float:
        answer = mover.ask("change", 150, name=name, pid=pid)
        if answer.get("status") != 0:
            raise RuntimeError(f"{name} of the bare program: {answer}")
        return answer["seconds"]

    try:
        return step("Lock") + step("Checkpoint"), step("Restore") + step("Unlock")
    finally:
        state = mover.ask("state", 150, pid=pid).get("state")
        if state == CHECKPOINTED:
            mover.ask("change", 150, name="Restore", pid=pid)
        if state in (LOCKED, CHECKPOINTED):
            mover.ask("change", name="Unlock", pid=pid)


# ---- room


@check("suspend-group", timeout=120, lane="suspend")
def group(outcome: Outcome) -> None:
    """Four processes of a group go to the host and come back, and others use the room meanwhile."""
    cap = 8 * GIB
    made(outcome, "four", f"max={cap}")
    with programs_of_check() as programs, judged(outcome, cap) as judge:
        four = [holder(outcome, programs, "four", 4) for _ in range(4)]
        held = compare(outcome, judge, "four", "before")
        down = moved("suspend", "suspended", four, "four")
        outcome.expect(compare(outcome, judge, "four", "down") == 0, "NVML lists some")
        for program in four:
            program.say("marked", size=PIECE)
        outcome.expect(is_silent(four[0], WAITS), "a call did not wait")
        other = joined(programs, "four")
        other.ask("start")
        filled = other.ask("fill", seed=12, largest=PIECE)
        outcome.expect(filled.get("status") == 2, f"beside them: {filled}")
        beside = compare(outcome, judge, "four", "beside them")
        outcome.expect(beside >= cap - PIECE, f"another one got {mib(beside)} only")
        ended(outcome, other)
        up = moved("resume", "running", four, "four")
        for program in four:
            intact(outcome, program.reply(60), "after")
        compare(outcome, judge, "four", "after")
        timed(outcome, held, down, up)
        ended(outcome, *four)
    outcome.key.append(f"{mib(beside)} beside them")


def waiting(group_name: str, sleeper: Program) -> Program:
    """Starts `gpulimit resume`, which waits for room."""
    actor = Program([str(binary("gpulimit")), "resume", group_name])
    until = time.monotonic() + 20
    while states_of(group_name).get(sleeper.pid) != "resuming":
        if actor.is_over or time.monotonic() > until:
            raise RuntimeError(f"resume does not wait: {states_of(group_name)}, {actor.tail()}")
        time.sleep(0.05)
    return actor


def freed(owner: Program, actor: Program) -> float:
    """Frees the memory for which a command waits. Returns the seconds until the command has ended,
    which must be well.
    """
    began = time.monotonic()
    if owner.ask("free").get("status") != 0:
        raise RuntimeError(f"not freed: {owner.tail()}")
    status = actor.finish(60)
    if status:
        raise RuntimeError(f"resume ended with {status}: {actor.tail()}")
    return time.monotonic() - began


def states_of(group_name: str) -> dict[int, str]:
    """Returns the state that `gpulimit ps` shows of each process of a group."""
    listed = json.loads(gpulimit("ps", "--json").stdout)["processes"]
    return {one["pid"]: one["state"] for one in listed if one["group"] == group_name}


@check("suspend-full", timeout=120, lane="suspend")
def full(outcome: Outcome) -> None:
    """A resume waits while another member holds the room, and succeeds when it is free."""
    made(outcome, "full", f"max={CAP}")
    with programs_of_check() as programs, judged(outcome, CAP) as judge:
        sleeper = holder(outcome, programs, "full", 6)
        held = compare(outcome, judge, "full", "before")
        moved("suspend", "suspended", [sleeper], "full")
        other = holder(outcome, programs, "full", 10)
        late = move("resume", *of(sleeper), "--timeout", "1s")
        outcome.expect(late.status != 0 and "no room" in late.errors, f"without room: {late}")
        outcome.expect(states_of("full")[sleeper.pid] == "suspended", "it does not stay suspended")
        actor = waiting("full", sleeper)
        sleeper.say("marked", size=PIECE)
        outcome.expect(is_silent(sleeper, WAITS), "it runs although its room is taken")
        outcome.expect(not actor.is_over, "resume did not wait")
        took = freed(other, actor)
        intact(outcome, sleeper.reply(30), "after")
        compare(outcome, judge, "full", "after")
        ended(outcome, sleeper, other)
    outcome.figures |= {"moved": held, "from_free_to_running_s": took}
    outcome.key.append(f"{mib(held)}, from free to running {took:.2f} s")


@check("suspend-undone", timeout=120, lane="suspend")
def undone(outcome: Outcome) -> None:
    """A process that another tool has resumed is charged: nobody gets its room."""
    made(outcome, "undone", f"max={CAP}")
    mover = tool()
    with programs_of_check() as programs, judged(outcome, CAP) as judge:
        first = holder(outcome, programs, "undone", 6)
        held = compare(outcome, judge, "undone", "before")
        moved("suspend", "suspended", [first], "undone")
        for step in ("Restore", "Unlock"):
            answer = mover.ask("change", 60, name=step, pid=first.pid)
            outcome.expect(answer["status"] == 0, f"{step}: {answer}")
        second = joined(programs, "undone")
        outcome.expect(second.ask("start").get("status") == 0, f"context: {second.tail()}")
        taken = second.ask("alloc", size=PIECE, times=10)
        outcome.expect(taken["done"] < 10 and taken["status"] == 2, f"the second got {taken}")
        back = move("resume", *of(first), "--timeout", "1s")
        outcome.figures |= {"moved": held, "second": taken, "resume": str(back)}
        compare(outcome, judge, "undone", "after")
        intact(outcome, first.ask("marked", size=PIECE), "after")
        ended(outcome, first, second)
    mover.finish()
    outcome.key.append(f"{mib(held)} restored by another tool, then {taken['done']} of 10 pieces")


@check("suspend-stranger", timeout=150, lane="alone")
def stranger(outcome: Outcome) -> None:
    """A resume waits while a program outside all groups has filled the GPU, and loses nothing."""
    made(outcome, "strange", f"max={CAP}")
    with programs_of_check() as programs, judged(outcome, CAP) as judge:
        sleeper = holder(outcome, programs, "strange", 6)
        held = compare(outcome, judge, "strange", "before")
        moved("suspend", "suspended", [sleeper], "strange")
        # In another session, so that the judge does not count it.
        filler = bare(["setsid", *python("driver.py")])
        try:
            filler.reply(30)
            outcome.expect(filler.ask("start").get("status") == 0, f"context: {filler.tail()}")
            pieces = (filler.ask("info")["free"] - held // 2) // PIECE
            taken = filler.ask("alloc", 90, size=PIECE, times=pieces)
            outcome.expect(taken == {"done": pieces, "status": 0}, f"the stranger: {taken}")
            late = move("resume", *of(sleeper), "--timeout", "1s")
            outcome.expect(
                late.status != 0 and "other programs, which" in late.errors, f"without room: {late}"
            )
            outcome.expect(
                states_of("strange")[sleeper.pid] == "suspended", "it does not stay suspended"
            )
            actor = waiting("strange", sleeper)
            sleeper.say("marked", size=PIECE)
            outcome.expect(is_silent(sleeper, WAITS), "it runs although the GPU is full")
            outcome.expect(not actor.is_over, "resume did not wait")
            took = freed(filler, actor)
        finally:
            filler.finish()
        intact(outcome, sleeper.reply(30), "after")
        compare(outcome, judge, "strange", "after")
        ended(outcome, sleeper)
    outcome.figures |= {"moved": held, "stranger": taken, "from_free_to_running_s": took}
    outcome.key.append(f"{mib(held)}, from free to running {took:.2f} s")


# ---- actors that die

TRIES = 8
MOMENTS = (1.0, 5.0, 10.0)
"""When the processes of killed actors are looked at, in seconds after the kill."""
FINISHERS = ("gc", "resume")
NAMES = {RUNNING: "running", LOCKED: "locked", CHECKPOINTED: "suspended", 3: "failed"}


@check("suspend-killed", timeout=420, lane="suspend")
def killed(outcome: Outcome) -> None:
    """`suspend` and `resume` are killed at random points: nobody stays locked, no byte is lost."""
    cap, pieces, seed = 8 * GIB, 24, int(time.time())
    chance = random.Random(seed)
    outcome.figures["seed"] = seed
    made(outcome, "killed", f"max={cap}")
    mover = tool()
    tries = outcome.figures["tries"] = []
    with programs_of_check() as programs, judged(outcome, cap) as judge:
        sleeper = holder(outcome, programs, "killed", pieces)
        held = compare(outcome, judge, "killed", "before")
        down = moved("suspend", "suspended", [sleeper], "killed")
        up = moved("resume", "running", [sleeper], "killed")
        intact(outcome, sleeper.ask("marked", size=PIECE), "undisturbed")
        timed(outcome, held, down, up)
        # On the simulated driver all is over in a moment.
        moments = MOMENTS if down > 2 else tuple(moment / 25 for moment in MOMENTS)
        for number in range(TRIES):
            verb = ("suspend", "resume")[number % 2]
            if verb == "resume":
                moved("suspend", "suspended", [sleeper], "killed")
            place = (number // 2 + chance.random()) / (TRIES // 2)
            after = place * (down if verb == "suspend" else up)
            found = kill(sleeper, mover, judge, verb, after, moments, number % len(moments))
            tries.append(found)
            label = f"{verb} killed after {after:.2f} s"
            finisher = FINISHERS[number // 2 % len(FINISHERS)]
            state = settled(mover, sleeper, finisher, found)
            outcome.expect(state in (RUNNING, CHECKPOINTED), f"{label}: state {state}: {found}")
            compare(outcome, judge, "killed", f"{number}: {label}, {finisher}")
            back = move("resume", *of(sleeper), "--timeout", "30s")
            state = mover.ask("state", 60, pid=sleeper.pid).get("state")
            if outcome.expect(
                state == RUNNING and back.status == 0, f"{label}: not back: {state}, {back}"
            ):
                intact(outcome, sleeper.ask("marked", size=PIECE), label)
                compare(outcome, judge, "killed", f"{number}: running again")
                continue
            if state == LOCKED:
                mover.ask("change", name="Unlock", pid=sleeper.pid)
            if state in (RUNNING, LOCKED):
                sleeper.finish()
            else:
                # It was not restored, so killing it is safe.
                sleeper.kill()
            sleeper = holder(outcome, programs, "killed", pieces)
        ended(outcome, sleeper)
    mover.finish()
    for verb in ("suspend", "resume"):
        of_verb = [one for one in tries if one["verb"] == verb]
        outcome.key.append(f"{verb} killed after {', '.join(map(shown, of_verb))}")


def shown(found: dict) -> str:
    """Formats a kill: when it was, and the states that the driver told afterwards."""
    states = [NAMES.get(each.get("state"), "unknown") for each in found["states"]]
    changes = [at for at, state in enumerate(states) if at == 0 or state != states[at - 1]]
    return f"{found['after_s']:.1f} s {'→'.join(states[at] for at in changes)}"


def kill(
    sleeper: Program,
    mover: Program,
    judge: Judge,
    verb: str,
    after: float,
    moments: tuple[float, ...],
    first: int,
) -> dict:
    """Kills a command after some seconds, and looks at its process: without any call about the
    process until the moment `first`, and then also at the driver's state.
    """
    actor = Program([str(binary("gpulimit")), verb, *of(sleeper)])
    time.sleep(after)
    was_over = actor.is_over
    if not was_over:
        os.kill(actor.pid, signal.SIGKILL)
    began = time.monotonic()
    status = actor.finish(90)
    died = time.monotonic() - began
    trace, states = [], []
    for at, moment in enumerate((0.0, *moments)):
        time.sleep(max(0.0, began + moment - time.monotonic()))
        nvml = judge.read()["last"].get(str(sleeper.pid), 0)
        now = time.monotonic() - began
        trace.append({"s": round(now, 2), "nvml": nvml, "rss": resident(sleeper.pid)})
        if at > first:
            answer = mover.ask("state", 60, pid=sleeper.pid)
            waited = time.monotonic() - began - now
            states.append({"s": round(now, 2), "waited_s": round(waited, 3), **answer})
    return {
        "verb": verb,
        "after_s": after,
        "was_over": was_over,
        "status": status,
        "died_s": died,
        "trace": trace,
        "states": states,
    }


def resident(pid: int) -> int:
    """Returns the bytes of a process that are in the host's memory."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def settled(mover: Program, sleeper: Program, finisher: str, found: dict) -> int:
    """Runs a command that finishes the work of dead ones, again while the driver is still at work.
    Returns the driver's state of the process.
    """
    arguments = of(sleeper) if finisher == "resume" else ()
    until = time.monotonic() + 30
    while True:
        answer = gpulimit(finisher, *arguments, timeout=120)
        state = mover.ask("state", 60, pid=sleeper.pid).get("state", -1)
        found["finisher"] = {
            "command": finisher,
            "status": answer.returncode,
            "errors": answer.stderr.strip()[-300:],
            "state": state,
        }
        is_done = state in (RUNNING, CHECKPOINTED) and "still at work" not in answer.stderr
        if is_done or time.monotonic() > until:
            return state
        time.sleep(0.5)


# ---- stopped, refused


@check("suspend-freeze", timeout=90, lane="suspend")
def freeze(outcome: Outcome) -> None:
    """A suspended process is also stopped, and goes on when it is resumed."""
    made(outcome, "freeze", f"max={CAP}")
    with programs_of_check() as programs, judged(outcome, CAP) as judge:
        sleeper = holder(outcome, programs, "freeze", 6)
        held = compare(outcome, judge, "freeze", "before")
        down = moved("suspend", "frozen", [sleeper], "freeze", "--freeze")
        outcome.expect(is_stopped(sleeper.pid, 10), "it is not stopped")
        outcome.expect(states_of("freeze") == {sleeper.pid: "frozen"}, "ps shows another state")
        outcome.expect(compare(outcome, judge, "freeze", "down") == 0, "NVML lists it")
        up = moved("resume", "running", [sleeper], "freeze")
        outcome.expect(not is_stopped(sleeper.pid), "it is still stopped")
        intact(outcome, sleeper.ask("marked", size=PIECE), "after")
        compare(outcome, judge, "freeze", "after")
        timed(outcome, held, down, up)
        ended(outcome, sleeper)


def is_stopped(pid: int, wait: float = 0) -> bool:
    """Returns whether a process is stopped by a signal, or becomes so while this waits."""
    until = time.monotonic() + wait
    while True:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "T" or time.monotonic() > until:
            return state == "T"
        time.sleep(0.01)


SMALL = 4 * MIB


@check("suspend-refused", timeout=120, lane="suspend")
def refused(outcome: Outcome) -> None:
    """Managed memory, imports, exports and a capture are refused, and nothing is touched."""
    made(outcome, "refused", f"max={CAP}")
    mover, refusals = tool(), {}
    outcome.figures["refusals"] = refusals
    with programs_of_check() as programs, judged(outcome, CAP) as judge:

        def asked(program: Program, do: str, **arguments: object) -> dict:
            found = program.ask(do, **arguments)
            if "error" in found or found.get("status", 0):
                raise RuntimeError(f"{do}: {found} {program.tail()}")
            return found

        def listed() -> dict[int, int]:
            """Returns NVML's figures of the programs that run."""
            seen = judge.settled()["last"]
            return {one.pid: seen.get(str(one.pid), 0) for one in programs if not one.is_over}

        def untouched(program: Program, words: str, *arguments: str) -> None:
            """Tries to suspend, which must fail with these words and leave the program alone."""
            before = listed()
            found = move("suspend", *(arguments or of(program)))
            label = " ".join(arguments) or words
            refusals[label] = found.errors
            outcome.expect(
                found.status != 0 and words in found.errors and "nothing was" in found.errors,
                f"{label}: {found}",
            )
            state = mover.ask("state", pid=program.pid)
            outcome.expect(state == {"status": 0, "state": RUNNING}, f"{label}: {state}")
            after = listed()
            outcome.expect(after == before, f"{label}: before {before}, after {after}")

        managed = joined(programs, "refused", "several.py")
        asked(managed, "start", devices=[0])
        asked(managed, "managed", device=0, size=SMALL)
        untouched(managed, "managed memory")
        asked(managed, "take", way="linear", device=0, user=0, size=SMALL)
        ended(outcome, managed)

        exporter, importer = (joined(programs, "refused", "lender.py") for _ in range(2))
        for program in (exporter, importer):
            asked(program, "start")
        asked(exporter, "take", name="lent", size=SMALL)
        handle = asked(exporter, "ipc_get", name="lent")["handle"]
        untouched(exporter, "cuIpcGetMemHandle")
        asked(importer, "ipc_open", name="opened", handle=handle)
        untouched(importer, "cuIpcOpenMemHandle")
        healthy = holder(outcome, programs, "refused", 1)
        untouched(healthy, "cuIpcOpenMemHandle", "refused")
        intact(outcome, healthy.ask("marked", size=PIECE), "a healthy member")
        asked(importer, "ipc_close", name="opened")
        ended(outcome, exporter, importer, healthy)

        exporter, importer = (joined(programs, "refused", "lender.py") for _ in range(2))
        for program in (exporter, importer):
            asked(program, "start")
        asked(exporter, "create", name="made", size=SMALL)
        sent = asked(exporter, "export", name="made")
        untouched(exporter, "cuMemExportToShareableHandle")
        asked(
            importer, "import", name="made", size=SMALL,
            pid=sent["pid"], descriptor=sent["descriptor"],
        )  # fmt: skip
        untouched(importer, "cuMemImportFromShareableHandle")
        asked(importer, "unmap", name="made")
        ended(outcome, importer, exporter)

        capturing = joined(programs, "refused", "giver.py")
        asked(capturing, "start")
        asked(capturing, "begin")
        untouched(capturing, "captures a stream")
        asked(capturing, "end")
        # Nothing prevents it after the end of the capture.
        moved("suspend", "suspended", [capturing], *of(capturing))
        moved("resume", "running", [capturing], *of(capturing))
        asked(capturing, "hold", size=SMALL, times=1)
        ended(outcome, capturing)
    mover.finish()
    outcome.key.append(f"{len(refusals)} refusals, nothing touched")
