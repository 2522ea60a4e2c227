//! Wrong handles: whatever a program passes to a hooked function, the program gets the same status
//! or signal as without gpulimit, and the library asks no other function of the driver about a
//! handle that the driver refuses.

use std::path::{Path, PathBuf};
use std::process::Command;

use gpulimit_programs::world::{self, World};

/// Returns the path of `tests/gpu/handles.py`, which calls every function with every wrong handle,
/// each in a process of its own.
fn cases() -> PathBuf {
    world::repository().join("tests/gpu/handles.py")
}

/// Runs the script with these arguments followed by the name of the file that it writes.
fn ask(mut command: Command, arguments: &[&str], file: &Path) {
    command.arg(cases()).args(arguments).arg("--out").arg(file);
    let status = command.status().expect("Python runs");
    assert!(status.success(), "{status:?}");
}

fn same_with(knobs: &[(&str, &str)]) {
    let (bare, limited) = (World::without_group(knobs), World::without_group(knobs));
    let (expected, found) = (bare.file("outcomes"), limited.file("outcomes"));
    let differences = limited.file("differences");
    let python = Path::new("python3");
    let mut left = String::new();
    // A difference may depend on what the process had at an address before; only a difference that
    // comes again counts.
    for round in 0..3 {
        let again = differences.display().to_string();
        let again: &[&str] = if round == 0 {
            &[]
        } else {
            &["--again", &again]
        };
        ask(bare.bare(python), again, &expected);
        let mut command = limited.preloaded(python);
        command.env("GPULIMIT_MAX", "60G");
        ask(command, again, &found);
        let text = std::fs::read_to_string(&found).expect("outcomes");
        // Every function has at least one case in which all handles are valid.
        assert!(
            round > 0 || text.matches(" valid\"").count() > 100,
            "{text}"
        );
        assert!(!text.contains("not set up"), "{text}");
        let (expected, found) = (expected.display().to_string(), found.display().to_string());
        let compare = [again, &["--compare", &expected, &found]].concat();
        ask(Command::new(python), &compare, &differences);
        left = std::fs::read_to_string(&differences).expect("differences");
        if left == "{}" {
            return;
        }
    }
    panic!("ends otherwise with a limit: {left}");
}

#[test]
fn wrong_handles_get_the_drivers_answer() {
    same_with(&[]);
}

/// The contexts and streams are on either of several GPUs.
#[test]
fn wrong_handles_get_the_drivers_answer_on_several_gpus() {
    same_with(&[("GPULIMIT_SIM_GPUS", "2")]);
}
