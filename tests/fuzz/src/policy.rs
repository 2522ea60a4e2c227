//! Fuzzing of policy files, of the rules compiled from them, and of the environment variables that
//! request a group.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use gpulimit_base::device::DeviceId;
use gpulimit_policy::compile::{Accounts, UnixGroup, User, compile};
use gpulimit_policy::rules::{Range, Rules, Source};
use gpulimit_policy::{GROUP, MAX, assignment, file};

use crate::scratch;

/// The user accounts of a test machine with a few users.
struct Machine;

impl Accounts for Machine {
    fn user(&self, name: &str) -> Option<User> {
        self.users().into_iter().find(|user| user.name == name)
    }

    fn unix_group(&self, name: &str) -> Option<UnixGroup> {
        (name == "students").then(|| UnixGroup {
            name: name.to_owned(),
            gid: 500,
            members: vec!["alice".to_owned()],
        })
    }

    fn users(&self) -> Vec<User> {
        let user = |(name, uid): &(&str, u32)| User {
            name: (*name).to_owned(),
            uid: *uid,
            gid: 500,
        };
        [("root", 0), ("alice", 1000), ("bob", 1001)]
            .iter()
            .map(user)
            .collect()
    }

    fn regular(&self) -> Range {
        (1000, 60_000)
    }
}

/// Compiles the fuzz input as a policy file. Every mistake that is reported must name a line of the
/// file; the rules of a file without mistakes must read back unchanged.
pub fn file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let (plan, mistakes) = compile(&file::parse(Path::new("p.toml"), text), &Machine);
    let lines = text.lines().count().max(1) + 1;
    for mistake in &mistakes {
        assert!((1..=lines).contains(&mistake.line), "{mistake}");
        assert_eq!(mistake.to_string().lines().count(), 1, "{mistake}");
    }
    if mistakes.is_empty() {
        let written = plan.rules.to_string();
        assert_eq!(load(written.as_bytes()), Some(plan.rules), "{written}");
    }
}

/// Loads these bytes as a file of compiled rules; `None` if the file is refused.
fn load(bytes: &[u8]) -> Option<Rules> {
    let path = scratch::path(".rules");
    std::fs::write(&path, bytes).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("changed");
    let root = path.parent().expect("a folder");
    std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o755)).expect("changed");
    let source = Source {
        root: root.to_owned(),
        owner: gpulimit_group::effective_user(),
    };
    let loaded = Rules::load(&source);
    // The rules file exists, so loading never returns `None` for a missing file.
    loaded.ok().map(|rules| rules.expect("a file is there"))
}

/// Loads the fuzz input as compiled rules, once unchanged and once with a valid last line. The
/// rules must be refused or read back unchanged.
pub fn rules(bytes: &[u8]) {
    for text in [bytes, &whole(bytes)] {
        if let Some(rules) = load(text) {
            assert_eq!(load(rules.to_string().as_bytes()), Some(rules));
        }
    }
}

/// Returns the bytes followed by the last line that valid compiled rules have: an FNV-1a hash of
/// everything before that line.
fn whole(bytes: &[u8]) -> Vec<u8> {
    let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let count = bytes
        .split(|byte| *byte == b'\n')
        .filter(|line| line.starts_with(b"rule "))
        .count();
    [bytes, format!("end {count} {sum:016x}\n").as_bytes()].concat()
}

/// Reads environment variables from the fuzz input, one per line. A limit that a variable requests
/// must never be silently ignored.
pub fn environment(bytes: &[u8]) {
    let variables: Vec<(&[u8], &[u8])> = bytes
        .split(|byte| *byte == b'\n')
        .filter_map(|line| {
            let at = line.iter().position(|byte| *byte == b'=')?;
            let value = line.get(at + 1..)?;
            (!value.contains(&0)).then_some((line.get(..at)?, value))
        })
        .collect();
    let env = |name: &str| {
        let found = variables
            .iter()
            .find(|(known, _)| *known == name.as_bytes());
        found.map(|(_, value)| OsString::from_vec(value.to_vec()))
    };
    let asked = assignment(&env);
    // If the environment names the group of a job (`job-…`), a variable of another tool may still
    // say that there is no limit. A request for any other group, or by `MAX`, must not be lost.
    let is_chosen = env(GROUP).is_some_and(|name| !name.as_encoded_bytes().starts_with(b"job-"));
    if is_chosen || env(MAX).is_some() {
        assert!(!matches!(asked, Ok(None)), "asked for and not given");
    }
    let gpus: Vec<_> = (0..2u8)
        .map(|number| (u32::from(number), DeviceId::gpu([number; 16])))
        .collect();
    match asked {
        Ok(Some(assignment)) => {
            if let Some(request) = assignment.create {
                match request.resolve(&gpus, &|_| Some(80 << 30)) {
                    Ok(limits) => assert!(!limits.rules.is_empty()),
                    Err(error) => one_line(&error),
                }
            }
        }
        Ok(None) => {}
        Err(error) => one_line(&error),
    }
}

#[track_caller]
fn one_line(error: &dyn std::fmt::Display) {
    let text = error.to_string();
    assert!(!text.is_empty());
    assert_eq!(text.lines().count(), 1, "{text}");
}
