//! Detection of file systems that cannot store gpulimit groups. A group's processes map the group's
//! files and hold file locks, so a file system needs three properties:
//!
//! - Only one machine uses the file system.
//! - A mapped file stays open and keeps its locks.
//! - A write changes the file itself and not a copy of it.
#![allow(unsafe_code)]

use crate::proc;
use std::borrow::Cow;
use std::error::Error;
use std::ffi::CString;
use std::fmt;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The properties of a file system that decide whether gpulimit groups can be stored on it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FileSystem {
    /// The file system's name as `mount` shows it, such as `fuse.sshfs`. An unknown name is
    /// replaced by the magic number.
    pub name: Cow<'static, str>,
    /// The reason why this file system cannot store groups; `None` if it can store them.
    pub fault: Option<Fault>,
}

/// A reason why a group cannot be stored on a file system.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Fault {
    /// Several hosts can mount the file system, but a mapped file is not shared between hosts.
    Network,
    /// The first write to a file changes a copy. Processes that already mapped the file do not see
    /// the change.
    CopiesUp,
    /// The file system drops a file lock when the descriptor is closed, even if the file is still
    /// mapped.
    LosesLocks,
}

/// The error for a path on a file system on which groups cannot be stored.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Unsuitable {
    /// The root directory of all groups, a group's directory, or a file in a group's directory.
    pub path: PathBuf,
    /// The name of the file system, as the command `mount` shows it.
    pub name: Cow<'static, str>,
    /// The reason why groups cannot be stored on the file system.
    pub fault: Fault,
}

const FUSE: u32 = 0x6573_5546;

/// The known file systems by their magic numbers in `statfs(2)`, from linux/magic.h and from the
/// file systems' own sources.
const KNOWN: [(u32, &str, Option<Fault>); 28] = [
    (0x0102_1994, "tmpfs", None),
    (0x8584_58f6, "ramfs", None),
    (0xef53, "ext4", None),
    (0x5846_5342, "xfs", None),
    (0x9123_683e, "btrfs", None),
    (0x2fc1_2fc1, "zfs", None),
    (0xf2f5_2010, "f2fs", None),
    (0xca45_1a4e, "bcachefs", None),
    (0x794c_7630, "overlayfs", Some(Fault::CopiesUp)),
    (0x6175_6673, "aufs", Some(Fault::CopiesUp)),
    (0x6969, "nfs", Some(Fault::Network)),
    (0x517b, "smbfs", Some(Fault::Network)),
    (0xff53_4d42, "cifs", Some(Fault::Network)),
    (0xfe53_4d42, "smb3", Some(Fault::Network)),
    (0x0102_1997, "9p", Some(Fault::Network)),
    (0x00c3_6400, "ceph", Some(Fault::Network)),
    (0x0bd0_0bd0, "lustre", Some(Fault::Network)),
    (0x4750_4653, "gpfs", Some(Fault::Network)),
    (0x5346_414f, "afs", Some(Fault::Network)),
    (0x6b41_4653, "afs", Some(Fault::Network)),
    (0x7375_7245, "coda", Some(Fault::Network)),
    (0x7461_636f, "ocfs2", Some(Fault::Network)),
    (0x0116_1970, "gfs2", Some(Fault::Network)),
    (0x1983_0326, "beegfs", Some(Fault::Network)),
    (0xaad7_aaea, "panfs", Some(Fault::Network)),
    (0x2003_0528, "orangefs", Some(Fault::Network)),
    (0x564c, "ncpfs", Some(Fault::Network)),
    (0x786f_4256, "vboxsf", Some(Fault::Network)),
];

/// Remote file systems as `/proc/self/mountinfo` names them. The files of virtiofs lie on the host
/// of the virtual machine.
const REMOTE: [&str; 22] = [
    "virtiofs",
    "fuse.beegfs",
    "fuse.blobfuse",
    "fuse.blobfuse2",
    "fuse.ceph",
    "fuse.ceph-fuse",
    "fuse.curlftpfs",
    "fuse.cvmfs2",
    "fuse.davfs",
    "fuse.davfs2",
    "fuse.dfuse",
    "fuse.gcsfuse",
    "fuse.glusterfs",
    "fuse.goofys",
    "fuse.juicefs",
    "fuse.mfs",
    "fuse.moosefs",
    "fuse.rclone",
    "fuse.s3fs",
    "fuse.seaweedfs",
    "fuse.smbnetfs",
    "fuse.sshfs",
];

impl FileSystem {
    /// Returns the file system on which a path lies.
    pub fn of(path: &Path) -> io::Result<Self> {
        let magic = magic(path)?;
        if let Some((_, name, fault)) = KNOWN.iter().find(|(known, ..)| *known == magic) {
            return Ok(Self {
                name: Cow::Borrowed(name),
                fault: *fault,
            });
        }
        let name = match mounted_as(path) {
            Some(name) => name,
            None if magic == FUSE => "fuse".into(),
            None => format!("file system {magic:#x}"),
        };
        Ok(Self {
            fault: REMOTE.contains(&&*name).then_some(Fault::Network),
            name: name.into(),
        })
    }
}

