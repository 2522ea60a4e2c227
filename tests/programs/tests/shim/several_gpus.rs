//! Each limit holds on its own GPU, in whatever order a program sees the GPUs, and whichever it
//! sees.

use gpulimit_base::units::Size;
use gpulimit_limits::{Key, LimitSet, Selector};
use gpulimit_programs::world::{self, GROUP, MIB, Session, World, finish, text};
use serde_json::Value;

/// The size of a context on the machines of these tests.
const CONTEXT: u64 = 10 * MIB;
/// Bytes charged in advance for the driver's own needs.
const RESERVE: u64 = 4 * MIB;

/// Returns the limit of a GPU by its number in NVML; each GPU has another one.
fn cap(gpu: usize) -> u64 {
    (100 + 20 * gpu as u64) * MIB
}

/// Returns the bus id of a GPU of the simulated machine.
fn bus(gpu: usize) -> String {
    format!("0000:{:02X}:00.0", 0x1b + 0x0d * gpu)
}

fn machine(count: usize, reversed: bool) -> World {
    World::without_group(&[
        ("GPULIMIT_SIM_GPUS", &count.to_string()),
        ("GPULIMIT_SIM_CONTEXT_BYTES", &CONTEXT.to_string()),
        ("GPULIMIT_SIM_REVERSED", if reversed { "1" } else { "0" }),
    ])
}

/// Makes a group with a limit for each GPU.
fn limit_each(world: &World) {
    let mut limits = LimitSet::default();
    for (gpu, truth) in world.machine().gpus().iter().enumerate() {
        let id = truth.uuid.parse().expect("a UUID");
        limits.set(Selector::Device(id), Key::Max, Size::Bytes(cap(gpu)));
    }
    world.root().create(GROUP, &limits).expect("a group");
}

fn start(world: &World, variables: &[(&str, &str)]) -> Session {
    let mut command = world.limited(world::program());
    command.envs(variables.iter().copied());
    Session::start(command)
}

/// Fills every GPU that the program sees up to the GPU's limit; `order` has their numbers in NVML.
#[track_caller]
fn check(world: &World, mut program: Session, order: &[usize]) {
    let pid = program.pid();
    program.expect(&[("init", "0")]);
    for (ordinal, &gpu) in order.iter().enumerate() {
        let cap = cap(gpu);
        let left = cap - CONTEXT - RESERVE;
        program.expect(&[
            (&format!("bus {ordinal}"), &format!("0 {}", bus(gpu))),
            (&format!("total {ordinal}"), &format!("0 {cap}")),
            (&format!("retain {ordinal}"), "0"),
            (&format!("current {ordinal}"), "0"),
            ("info", &format!("0 {left} {cap}")),
            ("alloc some 8M", "0"),
            (&format!("alloc rest {}", left - 4 * MIB), "2"),
            (&format!("alloc rest {}", left - 10 * MIB), "0"),
            ("info", &format!("0 {} {cap}", 2 * MIB)),
        ]);
    }
    program.expect(&[(&format!("total {}", order.len()), "101 0")]);
    for (gpu, truth) in world.machine().gpus().iter().enumerate() {
        let used = if order.contains(&gpu) {
            world.judge_gpu(gpu, cap(gpu));
            cap(gpu) - RESERVE - 2 * MIB
        } else {
            0
        };
        assert_eq!((truth.used, truth.peak), (used, used), "GPU {gpu}");
        // NVML has its own numbers, and shows hidden GPUs, too.
        let answer = program.numbers(&format!("nvml {gpu}"));
        assert_eq!(answer[2], cap(gpu), "GPU {gpu}");
        let shown = match used {
            0 => "0 0".to_owned(),
            used => format!("0 1 {pid} {used}"),
        };
        program.expect(&[(&format!("processes {gpu} Compute v3 8"), &shown)]);
    }
    let (status, errors) = program.end();
    assert!(status.success(), "{status:?} {errors}");
    world.settle();
}

/// Asserts that a program with these variables sees the GPUs in this order.
#[track_caller]
fn sees(count: usize, reversed: bool, variables: &[(&str, &str)], order: &[usize]) {
    let world = machine(count, reversed);
    limit_each(&world);
    let program = start(&world, variables);
    check(&world, program, order);
}

const BY_BUS: (&str, &str) = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
const BY_SPEED: (&str, &str) = ("CUDA_DEVICE_ORDER", "FASTEST_FIRST");

fn visible(list: &str) -> (&'static str, &str) {
    ("CUDA_VISIBLE_DEVICES", list)
}

#[test]
fn limits_hold_on_two_gpus_in_every_order() {
    sees(2, false, &[], &[0, 1]);
    sees(2, true, &[], &[1, 0]);
    sees(2, true, &[BY_SPEED], &[1, 0]);
    sees(2, true, &[BY_BUS], &[0, 1]);
    sees(2, false, &[visible("1,0")], &[1, 0]);
    sees(2, true, &[visible("1,0")], &[0, 1]);
    sees(2, true, &[visible("1"), BY_BUS], &[1]);
    sees(2, true, &[visible("1")], &[0]);
}

