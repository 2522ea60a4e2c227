//! Makes the groups of a policy: a template becomes one group for each of its users or unix groups.

use super::names::UnixGroup;
use super::template::{self, Binding, Holes, fill, prefixes};
use super::{Compiler, NONE, PlannedGroup};
use crate::file::{At, GroupStanza, Settings};
use gpulimit_base::units::{Extent, Size};
use gpulimit_group::{Kind, Members, check_name, parent};
use gpulimit_limits::{Key, is_near};
use std::collections::{BTreeMap, BTreeSet};

/// A planned group, with the stanza of the policy file that it comes from.
pub(super) struct Planned {
    pub group: PlannedGroup,
    template: String,
    pub members: Option<At<String>>,
}

impl Compiler<'_> {
    /// Lets the template, and the templates above it, make a group for this user or unix group.
    pub(super) fn bind(&mut self, template: &str, binding: Binding) {
        for prefix in prefixes(template) {
            if let Some(holes) = Holes::of(prefix)
                && (holes.user || holes.group)
            {
                let narrowed = binding.narrowed(holes);
                self.bindings
                    .entry(prefix.into())
                    .or_default()
                    .insert(narrowed);
            }
        }
    }

    pub(super) fn bind_explicitly(&mut self, stanza: &GroupStanza) {
        let name = &stanza.name;
        let Some(holes) = Holes::of(&name.value) else {
            let why = template::unknown(&name.value);
            self.wrong(name.line, why);
            return;
        };
        let users = stanza.users.as_ref().map(|list| self.users(list));
        let groups = stanza
            .unix_group
            .as_ref()
            .map(|list| self.unix_groups(list));
        let Some(line) = stanza
            .users
            .as_ref()
            .or(stanza.unix_group.as_ref())
            .map(|list| list.line)
        else {
            return;
        };
        if !holes.user && !holes.group {
            self.wrong(
                line,
                format!(
                    "the keys users and unix_group are for templates such as \"lab/{{user}}\", \
                     but '{}' is a single group: use owner and members to say who may run in \
                     that group",
                    name.value
                ),
            );
            return;
        }
        if holes.group && groups.is_none() {
            self.wrong(
                line,
                format!(
                    "template '{}' makes a group for each unix group, but its stanza names no \
                     unix group: add unix_group = [\"NAME\", …]",
                    name.value
                ),
            );
            return;
        }
        for (group, part) in parts(groups.unwrap_or_default(), holes) {
            if !holes.user {
                self.bind(&name.value, Binding { user: None, group });
                continue;
            }
            let mut whom = users.clone().unwrap_or_default();
            for group in &part {
                whom.extend(self.names.members(group));
            }
            for user in whom {
                let (user, group) = (Some((user.name, user.uid)), group.clone());
                self.bind(&name.value, Binding { user, group });
            }
        }
    }

    pub(super) fn groups(&mut self) -> BTreeMap<String, Planned> {
        let mut planned: BTreeMap<String, Planned> = BTreeMap::new();
        // Templates come first, because the stanza of a single group replaces a group of the same
        // name from a template.
        let mut stanzas: Vec<&GroupStanza> = self.policy.groups.iter().collect();
        let holes = |stanza: &&GroupStanza| Holes::of(&stanza.name.value).unwrap_or_default();
        stanzas.sort_by_key(|stanza| (!holes(stanza).any(), stanza.name.value.split('/').count()));
        for stanza in stanzas {
            let template = &stanza.name.value;
            let bindings = match Holes::of(template) {
                None => continue,
                Some(holes) if !holes.any() => [Binding::default()].into(),
                Some(holes) => self.inherited(template, holes),
            };
            let says_whom = stanza.users.is_some() || stanza.unix_group.is_some();
            let whole = stanza.whole && self.policy.rules.iter().all(|rule| rule.whole);
            if bindings.is_empty() && !says_whom && whole && !self.is_named_by_a_rule(template) {
                self.report(
                    stanza.name.line,
                    format!(
                        "template '{template}' makes no group: name the template in a rule, or \
                         add users or unix_group"
                    ),
                    false,
                );
            }
            self.check_group(stanza);
            for binding in bindings {
                let name = fill(template, &binding);
                let new = Planned {
                    group: PlannedGroup {
                        name: name.clone(),
                        settings: merged(&stanza.settings, &self.policy.defaults),
                        owner: self.owner(stanza, &binding),
                        members: Members::Owner,
                        widened: None,
                        line: stanza.name.line,
                    },
                    template: template.clone(),
                    members: stanza.members.clone(),
                };
                if let Some(there) = planned.insert(name.clone(), new)
                    && Holes::of(&there.template).is_some_and(|holes| holes.any())
                    && Holes::of(template).is_some_and(|holes| holes.any())
                {
                    self.wrong(
                        stanza.name.line,
                        format!(
                            "templates '{template}' and '{}' both make the group {name}: leave \
                             one of them out",
                            there.template
                        ),
                    );
                }
            }
        }
        self.check_parents(&planned);
        planned
    }

    /// Returns the users and unix groups bound to the template, or to a template above it with the
    /// same placeholders.
    pub(super) fn inherited(&self, template: &str, holes: Holes) -> BTreeSet<Binding> {
        let same = |prefix: &&str| Holes::of(prefix) == Some(holes);
        let bindings = prefixes(template)
            .filter(same)
            .filter_map(|prefix| self.bindings.get(prefix));
        let there = |binding: &&Binding| !self.is_left_out(template, binding);
        bindings.flatten().filter(there).cloned().collect()
    }

    fn is_named_by_a_rule(&self, template: &str) -> bool {
        let rules = self.policy.rules.iter();
        let mut named = rules.flat_map(|rule| prefixes(&rule.group.value));
        named.any(|prefix| prefix == template)
            || prefixes(template).any(|above| {
                above != template
                    && Holes::of(above).is_some_and(Holes::any)
                    && self.is_named_by_a_rule(above)
            })
    }

    /// Reports stanzas whose parent group is not in the policy file: at most one mistake per
    /// stanza.
    fn check_parents(&mut self, planned: &BTreeMap<String, Planned>) {
        let policy = self.policy;
        for stanza in &policy.groups {
            let template = &stanza.name.value;
            let Some(above) = parent(template) else {
                continue;
            };
            let made: Vec<&Planned> = planned
                .values()
                .filter(|group| group.template == *template)
                .collect();
            let is_missing = if made.is_empty() {
                // This stanza makes no group: its template fits no user here, or single groups
                // replace its groups.
                !self.bindings.contains_key(template)
                    && !policy.groups.iter().any(|other| other.name.value == above)
            } else {
                let is_orphan = |group: &&Planned| {
                    let above = parent(&group.group.name);
                    above.is_some_and(|above| !planned.contains_key(above))
                };
                made.iter().any(is_orphan)
            };
            if is_missing {
                self.wrong(
                    stanza.name.line,
                    format!(
                        "group '{template}' is below group '{above}', which the policy file does \
                         not have: add [group.\"{above}\"]"
                    ),
                );
            }
        }
    }

    /// Reports mistakes in the name and the limits of a stanza: at most one mistake of each kind.
    fn check_group(&mut self, stanza: &GroupStanza) {
        let line = stanza.name.line;
        let template = &stanza.name.value;
        let name = fill(template, &Binding::sample());
        if let Err(error) = check_name(&name) {
            self.wrong(line, error.to_string());
        } else if name == NONE {
            self.wrong(
                line,
                "invalid group name 'none': a rule with group = \"none\" exempts processes; \
                 choose another name",
            );
        } else if Kind::of(&name) == Kind::Job {
            self.wrong(
                line,
                format!(
                    "the name '{name}' is reserved for groups of single jobs, which are removed \
                     when the job ends: choose another name"
                ),
            );
        }
        let settings = merged(&stanza.settings, &self.policy.defaults);
        for key in [Key::Low, Key::Min] {
            for (gpu, kept) in of(&settings, key) {
                let max = of(&settings, Key::Max).find(|(there, _)| *there == gpu);
                if let Some((_, max)) = max
                    && is_above(kept, max)
                {
                    let why = format!(
                        "group '{template}' has {key} {kept} above max {max}, but the group can \
                         never use more than max: lower {key} to {max} at most"
                    );
                    self.wrong(line, why);
                }
            }
        }
    }

    fn owner(&mut self, stanza: &GroupStanza, binding: &Binding) -> Option<u32> {
        let user = binding.user.as_ref();
        let Some(owner) = &stanza.owner else {
            return user.map(|(_, uid)| *uid);
        };
        match (owner.value.as_str(), user) {
            ("{user}" | "{uid}", Some((_, uid))) => Some(*uid),
            ("{user}" | "{uid}", None) => {
                let why = format!(
                    "owner '{}' works only for groups with {{user}} or {{uid}} in their name: \
                     give a login name",
                    owner.value
                );
                self.wrong(owner.line, why);
                None
            }
            (name, _) => {
                let list = At {
                    value: vec![name.to_owned()],
                    line: owner.line,
                };
                self.users(&list).first().map(|user| user.uid)
            }
        }
    }

    /// Reports rules whose group is not in the policy file: one mistake per rule.
    pub(super) fn check_targets(&mut self, groups: &BTreeMap<String, Planned>) {
        let policy = self.policy;
        for (number, stanza) in (1..).zip(&policy.rules) {
            let template = &stanza.group.value;
            let Some(holes) = Holes::of(template) else {
                continue;
            };
            if template.is_empty() || template == NONE {
                continue;
            }
            let is_written = policy
                .groups
                .iter()
                .any(|group| group.name.value == *template);
            let is_missing = if holes.any() {
                let bound = self.bindings.get(template).into_iter().flatten();
                let bound = bound.filter(|binding| !self.is_left_out(template, binding));
                let mut names = bound.map(|binding| fill(template, binding)).peekable();
                match names.peek() {
                    // The rule makes no group on this machine: look for its stanza instead.
                    None => !is_written,
                    Some(_) => names.any(|name| !groups.contains_key(&name)),
                }
            } else {
                !is_written && !groups.contains_key(template)
            };
            if !is_missing {
                continue;
            }
            let near = policy
                .groups
                .iter()
                .find(|group| is_near(template, &group.name.value));
            let near = near.map_or(String::new(), |near| {
                format!(", did you mean {}?", near.name.value)
            });
            let why = format!(
                "rule {number} names the group '{template}', which the policy file does not \
                 have{near}: add [group.\"{template}\"], or write group = \"none\" to exempt \
                 processes"
            );
            self.wrong(stanza.group.line, why);
        }
    }
}

