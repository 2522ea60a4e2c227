//! Templates: names of groups with the placeholders `{user}`, `{uid}` and `{group}`.

use std::fmt;

/// The kinds of placeholders in a template.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Holes {
    /// The template contains a user, as `{user}` or `{uid}`.
    pub user: bool,
    /// The template contains a unix group, as `{group}`.
    pub group: bool,
}

const USER: &str = "{user}";
const UID: &str = "{uid}";
const GROUP: &str = "{group}";

impl Holes {
    /// Returns the kinds of placeholders in a name; `None` if the name has other text in braces.
    pub fn of(template: &str) -> Option<Self> {
        let rest = template
            .replace(USER, "")
            .replace(UID, "")
            .replace(GROUP, "");
        (!rest.contains(['{', '}'])).then(|| Self {
            user: template.contains(USER) || template.contains(UID),
            group: template.contains(GROUP),
        })
    }

    pub const fn any(self) -> bool {
        self.user || self.group
    }
}

/// Returns the message for a name with an unknown placeholder in braces.
pub(super) fn unknown(template: &str) -> String {
    format!(
        "unknown placeholder in '{}': expected {USER}, {UID} or {GROUP}",
        template.escape_debug()
    )
}

/// The user and the unix group that replace the placeholders of a template.
#[derive(Clone, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Binding {
    /// The user's login name and user id.
    pub user: Option<(String, u32)>,
    /// The unix group's name.
    pub group: Option<String>,
}

impl Binding {
    /// Returns an example, whose names can be part of a group's name.
    pub fn sample() -> Self {
        Self {
            user: Some(("x".into(), 0)),
            group: Some("x".into()),
        }
    }

    /// Returns whether both are for one and the same user.
    pub fn is_for_same_user(&self, other: &Self) -> bool {
        let uid = |binding: &Self| binding.user.as_ref().map(|(_, uid)| *uid);
        uid(self).is_some() && uid(self) == uid(other)
    }

    /// Returns the parts of the binding that these placeholders need.
    pub fn narrowed(&self, holes: Holes) -> Self {
        Self {
            user: self.user.clone().filter(|_| holes.user),
            group: self.group.clone().filter(|_| holes.group),
        }
    }
}

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_ref().map(|(name, _)| name.as_str());
        let names = [user, self.group.as_deref()].into_iter().flatten();
        f.write_str(&names.collect::<Vec<_>>().join("' of '"))
    }
}

pub(super) fn fill(template: &str, binding: &Binding) -> String {
    let mut name = template.to_owned();
    if let Some(group) = &binding.group {
        name = name.replace(GROUP, group);
    }
    if let Some((user, uid)) = &binding.user {
        name = name.replace(USER, user).replace(UID, &uid.to_string());
    }
    name
}

/// Iterates over the names of the groups above `template`, from the top, and then `template`
/// itself.
pub(super) fn prefixes(template: &str) -> impl Iterator<Item = &str> {
    let ends = template.match_indices('/').map(|(at, _)| at);
    ends.chain([template.len()]).map(|end| &template[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_found_and_filled() {
        let holes = |user, group| Some(Holes { user, group });
        assert_eq!(Holes::of("lab"), holes(false, false));
        assert_eq!(Holes::of("lab/{user}"), holes(true, false));
        assert_eq!(Holes::of("{group}/u{uid}"), holes(true, true));
        for wrong in ["lab/{users}", "{}", "lab{", "a}"] {
            assert_eq!(Holes::of(wrong), None, "{wrong}");
        }
        let binding = Binding {
            user: Some(("alice".into(), 1000)),
            group: Some("gpu".into()),
        };
        assert_eq!(fill("{group}/{user}/{uid}", &binding), "gpu/alice/1000");
    }

    #[test]
    fn prefixes_of_a_name_start_at_the_top() {
        let all: Vec<_> = prefixes("a/{user}/b").collect();
        assert_eq!(all, ["a", "a/{user}", "a/{user}/b"]);
    }
}
