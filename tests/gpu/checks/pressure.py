"""Programs that give memory back when others of their group need it."""

from __future__ import annotations

import os
import re
import sys
import time

from checks.groups import OUT_OF_MEMORY, events, made
from harness import (
    GIB,
    HERE,
    MIB,
    Outcome,
    Program,
    binary,
    check,
    judged,
    mib,
    missing,
    preloaded,
    python,
)

CAP = 24 * GIB
HELD = 20 * GIB
ASKED = 10 * GIB
AIM_MS = 100
"""How soon a request should be granted after the holder can give memory back."""
TIMEOUT_MS = 2_000
"""The default of `pressure_timeout`."""


def member(group: str, script: str = "giver.py") -> Program:
    """Starts a program in an existing group."""
    path = f"{binary('gpulimit').parent}:{os.environ['PATH']}"
    program = preloaded(python(script), None, GPULIMIT_GROUP=group, PATH=path)
    program.reply(90)
    return program


def giver(outcome: Outcome, group: str, size: int, answer: str | None = "all") -> Program:
    """Starts a holder; `answer` is None for one that does not register."""
    program = member(group)
    outcome.expect(program.ask("start").get("status") == 0, f"no context: {program.tail()}")
    if answer is not None:
        outcome.expect(program.ask("register", answer=answer).get("active"), "not in a group")
    held = program.ask("hold", size=GIB, times=size // GIB)
    outcome.expect(held == {"done": size // GIB, "status": 0}, f"held: {held}")
    return program


def asker(outcome: Outcome, group: str) -> Program:
    """Starts a program that asks for memory, with a context."""
    program = member(group)
    outcome.expect(program.ask("start").get("status") == 0, f"no context: {program.tail()}")
    return program


def trainer(outcome: Outcome) -> Program:
    """Starts a program on PyTorch, with a context."""
    program = member("press-torch", "torch_giver.py")
    made = program.ask("request", size=MIB)
    outcome.expect(made.get("granted"), f"no context: {made} {program.tail()}")
    return program


def trains(outcome: Outcome, holder: Program, steps: int) -> None:
    """Starts a training, and waits until one of its steps is under way."""
    told = holder.ask("train", steps=steps)
    outcome.expect(told.get("trains"), f"no training: {told} {holder.tail()}")


def timed(outcome: Outcome, name: str, ms: float, aim: float) -> None:
    """Keeps a time; one above its aim is printed as SLOW."""
    outcome.figures[f"{name}_ms"] = ms
    outcome.key.append(f"{name} {ms:.0f} ms{' SLOW' if ms > aim else ''}")


def ended(outcome: Outcome, *programs: Program) -> None:
    """Ends programs, which must end well."""
    for program in programs:
        outcome.expect(program.finish() == 0, f"ended badly: {program.tail()}")


@check("pressure-driver", timeout=90)
def driver(outcome: Outcome) -> None:
    """A request gets what holders give back: at once, from several groups, after a capture."""
    for group in ("press", "press/a", "press/b"):
        made(outcome, group, *([f"max={CAP}"] if group == "press" else []))
    with judged(outcome, CAP):
        holder, other = giver(outcome, "press/a", HELD), asker(outcome, "press/b")
        found = other.ask("request", size=ASKED)
        outcome.expect(found["status"] == 0, f"idle: {found}")
        timed(outcome, "idle", found["ms"], AIM_MS)
        outcome.expect(holder.ask("requests")["asked"], "the holder was not asked")
        ended(outcome, holder, other)

        holders = [giver(outcome, f"press/{'ab'[at % 2]}", 5 * GIB) for at in range(4)]
        other = asker(outcome, "press/b")
        found = other.ask("request", size=ASKED)
        outcome.expect(found["status"] == 0, f"four holders: {found}")
        timed(outcome, "four", found["ms"], AIM_MS)
        ended(outcome, *holders, other)

        holder, other = giver(outcome, "press/a", HELD), asker(outcome, "press/b")
        outcome.expect(holder.ask("begin")["status"] == 0, "no capture")
        before = events("press").count("asked")
        other.say("request", size=ASKED)
        until = time.monotonic() + 30
        while events("press").count("asked") == before and time.monotonic() < until:
            time.sleep(0.01)
        outcome.expect(events("press").count("asked") > before, "the holder was not asked")
        began = time.monotonic()
        captured = holder.ask("end")
        outcome.expect(captured == {"status": 0, "asked": 0}, f"capture: {captured}")
        found = other.reply(30)
        outcome.expect(found["status"] == 0, f"after the capture: {found}")
        timed(outcome, "capture", (time.monotonic() - began) * 1e3, AIM_MS)
        ended(outcome, holder, other)
    seen = events("press")
    outcome.figures["events"] = {kind: seen.count(kind) for kind in sorted(set(seen))}


@check("pressure-silent", timeout=60)
def silent(outcome: Outcome) -> None:
    """A holder that does not answer delays a refusal by pressure_timeout, others do not."""
    made(outcome, "silent", f"max={CAP}")
    for answer, aim in (("silent", TIMEOUT_MS + 500), ("nothing", 500), (None, 500)):
        name = answer or "unregistered"
        with judged(outcome, CAP, name):
            holder, other = giver(outcome, "silent", HELD, answer), asker(outcome, "silent")
            found = other.ask("request", size=ASKED)
            outcome.expect(found["status"] == OUT_OF_MEMORY, f"{name}: {found}")
            timed(outcome, name, found["ms"], aim)
            times = len(holder.ask("requests")["asked"])
            outcome.expect(times == (answer is not None), f"{name}: asked {times} times")
            ended(outcome, holder, other)


@check("pressure-pytorch", timeout=240, needs=("torch",))
def pytorch(outcome: Outcome) -> None:
    """PyTorch's cache goes to another process: idle, in training, in a capture."""
    made(outcome, "press-torch", f"max={CAP}")
    with judged(outcome, CAP):
        holder, other = trainer(outcome), trainer(outcome)
        outcome.expect(holder.ask("cache", size=HELD)["reserved"] >= HELD, "no cache")
        refused = other.ask("request", size=ASKED)
        outcome.expect(not refused["granted"], f"without the module: {refused}")
        timed(outcome, "without", refused["ms"], 1_000)

        outcome.expect(holder.ask("enable")["active"], "not in a group")
        found = other.ask("request", size=ASKED)
        outcome.expect(found["granted"], f"idle: {found} {other.tail()}")
        timed(outcome, "idle", found["ms"], AIM_MS)
        outcome.expect(holder.ask("cached")["reserved"] < GIB, "the cache was not emptied")

        steps = 1_000
        trains(outcome, holder, steps)
        alone = holder.reply()
        ended(outcome, other)
        other = trainer(outcome)
        holder.ask("cache", size=HELD)
        trains(outcome, holder, steps)
        found = other.ask("request", size=ASKED)
        beside = holder.reply(90)
        outcome.expect(found["granted"], f"in training: {found} {other.tail()}")
        outcome.expect(found["ended"] < beside["ended"], "granted after the training")
        timed(outcome, "training", found["ms"], alone["longest_ms"] + AIM_MS)
        outcome.expect(beside["losses"] == alone["losses"], "the losses differ")
        ended(outcome, other)

        other = trainer(outcome)
        holder.ask("cache", size=HELD)
        holder.say("capture", seconds=1.0)
        captures = holder.reply(60)
        outcome.expect(captures.get("captures"), f"before the capture: {captures}")
        found = other.ask("request", size=ASKED)
        captured = holder.reply(60)
        # Each element is 256 from the product, and 1.
        outcome.expect(captured.get("sum") == 257.0 * 256 * 256, f"capture: {captured}")
        outcome.expect(found["granted"], f"during a capture: {found}")
        timed(outcome, "capture", found["ms"], 1_000 + AIM_MS)

        outcome.expect(other.ask("enable")["active"], "not in a group")
        refused = other.ask("request", size=2 * CAP)
        text = "\n".join(other.ask("reports")["reports"])
        outcome.expect(not refused["granted"], f"too large: {refused}")
        for words in ("is out of memory", "Group press-torch", "(this process)", "PyTorch"):
            outcome.expect(words in text, f"the report lacks {words!r}: {text[:400]!r}")
        ended(outcome, holder, other)


@check("pressure-batch", timeout=90, needs=("torch",))
def batch(outcome: Outcome) -> None:
    """find_batch finds a batch that fills the limit, with few refusals."""
    cap = 8 * GIB
    made(outcome, "press-batch", f"max={cap}")
    with judged(outcome, cap):
        program = member("press-batch", "torch_giver.py")
        found = program.ask("batch", timeout=80)
        used = found.get("batch", 0) * 4 * MIB
        outcome.expect(used > 0.7 * cap, f"{found} {program.tail()}")
        outcome.expect(found.get("refused", 99) <= 4, f"refusals: {found}")
        outcome.figures |= found
        outcome.key.append(f"{mib(used)}, {found.get('refused')} refusals")
        ended(outcome, program)


@check("pressure-rmm", timeout=90, needs=("rmm",))
def rmm(outcome: Outcome) -> None:
    """RMM gives a cache to another process, and to its own requests, by the page's function."""
    made(outcome, "press-rmm", f"max={CAP}")
    with judged(outcome, CAP):
        holder, other = member("press-rmm", "rmm_giver.py"), asker(outcome, "press-rmm")
        loaded = holder.ask("snippet")
        outcome.expect(loaded.get("active"), f"not in a group: {loaded} {holder.tail()}")
        outcome.figures["rmm"] = loaded.get("version")
        held = holder.ask("hold", size=GIB, times=HELD // GIB)
        outcome.expect(held.get("bytes", 0) >= HELD, f"held: {held} {holder.tail()}")
        found = other.ask("request", size=ASKED)
        outcome.expect(found["status"] == 0, f"idle: {found}")
        timed(outcome, "idle", found["ms"], AIM_MS)
        left = holder.ask("held")
        outcome.expect(left == {"bytes": 0}, f"not given back: {left}")
        ended(outcome, other)

        holder.ask("hold", size=GIB, times=HELD // GIB)
        found = holder.ask("request", size=ASKED)
        outcome.expect(found == {"granted": True, "bytes": 0}, f"own request: {found}")
        # RMM tries again without end unless the function returns False.
        found = holder.ask("request", size=2 * CAP)
        outcome.expect(found == {"granted": False, "bytes": 0}, f"too large: {found}")
        ended(outcome, holder)


@check("pressure-snippets", timeout=180)
def snippets(outcome: Outcome) -> None:
    """The snippets of the pages run with the frameworks that are installed."""
    made(outcome, "press-pages", f"max={CAP}")
    front = f"import sys\nsys.path.insert(0, {str(HERE / 'python')!r})\n"
    ran = 0
    for page in ("python.md", "programs-that-share.md"):
        text = (HERE / "docs" / page).read_text()
        for code in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            words = re.findall(r"^import (\w+)", code, re.MULTILINE)
            words += re.findall(r"gpulimit\.(torch|cupy)\b", code)
            lacking = [word for word in words if not is_there(word)]
            if lacking:
                outcome.figures.setdefault("not_installed", []).extend(lacking)
                continue
            command = [sys.executable, "-c", front + code]
            program = preloaded(command, None, GPULIMIT_GROUP="press-pages")
            status = program.finish(90)
            outcome.expect(status == 0, f"{page}: {status}: {program.tail()}: {code}")
            ran += 1
    outcome.expect(ran >= 3, f"only {ran} snippets ran")
    outcome.key.append(f"{ran} snippets")


def is_there(module: str) -> bool:
    """Returns whether a snippet can import a module."""
    return module == "gpulimit" or not missing((module,))
