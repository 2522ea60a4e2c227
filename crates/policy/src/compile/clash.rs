//! Users and unix groups for whom a template can make no group: their names cannot be part of a
//! group's name, or the group is for others.

use super::template::{Binding, Holes, fill, prefixes};
use super::{Compiler, NONE};
use crate::file::{GroupStanza, Mistake};
use crate::rules::{Rule, Target};
use gpulimit_group::{Kind, check_name};
use std::collections::{BTreeMap, BTreeSet};

/// Why a template can make no group for somebody.
#[derive(Copy, Clone, Eq, Ord, PartialEq, PartialOrd)]
enum Clash {
    Name,
    Stanza,
    Template,
}

impl Clash {
    const fn why(self) -> &'static str {
        match self {
            Self::Name => {
                "these names cannot be part of a group's name; {uid} in place of {user} always can"
            }
            Self::Stanza => {
                "groups of these names have stanzas of their own: choose other names for those \
                 groups, or name the user in the stanza's key owner (the unix group in members)"
            }
            Self::Template => "a template makes groups of these names for others as well",
        }
    }
}

impl Compiler<'_> {
    /// Finds all for whom a template can make no group. Returns one message for each template and
    /// reason, which names all of them.
    pub(super) fn find_clashes(&mut self) -> Vec<Mistake> {
        let policy = self.policy;
        let mut stanzas: Vec<(&GroupStanza, Holes)> = Vec::new();
        let mut single: BTreeMap<&str, &GroupStanza> = BTreeMap::new();
        for stanza in &policy.groups {
            match Holes::of(&stanza.name.value) {
                Some(holes) if holes.any() => stanzas.push((stanza, holes)),
                Some(_) => drop(single.insert(&stanza.name.value, stanza)),
                None => {}
            }
        }
        // All templates at one level come before those below, whose groups go with the ones above.
        let levels = |name: &str| name.split('/').count();
        stanzas.sort_by_key(|(stanza, _)| levels(&stanza.name.value));
        let mut found: BTreeSet<(usize, String, Clash, Binding)> = BTreeSet::new();
        let mut made: BTreeMap<String, (&GroupStanza, Binding)> = BTreeMap::new();
        for (stanza, holes) in stanzas {
            let template = stanza.name.value.as_str();
            if !is_usable(&fill(template, &Binding::sample())) {
                continue;
            }
            for binding in self.inherited(template, holes) {
                let name = fill(template, &binding);
                let mut leave_out = |stanza: &GroupStanza, clash, binding: Binding| {
                    let template = stanza.name.value.clone();
                    found.insert((stanza.name.line, template.clone(), clash, binding.clone()));
                    self.left_out.entry(template).or_default().insert(binding);
                };
                if !is_usable(&name) || levels(&name) != levels(template) {
                    leave_out(stanza, Clash::Name, binding);
                } else if let Some(own) = single.get(&*name)
                    && !self.names.is_meant(own, &binding)
                {
                    leave_out(stanza, Clash::Stanza, binding);
                } else if let Some((other, there)) = made.get(&name)
                    && !binding.is_for_same_user(there)
                {
                    leave_out(other, Clash::Template, there.clone());
                    leave_out(stanza, Clash::Template, binding);
                } else {
                    made.insert(name, (stanza, binding));
                }
            }
        }
        let mut messages: BTreeMap<(usize, String, Clash), Vec<String>> = BTreeMap::new();
        for (line, template, clash, binding) in found {
            let whom = messages.entry((line, template, clash)).or_default();
            whom.push(format!("'{}'", binding.to_string().escape_debug()));
        }
        let message =
            |((line, template, clash), whom): ((usize, String, Clash), Vec<String>)| Mistake {
                path: policy.path.clone(),
                line,
                why: format!(
                    "template '{template}' makes no group for {}, and rules that name it close \
                     the GPU for them: {}",
                    whom.join(", "),
                    clash.why()
                ),
                absent: false,
            };
        messages.into_iter().map(message).collect()
    }

    /// Returns whether the template makes no group for this user or unix group, or a template above
    /// it makes none.
    pub(super) fn is_left_out(&self, template: &str, binding: &Binding) -> bool {
        !self.left_out.is_empty()
            && prefixes(template).any(|prefix| {
                self.left_out.get(prefix).is_some_and(|left| {
                    Holes::of(prefix).is_some_and(|holes| left.contains(&binding.narrowed(holes)))
                })
            })
    }

    /// Lets the rules close the GPU for those who are left out.
    pub(super) fn close_rules(&self, rules: &mut [Rule]) {
        for rule in rules {
            let stanza = self.policy.rules.get(rule.number as usize - 1);
            let Some(template) = stanza.map(|stanza| stanza.group.value.as_str()) else {
                continue;
            };
            let bound = self.bindings.get(template).into_iter().flatten();
            let left = bound.filter(|binding| self.is_left_out(template, binding));
            let left: BTreeSet<_> = left
                .map(|one| (one.user.as_ref().map(|(_, uid)| *uid), fill(template, one)))
                .collect();
            match &mut rule.target {
                Target::Exempt => {}
                Target::Each(each) => {
                    each.retain(|(uid, name)| !left.contains(&(Some(*uid), name.clone())));
                }
                Target::Group(name) if left.contains(&(None, name.clone())) => {
                    rule.target = Target::Each(Vec::new());
                }
                Target::Group(_) => {}
            }
        }
    }
}

fn is_usable(name: &str) -> bool {
    check_name(name).is_ok() && name != NONE && Kind::of(name) != Kind::Job
}
