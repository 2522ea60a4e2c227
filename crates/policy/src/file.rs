//! The policy file, `gpulimit.toml`, as an administrator writes it: groups with their limits, and
//! rules that put processes into them.
//!
//! All mistakes are reported at once, each with its line.

use super::rules::OnError;
use gpulimit_base::units::Extent;
use gpulimit_limits::{Key, OptionKey, Options, is_near, names};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

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
    /// What happens to a program that cannot join the group of a rule that does not say it.
    pub on_error: OnError,
    /// The stanzas of groups, in the order of the policy file.
    pub groups: Vec<GroupStanza>,
    /// The rules in the order of the policy file.
    pub rules: Vec<RuleStanza>,
    /// The mistakes in the policy file, each with its line.
    pub mistakes: Vec<Mistake>,
}

type Value<'a> = Spanned<DeValue<'a>>;

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

impl Reader<'_> {
    fn line(&self, span: &Range<usize>) -> usize {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        before.matches('\n').count() + 1
    }

    fn wrong(&mut self, span: &Range<usize>, why: impl fmt::Display) {
        self.mistakes.push(Mistake {
            path: self.path.into(),
            line: self.line(span),
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
            let text = self.text.lines().nth(self.line(&span) - 1);
            let text = text.unwrap_or_default().trim().escape_debug();
            self.wrong(&span, format_args!("'{text}': {}", error.message()));
        }
        if !errors.is_empty() {
            return policy;
        }
        let table = table.into_inner();
        for (key, value) in &table {
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("defaults", DeValue::Table(table)) => self.defaults(table, &mut policy),
                ("group", DeValue::Table(groups)) => self.groups(groups, &mut policy),
                ("rule", DeValue::Array(_)) => {}
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
        let rules = table
            .get("rule")
            .and_then(|rules| rules.get_ref().as_array());
        for stanza in rules.into_iter().flatten() {
            match stanza.get_ref() {
                DeValue::Table(table) => self.rule(table, &stanza.span(), &mut policy),
                _ => self.wrong(&stanza.span(), NO_RULE),
            }
        }
        policy
    }

    fn defaults(&mut self, table: &DeTable<'_>, policy: &mut Policy) {
        for (name, span, value) in entries(table) {
            if name == "on_error" {
                policy.on_error = self.on_error(value).unwrap_or_default();
            } else if !self.setting(&name, value, &mut policy.defaults) {
                self.wrong(
                    &span,
                    unknown(&name, "[defaults]", &group_keys(&["on_error"])),
                );
            }
        }
    }

    fn groups(&mut self, groups: &DeTable<'_>, policy: &mut Policy) {
        for (key, value) in groups {
            let (span, group) = (key.span(), key.get_ref());
            let DeValue::Table(table) = value.get_ref() else {
                self.wrong(
                    &span,
                    format_args!(
                        "'{}' must be a table: write [group.\"{group}\"] and its keys below",
                        group.escape_debug()
                    ),
                );
                continue;
            };
            let before = self.mistakes.len();
            let mut stanza = GroupStanza {
                name: self.at(group.to_string(), &span),
                settings: Settings::default(),
                owner: None,
                members: None,
                users: None,
                unix_group: None,
                whole: false,
            };
            for (name, span, value) in entries(table) {
                match &*name {
                    "owner" => stanza.owner = self.text(value),
                    "members" => stanza.members = self.text(value),
                    "users" => stanza.users = self.list(value),
                    "unix_group" => stanza.unix_group = self.list(value),
                    _ if self.setting(&name, value, &mut stanza.settings) => {}
                    _ => {
                        let keys = group_keys(&["owner", "members", "users", "unix_group"]);
                        let mut why = unknown(&name, &format!("group '{group}'"), &keys);
                        if value.get_ref().is_table() {
                            why += &format!(
                                "; a group below '{group}' is written [group.\"{group}/{name}\"]"
                            );
                        }
                        self.wrong(&span, why);
                    }
                }
            }
            stanza.whole = self.mistakes.len() == before;
            policy.groups.push(stanza);
        }
        policy.groups.sort_by_key(|group| group.name.line);
    }

    fn rule(&mut self, table: &DeTable<'_>, span: &Range<usize>, policy: &mut Policy) {
        const KEYS: [&str; 7] = [
            "user",
            "unix_group",
            "cgroup",
            "executable",
            "container",
            "group",
            "on_error",
        ];
        let place = format!("rule {}", policy.rules.len() + 1);
        let before = self.mistakes.len();
        let mut rule = RuleStanza {
            line: self.line(span),
            user: None,
            unix_group: None,
            cgroup: None,
            executable: None,
            container: None,
            group: self.at(String::new(), span),
            on_error: policy.on_error,
            whole: false,
        };
        for (name, span, value) in entries(table) {
            match &*name {
                "user" => rule.user = self.list(value),
                "unix_group" => rule.unix_group = self.list(value),
                "cgroup" => rule.cgroup = self.patterns(value),
                "executable" => rule.executable = self.patterns(value),
                "container" => rule.container = self.patterns(value),
                "group" => rule.group = self.text(value).unwrap_or(rule.group),
                "on_error" => rule.on_error = self.on_error(value).unwrap_or_default(),
                _ if names().any(|known| known == name) => {
                    let why = format_args!(
                        "'{name}' is a key of groups, not of {place}: set the key in the group's \
                         own stanza"
                    );
                    self.wrong(&span, why);
                }
                _ => self.wrong(&span, unknown(&name, &place, &KEYS)),
            }
        }
        if table
            .get("group")
            .is_none_or(|group| group.get_ref().as_str() == Some(""))
        {
            self.wrong(
                span,
                format_args!(
                    "{place} has no group: add group = \"NAME\", or group = \"none\" to exempt \
                     processes"
                ),
            );
        }
        rule.whole = self.mistakes.len() == before;
        policy.rules.push(rule);
    }

    fn at<T>(&self, value: T, span: &Range<usize>) -> At<T> {
        At {
            value,
            line: self.line(span),
        }
    }

    fn unexpected(&mut self, value: &Value<'_>, expected: &str) {
        let text = self.text.get(value.span()).unwrap_or_default();
        let text = text.lines().next().unwrap_or_default().escape_debug();
        self.wrong(
            &value.span(),
            format_args!("invalid value '{text}': expected {expected}"),
        );
    }

    fn text(&mut self, value: &Value<'_>) -> Option<At<String>> {
        let text = value.get_ref().as_str();
        if text.is_none() {
            self.unexpected(value, "a text");
        }
        text.map(|text| self.at(text.to_owned(), &value.span()))
    }

    /// Reads a text, a number, true or false.
    fn word(&mut self, value: &Value<'_>, expected: &str) -> Option<String> {
        match value.get_ref() {
            DeValue::String(text) => Some(text.to_string()),
            DeValue::Integer(number) => Some(number.to_string()),
            DeValue::Boolean(so) => Some(so.to_string()),
            _ => {
                self.unexpected(value, expected);
                None
            }
        }
    }

    fn on_error(&mut self, value: &Value<'_>) -> Option<OnError> {
        let known = value.get_ref().as_str().and_then(OnError::of);
        if known.is_none() {
            self.unexpected(value, "\"closed\" or \"open\"");
        }
        known
    }

    /// Reads a text, or a list of texts.
    fn list(&mut self, value: &Value<'_>) -> Option<At<Vec<String>>> {
        let text = |value: &Value<'_>| value.get_ref().as_str().map(str::to_owned);
        let texts: Option<Vec<String>> = match value.get_ref() {
            DeValue::Array(list) => list.iter().map(text).collect(),
            _ => text(value).map(|text| vec![text]),
        };
        let Some(texts) = texts else {
            self.unexpected(value, "a text, or a list of texts such as [\"a\", \"b\"]");
            return None;
        };
        if texts.is_empty() {
            self.wrong(
                &value.span(),
                "the list [] is empty: add a name, or leave the key out",
            );
        } else if texts.iter().any(String::is_empty) {
            self.wrong(
                &value.span(),
                "the text '' is empty: write a name or pattern, or leave '' out",
            );
        }
        Some(self.at(texts, &value.span()))
    }

    fn patterns(&mut self, value: &Value<'_>) -> Option<At<Vec<String>>> {
        let globs = self.list(value)?;
        let mut patterns = globs.value.iter();
        if let Some(bad) = patterns.find(|glob| glob.contains(char::is_control)) {
            let bad = bad.escape_debug();
            let why = format!("invalid pattern '{bad}': the pattern has control characters");
            self.wrong(&value.span(), why);
        }
        Some(globs)
    }

    /// Reads a key of a group's limits. Returns false if there is no such key.
    fn setting(&mut self, name: &str, value: &Value<'_>, settings: &mut Settings) -> bool {
        if let Some(key) = Key::ALL.into_iter().find(|key| key.name() == name) {
            match value.get_ref() {
                DeValue::Table(each) => {
                    for (gpu, size) in each {
                        self.size(key, gpu.get_ref(), &gpu.span(), size, settings);
                    }
                }
                _ => self.size(key, "all", &value.span(), value, settings),
            }
            return true;
        }
        let option = OptionKey::ALL.into_iter().find(|key| key.name() == name);
        if let Some(key) = option
            && let Some(text) = self.word(value, "a text such as \"wait\" or \"10m\"")
        {
            match Options::default().set(key, &text) {
                Ok(()) => settings.options.push((key, text)),
                Err(error) => self.wrong(&value.span(), error),
            }
        }
        option.is_some()
    }

    fn size(
        &mut self,
        key: Key,
        gpu: &str,
        span: &Range<usize>,
        value: &Value<'_>,
        settings: &mut Settings,
    ) {
        if !is_gpu(gpu) {
            let why = format_args!(
                "invalid GPU '{}': expected an index, a UUID or its beginning, a PCI bus id, or \
                 all",
                gpu.escape_debug()
            );
            self.wrong(span, why);
        }
        const EXPECTED: &str =
            r#"a size such as "8G" or "20%", or a table such as { all = "8G", "0" = "4G" }"#;
        match self.word(value, EXPECTED).map(|text| text.parse()) {
            Some(Ok(size)) => {
                settings
                    .sizes
                    .push((key, self.at(gpu.to_owned(), span), size));
            }
            Some(Err(error)) => self.wrong(&value.span(), format_args!("{key}: {error}")),
            None => {}
        }
    }
}

/// Returns the keys of a table with their places and values. TOML takes a key with a dot, such as
/// `suspended.max`, for a key of a table.
fn entries<'t>(table: &'t DeTable<'t>) -> Vec<(String, Range<usize>, &'t Value<'t>)> {
    let mut all = Vec::new();
    for (key, value) in table {
        let dot = format!("{}.", key.get_ref());
        match value.get_ref() {
            DeValue::Table(below) if names().any(|known| known.starts_with(&dot)) => {
                let name = |rest: &str| dot.clone() + rest;
                all.extend(
                    below
                        .iter()
                        .map(|(rest, it)| (name(rest.get_ref()), rest.span(), it)),
                );
            }
            _ => all.push((key.get_ref().to_string(), key.span(), value)),
        }
    }
    all
}

/// Returns the keys of a group's limits, and these others.
fn group_keys(others: &[&'static str]) -> Vec<&'static str> {
    names().chain(others.iter().copied()).collect()
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
