"""Several GPUs: each has its own limit, in whatever order a program sees them and however it takes
memory of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from harness import (
    EXACT,
    GIB,
    MIB,
    SLACK,
    Outcome,
    Program,
    Skip,
    bare,
    binary,
    check,
    compare_at_rest,
    gpu_index,
    gpulimit,
    judged,
    library,
    mib,
    plain_environment,
    python,
)
from judge import Judge, Nvml

from checks.suspend import move, programs_of_check

OUT_OF_MEMORY = 2
NAME = "several"
POOL_STEPS = 2 * 32 * MIB
"""Bytes that a pool keeps charged beyond its use: the rest of its last step, and the step kept
ready.
"""


def pair() -> list[Nvml]:
    """Returns the GPU under test and another one; skips the check with a single GPU."""
    first = Nvml(gpu_index())
    others = [index for index in range(first.count()) if index != first.index]
    if not others:
        raise Skip("this machine has one GPU; two are needed")
    return [first, Nvml(others[0])]


def cap(gpu: Nvml) -> int:
    """Returns the limit of a GPU, in bytes; each GPU has another one."""
    return 3 * GIB + gpu.index * 320 * MIB


def prefix(gpu: Nvml) -> str:
    """Returns the shortest beginning of a GPU's UUID, of at least eight digits, that no other GPU
    shares.
    """
    uuids = [Nvml(index).uuid() for index in range(gpu.count())]
    own = gpu.uuid()
    return next(
        own[:end]
        for end in range(12, len(own) + 1)
        if sum(uuid.startswith(own[:end]) for uuid in uuids) == 1
    )


def environment(visible: str | None, order: str | None, **variables: str) -> dict[str, str]:
    """Returns the environment that selects and orders the GPUs; `None` leaves a variable out."""
    plain = {
        name: value
        for name, value in plain_environment().items()
        if name not in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    }
    chosen = {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": order}
    return plain | {name: value for name, value in chosen.items() if value is not None} | variables


def limit(outcome: Outcome, sizes: dict[str, int]) -> None:
    """Sets the limits of the group, in bytes by the name of a GPU."""
    for name, size in sizes.items():
        answer = gpulimit("set", NAME, f"max={size // MIB}M", "--device", name)
        outcome.expect(
            answer.returncode == 0,
            f"set --device {name} ended with {answer.returncode}: {answer.stderr.strip()}",
        )


def make_group(outcome: Outcome, gpus: list[Nvml]) -> None:
    """Makes the group with a limit for each of the GPUs, and another limit for all others that no
    test expects.
    """
    answer = gpulimit("run", "--name", NAME, "--max", "1G", "--", "true")
    outcome.expect(answer.returncode == 0, f"the group could not be made: {answer.stderr.strip()}")
    limit(outcome, {gpu.uuid(): cap(gpu) for gpu in gpus})


def member(
    script: str = "several.py",
    visible: str | None = None,
    order: str | None = "PCI_BUS_ID",
    **variables: str,
) -> Program:
    """Starts a program in the group."""
    return Program(
        [str(binary("gpulimit")), "run", "--name", NAME, "--", *python(script)],
        environment(visible, order, **variables),
    )


def both(gpus: list[Nvml], reverse: bool = False) -> str:
    """Returns CUDA_VISIBLE_DEVICES for the two GPUs by UUID, which does not depend on their
    numbers.
    """
    return ",".join(gpu.uuid() for gpu in (reversed(gpus) if reverse else gpus))


@contextmanager
def judged_each(outcome: Outcome, gpus: list[Nvml], label: str = "") -> Iterator[list[Judge]]:
    """Samples with a judge for each GPU, which checks the GPU's own limit."""
    with ExitStack() as stack:
        name = f"{label}_" if label else ""
        yield [
            stack.enter_context(judged(outcome, cap(gpu), f"{name}gpu{gpu.index}", gpu.index))
            for gpu in gpus
        ]


def ended(outcome: Outcome, program: Program, what: str) -> None:
    status = program.finish()
    outcome.expect(status == 0, f"{what}: ended with {status}: {program.tail()}")


