//! Tests of groups on disk and of joining them: the safety of the root, permissions, membership,
//! removal and the environment.

#[path = "../../../tests/groups/nothing.rs"]
mod nothing;
#[path = "../../../tests/groups/place.rs"]
mod place;

use gpulimit_base::device::DeviceId;
use gpulimit_base::units::{Extent, Size};
use gpulimit_group::{Fault, Group, GroupError, Insistence, Kind, Member, MemberDevice, Root};
use gpulimit_limits::{Key, LimitSet, Selector};
use gpulimit_policy::{self as policy, Assignment, PolicyError, RequestSelector};
use nothing::Nothing;
use place::Place;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

const A: DeviceId = DeviceId::gpu([0x11; 16]);
const B: DeviceId = DeviceId::gpu([0x12; 16]);
const CAPACITY: u64 = 80 << 30;
const GIB: u64 = 1 << 30;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("there").permissions().mode() & 0o7777
}

fn names(groups: Vec<Group>) -> Vec<String> {
    groups.iter().map(|group| group.name().to_owned()).collect()
}

fn set(size: u64) -> LimitSet {
    LimitSet::all(Size::Bytes(size))
}

fn device(member: &Member) -> MemberDevice<'_> {
    member.device(A, CAPACITY).expect("a device")
}

// Tests of the root.

#[test]
fn looking_does_not_make_the_root_but_the_first_group_does() {
    let place = Place::new();
    let root = place.root();
    assert!(!root.exists());
    assert_eq!(root.groups().expect("listed"), []);
    assert_eq!(
        root.collect_garbage().expect("collected"),
        Vec::<String>::new()
    );
    assert!(!root.exists());
    root.create("lab", &set(GIB)).expect("created");
    assert_eq!(mode(root.path()), 0o700);
    assert_eq!(names(root.groups().expect("listed")), ["lab"]);
}

#[test]
fn permissions_are_those_of_a_private_or_of_a_system_root() {
    for (root_mode, expected) in [
        (0o700, [0o700, 0o600, 0o600]),
        (0o755, [0o755, 0o644, 0o600]),
    ] {
        let place = Place::new();
        fs::DirBuilder::new()
            .create(place.root_path())
            .expect("created");
        fs::set_permissions(place.root_path(), fs::Permissions::from_mode(root_mode)).expect("set");
        let group = place
            .root()
            .create("lab", &set(GIB))
            .expect("created")
            .group;
        let modes = [group.path(), &group.limits_path(), &group.ledger_path()].map(mode);
        // A root serves all users of the machine only if its directory belongs to the user root.
        let by_root =
            std::os::unix::fs::MetadataExt::uid(&fs::metadata(&place.0).expect("there")) == 0;
        if root_mode == 0o700 || by_root {
            assert_eq!(modes, expected);
        } else {
            assert_eq!(modes, [0o700, 0o600, 0o600]);
        }
    }
}

#[test]
fn a_root_that_others_could_change_is_refused() {
    let refused = |path: &Path| match Root::at(path) {
        Err(error @ GroupError::Unsafe { .. }) => {
            assert!(
                error.to_string().contains(&path.display().to_string()),
                "{error}"
            );
            let GroupError::Unsafe { why, .. } = error else {
                unreachable!()
            };
            why
        }
        other => panic!("{other:?}"),
    };
    let place = Place::new();
    let path = place.root_path();
    symlink("/tmp", &path).expect("linked");
    assert_eq!(refused(&path), Fault::Symlink);
    fs::remove_file(&path).expect("removed");
    fs::write(&path, "").expect("written");
    assert_eq!(refused(&path), Fault::NotDirectory);
    fs::remove_file(&path).expect("removed");
    fs::create_dir(&path).expect("created");
    for mode in [0o770, 0o707, 0o722] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
        assert_eq!(refused(&path), Fault::Writable(mode));
    }
}

#[test]
fn the_root_comes_from_the_environment() {
    let locate = |value: Option<&str>| {
        let value = value.map(OsString::from);
        Root::locate(&move |name| {
            if name == "GPULIMIT_ROOT" {
                value.clone()
            } else {
                None
            }
        })
    };
    let place = Place::new();
    let path = place.root_path();
    assert_eq!(locate(path.to_str()).expect("located").path(), path);
    for wrong in ["", "here", "./here"] {
        assert!(
            locate(Some(wrong))
                .expect_err(wrong)
                .to_string()
                .contains("absolute")
        );
    }
    if !Path::new(gpulimit_group::SYSTEM).exists() {
        let path = locate(None).expect("located").path().display().to_string();
        let shared = path.starts_with("/dev/shm/gpulimit-");
        assert!(shared || path == gpulimit_group::SYSTEM, "{path}");
    }
}

