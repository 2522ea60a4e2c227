//! The groups and rules that a policy file asks for, and how those of this machine differ.

pub mod difference;
pub mod record;

use super::gpu;
use crate::machine::nvml::Driver;
use crate::words::failure::Failure;
use difference::Wanted;
use gpulimit_group::{Access, Root, effective_user};
use gpulimit_limits::{ExtentError, Key, LimitSet, Selector};
use gpulimit_policy::compile::Plan;
use gpulimit_policy::file::Mistake;
use gpulimit_policy::rules;
use std::path::Path;

/// Turns the policy's groups into limits for this machine's GPUs. Also returns mistakes, such as
/// absent GPUs.
pub fn wanted(
    file: &Path,
    plan: &Plan,
    driver: Option<&Driver>,
) -> Result<(Vec<Wanted>, Vec<Mistake>), Failure> {
    let gpus = driver.map(Driver::capacities).unwrap_or_default();
    let mut mistakes = Vec::new();
    let mut all = Vec::new();
    for group in &plan.groups {
        let mut limits = LimitSet::default();
        let mut sizes: Vec<_> = group.settings.sizes.iter().collect();
        sizes.sort_by_key(|(_, gpu, _)| gpu.value != "all");
        let mut seen: Vec<(Selector, Key)> = Vec::new();
        for (key, gpu, extent) in sizes {
            let mut wrong = |why: String, absent: bool| {
                mistakes.push(Mistake {
                    path: file.into(),
                    line: gpu.line,
                    why,
                    absent,
                })
            };
            let selector = match gpu.value.as_str() {
                "all" => Selector::All,
                text => match gpu::resolve(text, driver) {
                    Ok(id) => Selector::Device(id),
                    Err(failure) => {
                        wrong(failure.to_string(), true);
                        continue;
                    }
                },
            };
            if seen.contains(&(selector, *key)) {
                let why = format!(
                    "'{}' names a GPU that already has a value for {key}: give one value for each \
                     GPU",
                    gpu.value
                );
                wrong(why, true);
            }
            seen.push((selector, *key));
            if let Err(error) = limits.set_extent(selector, *key, *extent, &gpus, false) {
                let is_absent = matches!(error, ExtentError::Unknown { .. });
                wrong(error.to_string(), is_absent);
            }
        }
        for (key, value) in &group.settings.options {
            limits.options.set(*key, value).map_err(Failure::new)?;
        }
        all.push(Wanted {
            name: group.name.clone(),
            limits,
            access: Access {
                owner: Some(group.owner.unwrap_or_else(effective_user)),
                members: group.members,
            },
        });
    }
    Ok((all, mistakes))
}

/// Returns the text of the rules file, as libgpulimit.so reads it; `None` if the policy has no
/// rules.
pub fn rules_text(plan: &Plan) -> Result<Option<String>, Failure> {
    let text = (!plan.rules.0.is_empty()).then(|| plan.rules.to_string());
    match text {
        Some(text) if text.len() as u64 > rules::LONGEST => Err(Failure::new(
            "the rules name too many users for one file: name unix groups instead of users, or one \
             group for all users instead of one for each",
        )),
        text => Ok(text),
    }
}

/// Returns whether an `apply` would change, make or remove groups.
pub fn differs(root: &Root, wanted: &[Wanted]) -> Result<bool, Failure> {
    let steps = difference::steps(root, wanted, &record::read(root)?)?;
    Ok(!steps.is_empty())
}
