//! Tests of the ledger with real processes, which the tests kill, stop or fork.
//!
//! The test binary runs itself. In the new process, `LEDGER_ROLE` tells the test `role` what to do.
//! A second mapping records which memory the processes have really taken.
#![allow(unsafe_code)]

use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_ledger::{
    Category, DeviceIndex, Ledger, LedgerError, Level, MAX_SLOTS, NoWitness, Pressure, Refused,
    Slot, Witness, charge, uncharge,
};
use gpulimit_support::{Random, eventually, seed, wait_until};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const GPU: DeviceId = DeviceId::gpu([0xa5; 16]);
const CAPACITY: u64 = 80 << 30;
const KIB4: u64 = 4096;
/// How long the memory of a dead process stays charged if no driver says when it is free.
const GRACE: Duration = Duration::from_secs(1);

/// A temporary ledger that one test uses, and its directory; `None` in the test's child processes.
struct Scratch(
    PathBuf,
    #[expect(dead_code, reason = "removes the directory")] Option<gpulimit_support::Scratch>,
);

impl Scratch {
    fn new() -> Self {
        let folder = gpulimit_support::Scratch::in_memory();
        let scratch = Self(folder.at("ledger"), Some(folder));
        Ledger::create(&scratch.0, 0o600).expect("create");
        scratch
    }

    fn open(&self) -> Arc<Ledger> {
        Arc::new(Ledger::open(&self.0).expect("open"))
    }

    fn join(&self) -> Member {
        let ledger = self.open();
        let slot = ledger.claim(&Identity::of_self(), "").expect("claim");
        let device = ledger.device(GPU, CAPACITY).expect("device");
        Member { slot, device }
    }

    fn judge(&self) -> PathBuf {
        self.0.with_extension("judge")
    }

    fn spawn(&self, role: &str, max: u64) -> Actor {
        let mut child = Command::new(std::env::current_exe().expect("own path"))
            .args(["--exact", "role", "--nocapture"])
            .env("LEDGER_ROLE", role)
            .env("LEDGER_PATH", &self.0)
            .env("LEDGER_MAX", max.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("spawn");
        let out = BufReader::new(child.stdout.take().expect("stdout"));
        Actor { child, out }
    }
}

struct Member {
    slot: Slot,
    device: DeviceIndex,
}

impl Member {
    fn level(&self, max: u64) -> [Level<'_>; 1] {
        [Level {
            slot: &self.slot,
            device: self.device,
            max,
            protection: None,
            keeps_low: false,
            uncovered: None,
        }]
    }

    fn charge(&self, bytes: u64, max: u64) -> Result<(), Refused> {
        charge(&self.level(max), bytes, &Quiet(&NoWitness))
    }

    fn uncharge(&self, bytes: u64) {
        uncharge(&self.level(u64::MAX), bytes);
    }

    fn charged(&self) -> u64 {
        self.slot.ledger().charged(self.device)
    }
}

struct Quiet<'a>(&'a dyn Witness);

impl Pressure for Quiet<'_> {
    fn reclaim(&self, _: DeviceIndex) -> bool {
        false
    }

    fn witness(&self) -> &dyn Witness {
        self.0
    }
}

struct AlwaysGone;

impl Witness for AlwaysGone {
    fn holds_memory(&self, _: &Identity, _: &DeviceId, _: bool) -> Option<bool> {
        Some(false)
    }
}

struct StillThere;

impl Witness for StillThere {
    fn holds_memory(&self, _: &Identity, device: &DeviceId, _: bool) -> Option<bool> {
        assert_eq!(*device, GPU);
        Some(true)
    }
}

/// Another process that the test has started. It runs this test binary.
struct Actor {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Actor {
    /// Waits until the other process prints the line `wanted`.
    fn says(&mut self, wanted: &str) {
        let mut line = String::new();
        // The test harness of the other process prints lines too. They are skipped.
        while self.out.read_line(&mut line).expect("read") != 0 {
            if line.trim_end().ends_with(wanted) {
                return;
            }
            line.clear();
        }
        panic!("the process ended without printing '{wanted}'");
    }

    fn tell(&mut self, line: &str) {
        let mut input = self.child.stdin.as_ref().expect("stdin");
        writeln!(input, "{line}").expect("tell");
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the signal goes to a child of this process that has not been waited for yet.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }

