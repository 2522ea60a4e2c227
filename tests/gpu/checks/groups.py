"""Nested groups, and what groups do at the limit, on a real GPU."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

from harness import (
    CAP,
    GIB,
    MIB,
    SLACK,
    Outcome,
    Program,
    binary,
    check,
    compare_at_rest,
    gpulimit,
    judged,
    mib,
    plain_environment,
    python,
    reached,
)

OUT_OF_MEMORY = 2


def made(outcome: Outcome, name: str, *settings: str) -> None:
    """Makes a group with these settings."""
    answer = gpulimit("create", name, *settings)
    outcome.expect(
        answer.returncode == 0,
        f"create {name} ended with {answer.returncode}: {answer.stderr.strip()}",
    )


def member(name: str) -> Program:
    """Starts a program of plain driver calls in an existing group, with a context."""
    program = Program(
        [str(binary("gpulimit")), "run", "--name", name, "--", *python("driver.py")],
        plain_environment(),
    )
    program.reply(30)
    started = program.ask("start")
    if started.get("status") != 0:
        raise RuntimeError(f"no context in {name}: {started} {program.tail()}")
    return program


def is_silent(program: Program, seconds: float) -> bool:
    """Returns whether the program sends no reply in this time."""
    try:
        program.reply(seconds)
    except TimeoutError:
        return True
    return False


def events(name: str) -> list[str]:
    """Returns the kinds of the events of a group; a line can stand for several events."""
    lines = gpulimit("events", name, "--json").stdout.splitlines()
    found = [json.loads(line) for line in lines]
    return [event["event"] for event in found for _ in range(event["count"])]


@check("groups-levels", timeout=60)
def levels(outcome: Outcome) -> None:
    """A group of 4 GiB and one of 2.5 GiB below it: each fills to its own limit."""
    inner = 2560 * MIB
    made(outcome, "levels", f"max={CAP}")
    made(outcome, "levels/inner", f"max={inner}")
    made(outcome, "levels/free")
    with judged(outcome, CAP) as judge:
        first, second = member("levels/inner"), member("levels/free")
        found = first.ask("fill", seed=3, largest=96 * MIB)
        outcome.expect(found.get("status") == OUT_OF_MEMORY, f"inner: {found}")
        shown = judge.read()["sum_last"]
        compare_at_rest(outcome, judge, "inner full")
        found = second.ask("fill", seed=4, largest=96 * MIB)
        outcome.expect(found.get("status") == OUT_OF_MEMORY, f"free: {found}")
        compare_at_rest(outcome, judge, "both full")
        reached(outcome, judge.read(), CAP)
        for program, group in ((first, "levels/inner"), (second, "levels")):
            lines = program.refusals()
            outcome.expect(
                any(f" in {group}; most is used by pid" in line for line in lines),
                f"not named {group}: {lines[:1]}",
            )
        outcome.expect(shown <= inner + GIB, f"with the inner one full NVML showed {mib(shown)}")
        for program in (first, second):
            outcome.expect(program.finish() == 0, f"ended badly: {program.tail()}")
    outcome.key.append(f"inner and a context {mib(shown)}")


@check("groups-wait", timeout=60)
def wait(outcome: Outcome) -> None:
    """A request waits until another process frees memory or is killed, within the limit."""
    made(outcome, "wait", f"max={CAP}", "on_limit=wait", "wait_timeout=20s")
    with judged(outcome, CAP) as judge:
        holder, other = member("wait"), member("wait")
        outcome.expect(
            holder.ask("alloc", size=2 * GIB) == {"done": 1, "status": 0}, "the first two GiB"
        )
        other.say("alloc", size=1536 * MIB)
        outcome.expect(is_silent(other, 0.5), "it did not wait")
        holder.ask("free")
        outcome.expect(other.reply(10).get("status") == 0, "not granted after the memory came back")
        compare_at_rest(outcome, judge, "granted")
        other.ask("free")
        holder.ask("alloc", size=2 * GIB)
        other.say("alloc", size=1536 * MIB)
        outcome.expect(is_silent(other, 0.5), "it did not wait for the killed one")
        holder.kill()
        began = time.monotonic()
        outcome.expect(
            other.reply(10).get("status") == 0, "not granted after the holder was killed"
        )
        outcome.figures["after_kill_ms"] = (time.monotonic() - began) * 1000
        compare_at_rest(outcome, judge, "after the kill")
        outcome.expect(other.finish() == 0, f"ended badly: {other.tail()}")
    seen = events("wait")
    outcome.expect(seen.count("granted") >= 2 and "reap" in seen, f"events: {seen}")
    outcome.key.append(
        f"{seen.count('wait')} waits, after the kill {outcome.figures['after_kill_ms']:.0f} ms"
    )


JOBS, AT_ONCE = 24, 8


def job(_: int) -> dict:
    """Runs a short job in the group `queue`. Returns what its request got."""
    program = member("queue")
    found = program.ask("alloc", size=1536 * MIB, timeout=90)
    time.sleep(0.2)
    return found | {"end": program.finish(), "says": program.tail()}


@check("groups-queue", timeout=240)
def queue(outcome: Outcome) -> None:
    """Of 24 jobs, eight at a time where two have room, all get their memory."""
    made(outcome, "queue", f"max={CAP}", "on_limit=wait", "wait_timeout=10s")
    began = time.monotonic()
    with judged(outcome, CAP), ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(job, range(JOBS)))
    refused = [one for one in found if one["status"] or one["end"]]
    outcome.expect(not refused, f"{len(refused)} of {JOBS} refused: {refused[:1]}")
    seconds = time.monotonic() - began
    outcome.figures["seconds"] = seconds
    outcome.key.append(f"{JOBS - len(refused)} of {JOBS} in {seconds:.0f} s")


@check("groups-kept", timeout=60)
def kept(outcome: Outcome) -> None:
    """A group gets the memory that its `min` keeps for it; another group cannot."""
    made(outcome, "kept", f"max={CAP}")
    made(outcome, "kept/safe", f"min={2 * GIB}")
    made(outcome, "kept/other")
    with judged(outcome, CAP) as judge:
        other = member("kept/other")
        found = other.ask("fill", seed=5, largest=96 * MIB)
        outcome.expect(found.get("status") == OUT_OF_MEMORY, f"the other one: {found}")
        shown = judge.read()["sum_last"]
        outcome.expect(2 * GIB - SLACK <= shown <= 2 * GIB, f"the other one came to {mib(shown)}")
        safe = member("kept/safe")
        found = safe.ask("alloc", size=64 * MIB, times=20)
        outcome.expect(found == {"done": 20, "status": 0}, f"what is kept: {found}")
        compare_at_rest(outcome, judge, "both")
        for program in (other, safe):
            outcome.expect(program.finish() == 0, f"ended badly: {program.tail()}")
    outcome.key.append(f"the other one {mib(shown)}")