#[test]
fn limits_hold_on_eight_gpus_in_many_orders() {
    let all = [0, 1, 2, 3, 4, 5, 6, 7];
    let reversed = [7, 6, 5, 4, 3, 2, 1, 0];
    sees(8, false, &[], &all);
    sees(8, true, &[], &reversed);
    sees(8, true, &[BY_BUS], &all);
    sees(8, false, &[visible("7,6,5,4,3,2,1,0")], &reversed);
    sees(8, true, &[visible("3,1,6")], &[4, 6, 1]);
    sees(8, true, &[visible("3,1,6"), BY_BUS], &[3, 1, 6]);
    sees(8, true, &[visible(" 5 , 2"), BY_BUS], &[5, 2]);
}

#[test]
fn gpus_can_be_selected_by_uuid_and_its_beginning() {
    let world = machine(8, true);
    let uuids: Vec<_> = world
        .machine()
        .gpus()
        .into_iter()
        .map(|gpu| gpu.uuid)
        .collect();
    drop(world);
    let both = format!("{},{}", uuids[6], uuids[2]);
    sees(8, true, &[visible(&both)], &[6, 2]);
    let beginnings = format!("{},{}", &uuids[3][..12], &uuids[7][..12]);
    sees(8, false, &[visible(&beginnings)], &[3, 7]);
    // Numbers follow the program's order; UUIDs do not depend on it.
    let mixed = format!("0,{},1", uuids[4]);
    sees(8, true, &[visible(&mixed)], &[7, 4, 6]);
}

#[test]
fn a_destroyed_context_is_uncharged_on_its_own_gpu() {
    let world = machine(2, false);
    limit_each(&world);
    let mut program = start(&world, &[]);
    program.expect(&[
        ("start", "0 0"),
        ("context c 1 v2", "0"),
        ("alloc a 20M", "0"),
        ("pop", "0"),
    ]);
    let judge = |used| {
        assert_eq!(world.machine().gpu(1).used, used);
        world.judge_gpu(0, cap(0));
        world.judge_gpu(1, cap(1));
    };
    judge(CONTEXT + 20 * MIB);
    program.expect(&[("destroy c", "0")]);
    judge(0);
    program.end_quietly();
}

/// The ledger lists GPUs in the order of their first use.
#[test]
fn the_controller_lists_gpus_in_the_order_of_nvml_and_selects_them_by_every_name() {
    let world = machine(3, false);
    limit_each(&world);
    let mut program = start(&world, &[visible("2")]);
    program.expect(&[("start", "0 0")]);
    let shown = |arguments: &[&str]| -> Vec<u64> {
        let mut command = world.bare(&world::controller());
        command.args(arguments).arg("--json");
        let said = text(&finish(command).stdout);
        let json: Value = serde_json::from_str(&said).expect("JSON");
        let gpus = json["groups"][0]["gpus"].as_array().expect("gpus");
        let index = |gpu: &Value| gpu["index"].as_u64().expect("an index");
        gpus.iter().map(index).collect()
    };
    let uuid = world.machine().gpus()[1].uuid.clone();
    assert_eq!(shown(&["show"]), [0, 1, 2]);
    for name in ["1", &uuid, &uuid[..12], &bus(1)] {
        assert_eq!(shown(&["show", "--device", name]), [1], "{name}");
    }
    assert_eq!(shown(&["show", "--device", "2", "--device", "0"]), [0, 2]);
    assert_eq!(shown(&["show", "--tree", "--device", "all"]), [0, 1, 2]);
    program.end_quietly();
}

#[test]
fn rows_of_a_group_are_in_the_order_of_nvml_whatever_gpu_was_used_first() {
    let world = machine(4, false);
    limit_each(&world);
    let mut program = start(&world, &[visible("2,3,1,0")]);
    program.expect(&[("init", "0")]);
    for ordinal in 0..4 {
        let retain = format!("retain {ordinal}");
        let current = format!("current {ordinal}");
        program.expect(&[(&retain, "0"), (&current, "0"), ("alloc some 8M", "0")]);
    }
    let shown = |arguments: &[&str]| -> Vec<String> {
        let mut command = world.bare(&world::controller());
        command.args(arguments);
        let said = text(&finish(command).stdout);
        let mut lines = said.lines().map(|line| line.split_whitespace());
        let heads = lines.next().expect("heads");
        let gpu = heads
            .into_iter()
            .position(|head| head == "GPU")
            .expect("a GPU");
        let cells = lines.filter_map(|mut cells| cells.nth(gpu));
        cells.map(str::to_owned).collect()
    };
    for arguments in [
        &["show"][..],
        &["ps"],
        &["report"],
        &["report", "--by", "user"],
        &["report", "--since", "1h"],
    ] {
        let gpus = shown(arguments);
        assert_eq!(gpus[..4], ["0", "1", "2", "3"], "{arguments:?}: {gpus:?}");
    }
    program.end_quietly();
}

