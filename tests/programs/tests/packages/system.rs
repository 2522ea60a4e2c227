//! This machine's file system under overlays of the test's own: installed files are in /usr, /etc,
//! /var and /run for the test's processes, and nowhere else.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use gpulimit_programs::world::{self, World};
use gpulimit_support::skip;

const PRIVATE: &str = r#"
set -e
mount --make-rprivate /
mkdir "$PLACE"
mount -t tmpfs -o mode=755 tmpfs "$PLACE"
for folder in usr etc var; do
    mkdir -p "$PLACE/$folder" "$PLACE/spare/$folder"
    mount -t overlay overlay "/$folder" \
        -o "lowerdir=/$folder,upperdir=$PLACE/$folder,workdir=$PLACE/spare/$folder"
done
mkdir "$PLACE/run"
mount --bind "$PLACE/run" /run
# Without this file no installation updates the index of manual pages.
rm -rf /etc/ld.so.preload /etc/gpulimit /var/lib/man-db/auto-update
# The system looks as if systemd ran; systemctl records its calls.
mkdir -p /run/systemd/system
cat > /usr/bin/systemctl <<'END'
#!/bin/sh
echo "systemctl $*" >> /run/asked
END
chmod 755 /usr/bin/systemctl
echo ready
exec cat
"#;

/// The system, which is removed when the value is dropped.
pub struct System {
    keeper: Child,
    place: PathBuf,
}

impl System {
    /// Makes the system; `None` where it cannot be made.
    pub fn new(world: &World) -> Option<System> {
        let mut keeper = Command::new("unshare")
            .args(["--mount", "--", "sh", "-c", PRIVATE])
            .env("PLACE", world.file("system"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut line = [0; 6];
        let output = keeper.stdout.as_mut().expect("piped");
        if std::io::Read::read_exact(output, &mut line).is_err() {
            let _ = keeper.wait();
            skip("no mount namespaces with overlays here, which take root");
            return None;
        }
        Some(System {
            keeper,
            place: world.file("system"),
        })
    }

    /// Returns a command in the system, with the variables of another command.
    pub fn enter(&self, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside
            .arg(format!("--mount=/proc/{}/ns/mnt", self.keeper.id()))
            .arg("--wdns=/")
            .arg(command.get_program())
            .args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }

    /// Runs a shell script in the system.
    pub fn shell(&self, script: &str) -> Output {
        let mut command = Command::new("sh");
        command.args(["-ec", script]).env("LC_ALL", "C");
        world::finish(self.enter(&command))
    }

    /// Runs a shell script that must succeed, and returns its output.
    #[track_caller]
    pub fn done(&self, script: &str) -> String {
        let output = self.shell(script);
        assert!(output.status.success(), "{script}: {output:?}");
        world::text(&output.stdout) + &world::text(&output.stderr)
    }

    /// Returns the path at which a path of the system can be reached from outside.
    pub fn at(&self, path: &str) -> PathBuf {
        Path::new(&format!("/proc/{}/root", self.keeper.id())).join(path.trim_start_matches('/'))
    }

    /// Asserts that systemd was asked to mount the groups' file system, and, where systemd is
    /// installed, that their root was made as tmpfiles.d says.
    #[track_caller]
    pub fn made_root(&self) {
        let asked = self.done("cat /run/asked");
        assert!(asked.contains("start run-gpulimit.mount"), "{asked}");
        if self.shell("command -v systemd-tmpfiles").status.success() {
            assert_eq!(self.done("stat -c '%a %U' /run/gpulimit"), "755 root\n");
        }
    }

    /// Asserts that the report's files go to a directory of root's.
    #[track_caller]
    pub fn made_logs(&self) {
        assert_eq!(self.done("stat -c '%a %U' /var/log/gpulimit"), "750 root\n");
    }

    /// Returns the files below /usr and /etc that this machine itself does not have.
    pub fn added(&self) -> Vec<String> {
        let script = format!(
            "cd {}; find usr etc -type f ! -path usr/bin/systemctl \
             ! -name '*.cache' ! -name .rpmdbdir",
            self.place.display()
        );
        self.done(&script).lines().map(str::to_owned).collect()
    }
}

impl Drop for System {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}
