//! The token that clients must send.

use crate::machine::trust::Trusted;
use crate::words::failure::{Failure, cannot};
use gpulimit_group::effective_user;
use std::fs::{self, File};
use std::hint::black_box;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A secret text of the characters that headers, cookies and addresses can hold unchanged.
pub struct Token(String);

impl Token {
    /// The shortest token: 16 random characters of base64 are 96 bits.
    const SHORTEST: usize = 16;
    const LONGEST: usize = 256;

    /// Returns the token in the text of a token file.
    fn of(text: &str) -> Option<Self> {
        let text = text.trim();
        let is_plain = |c: u8| c.is_ascii_alphanumeric() || b"-._~+/=".contains(&c);
        let fits = (Self::SHORTEST..=Self::LONGEST).contains(&text.len());
        (fits && text.bytes().all(is_plain)).then(|| Self(text.into()))
    }

    /// Returns the token's text.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Returns whether a client sent the token. The time does not depend on where the texts differ.
    pub fn is(&self, sent: &[u8]) -> bool {
        let own = self.0.as_bytes();
        let pairs = own.iter().zip(sent);
        let differences = pairs.fold(0, |all, (one, other)| black_box(all | (one ^ other)));
        own.len() == sent.len() && differences == 0
    }
}

/// Reads the token file. Other users must not be able to read it.
///
/// Follows a symbolic link only if no other user could change where it leads: a user who can write
/// to the directory could otherwise make the server accept the content of any private file.
/// Kubernetes mounts a Secret as links that only root can change.
pub fn read(path: &Path) -> Result<Token, Failure> {
    let refused = |why: &str| Failure::new(format_args!("cannot use {}: {why}", path.display()));
    let mut flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    if fs::symlink_metadata(path).is_ok_and(|about| about.is_symlink()) {
        let whole = std::path::absolute(path).map_err(cannot("find", path))?;
        let trusted = Trusted::of_user(effective_user());
        trusted.check(&whole).map_err(|why| {
            refused(&format!(
                "it is a symbolic link, and {why}: pass the file itself"
            ))
        })?;
    } else {
        flags |= libc::O_NOFOLLOW;
    }
    let file = File::options()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .map_err(cannot("open", path))?;
    let about = file.metadata().map_err(cannot("read", path))?;
    if !about.is_file() {
        return Err(refused("it is not a regular file"));
    }
    if about.uid() != effective_user() && about.uid() != 0 {
        return Err(refused("it belongs to another user"));
    }
    if about.mode() & 0o077 != 0 {
        return Err(refused(
            "other users may have access to it: make it private with `chmod 600 FILE`, and write a \
             new token if others can have read it",
        ));
    }
    let mut text = String::new();
    let most = Token::LONGEST as u64 + 64;
    file.take(most)
        .read_to_string(&mut text)
        .map_err(cannot("read", path))?;
    Token::of(&text).ok_or_else(|| {
        refused(
            "a token has 16 to 256 letters, digits and characters of `-._~+/=`: write one with \
             `(umask 077; head -c 24 /dev/urandom | base64 > FILE)`",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_accepted() {
        let token = Token::of(" 0123456789abcdef\n").expect("a token");
        assert!(token.is(b"0123456789abcdef"));
        for other in [
            "",
            "0123456789abcde",
            "0123456789abcdef0",
            "0123456789abcdeg",
        ] {
            assert!(!token.is(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn a_token_is_long_and_plain() {
        assert!(Token::of("0123456789abcde").is_none(), "too short");
        assert!(Token::of(&"a".repeat(257)).is_none(), "too long");
        for wrong in [';', ' ', '"', '\n', 'é'] {
            assert!(
                Token::of(&format!("01234567{wrong}89abcdef")).is_none(),
                "{wrong}"
            );
        }
    }
}
