//! Programs under a limit, from an installation to its end.

use std::path::Path;
use std::process::Command;

use gpulimit_ledger::NoWitness;
use gpulimit_programs::world::{self, GROUP, MIB, Session, World, text};

/// What the programs may use together.
pub const CAP: u64 = 3000 * MIB;

/// An installation: where it is, and how programs get there.
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

    /// What the installed controller says.
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

/// How the library stands in the members of the group: the path that each has mapped.
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

/// A program starts with the old version, goes on under its limit when the new one takes its place,
/// shares the limit with a program that starts then, and both go on when all of it is removed.
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
    // The old one keeps the file that it has mapped, the new one has the other.
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

/// The library in every program: an entry that is ours stays through an upgrade and goes with the
/// package, and those of others stay.
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
    // A copy of somebody else's, under a comment. (Of two comments glibc 2.36 misses the second.)
    let others = "# others\n/usr/local/lib/other/libgpulimit.so\n";
    system.done(&format!(
        "mkdir -p /usr/local/lib/other; cp {library} /usr/local/lib/other/; printf '{others}' >> /etc/ld.so.preload"
    ));
    let preload = || std::fs::read_to_string(system.at("/etc/ld.so.preload")).expect("there");
    assert_eq!(preload(), format!("{library}\n{others}"));
    quiet();
    upgrade();
    assert_eq!(preload(), format!("{library}\n{others}"));
    quiet();
    let said = remove();
    assert!(
        said.contains("removed the library from /etc/ld.so.preload"),
        "{said}"
    );
    assert_eq!(preload(), others);
    quiet();
}
