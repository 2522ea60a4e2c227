//! Finds the group of a process from the administrator's rules and from environment variables.
//!
//! The order is: the rules, `GPULIMIT_GROUP`, `GPULIMIT_MAX`, the variables of other tools. If a
//! rule matches, the environment can only choose a group below the rule's group.
//!
//! An invalid value is an error, because a requested limit must never be left out silently.

mod assigned;
#[cfg(feature = "file")]
pub mod compile;
mod credentials;
mod decision;
mod error;
mod facts;
#[cfg(feature = "file")]
pub mod file;
mod glob;
mod handed;
mod namespace;
mod request;
pub mod rules;

pub use error::PolicyError;
pub use facts::{Facts, containers_of};
pub use handed::{LIMITS, hand_down};
pub use request::{LimitRequest, RequestSelector};

use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_group::{Created, Group, Kind, Member, Root, check_name, parent};
use gpulimit_limits::{Key, LimitSet, Selector};
use rules::{Assigned, OnError, Source};
use std::ffi::OsString;

/// The environment variable that names the group of a process.
pub const GROUP: &str = "GPULIMIT_GROUP";
/// The environment variable with the limits of a group that is made for this job alone.
pub const MAX: &str = "GPULIMIT_MAX";
/// The environment variable of NVIDIA MPS with a limit per GPU: `0=2G,1=512M`.
const MPS: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
/// The environment variable of NVIDIA's containers with a limit in whole MiB.
const CONTAINER: &str = "NVIDIA_GPU_MEMORY_LIMIT";

/// The environment variable of HAMi and other tools: a size, where 0 means no limit.
const PLAIN: &str = "CUDA_DEVICE_MEMORY_LIMIT";
/// The environment variables of HAMi for one GPU each. A name ends with the GPU's CUDA ordinal.
const NUMBERED: &[&str] = JOB_VARIABLES.split_at(4).1;

macro_rules! job_variables {
    ($($n:literal)*) => {
        &[MAX, PLAIN, MPS, CONTAINER, $(concat!("CUDA_DEVICE_MEMORY_LIMIT_", $n)),*]
    };
}

/// The environment variables that ask for a group for this job alone. Child processes find that
/// group in [`GROUP`].
pub const JOB_VARIABLES: &[&str] = job_variables!(
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
);

/// A function that returns the value of an environment variable.
pub type Environment<'a> = dyn Fn(&str) -> Option<OsString> + 'a;

/// The group that a process belongs to, with the rule that assigns it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Assignment {
    /// The root that holds the group.
    pub root: Root,
    /// The name of the group.
    pub group: String,
    /// The limits with which the group is made if it does not exist. `None` means that the group
    /// must exist.
    pub create: Option<LimitRequest>,
    /// The value of [`LIMITS`], with which jobs' groups that are gone are made again.
    pub handed: Option<String>,
    /// The rule that matches the process. Its group is [`Self::group`] or a group above it.
    pub rule: Option<Assigned>,
}

/// Returns the group that this process belongs to; `None` where neither a rule nor the environment
/// names one.
pub fn assignment(env: &Environment<'_>) -> Result<Option<Assignment>, PolicyError> {
    assignment_by(rule()?, env)
}

/// Returns the group that the administrator's rules put this process into; `None` if no rule
/// matches or the rule exempts the process.
pub fn rule() -> Result<Option<Assigned>, PolicyError> {
    assigned::by_rules(&Source::system())
}

/// Returns the group of a process with the environment `env`. `rule` is the rule that matches the
/// process.
pub fn assignment_by(
    rule: Option<Assigned>,
    env: &Environment<'_>,
) -> Result<Option<Assignment>, PolicyError> {
    match rule {
        Some(rule) => assigned::below(&Source::system(), rule, env).map(Some),
        None => by_environment(env),
    }
}

fn by_environment(env: &Environment<'_>) -> Result<Option<Assignment>, PolicyError> {
    let Some((group, create)) = asked(env)? else {
        return Ok(None);
    };
    let is_named = create.is_none() && !is_job(&group);
    Ok(Some(Assignment {
        root: match is_named {
            true => Root::locate_group(env, &group)?,
            false => Root::locate(env)?,
        },
        handed: text(env, LIMITS)?.filter(|_| is_named),
        group,
        create,
        rule: None,
    }))
}

/// Returns the name of the group that the environment asks for, and the limits with which it is
/// made if that is a group for this job alone. Returns `None` if the environment asks for no group,
/// or a variable of another tool says that this process has no limit.
fn asked(env: &Environment<'_>) -> Result<Option<(String, Option<LimitRequest>)>, PolicyError> {
    Ok(match group_variable(env)? {
        Some(name) if !is_job(&name) => Some((name, None)),
        name => match requests(env)? {
            Asked::Limits(request) => {
                Some((name.unwrap_or_else(own_job_group_name), Some(request)))
            }
            Asked::NoLimit => None,
            Asked::Unset => name.map(|name| (name, None)),
        },
    })
}