    fn kill(mut self) {
        self.signal(libc::SIGKILL);
        self.child.wait().expect("wait");
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A simulated device with as many blocks as the limit allows. One atomic word holds all owners,
/// five bits per block.
struct Judge(*const AtomicU64);

impl Judge {
    const BLOCKS: u32 = 12;
    const BLOCK: u64 = 1 << 20;
    const ACTORS: usize = 31;

    fn open(path: &Path) -> Self {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .expect("judge");
        file.set_len(4096).expect("length");
        // SAFETY: creates a new mapping of the whole file, which is never unmapped.
        let words = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(words, libc::MAP_FAILED);
        Self(words.cast())
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < 512);
        // SAFETY: the index is in bounds of the mapping, which is never unmapped.
        unsafe { &*self.0.add(index) }
    }

    fn blocks(&self) -> &AtomicU64 {
        self.word(0)
    }

    fn violations(&self) -> &AtomicU64 {
        self.word(1)
    }

    fn grants(&self) -> &AtomicU64 {
        self.word(2)
    }

    fn stop(&self) -> &AtomicU64 {
        self.word(3)
    }

    /// Returns the word with the pid of an actor (1 to 31): a process that takes and gives back
    /// blocks.
    fn pid(&self, actor: usize) -> &AtomicU64 {
        self.word(8 + actor)
    }

    /// Returns `blocks` after `n` blocks have changed their owner from `from` to `to`. Returns
    /// `None` if `from` owns fewer than `n` blocks.
    fn moved(blocks: u64, from: usize, to: usize, n: u32) -> Option<u64> {
        let (mut blocks, mut left) = (blocks, n);
        for block in 0..Self::BLOCKS {
            if left > 0 && (blocks >> (5 * block)) & 31 == from as u64 {
                blocks = blocks & !(31 << (5 * block)) | (to as u64) << (5 * block);
                left -= 1;
            }
        }
        (left == 0).then_some(blocks)
    }

    fn take(&self, actor: usize, n: u32) {
        let taken = self
            .blocks()
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |b| {
                Self::moved(b, 0, actor, n)
            });
        match taken {
            Ok(_) => self.grants().fetch_add(1, Ordering::Relaxed),
            Err(_) => self.violations().fetch_add(1, Ordering::Relaxed),
        };
    }

    fn give_back(&self, actor: usize, n: u32) {
        let _ = self
            .blocks()
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |b| {
                Self::moved(b, actor, 0, n)
            });
    }

    fn held(&self, actor: usize) -> u32 {
        let blocks = self.blocks().load(Ordering::SeqCst);
        (0..Self::BLOCKS)
            .filter(|block| (blocks >> (5 * block)) & 31 == actor as u64)
            .count() as u32
    }
}

impl Witness for Judge {
    fn holds_memory(&self, process: &Identity, _: &DeviceId, _: bool) -> Option<bool> {
        let of = |&actor: &usize| self.pid(actor).load(Ordering::SeqCst) == u64::from(process.pid);
        Some(
            (1..=Self::ACTORS)
                .filter(of)
                .any(|actor| self.held(actor) > 0),
        )
    }
}

/// Plays the role of another process if `LEDGER_ROLE` is set; otherwise does nothing.
#[test]
fn role() {
    let Ok(role) = std::env::var("LEDGER_ROLE") else {
        return;
    };
    let path = std::env::var_os("LEDGER_PATH").expect("path");
    let scratch = Scratch(path.into(), None);
    let max: u64 = std::env::var("LEDGER_MAX")
        .expect("max")
        .parse()
        .expect("number");
    let wait = || {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).expect("read");
    };
    if let Some((actor, birth)) = role.strip_prefix("storm-").and_then(|s| s.split_once('-')) {
        let birth: u64 = birth.parse().expect("number");
        let random = Random::with_seed(seed() + birth);
        return storm_actor(&scratch, actor.parse().expect("number"), random);
    }
    let member = scratch.join();
    let takes = std::env::var("LEDGER_TAKES").map_or(max, |bytes| bytes.parse().expect("number"));
    member.charge(takes, max).expect("charge");
    match role.as_str() {
        "hold" => {
            println!("holding");
            wait();
        }
        "share" => {
            member.slot.mark_shared(member.device, 3 * KIB4 as i64);
            member.slot.orphan(member.device, 2 * KIB4);
            println!("holding");
            wait();
        }
        "become" => {
            use std::os::unix::process::CommandExt;
            println!("holding");
            wait();
            let program = std::env::current_exe().expect("own path");
            let error = Command::new(program)
                .args(["--exact", "role", "--nocapture"])
                .env("LEDGER_ROLE", "hold")
                .env("LEDGER_TAKES", (2 * KIB4).to_string())
                .env("LEDGER_MAX", (100 * KIB4).to_string())
                .exec();
            panic!("exec: {error}");
        }
        "closefrom" => {
            // SAFETY: closes all descriptors except the standard streams; no code uses them
            // afterwards.
            unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) };
            println!("holding");
            wait();
        }
        "fork" => {
            // SAFETY: the other threads are idle and hold no lock, so the child may use the
            // allocator to drop the member.
            let child = unsafe { libc::fork() };
            if child == 0 {
                drop(member);
                println!("{} child", std::process::id());
                wait();
                // SAFETY: ends this process; the test harness of the parent is not this child's.
                unsafe { libc::_exit(0) };
            }
            // SAFETY: waits for a child of this process.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            println!("0 child");
            panic!("the child crashed when it dropped the slot");
        }
        "exec" => {
            use std::os::unix::process::CommandExt;
            println!("holding");
            wait();
            let error = Command::new("sleep").arg("600").exec();
            panic!("exec: {error}");
        }
        other => panic!("no role {other}"),
    }
}

