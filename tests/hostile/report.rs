//! A user prepares the directory where root saves reports: root writes to no other file.

use crate::{ALICE, Ground, run};
use gpulimit_base::device::DeviceId;
use gpulimit_group::Root;
use gpulimit_ledger::Ledger;
use std::cell::Cell;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::Path;
use std::process::Command;

const GIB: u64 = 1 << 30;
const PRECIOUS: &str = "precious\n";

/// Puts something in the place of a file.
type Trap<'a> = &'a dyn Fn(&Path);

/// Makes a group that has a line in reports.
fn group(ground: &Ground) {
    let (status, said) = run(&mut ground.gpulimit(&["create", "lab", "max=1G"]));
    assert_eq!(status, Some(0), "{said}");
    let root = Root::at(ground.at("groups")).expect("a root");
    let path = root.group("lab").expect("there").ledger_path();
    let ledger = Ledger::open(&path).expect("opened");
    ledger.device(DeviceId::gpu([1; 16]), GIB).expect("room");
}

/// Saves a report in a directory.
fn save(ground: &Ground, directory: &Path) -> (Option<i32>, String) {
    let directory = directory.to_str().expect("text");
    run(&mut ground.gpulimit(&["report", "--save", directory]))
}

/// Returns the name of the file of this day.
fn today(ground: &Ground) -> String {
    let empty = ground.make("today", 0, 0o700);
    let (status, said) = save(ground, &empty);
    assert_eq!(status, Some(0), "{said}");
    let mut files = fs::read_dir(&empty).expect("listed");
    let file = files.next().expect("a file").expect("listed");
    let name = file.file_name().into_string().expect("text");
    fs::remove_dir_all(&empty).expect("removed");
    name
}

/// Saves a report in a new directory of a user's, where something is in the place of the file.
/// Tries again if a day ends meanwhile.
fn save_on_one_day(ground: &Ground, owner: u32, set: Trap<'_>) -> (Option<i32>, String) {
    loop {
        let name = today(ground);
        let directory = ground.make("reports", owner, 0o755);
        set(&directory.join(&name));
        let saved = save(ground, &directory);
        fs::remove_dir_all(&directory).expect("removed");
        if today(ground) == name {
            return saved;
        }
    }
}

#[test]
fn a_report_is_saved_in_no_other_file_than_that_of_the_day() {
    let Some(ground) = Ground::new() else { return };
    group(&ground);
    let other = ground.write("other", PRECIOUS, 0, 0o600);
    let traps: [(&str, Trap<'_>); 4] = [
        ("a link", &|path| symlink(&other, path).expect("linked")),
        ("a second name", &|path| {
            fs::hard_link(&other, path).expect("linked");
        }),
        ("a pipe", &|path| {
            let made = Command::new("mkfifo").arg(path).status();
            assert!(made.expect("run").success());
        }),
        ("a directory", &|path| fs::create_dir(path).expect("made")),
    ];
    for (trap, set) in traps {
        let (status, said) = save_on_one_day(&ground, ALICE, set);
        assert_eq!(status, Some(1), "{trap}: {said}");
        let is_named = said.contains("no regular file") || trap == "a directory";
        assert!(said.contains("cannot open") && is_named, "{trap}: {said}");
        assert_eq!(
            fs::read_to_string(&other).expect("read"),
            PRECIOUS,
            "{trap}"
        );
    }
    // The pipe also has a reader.
    let reader = Cell::new(None);
    let (status, said) = save_on_one_day(&ground, ALICE, &|pipe| {
        let made = Command::new("mkfifo").arg(pipe).status();
        assert!(made.expect("run").success());
        let mut options = File::options();
        let options = options.read(true).custom_flags(libc::O_NONBLOCK);
        reader.set(Some(options.open(pipe).expect("opened")));
    });
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("no regular file"), "{said}");
}

#[test]
fn a_report_begins_a_line_of_its_own() {
    let Some(ground) = Ground::new() else { return };
    group(&ground);
    let file = Cell::new(None);
    let (status, said) = save_on_one_day(&ground, 0, &|path| {
        fs::write(path, "half a li").expect("written");
        file.set(Some((File::open(path).expect("opened"), path.to_owned())));
    });
    assert_eq!(status, Some(0), "{said}");
    let (mut file, path) = file.take().expect("saved");
    let mut text = String::new();
    file.read_to_string(&mut text).expect("read");
    let day = path.file_name().expect("a name").to_string_lossy();
    let row = format!("half a li\n{}T", &day[..10]);
    assert!(text.starts_with(&row), "{text:?}");
}

#[test]
fn a_report_that_does_not_fit_leaves_no_half_line() {
    let Some(ground) = Ground::new() else { return };
    group(&ground);
    let directory = ground.make("reports", 0, 0o755);
    let path = directory.join(today(&ground));
    // The file system has room for half a line.
    let script = "set -e
        mount -t tmpfs -o size=4k none \"$1\"
        head -c 4050 /dev/zero | tr '\\0' '\\n' >\"$2\"
        \"$3\" report --save \"$1\" && exit 9
        wc -c <\"$2\"";
    let (status, said) = run(Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .args([&directory, &path])
        .arg(env!("CARGO_BIN_EXE_gpulimit"))
        .env("GPULIMIT_ROOT", ground.at("groups")));
    assert!(said.contains("No space left"), "{said}");
    assert_eq!(
        (status, said.lines().next()),
        (Some(0), Some("4050")),
        "{said}"
    );
}