/// Splits unix groups into parts, one for each group of a template. Without `{group}`, all unix
/// groups are one part.
pub(super) fn parts(groups: Vec<UnixGroup>, holes: Holes) -> Vec<(Option<String>, Vec<UnixGroup>)> {
    match holes.group {
        true => {
            let alone = |group: UnixGroup| (Some(group.name.clone()), vec![group]);
            groups.into_iter().map(alone).collect()
        }
        false => vec![(None, groups)],
    }
}

/// Returns the settings `own`, completed by `defaults` for keys that `own` does not set.
fn merged(own: &Settings, defaults: &Settings) -> Settings {
    let mut all = own.clone();
    let says = |key| own.sizes.iter().any(|(there, ..)| *there == key);
    all.sizes.extend(
        defaults
            .sizes
            .iter()
            .filter(|(key, ..)| !says(*key))
            .cloned(),
    );
    let says = |key| own.options.iter().any(|(there, _)| *there == key);
    all.options.extend(
        defaults
            .options
            .iter()
            .filter(|(key, _)| !says(*key))
            .cloned(),
    );
    all
}

fn of(settings: &Settings, key: Key) -> impl Iterator<Item = (&str, Extent)> {
    let of_key = settings
        .sizes
        .iter()
        .filter(move |(there, ..)| *there == key);
    of_key.map(|(_, gpu, size)| (gpu.value.as_str(), *size))
}

/// Returns whether the size `one` is larger than the size `other` on every GPU.
fn is_above(one: Extent, other: Extent) -> bool {
    match (one, other) {
        (Extent::Size(Size::Bytes(one)), Extent::Size(Size::Bytes(other))) => one > other,
        (Extent::Size(Size::Percent(one)), Extent::Size(Size::Percent(other))) => one > other,
        (Extent::AllBut(one), Extent::AllBut(other)) => one < other,
        _ => false,
    }
}