fn storm_actor(scratch: &Scratch, actor: usize, mut random: Random) {
    let judge = Judge::open(&scratch.judge());
    judge
        .pid(actor)
        .store(u64::from(std::process::id()), Ordering::SeqCst);
    let member = scratch.join();
    let max = u64::from(Judge::BLOCKS) * Judge::BLOCK;
    while judge.stop().load(Ordering::Relaxed) == 0 {
        let n = random.u32(1..=4);
        let bytes = u64::from(n) * Judge::BLOCK;
        if charge(&member.level(max), bytes, &Quiet(&judge)).is_ok() {
            judge.take(actor, n);
            for _ in 0..random.u32(..300) {
                std::hint::spin_loop();
            }
            judge.give_back(actor, n);
            member.uncharge(bytes);
        }
    }
}

#[test]
fn a_storm_of_charges_and_kills_never_passes_the_limit() {
    const ACTORS: usize = 6;
    const KILLS: usize = 100;
    /// Largest number of grants between a kill and the next event.
    const GRANTS: u64 = 200;
    let scratch = Scratch::new();
    let judge = Judge::open(&scratch.judge());
    let spawn =
        |actor: usize, birth: usize| scratch.spawn(&format!("storm-{}-{birth}", actor + 1), 0);
    let mut actors: Vec<Actor> = (0..ACTORS).map(|actor| spawn(actor, actor)).collect();
    let mut random = Random::with_seed(seed());
    let grants = || judge.grants().load(Ordering::SeqCst);
    let storm = |more: u64| {
        let enough = grants() + more;
        wait_until("the actors go on", || grants() >= enough);
    };
    for kills in 0..KILLS {
        storm(random.u64(..GRANTS));
        let victim = random.usize(..ACTORS);
        actors[victim].signal(libc::SIGKILL);
        actors[victim].child.wait().expect("wait");
        // A real driver needs time, too, to free the memory of a killed process.
        storm(random.u64(..GRANTS));
        judge.give_back(victim + 1, judge.held(victim + 1));
        actors[victim] = spawn(victim, ACTORS + kills);
    }
    judge.stop().store(1, Ordering::SeqCst);
    for mut actor in actors {
        // This actor may just have been started, and may not have opened the ledger yet.
        actor.child.wait().expect("wait");
    }
    let ledger = scratch.open();
    let cleaned = ledger.clean(&judge);
    let device = ledger.find_device(&GPU).expect("device");
    let usage = ledger.usage(device);
    let (violations, grants) = (judge.violations(), judge.grants());
    eprintln!("{grants:?} grants, {cleaned:?}, {usage:?}");
    assert_eq!(
        violations.load(Ordering::SeqCst),
        0,
        "the limit was exceeded"
    );
    assert_eq!((usage.charged, usage.undecided), (0, 0));
    assert!(usage.peak <= u64::from(Judge::BLOCKS) * Judge::BLOCK);
    assert!(!ledger.has_live());
    assert!(ledger.processes(&NoWitness).is_empty());
}

