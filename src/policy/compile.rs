//! A policy file made definite: templates filled in for every user, names of users and unix groups as numbers, and everything that
//! contradicts itself found.

mod access;
mod names;
mod template;

pub use names::{Accounts, UnixGroup, User};

use super::file::{At, GroupStanza, Mistake, Policy, RuleStanza, Settings};
use super::rules::{Range, Rule, Rules, Target, UnixGroups};
use crate::group::{Kind, Members, check_name, parent};
use crate::limits::{Key, is_near};
use crate::units::Size;
use names::Names;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use template::{Binding, Holes, fill, prefixes};

/// What `group` of a rule says where there is to be none.
const NONE: &str = "none";

/// A group that is to be there.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PlannedGroup {
    /// Its name.
    pub name: String,
    /// Its limits, with the defaults in them.
    pub settings: Settings,
    /// Who owns it; `None`: who applies the policy.
    pub owner: Option<u32>,
    /// Who else may be in it.
    pub members: Members,
    /// Where the file says so.
    pub line: usize,
}

/// What a policy asks for.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Plan {
    /// The groups, each before those below it.
    pub groups: Vec<PlannedGroup>,
    /// The rules.
    pub rules: Rules,
}

/// Makes a policy definite, as far as it can be: what cannot is among the mistakes.
pub fn compile(policy: &Policy, accounts: &dyn Accounts) -> (Plan, Vec<Mistake>) {
    let mut compiler = Compiler {
        policy,
        names: Names::new(accounts),
        mistakes: Vec::new(),
        bindings: BTreeMap::new(),
    };
    let plan = compiler.plan();
    let mut mistakes = compiler.mistakes;
    mistakes.sort_by(|a, b| (a.line, &a.why).cmp(&(b.line, &b.why)));
    mistakes.dedup();
    (plan, mistakes)
}

struct Compiler<'a> {
    policy: &'a Policy,
    names: Names<'a>,
    mistakes: Vec<Mistake>,
    /// For whom a template is filled in.
    bindings: BTreeMap<String, BTreeSet<Binding>>,
}

