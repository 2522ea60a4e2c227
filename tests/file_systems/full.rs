//! Full file systems: groups that are there work as before, and only the history and the trail of
//! events are missing. `history` and `report` name the groups without a history.

use super::{GIB, GPU, Nothing, gpulimit, run};
use gpulimit_base::units::Size;
use gpulimit_group::{Insistence, Member, MemberDevice, Root};
use gpulimit_ledger::{Ledger, Resolution};
use gpulimit_limits::LimitSet;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The size of a page, in which a tmpfs gives out its space.
const PAGE: u64 = 4096;

/// A small tmpfs with the directory of groups.
struct Small {
    root: PathBuf,
}

impl Small {
    fn new(options: &str) -> Self {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "none", "/mnt"])
            .status();
        assert!(mounted.expect("mount is of util-linux").success());
        let root = PathBuf::from("/mnt/root");
        fs::create_dir(&root).expect("made");
        Self { root }
    }

    fn groups(&self) -> Root {
        Root::at(&self.root).expect("a root")
    }

    /// Takes all space but `pages` pages.
    fn fill(&self, pages: u64) {
        let mut file = File::create("/mnt/full").expect("made");
        let error = loop {
            match file.write_all(&[1; PAGE as usize]) {
                Ok(()) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        let taken = file.metadata().expect("there").len() / PAGE;
        let left = taken.checked_sub(pages).expect("more was free");
        file.set_len(left * PAGE).expect("shorter");
    }

    fn empty(&self) {
        fs::remove_file("/mnt/full").expect("removed");
    }

    fn said(&self, arguments: &[&str]) -> String {
        let (fine, said) = gpulimit(&self.root, arguments);
        assert!(fine, "{arguments:?}: {said}");
        said
    }

    fn refused(&self, arguments: &[&str]) -> String {
        let (fine, said) = gpulimit(&self.root, arguments);
        assert!(!fine, "{arguments:?}: {said}");
        said
    }

    /// Returns what `doctor` says, in one line.
    fn doctor(&self) -> String {
        let (_, said) = gpulimit(&self.root, &["doctor"]);
        said.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Returns the functions of the refusals that `events` shows; "" for unknown ones.
    fn refusals(&self) -> Vec<String> {
        let said = self.said(&["events", "--kind", "refusal", "--json"]);
        let function = |line: &str| {
            let event: Value = serde_json::from_str(line).expect("JSON");
            event["function"].as_str().unwrap_or_default().to_owned()
        };
        said.lines().map(function).collect()
    }

    /// Runs the commands that read what may be missing.
    fn read_all(&self) {
        for arguments in [
            &["show"][..],
            &["show", "--json"],
            &["ps"],
            &["show", "--names"],
            &["show", "--tree"],
            &["history"],
            &["history", "--since", "3d", "--json"],
            &["report"],
            &["report", "--by", "user", "--json"],
            &["events"],
            &["get", "lab"],
        ] {
            self.said(arguments);
        }
    }
}

/// A member of the group `lab`, whose limit is 4 GiB.
struct Program(Member);

impl Program {
    fn of(small: &Small, group: &str) -> Self {
        let member = Member::join(&small.groups(), group).expect("joined");
        let program = Self(member);
        program.device();
        program
    }

    fn device(&self) -> MemberDevice<'_> {
        self.0.device(GPU, 80 * GIB).expect("known")
    }

    fn charge(&self, bytes: u64) {
        let charged = (self.device()).charge(bytes, &Nothing, Insistence::Full);
        charged.expect("fits");
    }

    /// Has a request of the function refused, and asserts that the limit is the reason.
    fn refuse(&self, function: &str) {
        let (device, bytes) = (self.device(), 5 * GIB);
        let charged = device.charge(bytes, &Nothing, Insistence::Full);
        let refusal = charged.expect_err("above the limit");
        assert_eq!(refusal.max, 4 * GIB);
        device.count_refusal(function, bytes, &refusal);
    }

    /// Asserts that charges are counted and limited as on any file system.
    fn works(&self, small: &Small) {
        let used = || {
            let shown: Value =
                serde_json::from_str(&small.said(&["show", "--json"])).expect("JSON");
            let gpu = &shown["groups"][0]["gpus"][0];
            gpu["usage"].as_u64().expect("a number")
        };
        let before = used();
        self.charge(GIB);
        assert_eq!(used(), before + GIB);
        self.device().uncharge(GIB);
        assert_eq!(used(), before);
        small.read_all();
    }

    fn ledger(&self) -> &Ledger {
        self.0.ledger()
    }

    fn records(&self) -> bool {
        let entries = self.ledger().devices();
        let entry = entries.iter().find(|entry| entry.id == GPU);
        self.ledger().records(entry.expect("known").index)
    }

    /// Returns the largest usage of the last ten minutes.
    fn peak(&self) -> u64 {
        let entries = self.ledger().devices();
        let device = entries.iter().find(|entry| entry.id == GPU);
        let index = device.expect("known").index;
        let history = self.ledger().history(index, Resolution::Seconds);
        let usage = history.iter().filter_map(|period| period.usage);
        usage.map(|usage| usage.max).max().unwrap_or(0)
    }
}

pub fn check(case: &str) {
    match case {
        "group" => a_group_on_a_full_file_system(),
        "running" => a_file_system_that_fills(),
        "inodes" => a_file_system_without_inodes(),
        "job" => a_job_without_a_trail(),
        _ => panic!("{case}: unknown"),
    }
}

const FULL: &str = "no space is left on the file system of the groups";

/// Pages for a member and not for a history: a member takes a page for each block of charges and
/// two for its slot; a history with the bills takes 32.
const MEMBER: u64 = 12;

fn a_group_on_a_full_file_system() {
    let small = Small::new("size=1M");
    small.fill(2);
    let said = small.refused(&["create", "lab", "max=4G"]);
    assert!(
        said.contains("No space left") || said.contains("space"),
        "{said}"
    );
    assert_eq!(small.groups().groups().expect("listed"), []);
    small.empty();
    small.said(&["create", "lab", "max=4G"]);
    small.fill(MEMBER);
    let program = Program::of(&small, "lab");
    small.empty();
    small.fill(0);
    assert!(!program.records());
    program.charge(3 * GIB);
    program.works(&small);
    program.refuse("cuMemAlloc");
    assert_eq!(program.ledger().trail_head(), 0);
    // Nobody reads pages without space, which would end in SIGBUS.
    assert_eq!(program.ledger().bills(), []);
    assert!(program.ledger().trail(0).is_empty());
    assert!(program.ledger().damage().is_none());
    assert_eq!(small.refusals(), [""], "only the ring has it");
    let said = small.doctor();
    assert!(said.contains(FULL), "{said}");
    let said = small.said(&["history"]);
    assert!(said.contains("no figures of a GPU in lab"), "{said}");
    // The next program that uses the GPU begins the history.
    small.empty();
    let next = Program::of(&small, "lab");
    assert!(next.records() && program.records());
    next.charge(GIB / 2);
    assert_eq!(next.peak(), 3 * GIB + GIB / 2);
    program.refuse("cuMemCreate");
    assert_eq!(small.refusals(), ["", "cuMemCreate"]);
    let said = small.said(&["history"]);
    assert!(!said.contains("no figures"), "{said}");
}

fn a_file_system_that_fills() {
    let small = Small::new("size=1M");
    small.said(&["create", "lab", "max=4G"]);
    let program = Program::of(&small, "lab");
    program.charge(GIB);
    program.refuse("first");
    small.fill(0);
    assert!(program.records());
    program.charge(2 * GIB);
    assert_eq!(program.peak(), 3 * GIB, "its space was reserved");
    program.works(&small);
    // The page with the first event has room for three more.
    let names: Vec<String> = (0..20).map(|number| format!("call{number}")).collect();
    names.iter().for_each(|name| program.refuse(name));
    let seen = small.refusals();
    assert_eq!(seen[..4], ["first", "call0", "call1", "call2"]);
    assert_eq!(seen[4..], [""; 17], "only the ring has them");
    let said = small.doctor();
    assert!(said.contains(FULL), "{said}");
    let said = small.said(&["history"]);
    assert!(!said.contains("no figures"), "{said}");
    // A program that joins now is refused, with the reason; the others go on.
    let error = Member::join(&small.groups(), "lab")
        .map(drop)
        .expect_err("full");
    assert!(error.to_string().contains("space"), "{error}");
    program.works(&small);
    small.empty();
    program.refuse("later");
    assert_eq!(small.refusals().last().map(String::as_str), Some("later"));
}

fn a_file_system_without_inodes() {
    let small = Small::new("size=4M,nr_inodes=64");
    small.said(&["create", "lab", "max=4G"]);
    let early = Program::of(&small, "lab");
    let taken: Vec<PathBuf> = (0..)
        .map(|number| Path::new("/mnt").join(number.to_string()))
        .take_while(|path| File::create(path).is_ok())
        .collect();
    assert!(!taken.is_empty());
    // A group needs inodes when it is made; its members, its history and its trail need none.
    let late = Program::of(&small, "lab");
    assert!(early.records() && late.records());
    late.charge(2 * GIB);
    assert_eq!(late.peak(), 2 * GIB);
    late.works(&small);
    late.refuse("cuMemAlloc");
    assert_eq!(small.refusals(), ["cuMemAlloc"]);
    let said = small.refused(&["create", "other", "max=4G"]);
    assert!(
        said.contains("cannot create") && said.contains("space"),
        "{said}"
    );
    assert_eq!(small.said(&["show", "--names"]), "lab\n");
    let said = small.doctor();
    assert!(
        said.contains("no inodes are left on the file system of the groups"),
        "{said}"
    );
    for path in &taken {
        fs::remove_file(path).expect("removed");
    }
    small.said(&["create", "other", "max=4G"]);
}

fn a_job_without_a_trail() {
    let small = Small::new("size=1M");
    let job = "run-1-2";
    let trail = small.root.join(".trail");
    // The group itself fits, and the trail of the root does not.
    let made = (0..64).find(|pages| {
        small.fill(*pages);
        let made = small
            .groups()
            .create(job, &LimitSet::all(Size::Bytes(4 * GIB)));
        small.empty();
        made.is_ok()
    });
    assert!(made.is_some_and(|pages| pages > 0), "{made:?}");
    assert!(!trail.exists(), "{made:?}");
    small.fill(MEMBER);
    let program = Program::of(&small, job);
    small.empty();
    small.fill(0);
    program.charge(GIB);
    program.refuse("cuMemAlloc");
    assert_eq!(small.refusals(), [""]);
    assert!(small.doctor().contains(FULL));
    drop(program);
    small.empty();
    small.said(&["gc"]);
    assert_eq!(small.refusals(), [""; 0], "gone with the job");
}

#[test]
fn a_group_made_on_a_full_file_system_only_lacks_its_history_and_trail() {
    run("full group");
}

#[test]
fn programs_go_on_while_their_file_system_fills() {
    run("full running");
}

#[test]
fn groups_work_on_a_file_system_without_inodes() {
    run("full inodes");
}

#[test]
fn a_job_on_a_full_file_system_works_without_a_trail() {
    run("full job");
}
