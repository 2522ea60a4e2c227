//! How a call ended.

use http::{HeaderMap, HeaderValue};
use std::error::Error;
use std::fmt::{self, Write};

/// The kind of an end, by gRPC's numbers.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Code {
    /// All is well.
    Ok = 0,
    /// Not known.
    Unknown = 2,
    /// The request makes no sense.
    InvalidArgument = 3,
    /// It took too long.
    DeadlineExceeded = 4,
    /// There is not enough left.
    ResourceExhausted = 8,
    /// Things are not as the request needs them.
    FailedPrecondition = 9,
    /// There is no such call.
    Unimplemented = 12,
    /// Something broke.
    Internal = 13,
    /// Nobody is there.
    Unavailable = 14,
}

impl Code {
    fn of(number: &[u8]) -> Self {
        let all = [
            Self::Ok,
            Self::InvalidArgument,
            Self::DeadlineExceeded,
            Self::ResourceExhausted,
            Self::FailedPrecondition,
            Self::Unimplemented,
            Self::Internal,
            Self::Unavailable,
        ];
        let is = |code: &Self| (*code as u8).to_string().as_bytes() == number;
        all.into_iter().find(is).unwrap_or(Self::Unknown)
    }
}

/// The end of a call, with words for a person.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Status {
    /// The kind.
    pub code: Code,
    /// The words.
    pub text: String,
}

impl Status {
    /// With these words.
    pub fn new(code: Code, text: impl fmt::Display) -> Self {
        Self {
            code,
            text: text.to_string(),
        }
    }

    /// All is well.
    pub fn ok() -> Self {
        Self::new(Code::Ok, "")
    }

    /// As headers say.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let text = |name| headers.get(name).map(HeaderValue::as_bytes);
        match text(NUMBER) {
            None => Self::new(Code::Unknown, "an answer without a status"),
            Some(number) => Self::new(Code::of(number), decoded(text(WORDS).unwrap_or_default())),
        }
    }

    /// Says it in headers.
    pub(super) fn put(&self, headers: &mut HeaderMap) {
        headers.insert(NUMBER, HeaderValue::from(self.code as u16));
        if let Ok(words) = HeaderValue::from_str(&encoded(&self.text))
            && !words.is_empty()
        {
            headers.insert(WORDS, words);
        }
    }
}

const NUMBER: &str = "grpc-status";
const WORDS: &str = "grpc-message";

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.code, self.text)
    }
}

impl Error for Status {}

/// Anything but printable ASCII, and `%`, as `%XX`.
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(char::from(byte)),
            // Writing to a string does not fail.
            _ => _ = write!(out, "%{byte:02X}"),
        }
    }
    out
}

fn decoded(text: &[u8]) -> String {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let hex = |text: &[u8]| u8::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok();
        match after.get(..2).and_then(hex) {
            Some(byte) if *first == b'%' => {
                out.push(byte);
                rest = &after[2..];
            }
            _ => {
                out.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_survives_headers() {
        for text in ["", "plain words", "100 % of\nGPU", "größer", "%41", "%"] {
            let mut headers = HeaderMap::new();
            let status = Status::new(Code::ResourceExhausted, text);
            status.put(&mut headers);
            assert_eq!(Status::of(&headers), status);
        }
        assert_eq!(Status::of(&HeaderMap::new()).code, Code::Unknown);
    }
}