#[test]
fn a_stopped_member_does_not_block_the_others() {
    let scratch = Scratch::new();
    let mut actor = scratch.spawn("hold", 4 * KIB4);
    actor.says("holding");
    actor.signal(libc::SIGSTOP);
    let member = scratch.join();
    member.charge(8 * KIB4, 12 * KIB4).expect("it fits");
    let refused = member.charge(KIB4, 12 * KIB4).expect_err("it is full");
    assert_eq!(refused.level, 0);
    assert_eq!((refused.charged, refused.max), (12 * KIB4, 12 * KIB4));
    member.uncharge(8 * KIB4);
    let processes = member.slot.ledger().processes(&NoWitness);
    assert_eq!(processes.len(), 2, "{processes:?}");
    assert!(processes.iter().all(|process| process.alive));
}

#[test]
fn memory_of_the_dead_returns_after_the_grace_time() {
    let scratch = Scratch::new();
    let member = scratch.join();
    let mut actor = scratch.spawn("hold", 8 * KIB4);
    actor.says("holding");
    let pid = actor.child.id();
    actor.kill();
    assert_eq!(member.charged(), 8 * KIB4, "the charge stays");
    let started = Instant::now();
    assert!(
        member.charge(9 * KIB4, 8 * KIB4).is_err(),
        "the request exceeds the limit"
    );
    let draining = member.slot.ledger().clean(&StillThere);
    assert_eq!((draining.cleaned, draining.draining), (0, 1));
    let dead = member.slot.ledger().processes(&StillThere);
    assert!(
        dead.iter()
            .any(|dead| dead.identity.pid == pid && !dead.alive)
    );
    member.charge(KIB4, 8 * KIB4).expect("drained");
    // The ledger's clock counts in milliseconds.
    let waited = started.elapsed() + Duration::from_millis(1);
    assert!(waited >= GRACE, "{waited:?}");
    assert_eq!(member.charged(), KIB4);
}

#[test]
fn memory_of_the_dead_returns_as_soon_as_the_driver_has_freed_it() {
    let scratch = Scratch::new();
    let member = scratch.join();
    let mut actor = scratch.spawn("hold", 8 * KIB4);
    actor.says("holding");
    actor.kill();
    let cleaned = member.slot.ledger().clean(&AlwaysGone);
    assert_eq!(
        (cleaned.cleaned, cleaned.draining),
        (1, 0),
        "the first attempt cleans the slot"
    );
    charge(&member.level(8 * KIB4), 8 * KIB4, &Quiet(&AlwaysGone)).expect("it fits");
}

/// A witness for a driver that lists every process.
struct Listed;

impl Witness for Listed {
    fn holds_memory(&self, _: &Identity, _: &DeviceId, _: bool) -> Option<bool> {
        Some(true)
    }
}

#[test]
fn memory_from_before_exec_returns_although_the_driver_lists_the_new_program() {
    let scratch = Scratch::new();
    let member = scratch.join();
    let mut actor = scratch.spawn("become", 8 * KIB4);
    actor.says("holding");
    actor.tell("");
    actor.says("holding");
    let ledger = member.slot.ledger();
    wait_until("the grace time of the old program is over", || {
        ledger.clean(&Listed).draining == 0
    });
    assert_eq!(member.charged(), 2 * KIB4);
    let processes = ledger.processes(&Listed);
    assert!(
        processes.iter().all(|process| process.alive),
        "{processes:?}"
    );
}

#[test]
fn closing_every_descriptor_keeps_the_slot() {
    let scratch = Scratch::new();
    let mut actor = scratch.spawn("closefrom", 8 * KIB4);
    actor.says("holding");
    let ledger = scratch.open();
    assert!(ledger.has_live());
    assert_eq!(ledger.clean(&AlwaysGone).cleaned, 0);
    assert_eq!(
        ledger.charged(ledger.find_device(&GPU).expect("device")),
        8 * KIB4
    );
    actor.kill();
    assert!(!ledger.has_live());
}

