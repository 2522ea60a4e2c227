//! A user fills the ledgers of hundreds of groups with GPUs and users that do not exist: what root
//! makes of them stays within the bounds of docs/security.md, and the lines of others are whole.
//!
//! `GPULIMIT_FORGED_GROUPS` sets the number of groups.

use crate::{ALICE, text};
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::Size;
use gpulimit_ledger::Ledger;
use gpulimit_limits::LimitSet;
use gpulimit_programs::world::World;
use gpulimit_support::{eventually, is_root};
use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const GPUS: usize = 8;
/// An honest user.
const BOB: u32 = 40_002;
/// The offset of a ledger's bills, the bytes of one, and their number.
const BILLS: u64 = (16 << 10) + (2 << 20) + (32 << 20);
const BILL: usize = 264;
const MOST_BILLS: usize = 247;

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

/// Makes Alice's groups. Each ledger has the most GPUs and users that a ledger can have.
fn forge(world: &World) {
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
    let count = std::env::var("GPULIMIT_FORGED_GROUPS").ok();
    for number in 1..count.map_or(300, |count| count.parse().expect("a number")) {
        let ledger = group(world, &format!("alice/g{number}"), ALICE, &[]);
        write(&ledger, 0, &header);
        write(&ledger, BILLS, &users);
    }
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

/// Runs a command of root's that must succeed.
fn run(world: &World, arguments: &[&str]) -> Ran {
    let mut command = world.bare(Path::new(env!("CARGO_BIN_EXE_gpulimit")));
    let [said, errors] = ["said", "errors"].map(|name| world.file(name));
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(File::create(&said).expect("made"))
        .stderr(File::create(&errors).expect("made"));
    let mut child = command.spawn().expect("started");
    let mut highest = 0;
    let ended = eventually(|| {
        highest = highest.max(peak(&child).unwrap_or(0));
        child.try_wait().expect("asked").is_some()
    });
    assert!(ended, "{arguments:?} does not end");
    let ran = Ran {
        said: fs::read_to_string(said).expect("text"),
        errors: fs::read_to_string(errors).expect("text"),
        peak: highest,
    };
    assert!(
        child.wait().expect("ended").success(),
        "{arguments:?}: {}",
        ran.errors
    );
    ran
}

/// Asks a new server of root's. Returns the body, and the server's memory.
fn ask(world: &World, path: &str) -> Ran {
    let socket = world.file("socket");
    let mut command: Command = world.bare(Path::new(env!("CARGO_BIN_EXE_gpulimit")));
    let listen = format!("unix:{}", socket.display());
    command
        .args(["serve", "--listen", &listen])
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("started");
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
    let highest = peak(&child).expect("it lives");
    child.kill().expect("killed");
    let output = child.wait_with_output().expect("ended");
    Ran {
        said: answer,
        errors: text(&output),
        peak: highest,
    }
}

/// The rows of the table in docs/security.md: what root runs, and its bounds in KiB, of the output
/// that one user adds and of memory.
fn rows() -> Vec<(String, usize, u64)> {
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
    cells
        .map(|cells| {
            (
                cells[1].trim_matches('`').into(),
                mib(cells[2]),
                mib(cells[3]) as u64,
            )
        })
        .collect()
}

#[test]
fn root_spends_no_more_on_a_user_than_the_page_says() {
    let Some(world) = world() else { return };
    honest(&world);
    let run_row = |row: &str| match row.strip_prefix("GET ") {
        Some(path) => ask(&world, path),
        None => {
            let folder = world.file("saved");
            let row = row.replace("DIR", folder.to_str().expect("text"));
            let mut ran = run(&world, &row.split(' ').skip(1).collect::<Vec<_>>());
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
    let before: Vec<Ran> = rows().iter().map(|(row, ..)| run_row(row)).collect();
    forge(&world);
    let mut wrong = Vec::new();
    for ((row, bytes, memory), before) in rows().into_iter().zip(before) {
        let ran = run_row(&row);
        println!(
            "{row}: {} KiB, was {} KiB; memory {} KiB, was {} KiB",
            ran.said.len() >> 10,
            before.said.len() >> 10,
            ran.peak,
            before.peak
        );
        let bobs = |ran: &Ran| ran.said.matches("bob/b").count();
        let most = before.said.len() * 6 / 5 + (bytes << 10);
        let says = ran.errors.contains("groups of user 40001 are left out");
        for (is_so, what) in [
            (ran.said.len() <= most, "is longer"),
            (ran.peak <= before.peak + memory, "takes more memory"),
            (bobs(&ran) == bobs(&before), "has other lines of Bob"),
            (!ran.said.contains("GPU-e0e0e0e0"), "shows a forged GPU"),
            (!ran.said.contains("50001"), "shows a forged user"),
            (says || row.contains("GET"), "does not say what is cut"),
        ] {
            if !is_so {
                wrong.push(format!("{row}: {what}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
