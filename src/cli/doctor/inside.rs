//! Starts a program in another process's file system, to see what its dynamic linker says.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Runs `true` in the mount namespace of a process, with this as LD_PRELOAD; returns what it said on stderr.
///
/// Fails where we may not enter it (without CAP_SYS_ADMIN), and where there is no `true` in there.
pub(super) fn start(pid: u32, preload: &OsStr) -> io::Result<String> {
    let namespace = File::open(format!("/proc/{pid}/ns/mnt"))?;
    let root = File::open(format!("/proc/{pid}/root"))?;
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for program in ["/bin/true", "/usr/bin/true", "/bin/sh"] {
        let (namespace, root) = (namespace.as_raw_fd(), root.as_raw_fd());
        let mut command = Command::new(program);
        command
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        if program.ends_with("sh") {
            command.args(["-c", ":"]);
        }
        if !preload.is_empty() {
            command.env("LD_PRELOAD", preload);
        }
        // SAFETY: between fork and exec only system calls are made, on descriptors that are open until then.
        unsafe {
            command.pre_exec(move || {
                let entered = libc::setns(namespace, libc::CLONE_NEWNS) == 0
                    && libc::fchdir(root) == 0
                    && libc::chroot(c".".as_ptr()) == 0;
                if entered {
                    Ok(())
                } else {
                    Err(io::Error::last_os_error())
                }
            });
        }
        match command.output() {
            Ok(output) if output.status.success() => {
                return Ok(String::from_utf8_lossy(&output.stderr).into_owned());
            }
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                return Ok(format!("{program} ended with {}: {said}", output.status));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}
