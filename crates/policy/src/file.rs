//! The policy file, `gpulimit.toml`, as an administrator writes it: groups with their limits, and
//! rules that put processes into them.
//!
//! serde reads each stanza into a type, and this module checks its texts. So all mistakes are
//! reported at once, each with its line.

mod stanza;

use super::rules::OnError;
use gpulimit_base::units::Extent;
use gpulimit_limits::{Key, OptionKey, Options, is_near};
use serde::Deserialize;
use stanza::{Amount, Defaults, GroupText, Keys, RuleText, Stanza, Word};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

/// A mistake in a policy file, or a user, unix group or GPU that this machine does not have.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Mistake {
    /// The path of the policy file.
    pub path: PathBuf,
    /// The line of the mistake in the policy file, counted from 1.
    pub line: usize,
    /// The reason why the text at this line is not valid, and the text that is accepted.
    pub why: String,
    /// Whether the mistake is only that this machine lacks a user, a unix group or a GPU.
    pub absent: bool,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.why)
    }
}

/// A value with its line in the policy file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// The line of the value, counted from 1.
    pub line: usize,
}

/// The limits of one group, or the defaults of the policy file for keys that groups do not set.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Settings {
    /// The sizes by key and by GPU; `all` means all GPUs without a size of their own.
    pub sizes: Vec<(Key, At<String>, Extent)>,
    /// The values of keys that hold for the group as a whole; the values have been checked.
    pub options: Vec<(OptionKey, String)>,
}

/// A stanza `[group."…"]`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GroupStanza {
    /// The group's name, which may contain `{user}`, `{uid}` or `{group}`.
    pub name: At<String>,
    /// The group's limits.
    pub settings: Settings,
    /// The group's owner.
    pub owner: Option<At<String>>,
    /// The users besides the owner who may run programs in the group.
    pub members: Option<At<String>>,
    /// The users for whom a template makes groups, besides those whom the rules name.
    pub users: Option<At<Vec<String>>>,
    /// The unix groups for whose members a template makes groups.
    pub unix_group: Option<At<Vec<String>>>,
    /// Whether the whole stanza was read without a mistake.
    pub whole: bool,
}

/// A stanza `[[rule]]`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RuleStanza {
    /// The line in which the stanza begins.
    pub line: usize,
    /// Condition: the process belongs to one of these users.
    pub user: Option<At<Vec<String>>>,
    /// Condition: the process is in one of these unix groups.
    pub unix_group: Option<At<Vec<String>>>,
    /// Condition: one of these patterns matches a cgroup of the process.
    pub cgroup: Option<At<Vec<String>>>,
    /// Condition: one of these patterns matches the path of the file that the process executes.
    pub executable: Option<At<Vec<String>>>,
    /// Condition: one of these patterns matches the id of a container that the process is in.
    pub container: Option<At<Vec<String>>>,
    /// The group that the rule assigns; empty if the group's name could not be read.
    pub group: At<String>,
    /// What happens to a program that cannot join the rule's group.
    pub on_error: OnError,
    /// Whether the whole stanza was read without a mistake.
    pub whole: bool,
}

/// A policy file.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Policy {
    /// The path of the policy file.
    pub path: PathBuf,
    /// The limits for keys that groups do not set themselves.
    pub defaults: Settings,
    /// The stanzas of groups, in the order of the policy file.
    pub groups: Vec<GroupStanza>,
    /// The rules in the order of the policy file.
    pub rules: Vec<RuleStanza>,
    /// The mistakes in the policy file, each with its line.
    pub mistakes: Vec<Mistake>,
}

/// The message for rules that are not written as a list of `[[rule]]` tables.
const NO_RULE: &str = "'rule' must be a list: write [[rule]] above each rule";

/// Reads a policy file. Reports the parts that cannot be read, and reads all other parts.
pub fn parse(path: &Path, text: &str) -> Policy {
    let mut reader = Reader {
        path,
        text,
        mistakes: Vec::new(),
    };
    let mut policy = reader.policy();
    reader.mistakes.sort_by_key(|mistake| mistake.line);
    policy.mistakes = reader.mistakes;
    policy
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    mistakes: Vec<Mistake>,
}