#[test]
fn a_forked_child_neither_keeps_nor_gives_back_its_parents_slot() {
    let scratch = Scratch::new();
    let mut actor = scratch.spawn("fork", 8 * KIB4);
    let child = loop {
        let mut line = String::new();
        assert_ne!(actor.out.read_line(&mut line).expect("read"), 0);
        if let Some((head, _)) = line.split_once(" child") {
            let pid = head
                .rsplit(' ')
                .next()
                .and_then(|pid| pid.parse::<i32>().ok());
            break pid.expect("pid");
        }
    };
    assert!(child > 1, "the child crashed when it dropped the slot");
    let ledger = scratch.open();
    let device = ledger.find_device(&GPU).expect("device");
    assert_eq!(
        ledger.charged(device),
        8 * KIB4,
        "the child does not give the memory back"
    );
    assert!(ledger.has_live());
    // The child ends when its standard input does.
    let _input = actor.child.stdin.take();
    actor.kill();
    let free = !ledger.has_live();
    // SAFETY: signals the forked child, which has printed its pid and waits for its input.
    let was_there = unsafe { libc::kill(child, libc::SIGKILL) } == 0;
    assert!(was_there, "the child outlives its parent");
    assert!(free, "the child holds no lock of its parent");
    assert_eq!(ledger.clean(&AlwaysGone).cleaned, 1);
}

#[test]
fn exec_ends_membership() {
    let scratch = Scratch::new();
    let mut actor = scratch.spawn("exec", 8 * KIB4);
    actor.says("holding");
    let ledger = scratch.open();
    assert!(ledger.has_live());
    actor.tell("go");
    wait_until("exec ends the lock", || !ledger.has_live());
    assert!(
        actor.child.try_wait().expect("wait").is_none(),
        "the process still runs"
    );
}

#[test]
fn threads_that_claim_at_once_get_different_slots() {
    let scratch = Scratch::new();
    let go = std::sync::Barrier::new(128);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..128)
            .map(|_| {
                scope.spawn(|| {
                    go.wait();
                    let member = scratch.join();
                    member.charge(KIB4, 128 * KIB4).expect("it fits");
                    member
                })
            })
            .collect();
        let members: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().expect("thread"))
            .collect();
        assert_eq!(members[0].charged(), 128 * KIB4);
        assert_eq!(members[0].slot.ledger().devices().len(), 1);
        assert!(members[0].charge(KIB4, 128 * KIB4).is_err());
    });
    let ledger = scratch.open();
    assert!(!ledger.has_live());
    assert_eq!(ledger.charged(ledger.find_device(&GPU).expect("device")), 0);
}

fn lock(file: &File, kind: i32, start: usize, len: usize) {
    // SAFETY: all zeros is a valid `flock`.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_start = start as libc::off_t;
    lock.l_len = len as libc::off_t;
    // The call waits: a process that another test starts may hold a copy of a descriptor, and so
    // a lock, until exec.
    // SAFETY: the call reads one `flock`, which lives until it returns.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLKW, &raw const lock) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn joining_a_full_ledger_is_an_error() {
    let scratch = Scratch::new();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&scratch.0)
        .expect("open");
    lock(&file, libc::F_WRLCK, 0, MAX_SLOTS);
    let ledger = scratch.open();
    let error = ledger.claim(&Identity::of_self(), "").expect_err("full");
    assert!(matches!(error, LedgerError::NoSlot { .. }), "{error}");
    assert!(error.to_string().contains("4096 slots"), "{error}");
    // Closing the file is not enough: a process that another test starts may hold a copy of the
    // descriptor until exec.
    lock(&file, libc::F_UNLCK, 0, MAX_SLOTS);
    ledger
        .claim(&Identity::of_self(), "")
        .expect("a slot is free again");
}

#[test]
fn as_many_members_as_there_are_slots() {
    let scratch = Scratch::new();
    let mut actor = scratch.spawn("hold", KIB4);
    actor.says("holding");
    let first = scratch.join();
    let (ledger, device) = (first.slot.ledger(), first.device);
    let join = || {
        let slot = ledger.claim(&Identity::of_self(), "")?;
        Ok(Member { slot, device })
    };
    let mut others: Vec<Member> = (2..MAX_SLOTS)
        .map(|_| join().expect("a slot is free"))
        .collect();
    let full = |joined: Result<Member, LedgerError>| {
        assert!(matches!(joined, Err(LedgerError::NoSlot { .. })));
    };
    full(join());
    let all = MAX_SLOTS as u64 * KIB4;
    for member in others.iter().chain([&first]) {
        assert!(member.charged() < all);
        member.charge(KIB4, all).expect("its part");
    }
    assert_eq!(first.charged(), all);
    assert!(first.charge(KIB4, all).is_err());
    let members = ledger.processes(&NoWitness);
    assert_eq!(members.len(), MAX_SLOTS);
    assert!(members.iter().all(|member| member.alive));
    actor.kill();
    charge(&first.level(all), KIB4, &Quiet(&AlwaysGone))
        .expect("the dead process's memory is free");
    others.push(join().expect("the dead process's slot is free"));
    full(join());
    drop(others);
    assert_eq!(first.charged(), 2 * KIB4);
}

