//! A stand-in for ssh, for tests of several machines.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Makes a program `ssh` in the folder, and returns a `PATH` that begins with it. For each machine
/// it runs a script, with the command as arguments. A machine without one is refused.
pub fn path(folder: &Path, machines: &[(&str, String)]) -> String {
    let case = |(machine, script): &(&str, String)| format!("{machine}) {script} ;;\n");
    let cases: String = machines.iter().map(case).collect();
    let text = format!(
        "#!/bin/bash\n[[ $* == *BatchMode=yes* && $* == *' -- '* ]] || exit 3\n\
         echo $$ >> {}/pids\nwhile [ \"$1\" != -- ]; do shift; done\nmachine=$2; shift 2\n\
         case $machine in\n{cases}\
         *) echo \"ssh: connect to host $machine port 22: Connection refused\" >&2; exit 255 ;;\n\
         esac\n",
        folder.display()
    );
    // Another thread's child could have the new file open for writing: so a program is moved there.
    let (new, program) = (folder.join("ssh-new"), folder.join("ssh"));
    fs::write(&new, text).expect("written");
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).expect("set");
    fs::rename(&new, &program).expect("moved");
    let usual = env::var("PATH").unwrap_or_default();
    format!("{}:{usual}", folder.display())
}

/// Returns how many commands the program of the folder has started, and how many are running.
pub fn count(folder: &Path) -> (usize, usize) {
    let pids = fs::read_to_string(folder.join("pids")).unwrap_or_default();
    let is_there = |pid: &&str| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z")
    };
    (pids.lines().count(), pids.lines().filter(is_there).count())
}
