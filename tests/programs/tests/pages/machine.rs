//! A machine for a page: a shell as root on the simulated driver, in a mount namespace with an
//! /etc, /run, /usr/local and home of the test's own. The users alice and bob are in the unix group
//! lab.

use crate::compare;
use crate::page::Block;
use gpulimit_programs::world::{self, World, repository};
use gpulimit_support::patience;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

const SETUP: &str = r#"
set -e
mount --make-rprivate /
mkdir "$PLACE"
mount -t tmpfs -o mode=755 tmpfs "$PLACE"
cp -a /etc "$PLACE/etc"
cd "$PLACE"
mkdir -m 755 local run home
mkdir -p local/bin local/lib/gpulimit
# On the machine `admin` the page itself makes the root.
[ "$NAME" = admin ] || { mkdir run/gpulimit && mount -t tmpfs -o mode=755 gpulimit run/gpulimit; }
cp "$DRIVER"/*.so* local/lib/
cp "$GPULIMIT" "$FILL" local/bin/
cp "$LIBRARY" local/lib/gpulimit/
ln -s "$(python3 -c 'import sys; print(sys.executable)')" local/bin/python
cp "$FILES"/* home/
rm -f etc/ld.so.preload
# The users of this machine are replaced by those of the pages.
sed -i -E '/^[^:]*:[^:]*:[1-9][0-9]{3,4}:/d' etc/passwd
printf 'alice:x:41001:41001::/home:/bin/sh\nbob:x:41002:41002::/home:/bin/sh\n' >> etc/passwd
printf 'alice:x:41001:\nbob:x:41002:\nlab:x:41003:alice,bob\n' >> etc/group
printf 'alice:*:20000::::::\nbob:*:20000::::::\n' >> etc/shadow
mount --bind etc /etc
mount --bind local /usr/local
mount --rbind run /run
# Nothing but the place of this test remains of /dev/shm: other users' groups do not.
mkdir shm
mount -t tmpfs -o mode=1777 tmpfs shm
world=$(dirname "$PLACE")
mkdir -p "shm/${world#/dev/shm/}"
mount --rbind "$world" "shm/${world#/dev/shm/}"
mount --rbind shm /dev/shm
ldconfig
unset LD_LIBRARY_PATH
# Login shells get the simulated driver, too.
echo "export GPULIMIT_SIM_STATE=$GPULIMIT_SIM_STATE PATH=/usr/local/bin:/usr/bin:/bin" > etc/profile
cd home
export HOME=$PWD PATH="/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
unset LD_PRELOAD
set +e
echo READY
"#;

/// Starts a shell of alice, who is not root.
const USER: &str = "setpriv --reuid alice --regid alice --init-groups bash --norc";
/// A line printed at the end of a block.
const END: &str = "--- end of block ---";

/// The machine, and the shell on it.
pub struct Machine {
    shell: Child,
    input: ChildStdin,
    output: Receiver<String>,
    _world: World,
}

impl Machine {
    /// Makes the machine; `None`, with a message, where it cannot be made.
    pub fn new(name: &str) -> Option<Machine> {
        if !world::may_mount() {
            return None;
        }
        let world = World::without_group(&[]);
        let mut command = world.bare(Path::new("unshare"));
        command
            .args(["--mount", "--", "bash", "--norc"])
            .env("NAME", name)
            .env("PLACE", world.file("system"))
            .env("GPULIMIT", world::controller())
            .env("LIBRARY", world::shim())
            .env("FILL", world::demo())
            .env("DRIVER", world::driver())
            .env(
                "FILES",
                repository().join("tests/programs/tests/pages/home"),
            )
            .env_remove("GPULIMIT_ROOT")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut shell = command.spawn().expect("a shell");
        let (send, output) = channel();
        let lines = BufReader::new(shell.stdout.take().expect("piped")).lines();
        std::thread::spawn(move || {
            // The reader of the lines may be gone.
            lines
                .map_while(Result::ok)
                .all(|line| send.send(line).is_ok())
        });
        let input = shell.stdin.take().expect("piped");
        let mut machine = Machine {
            shell,
            input,
            output,
            _world: world,
        };
        machine.type_in("exec 2>&1");
        machine.type_in(SETUP);
        let ready = machine.until("READY", &mut Vec::new());
        assert!(ready, "the machine cannot be made");
        Some(machine)
    }

    fn type_in(&mut self, text: &str) {
        writeln!(self.input, "{text}").expect("the shell listens");
    }

    /// Takes lines up to this one; returns false if it never comes.
    fn until(&mut self, end: &str, lines: &mut Vec<String>) -> bool {
        loop {
            match self.output.recv_timeout(patience()) {
                Ok(line) if line == end => return true,
                Ok(line) => lines.push(line),
                Err(_) => {
                    eprintln!("{}", lines.join("\n"));
                    return false;
                }
            }
        }
    }

    /// Takes lines until all of these have come.
    #[track_caller]
    fn until_said(&mut self, path: &str, at: usize, says: &[String], found: &mut Vec<String>) {
        loop {
            let (missing, _) = compare::difference(says, found);
            if missing.is_empty() {
                return;
            }
            match self.output.recv_timeout(patience()) {
                Ok(line) => found.push(line),
                Err(_) => panic!(
                    "{path}:{at}: not said: {missing:#?}\nall: {}",
                    found.join("\n")
                ),
            }
        }
    }

    /// Runs the commands of a block, and compares their output; returns the number of commands.
    #[track_caller]
    pub fn follow(&mut self, path: &str, block: &Block) -> usize {
        if let Block::File { path, content, .. } = block {
            self.type_in(&format!(
                "mkdir -p \"$(dirname '{path}')\"; \
                 cat > '{path}' <<'END OF FILE'\n{content}END OF FILE"
            ));
        }
        let Block::Run {
            line,
            commands,
            says,
            ..
        } = block
        else {
            return 0;
        };
        let mut found = Vec::new();
        let mut is_user = false;
        for command in commands {
            if command.by_user != is_user {
                // The new shell reads the same input, from the next line on.
                self.type_in(if is_user { "exit" } else { USER });
                is_user = command.by_user;
            }
            if command.text.starts_with("sleep ") {
                // A reader of the page waits for its output, however long that takes here.
                let said = says.as_deref().unwrap_or_default();
                self.until_said(path, *line, &said[..command.after], &mut found);
            }
            self.type_in(&command.text);
            if says.is_none() {
                self.type_in("echo \"--- status $? ---\"");
            }
        }
        if is_user {
            self.type_in("exit");
        }
        self.type_in(&format!("echo '{END}'"));
        assert!(self.until(END, &mut found), "{path}:{line}: no end");
        let Some(says) = says else {
            let wrong =
                |line: &&String| line.starts_with("--- status ") && !line.ends_with(" 0 ---");
            let wrong: Vec<_> = found.iter().filter(wrong).collect();
            assert!(wrong.is_empty(), "{path}:{line}: {}", found.join("\n"));
            return commands.len();
        };
        // Programs in the background print in their own time.
        loop {
            let (missing, more) = compare::difference(says, &found);
            if missing.is_empty() && more.is_empty() {
                return commands.len();
            }
            // A line that is not on the page is an error, whatever comes after it.
            let next = match more.is_empty() {
                true => self.output.recv_timeout(patience()).ok(),
                false => None,
            };
            found.push(next.unwrap_or_else(|| {
                let all = found.join("\n");
                panic!(
                    "{path}:{line}: not said: {missing:#?}\nand not on the page: {more:#?}\n\
                     all: {all}"
                )
            }));
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The signal also ends the shell's programs in the background.
        let group = format!("-{}", self.shell.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = self.shell.wait();
    }
}