#[test]
fn a_cleaner_that_hangs_delays_but_does_not_block() {
    let scratch = Scratch::new();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&scratch.0)
        .expect("open");
    lock(&file, libc::F_WRLCK, MAX_SLOTS, 3);
    let member = scratch.join();
    member.charge(8 * KIB4, 8 * KIB4).expect("it fits");
    assert!(member.charge(KIB4, 8 * KIB4).is_err());
}

#[test]
fn removal_keeps_late_processes_out() {
    let scratch = Scratch::new();
    let member = scratch.join();
    let ledger = scratch.open();
    let error = ledger.begin_removal().expect_err("the group has a member");
    assert!(matches!(error, LedgerError::InUse { .. }), "{error}");
    drop(member);
    // A child that another test starts has the lock's file open until it runs its program.
    let mut removal = None;
    assert!(
        eventually(|| match ledger.begin_removal() {
            Err(LedgerError::InUse { .. }) => false,
            begun => {
                removal = Some(begun.expect("nobody is there"));
                true
            }
        }),
        "a removed member is still there"
    );
    let late = scratch.open();
    std::fs::remove_file(&scratch.0).expect("remove");
    let result = late.claim(&Identity::of_self(), "");
    drop(removal);
    let error = result.expect_err("the ledger file is gone");
    assert!(matches!(error, LedgerError::Replaced { .. }), "{error}");
    assert!(ledger.is_unlinked());
    Ledger::create(&scratch.0, 0o600).expect("create");
    assert!(ledger.is_unlinked());
    let error = ledger
        .claim(&Identity::of_self(), "")
        .expect_err("another file");
    assert!(matches!(error, LedgerError::Replaced { .. }), "{error}");
}

#[test]
fn damage_is_an_error() {
    let write = |scratch: &Scratch, offset: u64, bytes: &[u8]| {
        let file = OpenOptions::new()
            .write(true)
            .open(&scratch.0)
            .expect("open");
        file.write_all_at(bytes, offset).expect("write");
        Ledger::open(&scratch.0).expect_err("damaged")
    };
    for word in 0..8 {
        let scratch = Scratch::new();
        let error = write(&scratch, 8 * word, &[0xff; 8]);
        match word {
            1 => assert!(matches!(error, LedgerError::Version { .. }), "{error}"),
            _ => assert!(matches!(error, LedgerError::Damaged { .. }), "{error}"),
        }
    }
    for len in [0, 1, 63, 64, 4096, 1 << 20, 1 << 30] {
        let scratch = Scratch::new();
        let file = OpenOptions::new()
            .write(true)
            .open(&scratch.0)
            .expect("open");
        file.set_len(len).expect("truncate");
        let error = Ledger::open(&scratch.0).expect_err("cut");
        assert!(matches!(error, LedgerError::Damaged { .. }), "{error}");
    }
    let scratch = Scratch::new();
    let link = scratch.0.with_extension("link");
    std::os::unix::fs::symlink(&scratch.0, &link).expect("link");
    let opened = Ledger::open(&link);
    std::fs::remove_file(&link).expect("remove");
    opened.expect_err("a symbolic link");
    Ledger::open(Path::new("/dev/shm")).expect_err("a directory");
    Ledger::open(Path::new("/dev/null")).expect_err("a device");
    Ledger::open(&scratch.0.with_extension("none")).expect_err("nothing");
}

#[test]
fn garbage_after_the_header_is_survived() {
    let scratch = Scratch::new();
    let file = OpenOptions::new()
        .write(true)
        .open(&scratch.0)
        .expect("open");
    let length = file.metadata().expect("there").len() as usize;
    file.write_all_at(&vec![0xff; length - 64], 64)
        .expect("write");
    let ledger = scratch.open();
    assert!(ledger.devices().is_empty());
    assert!(ledger.find_device(&GPU).is_none());
    let error = ledger
        .device(GPU, CAPACITY)
        .expect_err("all entries are taken");
    assert!(matches!(error, LedgerError::NoDevice { .. }), "{error}");
    assert_eq!(ledger.processes(&StillGarbage).len(), MAX_SLOTS);
    let other = Scratch::new();
    let device = other.join().device;
    assert_eq!(
        ledger.usage(device).charged,
        (MAX_SLOTS as u64) << (31 + 12),
        "half of the charged units are undecided"
    );
    let _ = ledger.clean(&NoWitness);
}