// Tests of groups.

#[test]
fn a_group_that_exists_keeps_its_limits() {
    let place = Place::new();
    let root = place.root();
    assert!(root.create("lab", &set(GIB)).expect("created").new);
    assert!(!root.create("lab", &set(2 * GIB)).expect("found").new);
    let rules = root
        .group("lab")
        .expect("there")
        .limits()
        .expect("read")
        .rules();
    assert_eq!(rules.expect("rules"), set(GIB));
}

#[test]
fn concurrent_creation_makes_one_group() {
    let place = Place::new();
    let root = place.root();
    let made: u32 = std::thread::scope(|scope| {
        let create = |n: u64| {
            let root = &root;
            scope.spawn(move || u32::from(root.create("lab", &set(n * GIB)).expect("created").new))
        };
        let all: Vec<_> = (1..=16).map(create).collect();
        all.into_iter()
            .map(|one| one.join().expect("no panic"))
            .sum()
    });
    assert_eq!(made, 1);
    let left = fs::read_dir(root.path().join("lab"))
        .expect("listed")
        .count();
    // The group's directory holds four entries: limits, ledger, lock and sub.
    assert_eq!(left, 4, "no temporary file stays behind");
}

#[test]
fn an_incomplete_group_is_completed() {
    let place = Place::new();
    let root = place.root();
    root.create("lab", &set(GIB)).expect("created");
    fs::remove_file(root.path().join("lab/ledger")).expect("removed");
    assert_eq!(root.leftovers().expect("listed"), [root.path().join("lab")]);
    assert!(Member::join(&root, "lab").is_err());
    root.create("lab", &set(GIB)).expect("made whole");
    Member::join(&root, "lab").expect("joined");
}

#[test]
fn removal_neither_waits_nor_takes_a_group_in_use() {
    let place = Place::new();
    let root = place.root();
    let created = root.create("lab", &set(GIB)).expect("created");
    assert!(
        matches!(root.remove("lab"), Err(GroupError::InUse { .. })),
        "held"
    );
    drop(created);
    let member = Member::join(&root, "lab").expect("joined");
    assert!(
        matches!(root.remove("lab"), Err(GroupError::InUse { .. })),
        "a member"
    );
    assert!(!member.is_orphaned());
    drop(member);
    root.remove("lab").expect("removed");
    assert_eq!(fs::read_dir(root.path()).expect("listed").count(), 0);
    assert!(matches!(
        root.remove("lab"),
        Err(GroupError::Missing { .. })
    ));
}

#[test]
fn garbage_is_groups_of_ended_jobs() {
    let place = Place::new();
    let root = place.root();
    for name in ["lab", "run-1-1", "run-2-2", "job-3-3", "job-4-4"] {
        root.create(name, &set(GIB)).expect("created");
    }
    let _held = root.group("run-2-2").expect("there").hold().expect("held");
    let _member = Member::join(&root, "job-4-4").expect("joined");
    fs::create_dir(root.path().join("job-5-5")).expect("created");
    assert_eq!(
        root.collect_garbage().expect("collected"),
        ["run-1-1", "job-5-5", "job-3-3"]
    );
    assert_eq!(
        names(root.groups().expect("listed")),
        ["job-4-4", "lab", "run-2-2"]
    );
    assert_eq!(Kind::of("lab"), Kind::Named);
}

#[test]
fn joining_and_removing_at_once_never_leaves_a_member_outside() {
    const ROUNDS: usize = 500;
    let place = Place::new();
    let root = place.root();
    std::thread::scope(|scope| {
        let join = || {
            for _ in 0..ROUNDS {
                let created = loop {
                    match root.create("job-1-1", &set(GIB)) {
                        Err(GroupError::Held { .. }) => {}
                        created => break created.expect("created"),
                    }
                };
                let member = Member::join(&root, "job-1-1").expect("joined");
                drop(created);
                assert!(!member.is_orphaned());
                let free = device(&member).free();
                assert!(free <= GIB, "{free}");
                assert!(!member.is_orphaned());
            }
        };
        let joining = [0; 3].map(|_| scope.spawn(join));
        let mut removed = 0;
        while !joining.iter().all(|thread| thread.is_finished()) {
            removed += usize::from(root.remove("job-1-1").is_ok());
        }
        println!("{removed} groups removed");
    });
}

