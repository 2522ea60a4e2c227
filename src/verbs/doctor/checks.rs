//! Checks of the machine, such as its driver, its libgpulimit.so and its rules.

use super::finding::Finding;
use super::{policy, process, python, root, suspension};
use crate::machine::preload::{self, Preload};
use crate::machine::{
    accounts::Database, child::ask, library, nvml::Driver, trial, trust::Trusted,
};
use crate::shown::output;
use crate::words::environment::env;
use gpulimit_base::units::gib;
use gpulimit_policy::PolicyError;
use gpulimit_policy::compile::uncovered;
use gpulimit_policy::rules::{Rules, Source};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Runs all checks of the machine, in order of dependency. `loaded` says whether programs started
/// here load the library.
pub(super) fn all(loaded: bool) -> Vec<Finding> {
    let driver = driver();
    let has_driver = driver.is_ok();
    let mut findings = Vec::new();
    for found in [driver, nvml(), library(has_driver)] {
        findings.extend(found.unwrap_or_else(|finding| vec![finding]));
    }
    findings.push(system_wide());
    findings.extend(python::checks());
    findings.extend(root::checks());
    findings.extend(policy::checks());
    findings.extend(rules());
    findings.extend(environment(loaded));
    findings.extend(process::uncounted());
    findings
}

fn driver() -> Result<Vec<Finding>, Finding> {
    const CHECK: &str = "driver";
    let answers = ask("driver", None).map_err(|how| {
        Finding::error(
            CHECK,
            format!(
                "cannot load the CUDA driver: the child process that tried to load the driver \
                 ended with {how}"
            ),
            "reinstall the NVIDIA driver",
        )
    })?;
    let answers: BTreeMap<String, String> = answers.into_iter().collect();
    if let Some(why) = answers.get("missing") {
        return Err(Finding::error(
            CHECK,
            format!("no CUDA driver: {why}"),
            "install the NVIDIA driver; to use GPUs in a container, start the container with \
             access to the GPUs (`--gpus all`)",
        ));
    }
    let version = answers
        .get("version")
        .and_then(|version| version.parse::<u32>().ok());
    let file = answers.get("file").map_or("libcuda.so.1", |file| file);
    let text = match version {
        Some(version) => format!("CUDA {}.{}, {file}", version / 1000, version % 1000 / 10),
        None => format!("CUDA of unknown version, {file}"),
    };
    if version.is_some_and(|version| version < 11_000) {
        return Err(Finding::error(
            CHECK,
            format!("{text}: too old"),
            "install a driver of CUDA 11.0 or later",
        ));
    }
    match answers.get("init").map(String::as_str) {
        Some("0") => {
            let native = native(&answers).into_iter();
            let has_functions = answers.get("suspends").is_some_and(|has| has == "true");
            Ok([Finding::fine(CHECK, text)]
                .into_iter()
                .chain(native)
                .chain(suspension::of_machine(has_functions))
                .collect())
        }
        code => Err(Finding::error(
            CHECK,
            format!(
                "{text}: cuInit fails ({code})",
                code = code.unwrap_or("no such function")
            ),
            "run `nvidia-smi`; code 100 means no GPU, 803 a library that does not match the kernel \
             module, 999 usually a missing /dev/nvidia-uvm",
        )),
    }
}

/// Reports whether the NVIDIA driver can limit the memory of cgroups itself, as drivers from
/// version 615 on can.
fn native(answers: &BTreeMap<String, String>) -> Option<Finding> {
    const CHECK: &str = "native";
    const CONTROLLERS: &str = "/sys/fs/cgroup/cgroup.controllers";
    if answers.get("native")? != "true" {
        let text = "this driver cannot limit cgroups itself (drivers from 615 on can)";
        return Some(Finding::fine(CHECK, text));
    }
    let controllers = fs::read_to_string(CONTROLLERS).unwrap_or_default();
    let has = |name| controllers.split_whitespace().any(|there| there == name);
    let text = if has("dmem") || has("misc") {
        "the driver can also limit a cgroup itself: root can set this second limit with \
         `nvidia-smi memory-limits`"
    } else {
        "the driver can limit cgroups itself, but this machine lacks the cgroup controller \
         for that: cgroup v2 with dmem (Linux 6.14) or misc (Linux 5.13)"
    };
    Some(Finding::fine(CHECK, text))
}

