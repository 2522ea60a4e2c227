//! The file system that a path lies on, and whether a group can lie there.
//!
//! Members share memory by mapping the files of a group, and say by a kernel lock that they live.
//! Both need a file system of one machine whose mappings keep the opened file, and whose files stay
//! the same when they are written.
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

/// A file system, as far as it concerns groups.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FileSystem {
    /// The name that `mount` shows, such as `tmpfs` or `fuse.sshfs`; a number where nobody knows a
    /// name.
    pub name: Cow<'static, str>,
    /// Why no group can lie there.
    pub fault: Option<Fault>,
}

/// Why no group can lie on a file system.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Fault {
    /// Other hosts have it mounted, and memory mapped there is not shared with them.
    Network,
    /// The first write to a file makes another file of it: who mapped it before does not see the
    /// change.
    CopiesUp,
    /// A mapping does not keep a lock when the descriptor is closed: nobody can tell that a program
    /// lives.
    LosesLocks,
}

/// A path on a file system that cannot have groups.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Unsuitable {
    /// The root, the group or a file of it.
    pub path: PathBuf,
    /// The name of the file system.
    pub name: Cow<'static, str>,
    /// Why not.
    pub fault: Fault,
}

const FUSE: u32 = 0x6573_5546;

/// Magic numbers of `statfs(2)`: linux/magic.h, and those of the projects themselves.
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

/// What `/proc/self/mountinfo` calls file systems in user space whose files lie on other machines,
/// and the virtio file system of virtual ones.
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
    /// The file system that a path lies on.
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

/// Refuses a path on a file system that cannot have groups. What cannot be told is no reason.
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
    /// The file system of this path was found to lose locks.
    pub fn loses_locks(path: &Path) -> Self {
        // A file that was not made, because of this, has a directory.
        let there = path.ancestors().find(|path| path.exists());
        let found = FileSystem::of(there.unwrap_or(path));
        Self {
            path: path.into(),
            name: found.map_or("unknown".into(), |found| found.name),
            fault: Fault::LosesLocks,
        }
    }
}

/// The number by which `statfs(2)` names a file system.
fn magic(path: &Path) -> io::Result<u32> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut about = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: a path that ends with a zero, and room for one `statfs`, which the call fills where
    // it succeeds.
    let about = unsafe {
        match libc::statfs(path.as_ptr(), about.as_mut_ptr()) {
            0 => about.assume_init(),
            _ => return Err(io::Error::last_os_error()),
        }
    };
    // Of different widths and signs on different architectures; the numbers have 32 bits.
    Ok(about.f_type as u32)
}

/// The name under which the file system of a path is mounted here.
fn mounted_as(path: &Path) -> Option<String> {
    let device = fs::metadata(path).ok()?.dev();
    let mounts = proc::read("/proc/self/mountinfo").ok()?;
    let wanted = format!("{}:{}", libc::major(device), libc::minor(device));
    mounts
        .lines()
        .find_map(|line| name_in(line, &wanted))
        .map(Into::into)
}

/// The name in a line of `mountinfo`, if that is about this device: the third field, and the first
/// one after the ` - `.
fn name_in<'a>(line: &'a str, device: &str) -> Option<&'a str> {
    let (mount, file_system) = line.split_once(" - ")?;
    (mount.split(' ').nth(2)? == device).then_some(())?;
    file_system.split(' ').next()
}

impl fmt::Display for Unsuitable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, name, fault } = self;
        write!(f, "{} lies on {name}, which {fault}", path.display())?;
        f.write_str(
            ": put the root on tmpfs, ext4, xfs or btrfs, such as /run/gpulimit of the host or \
             GPULIMIT_ROOT=/dev/shm/gpulimit (docs/file-systems.md)",
        )
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Network => "does not share mapped memory between machines",
            Self::CopiesUp => {
                "copies a file at its first write and drops the lock of a program that has closed \
                 its descriptor"
            }
            Self::LosesLocks => "drops the lock of a program that has closed its descriptor",
        })
    }
}

impl Error for Unsuitable {}

/// Returns whether a directory is the top of a file system of its own. False where that cannot be
/// told.
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
    fn every_file_system_of_other_machines_is_refused() {
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
    fn the_file_system_here_has_its_name() {
        let here = FileSystem::of(Path::new("/dev/shm")).expect("there");
        let name = mounted_as(Path::new("/dev/shm")).expect("mounted");
        assert_eq!((&*here.name, here.fault), (&*name, None));
        assert!(FileSystem::of(Path::new("/dev/shm/missing/path")).is_err());
        assert_eq!(check(Path::new("/dev/shm/missing/path")), Ok(()));
    }

    #[test]
    fn a_name_is_that_of_its_device() {
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
            text.starts_with("/x lies on overlayfs, which copies"),
            "{text}"
        );
        assert!(text.contains("GPULIMIT_ROOT="), "{text}");
    }
}
