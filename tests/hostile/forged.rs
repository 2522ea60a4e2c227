//! A user fills the ledgers of hundreds of groups with GPUs, users, processes and events that do
//! not exist, and lets all users write every second ledger: what root makes of them stays within
//! the bounds of docs/security.md, and the lines of others are whole.
//!
//! `GPULIMIT_FORGED_GROUPS` sets the number of groups.

use crate::{ALICE, Guarded, text};
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_base::units::Size;
use gpulimit_ledger::Ledger;
use gpulimit_limits::LimitSet;
use gpulimit_programs::world::World;
use gpulimit_support::{eventually, finish, is_root, patience};
use rustix::fs::{FlockOperation, fcntl_lock};
use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const GPUS: usize = 8;
/// An honest user.
const BOB: u32 = 40_002;
/// The offset of a ledger's bills, the bytes of one, and their number.
const BILLS: u64 = (16 << 10) + (2 << 20) + (32 << 20);
const BILL: usize = 520;
const MOST_BILLS: usize = 251;
/// The offsets of charges, slots, the ring of events and the trail, and the bytes of an entry.
const CHARGES: u64 = 16 << 10;
const SLOTS: u64 = (16 << 10) + (2 << 20);
const SLOT: u64 = 8 << 10;
const RING: u64 = 4_096;
const EVENT: u64 = 128;
const TRAIL: u64 = BILLS + (128 << 10) + (2 << 20);
const TRACED: u64 = 1_024;

/// Makes the machine; `None` without root.
fn world() -> Option<World> {
    is_root().then(|| World::without_group(&[("GPULIMIT_SIM_GPUS", &GPUS.to_string())]))
}

fn gpu(world: &World, number: usize) -> DeviceId {
    let uuid = world.machine().gpu(number).uuid.clone();
    uuid.parse().expect("a UUID")
}

/// Returns the bytes of bills of these users on all GPUs.
fn bills(users: impl Iterator<Item = u32>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for uid in users {
        bytes.extend((u64::from(uid) + 1).to_le_bytes());
        let hours = (1u64 << 40).to_le_bytes();
        bytes.extend(hours.iter().cycle().take(BILL - 8));
    }
    bytes
}

fn write(ledger: &Path, at: u64, bytes: &[u8]) {
    let file = File::options().write(true).open(ledger).expect("opened");
    file.write_all_at(bytes, at).expect("written");
}

/// Makes a group, of this user's own, with these GPUs. Returns the path of its ledger.
fn group(world: &World, name: &str, owner: u32, gpus: &[DeviceId]) -> std::path::PathBuf {
    let limits = LimitSet::all(Size::Max);
    let group = world.root().create(name, &limits).expect("made").group;
    let path = group.ledger_path();
    let ledger = Ledger::open(&path).expect("opened");
    for id in gpus {
        ledger.device(*id, 80 << 30).expect("room");
    }
    for file in fs::read_dir(group.path()).expect("listed") {
        let file = file.expect("listed").path();
        chown(&file, Some(owner), Some(owner)).expect("given");
    }
    chown(group.path(), Some(owner), Some(owner)).expect("given");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("set");
    path
}