impl<'a> Reader<'a> {
    fn line(&self, span: &Range<usize>) -> usize {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        before.matches('\n').count() + 1
    }

    fn wrong(&mut self, span: &Range<usize>, why: impl fmt::Display) {
        self.wrong_at(self.line(span), why);
    }

    fn wrong_at(&mut self, line: usize, why: impl fmt::Display) {
        self.mistakes.push(Mistake {
            path: self.path.into(),
            line,
            why: why.to_string(),
            absent: false,
        });
    }

    fn policy(&mut self) -> Policy {
        let mut policy = Policy {
            path: self.path.into(),
            ..Policy::default()
        };
        let (table, errors) = DeTable::parse_recoverable(self.text);
        for error in &errors {
            let span = error.span().unwrap_or_default();
            let text = self
                .text
                .lines()
                .nth(self.line(&span) - 1)
                .unwrap_or_default();
            self.wrong(
                &span,
                format_args!("'{}': {}", text.trim().escape_debug(), error.message()),
            );
        }
        if !errors.is_empty() {
            return policy;
        }
        let mut on_error = OnError::default();
        let mut rules = None;
        for (key, value) in table.into_inner() {
            let span = value.span();
            match (key.get_ref().as_ref(), value.into_inner()) {
                ("defaults", DeValue::Table(table)) => {
                    let (table, keys) = self.split(table, "[defaults]", Defaults::NAMES);
                    policy.defaults = self.settings(keys, &span);
                    let defaults: Defaults = self.read(table, &span);
                    on_error = defaults.on_error.unwrap_or_default();
                }
                ("group", DeValue::Table(groups)) => self.groups(groups, &mut policy),
                ("rule", DeValue::Array(stanzas)) => rules = Some(stanzas),
                ("defaults", _) => {
                    self.wrong(&key.span(), "'defaults' must be a table: write [defaults]");
                }
                ("group", _) => {
                    let why = "'group' must be a table: write [group.\"NAME\"]";
                    self.wrong(&key.span(), why);
                }
                ("rule", _) => self.wrong(&key.span(), NO_RULE),
                (name, _) => {
                    let why = unknown(name, "the file", &["defaults", "group", "rule"]);
                    self.wrong(&key.span(), why);
                }
            }
        }
        // Read the rules last: they use a default from `[defaults]`, which may follow them in the
        // file.
        for stanza in rules.into_iter().flatten() {
            let span = stanza.span();
            match stanza.into_inner() {
                DeValue::Table(table) => self.rule(table, &span, on_error, &mut policy),
                _ => self.wrong(&span, NO_RULE),
            }
        }
        policy
    }

    fn groups(&mut self, groups: DeTable<'a>, policy: &mut Policy) {
        for (key, value) in groups {
            let span = key.span();
            let name = key.into_inner().into_owned();
            let DeValue::Table(table) = value.into_inner() else {
                self.wrong(
                    &span,
                    format_args!(
                        "'{}' must be a table: write [group.\"{name}\"] and its keys below",
                        name.escape_debug()
                    ),
                );
                continue;
            };
            let place = format!("group '{name}'");
            let before = self.mistakes.len();
            let (table, keys) = self.split(table, &place, GroupText::NAMES);
            let settings = self.settings(keys, &span);
            let text: GroupText = self.read(table, &span);
            let (users, unix_group) = (self.list(text.users), self.list(text.unix_group));
            policy.groups.push(GroupStanza {
                name: self.at(Spanned::new(span, name)),
                settings,
                owner: text.owner.map(|text| self.at(text)),
                members: text.members.map(|text| self.at(text)),
                users,
                unix_group,
                whole: self.mistakes.len() == before,
            });
        }
        policy.groups.sort_by_key(|group| group.name.line);
    }

