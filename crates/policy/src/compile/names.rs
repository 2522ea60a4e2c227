//! The users and unix groups of a machine.

use super::template::Binding;
use crate::file::GroupStanza;
use crate::rules::Range;

/// A user in the machine's user database.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct User {
    /// The login name, or the user id as text where the user has no login name.
    pub name: String,
    /// The user id.
    pub uid: u32,
    /// The id of the user's first (primary) unix group.
    pub gid: u32,
}

/// A unix group in the machine's group database.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UnixGroup {
    /// The unix group's name.
    pub name: String,
    /// The unix group's id.
    pub gid: u32,
    /// The login names of the unix group's members. Users with this primary group may be missing.
    pub members: Vec<String>,
}

/// The machine's database of users and unix groups.
pub trait Accounts {
    /// Returns the user with this login name.
    fn user(&self, name: &str) -> Option<User>;
    /// Returns the unix group with this name.
    fn unix_group(&self, name: &str) -> Option<UnixGroup>;
    /// Returns all users that the user database lists.
    fn users(&self) -> Vec<User>;
    /// Returns the range of user ids that belong to people, not to system services.
    fn regular(&self) -> Range;
}

/// The machine's user database. Keeps the list of users after the first query for it.
pub(super) struct Names<'a> {
    accounts: &'a dyn Accounts,
    listed: Option<Vec<User>>,
}

impl<'a> Names<'a> {
    pub fn new(accounts: &'a dyn Accounts) -> Self {
        Self {
            accounts,
            listed: None,
        }
    }

    fn listed(&mut self) -> &[User] {
        let accounts = self.accounts;
        self.listed.get_or_insert_with(|| accounts.users())
    }

    /// Finds a user by login name or by user id.
    pub fn user(&mut self, text: &str) -> Option<User> {
        if let Some(user) = self.accounts.user(text) {
            return Some(user);
        }
        let uid: u32 = text.parse().ok()?;
        let named = self.listed().iter().find(|user| user.uid == uid).cloned();
        Some(named.unwrap_or(User {
            name: uid.to_string(),
            uid,
            gid: uid,
        }))
    }

    /// Returns whether a stanza of a single group says that the group is for this user or unix
    /// group.
    pub fn is_meant(&mut self, stanza: &GroupStanza, binding: &Binding) -> bool {
        match (&binding.user, &binding.group) {
            (Some((_, uid)), _) => stanza
                .owner
                .as_ref()
                .is_some_and(|owner| self.user(&owner.value).is_some_and(|user| user.uid == *uid)),
            (None, Some(group)) => stanza
                .members
                .as_ref()
                .is_some_and(|members| members.value.strip_prefix('@') == Some(group.as_str())),
            (None, None) => true,
        }
    }

    pub fn unix_group(&self, name: &str) -> Option<UnixGroup> {
        self.accounts.unix_group(name)
    }

    /// Returns all users in the user database who are members of a unix group.
    pub fn members(&mut self, group: &UnixGroup) -> Vec<User> {
        let accounts = self.accounts;
        let mut members: Vec<User> = group
            .members
            .iter()
            .filter_map(|name| accounts.user(name))
            .collect();
        let first = self.listed().iter().filter(|user| user.gid == group.gid);
        members.extend(first.cloned());
        members.sort_by_key(|user| user.uid);
        members.dedup_by_key(|user| user.uid);
        members
    }

    pub fn regular(&self) -> Range {
        self.accounts.regular()
    }

    pub fn all_regular(&mut self) -> Vec<User> {
        let (first, last) = self.regular();
        let is_regular = |user: &&User| (first..=last).contains(&user.uid);
        self.listed().iter().filter(is_regular).cloned().collect()
    }
}
