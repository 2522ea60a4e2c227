//! Bounds how much a verb or a scrape reads of the groups of each user.
//!
//! A user can make thousands of groups and fill their ledgers. So the groups of a user, other than
//! root and the caller, have a budget: when it is spent, the user's other groups are not opened,
//! and one line says how many. The last opened group may exceed the budget.

use crate::machine::accounts;
use gpulimit_base::patience;
use gpulimit_group::{Group, effective_user};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The most that is taken of one user's groups.
#[derive(Copy, Clone)]
pub struct Most {
    /// Bytes: for each line the length of the group's name and [`LINE`], and for each period of a
    /// history 1.
    pub bytes: usize,
    pub time: Duration,
}

/// A verb that runs once.
pub const VERB: Most = Most {
    bytes: 64 << 10,
    time: Duration::from_secs(2),
};

/// An answer of the server, in which each line becomes many series.
pub const SCRAPE: Most = Most {
    bytes: 16 << 10,
    time: Duration::from_secs(1),
};

/// The bytes of a line beside the group's name.
pub const LINE: usize = 64;

/// The budgets of all users in one round.
pub struct Budget {
    most: Most,
    purses: BTreeMap<u32, Rc<Purse>>,
}

/// The rest of a user's budget. The default value has no bound.
#[derive(Default)]
pub struct Purse {
    owner: u32,
    /// `None` without a bound.
    left: Cell<Option<usize>>,
    time: Cell<Duration>,
    left_out: Cell<usize>,
    /// The processes that were left out.
    processes: Cell<usize>,
}

impl Budget {
    pub fn new(most: Most) -> Self {
        Self {
            most: Most {
                time: patience::of("GPULIMIT_DEBUG_BUDGET_MS", most.time),
                ..most
            },
            purses: BTreeMap::new(),
        }
    }

    /// Returns the purse of the user who owns a group's directory.
    pub fn of(&mut self, group: &Group) -> Rc<Purse> {
        let owner = fs::symlink_metadata(group.path()).map_or(0, |about| about.uid());
        let new = || {
            let is_free = owner == 0 || owner == effective_user();
            Rc::new(Purse {
                owner,
                left: Cell::new((!is_free).then_some(self.most.bytes)),
                time: Cell::new(self.most.time),
                ..Purse::default()
            })
        };
        Rc::clone(self.purses.entry(owner).or_insert_with(new))
    }

    /// Returns a line for each user whose groups were left out: the user, and the text.
    pub fn cut(&self) -> Vec<(u32, String)> {
        let is_cut = |it: &&Rc<Purse>| it.left_out.get() + it.processes.get() > 0;
        let cut = self.purses.values().filter(is_cut);
        let text = |purse: &Rc<Purse>| {
            let (count, name) = (purse.left_out.get(), accounts::user_name(purse.owner));
            let and = match purse.processes.get() {
                0 => String::new(),
                processes => format!("and {processes} processes "),
            };
            let text = format!(
                "{count} groups {and}of user {name} are left out, because this user's groups have \
                 more figures than are read at once"
            );
            (purse.owner, text)
        };
        cut.map(text).collect()
    }
}

impl Purse {
    /// Returns whether the purse belongs to root or the caller, and has no bound.
    pub fn is_free(&self) -> bool {
        self.left.get().is_none()
    }

    /// Returns whether something is left.
    pub fn is_open(&self) -> bool {
        self.is_free() || (self.left.get() != Some(0) && !self.time.get().is_zero())
    }

    /// Returns whether another group of the user may be opened. Counts the group otherwise.
    pub fn opens(&self) -> bool {
        let is_open = self.is_open();
        self.left_out
            .set(self.left_out.get() + usize::from(!is_open));
        is_open
    }

    /// Spends the bytes of a process, if they are left. Counts the process otherwise.
    pub fn admits(&self, bytes: usize) -> bool {
        let is_enough = self.left.get().is_none_or(|left| left >= bytes);
        match is_enough {
            true => self.spend(bytes),
            false => self.processes.set(self.processes.get() + 1),
        }
        is_enough
    }

    /// Looks at a group, and spends the time and the bytes of a line; `None` if nothing is left.
    pub fn within<T>(&self, group: &Group, look: impl FnOnce() -> T) -> Option<T> {
        self.opens().then(|| {
            self.spend(LINE + group.name().len());
            self.timed(look)
        })
    }

    /// Spends the time of this work.
    pub fn timed<T>(&self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = work();
        let left = self.time.get().saturating_sub(start.elapsed());
        self.time.set(left);
        done
    }

    pub fn spend(&self, bytes: usize) {
        self.left
            .set(self.left.get().map(|left| left.saturating_sub(bytes)));
    }
}
