//! Names of groups.

use super::GroupError;

/// Longest name, in bytes.
pub(super) const LONGEST: usize = 64;

/// How long a group stays.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Kind {
    /// Until somebody removes it.
    Named,
    /// As long as a program runs in it, or the command that made it.
    Job,
}

impl Kind {
    /// The kind that a name stands for: `run-<pid>-<start>` and `job-<pid>-<start>` are jobs.
    pub fn of(name: &str) -> Self {
        let job = || {
            let rest = name
                .strip_prefix("run-")
                .or_else(|| name.strip_prefix("job-"))?;
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

/// Accepts `[A-Za-z0-9._-]{1,64}` that does not start with `.` or `-`.
pub fn check(name: &str) -> Result<(), GroupError> {
    let good = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    let fits = (1..=LONGEST).contains(&name.len())
        && name.bytes().all(good)
        && !name.starts_with(['.', '-']);
    if fits {
        Ok(())
    } else {
        Err(GroupError::Name { name: name.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let long = "a".repeat(LONGEST);
        for yes in ["a", "train", "Job_7.b-c", "0", &long] {
            assert!(check(yes).is_ok(), "{yes}");
        }
        let longer = "a".repeat(LONGEST + 1);
        for no in [
            "", ".", "..", ".a", "-a", "a/b", "a b", "é", "a\0", "a\n", &longer,
        ] {
            let error = check(no).expect_err(no).to_string();
            assert!(error.contains(&no.escape_debug().to_string()), "{error}");
        }
    }

    #[test]
    fn kinds() {
        for job in ["run-1-2", "job-4711-998877"] {
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
        ] {
            assert_eq!(Kind::of(named), Kind::Named, "{named}");
        }
    }
}