    fn rule(
        &mut self,
        table: DeTable<'a>,
        span: &Range<usize>,
        on_error: OnError,
        policy: &mut Policy,
    ) {
        let place = format!("rule {}", policy.rules.len() + 1);
        let at_first = self.mistakes.len();
        let (table, keys) = self.split(table, &place, RuleText::NAMES);
        for (key, _) in &keys {
            let why = format_args!(
                "'{}' is a key of groups, not of {place}: set the key in the group's own stanza",
                key.get_ref()
            );
            self.wrong(&key.span(), why);
        }
        let before = self.mistakes.len();
        let text: RuleText = self.read(table, span);
        let nowhere = |group: &Spanned<String>| group.get_ref().is_empty();
        if text.group.as_ref().is_none_or(nowhere) && self.mistakes.len() == before {
            self.wrong(
                span,
                format_args!(
                    "{place} has no group: add group = \"NAME\", or group = \"none\" to exempt \
                     processes"
                ),
            );
        }
        let line = self.line(span);
        let nowhere = At {
            value: String::new(),
            line,
        };
        let mut rule = RuleStanza {
            line,
            user: self.list(text.user),
            unix_group: self.list(text.unix_group),
            cgroup: self.list(text.cgroup),
            executable: self.list(text.executable),
            container: self.list(text.container),
            group: text.group.map_or(nowhere, |group| self.at(group)),
            on_error: text.on_error.unwrap_or(on_error),
            whole: false,
        };
        for globs in [&rule.cgroup, &rule.executable, &rule.container]
            .into_iter()
            .flatten()
        {
            let mut patterns = globs.value.iter();
            if let Some(bad) = patterns.find(|glob| glob.contains(char::is_control)) {
                let bad = bad.escape_debug();
                let why = format!("invalid pattern '{bad}': the pattern has control characters");
                self.wrong_at(globs.line, why);
            }
        }
        rule.whole = self.mistakes.len() == at_first;
        policy.rules.push(rule);
    }