/// Makes the honest groups: each user has used all GPUs.
fn honest(world: &World) {
    let gpus: Vec<DeviceId> = (0..GPUS).map(|number| gpu(world, number)).collect();
    for name in ["bob", "bob/a", "bob/b"] {
        let ledger = group(world, name, BOB, &gpus);
        write(&ledger, BILLS, &bills([BOB].into_iter()));
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Fills a ledger with events, and with processes that live while the returned file is locked.
fn fill(ledger: &Path) -> File {
    let own = Identity::of_self();
    let command = words(&[u64::from_le_bytes(*b"forged\0\0"), 0, 0, 0]);
    for slot in 0..4_096 {
        let pid = (1 << 23) + slot;
        let owner = words(&[pid, own.pid_ns, 1, u64::from(ALICE), 1, 0, 0, 0]);
        write(
            ledger,
            SLOTS + slot * SLOT,
            &[owner, command.clone()].concat(),
        );
        for block in 0..2 {
            let at = CHARGES + (block * 4_096 + slot) * 64;
            write(ledger, at, &words(&[1_000, 0]).repeat(4));
        }
    }
    // The highest slot that was claimed.
    write(ledger, 64, &words(&[4_096]));
    fill_events(ledger);
    let file = File::options().write(true).open(ledger).expect("opened");
    fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).expect("locked");
    file
}

/// Fills a ledger with events, of which half are of the future.
fn fill_events(ledger: &Path) {
    let command = words(&[u64::from_le_bytes(*b"forged\0\0"), 0, 0, 0]);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a time");
    let now = u64::try_from(now.as_micros()).expect("a number");
    let event = |number: u64| {
        let time = now - number + (number % 2) * (1 << 44);
        let what = 1 | 1 << 32;
        let bytes = 1 << 40;
        words(&[
            number + 1,
            time,
            what,
            1,
            1,
            u64::from(ALICE),
            bytes,
            bytes,
            bytes,
        ])
    };
    let ring = (0..95).map(|number| (number, RING + 64 + number * EVENT));
    let trail = (0..4_096).map(|number| (number, TRAIL + number * TRACED));
    for (number, at) in ring.chain(trail) {
        write(ledger, at, &event(number));
        write(ledger, at + 96, &command);
    }
    write(ledger, RING, &words(&[95]));
    write(ledger, 392, &words(&[4_096, 4_096]));
}

/// Makes Alice's groups. Each ledger has the most GPUs and users that a ledger can have; the first
/// two also have the most processes, and the first eight the most events.
fn forge(world: &World) -> Vec<File> {
    let mut gpus: Vec<DeviceId> = (0..GPUS).map(|number| gpu(world, number)).collect();
    gpus.extend((0..32 - GPUS).map(|number| DeviceId::gpu([0xe0 + number as u8; 16])));
    gpus.truncate(32);
    let first = group(world, "alice", ALICE, &gpus);
    let users = bills((0..MOST_BILLS as u32).map(|number| 50_000 + number));
    write(&first, BILLS, &users);
    let mut header = vec![0; 16 << 10];
    File::open(&first)
        .expect("opened")
        .read_exact(&mut header)
        .expect("read");
    let mut kept = vec![fill(&first)];
    for number in 1..groups() {
        let ledger = group(world, &format!("alice/g{number}"), ALICE, &[]);
        write(&ledger, 0, &header);
        write(&ledger, BILLS, &users);
        match number {
            1 => kept.push(fill(&ledger)),
            2..8 => fill_events(&ledger),
            _ => {}
        }
        if number % 2 == 1 {
            fs::set_permissions(&ledger, Permissions::from_mode(0o666)).expect("set");
        }
    }
    kept
}

fn groups() -> usize {
    let count = std::env::var("GPULIMIT_FORGED_GROUPS").ok();
    count.map_or(300, |count| count.parse().expect("a number"))
}

/// The output of a command, and the largest memory that the test saw it use, in KiB.
struct Ran {
    said: String,
    errors: String,
    peak: u64,
}

fn peak(child: &Child) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The time that a user's groups get, in milliseconds.
const TIME: &str = "GPULIMIT_DEBUG_BUDGET_MS";

/// Runs a command of root's that must succeed.
fn run(world: &World, arguments: &[&str], time: Duration) -> Ran {
    let mut command = world.bare(Path::new(env!("CARGO_BIN_EXE_gpulimit")));
    let [said, errors] = ["said", "errors"].map(|name| world.file(name));
    command
        .args(arguments)
        .env(TIME, time.as_millis().to_string())
        .stdin(Stdio::null())
        .stdout(File::create(&said).expect("made"))
        .stderr(File::create(&errors).expect("made"));
    let mut child = Guarded::start(&mut command);
    let mut highest = 0;
    let ended = eventually(|| {
        highest = highest.max(peak(&child.0).unwrap_or(0));
        child.0.try_wait().expect("asked").is_some()
    });
    assert!(ended, "{arguments:?} does not end");
    let ran = Ran {
        said: fs::read_to_string(said).expect("text"),
        errors: fs::read_to_string(errors).expect("text"),
        peak: highest,
    };
    assert!(
        child.0.wait().expect("ended").success(),
        "{arguments:?}: {}",
        ran.errors
    );
    ran
}

/// Asks a new server of root's. Returns the body, and the server's memory.
fn ask(world: &World, path: &str, time: Duration) -> Ran {
    let socket = world.file("socket");
    let mut command: Command = world.bare(Path::new(env!("CARGO_BIN_EXE_gpulimit")));
    let listen = format!("unix:{}", socket.display());
    command
        .args(["serve", "--listen", &listen])
        .env(TIME, time.as_millis().to_string())
        .stderr(Stdio::piped());
    let mut child = Guarded::start(&mut command);
    let mut stream = None;
    assert!(eventually(|| {
        stream = UnixStream::connect(&socket).ok();
        stream.is_some()
    }));
    let mut stream = stream.expect("connected");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("read");
    assert!(
        answer.starts_with("HTTP/1.1 200"),
        "{path}: {}",
        &answer[..200.min(answer.len())]
    );
    let highest = peak(&child.0).expect("it lives");
    child.0.kill().expect("killed");
    let mut errors = String::new();
    let mut pipe = child.0.stderr.take().expect("piped");
    pipe.read_to_string(&mut errors).expect("text");
    Ran {
        said: answer,
        errors,
        peak: highest,
    }
}

/// A row of the table in docs/security.md.
struct Row {
    /// What root runs.
    what: String,
    /// Whether a budget bounds the time that one user's groups get: without time, none is opened.
    has_time: bool,
    /// The bounds in KiB, of the output that one user adds, and of memory.
    output: usize,
    memory: u64,
}

fn rows() -> Vec<Row> {
    let page = fs::read_to_string("docs/security.md").expect("read");
    let (_, table) = page.split_once("| root runs |").expect("the table");
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let cells = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    let mib = |cell: &str| {
        let number = cell.strip_suffix(" MiB").expect(cell);
        number.parse::<usize>().expect("a number") << 10
    };
    let row = |cells: Vec<&str>| Row {
        what: cells[1].trim_matches('`').into(),
        has_time: cells[2].ends_with(" s"),
        output: mib(cells[3]),
        memory: mib(cells[4]) as u64,
    };
    cells.map(row).collect()
}

#[test]
fn root_spends_no_more_on_a_user_than_the_page_says() {
    let Some(world) = world() else { return };
    honest(&world);
    let run_row = |row: &str, time| match row.strip_prefix("GET ") {
        Some(path) => ask(&world, path, time),
        None => {
            let folder = world.file("saved");
            let row = row.replace("DIR", folder.to_str().expect("text"));
            let arguments: Vec<&str> = row.split(' ').skip(1).collect();
            let mut ran = run(&world, &arguments, time);
            if let Ok(files) = fs::read_dir(&folder) {
                for file in files {
                    let path = file.expect("listed").path();
                    ran.said += &fs::read_to_string(path).expect("read");
                }
                fs::remove_dir_all(&folder).expect("removed");
            }
            ran
        }
    };
    let before: Vec<Ran> = rows()
        .iter()
        .map(|row| run_row(&row.what, patience()))
        .collect();
    let _kept = forge(&world);
    let mut wrong = Vec::new();
    for (row, before) in rows().into_iter().zip(before) {
        let Row {
            what: row,
            has_time,
            output: bytes,
            memory,
        } = row;
        let ran = run_row(&row, patience());
        println!(
            "{row}: {} KiB, was {} KiB; memory {} KiB, was {} KiB",
            ran.said.len() >> 10,
            before.said.len() >> 10,
            ran.peak,
            before.peak
        );
        let bobs = |ran: &Ran| ran.said.matches("bob/b").count();
        let most = before.said.len() * 6 / 5 + (bytes << 10);
        let all = format!("{} groups of user 40001 are left out", groups());
        let without_time = has_time.then(|| run_row(&row, Duration::ZERO));
        let opens_none = |ran: Ran| [ran.errors, ran.said].concat().contains(&all);
        for (is_so, what) in [
            (ran.said.len() <= most, "is longer"),
            (ran.peak <= before.peak + memory, "takes more memory"),
            (bobs(&ran) == bobs(&before), "has other lines of Bob"),
            (!ran.said.contains("GPU-e0e0e0e0"), "shows a forged GPU"),
            (!ran.said.contains("50001"), "shows a forged user"),
            (without_time.is_none_or(opens_none), "has no bound of time"),
        ] {
            if !is_so {
                wrong.push(format!("{row}: {what}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_lost_gpu_counts_if_root_has_seen_it() {
    let Some(world) = world() else { return };
    let forged = DeviceId::gpu([0xe0; 16]);
    let ledger = group(
        &world,
        "bob",
        BOB,
        &[gpu(&world, 0), gpu(&world, 7), forged],
    );
    write(&ledger, BILLS, &bills([BOB].into_iter()));
    let (lost, forged) = (gpu(&world, 7).to_string(), forged.to_string());
    let shown = |said: &str| [&lost, &forged].map(|id| said.contains(id.as_str()));
    let report = || run(&world, &["report", "--json"], patience()).said;
    assert_eq!(shown(&report()), [true, false]);
    let folder = world.file("saved");
    let saved = folder.to_str().expect("text");
    world.machine().knob("gpus", "1");
    assert_eq!(shown(&report()), [false, false], "root has not seen it");
    world.machine().knob("gpus", &GPUS.to_string());
    run(&world, &["report", "--save", saved], patience());
    world.machine().knob("gpus", "1");
    assert_eq!(shown(&report()), [true, false], "it is in the trail");
    let mut command = world.bare(Path::new(env!("CARGO_BIN_EXE_gpulimit")));
    command
        .args(["report", "--json"])
        .env_remove("LD_LIBRARY_PATH");
    assert_eq!(
        shown(&text(&finish(&mut command))),
        [true, true],
        "without NVML"
    );
}