@check("several-order", timeout=90)
def several_order(outcome: Outcome) -> None:
    """Every order and choice of GPUs by CUDA's variables: each GPU has its own limit."""
    gpus = pair()
    make_group(outcome, gpus)
    first, second = gpus
    caps = {gpu.uuid(): cap(gpu) for gpu in gpus}
    # Each choice has the visible devices and the GPUs that these are if numbers are NVML's; None
    # stands for every GPU of the machine.
    choices: list[tuple[str | None, list[Nvml] | None]] = [
        (None, None),
        (f"{first.index},{second.index}", [first, second]),
        (f"{second.index},{first.index}", [second, first]),
        (str(second.index), [second]),
        (str(first.index), [first]),
        (both(gpus), [first, second]),
        (both(gpus, reverse=True), [second, first]),
        (prefix(second), [second]),
        (f"{prefix(second)},{prefix(first)}", [second, first]),
    ]
    programs = [
        (visible, expected, order, member(visible=visible, order=order))
        for visible, expected in choices
        for order in ("PCI_BUS_ID", "FASTEST_FIRST", None)
    ]
    for visible, expected, order, program in programs:
        label = f"CUDA_VISIBLE_DEVICES={visible} CUDA_DEVICE_ORDER={order}"
        program.reply(60)
        seen = program.ask("identify").get("gpus", [])
        uuids = [each["uuid"] for each in seen]
        by_name = visible is not None and "GPU" in visible
        if expected and (order == "PCI_BUS_ID" or by_name):
            outcome.expect(
                uuids == [gpu.uuid() for gpu in expected], f"{label}: CUDA shows {uuids}"
            )
        outcome.expect(
            len(uuids) == (len(expected) if expected else first.count()),
            f"{label}: CUDA shows {uuids}",
        )
        for each in seen:
            wanted = caps.get(each["uuid"], GIB)
            outcome.expect(
                each["total"] == wanted,
                f"{label}: {each['uuid']} has {mib(each['total'])}, not {mib(wanted)}",
            )
        ended(outcome, program, label)
    outcome.key.append(
        f"{len(programs)} orders, {mib(caps[first.uuid()])} and {mib(caps[second.uuid()])}"
    )


@check("several-names", timeout=90)
def several_names(outcome: Outcome) -> None:
    """A GPU named by index, UUID, its beginning, bus id or in GPULIMIT_MAX gets the limit."""
    gpus = pair()
    make_group(outcome, gpus)
    ways = {
        "index": lambda gpu: str(gpu.index),
        "uuid": Nvml.uuid,
        "prefix": prefix,
        "bus": Nvml.bus,
    }
    for turn, (way, name) in enumerate(ways.items()):
        # The sizes differ in each turn, so that no limit of the turn before can match.
        sizes = {gpu.uuid(): cap(gpu) + (turn + 1) * 64 * MIB for gpu in gpus}
        limit(outcome, {name(gpu): sizes[gpu.uuid()] for gpu in gpus})
        program = member(visible=both(gpus, reverse=True))
        program.reply(60)
        totals = {each["uuid"]: each["total"] for each in program.ask("identify").get("gpus", [])}
        outcome.expect(totals == sizes, f"set by {way}: {totals}, not {sizes}")
        ended(outcome, program, way)

    first, second = gpus
    a, b = (f"{cap(gpu) // MIB}M" for gpu in gpus)
    # Numbers follow the order in which the program sees the GPUs.
    asked = {
        f"0={b},1={a}": [cap(second), cap(first)],
        f"{first.uuid()}={a},{second.uuid()}={b}": [cap(second), cap(first)],
        f"{prefix(first)}={a},all={b}": [cap(second), cap(first)],
        f"1={a},all=max": [second.total(), cap(first)],
        a: [cap(first), cap(first)],
    }
    for text, wanted in asked.items():
        program = Program(
            python("several.py"),
            environment(
                both(gpus, reverse=True), None, LD_PRELOAD=str(library()), GPULIMIT_MAX=text
            ),
        )
        program.reply(60)
        totals = [each["total"] for each in program.ask("identify").get("gpus", [])]
        # CUDA reports less memory of a whole GPU than NVML.
        fits = all(
            total == size or (size == second.total() and 0.9 * size < total <= size)
            for total, size in zip(totals, wanted)
        )
        outcome.expect(fits and len(totals) == 2, f"GPULIMIT_MAX={text}: {totals}, not {wanted}")
        ended(outcome, program, text)
    outcome.key.append(f"{len(ways)} names, {len(asked)} requests")