#[test]
fn a_member_notices_that_its_group_was_removed_by_hand() {
    let place = Place::new();
    let root = place.root();
    root.create("lab", &set(GIB)).expect("created");
    let member = Member::join(&root, "lab").expect("joined");
    fs::remove_dir_all(root.path().join("lab")).expect("removed");
    assert!(member.is_orphaned());
    let error = Member::join(&root, "lab").err().expect("gone").to_string();
    assert!(
        error.contains("no group 'lab'") && error.contains("gpulimit create lab"),
        "{error}"
    );
}

// Tests of members.

#[test]
fn a_member_follows_its_limit() {
    let place = Place::new();
    let root = place.root();
    let group = root.create("lab", &set(4 * GIB)).expect("created").group;
    let member = Member::join(&root, "lab").expect("joined");
    let a = device(&member);
    assert_eq!(
        (member.group(), a.max(), a.free()),
        ("lab", 4 * GIB, 4 * GIB)
    );
    a.charge(3 * GIB, &Nothing, Insistence::Full).expect("fits");
    assert_eq!((a.free(), a.charged()), (GIB, 3 * GIB));
    for size in [Size::Bytes(2 * GIB), Size::Percent(1000), Size::Max] {
        group
            .write_limits(|set| set.set(Selector::Device(A), Key::Max, size))
            .expect("written");
        for _ in 0..2 {
            assert_eq!(a.max(), size.resolve(CAPACITY));
        }
    }
    assert_eq!((a.free(), a.charged()), (u64::MAX, 3 * GIB));
    let b = member.device(B, CAPACITY).expect("a device");
    assert_eq!((b.max(), b.free()), (4 * GIB, 4 * GIB));
    a.uncharge(3 * GIB);
    assert_eq!(a.charged(), 0);
}

#[test]
fn threads_see_a_changed_limit_at_once() {
    let place = Place::new();
    let root = place.root();
    let group = root.create("lab", &set(0)).expect("created").group;
    let member = Member::join(&root, "lab").expect("joined");
    let a = device(&member);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut last = 0;
                while last < 2_000 {
                    let now = a.max();
                    assert!(now >= last, "an old limit came back: {now} after {last}");
                    last = now;
                }
            });
        }
        for size in 1..=2_000 {
            group
                .write_limits(|set| set.set(Selector::All, Key::Max, Size::Bytes(size)))
                .expect("written");
            assert_eq!(a.max(), size);
        }
    });
}

// Tests of the environment.

fn ask(place: &Place, pairs: &[(&str, &str)]) -> Result<Option<Assignment>, PolicyError> {
    let mut all: HashMap<String, OsString> = HashMap::new();
    all.insert("GPULIMIT_ROOT".into(), place.root_path().into());
    for (name, value) in pairs {
        all.insert((*name).into(), value.into());
    }
    policy::assignment(&|name| all.get(name).cloned())
}

fn asked(pairs: &[(&str, &str)]) -> Assignment {
    let place = Place::new();
    ask(&place, pairs).expect("understood").expect("a limit")
}

fn rules(pairs: &[(&str, &str)]) -> Vec<(RequestSelector, Size)> {
    let rules = asked(pairs).create.expect("a group must be made").rules;
    let size = |(selector, extent)| match extent {
        Extent::Size(size) => (selector, size),
        Extent::AllBut(_) => panic!("{extent} depends on the GPU"),
    };
    rules.into_iter().map(size).collect()
}

#[test]
fn without_variables_there_is_no_limit() {
    let place = Place::new();
    assert_eq!(ask(&place, &[]).expect("understood"), None);
    for (name, value) in [
        ("CUDA_DEVICE_MEMORY_LIMIT", "0"),
        ("CUDA_DEVICE_MEMORY_LIMIT_3", "0"),
    ] {
        assert_eq!(ask(&place, &[(name, value)]).expect("understood"), None);
        let named = [(name, value), ("GPULIMIT_GROUP", "job-1-1")];
        assert_eq!(ask(&place, &named).expect("understood"), None);
    }
}

