//! Checks of the machine, such as its driver, its libgpulimit.so and its rules.

use super::finding::{Check, Finding};
use super::{machine, policy, process, python, root, slurm, suspension};
use crate::machine::child::{Answers, What, ask};
use crate::machine::preload::{self, Preload};
use crate::machine::{accounts::Database, library, nvml::Driver, trial, trust::Trusted};
use crate::shown::output;
use crate::words::environment::env;
use gpulimit_base::units::gib;
use gpulimit_policy::PolicyError;
use gpulimit_policy::compile::uncovered;
use gpulimit_policy::rules::{Assigned, Rules, Source};
use std::path::Path;

const PRELOAD: Check = Check("preload");
const SAME_VERSION: &str = "use the libgpulimit.so of the same version as this gpulimit";

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
    findings.extend(root::checks().unwrap_or_else(|finding| vec![finding]));
    findings.extend(policy::checks());
    findings.extend(rules());
    findings.extend(slurm::check());
    findings.extend(environment(loaded));
    findings.extend(process::uncounted(None));
    findings
}

fn driver() -> Result<Vec<Finding>, Finding> {
    const CHECK: Check = Check("driver");
    let answers = ask(What::Driver, None).map_err(|how| {
        let text = format!(
            "cannot load the CUDA driver: the child process that tried to load the driver ended \
             with {how}"
        );
        CHECK.error(text, "reinstall the NVIDIA driver")
    })?;
    if let Some(why) = answers.get("missing") {
        let remedy = "install the NVIDIA driver; to use GPUs in a container, start the container \
                      with access to the GPUs (`--gpus all`)";
        return Err(CHECK.error(format!("no CUDA driver: {why}"), remedy));
    }
    let version = answers.get("version");
    let version: Option<u32> = version.and_then(|version| version.parse().ok());
    let file = answers.get("file").unwrap_or("libcuda.so.1");
    let text = match version {
        Some(version) => format!("CUDA {}.{}, {file}", version / 1000, version % 1000 / 10),
        None => format!("CUDA of unknown version, {file}"),
    };
    if version.is_some_and(|version| version < 11_000) {
        let remedy = "install a driver of CUDA 11.0 or later";
        return Err(CHECK.error(format!("{text}: too old"), remedy));
    }
    let code = answers.get("init").unwrap_or("no such function");
    if code != "0" {
        let remedy = "run `nvidia-smi`; code 100 means no GPU, 803 a library that does not match \
                      the kernel module, 999 usually a missing /dev/nvidia-uvm";
        return Err(CHECK.error(format!("{text}: cuInit fails ({code})"), remedy));
    }
    let mut findings = vec![CHECK.fine(text)];
    let has_functions = answers.get("suspends") == Some("true");
    findings.extend(suspension::of_machine(has_functions));
    Ok(findings)
}

fn nvml() -> Result<Vec<Finding>, Finding> {
    const CHECK: Check = Check("nvml");
    const GPU: Check = Check("gpu");
    let driver = Driver::load().map_err(|error| {
        let remedy = "install libnvidia-ml.so.1, a part of the NVIDIA driver; without it the \
                      driver's own memory is estimated";
        CHECK.warning(format!("NVML does not answer: {error}"), remedy)
    })?;
    let version = driver
        .version()
        .unwrap_or_else(|| "of unknown version".into());
    let count = driver.gpus().len();
    let mut findings = vec![CHECK.fine(format!("driver {version}, GPUs: {count}"))];
    for gpu in driver.gpus() {
        let (index, id, bus, name) = (gpu.index, gpu.id, &gpu.bus, &gpu.name);
        let capacity = gpu.capacity.map(|bytes| gib(bytes).to_string());
        let capacity = capacity.unwrap_or_else(|| "-".into());
        findings.push(GPU.fine(format!("{index} {id} {bus} {name} {capacity}")));
        for instance in gpu.instances.iter().flatten() {
            findings.push(GPU.fine(format!("{index} {instance} (MIG instance)")));
        }
    }
    findings.extend(machine::kind(&driver));
    Ok(findings)
}

