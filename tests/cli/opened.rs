//! The files that a verb opens to show many groups

use crate::place::{GIB, Nothing, Place, Running, on, wait_until};
use gpulimit_base::units::Size;
use gpulimit_group::{Insistence, Member};
use rustix::fs::inotify;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;

/// Counts how often files are opened.
struct Opened {
    watch: OwnedFd,
    files: BTreeMap<i32, PathBuf>,
}

impl Opened {
    fn of(paths: impl Iterator<Item = PathBuf>) -> Self {
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK).expect("inotify");
        // The kernel joins equal events that follow each other, so watch the closing, too.
        let events = inotify::WatchFlags::OPEN | inotify::WatchFlags::CLOSE;
        let file = |path: PathBuf| {
            let id = inotify::add_watch(&watch, &path, events).expect("watched");
            (id, path)
        };
        let files = paths.map(file).collect();
        Self { watch, files }
    }

    /// Returns how often each file was opened since the last call.
    fn take(&self) -> BTreeMap<PathBuf, usize> {
        let counts = self.files.values().map(|path| (path.clone(), 0));
        let mut counts: BTreeMap<PathBuf, usize> = counts.collect();
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.watch, &mut buffer);
        loop {
            match events.next() {
                Ok(event) if event.events().contains(inotify::ReadFlags::OPEN) => {
                    let path = &self.files[&event.wd()];
                    *counts.get_mut(path).expect("watched") += 1;
                }
                Ok(_) => {}
                Err(Errno::AGAIN) => return counts,
                Err(error) => panic!("cannot read events: {error}"),
            }
        }
    }
}

/// Makes a group with child groups that have a limit, protection and a member each.
fn lab(place: &Place, children: usize) -> (Vec<String>, Vec<Member>) {
    place.group("lab", Size::Bytes(64 * GIB));
    let names: Vec<String> = (0..children).map(|at| format!("lab/{at}")).collect();
    let member = |name: &String| {
        place.group(name, Size::Bytes(GIB));
        place.said(&["set", name, "min=512M"]);
        let member = place.member(name);
        let device = on(&member);
        device
            .charge(GIB / 4, &Nothing, Insistence::Full)
            .expect("fits");
        member
    };
    let members = names.iter().map(member).collect();
    (names, members)
}

#[test]
fn a_verb_reads_the_limits_of_each_group_once() {
    let place = Place::new();
    let (mut names, _members) = lab(&place, 12);
    names.push("lab".into());
    let limits = names.iter().map(|name| {
        let group = place.root().group(name).expect("there");
        group.limits_path()
    });
    let opened = Opened::of(limits);
    for (arguments, expected) in [
        // To list the groups, the controller also opens each file to see what it is.
        (&["show"][..], 2),
        (&["show", "--tree"], 2),
        (&["history"], 2),
        (&["show", "lab/3"], 1),
    ] {
        opened.take();
        place.said(arguments);
        let counts = opened.take();
        assert!(
            counts.values().all(|count| *count == expected),
            "{arguments:?}: {counts:?}"
        );
    }
}

#[test]
fn a_verb_opens_a_ledger_as_often_for_many_child_groups_as_for_few() {
    let counts = [3, 12].map(|children| {
        let place = Place::new();
        let (mut names, _members) = lab(&place, children);
        names.push("lab".into());
        let ledger = |name: &str| place.root().group(name).expect("there").ledger_path();
        // Watch all ledgers, so that other events come between those of one ledger.
        let opened = Opened::of(names.iter().map(|name| ledger(name)));
        place.said(&["show"]);
        opened.take()[&ledger("lab")]
    });
    assert_eq!(counts[0], counts[1]);
}

/// The environments of all processes are read if a group of an ended job may be removed, not in
/// every run.
#[test]
fn a_run_reads_environments_only_if_a_job_has_ended() {
    let place = Place::new();
    let environment = PathBuf::from(format!("/proc/{}/environ", std::process::id()));
    // An open file keeps what is watched.
    let _open = std::fs::File::open(&environment).expect("opened");
    let opened = Opened::of([environment.clone()].into_iter());
    let mut living = place.gpulimit(&["run", "--max", "4G", "--", "cat"]);
    let _living = Running::start(living.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let groups = || place.root().groups().expect("listed").len();
    wait_until("the job has a group", || groups() == 1);
    let run = || {
        opened.take();
        place.said(&["run", "--max", "4G", "--", "true"]);
        opened.take()[&environment]
    };
    // Other tests read it, too, so several runs may have to look.
    wait_until("a run reads no environment", || {
        wait_until("the group is removed", || {
            place.said(&["gc"]);
            groups() == 1
        });
        run() == 0
    });
    assert_ne!(run(), 0, "the job before this one has ended");
}