#[test]
fn every_variable_is_read_in_its_own_syntax() {
    use RequestSelector::{All, Ordinal, Prefix};
    let bytes = Size::Bytes;
    assert_eq!(rules(&[("GPULIMIT_MAX", "4G")]), [(All, bytes(4 * GIB))]);
    assert_eq!(rules(&[("GPULIMIT_MAX", "max")]), [(All, Size::Max)]);
    assert_eq!(
        rules(&[("GPULIMIT_MAX", "0=2G, GPU-1a2b=50%,all=max")]),
        [
            (Ordinal(0), bytes(2 * GIB)),
            (Prefix("GPU-1a2b".into()), Size::Percent(5000)),
            (All, Size::Max)
        ]
    );
    assert_eq!(
        rules(&[("CUDA_DEVICE_MEMORY_LIMIT", "3000m")]),
        [(All, bytes(3000 << 20))]
    );
    assert_eq!(
        rules(&[
            ("CUDA_DEVICE_MEMORY_LIMIT", "3g"),
            ("CUDA_DEVICE_MEMORY_LIMIT_1", "1g"),
            ("CUDA_DEVICE_MEMORY_LIMIT_2", "0")
        ]),
        [(All, bytes(3 * GIB)), (Ordinal(1), bytes(GIB))]
    );
    assert_eq!(
        rules(&[("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=2G,1=512M")]),
        [(Ordinal(0), bytes(2 * GIB)), (Ordinal(1), bytes(512 << 20))]
    );
    assert_eq!(
        rules(&[("NVIDIA_GPU_MEMORY_LIMIT", "4096")]),
        [(All, bytes(4 * GIB))]
    );
}

#[test]
fn the_stronger_variable_wins() {
    use RequestSelector::All;
    let weak = [
        ("CUDA_DEVICE_MEMORY_LIMIT", "2G"),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=3G"),
        ("NVIDIA_GPU_MEMORY_LIMIT", "4096"),
    ];
    assert_eq!(
        rules(&[&weak[..], &[("GPULIMIT_MAX", "1G")]].concat()),
        [(All, Size::Bytes(GIB))]
    );
    assert_eq!(rules(&weak), [(All, Size::Bytes(2 * GIB))]);
    let named = asked(&[("GPULIMIT_GROUP", "lab"), ("GPULIMIT_MAX", "1G")]);
    assert_eq!((named.group.as_str(), named.create), ("lab", None));
    let job = asked(&[("GPULIMIT_GROUP", "job-7-8"), ("GPULIMIT_MAX", "1G")]);
    assert_eq!(job.group, "job-7-8");
    assert!(job.create.is_some());
    let own = asked(&[("GPULIMIT_MAX", "1G")]);
    assert!(
        own.group
            .starts_with(&format!("job-{}-", std::process::id())),
        "{}",
        own.group
    );
}

#[test]
fn a_wrong_value_is_an_error_and_never_no_limit() {
    let place = Place::new();
    for (name, value, expected) in [
        ("GPULIMIT_GROUP", "", "the value is empty"),
        ("GPULIMIT_GROUP", "a//b", "invalid group name 'a//b'"),
        ("GPULIMIT_MAX", "", "the value is empty"),
        ("GPULIMIT_MAX", " ", "the value is empty"),
        ("GPULIMIT_MAX", "4Q", "invalid size '4Q'"),
        ("GPULIMIT_MAX", "4G,", "empty size"),
        ("GPULIMIT_MAX", "0=", "empty size"),
        ("GPULIMIT_MAX", "one=4G", "expected a size such as 4G"),
        ("GPULIMIT_MAX", "GPU-=4G", "expected a size such as 4G"),
        ("GPULIMIT_MAX", "0=4G,0=2G", "one size for each GPU"),
        ("GPULIMIT_MAX", "4G,2G", "one size for each GPU"),
        ("CUDA_DEVICE_MEMORY_LIMIT", "", "the value is empty"),
        ("CUDA_DEVICE_MEMORY_LIMIT", "lots", "invalid size 'lots'"),
        ("CUDA_DEVICE_MEMORY_LIMIT_31", "lots", "invalid size 'lots'"),
        (
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
            "2G",
            "such as 0=2G,1=512M",
        ),
        (
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
            "0=2",
            "such as 0=2G,1=512M",
        ),
        ("NVIDIA_GPU_MEMORY_LIMIT", "4G", "whole number of MiB"),
        ("NVIDIA_GPU_MEMORY_LIMIT", "-1", "whole number of MiB"),
        ("GPULIMIT_ROOT", "", "absolute path"),
    ] {
        let limit = if name == "GPULIMIT_ROOT" { "4G" } else { value };
        let other = if name == "GPULIMIT_MAX" {
            name
        } else {
            "GPULIMIT_UNUSED"
        };
        let pairs: Vec<_> = match name {
            "GPULIMIT_ROOT" => vec![("GPULIMIT_MAX", limit), (name, value)],
            _ => vec![(name, value), (other, value)],
        };
        let error = ask(&place, &pairs).expect_err(name).to_string();
        assert!(error.contains(expected), "{name}={value}: {error}");
    }
    let error = policy::assignment(&|name| {
        (name == "GPULIMIT_MAX").then(|| OsString::from_vec(vec![b'4', 0xff]))
    });
    assert!(
        error
            .expect_err("not text")
            .to_string()
            .contains("not UTF-8")
    );
}