@check("several-fill", timeout=120)
def several_fill(outcome: Outcome) -> None:
    """One process fills two GPUs in every way, also from the other's context, each to its limit."""
    gpus = pair()
    make_group(outcome, gpus)
    # The second GPU is CUDA's device 0.
    ordinal = {1: gpus[0], 0: gpus[1]}
    order = [1, 0]
    for way, short in (
        ("linear", SLACK),
        ("async", SLACK + POOL_STEPS),
        ("pool", SLACK + POOL_STEPS),
        ("vmm", 2 * SLACK),
    ):
        with judged_each(outcome, gpus, way) as judges:
            program = member(visible=both(gpus, reverse=True))
            program.reply(60)
            program.ask("start", devices=[0, 1])
            empty = [judge.settled()["sum_last"] for judge in judges]
            for device, judge in zip(order, judges):
                gpu, lines = ordinal[device], len(program.refusals())
                # Pools and physical memory of a GPU are used from the other GPU's context.
                user = 1 - device if way in ("pool", "vmm") else device
                found = program.ask("fill", way=way, device=device, user=user, most=3 * cap(gpu))
                outcome.figures[f"{way}_gpu{gpu.index}"] = found
                outcome.expect(
                    found.get("status") == OUT_OF_MEMORY, f"{way} on GPU {gpu.index}: {found}"
                )
                missing = cap(gpu) - judge.settled()["sum_peak"]
                outcome.expect(
                    missing <= short,
                    f"{way} on GPU {gpu.index}: refused {mib(missing)} before the cap",
                )
                refused = program.refusals()[lines:]
                outcome.expect(
                    refused and all(gpu.uuid()[:8] in line for line in refused),
                    f"{way}: the lines do not name {gpu.uuid()}: {refused[:2]}",
                )
                seen = program.ask("info", device=device)
                outcome.expect(
                    seen.get("total") == seen.get("device_total") == cap(gpu),
                    f"{way} on GPU {gpu.index}: the view is {seen}",
                )
                # The other GPU has room until its own turn.
                if device == order[0]:
                    other = program.ask("info", device=1 - device)
                    outcome.expect(
                        other.get("free", 0) > GIB,
                        f"{way}: a full GPU {gpu.index} fills the other one, too: {other}",
                    )
            for judge, gpu in zip(judges, gpus):
                compare_at_rest(outcome, judge, f"{way} gpu{gpu.index} full")
            freed = program.ask("free")
            outcome.expect(freed.get("status") == 0, f"{way}: giving back: {freed}")
            for judge, gpu, before in zip(judges, gpus, empty):
                left = judge.settled()["sum_last"] - before
                # Contexts that have mapped each other's memory may keep a little.
                outcome.figures[f"{way}_left_gpu{gpu.index}"] = left
                outcome.expect(
                    left <= 8 * MIB, f"{way}: {mib(left)} did not come back on GPU {gpu.index}"
                )
                compare_at_rest(outcome, judge, f"{way} gpu{gpu.index} freed")
            ended(outcome, program, way)
            outcome.key.append(
                f"{way} {' + '.join(mib(judge.read()['sum_peak']) for judge in judges)}"
            )


