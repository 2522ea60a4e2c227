//! A group for unit tests, which run on machines without a driver. Each group has a temporary
//! directory of its own.

use gpulimit_group::{Member, Root};
use gpulimit_limits::{LimitSet, Selector, Setting};

/// A group that exists until this value is dropped.
pub struct Scratch {
    folder: gpulimit_support::Scratch,
}

impl Scratch {
    /// Makes a group with settings such as `max=100M`.
    pub fn new(settings: &[&str]) -> Scratch {
        let mut limits = LimitSet::default();
        for setting in settings {
            match setting.parse().expect("a setting") {
                Setting::Size(key, extent) => limits
                    .set_extent(Selector::All, key, extent, &[], false)
                    .expect("a size"),
                Setting::Option(key, value) => limits.options.set(key, &value).expect("an option"),
            }
        }
        let scratch = Scratch {
            folder: gpulimit_support::Scratch::new(),
        };
        scratch.root().create("group", &limits).expect("a group");
        scratch
    }

    fn root(&self) -> Root {
        Root::at(&*self.folder).expect("a root")
    }

    /// Joins the group as a new process.
    pub fn member(&self) -> &'static Member {
        let member = Member::join(&self.root(), "group").expect("a member");
        Box::leak(Box::new(member))
    }
}