impl Compiler<'_> {
    fn say(&mut self, line: usize, why: impl Into<String>, absent: bool) {
        self.mistakes.push(Mistake {
            path: PathBuf::from(&self.policy.path),
            line,
            why: why.into(),
            absent,
        });
    }

    fn wrong(&mut self, line: usize, why: impl Into<String>) {
        self.say(line, why, false);
    }

    fn plan(&mut self) -> Plan {
        let policy = self.policy;
        let mut rules = Vec::new();
        let mut all = None;
        for (number, stanza) in (1..).zip(&policy.rules) {
            if let Some(earlier) = all {
                self.wrong(
                    stanza.line,
                    format!(
                        "rule {number} is never reached: rule {earlier} holds for every process"
                    ),
                );
            }
            if is_without_conditions(stanza) {
                all = Some(number);
            }
            rules.extend(self.rule(number, stanza));
        }
        for group in &policy.groups {
            self.bind_explicitly(group);
        }
        let mut groups = self.groups();
        self.check_targets(&rules, &groups);
        access::settle(self, &rules, &mut groups);
        Plan {
            groups: groups.into_values().map(|planned| planned.group).collect(),
            rules: Rules(rules),
        }
    }

    // Rules.

    fn rule(&mut self, number: u32, stanza: &RuleStanza) -> Vec<Rule> {
        let exempt = stanza.group.value == NONE;
        let Some(holes) = Holes::of(&stanza.group.value) else {
            let why = template::unknown(&stanza.group.value);
            self.wrong(stanza.group.line, why);
            return Vec::new();
        };
        let everybody = stanza.user.as_ref().is_some_and(|user| user.value == ["*"]);
        let users = match &stanza.user {
            Some(list) if !everybody => Some(self.users(list)),
            _ => None,
        };
        let unix_groups = stanza
            .unix_group
            .as_ref()
            .map(|list| self.unix_groups(list));
        if holes.group && unix_groups.is_none() {
            self.wrong(
                stanza.group.line,
                format!(
                    "'{}' has a group for each unix group, but rule {number} names none: add unix_group = [\"NAME\", …]",
                    stanza.group.value
                ),
            );
            return Vec::new();
        }
        let globs = |list: &Option<At<Vec<String>>>| {
            list.as_ref()
                .map(|list| list.value.clone())
                .unwrap_or_default()
        };
        let rule = Rule {
            number,
            on_error: stanza.on_error,
            user: users.as_deref().map(ranges).unwrap_or_default(),
            unix_group: None,
            cgroup: globs(&stanza.cgroup),
            executable: globs(&stanza.executable),
            container: globs(&stanza.container),
            target: Target::Exempt,
        };
        if users.as_ref().is_some_and(Vec::is_empty)
            || unix_groups.as_ref().is_some_and(Vec::is_empty)
        {
            // Nobody that it names is there, which has been said; without a condition it would hold for everybody.
            return Vec::new();
        }
        let parts: Vec<Vec<UnixGroup>> = match unix_groups {
            None => vec![Vec::new()],
            Some(groups) if holes.group => groups.into_iter().map(|group| vec![group]).collect(),
            Some(groups) => vec![groups],
        };
        let mut rules = Vec::new();
        for part in parts {
            let mut rule = rule.clone();
            if !part.is_empty() {
                let members: Vec<User> = part
                    .iter()
                    .flat_map(|group| self.names.members(group))
                    .collect();
                rule.unix_group = Some(UnixGroups {
                    gids: part.iter().map(|group| group.gid).collect(),
                    members: ranges(&members),
                });
            }
            let group = part
                .first()
                .filter(|_| holes.group)
                .map(|group| group.name.clone());
            if exempt {
                rule.target = Target::Exempt;
            } else if holes.user {
                let whom = self.whom(users.as_deref(), &part);
                if users.is_none() && part.is_empty() {
                    rule.user = vec![self.names.regular()];
                }
                let mut each = Vec::new();
                for user in whom {
                    let binding = Binding {
                        user: Some((user.name.clone(), user.uid)),
                        group: group.clone(),
                    };
                    each.push((user.uid, fill(&stanza.group.value, &binding)));
                    self.bind(&stanza.group.value, binding);
                }
                each.sort();
                each.dedup_by_key(|(uid, _)| *uid);
                rule.target = Target::Each(each);
            } else {
                let binding = Binding { user: None, group };
                rule.target = Target::Group(fill(&stanza.group.value, &binding));
                if holes.group {
                    self.bind(&stanza.group.value, binding);
                }
            }
            rules.push(rule);
        }
        rules
    }

    /// Whom a rule with a group for each user is for, as far as they are known now.
    fn whom(&mut self, users: Option<&[User]>, groups: &[UnixGroup]) -> Vec<User> {
        let members: Vec<User> = groups
            .iter()
            .flat_map(|group| self.names.members(group))
            .collect();
        match users {
            Some(users) if groups.is_empty() => users.to_vec(),
            Some(users) => {
                let is_member = |user: &&User| members.iter().any(|member| member.uid == user.uid);
                users.iter().filter(is_member).cloned().collect()
            }
            None if groups.is_empty() => self.names.all_regular(),
            None => members,
        }
    }

    fn users(&mut self, list: &At<Vec<String>>) -> Vec<User> {
        let mut users = Vec::new();
        for name in &list.value {
            if name == "*" {
                self.wrong(list.line, "'*' is every user, so that no other can be beside it: write user = \"*\", or names only");
            } else if let Some(user) = self.names.user(name) {
                users.push(user);
            } else {
                self.say(
                    list.line,
                    format!(
                        "no user '{}' on this machine: give a login name or a number that there is",
                        name.escape_debug()
                    ),
                    true,
                );
            }
        }
        users
    }

    fn unix_groups(&mut self, list: &At<Vec<String>>) -> Vec<UnixGroup> {
        let mut groups = Vec::new();
        for name in &list.value {
            match self.names.unix_group(name) {
                Some(group) => groups.push(group),
                None => self.say(
                    list.line,
                    format!(
                        "no unix group '{}' on this machine: give one that `getent group` lists",
                        name.escape_debug()
                    ),
                    true,
                ),
            }
        }
        groups
    }

    // Groups.

    /// The template is made for this user, and so are those that it is below.
    fn bind(&mut self, template: &str, binding: Binding) {
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

    fn bind_explicitly(&mut self, stanza: &GroupStanza) {
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
                format!("users and unix_group are for groups that are made for each, such as \"lab/{{user}}\": '{}' is one group; say who may run in it with owner and members", name.value),
            );
            return;
        }
        if holes.group && groups.is_none() {
            self.wrong(
                line,
                format!(
                    "'{}' has a group for each unix group, but names none: add unix_group = [\"NAME\", …]",
                    name.value
                ),
            );
            return;
        }
        let groups = groups.unwrap_or_default();
        let parts: Vec<Vec<UnixGroup>> = match holes.group {
            true => groups.into_iter().map(|group| vec![group]).collect(),
            false => vec![groups],
        };
        for part in parts {
            let group = part
                .first()
                .filter(|_| holes.group)
                .map(|group| group.name.clone());
            if !holes.user {
                self.bind(&name.value, Binding { user: None, group });
                continue;
            }
            let mut whom = users.clone().unwrap_or_default();
            for group in &part {
                whom.extend(self.names.members(group));
            }
            for user in whom {
                let user = Some((user.name, user.uid));
                self.bind(
                    &name.value,
                    Binding {
                        user,
                        group: group.clone(),
                    },
                );
            }
        }
    }

    fn groups(&mut self) -> BTreeMap<Vec<String>, Planned> {
        let mut planned: BTreeMap<Vec<String>, Planned> = BTreeMap::new();
        // Those for all first: a group of its own name has the last word.
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
            if bindings.is_empty() && !says_whom && !self.is_named_by_a_rule(template) {
                self.say(
                    stanza.name.line,
                    format!("group '{template}' is made for nobody: name it in a rule, or say for whom with users or unix_group"
                    ),
                    false,
                );
            }
            for binding in bindings {
                let name = fill(template, &binding);
                self.check_group(stanza, &name);
                let owner = self.owner(stanza, &binding);
                let group = PlannedGroup {
                    settings: merged(&stanza.settings, &self.policy.defaults),
                    owner,
                    members: Members::Owner,
                    line: stanza.name.line,
                    name: name.clone(),
                };
                let place: Vec<String> = name.split('/').map(str::to_owned).collect();
                let new = Planned {
                    group,
                    template: template.clone(),
                    members: stanza.members.clone(),
                };
                if let Some(there) = planned.insert(place, new)
                    && Holes::of(&there.template).is_some_and(|holes| holes.any())
                    && Holes::of(template).is_some_and(|holes| holes.any())
                {
                    self.wrong(
                        stanza.name.line,
                        format!(
                            "'{template}' and '{}' both make the group {name}: leave one out",
                            there.template
                        ),
                    );
                }
            }
        }
        for group in planned.values() {
            if let Some(above) = parent(&group.group.name)
                && !planned.contains_key(&above.split('/').map(str::to_owned).collect::<Vec<_>>())
            {
                let why = format!(
                    "group '{}' is below '{above}', which the file does not have: add [group.\"{above}\"]",
                    group.group.name
                );
                self.mistakes.push(Mistake {
                    path: self.policy.path.clone(),
                    line: group.group.line,
                    why,
                    absent: false,
                });
            }
        }
        planned
    }

    /// Those for whom the template itself is named, and those for whom the ones that it is below are made.
    fn inherited(&self, template: &str, holes: Holes) -> BTreeSet<Binding> {
        let same = |prefix: &&str| Holes::of(prefix) == Some(holes);
        let bindings = prefixes(template)
            .filter(same)
            .filter_map(|prefix| self.bindings.get(prefix));
        bindings.flatten().cloned().collect()
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

    fn check_group(&mut self, stanza: &GroupStanza, name: &str) {
        let line = stanza.name.line;
        if let Err(error) = check_name(name) {
            let hint = match Holes::of(&stanza.name.value) {
                Some(holes) if holes.user => "; {uid} in place of {user} is always a name",
                _ => "",
            };
            self.wrong(line, format!("{error}{hint}"));
        } else if name == NONE {
            self.wrong(
                line,
                "'none' is how a rule exempts, and so no name of a group: choose another one",
            );
        } else if Kind::of(name) == Kind::Job {
            self.wrong(line, format!("the name '{name}' is kept for groups of single jobs, which go away by themselves: choose another one"));
        }
        let settings = merged(&stanza.settings, &self.policy.defaults);
        for key in [Key::Low, Key::Min] {
            for (gpu, kept) in of(&settings, key) {
                let max = of(&settings, Key::Max).find(|(there, _)| *there == gpu);
                if let Some((_, max)) = max
                    && is_above(kept, max)
                {
                    self.wrong(line, format!("group '{name}' has {key} {kept} above max {max}, which it could never use: lower it to {max} at most"));
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
                self.wrong(owner.line, format!("'{}' is an owner for groups with {{user}} in their name only: give a login name", owner.value));
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

    fn check_targets(&mut self, rules: &[Rule], groups: &BTreeMap<Vec<String>, Planned>) {
        for rule in rules {
            let line = usize::try_from(rule.number)
                .ok()
                .and_then(|number| self.policy.rules.get(number - 1))
                .map_or(0, |stanza| stanza.group.line);
            let names: Vec<&String> = match &rule.target {
                Target::Exempt => Vec::new(),
                Target::Group(name) => vec![name],
                Target::Each(each) => each.iter().map(|(_, name)| name).collect(),
            };
            let known = |name: &str| {
                groups.contains_key(&name.split('/').map(str::to_owned).collect::<Vec<_>>())
            };
            let Some(missing) = names.into_iter().find(|name| !known(name)) else {
                continue;
            };
            let near = self
                .policy
                .groups
                .iter()
                .find(|group| is_near(missing, &group.name.value));
            let near = near.map_or(String::new(), |near| {
                format!(", did you mean {}?", near.name.value)
            });
            let template = self
                .policy
                .rules
                .get(rule.number as usize - 1)
                .map_or(missing.as_str(), |stanza| stanza.group.value.as_str());
            self.wrong(line, format!("rule {} names the group '{template}', which the file does not have{near}: add [group.\"{template}\"], or write \"none\" to exempt", rule.number));
        }
    }
}

/// A group and how the file came to it.
struct Planned {
    group: PlannedGroup,
    template: String,
    members: Option<At<String>>,
}

fn is_without_conditions(stanza: &RuleStanza) -> bool {
    let some = |list: &Option<At<Vec<String>>>| {
        list.as_ref()
            .is_some_and(|list| !list.value.iter().any(|glob| glob == "*"))
    };
    // With a group for each user it holds for regular users only; the pattern * of a container asks for one.
    let each = Holes::of(&stanza.group.value).is_some_and(|holes| holes.user);
    !each
        && stanza.unix_group.is_none()
        && stanza.container.is_none()
        && ![&stanza.user, &stanza.cgroup, &stanza.executable]
            .into_iter()
            .any(some)
}

/// What the group says, and the defaults for keys of which it says nothing.
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

fn of(settings: &Settings, key: Key) -> impl Iterator<Item = (&str, Size)> {
    let of_key = settings
        .sizes
        .iter()
        .filter(move |(there, ..)| *there == key);
    of_key.map(|(_, gpu, size)| (gpu.value.as_str(), *size))
}

/// Whether one size is above the other on every GPU.
fn is_above(one: Size, other: Size) -> bool {
    match (one, other) {
        (Size::Bytes(one), Size::Bytes(other)) => one > other,
        (Size::Percent(one), Size::Percent(other)) => one > other,
        _ => false,
    }
}

/// Their numbers, as few ranges as there can be.
fn ranges(users: &[User]) -> Vec<Range> {
    let uids: BTreeSet<u32> = users.iter().map(|user| user.uid).collect();
    let mut ranges: Vec<Range> = Vec::new();
    for uid in uids {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(uid) => *last = uid,
            _ => ranges.push((uid, uid)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests;
