//! The file /etc/ld.so.preload, parsed like the dynamic linker does: paths between spaces, colons
//! and line breaks, with comments.

use super::file::failed;
use super::library;
use crate::words::failure::Failure;
use gpulimit_base::missing::found;
use std::fs;
use std::path::{Path, PathBuf};

/// The path of the preload file.
pub const FILE: &str = "/etc/ld.so.preload";

/// The content of the preload file.
pub struct Preload {
    /// `None` if the file does not exist.
    text: Option<String>,
}

/// The copies of libgpulimit.so that the preload file names.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct State {
    /// The paths of all copies of libgpulimit.so, in the order of the preload file.
    pub copies: Vec<PathBuf>,
    /// True if the first library in the preload file is a copy of libgpulimit.so.
    pub first: bool,
}

/// Returns whether /etc/ld.so.preload names libgpulimit.so.
pub fn is_installed() -> bool {
    Preload::read(Path::new(FILE)).is_ok_and(|preload| !preload.state().copies.is_empty())
}

impl Preload {
    /// Reads the preload file. The file need not exist.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let about = found(fs::symlink_metadata(path)).map_err(failed("open", path))?;
        let Some(about) = about else {
            return Ok(Self { text: None });
        };
        if !about.is_file() {
            return Err(Failure::new(format_args!(
                "{} is not a regular file: replace it by a regular file, or remove it",
                path.display()
            )));
        }
        let text = fs::read_to_string(path).map_err(failed("read", path))?;
        Ok(Self { text: Some(text) })
    }

    /// Wraps the text of a preload file that the caller has read, such as a container's.
    pub fn of(text: String) -> Self {
        Self { text: Some(text) }
    }

    /// Returns the text of the preload file; `None` if the file does not exist.
    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    fn lines(&self) -> impl Iterator<Item = (&str, Vec<&str>)> {
        self.text().unwrap_or_default().lines().map(|line| {
            let paths = line.split('#').next().unwrap_or_default();
            let paths = paths.split([' ', '\t', ':']);
            (line, paths.filter(|path| !path.is_empty()).collect())
        })
    }

    /// Finds the copies of libgpulimit.so that the preload file names.
    pub fn state(&self) -> State {
        let all = self.lines().flat_map(|(_, paths)| paths).map(PathBuf::from);
        let mut all = all.peekable();
        State {
            first: all.peek().is_some_and(|first| library::is_library(first)),
            copies: all.filter(|path| library::is_library(path)).collect(),
        }
    }

    /// Returns the text of the preload file with this copy of libgpulimit.so as the first entry.
    /// Removes all other copies.
    pub fn with(&self, library: &Path) -> Result<String, Failure> {
        let path = library.to_str().filter(|path| {
            !path.contains(|c: char| c.is_whitespace() || matches!(c, ':' | '#' | '$'))
        });
        let Some(path) = path else {
            return Err(Failure::new(format_args!(
                "the path '{}' has a character that {FILE} cannot contain: choose another --prefix",
                library.display()
            )));
        };
        let rest = self.without(&library::is_library);
        let rest = rest.as_deref().or(self.text()).unwrap_or_default();
        Ok(format!("{path}\n{rest}"))
    }

    /// Returns the text of the preload file without the matching paths; `None` if no path matches.
    pub fn without(&self, is_one: &dyn Fn(&Path) -> bool) -> Option<String> {
        let is_one = |path: &&str| is_one(Path::new(path));
        if !self.lines().any(|(_, paths)| paths.iter().any(is_one)) {
            return None;
        }
        let mut text = String::new();
        for (line, paths) in self.lines() {
            if !paths.iter().any(is_one) {
                text.push_str(line);
                text.push('\n');
                continue;
            }
            let comment = line.find('#').map(|at| &line[at..]);
            let others = paths.into_iter().filter(|path| !is_one(path));
            let others = others.chain(comment).collect::<Vec<_>>().join(" ");
            if !others.is_empty() {
                text.push_str(&others);
                text.push('\n');
            }
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preload(text: &str) -> Preload {
        Preload {
            text: Some(text.into()),
        }
    }

    #[test]
    fn the_library_is_entered_first_and_once() {
        let library = Path::new("/usr/local/lib/gpulimit/libgpulimit.so");
        let head = "/usr/local/lib/gpulimit/libgpulimit.so\n";
        let cases = [
            ("", ""),
            ("/a.so\n", "/a.so\n"),
            ("/a.so", "/a.so"),
            (
                "/a.so /old/libgpulimit.so:/b.so # why\n\n# c\n",
                "/a.so /b.so # why\n\n# c\n",
            ),
            ("/a.so\n/old/libgpulimit.so\n/b.so\n", "/a.so\n/b.so\n"),
            (head, ""),
        ];
        for (before, after) in cases {
            assert_eq!(
                preload(before).with(library).expect("entered"),
                head.to_owned() + after
            );
        }
        let none = Preload { text: None };
        assert_eq!(none.with(library).expect("entered"), head);
        assert_eq!(none.without(&library::is_library), None);
    }

    #[test]
    fn one_copy_is_removed_and_others_stay() {
        let text =
            "/usr/lib/gpulimit/libgpulimit.so /a.so\n/usr/local/lib/gpulimit/libgpulimit.so\n";
        let one = |path: &str| preload(text).without(&|there| there == Path::new(path));
        assert_eq!(
            one("/usr/lib/gpulimit/libgpulimit.so").as_deref(),
            Some("/a.so\n/usr/local/lib/gpulimit/libgpulimit.so\n")
        );
        assert_eq!(one("/lib/gpulimit/libgpulimit.so"), None);
    }

    #[test]
    fn a_path_with_separators_is_refused() {
        for wrong in [
            "/a b/libgpulimit.so",
            "/a:b/libgpulimit.so",
            "/$LIB/libgpulimit.so",
        ] {
            let error = preload("")
                .with(Path::new(wrong))
                .expect_err(wrong)
                .to_string();
            assert!(error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn copies_of_the_library_are_found() {
        let state = |text: &str| preload(text).state();
        assert_eq!(state("# /x/libgpulimit.so\n/a.so"), State::default());
        let first = state("/x/libgpulimit.so\n/a.so");
        assert!(first.first && first.copies == [Path::new("/x/libgpulimit.so")]);
        let twice = state("/a.so:/x/libgpulimit.so\t/y/libgpulimit.so");
        assert!(!twice.first && twice.copies.len() == 2);
    }
}
