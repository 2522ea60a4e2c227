//! GPUs split into MIG instances: each instance has its own memory, UUID and limit.

use gpulimit_base::units::Size;
use gpulimit_limits::{Key, LimitSet, Selector};
use gpulimit_programs::world::{self, CONTEXT, GROUP, MIB, Session, World, eventually, text};

const CAP: u64 = 1024 * MIB;
const RESERVE: u64 = 4 * MIB;

/// Two GPUs with two instances each, which NVML calls 0.0, 0.1, 1.0 and 1.1.
const CUT: [(&str, &str); 2] = [("GPULIMIT_SIM_GPUS", "2"), ("GPULIMIT_SIM_MIG", "2")];
const NAMES: [&str; 4] = ["0.0", "0.1", "1.0", "1.1"];

fn uuids(world: &World) -> Vec<String> {
    let gpus = world.machine().gpus();
    let uuids: Vec<_> = gpus.into_iter().map(|gpu| gpu.uuid).collect();
    assert!(uuids.iter().all(|uuid| uuid.starts_with("MIG-")));
    assert_eq!(uuids.len(), 4);
    uuids
}

/// Returns the limit of an instance; each instance has another one.
fn cap(instance: usize) -> u64 {
    CAP + instance as u64 * 100 * MIB
}

fn limited() -> World {
    let world = World::without_group(&CUT);
    let mut limits = LimitSet::default();
    for (instance, uuid) in uuids(&world).iter().enumerate() {
        let id = uuid.parse().expect("a UUID");
        limits.set(Selector::Device(id), Key::Max, Size::Bytes(cap(instance)));
    }
    world.root().create(GROUP, &limits).expect("a group");
    world
}

/// Starts a program of the group that selects an instance.
fn within(world: &World, instance: usize) -> Session {
    let mut command = world.limited(world::program());
    command.env("CUDA_VISIBLE_DEVICES", &uuids(world)[instance]);
    let mut program = Session::start(command);
    assert_eq!(program.say("start"), "0 0");
    program
}

#[test]
fn every_instance_has_the_limit_of_its_uuid() {
    for (instance, name) in NAMES.into_iter().enumerate() {
        let world = limited();
        let mut program = within(&world, instance);
        let cap = cap(instance);
        let left = cap - CONTEXT - RESERVE;
        program.expect(&[
            ("total 0", &format!("0 {cap}")),
            ("total 1", "101 0"),
            ("info", &format!("0 {left} {cap}")),
            (&format!("alloc a {}", left + 2 * MIB), "2"),
            (&format!("alloc a {left}"), "0"),
            ("info", &format!("0 0 {cap}")),
        ]);
        world.judge_gpu(instance, cap);
        let used = cap - RESERVE;
        assert_eq!(world.machine().gpu(instance).used, used);
        for (other, name) in NAMES.into_iter().enumerate() {
            let total = program.numbers(&format!("nvml {name}"))[2];
            assert_eq!(total, self::cap(other), "{name}");
        }
        let answer = program.numbers(&format!("nvml {name}"));
        assert_eq!(answer, [0, 0, cap, 0, cap, 0, cap, 0, 0, cap]);
        let pid = program.pid();
        program.expect(&[
            (&format!("nvml-own {name}"), &format!("0 {used}")),
            (
                &format!("processes {name} Compute v3 4"),
                &format!("0 1 {pid} {used}"),
            ),
        ]);
        let (_, errors) = program.end();
        let short = &uuids(&world)[instance][..8];
        assert!(
            errors.contains(&format!("on GPU {short}\u{2026}: ")),
            "{errors}"
        );
        world.settle();
    }
}

#[test]
fn instances_of_one_gpu_are_charged_separately() {
    let world = limited();
    let (mut one, mut two) = (within(&world, 2), within(&world, 3));
    one.expect(&[("alloc a 500M", "0"), ("alloc b 400M", "2")]);
    two.expect(&[("alloc a 300M", "0"), ("alloc b 400M", "0")]);
    for instance in 0..4 {
        world.judge_gpu(instance, cap(instance));
    }
    let used = [0, 0, CONTEXT + 500 * MIB, CONTEXT + 700 * MIB];
    assert_eq!(
        world
            .machine()
            .gpus()
            .iter()
            .map(|gpu| gpu.used)
            .collect::<Vec<_>>(),
        used
    );
    one.end();
    two.end_quietly();
    world.settle();
}

#[test]
fn the_gpu_of_the_instances_shows_the_drivers_figures() {
    let world = limited();
    let mut program = within(&world, 2);
    let mut mate = within(&world, 3);
    mate.expect(&[("alloc a 10M", "0")]);
    let mut command = world.bare(world::program());
    command.env("CUDA_VISIBLE_DEVICES", &uuids(&world)[3]);
    let mut stranger = Session::start(command);
    stranger.expect(&[("start", "0 0"), ("alloc a 100M", "0")]);
    for gpu in ["nvml 0", "nvml 1"] {
        assert_eq!(program.say(gpu), stranger.say(gpu), "the sums of {gpu}");
    }
    // The lists show only the group's processes in the instances.
    let mut ours = [(program.pid(), CONTEXT), (mate.pid(), CONTEXT + 10 * MIB)];
    ours.sort_unstable();
    let [(first, a), (second, b)] = ours;
    for version in ["v1", "v2", "v3", "details"] {
        program.expect(&[(
            &format!("processes 1 Compute {version} 8"),
            &format!("0 2 {first} {a} {second} {b}"),
        )]);
        assert_eq!(
            stranger.numbers(&format!("processes 1 Compute {version} 8"))[..2],
            [0, 3]
        );
    }
    drop(stranger);
    program.end_quietly();
    mate.end_quietly();
}