fn nvml() -> Result<Vec<Finding>, Finding> {
    const CHECK: &str = "nvml";
    let driver = Driver::load().map_err(|error| {
        Finding::warning(
            CHECK,
            format!("NVML does not answer: {error}"),
            "install libnvidia-ml.so.1, a part of the NVIDIA driver; without it the driver's own \
             memory is estimated",
        )
    })?;
    let version = driver
        .version()
        .unwrap_or_else(|| "of unknown version".into());
    let mut findings = vec![Finding::fine(
        CHECK,
        format!("driver {version}, GPUs: {}", driver.gpus().len()),
    )];
    for gpu in driver.gpus() {
        let capacity = gpu
            .capacity
            .map_or_else(|| "-".to_owned(), |bytes| gib(bytes).to_string());
        let text = format!(
            "{index} {id} {bus} {name} {capacity}",
            index = gpu.index,
            id = gpu.id,
            bus = gpu.bus,
            name = gpu.name
        );
        findings.push(Finding::fine("gpu", text));
        for instance in gpu.instances.iter().flatten() {
            let text = format!("{index} {instance} (MIG instance)", index = gpu.index);
            findings.push(Finding::fine("gpu", text));
        }
    }
    Ok(findings)
}

fn library(has_driver: bool) -> Result<Vec<Finding>, Finding> {
    const CHECK: &str = "library";
    let found = library::find().and_then(|path| Ok((library::check(&path)?, path)));
    let (version, library) =
        found.map_err(|failure| Finding::error(CHECK, failure.to_string(), ""))?;
    let mut findings = vec![Finding::fine(
        CHECK,
        format!("{}, version {version}", library.display()),
    )];
    if let Err(failure) = trial::with(&library) {
        findings.push(Finding::error("preload", failure.to_string(), ""));
    }
    match ask("preload", Some(&library)) {
        Err(how) => findings.push(Finding::error(
            "preload",
            format!("a test program that preloads the library ended with {how}"),
            "use the libgpulimit.so of the same version as this gpulimit",
        )),
        Ok(answers) => findings.extend(preload(&library, &answers, has_driver)),
    }
    Ok(findings)
}

/// Reports whether /etc/ld.so.preload names libgpulimit.so: as the first entry, only once, and at a
/// path that only root can change.
pub(super) fn system_wide() -> Finding {
    const CHECK: &str = "system-wide";
    let file = preload::FILE;
    let state = match Preload::read(Path::new(file)) {
        Ok(preload) => preload.state(),
        Err(failure) => return Finding::warning(CHECK, failure.to_string(), ""),
    };
    let Some(library) = state.copies.first() else {
        if has_rules() {
            return Finding::warning(
                CHECK,
                format!(
                    "the library is not in {file}: the policy's rules hold only for programs that \
                     are started with the library"
                ),
                "run `gpulimit install` to load the library into every program",
            );
        }
        return Finding::fine(
            CHECK,
            format!(
                "the library is not in {file}: programs get the library from `gpulimit run` or \
                 LD_PRELOAD"
            ),
        );
    };
    let path = library.display();
    if let Err(why) = Trusted::root().check(library) {
        return Finding::error(
            CHECK,
            format!(
                "{file} names {path}, but {why}: another user could change the code that every \
                 program runs"
            ),
            "allow only root to change the library: use `chown root` and `chmod go-w`",
        );
    }
    if state.copies.len() > 1 || !state.first {
        return Finding::warning(
            CHECK,
            format!(
                "{file} does not name {path} first and only once: a library that the file names \
                 earlier can hide calls from libgpulimit.so"
            ),
            "run `gpulimit install` to correct /etc/ld.so.preload",
        );
    }
    Finding::fine(CHECK, format!("{path}, by {file}"))
}

/// Returns whether the machine has a rules file, even if the rules cannot be read.
fn has_rules() -> bool {
    !matches!(Rules::load(&Source::system()), Ok(None))
}

