//! A process whose `/etc/ld.so.preload` lies on a FUSE file system that never answers requests to
//! open a file.

use crate::{Ground, Role, stay};
use gpulimit_support::skip;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::Command;
use std::thread;

/// Returns whether there are file systems in user space; skips if not.
pub fn has_fuse() -> bool {
    let has = Path::new("/dev/fuse").exists();
    if !has {
        skip("there is no /dev/fuse here");
    }
    has
}

/// Starts the process in a mount namespace of its own. It serves the file system itself: its end
/// ends the file system, and every wait for it. `None` where there is no FUSE.
pub fn start(ground: &Ground) -> Option<Role> {
    if !has_fuse() {
        return None;
    }
    let mut command = Command::new("unshare");
    command
        .arg("-m")
        .arg(std::env::current_exe().expect("known"))
        .env("HOSTILE_FUSE", ground.make("silent", 0, 0o755));
    let mut role = Role::start(&mut command, "silent::serving_process");
    role.line("#mounted");
    Some(role)
}

/// The process itself, started by other tests.
#[test]
#[ignore = "a part of other tests"]
fn serving_process() {
    let place = std::env::var_os("HOSTILE_FUSE").expect("a path");
    let place = Path::new(&place);
    let etc = Path::new("/etc");
    mount(&["-t", "tmpfs"], Path::new("none"), etc);
    fs::write("/etc/ld.so.preload", "").expect("written");
    mount_fuse(place, "", Answers::Names);
    let file = place.join("ld.so.preload");
    mount(&["--bind"], &file, &etc.join("ld.so.preload"));
    println!("\n#mounted");
    stay();
}

fn mount(arguments: &[&str], from: &Path, to: &Path) {
    let mut mount = Command::new("mount");
    let status = mount.args(arguments).args([from, to]).status();
    assert!(status.expect("mount").success(), "{arguments:?}");
}

/// The requests that the file system answers.
#[derive(Copy, Clone, Eq, PartialEq)]
pub enum Answers {
    /// All requests except those to open a file.
    Names,
    /// All requests except those to write.
    Reads,
}

/// Mounts the file system, and serves it as long as this process lives.
pub fn mount_fuse(place: &Path, options: &str, answers: Answers) {
    let fuse = File::options().read(true).write(true).open("/dev/fuse");
    let fuse = fuse.expect("opened");
    rustix::io::fcntl_setfd(fuse.as_fd(), rustix::io::FdFlags::empty()).expect("kept");
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0{options}",
        fuse.as_raw_fd()
    );
    mount(
        &["-i", "-t", "fuse", "-o", &options],
        Path::new("none"),
        place,
    );
    rustix::io::fcntl_setfd(fuse.as_fd(), rustix::io::FdFlags::CLOEXEC).expect("set");
    thread::spawn(move || serve(fuse, answers));
}

/// Answers a mount's requests, in the kernel's structures of version 7.31, as one directory with
/// any number of files.
fn serve(mut fuse: File, answers: Answers) {
    const LOOKUP: u32 = 1;
    const GETATTR: u32 = 3;
    const OPEN: u32 = 14;
    const READ: u32 = 15;
    const WRITE: u32 = 16;
    const STATFS: u32 = 17;
    const INIT: u32 = 26;
    const DIRECTORY: u64 = 1;
    let mut request = vec![0; 1 << 20];
    while let Ok(length) = fuse.read(&mut request) {
        assert!(length >= 40, "half a request");
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four"));
        let double = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().expect("eight"));
        let (operation, unique, node) = (word(4), double(8), double(16));
        let reply = match operation {
            OPEN | READ if answers == Answers::Names => continue,
            WRITE => continue,
            OPEN => words(&[0, 0]),
            READ => vec![0; 60],
            LOOKUP => [words(&[2, 0, 0, 0, 0]), attributes(2)].concat(),
            GETATTR => [words(&[0, 0]), attributes(node)].concat(),
            STATFS => vec![0; 80],
            // Version 7.31, no read-ahead and no flags; then the size of a write.
            INIT => [words(&[31 << 32 | 7, 0, 0, 0]), vec![0; 32]].concat(),
            _ => Vec::new(),
        };
        let error = if reply.is_empty() { -libc::ENOSYS } else { 0 };
        let length = u32::try_from(16 + reply.len()).expect("small");
        let head = [length.to_ne_bytes(), error.to_ne_bytes()].concat();
        let head = [head, unique.to_ne_bytes().to_vec()].concat();
        // The reply is ignored if the requesting process was killed.
        let _ = fuse.write(&[head, reply].concat());
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// `struct fuse_attr` on a little-endian machine: node, size and blocks; three times; then, in
    /// pairs of 32 bits, the nanoseconds of these and the mode, links and user, group and device,
    /// size of a block and flags.
    fn attributes(node: u64) -> Vec<u8> {
        let mode: u64 = match node {
            DIRECTORY => 0o040_755,
            _ => 0o100_666,
        };
        words(&[node, 60, 1, 0, 0, 0, 0, mode << 32, 1, 0, 4096])
    }
}