#[test]
fn a_job_makes_its_group_and_its_children_join_it() {
    let place = Place::new();
    let pairs = [
        ("GPULIMIT_GROUP", "job-1-1"),
        ("GPULIMIT_MAX", "0=2G,GPU-12=3G"),
    ];
    let job = ask(&place, &pairs).expect("understood").expect("a limit");
    let gpus = || vec![(0, A), (1, B)];
    let first = job.join(&gpus, &|_| None).expect("joined");
    let second = job.join(&gpus, &|_| None).expect("joined");
    let max = |member: &Member, id| member.device(id, CAPACITY).expect("a device").max();
    assert_eq!((max(&first, A), max(&second, B)), (2 * GIB, 3 * GIB));
    // An administrator changes a limit while the job runs. The job's next process must not undo the
    // change.
    let group = place.root().group("job-1-1").expect("there");
    group
        .write_limits(|set| set.set(Selector::Device(A), Key::Max, Size::Bytes(GIB)))
        .expect("written");
    let third = job.join(&gpus, &|_| None).expect("joined");
    assert_eq!(max(&third, A), GIB);
}

#[test]
fn a_child_that_sees_another_gpu_adds_a_rule_for_it() {
    let place = Place::new();
    let pairs = [("GPULIMIT_GROUP", "job-1-1"), ("GPULIMIT_MAX", "0=2G")];
    let job = ask(&place, &pairs).expect("understood").expect("a limit");
    let first = job.join(&|| vec![(0, A)], &|_| None).expect("joined");
    let b = first.device(B, CAPACITY).expect("a device");
    assert_eq!(b.max(), u64::MAX);
    let _second = job.join(&|| vec![(0, B)], &|_| None).expect("joined");
    assert_eq!(b.max(), 2 * GIB);
}

#[test]
fn a_limit_for_an_unknown_gpu_is_an_error() {
    let place = Place::new();
    let join = |variable: &str, value: &str| {
        let job = ask(&place, &[(variable, value)])
            .expect("understood")
            .expect("a limit");
        job.join(&|| vec![(0, A), (1, B)], &|_| None)
            .err()
            .map(|error| error.to_string())
    };
    for value in ["2=4G", "GPU-ff=4G", "0=1G,2=4G"] {
        let error = join("GPULIMIT_MAX", value).expect("refused");
        assert!(
            error.contains(&A.to_string()) && error.contains("does not see"),
            "{error}"
        );
    }
    for value in ["GPU-1=4G", "0=4G,GPU-11=2G"] {
        let error = join("GPULIMIT_MAX", value).expect("refused");
        assert!(
            error.contains(&A.to_string()) && error.contains("fits several GPUs"),
            "{error}"
        );
    }
    // A variable of another tool may list all GPUs of the machine, even those that the process does
    // not see.
    assert_eq!(join("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "1=2G,7=2G"), None);
    assert!(
        join("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "7=2G").is_some(),
        "unlimited"
    );
    assert_eq!(names(place.root().groups().expect("listed")).len(), 1);
}

#[test]
fn a_named_group_must_exist() {
    let place = Place::new();
    let there = ask(&place, &[("GPULIMIT_GROUP", "lab"), ("GPULIMIT_MAX", "4G")]);
    let there = there.expect("understood").expect("a limit");
    let error = there
        .join(&Vec::new, &|_| None)
        .err()
        .expect("missing")
        .to_string();
    assert!(error.contains("no group 'lab'"), "{error}");
    place.root().create("lab", &set(GIB)).expect("created");
    assert_eq!(
        there.join(&Vec::new, &|_| None).expect("joined").group(),
        "lab"
    );
}

#[test]
fn clean_up_leaves_a_group_that_is_being_made() {
    let place = Place::new();
    let root = place.root();
    let half = place.root_path().join("half");
    fs::create_dir_all(half.join("sub/quarter")).expect("created");
    fs::write(half.join("sub/quarter/lock"), "").expect("created");
    std::thread::scope(|scope| {
        let maker = scope.spawn(|| {
            for _ in 0..500 {
                drop(root.create("lab", &set(GIB)).expect("created"));
                assert!(root.group("lab").is_ok(), "taken away");
                while !root.remove("lab").is_err_and(|error| error.is_missing()) {}
            }
        });
        while !maker.is_finished() {
            root.remove_leftovers().expect("looked");
        }
    });
    root.remove_leftovers().expect("looked");
    assert_eq!(root.leftovers().expect("listed"), Vec::<PathBuf>::new());
}