@check("several-peer", timeout=90)
def several_peer(outcome: Outcome) -> None:
    """Peer memory is charged where it lies, managed memory on the GPU that it names."""
    gpus = pair()
    make_group(outcome, gpus)
    size = 700 * MIB
    # In some virtual machines peer access does not transfer the data; the result must be the same
    # with and without gpulimit.
    alone = bare(
        python("several.py"), CUDA_VISIBLE_DEVICES=both(gpus), CUDA_DEVICE_ORDER="PCI_BUS_ID"
    )
    alone.reply(60)
    alone.ask("start", devices=[0, 1])
    plain = alone.ask("peer", first=0, second=1, size=size)
    alone.finish()
    with judged_each(outcome, gpus) as judges:
        program = member(visible=both(gpus))
        program.reply(60)
        program.ask("start", devices=[0, 1])
        empty = [judge.settled()["sum_last"] for judge in judges]
        copied = program.ask("peer", first=0, second=1, size=size)
        outcome.figures["peer"] = copied
        outcome.expect(copied == plain, f"the copy: {copied}, without gpulimit {plain}")
        for judge, gpu, before in zip(judges, gpus, empty):
            taken = judge.settled()["sum_last"] - before
            outcome.figures[f"peer_gpu{gpu.index}"] = taken
            outcome.expect(
                size <= taken <= size + 64 * MIB,
                f"GPU {gpu.index}: a buffer of {mib(size)} took {mib(taken)}",
            )
            compare_at_rest(outcome, judge, f"peer gpu{gpu.index}")
        # Both GPUs map the memory, and the limit of the GPU that holds it applies.
        for device, gpu in enumerate(gpus):
            answer = program.ask(
                "take", way="vmm", device=device, user=1 - device, size=cap(gpu) - size
            )
            outcome.expect(answer.get("status") == OUT_OF_MEMORY, f"GPU {gpu.index}: {answer}")
        free = [program.ask("info", device=device)["free"] for device in (0, 1)]
        managed = program.ask("managed", device=0, size=256 * MIB)
        outcome.expect(managed.get("status") == 0, f"managed memory: {managed}")
        after = [program.ask("info", device=device)["free"] for device in (0, 1)]
        outcome.figures["managed"] = {"before": free, "after": after}
        took = [before - now for before, now in zip(free, after)]
        outcome.expect(
            256 * MIB <= took[0] <= 280 * MIB and took[1] <= 24 * MIB,
            f"256 MiB of managed memory took {took}",
        )
        for judge, gpu in zip(judges, gpus):
            compare_at_rest(outcome, judge, f"managed gpu{gpu.index}")
        outcome.expect(program.ask("free").get("status") == 0, "giving back")
        for judge, gpu in zip(judges, gpus):
            compare_at_rest(outcome, judge, f"freed gpu{gpu.index}")
        ended(outcome, program, "peer")
    outcome.key.append(
        f"copies {'right' if copied.get('same') else 'wrong, as without gpulimit'},"
        f" {copied.get('mapped')} mapped, {mib(outcome.figures[f'peer_gpu{gpus[0].index}'])} each,"
        f" managed {mib(took[0])}"
    )


@check("several-located", timeout=60)
def several_located(outcome: Outcome) -> None:
    """Memory of a GPU on which the process has no context is charged there, by its own limit."""
    gpus = pair()
    make_group(outcome, gpus)
    with judged_each(outcome, gpus) as judges:
        program = member(visible=both(gpus))
        program.reply(60)
        program.ask("start", devices=[0])
        before = judges[0].settled()["sum_last"]
        peers = program.ask("peers").get("peers")
        outcome.figures["peers"] = peers
        # A stream can use a pool of another GPU only if it can map that GPU's memory.
        for way in ("vmm", "pool") if peers else ("vmm",):
            found = program.ask("fill", way=way, device=1, user=0, most=3 * cap(gpus[1]))
            outcome.figures[way] = found
            outcome.expect(found.get("status") == OUT_OF_MEMORY, f"{way}: {found}")
            outcome.expect(
                found.get("taken", 0) >= cap(gpus[1]) - GIB,
                f"{way}: refused after {mib(found.get('taken', 0))}",
            )
            shown = judges[1].settled()["sum_last"]
            outcome.figures[f"{way}_nvml"] = shown
            # NVML need not list a process without a context; if it does, the figures agree.
            if shown:
                compare_at_rest(outcome, judges[1], way)
            grown = judges[0].settled()["sum_last"] - before
            outcome.expect(
                grown <= 8 * MIB, f"{way}: {mib(grown)} more on the GPU with the context"
            )
            compare_at_rest(outcome, judges[0], f"{way}, the other GPU")
            outcome.expect(program.ask("free").get("status") == 0, f"{way}: giving back")
            outcome.key.append(f"{way} {mib(found.get('taken', 0))}, NVML {mib(shown)}")
        ended(outcome, program, "located")


