//! What `top` changes: by the very functions of `gpulimit set` and `gpulimit kill`.

use super::round::Name;
use super::view::Act;
use crate::failure::Failure;
use crate::groups::{Purpose, meant};
use crate::{kill, output, set};
use gpulimit_base::units::Extent;

/// Does what the user has confirmed, and returns what `set` or `kill` said. Can take a minute.
pub fn act(act: Act) -> String {
    let (done, said) = output::captured(|| match act {
        Act::Limit(group, max, gpu) => is_meant(&group).and_then(|()| {
            let max: Extent = max.parse().map_err(Failure::usage)?;
            set::set(&set::Args::of_max(group.name, max, gpu)).map(drop)
        }),
        Act::Signal(group, process, signal) => is_meant(&group)
            .and_then(|()| kill::kill(&kill::Args::of(group.name, process, signal)).map(drop)),
        _ => Ok(()),
    });
    match done {
        Ok(()) => joined(&said),
        Err(failure) => output::Escaped(&failure.to_string()).to_string(),
    }
}

/// Fails if the name means another group for `set` and `kill`: one in another root.
fn is_meant(group: &Name) -> Result<(), Failure> {
    let (root, name) = meant(&group.name, Purpose::Change)?;
    if root.path() == group.root && name == group.name {
        return Ok(());
    }
    Err(Failure::new(format_args!(
        "the name {0} means a group in {1}: set GPULIMIT_ROOT={2} to change the one in {2}",
        group.name,
        root.path().display(),
        group.root.display()
    )))
}

/// Joins the lines of messages. A line that begins with spaces continues the one before.
fn joined(said: &str) -> String {
    said.trim_end().replace("\n  ", " ").replace('\n', "; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_become_one_line() {
        assert_eq!(joined("one\n  more\ntwo\n"), "one more; two");
        assert_eq!(joined(""), "");
    }
}