    /// Separates a stanza's keys of limits from its other keys. Reports unknown keys and leaves
    /// them out.
    fn split(
        &mut self,
        table: DeTable<'a>,
        place: &str,
        names: &[&str],
    ) -> (DeTable<'a>, DeTable<'a>) {
        let (mut own, mut keys) = (DeTable::new(), DeTable::new());
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            if names.contains(&name) {
                own.insert(key, value);
            } else if Keys::NAMES.iter().any(|known| is_key(known, name)) {
                keys.insert(key, value);
            } else {
                let known: Vec<&str> = if place.starts_with("rule") {
                    names.to_vec()
                } else {
                    [Keys::NAMES, names].concat()
                };
                let mut why = unknown(name, place, &known);
                if let (DeValue::Table(_), Some(group)) =
                    (value.get_ref(), place.strip_prefix("group '"))
                {
                    let group = group.trim_end_matches('\'');
                    why +=
                        &format!("; a group below '{group}' is written [group.\"{group}/{name}\"]");
                }
                self.wrong(&key.span(), why);
            }
        }
        (own, keys)
    }

    fn read<'t, T: Default + Deserialize<'t>>(
        &mut self,
        table: DeTable<'t>,
        span: &Range<usize>,
    ) -> T {
        let value = Spanned::new(span.clone(), DeValue::Table(table));
        match T::deserialize(ValueDeserializer::from(value)) {
            Ok(read) => read,
            Err(error) => {
                let span = error.span().unwrap_or(span.clone());
                let text = self.text.get(span.clone()).unwrap_or_default();
                let text = text.lines().next().unwrap_or_default().to_owned();
                self.wrong(
                    &span,
                    format_args!("'{}': {}", text.escape_debug(), error.message()),
                );
                T::default()
            }
        }
    }

    fn at<T>(&self, text: Spanned<T>) -> At<T> {
        At {
            line: self.line(&text.span()),
            value: text.into_inner(),
        }
    }

    fn list(&mut self, names: Option<Spanned<stanza::Names>>) -> Option<At<Vec<String>>> {
        let names = names?;
        let list = &names.get_ref().0;
        if list.is_empty() {
            self.wrong(
                &names.span(),
                "the list [] is empty: add a name, or leave the key out",
            );
        } else if list.iter().any(String::is_empty) {
            self.wrong(
                &names.span(),
                "the text '' is empty: write a name or pattern, or leave '' out",
            );
        }
        Some(At {
            line: self.line(&names.span()),
            value: names.into_inner().0,
        })
    }

    fn settings(&mut self, keys: DeTable<'a>, span: &Range<usize>) -> Settings {
        let mut settings = Settings::default();
        for (key, value) in keys {
            // Read the keys one by one, because serde stops at the first mistake of a table.
            let one = DeTable::from_iter([(key, value)]);
            let keys: Keys = self.read(one, span);
            self.setting(keys, &mut settings);
        }
        settings
    }

    fn setting(&mut self, keys: Keys, settings: &mut Settings) {
        let sizes = [
            (Key::Max, keys.max),
            (Key::High, keys.high),
            (Key::Low, keys.low),
            (Key::Min, keys.min),
        ];
        for (key, amount) in sizes {
            let Some(amount) = amount else { continue };
            let span = amount.span();
            match amount.into_inner() {
                Amount::All(text) => {
                    let all = Spanned::new(span.clone(), "all".to_owned());
                    self.size(key, all, &Spanned::new(span, text), settings);
                }
                Amount::Each(each) => {
                    for (gpu, text) in each {
                        self.size(key, gpu, &text, settings);
                    }
                }
            }
        }
        let words = [
            (OptionKey::OnLimit, keys.on_limit),
            (OptionKey::WaitTimeout, keys.wait_timeout),
            (OptionKey::PressureTimeout, keys.pressure_timeout),
            (OptionKey::Oom, keys.oom),
            (OptionKey::CountContext, keys.count_context),
            (
                OptionKey::SuspendedMax,
                keys.suspended.and_then(|keys| keys.max),
            ),
        ];
        for (key, word) in words {
            let Some(word) = word else { continue };
            let Word(text) = word.get_ref();
            match Options::default().set(key, text) {
                Ok(()) => settings.options.push((key, text.clone())),
                Err(error) => self.wrong(&word.span(), error),
            }
        }
    }

    fn size(
        &mut self,
        key: Key,
        gpu: Spanned<String>,
        text: &Spanned<String>,
        settings: &mut Settings,
    ) {
        if !is_gpu(gpu.get_ref()) {
            let why = format_args!(
                "invalid GPU '{}': expected an index, a UUID or its beginning, a PCI bus id, or \
                 all",
                gpu.get_ref().escape_debug()
            );
            self.wrong(&gpu.span(), why);
        }
        match text.get_ref().parse() {
            Ok(size) => settings.sizes.push((key, self.at(gpu), size)),
            Err(error) => self.wrong(&text.span(), format_args!("{key}: {error}")),
        }
    }
}

/// Returns whether the text has the form of a GPU's name: `all`, `0`, `GPU-1a2b`, `MIG-…`, `1a2b`,
/// `0000:3b:00.0`.
fn is_gpu(text: &str) -> bool {
    let kind = text
        .get(..4)
        .filter(|kind| kind.eq_ignore_ascii_case("GPU-") || kind.eq_ignore_ascii_case("MIG-"));
    let rest = kind.map_or(text, |kind| &text[kind.len()..]);
    let is_id = |c: u8| c.is_ascii_hexdigit() || b"-:.".contains(&c);
    text == "all" || (!rest.is_empty() && rest.bytes().all(is_id))
}

/// Returns whether `name` is the key `known`, or the part of a dotted key before the dot, which is
/// a table in TOML.
fn is_key(known: &str, name: &str) -> bool {
    let rest = known.strip_prefix(name);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn unknown(name: &str, place: &str, known: &[&str]) -> String {
    let near = known.iter().find(|known| is_near(name, known));
    let near = near.map_or(String::new(), |near| format!(", did you mean {near}?"));
    format!(
        "unknown key '{}' in {place}{near} (keys: {})",
        name.escape_debug(),
        known.join(", ")
    )
}

#[cfg(test)]
mod tests;