struct StillGarbage;

impl Witness for StillGarbage {
    fn holds_memory(&self, _: &Identity, _: &DeviceId, _: bool) -> Option<bool> {
        unreachable!("no device is known")
    }
}

#[test]
fn a_reader_changes_nothing() {
    let scratch = Scratch::new();
    let member = scratch.join();
    member.charge(3 * KIB4 + 1, u64::MAX).expect("no limit");
    let reader = Arc::new(Ledger::open_readonly(&scratch.0).expect("open"));
    let device = reader.device(GPU, CAPACITY).expect("it is known");
    assert_eq!(reader.usage(device).charged, 4 * KIB4);
    assert_eq!(reader.processes(&NoWitness).len(), 1);
    assert!(reader.has_live());
    reader.set_context_hint(device, 1);
    assert_eq!(reader.context_hint(device), 0);
    assert_eq!(reader.clean(&AlwaysGone).cleaned, 0);
    let error = reader
        .claim(&Identity::of_self(), "")
        .expect_err("a reader");
    assert!(matches!(error, LedgerError::ReadOnly { .. }), "{error}");
    let error = reader
        .device(DeviceId::gpu([1; 16]), 0)
        .expect_err("a reader");
    assert!(matches!(error, LedgerError::ReadOnly { .. }), "{error}");
}

#[test]
fn a_refusal_names_its_level_and_charges_no_level() {
    let (leaf, root) = (Scratch::new(), Scratch::new());
    let (lower, upper) = (leaf.join(), root.join());
    let [low] = lower.level(100 * KIB4);
    let [high] = upper.level(10 * KIB4);
    let path = [low, high];
    let quiet = Quiet(&NoWitness);
    charge(&path, 6 * KIB4, &quiet).expect("it fits");
    let refused = charge(&path, 5 * KIB4, &quiet).expect_err("the root group is full");
    assert_eq!(
        (refused.level, refused.charged, refused.max),
        (1, 6 * KIB4, 10 * KIB4)
    );
    assert_eq!((lower.charged(), upper.charged()), (6 * KIB4, 6 * KIB4));
    uncharge(&path, 6 * KIB4);
    assert_eq!((lower.charged(), upper.charged()), (0, 0));
    assert_eq!(lower.slot.ledger().usage(lower.device).peak, 6 * KIB4);
}

#[test]
fn absurd_requests_are_refused() {
    let scratch = Scratch::new();
    let member = scratch.join();
    for bytes in [u64::MAX, u64::MAX - 4095, 1 << 63, (1 << 42) + 1] {
        assert!(member.charge(bytes, u64::MAX).is_err(), "{bytes}");
    }
    member.charge(1 << 42, u64::MAX).expect("no limit");
    member.charge(1 << 42, u64::MAX).expect("no limit");
    assert!(
        member.charge(KIB4, u64::MAX).is_err(),
        "the ledger word is full"
    );
    assert_eq!(member.charged(), 1 << 43);
    member.uncharge(u64::MAX);
    assert_eq!(
        member.charged(),
        0,
        "at most the charged bytes are given back"
    );
    member.charge(0, 0).expect("nothing");
    assert!(
        member.charge(1, 4095).is_err(),
        "a byte is charged as 4 KiB"
    );
}

