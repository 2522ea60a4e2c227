//! The header `Accept` of a request: the kinds of content that the client takes.

/// The kinds of content in a header, with what the client thinks of them. Names of kinds and of
/// parameters are in lower case.
pub struct Accept(Vec<Range>);

struct Range {
    kind: String,
    version: Option<String>,
    /// Between 0, which means that the client does not take this kind, and 1.
    quality: f64,
}

impl Accept {
    /// Reads a header. A quality that is not a number counts as 0.
    pub fn of(header: &str) -> Self {
        let range = |text: &str| {
            let mut parts = text.split(';').map(|part| part.trim().to_ascii_lowercase());
            let mut range = Range {
                kind: parts.next().filter(|kind| !kind.is_empty())?,
                version: None,
                quality: 1.0,
            };
            for part in parts {
                let (name, value) = part.split_once('=').unwrap_or((&part, ""));
                let value = value.trim().trim_matches('"');
                match name.trim_end() {
                    "q" => range.quality = value.parse().unwrap_or(0.0),
                    "version" => range.version = Some(value.into()),
                    _ => {}
                }
            }
            Some(range)
        };
        Self(header.split(',').filter_map(range).collect())
    }

    /// Returns the quality of a kind that the header names, in this version or without a version; 0
    /// if the header does not name it.
    pub fn named(&self, kind: &str, version: &str) -> f64 {
        let is_it = |range: &&Range| {
            range.kind == kind && range.version.as_deref().is_none_or(|it| it == version)
        };
        self.best(is_it).unwrap_or(0.0)
    }

    /// Returns the quality of a kind of text. The most exact part of the header counts, so that
    /// `text/plain;q=0, */*` does not accept plain text.
    pub fn text(&self, kind: &str) -> f64 {
        let of = |kind: &str| self.best(|range: &&Range| range.kind == kind);
        let found = [kind, "text/*", "*/*"].into_iter().find_map(of);
        found.unwrap_or(0.0)
    }

    fn best(&self, is: impl Fn(&&Range) -> bool) -> Option<f64> {
        let qualities = self.0.iter().filter(is).map(|range| range.quality);
        qualities.reduce(f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qualities_are_read_in_any_case() {
        let accept = Accept::of("Text/Plain ; Q = 0.5 ; Version=\"0.0.4\", */*;q=0.1,, a/b;q=x");
        assert_eq!(accept.named("text/plain", "0.0.4"), 0.5);
        assert_eq!(accept.named("text/plain", "1.0.0"), 0.0);
        assert_eq!(accept.text("text/plain"), 0.5);
        assert_eq!(accept.text("text/html"), 0.1);
        assert_eq!(accept.named("text/html", ""), 0.0, "it is not named");
        assert_eq!(accept.named("a/b", ""), 0.0);
        assert_eq!(Accept::of("text/*;q=0.3, */*").text("text/plain"), 0.3);
        assert_eq!(Accept::of("text/plain;q=0, */*").text("text/plain"), 0.0);
        assert_eq!(Accept::of("").text("text/plain"), 0.0);
    }
}