#[test]
fn a_limit_for_all_devices_holds_for_each_instance() {
    let world = World::with(CAP, &CUT);
    for instance in [1, 2] {
        let mut program = within(&world, instance);
        program.expect(&[
            ("total 0", &format!("0 {CAP}")),
            ("alloc a 600M", "2"),
            ("alloc a 400M", "0"),
        ]);
        world.judge(CAP);
        program.end();
        world.settle();
    }
}

#[test]
fn a_job_limits_an_instance_by_its_uuid() {
    let world = World::without_group(&CUT);
    let uuids = uuids(&world);
    let start = |max: &str| {
        let mut command = world.preloaded(world::program());
        command
            .env("GPULIMIT_MAX", max)
            .env("CUDA_VISIBLE_DEVICES", &uuids[1]);
        Session::start(command)
    };
    for name in ["0", &uuids[1], &uuids[1][..12]] {
        let mut program = start(&format!("{name}=1G"));
        program.expect(&[
            ("start", "0 0"),
            ("total 0", &format!("0 {CAP}")),
            ("alloc a 600M", "2"),
        ]);
        assert_eq!(program.numbers("nvml 0.1")[2], CAP, "{name}");
        assert!(world.machine().gpu(1).peak <= CAP);
        program.end();
        assert!(eventually(|| world.machine().gpu(1).used == 0));
    }
    // A limit for another instance gives this one no memory, rather than no limit.
    let mut program = start(&format!("{}=1G", &uuids[0][..12]));
    assert_eq!(program.say("start"), "0 800");
    let (_, errors) = program.end();
    assert!(errors.contains(&uuids[0][..12]), "{errors}");
}

#[test]
fn the_controller_names_the_instances_of_a_split_gpu() {
    let world = limited();
    let uuids = uuids(&world);
    let controller = |arguments: &[&str]| {
        let mut command = world.bare(&world::controller());
        command
            .env("GPULIMIT_LIBRARY", world::shim())
            .args(arguments);
        world::finish(command)
    };
    let before = world.group().limits().expect("limits").rules();
    let before = before.expect("rules");
    let max = "max=900M";
    let bus = "0000:28:00.0";
    let gpu = doctor_gpu(&text(&controller(&["doctor"]).stdout), 1);
    for name in ["1", bus, &gpu, &gpu[..12]] {
        for arguments in [
            &["set", GROUP, max, "--device", name][..],
            &["run", "--max", "900M", "--device", name, "--", "true"],
        ] {
            let output = controller(arguments);
            let errors = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
            for (instance, uuid) in uuids.iter().enumerate() {
                assert_eq!(errors.contains(uuid), instance >= 2, "{errors}");
            }
        }
    }
    let rules = || world.group().limits().expect("limits").rules();
    assert_eq!(rules().expect("rules"), before);
    // A limit can be set for the instance itself, by its UUID or the beginning of the UUID.
    for name in [&*uuids[3], &uuids[3][..12]] {
        let output = controller(&["set", GROUP, max, "--device", name]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(within(&world, 3).numbers("total 0"), [0, 900 * MIB]);
        let output = controller(&["set", GROUP, "max=950M", "--device", name]);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let last = if uuids[3].ends_with('0') { "1" } else { "0" };
    let wrong = format!("{}{last}", &uuids[3][..39]);
    let output = controller(&["set", GROUP, max, "--device", &wrong]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains(&uuids[0]));
}

/// Returns the UUID that `gpulimit doctor` shows for the GPU with this index.
fn doctor_gpu(said: &str, index: u32) -> String {
    let line = said
        .lines()
        .find(|line| line.contains(&format!(" {index} GPU-")));
    let line = line.unwrap_or_else(|| panic!("no GPU {index}: {said}"));
    let uuid = line
        .split_whitespace()
        .find(|word| word.starts_with("GPU-"));
    uuid.expect("a UUID").to_owned()
}

#[test]
fn a_percentage_is_a_share_of_the_instance() {
    let world = World::without_group(&CUT);
    let mut program = {
        let mut command = world.preloaded(world::program());
        command.env("GPULIMIT_MAX", "50%");
        Session::start(command)
    };
    program.expect(&[("start", "0 0")]);
    // An instance has an equal part of the GPU, in whole blocks of 2 MiB.
    let instance = 85_017_493_504u64 / 2 / (2 * MIB) * (2 * MIB);
    let total = program.numbers("total 0")[1];
    assert_eq!(total, instance / 2);
    assert_eq!(program.numbers("nvml 0.0")[2], total);
    program.end_quietly();
}