#[test]
fn an_invalid_entry_ends_the_list_of_visible_gpus() {
    sees(8, false, &[visible("2,9,0")], &[2]);
    sees(8, true, &[visible("1,-1,0")], &[6]);
    sees(8, true, &[visible("4,GPU-zz,0"), BY_BUS], &[4]);
}

#[test]
fn an_empty_list_of_gpus_gets_the_drivers_answer() {
    for list in ["1,1", "-1", "", "9,0"] {
        let world = machine(2, false);
        limit_each(&world);
        let mut program = start(&world, &[visible(list)]);
        program.expect(&[("init", "100"), ("total 0", "3 0")]);
        // NVML does not depend on the list.
        assert_eq!(program.numbers("nvml 1")[2], cap(1));
        program.end_quietly();
    }
}

/// Asserts that these limits of a job hold on the GPUs of `order`.
#[track_caller]
fn asks(max: &str, variables: &[(&str, &str)], order: &[usize]) {
    let world = machine(8, true);
    let mut command = world.preloaded(world::program());
    command
        .env("GPULIMIT_MAX", max)
        .envs(variables.iter().copied());
    let mut program = Session::start(command);
    program.expect(&[("init", "0")]);
    for (ordinal, &gpu) in order.iter().enumerate() {
        program.expect(&[
            (&format!("bus {ordinal}"), &format!("0 {}", bus(gpu))),
            (&format!("total {ordinal}"), &format!("0 {}", cap(gpu))),
            (&format!("retain {ordinal}"), "0"),
            (&format!("current {ordinal}"), "0"),
            ("alloc a 300M", "2"),
            ("alloc a 80M", "0"),
        ]);
        world.judge_gpu(gpu, cap(gpu));
        assert_eq!(
            program.numbers(&format!("nvml {gpu}"))[2],
            cap(gpu),
            "GPU {gpu}"
        );
    }
    program.end();
    world.settle();
}

#[test]
fn a_job_limits_gpus_by_number_and_by_uuid() {
    let size = |gpu| format!("{}M", cap(gpu) / MIB);
    // The number is the one that the program itself uses.
    asks(
        &format!("0={},1={}", size(7), size(6)),
        &[visible("0,1")],
        &[7, 6],
    );
    asks(
        &format!("1={},0={}", size(1), size(5)),
        &[visible("5,1"), BY_BUS],
        &[5, 1],
    );
    let uuids: Vec<_> = machine(8, true)
        .machine()
        .gpus()
        .into_iter()
        .map(|gpu| gpu.uuid)
        .collect();
    asks(
        &format!("{}={},{}={}", uuids[2], size(2), &uuids[5][..12], size(5)),
        &[visible("2,5")],
        &[5, 2],
    );
    asks(
        &format!("{}={},all={}", &uuids[3][..12], size(3), size(4)),
        &[visible("3,4")],
        &[4, 3],
    );
}

#[test]
fn set_accepts_bus_ids_indices_and_uuids() {
    let world = machine(8, true);
    limit_each(&world);
    let gpus = world.machine().gpus();
    let set = |gpu: &str, bytes: u64| {
        let mut command = world.bare(&world::controller());
        let max = format!("max={}M", bytes / MIB);
        command.args(["set", GROUP, &max, "--device", gpu]);
        let output = world::finish(command);
        assert!(output.status.success(), "{}", text(&output.stderr));
    };
    let more = 400 * MIB;
    set(&bus(1), more);
    set("2", 2 * more);
    set(&gpus[3].uuid[..12], 3 * more);
    let mut program = start(&world, &[visible("6,5,4,3")]);
    program.expect(&[
        ("init", "0"),
        ("total 0", &format!("0 {more}")),
        ("total 1", &format!("0 {}", 2 * more)),
        ("total 2", &format!("0 {}", 3 * more)),
        ("total 3", &format!("0 {}", cap(4))),
    ]);
    program.end_quietly();
}

/// Memory allocated in a stream is charged on the stream's GPU, whichever GPU is current.
#[test]
fn stream_ordered_memory_is_charged_on_the_streams_gpu() {
    let world = machine(2, false);
    limit_each(&world);
    let mut program = start(&world, &[]);
    program.expect(&[
        ("init", "0"),
        ("retain 0", "0"),
        ("retain 1", "0"),
        ("current 0", "0"),
        ("stream s", "0"),
        ("current 1", "0"),
        ("async a 30M s", "0"),
    ]);
    for (gpu, pools) in [(0, 32), (1, 0)] {
        world.judge_gpu(gpu, cap(gpu));
        assert_eq!(world.machine().gpu(gpu).used, CONTEXT + pools * MIB);
    }
    program.end();
    world.settle();
}
