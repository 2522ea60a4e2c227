//! Programs under a limit, from an installation to its removal.

use std::path::Path;
use std::process::Command;

use gpulimit_ledger::NoWitness;
use gpulimit_programs::world::{self, GROUP, MIB, Session, World, text};

/// The limit that the programs share.
pub const CAP: u64 = 3000 * MIB;

/// An installation: its prefix, and how commands run in it.
pub struct Installation<'a> {
    pub prefix: &'a Path,
    pub enter: &'a dyn Fn(Command) -> Command,
}

impl Installation<'_> {
    fn command(&self, world: &World, arguments: &[&str]) -> Command {
        let mut command = world.bare(&self.prefix.join("bin/gpulimit"));
        command.args(arguments).env_remove("GPULIMIT_LIBRARY");
        (self.enter)(command)
    }

    /// Returns the output of the installed controller.
    #[track_caller]
    pub fn gpulimit(&self, world: &World, arguments: &[&str]) -> String {
        let output = world::finish(self.command(world, arguments));
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        text(&output.stdout)
    }

    fn start(&self, world: &World) -> Session {
        let program = world::program().to_str().expect("text");
        let mut session =
            Session::start(self.command(world, &["run", "--name", GROUP, "--", program]));
        assert_eq!(session.say("start"), "0 0");
        session
    }
}

/// Returns the path of the library that each member of the group has mapped.
fn libraries(world: &World) -> Vec<String> {
    let processes = world.ledger().processes(&NoWitness);
    let library = |pid: u32| {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("alive");
        let mut lines = maps
            .lines()
            .filter_map(|line| line.find('/').map(|at| &line[at..]));
        let found = lines.find(|path| path.contains("libgpulimit.so"));
        found.expect("the library").to_owned()
    };
    let mut all: Vec<_> = processes
        .iter()
        .map(|process| library(process.identity.pid))
        .collect();
    all.sort();
    all
}

/// A program starts with the old version, keeps its limit when the new version is installed, shares
/// the limit with a program started then, and both go on after the removal.
pub fn from_start_to_end(
    world: &World,
    at: &Installation<'_>,
    upgrade: &dyn Fn(),
    remove: &dyn Fn(),
) {
    let library = at.prefix.join("lib/gpulimit/libgpulimit.so");
    let library = library.to_str().expect("text");
    let doctor = at.gpulimit(world, &["doctor"]);
    assert!(doctor.contains(library), "{doctor}");

    let mut first = at.start(world);
    first.expect(&[("alloc a 500M", "0")]);
    assert!(
        libraries(world)[0].starts_with(library),
        "{:?}",
        libraries(world)
    );

    upgrade();
    // pip moves a folder away first.
    let is_gone = |path: &String| path.ends_with("libgpulimit.so (deleted)");
    first.expect(&[("alloc b 200M", "0"), ("alloc c 3000M", "2")]);
    let mut second = at.start(world);
    second.expect(&[("alloc a 500M", "0"), ("alloc b 900M", "2")]);
    first.expect(&[
        ("alloc c 900M", "2"),
        ("free b", "0"),
        ("alloc b 400M", "0"),
    ]);
    second.expect(&[("alloc b 700M", "2")]);
    // The old program keeps the file that it has mapped, the new program has the new file.
    let now = libraries(world);
    assert!(
        now.len() == 2 && now[0] == library && is_gone(&now[1]),
        "{now:?}"
    );
    let shown = at.gpulimit(world, &["ps", "--json"]);
    assert_eq!(shown.matches("\"pid\":").count(), 2, "{shown}");
    at.gpulimit(world, &["set", GROUP, "max=2900M"]);
    world.judge(CAP);

    remove();
    let mut there = Command::new("test");
    there.args(["-e", library]);
    assert!(world::finish((at.enter)(there)).status.code() == Some(1));
    let now = libraries(world);
    assert!(now.len() == 2 && now.iter().all(is_gone), "{now:?}");
    first.expect(&[
        ("free b", "0"),
        ("alloc b 300M", "0"),
        ("alloc c 900M", "2"),
    ]);
    second.expect(&[("alloc b 900M", "2"), ("free a", "0")]);
    world.judge(CAP);
    for session in [first, second] {
        let (status, errors) = session.end();
        assert!(status.success(), "{status}: {errors}");
        assert!(!errors.contains("ld.so"), "{errors}");
    }
    world.judge_end(CAP);
}

/// With the library in every program, gpulimit's own entry stays through an upgrade and is removed
/// with the package, while other entries stay.
pub fn system_wide(
    world: &World,
    system: &super::system::System,
    prefix: &str,
    upgrade: &dyn Fn(),
    remove: &dyn Fn() -> String,
) {
    let at = Installation {
        prefix: Path::new(prefix),
        enter: &|command| system.enter(&command),
    };
    let quiet = || assert_eq!(system.done("env -i ls / > /dev/null"), "");
    let library = format!("{prefix}/lib/gpulimit/libgpulimit.so");
    at.gpulimit(world, &["install"]);
    // The other entry is a copy of the library under a comment. (Of two comments glibc 2.36 misses
    // the second.)
    let others = "# others\n/usr/local/lib/other/libgpulimit.so\n";
    system.done(&format!(
        "mkdir -p /usr/local/lib/other; cp {library} /usr/local/lib/other/; \
            printf '{others}' >> /etc/ld.so.preload"
    ));
    let preload = || std::fs::read_to_string(system.at("/etc/ld.so.preload")).expect("there");
    assert_eq!(preload(), format!("{library}\n{others}"));
    quiet();
    upgrade();
    assert_eq!(preload(), format!("{library}\n{others}"));
    quiet();
    let said = remove();
    assert!(
        said.contains("/etc/ld.so.preload: the library removed"),
        "{said}"
    );
    assert_eq!(preload(), others);
    quiet();
}