@check("several-nvml", timeout=90)
def several_nvml(outcome: Outcome) -> None:
    """NVML under the preload shows the limit, use and group of each GPU."""
    gpus = pair()
    make_group(outcome, gpus)
    with judged_each(outcome, gpus) as judges:
        stranger = bare(python("driver.py"), CUDA_VISIBLE_DEVICES=gpus[0].uuid())
        stranger_pid = stranger.reply(60)["ready"]
        program, mate = member(visible=both(gpus, reverse=True)), member(visible=gpus[1].uuid())
        pid, mate_pid = program.reply(60)["ready"], mate.reply(60)["ready"]
        program.ask("start", devices=[0, 1])
        mate.ask("start", devices=[0])
        program.ask("take", way="linear", device=1, user=1, size=400 * MIB)
        program.ask("take", way="linear", device=0, user=0, size=200 * MIB)
        members = [{pid}, {pid, mate_pid}]
        # The figures are read before the stranger comes, which belongs to the judges' session, too.
        held = [
            {int(each): used for each, used in judge.settled()["last"].items()} for judge in judges
        ]
        started = stranger.ask("start")
        outcome.expect(started.get("status") == 0, f"the stranger: {started}")
        listed = judges[0].settled()["last"]
        outcome.expect(str(stranger_pid) in listed, f"NVML does not list the stranger: {listed}")
        for label, teller in (("both visible", program), ("one visible", mate)):
            told = {each["uuid"]: each for each in teller.ask("nvml").get("gpus", [])}
            outcome.figures[label] = told
            for gpu, who, true in zip(gpus, members, held):
                seen = told.get(gpu.uuid(), {})
                memory, memory_v2 = seen.get("memory", {}), seen.get("memory_v2", {})
                what = f"{label}, GPU {gpu.index}"
                outcome.expect(
                    memory.get("total") == memory_v2.get("total") == cap(gpu),
                    f"{what}: {memory} {memory_v2}",
                )
                outcome.expect(
                    memory.get("free", 0) + memory.get("used", 0) == cap(gpu), f"{what}: {memory}"
                )
                # The used memory includes 4 MiB charged in advance for each process, and the blocks
                # kept ready.
                over = memory.get("used", 0) - sum(true[each] for each in who)
                outcome.expect(
                    -EXACT <= over <= len(who) * 16 * MIB, f"{what}: used is {mib(over)} off NVML's"
                )
                processes = {int(each): used for each, used in seen.get("processes", {}).items()}
                outcome.expect(
                    processes == {each: true[each] for each in who},
                    f"{what}: {processes}, not {true} of {who}",
                )
        for each in (program, mate, stranger):
            ended(outcome, each, "nvml")
    outcome.key.append(
        f"{' and '.join(str(len(who)) for who in members)} members, the stranger hidden"
    )


