//! The stanzas of a policy file, as types that serde reads.

use crate::rules::OnError;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use toml::Spanned;

/// A type for the keys of one kind of table in a policy file.
pub(super) trait Stanza {
    /// The keys of the table.
    const NAMES: &'static [&'static str];
}

/// The keys of a group's limits.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Keys {
    pub max: Option<Spanned<Amount>>,
    pub high: Option<Spanned<Amount>>,
    pub low: Option<Spanned<Amount>>,
    pub min: Option<Spanned<Amount>>,
    pub on_limit: Option<Spanned<Word>>,
    pub wait_timeout: Option<Spanned<Word>>,
    pub pressure_timeout: Option<Spanned<Word>>,
    pub oom: Option<Spanned<Word>>,
    pub count_context: Option<Spanned<Word>>,
    pub suspended: Option<Suspended>,
}

/// The keys of a group that begin with `suspended`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the key suspended.max")]
pub(super) struct Suspended {
    pub max: Option<Spanned<Word>>,
}

impl Stanza for Keys {
    const NAMES: &'static [&'static str] = &[
        "max",
        "high",
        "low",
        "min",
        "on_limit",
        "wait_timeout",
        "pressure_timeout",
        "oom",
        "count_context",
        "suspended.max",
    ];
}

/// The keys of `[defaults]` that are not limits.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Defaults {
    pub on_error: Option<OnError>,
}

impl Stanza for Defaults {
    const NAMES: &'static [&'static str] = &["on_error"];
}

/// The keys of a group's stanza that are not limits.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GroupText {
    pub owner: Option<Spanned<String>>,
    pub members: Option<Spanned<String>>,
    pub users: Option<Spanned<Names>>,
    pub unix_group: Option<Spanned<Names>>,
}

impl Stanza for GroupText {
    const NAMES: &'static [&'static str] = &["owner", "members", "users", "unix_group"];
}

/// The keys of a rule's stanza.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleText {
    pub user: Option<Spanned<Names>>,
    pub unix_group: Option<Spanned<Names>>,
    pub cgroup: Option<Spanned<Names>>,
    pub executable: Option<Spanned<Names>>,
    pub container: Option<Spanned<Names>>,
    pub group: Option<Spanned<String>>,
    pub on_error: Option<OnError>,
}

impl Stanza for RuleText {
    const NAMES: &'static [&'static str] = &[
        "user",
        "unix_group",
        "cgroup",
        "executable",
        "container",
        "group",
        "on_error",
    ];
}

/// A size for all GPUs, or a table of GPUs and sizes.
pub(super) enum Amount {
    All(String),
    Each(Vec<(Spanned<String>, Spanned<String>)>),
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Amount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a size such as \"8G\" or \"20%\", or a table such as { all = \"8G\", \"0\" = \
                     \"4G\" }",
                )
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Amount, E> {
                Ok(Amount::All(text.into()))
            }

            fn visit_i64<E: Error>(self, bytes: i64) -> Result<Amount, E> {
                Ok(Amount::All(bytes.to_string()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Amount, A::Error> {
                let mut each = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    each.push(pair);
                }
                Ok(Amount::Each(each))
            }
        }
        from.deserialize_any(Read)
    }
}

/// A single value: a text, a number, true or false.
pub(super) struct Word(pub String);

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read;
        impl Visitor<'_> for Read {
            type Value = Word;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text such as \"wait\" or \"10m\"")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Word, E> {
                Ok(Word(text.into()))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Word, E> {
                Ok(Word(number.to_string()))
            }

            fn visit_bool<E: Error>(self, so: bool) -> Result<Word, E> {
                Ok(Word(so.to_string()))
            }
        }
        from.deserialize_any(Read)
    }
}

/// A text, or a list of texts.
#[derive(Default)]
pub(super) struct Names(pub Vec<String>);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Names;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, or a list of texts such as [\"a\", \"b\"]")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Names, E> {
                Ok(Names(vec![text.into()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Names, A::Error> {
                let mut names = Vec::new();
                while let Some(name) = list.next_element()? {
                    names.push(name);
                }
                Ok(Names(names))
            }
        }
        from.deserialize_any(Read)
    }
}
