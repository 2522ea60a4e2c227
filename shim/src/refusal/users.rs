//! Names of users, from a plain read of `/etc/passwd`.
//!
//! `getpwuid` must not be called in a foreign program: it can load modules, take locks that the
//! calling thread holds already, and ask a server.

use std::fmt;
use std::path::Path;

use gpulimit_base::identity::Identity;
use gpulimit_base::{process, text_file};

/// The largest file that is read, in bytes. Users of a larger one have no names.
const LONGEST: u64 = 256 << 10;

/// The text of `/etc/passwd`; empty if it is not needed or cannot be read.
pub struct Users(Vec<u8>);

impl Users {
    /// Reads the names of these users, if one of them is not the user of this process.
    pub fn of(mut users: impl Iterator<Item = u32>) -> Users {
        match users.any(|uid| uid != process::uid()) {
            true => Users::read(Path::new("/etc/passwd")),
            false => Users(Vec::new()),
        }
    }

    fn read(path: &Path) -> Users {
        Users(text_file::read(path, LONGEST).unwrap_or_default())
    }

    /// Writes a process: `pid 4711 (python)`. A process of another user has that user's name, or
    /// the id of a user who is not in the file, or whose name has unusual characters:
    /// `pid 4711 (python, uid 1001)`.
    pub fn write(&self, f: &mut fmt::Formatter<'_>, it: &Identity) -> fmt::Result {
        write!(f, "pid {} ({}", it.pid, it.command())?;
        match self.name(it.uid) {
            _ if it.uid == process::uid() => f.write_str(")"),
            Some(name) => write!(f, ", {name})"),
            // The process was not found.
            None if it.uid == u32::MAX => f.write_str(")"),
            None => write!(f, ", uid {})", it.uid),
        }
    }

    fn name(&self, uid: u32) -> Option<&str> {
        let mut lines = self.0.split(|byte| *byte == b'\n');
        let name = lines.find_map(|line| {
            let mut fields = line.split(|byte| *byte == b':');
            let (name, number) = (fields.next()?, fields.nth(1)?);
            let number = std::str::from_utf8(number).ok()?;
            (number.parse() == Ok(uid)).then_some(name)
        })?;
        let is_usual = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-$@".contains(byte);
        let is_name = (1..=32).contains(&name.len()) && name.iter().all(is_usual);
        std::str::from_utf8(name).ok().filter(|_| is_name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulimit_support::Scratch;
    use std::fs;

    struct Gone(Users, Identity);

    impl fmt::Display for Gone {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.write(f, &self.1)
        }
    }

    #[test]
    fn names_come_from_a_file_that_may_be_hostile() {
        let scratch = Scratch::new();
        let path = scratch.at("passwd");
        let named = |uid| {
            let users = Users::read(&path);
            users
                .name(uid)
                .map_or_else(|| format!("uid {uid}"), str::to_owned)
        };
        assert_eq!(named(7), "uid 7", "no file");
        let lines = [
            &b"root:x:0:0:root:/root:/bin/sh\n\n:x:1\nbad\xff:x:2:2::\nno number\n"[..],
            b"a b:x:3:3::\n\x1b[2J:x:4:4::\n+::\nalice:x:1001:1001::/srv/alice:\n",
            b"alice2:x:1001:5::\nbob:x:1002",
        ];
        fs::write(&path, lines.concat()).expect("written");
        assert_eq!(named(0), "root");
        assert_eq!(named(1001), "alice", "the first entry counts");
        assert_eq!(named(1002), "bob", "no newline at the end");
        for unnamed in [1, 2, 3, 4, 5, u32::MAX] {
            assert_eq!(named(unnamed), format!("uid {unnamed}"));
        }
        let gone = Identity::of_other(1 << 23);
        let users = Users::read(&path);
        let gone = Gone(users, gone).to_string();
        assert!(!gone.contains("uid"), "{gone}");
        let long = format!("{}:x:9:9::\ncarol:x:10:10::", "n".repeat(33));
        fs::write(&path, &long).expect("written");
        assert_eq!((named(9), named(10)), ("uid 9".into(), "carol".into()));
        let file = fs::OpenOptions::new().append(true).open(&path);
        file.expect("opened").set_len(LONGEST + 1).expect("huge");
        assert_eq!(named(10), "uid 10", "too long");
        fs::remove_file(&path).expect("removed");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.is_ok_and(|status| status.success()));
        assert_eq!(named(10), "uid 10", "a FIFO without a writer");
    }
}