fn library(has_driver: bool) -> Result<Vec<Finding>, Finding> {
    const CHECK: Check = Check("library");
    let found = library::find().and_then(|path| Ok((library::check(&path)?, path)));
    let (version, library) = found.map_err(|failure| CHECK.error(failure.to_string(), ""))?;
    let text = format!("{}, version {version}", library.display());
    let mut findings = vec![CHECK.fine(text)];
    if let Err(failure) = trial::with(&library) {
        findings.push(PRELOAD.error(failure.to_string(), ""));
    }
    match ask(What::Preload, Some(&library)) {
        Err(how) => {
            let text = format!("a test program that preloads the library ended with {how}");
            findings.push(PRELOAD.error(text, SAME_VERSION));
        }
        Ok(answers) => findings.extend(preload(&library, &answers, has_driver)),
    }
    Ok(findings)
}

/// Reports whether /etc/ld.so.preload names libgpulimit.so: as the first entry, only once, and at a
/// path that only root can change.
pub(super) fn system_wide() -> Finding {
    const CHECK: Check = Check("system-wide");
    let file = preload::FILE;
    let state = match Preload::read(Path::new(file)) {
        Ok(preload) => preload.state(),
        Err(failure) => return CHECK.warning(failure.to_string(), ""),
    };
    let Some(library) = state.copies.first() else {
        if !has_rules() {
            return CHECK.fine(format!(
                "the library is not in {file}: programs get the library from `gpulimit run` or \
                 LD_PRELOAD"
            ));
        }
        let text = format!(
            "the library is not in {file}: the policy's rules hold only for programs that are \
             started with the library"
        );
        let remedy = "run `gpulimit install` to load the library into every program";
        return CHECK.warning(text, remedy);
    };
    let path = library.display();
    if let Err(why) = Trusted::root().check(library) {
        let text = format!(
            "{file} names {path}, but {why}: another user could change the code that every \
             program runs"
        );
        let remedy = "allow only root to change the library: use `chown root` and `chmod go-w`";
        return CHECK.error(text, remedy);
    }
    if state.copies.len() > 1 || !state.first {
        let text = format!(
            "{file} does not name {path} first and only once: a library that the file names \
             earlier can hide calls from libgpulimit.so"
        );
        return CHECK.warning(text, "run `gpulimit install` to correct /etc/ld.so.preload");
    }
    CHECK.fine(format!("{path}, by {file}"))
}

/// Returns whether the machine has a rules file, even if the rules cannot be read.
fn has_rules() -> bool {
    !matches!(Rules::load(&Source::system()), Ok(None))
}

fn preload(library: &Path, answers: &Answers, has_driver: bool) -> Vec<Finding> {
    const CHECK: Check = Check("hooks");
    if answers.get("mapped").is_none() {
        let library = library.display();
        return vec![PRELOAD.error(
            format!("the dynamic linker did not load {library} from LD_PRELOAD"),
            "use a library built for this system; setuid programs ignore LD_PRELOAD",
        )];
    }
    let contains = match answers.get("contains") {
        Some("1") => "; the library catches its own panics",
        _ => "",
    };
    let glibc = answers.get("glibc").unwrap_or_default();
    let loads = PRELOAD.fine(format!("the library loads (glibc {glibc}){contains}"));
    let count = answers.all("hook").count();
    if count == 0 {
        let text = "cannot read the library's list of hooks: the file is another library, or \
                    another version of libgpulimit.so";
        return vec![loads, CHECK.error(text, SAME_VERSION)];
    }
    if !has_driver {
        let text =
            format!("{count} hooks in the library; without a CUDA driver, they cannot be resolved");
        return vec![loads, CHECK.fine(text)];
    }
    // A line has the name of the hook's function, a class and the state.
    let names = |state: &str| -> Vec<&str> {
        let hooks = answers.all("hook").map(|line| line.split_whitespace());
        let in_state = hooks.filter(|words| words.clone().nth(2) == Some(state));
        in_state.filter_map(|mut words| words.next()).collect()
    };
    let mut text = format!("{} resolved", names("resolved").len());
    let absent = names("not-in-driver").len();
    if absent > 0 {
        text += &format!("; {absent} hooks are for functions that this driver lacks");
    }
    let mut findings = vec![loads, CHECK.fine(text)];
    let missing = names("missing");
    if !missing.is_empty() {
        let text = format!(
            "{} hooks unresolved, but the driver should have these functions: {}",
            missing.len(),
            missing.join(", ")
        );
        let remedy = "report this with the driver's version; memory allocated through these \
                      functions is not counted";
        findings.push(CHECK.error(text, remedy));
    }
    findings
}

