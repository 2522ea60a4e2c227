//! Names of groups: `lab`, and `lab/alice/job7` for a group below it.

use super::{GroupError, MAX_DEPTH};
pub(super) use gpulimit_base::name::is_part;

/// The kinds of groups, which differ in when the group is removed.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Kind {
    /// A group that stays until a user removes it.
    Named,
    /// A job's group. A clean-up removes it after its programs and its command have ended.
    Job,
}

impl Kind {
    /// Returns the kind of group that has this name: `run-<pid>-<start>` and `job-<pid>-<start>`
    /// are jobs.
    pub fn of(name: &str) -> Self {
        let last = last(name);
        let job = || {
            let rest = last
                .strip_prefix("run-")
                .or_else(|| last.strip_prefix("job-"))?;
            let (pid, start) = rest.split_once('-')?;
            let number = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
            (number(pid) && number(start)).then_some(())
        };
        match job() {
            Some(()) => Self::Job,
            None => Self::Named,
        }
    }
}

/// Accepts a group's name: up to [`MAX_DEPTH`] parts separated by `/`, each `[A-Za-z0-9._-]{1,64}`
/// and not starting with `.` or `-`.
pub fn check(name: &str) -> Result<(), GroupError> {
    let parts = name.split('/').count();
    if parts <= MAX_DEPTH && name.split('/').all(is_part) {
        Ok(())
    } else {
        Err(GroupError::Name { name: name.into() })
    }
}

/// Returns the name of the parent of the group `name`; `None` at the top of the root.
pub fn parent(name: &str) -> Option<&str> {
    name.rsplit_once('/').map(|(parent, _)| parent)
}

/// Returns the last part of a group's name.
pub fn last(name: &str) -> &str {
    name.rsplit_once('/').map_or(name, |(_, last)| last)
}

/// Iterates over the group's name and the names of all groups above it, from the group upwards.
pub fn upwards(name: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(name), |name| parent(name))
}

/// Returns whether the group called `name` is `group` or below it.
pub fn is_within(name: &str, group: &str) -> bool {
    upwards(name).any(|above| above == group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulimit_base::name::LONGEST;

    #[test]
    fn names() {
        let long = "a".repeat(LONGEST);
        let deep = ["d"; MAX_DEPTH].join("/");
        for yes in ["a", "train", "Job_7.b-c", "0", "a/b", &long, &deep] {
            assert!(check(yes).is_ok(), "{yes}");
        }
        let longer = "a".repeat(LONGEST + 1);
        let deeper = ["d"; MAX_DEPTH + 1].join("/");
        for no in [
            "", ".", "..", ".a", "-a", "/", "/a", "a/", "a//b", "a/../b", "a/.b", "a b", "é",
            "a\0", "a\n", &longer, &deeper,
        ] {
            let error = check(no).expect_err(no).to_string();
            assert!(error.contains(&no.escape_debug().to_string()), "{error}");
        }
    }

    #[test]
    fn kinds() {
        for job in ["run-1-2", "job-4711-998877", "lab/job-1-2"] {
            assert_eq!(Kind::of(job), Kind::Job, "{job}");
        }
        for named in [
            "train",
            "run",
            "run-",
            "run-1",
            "run-1-",
            "run--1",
            "run-a-1",
            "job-1-2-3",
            "runs-1-2",
            "job-1-2/lab",
        ] {
            assert_eq!(Kind::of(named), Kind::Named, "{named}");
        }
    }

    #[test]
    fn relations() {
        assert_eq!(parent("lab/alice/job7"), Some("lab/alice"));
        assert_eq!(parent("lab"), None);
        assert_eq!(last("lab/alice"), "alice");
        let path: Vec<_> = upwards("lab/alice/job7").collect();
        assert_eq!(path, ["lab/alice/job7", "lab/alice", "lab"]);
        assert!(is_within("lab/alice/job7", "lab/alice"));
        assert!(is_within("lab", "lab"));
        assert!(!is_within("lab", "lab/alice"));
        assert!(!is_within("laboratory", "lab"));
    }
}
