//! Looks up users and unix groups in the machine's user database (NSS: /etc/passwd, LDAP, …).
#![allow(unsafe_code)]

use gpulimit_policy::compile::{Accounts, UnixGroup, User};
use nix::unistd::{self, Gid, Group, Uid, getgrouplist};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the names of users are kept.
const AGE: Duration = Duration::from_secs(60);

/// The most users that are looked up by number in that time.
const LOOKUPS: usize = 4_096;

/// The handle to the machine's user database.
pub struct Database;

impl Accounts for Database {
    fn user(&self, name: &str) -> Option<User> {
        unistd::User::from_name(name).ok()?.map(user)
    }

    fn unix_group(&self, name: &str) -> Option<UnixGroup> {
        let group = Group::from_name(name).ok()??;
        Some(UnixGroup {
            name: group.name,
            gid: group.gid.as_raw(),
            members: group.mem,
        })
    }

    fn users(&self) -> Vec<User> {
        // `getpwent` walks one list for the whole process, so only one thread at a time may use it.
        static LIST: Mutex<()> = Mutex::new(());
        let _alone = LIST.lock();
        let mut users = Vec::new();
        // SAFETY: the lock keeps other threads off the list. The entry is copied before the next
        // `getpwent`.
        unsafe {
            libc::setpwent();
            while let Some(entry) = libc::getpwent().as_ref() {
                users.push(user(entry.into()));
            }
            libc::endpwent();
        }
        users
    }

    fn regular(&self) -> (u32, u32) {
        let text = fs::read_to_string("/etc/login.defs").unwrap_or_default();
        regular(&text)
    }
}

/// Returns the name of a user, or the number if the user has no name. The largest number stands for
/// a user who is not known.
pub fn user_name(uid: u32) -> String {
    match uid {
        u32::MAX => "unknown".into(),
        uid => known_name(uid).unwrap_or_else(|| uid.to_string()),
    }
}

/// Returns the name of a user; `None` if the database does not know the user.
///
/// Each number is looked up once a minute. Other users can put any number into a ledger, so only
/// the first [`LOOKUPS`] numbers of a minute are looked up; the others count as unknown.
pub fn known_name(uid: u32) -> Option<String> {
    type Names = (Option<Instant>, BTreeMap<u32, Option<String>>);
    static NAMES: Mutex<Names> = Mutex::new((None, BTreeMap::new()));
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if names.0.is_none_or(|since| since.elapsed() > AGE) {
        *names = (Some(Instant::now()), BTreeMap::new());
    }
    if names.1.len() >= LOOKUPS && !names.1.contains_key(&uid) {
        return None;
    }
    let ask = || login(uid).map(|(user, _)| user.name);
    names.1.entry(uid).or_insert_with(ask).clone()
}

/// Returns a user, with the user's home directory; `None` if the database does not know the user.
pub fn login(uid: u32) -> Option<(User, String)> {
    let found = unistd::User::from_uid(Uid::from_raw(uid)).ok()??;
    let home = found.dir.to_string_lossy().into_owned();
    Some((user(found), home))
}

/// Returns the number of a user, given by name or number.
pub fn user_id(name: &str) -> Option<u32> {
    number(name).or_else(|| Some(Database.user(name)?.uid))
}

/// Returns the number of a unix group, given by name or number.
pub fn unix_group_id(name: &str) -> Option<u32> {
    number(name).or_else(|| Some(Database.unix_group(name)?.gid))
}

/// Parses the number of a user or unix group. Refuses the largest number, which means "no user" to
/// the kernel.
fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    text.parse()
        .ok()
        .filter(|number| digits && *number != u32::MAX)
}

/// Returns all unix groups of a user: those that the user's login session would get.
pub fn unix_groups_of(user: &User) -> Vec<u32> {
    let name = CString::new(user.name.as_str()).unwrap_or_default();
    let gids = getgrouplist(&name, Gid::from_raw(user.gid));
    gids.map_or_else(
        |_| vec![user.gid],
        |gids| gids.into_iter().map(Gid::as_raw).collect(),
    )
}

/// Returns the name of a unix group, or the number if the group has no name.
pub fn unix_group_name(gid: u32) -> String {
    let found = Group::from_gid(Gid::from_raw(gid)).ok().flatten();
    found.map_or_else(|| gid.to_string(), |group| group.name)
}

fn user(found: unistd::User) -> User {
    User {
        name: found.name,
        uid: found.uid.as_raw(),
        gid: found.gid.as_raw(),
    }
}

/// Parses UID_MIN and UID_MAX, the range of regular users, from the text of `/etc/login.defs`.
fn regular(text: &str) -> (u32, u32) {
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(key));
        line.and_then(|rest| rest.strip_prefix(char::is_whitespace)?.trim().parse().ok())
    };
    const USUAL: (u32, u32) = (1000, 60_000);
    let first = value("UID_MIN").unwrap_or(USUAL.0);
    let last = value("UID_MAX").unwrap_or(USUAL.1);
    if first <= last { (first, last) } else { USUAL }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_found_by_name_and_number() {
        let root = Database.user("root").expect("root");
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(Database.users().contains(&root));
        let group = Database.unix_group("root").expect("root");
        assert_eq!(group.gid, 0);
        assert_eq!(unix_group_name(0), "root");
        assert!(unix_groups_of(&root).contains(&0));
        assert_eq!(unix_group_name(4_123_456_789), "4123456789");
    }

    #[test]
    fn numbers_and_names() {
        assert_eq!(user_name(0), "root");
        assert_eq!(user_name(4_123_456_789), "4123456789");
        assert_eq!(user_name(u32::MAX), "unknown");
        for lookup in [user_id, unix_group_id] {
            assert_eq!(lookup("root"), Some(0));
            assert_eq!(lookup("4123456789"), Some(4_123_456_789));
            for unknown in ["", "no such name", "4294967295", "-1", "a\0b"] {
                assert_eq!(lookup(unknown), None, "{unknown}");
            }
        }
    }

    #[test]
    fn unknown_names_are_not_found() {
        assert_eq!(Database.user("no such user"), None);
        assert_eq!(Database.unix_group("a\0b"), None);
    }

    #[test]
    fn the_range_of_regular_users_is_read() {
        assert_eq!(regular(""), (1000, 60_000));
        assert_eq!(
            regular("# UID_MIN 1\nUID_MIN\t\t  500\nUID_MAX 999\nUID_MINX 3\n"),
            (500, 999)
        );
        assert_eq!(regular("UID_MIN 70000\n"), (1000, 60_000));
    }
}