/// Returns an error if groups cannot be stored on the path's file system. Accepts an unknown file
/// system.
pub fn check(path: &Path) -> Result<(), Unsuitable> {
    match FileSystem::of(path) {
        Ok(FileSystem {
            name,
            fault: Some(fault),
        }) => Err(Unsuitable {
            path: path.into(),
            name,
            fault,
        }),
        _ => Ok(()),
    }
}

impl Unsuitable {
    /// Returns the error for a path on a file system that dropped the lock of a mapped file.
    pub fn loses_locks(path: &Path) -> Self {
        // The file at the path may not exist yet. Its directory exists, so the directory is
        // examined.
        let there = path.ancestors().find(|path| path.exists());
        let found = FileSystem::of(there.unwrap_or(path));
        Self {
            path: path.into(),
            name: found.map_or("unknown".into(), |found| found.name),
            fault: Fault::LosesLocks,
        }
    }
}

/// Returns the magic number by which `statfs(2)` identifies a file system.
fn magic(path: &Path) -> io::Result<u32> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut about = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the path ends with a zero byte; the call writes at most one `statfs`, and a complete
    // one on success.
    let about = unsafe {
        match libc::statfs(path.as_ptr(), about.as_mut_ptr()) {
            0 => about.assume_init(),
            _ => return Err(io::Error::last_os_error()),
        }
    };
    // Magic numbers have 32 bits. The width and the sign of `f_type` depend on the architecture.
    Ok(about.f_type as u32)
}

/// Returns the name that the mount table shows for the file system of a path.
fn mounted_as(path: &Path) -> Option<String> {
    let device = fs::metadata(path).ok()?.dev();
    let mounts = proc::read("/proc/self/mountinfo").ok()?;
    let wanted = format!("{}:{}", libc::major(device), libc::minor(device));
    mounts
        .lines()
        .find_map(|line| name_in(line, &wanted))
        .map(Into::into)
}

/// Returns the file system's name from a line of `mountinfo` (first field after ` - `), if the
/// third field is `device`.
fn name_in<'a>(line: &'a str, device: &str) -> Option<&'a str> {
    let mut fields = line.split(' ');
    (fields.nth(2)? == device).then_some(())?;
    fields.find(|field| *field == "-")?;
    fields.next()
}

impl fmt::Display for Unsuitable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, name, fault } = self;
        write!(
            f,
            "{} lies on {name}, which cannot hold groups, because {fault}",
            path.display()
        )?;
        f.write_str(
            ": put the group root on tmpfs, ext4, xfs or btrfs, such as /run/gpulimit of the host \
             or GPULIMIT_ROOT=/dev/shm/gpulimit (docs/file-systems.md)",
        )
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Network => "this file system does not share mapped memory between machines",
            Self::CopiesUp => {
                "this file system copies a file at the first write to it, and drops the lock on \
                 a mapped file when the file is closed"
            }
            Self::LosesLocks => {
                "this file system drops the lock on a mapped file when the file is closed"
            }
        })
    }
}

impl Error for Unsuitable {}

/// Returns whether a directory is the top directory of a mounted file system. Returns false if the
/// function cannot determine this.
pub fn is_mount_point(path: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).ok().map(|about| about.dev());
    match (device(path), device(&path.join(".."))) {
        (Some(own), Some(above)) => own != above,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_refused() {
        let fault = |name| {
            let found = KNOWN.iter().find(|(_, known, _)| *known == name);
            found.map(|(.., fault)| *fault)
        };
        for name in ["nfs", "cifs", "smb3", "9p", "ceph", "lustre", "gpfs", "afs"] {
            assert_eq!(fault(name), Some(Some(Fault::Network)), "{name}");
        }
        for name in ["tmpfs", "ext4", "xfs", "btrfs"] {
            assert_eq!(fault(name), Some(None), "{name}");
        }
    }

    #[test]
    fn a_mounted_file_system_is_recognised() {
        let here = FileSystem::of(Path::new("/dev/shm")).expect("there");
        let name = mounted_as(Path::new("/dev/shm")).expect("mounted");
        assert_eq!((&*here.name, here.fault), (&*name, None));
        assert!(FileSystem::of(Path::new("/dev/shm/missing/path")).is_err());
        assert_eq!(check(Path::new("/dev/shm/missing/path")), Ok(()));
    }

    #[test]
    fn the_name_is_read_from_the_line_of_the_device() {
        let line = "79 63 0:53 / /mnt/x rw,nosuid shared:1 - fuse.sshfs host:/ rw,user_id=0";
        assert_eq!(name_in(line, "0:53"), Some("fuse.sshfs"));
        assert_eq!(name_in(line, "0:5"), None);
        assert_eq!(name_in("79 63 0:53 / /mnt", "0:53"), None);
    }

    #[test]
    fn the_refusal_names_cause_and_remedy() {
        let refused = Unsuitable {
            path: "/x".into(),
            name: "overlayfs".into(),
            fault: Fault::CopiesUp,
        };
        let text = refused.to_string();
        assert!(
            text.starts_with(
                "/x lies on overlayfs, which cannot hold groups, because this file system copies"
            ),
            "{text}"
        );
        assert!(text.contains("GPULIMIT_ROOT="), "{text}");
    }
}