fn preload(library: &Path, answers: &[(String, String)], has_driver: bool) -> Vec<Finding> {
    if !answers.iter().any(|(key, _)| key == "mapped") {
        return vec![Finding::error(
            "preload",
            format!(
                "the dynamic linker did not load {} from LD_PRELOAD",
                library.display()
            ),
            "use a library built for this system; setuid programs ignore LD_PRELOAD",
        )];
    }
    let answer = |wanted| {
        let found = answers.iter().find(|(key, _)| key == wanted);
        found.map_or("", |(_, value)| value.as_str())
    };
    let contains = match answer("contains") {
        "1" => "; the library catches its own panics",
        _ => "",
    };
    let mut findings = vec![Finding::fine(
        "preload",
        format!("the library loads (glibc {}){contains}", answer("glibc")),
    )];
    let hooks: Vec<&str> = answers
        .iter()
        .filter(|(key, _)| key == "hook")
        .map(|(_, line)| line.as_str())
        .collect();
    let with = |state: &str| {
        let in_state = |line: &&str| line.split_whitespace().nth(2) == Some(state);
        hooks.iter().copied().filter(in_state).collect::<Vec<_>>()
    };
    let names = |lines: &[&str]| {
        let name = |line: &&str| {
            line.split_whitespace()
                .next()
                .unwrap_or_default()
                .to_owned()
        };
        lines.iter().map(name).collect::<Vec<_>>().join(", ")
    };
    let (resolved, missing, absent) = (with("resolved"), with("missing"), with("not-in-driver"));
    if hooks.is_empty() {
        findings.push(Finding::error(
            "hooks",
            "cannot read the library's list of hooks: the file is another library, or another \
             version of libgpulimit.so",
            "use the libgpulimit.so of the same version as this gpulimit",
        ));
    } else if !has_driver {
        findings.push(Finding::fine(
            "hooks",
            format!(
                "{hooks} hooks in the library; without a CUDA driver, they cannot be resolved",
                hooks = hooks.len()
            ),
        ));
    } else {
        let found = match (resolved.len(), absent.len()) {
            (count, 0) => format!("{count} resolved"),
            (count, more) => {
                format!("{count} resolved; {more} hooks are for functions that this driver lacks")
            }
        };
        findings.push(Finding::fine("hooks", found));
        if !missing.is_empty() {
            findings.push(Finding::error(
                "hooks",
                format!(
                    "{count} hooks unresolved, but the driver should have these functions: {names}",
                    count = missing.len(),
                    names = names(&missing)
                ),
                "report this with the driver's version; memory allocated through these functions \
                 is not counted",
            ));
        }
    }
    findings
}

fn rules() -> Vec<Finding> {
    const CHECK: &str = "rules";
    let mut findings = Vec::new();
    match gpulimit_policy::rule() {
        Ok(None) => {}
        Ok(Some(rule)) => findings.push(Finding::fine(
            CHECK,
            format!(
                "rule {} of the administrator's policy assigns you to group {}",
                rule.rule, rule.group
            ),
        )),
        Err(error) => findings.push(Finding::error(CHECK, error.to_string(), "")),
    }
    if let Ok(Some(rules)) = Rules::load(&Source::system()) {
        let left = uncovered(&rules, &Database);
        if !left.is_empty() {
            findings.push(Finding::warning(
                CHECK,
                format!(
                    "no rule limits the programs of these users: {}",
                    output::some(&left)
                ),
                "add a rule with user = \"*\" at the end of the policy, and apply the policy",
            ));
        }
    }
    findings
}

fn environment(loaded: bool) -> Vec<Finding> {
    const CHECK: &str = "environment";
    let mut findings = Vec::new();
    let fine_if_loaded = |variable: &str, asks: String| match loaded {
        true => Finding::fine(CHECK, asks),
        false => Finding::warning(
            CHECK,
            format!(
                "{asks}, but programs that start here do not load the library, and ignore \
                 {variable}"
            ),
            "start programs with `gpulimit run`, set LD_PRELOAD to the path of libgpulimit.so, or \
             run `gpulimit install` as root",
        ),
    };
    match gpulimit_policy::assignment(&env) {
        // The check [`rules`] has already reported an error in the rules.
        Err(PolicyError::Rules(_)) => {}
        Err(error) => findings.push(Finding::error(
            CHECK,
            error.to_string(),
            "correct or unset the variable: until then, programs with the library get no GPU \
             memory",
        )),
        Ok(None) => findings.push(Finding::fine(CHECK, "the environment asks for no limit")),
        Ok(Some(assignment)) => {
            let group = &assignment.group;
            findings.push(match &assignment.create {
                _ if assignment.is_by_rule_alone() => {
                    Finding::fine(CHECK, "the environment asks for no other group or limit")
                }
                Some(request) => fine_if_loaded(
                    &request.variable,
                    format!("{} asks for a group for this job", request.variable),
                ),
                None => match assignment.root.group(group) {
                    Ok(_) => fine_if_loaded(
                        gpulimit_policy::GROUP,
                        format!("{} asks for the group {group}", gpulimit_policy::GROUP),
                    ),
                    Err(error) => Finding::error(CHECK, error.to_string(), ""),
                },
            });
        }
    }
    let seen = [
        "GPULIMIT_ROOT",
        library::VARIABLE,
        gpulimit_policy::GROUP,
        "LD_PRELOAD",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
    ];
    for name in seen.iter().chain(gpulimit_policy::JOB_VARIABLES) {
        let is_named = |finding: &Finding| finding.text.starts_with(&format!("{name}="));
        if let Some(value) = env(name)
            && !findings.iter().any(is_named)
        {
            findings.push(Finding::fine(
                CHECK,
                format!("{name}={}", value.to_string_lossy()),
            ));
        }
    }
    findings
}