#[test]
fn orphans_are_charged_until_a_member_gives_them_back() {
    let scratch = Scratch::new();
    let (sleeping, other) = (scratch.join(), scratch.join());
    let device = other.device;
    let ledger = other.slot.ledger();
    sleeping.charge(8 * KIB4, u64::MAX).expect("no limit");
    sleeping.slot.orphan(device, 6 * KIB4);
    other.charge(KIB4, u64::MAX).expect("no limit");
    let seen = ledger.orphans(device);
    assert_eq!((seen.total(), other.charged()), (6 * KIB4, 9 * KIB4));
    assert_eq!(
        ledger.usage(device).by[Category::Vmm as usize],
        6 * KIB4,
        "orphans are shown as VMM"
    );
    let release = |seen, keep| other.slot.release_orphans(device, seen, keep);
    assert_eq!(release(&seen, 7 * KIB4), 0, "all orphans are kept");
    assert_eq!(release(&seen, 2 * KIB4), 4 * KIB4);
    assert_eq!(
        (sleeping.slot.charged(device), other.charged()),
        (4 * KIB4, 5 * KIB4)
    );
    assert_eq!(release(&seen, 0), 0, "changed orphans are skipped");
    other.slot.orphan(device, KIB4);
    let seen = ledger.orphans(device);
    assert_eq!(release(&seen, 2 * KIB4), KIB4);
    assert_eq!(
        other.slot.charged(device),
        0,
        "its own orphans are uncharged first"
    );
    assert_eq!(release(&ledger.orphans(device), 0), 2 * KIB4);
    assert_eq!(
        (sleeping.slot.charged(device), other.charged()),
        (2 * KIB4, 2 * KIB4)
    );
    // Other processes may uncharge the orphans of a slot. The slot's owner does not treat this as
    // an error.
    sleeping.charge(KIB4, 3 * KIB4).expect("there is room");
    assert_eq!(other.charged(), 3 * KIB4);
    sleeping.uncharge(3 * KIB4);
    assert_eq!(other.charged(), 0);
}

#[test]
fn shared_memory_of_the_dead_needs_a_member_to_adopt_it() {
    struct Heir(AtomicU64);
    impl Witness for Heir {
        fn holds_memory(&self, _: &Identity, _: &DeviceId, _: bool) -> Option<bool> {
            Some(false)
        }
        fn adopt(&self, _: &Identity, device: &DeviceId, bytes: u64) -> bool {
            assert_eq!(*device, GPU);
            self.0.fetch_add(bytes, Ordering::Relaxed);
            true
        }
    }
    let scratch = Scratch::new();
    let dead = || {
        let mut sharing = scratch.spawn("share", 10 * KIB4);
        sharing.says("holding");
        sharing.kill();
    };
    let survivor = scratch.join();
    dead();
    let ledger = scratch.open();
    assert_eq!(ledger.clean(&AlwaysGone).draining, 1);
    assert_eq!(survivor.charged(), 10 * KIB4);
    let heir = Heir(AtomicU64::new(0));
    let cleaned = ledger.clean(&heir);
    assert_eq!((cleaned.draining, survivor.charged()), (0, 0));
    assert_eq!(
        heir.0.into_inner(),
        5 * KIB4,
        "shared and orphaned bytes are adopted"
    );
    assert_eq!(ledger.orphans(survivor.device).total(), 0);
    let device = survivor.device;
    drop(survivor);
    dead();
    assert_eq!(
        ledger.clean(&AlwaysGone).draining,
        0,
        "no living member can hold the memory"
    );
    assert_eq!(ledger.charged(device), 0);
    // A descriptor keeps it, and a process that is no member has the descriptor.
    struct Used(bool);
    impl Witness for Used {
        fn holds_memory(&self, _: &Identity, _: &DeviceId, _: bool) -> Option<bool> {
            Some(false)
        }
        fn is_held_by_nobody(&self, device: &DeviceId, _: u64) -> Option<bool> {
            assert_eq!(*device, GPU);
            Some(self.0)
        }
    }
    dead();
    for _ in 0..2 {
        assert_eq!(ledger.clean(&Used(true)).draining, 1);
        assert_eq!(ledger.charged(device), 5 * KIB4);
    }
    assert_eq!(ledger.clean(&Used(false)).draining, 0);
    assert_eq!(ledger.charged(device), 0);
}

#[test]
fn own_idle_memory_is_reclaimed_before_a_refusal() {
    struct Idle<'a>(&'a Member, AtomicU32);
    impl Pressure for Idle<'_> {
        fn reclaim(&self, device: DeviceIndex) -> bool {
            assert_eq!(device, self.0.device);
            let gave = self.1.fetch_add(1, Ordering::Relaxed) == 0;
            if gave {
                self.0.uncharge(4 * KIB4);
            }
            gave
        }

        fn witness(&self) -> &dyn Witness {
            &NoWitness
        }
    }
    let scratch = Scratch::new();
    let member = scratch.join();
    member.charge(8 * KIB4, 8 * KIB4).expect("it fits");
    let idle = Idle(&member, AtomicU32::new(0));
    charge(&member.level(8 * KIB4), 4 * KIB4, &idle).expect("idle memory makes room");
    assert!(charge(&member.level(8 * KIB4), KIB4, &idle).is_err());
}
