//! The user that the command of `run --user` becomes.

use crate::machine::accounts;
use crate::words::failure::Failure;
use gpulimit_group::{Access, Group, Members, effective_user};
use rustix::process::{Gid, Uid};
use rustix::thread;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A user, as `--user` names it.
pub struct User {
    /// The user id.
    uid: u32,
    gid: u32,
    /// All unix groups of the user.
    groups: Vec<u32>,
    /// The user's name and home directory, if the machine knows the user.
    login: Option<(String, String)>,
}

impl User {
    /// Finds the user `NAME`, `UID`, `NAME:GROUP` or `UID:GROUP`. With a group, the user gets no
    /// other one.
    pub fn of(text: &str) -> Result<Self, Failure> {
        let wrong =
            |what: &str| Failure::usage(format_args!("--user {}: {what}", text.escape_debug()));
        let (name, group) = match text.split_once(':') {
            Some((name, group)) => (name, Some(group)),
            None => (text, None),
        };
        let uid = accounts::user_id(name).ok_or_else(|| wrong("there is no such user"))?;
        let known = accounts::login(uid);
        let (gid, groups) = match (group, &known) {
            (Some(group), _) => {
                let gid = accounts::unix_group_id(group);
                let gid = gid.ok_or_else(|| wrong("there is no such unix group"))?;
                (gid, vec![gid])
            }
            (None, Some((user, _))) => (user.gid, accounts::unix_groups_of(user)),
            (None, None) => {
                return Err(wrong(
                    "the machine knows no unix group of this user: write UID:GID",
                ));
            }
        };
        Ok(Self {
            uid,
            gid,
            groups,
            login: known.map(|(user, home)| (user.name, home)),
        })
    }

    /// Makes this process a process of the user, with the rights of root: the administrator's rules
    /// are those for the user.
    pub fn begin(&self) -> Result<(), Failure> {
        if effective_user() != 0 {
            return Err(Failure::usage("--user: only root can become another user"));
        }
        let groups: Vec<Gid> = self.groups.iter().copied().map(Gid::from_raw).collect();
        let (user, group) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        thread::set_thread_groups(&groups)
            .and_then(|()| thread::set_thread_res_gid(group, group, group))
            .and_then(|()| thread::set_thread_res_uid(user, Uid::ROOT, Uid::ROOT))
            .and_then(|()| thread::clear_ambient_capability_set())
            .map_err(|error| self.failed(error.into()))
    }

    /// Gives up the rights of root.
    pub fn become_it(&self) -> Result<(), Failure> {
        let user = Uid::from_raw(self.uid);
        thread::set_thread_res_uid(user, user, user).map_err(|error| self.failed(error.into()))
    }

    /// Lets a command run as the user, with the variables of a login.
    pub fn apply(&self, command: &mut Command) {
        // Root's capabilities end with this change of the user.
        command.uid(self.uid);
        if let Some((name, home)) = &self.login {
            command
                .env("USER", name)
                .env("LOGNAME", name)
                .env("HOME", home);
        }
    }

    /// Returns the rights of the user in a group of their own.
    pub fn access(&self) -> Access {
        Access {
            owner: Some(self.uid),
            ..Access::default()
        }
    }

    /// Checks that the user may run programs in a group; if `is_parent`, in a new group of the user
    /// below it. That needs the user's own right: a right by a unix group would open the groups
    /// above the new one to all users.
    pub fn check_joins(&self, group: &Group, is_parent: bool) -> Result<(), Failure> {
        for above in group.upwards() {
            let access = above.access()?;
            let by_group = match access.members {
                Members::UnixGroup(gid) => self.groups.contains(&gid) && !is_parent,
                _ => false,
            };
            if !access.admits(self.uid) && !by_group {
                return Err(Failure::new(format_args!(
                    "user {} may not run in group '{}': name another group, such as one that was \
                     made for all users (`gpulimit create NAME --members all`)",
                    self.name(),
                    group.name()
                )));
            }
        }
        Ok(())
    }

    /// Returns the name of the user, or the number if the user has no name.
    pub fn name(&self) -> String {
        let name = self.login.as_ref().map(|(name, _)| name.clone());
        name.unwrap_or_else(|| self.uid.to_string())
    }

    fn failed(&self, error: io::Error) -> Failure {
        Failure::new(format_args!("cannot become user {}: {error}", self.name()))
    }
}