fn rules() -> Vec<Finding> {
    const CHECK: Check = Check("rules");
    let mut findings = Vec::new();
    match gpulimit_policy::rule() {
        Ok(None) => {}
        Ok(Some(Assigned { rule, group, .. })) => {
            let text =
                format!("rule {rule} of the administrator's policy assigns you to group {group}");
            findings.push(CHECK.fine(text));
        }
        Err(error) => findings.push(CHECK.error(error.to_string(), "")),
    }
    if let Ok(Some(rules)) = Rules::load(&Source::system()) {
        let left = uncovered(&rules, &Database);
        if !left.is_empty() {
            let left = output::some(&left);
            findings.push(CHECK.warning(
                format!("no rule limits the programs of these users: {left}"),
                "add a rule with user = \"*\" at the end of the policy, and apply the policy",
            ));
        }
    }
    findings
}

fn environment(loaded: bool) -> Vec<Finding> {
    const CHECK: Check = Check("environment");
    let fine_if_loaded = |variable: &str, asks: &str| {
        let text = format!("{variable} asks for {asks}");
        if loaded {
            return CHECK.fine(text);
        }
        let text = format!(
            "{text}, but programs that start here do not load the library, and ignore {variable}"
        );
        let remedy = "start programs with `gpulimit run`, set LD_PRELOAD to the path of \
                      libgpulimit.so, or run `gpulimit install` as root";
        CHECK.warning(text, remedy)
    };
    let asked = match gpulimit_policy::assignment(&env) {
        // The check [`rules`] has already reported an error in the rules.
        Err(PolicyError::Rules(_)) => None,
        Err(error) => {
            let remedy = "correct or unset the variable: until then, programs with the library \
                          get no GPU memory";
            Some(CHECK.error(error.to_string(), remedy))
        }
        Ok(None) => Some(CHECK.fine("the environment asks for no limit")),
        Ok(Some(by_rule)) if by_rule.is_by_rule_alone() => {
            Some(CHECK.fine("the environment asks for no other group or limit"))
        }
        Ok(Some(asked)) => Some(match asked.create {
            Some(request) => fine_if_loaded(&request.variable, "a group for this job"),
            None => match asked.root.group(&asked.group) {
                Ok(group) => fine_if_loaded(
                    gpulimit_policy::GROUP,
                    &format!("the group {}", group.name()),
                ),
                Err(error) => CHECK.error(error.to_string(), ""),
            },
        }),
    };
    let seen = [
        "GPULIMIT_ROOT",
        library::VARIABLE,
        gpulimit_policy::GROUP,
        "LD_PRELOAD",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
    ];
    let mut findings = Vec::from_iter(asked);
    for name in seen.iter().chain(gpulimit_policy::JOB_VARIABLES) {
        let is_named = |finding: &Finding| finding.text.starts_with(&format!("{name}="));
        if let Some(value) = env(name)
            && !findings.iter().any(is_named)
        {
            findings.push(CHECK.fine(format!("{name}={}", value.to_string_lossy())));
        }
    }
    findings
}