@check("several-suspend", timeout=300)
def several_suspend(outcome: Outcome) -> None:
    """A process with memory on two GPUs is suspended; one with peer access is refused."""
    gpus = pair()
    make_group(outcome, gpus)
    for label in ("apart", "peers"):
        with programs_of_check() as programs, judged_each(outcome, gpus, label) as judges:
            program = member(visible=both(gpus))
            programs.append(program)
            program.reply(30)
            program.ask("start", devices=[0, 1])
            if label == "peers":
                if not program.ask("peers").get("peers"):
                    outcome.key.append("the GPUs are no peers")
                    ended(outcome, program, label)
                    continue
                # In some virtual machines the copies are wrong, also without gpulimit.
                copied = program.ask("peer", first=0, second=1, size=100 * MIB)
                outcome.expect("error" not in copied, f"{label}: {copied}")
            for device in (0, 1):
                found = program.ask("mark", device=device, size=GIB)
                outcome.expect("error" not in found, f"{label}: {found}")
            intact = {"wrong": 0, "right": 2 * GIB // (16 * MIB)}
            held = sum(judge.settled()["sum_last"] for judge in judges)
            down = move("suspend", NAME, timeout=60)
            outcome.figures[label] = {"held": held, "suspend": down.__dict__}
            if label == "peers":
                outcome.expect(
                    down.status != 0 and "access memory of another GPU" in down.errors,
                    f"{label}: {down}",
                )
                outcome.key.append(f"{label} refused")
            else:
                outcome.expect(
                    down.states == {program.pid: "suspended"}, f"{label}: suspended: {down}"
                )
                left = [judge.settled()["sum_last"] for judge in judges]
                outcome.expect(left == [0, 0], f"{label}: NVML lists {left}")
                up = move("resume", NAME, timeout=60)
                outcome.figures[label]["resume"] = up.__dict__
                if up.states != {program.pid: "running"}:
                    raise RuntimeError(f"{label}: resumed: {up}")
                outcome.key.append(
                    f"{label} {mib(held)}: down {down.seconds:.2f} s, up {up.seconds:.2f} s"
                )
            found = program.ask("marked")
            outcome.expect(found == intact, f"{label}: the contents: {found}")
            if label == "peers":
                found = program.ask("peer", first=0, second=1, size=100 * MIB)
                outcome.expect(found == copied, f"{label}, afterwards: {found}")
            for judge, gpu in zip(judges, gpus):
                compare_at_rest(outcome, judge, f"{label} gpu{gpu.index}, afterwards")
            ended(outcome, program, label)


@check("several-torch", timeout=150, needs=("torch",))
def several_torch(outcome: Outcome) -> None:
    """PyTorch on cuda:0 and cuda:1 with different limits: views, fills and copies."""
    gpus = pair()
    make_group(outcome, gpus)
    for label, configuration in (("default", ""), ("expandable", "expandable_segments:True")):
        variables = (
            {"PYTORCH_CUDA_ALLOC_CONF": configuration, "PYTORCH_ALLOC_CONF": configuration}
            if configuration
            else {}
        )
        with judged_each(outcome, gpus, label) as judges:
            program = member("torch_several.py", both(gpus), None, **variables)
            program.reply(90)
            started = program.ask("start", devices=[0, 1])
            outcome.expect(started.get("sums") == [512.0**3] * 2, f"{label}: kernels: {started}")
            copied = program.ask("copy", first=0, second=1, size=100 * MIB)
            outcome.expect(copied.get("same"), f"{label}: the copy: {copied}")
            for device, (gpu, judge) in enumerate(zip(gpus, judges)):
                seen = program.ask("info", device=device)
                outcome.expect(
                    seen.get("total") == seen.get("total_memory") == cap(gpu)
                    and seen.get("uuid") == gpu.uuid(),
                    f"{label}, cuda:{device}: {seen}",
                )
                found = program.ask("fill", 90, device=device)
                outcome.figures[f"{label}_cuda{device}"] = found
                outcome.expect(
                    found.get("is_torch_oom"),
                    f"{label}, cuda:{device}: {found.get('exception')}: {found.get('text')}",
                )
                missing = cap(gpu) - judge.settled()["sum_peak"]
                outcome.expect(
                    missing <= SLACK,
                    f"{label}, cuda:{device}: refused {mib(missing)} before the cap",
                )
            for judge, gpu in zip(judges, gpus):
                compare_at_rest(outcome, judge, f"{label} gpu{gpu.index} full")
            program.ask("free")
            for judge, gpu in zip(judges, gpus):
                compare_at_rest(outcome, judge, f"{label} gpu{gpu.index} freed")
            ended(outcome, program, label)
            outcome.key.append(
                f"{label} {' + '.join(mib(judge.read()['sum_peak']) for judge in judges)}"
            )
