//! The part of an address after the question mark.

use super::access::Refusal;
use crate::words::since;
use jiff::Zoned;
use percent_encoding::percent_decode_str;

/// Returns the keys and values, decoded. A value that is not UTF-8 gets replacement characters.
pub fn pairs(query: &str) -> impl Iterator<Item = (String, String)> {
    let parts = query.split('&').filter(|part| !part.is_empty());
    parts.map(|part| {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        (decoded(key), decoded(value))
    })
}

/// Returns the value of a key; `None` if it is missing. The last one counts.
pub fn value(query: &str, key: &str) -> Option<String> {
    let all = pairs(query).filter(|(known, _)| known == key);
    all.last().map(|(_, value)| value)
}

/// Fails if the query has a key that is not among these. A mistyped key would not be noticed
/// otherwise: the answer would be that of a query without it.
pub fn check(query: &str, known: &[&str]) -> Result<(), Refusal> {
    let mut keys = pairs(query).map(|(key, _)| key);
    let Some(key) = keys.find(|key| !known.contains(&&**key)) else {
        return Ok(());
    };
    let keys = match known {
        [] => "there are no keys at this path".into(),
        known => format!("the keys at this path are {}", known.join(", ")),
    };
    let why = format!("unknown key '{key}' in the query: {keys}");
    Err(Refusal::wrong(why))
}

/// Returns the time that the key `since` says, in seconds since 1970; `None` without the key.
pub fn since(query: &str, now: &Zoned) -> Result<Option<u64>, Refusal> {
    let parsed = |text: String| {
        let wrong = |why| Refusal::wrong(format!("invalid time '{text}': {why}"));
        since::parse(&text, now).map_err(wrong)
    };
    value(query, "since").map(parsed).transpose()
}

fn decoded(text: &str) -> String {
    let text = text.replace('+', " ");
    percent_decode_str(&text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded() {
        let query = "group=lab%2Falice&since=2h+30m&&flag&bad=%zz%&group=b&u=%ff";
        let all: Vec<_> = pairs(query).collect();
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(
            all,
            [
                pair("group", "lab/alice"),
                pair("since", "2h 30m"),
                pair("flag", ""),
                pair("bad", "%zz%"),
                pair("group", "b"),
                pair("u", "\u{fffd}"),
            ]
        );
        assert_eq!(value(query, "group").as_deref(), Some("b"));
        assert_eq!(value(query, "gpu"), None);
    }

    #[test]
    fn unknown_keys_are_named_with_the_known_ones() {
        assert_eq!(check("since=1h&group=a&since", &["since", "group"]), Ok(()));
        assert_eq!(check("", &[]), Ok(()));
        let Refusal(_, why) = check("since=1h&gruop=a", &["since", "group"]).expect_err("unknown");
        assert!(
            why.contains("'gruop'") && why.ends_with("since, group"),
            "{why}"
        );
        let Refusal(_, why) = check("=1", &[]).expect_err("unknown");
        assert!(why.contains("there are no keys"), "{why}");
    }
}
