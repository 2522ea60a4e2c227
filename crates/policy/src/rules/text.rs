//! The text of a rules file.
//!
//! ```text
//! gpulimit-rules 1
//! rule 1 closed
//! user 1000 1003-1005
//! gid 100 101
//! member 1000-1003
//! cgroup /system.slice/*
//! executable /opt/*
//! container *
//! group lab
//! end 1 0123456789abcdef
//! ```
//!
//! - `rule`: the rule's number in the policy file, and its `on_error`
//! - from `user` to `container`: optional conditions; each pattern has its own line
//! - `group`: the target. Other targets are `exempt`, a line `each 1000 lab/alice` for each user,
//!   and `each` alone if no user has a group
//! - `end`: the number of rules, and a checksum of all lines above

use super::{OnError, Range, Rule, Rules, Target, UnixGroups};
use gpulimit_base::version;
use gpulimit_group::check_name;
use std::fmt;

const HEAD: &str = "gpulimit-rules ";

/// The reason why a text is not a valid rules file.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Wrong {
    /// Another version of gpulimit wrote the text.
    Version,
    /// The line with this number is wrong, counted from 1; 0 means the whole text.
    Line(usize),
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = format!("{HEAD}{}\n", version::rules());
        for rule in &self.0 {
            write(&mut text, rule)?;
        }
        f.write_str(&text)?;
        writeln!(f, "end {} {:016x}", self.0.len(), sum(text.as_bytes()))
    }
}

fn write(out: &mut impl fmt::Write, rule: &Rule) -> fmt::Result {
    writeln!(out, "rule {} {}", rule.number, rule.on_error.name())?;
    if !rule.user.is_empty() {
        numbers(out, "user", &rule.user)?;
    }
    if let Some(groups) = &rule.unix_group {
        let gids: Vec<_> = groups.gids.iter().map(|gid| (*gid, *gid)).collect();
        numbers(out, "gid", &gids)?;
        if !groups.members.is_empty() {
            numbers(out, "member", &groups.members)?;
        }
    }
    for (word, globs) in [
        ("cgroup", &rule.cgroup),
        ("executable", &rule.executable),
        ("container", &rule.container),
    ] {
        for glob in globs {
            writeln!(out, "{word} {glob}")?;
        }
    }
    match &rule.target {
        Target::Exempt => writeln!(out, "exempt"),
        Target::Group(group) => writeln!(out, "group {group}"),
        Target::Each(groups) if groups.is_empty() => writeln!(out, "each"),
        Target::Each(groups) => groups
            .iter()
            .try_for_each(|(uid, group)| writeln!(out, "each {uid} {group}")),
    }
}

fn numbers(out: &mut impl fmt::Write, word: &str, ranges: &[Range]) -> fmt::Result {
    out.write_str(word)?;
    for (first, last) in ranges {
        match first == last {
            true => write!(out, " {first}")?,
            false => write!(out, " {first}-{last}")?,
        }
    }
    out.write_char('\n')
}

/// Returns the FNV-1a hash of the rules. The hash reveals damage; the file's permissions keep out
/// forgery.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Parses rules. Accepts only the exact text that [`Rules`] are written as.
pub(super) fn read(bytes: &[u8]) -> Result<Rules, Wrong> {
    let text = std::str::from_utf8(bytes).map_err(|_| Wrong::Line(0))?;
    let version = text.lines().next().and_then(|line| line.strip_prefix(HEAD));
    if version.ok_or(Wrong::Line(1))? != version::rules().to_string() {
        return Err(Wrong::Version);
    }
    let body = text.strip_suffix('\n').ok_or(Wrong::Line(0))?;
    let last = body.rfind('\n').ok_or(Wrong::Line(0))? + 1;
    let (before, end) = text.split_at(last);
    let mut rules: Vec<Rule> = Vec::new();
    let mut current: Option<Draft> = None;
    for (number, line) in before.lines().enumerate().skip(1) {
        let wrong = Wrong::Line(number + 1);
        if let Some(head) = line.strip_prefix("rule ") {
            if let Some(draft) = current.take() {
                rules.push(draft.finish().ok_or(Wrong::Line(number))?);
            }
            current = Some(Draft::new(head).ok_or(wrong)?);
        } else {
            let draft = current.as_mut().ok_or(wrong)?;
            draft.add(line).ok_or(wrong)?;
        }
    }
    if let Some(draft) = current {
        rules.push(draft.finish().ok_or(Wrong::Line(0))?);
    }
    let expected = format!("end {} {:016x}\n", rules.len(), sum(before.as_bytes()));
    if end == expected {
        Ok(Rules(rules))
    } else {
        Err(Wrong::Line(0))
    }
}

/// A rule that has been read in part.
struct Draft {
    rule: Rule,
    has_target: bool,
}

impl Draft {
    fn new(head: &str) -> Option<Self> {
        let (number, on_error) = head.split_once(' ')?;
        let rule = Rule {
            on_error: OnError::of(on_error)?,
            ..Rule::of_everybody(number.parse().ok()?, Target::Each(Vec::new()))
        };
        Some(Self {
            rule,
            has_target: false,
        })
    }

    fn add(&mut self, line: &str) -> Option<()> {
        let rule = &mut self.rule;
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "user" => rule.user = ranges(rest)?,
            "gid" => {
                let alone = |(first, last): Range| (first == last).then_some(first);
                let gids = ranges(rest)?.into_iter().map(alone);
                rule.unix_group = Some(UnixGroups {
                    gids: gids.collect::<Option<_>>()?,
                    members: Vec::new(),
                });
            }
            "member" => rule.unix_group.as_mut()?.members = ranges(rest)?,
            "cgroup" | "executable" | "container" if rest.is_empty() => return None,
            "cgroup" => rule.cgroup.push(rest.into()),
            "executable" => rule.executable.push(rest.into()),
            "container" => rule.container.push(rest.into()),
            "each" if line == "each" && !self.has_target => self.has_target = true,
            "each" => {
                let (uid, group) = rest.split_once(' ')?;
                check_name(group).ok()?;
                let Target::Each(groups) = &mut rule.target else {
                    return None;
                };
                groups.push((uid.parse().ok()?, group.into()));
                self.has_target = true;
            }
            "exempt" | "group" if self.has_target => return None,
            "exempt" if rest.is_empty() => {
                rule.target = Target::Exempt;
                self.has_target = true;
            }
            "group" => {
                check_name(rest).ok()?;
                rule.target = Target::Group(rest.into());
                self.has_target = true;
            }
            _ => return None,
        }
        Some(())
    }

    fn finish(self) -> Option<Rule> {
        self.has_target.then_some(self.rule)
    }
}

/// Parses one or more ranges of ids, such as `1000 1003-1005`.
fn ranges(text: &str) -> Option<Vec<Range>> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let range: Range = (first.parse().ok()?, last.parse().ok()?);
        (range.0 <= range.1).then_some(range)
    };
    text.split(' ').map(range).collect()
}