/// Returns the group that the variable [`GROUP`] names.
fn group_variable(env: &Environment<'_>) -> Result<Option<String>, PolicyError> {
    let group = text(env, GROUP)?;
    if let Some(name) = &group {
        if name.is_empty() {
            return Err(value(
                GROUP,
                name,
                "the value is empty: name a group, or unset the variable",
            ));
        }
        check_name(name)?;
    }
    Ok(group)
}

/// Returns whether the name has the form of a group that is made for one job.
fn is_job(name: &str) -> bool {
    name.starts_with("job-") && Kind::of(name) == Kind::Job
}

/// Returns the name for the group of a job whose first process is the calling process.
pub fn own_job_group_name() -> String {
    let (pid, start) = (std::process::id(), Identity::own_start_time());
    format!("job-{pid}-{start}")
}

impl Assignment {
    /// Returns whether the group is the rule's own group, not a group below it that the environment
    /// has chosen.
    pub fn is_by_rule_alone(&self) -> bool {
        self.rule
            .as_ref()
            .is_some_and(|rule| rule.group == self.group)
    }

    /// Returns whether a process that cannot join the group may run without a limit. Never true for
    /// a group that the user chose.
    pub fn is_open(&self) -> bool {
        self.is_by_rule_alone()
            && self
                .rule
                .as_ref()
                .is_some_and(|rule| rule.on_error == OnError::Open)
    }

    /// Returns whether [`Self::join`] needs to know the GPUs of this process.
    pub fn needs_gpus(&self) -> bool {
        self.create.as_ref().is_some_and(LimitRequest::needs_gpus)
    }

    /// Returns the limit that will hold on a device, and the bytes that are charged now in the
    /// group with that limit, for a process that cannot join yet; `u64::MAX` and 0 without a limit.
    /// `ordinal` is the device's CUDA ordinal, if it is known: a limit for an ordinal counts only
    /// then.
    pub fn outlook(&self, device: DeviceId, ordinal: Option<u32>, capacity: u64) -> (u64, u64) {
        let group = self.root.group(&self.group).ok();
        let above = || self.root.group(parent(&self.group)?).ok();
        let nearest = group.clone().or_else(above);
        let levels = nearest.iter().flat_map(Group::upwards).filter_map(|group| {
            let max = group.limits().ok()?.bounds(&device, capacity).max;
            let charged = group.ledger().ok().and_then(|ledger| {
                let index = ledger.find_device(&device)?;
                Some(ledger.charged(index))
            });
            Some((max, charged.unwrap_or(0)))
        });
        // An existing limit of the job's group counts before the one that the environment asks for.
        let is_there = group.is_some();
        let is_set = group.is_some_and(|group| {
            let rules = group.rules();
            rules.is_ok_and(|rules| rules.for_device(device, Key::Max).is_some())
        });
        let asked = self.create.as_ref().filter(|_| !is_set);
        let asked = asked.and_then(|request| request.outlook(device, ordinal, capacity));
        let handed = || {
            let max = handed::own(self.handed.as_deref()?)?.for_device(device, Key::Max)?;
            Some(max.resolve(capacity))
        };
        let asked = asked.or_else(|| if is_there { None } else { handed() });
        let levels = levels.chain(asked.map(|max| (max, 0)));
        levels.min().unwrap_or((u64::MAX, 0))
    }

    /// Makes this process a member of its group, and creates a missing group if asked. `gpus` and
    /// `capacity` (bytes) are called only if needed.
    pub fn join(
        &self,
        gpus: &dyn Fn() -> Vec<(u32, DeviceId)>,
        capacity: &dyn Fn(u32) -> Option<u64>,
    ) -> Result<Member, PolicyError> {
        self.enter(gpus, capacity)
            .map_err(|error| self.explain(error))
    }

    /// Fails if the group must exist and does not, without joining it.
    pub fn check(&self) -> Result<(), PolicyError> {
        let again = self.handed.as_deref().and_then(handed::own);
        match self.root.group(&self.group) {
            Err(error) if self.create.is_none() && again.is_none() => {
                Err(self.explain(error.into()))
            }
            _ => Ok(()),
        }
    }

    /// Adds the rule that has assigned the group to an error of the group.
    fn explain(&self, error: PolicyError) -> PolicyError {
        match (error, &self.rule) {
            (PolicyError::Group(error), Some(rule)) => PolicyError::Assigned {
                rule: rule.clone(),
                group: self.group.clone(),
                error: Box::new(error),
            },
            (error, _) => error,
        }
    }

    fn enter(
        &self,
        gpus: &dyn Fn() -> Vec<(u32, DeviceId)>,
        capacity: &dyn Fn(u32) -> Option<u64>,
    ) -> Result<Member, PolicyError> {
        let _made = self.make(gpus, capacity)?;
        Ok(Member::join(&self.root, &self.group)?)
    }

    /// Makes the group if it is missing and the environment has its limits. While the returned
    /// value lives, no clean-up removes the group.
    pub fn make(
        &self,
        gpus: &dyn Fn() -> Vec<(u32, DeviceId)>,
        capacity: &dyn Fn(u32) -> Option<u64>,
    ) -> Result<Option<Created>, PolicyError> {
        let Some(request) = &self.create else {
            return handed::make_again(&self.root, &self.group, self.handed.as_deref());
        };
        let gpus = if request.needs_gpus() {
            gpus()
        } else {
            Vec::new()
        };
        let limits = request.resolve(&gpus, capacity)?;
        // Ignore errors, because the job can run even if the groups of ended jobs cannot be
        // removed.
        let _ = self.root.collect_garbage_below(parent(&self.group));
        let created = self.root.create(&self.group, &limits)?;
        if !created.new {
            add_missing(&created.group, &limits)?;
        }
        Ok(Some(created))
    }
}

/// Adds limits for GPUs that the group has no limits for. Existing limits stay: an administrator
/// may have set them.
fn add_missing(group: &Group, limits: &LimitSet) -> Result<(), PolicyError> {
    let there = group
        .limits()?
        .rules()
        .map_err(gpulimit_group::GroupError::from)?;
    let missing =
        |there: &LimitSet, selector: Selector, key: Key| there.get(selector, key).is_none();
    let asked = || {
        limits
            .rules
            .iter()
            .flat_map(|(selector, values)| values.iter().map(|(key, size)| (*selector, key, size)))
    };
    if asked().any(|(selector, key, _)| missing(&there, selector, key)) {
        group.write_limits(|set| {
            for (selector, key, size) in asked() {
                if missing(set, selector, key) {
                    set.set(selector, key, size);
                }
            }
        })?;
    }
    Ok(())
}

/// What the environment variables ask for, apart from a group's name.
enum Asked {
    /// The variables ask for these limits.
    Limits(LimitRequest),
    /// A variable of another tool (such as HAMi) asks for no limit.
    NoLimit,
    /// No variable with a limit is set.
    Unset,
}

fn requests(env: &Environment<'_>) -> Result<Asked, PolicyError> {
    let request = |variable: &str, rules, lenient| {
        Ok(Asked::Limits(LimitRequest {
            rules,
            variable: variable.into(),
            lenient,
        }))
    };
    if let Some(text) = text(env, MAX)? {
        if text.trim().is_empty() {
            return Err(value(
                MAX,
                &text,
                "the value is empty: give a size such as 4G, or unset the variable",
            ));
        }
        let rules = request::list(&text).map_err(|why| value(MAX, &text, &why))?;
        return request(MAX, rules, false);
    }
    let mut none = false;
    let mut rules = Vec::new();
    let mut first = PLAIN;
    let numbered = NUMBERED
        .iter()
        .zip(0..)
        .map(|(name, n)| (*name, RequestSelector::Ordinal(n)));
    for (name, selector) in [(PLAIN, RequestSelector::All)].into_iter().chain(numbered) {
        if let Some(size) = other_tool(env, name, request::or_zero)? {
            none = true;
            if let Some(size) = size {
                if rules.is_empty() {
                    first = name;
                }
                rules.push((selector, size.into()));
            }
        }
    }
    if !rules.is_empty() {
        return request(first, rules, true);
    }
    if let Some(rules) = other_tool(env, MPS, request::mps)? {
        return request(MPS, rules, true);
    }
    if let Some(size) = other_tool(env, CONTAINER, request::mebibytes)? {
        return request(CONTAINER, vec![(RequestSelector::All, size.into())], true);
    }
    Ok(if none { Asked::NoLimit } else { Asked::Unset })
}

/// Reads an environment variable of another tool, in the syntax of that tool.
fn other_tool<T>(
    env: &Environment<'_>,
    name: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>, PolicyError> {
    let Some(text) = text(env, name)? else {
        return Ok(None);
    };
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(value(
            name,
            &text,
            "the value is empty: give a size, or unset the variable",
        ));
    }
    parse(trimmed)
        .map(Some)
        .map_err(|why| value(name, &text, &why))
}

fn text(env: &Environment<'_>, name: &str) -> Result<Option<String>, PolicyError> {
    let Some(raw) = env(name) else {
        return Ok(None);
    };
    raw.into_string()
        .map(Some)
        .map_err(|raw| value(name, &raw.to_string_lossy(), "the value is not UTF-8"))
}

fn value(variable: &str, text: &str, why: &str) -> PolicyError {
    PolicyError::Variable(format!("{variable}='{}': {why}", text.escape_debug()))
}
