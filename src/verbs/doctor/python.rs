//! Checks whether another Python package has taken the place of the module `gpulimit`.

use super::finding::{Check, Finding};
use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

const CHECK: Check = Check("python");

/// The distribution that has this program, as pip writes it in file names.
const OWN: &str = "gpulimit_cap";

/// The distribution of PyPI that has nothing to do with this program, but a module of its name.
const OTHER: &str = "gpulimit";

/// Reports the Python packages beside this program; empty if pip did not install this program.
pub(super) fn checks() -> Vec<Finding> {
    let program = env::current_exe().unwrap_or_default();
    // The program is in the folder bin of the environment.
    let folders = program.ancestors().nth(2).map(packages).unwrap_or_default();
    folders.iter().filter_map(|folder| check(folder)).collect()
}

/// Returns the folders of Python packages of an environment with this prefix: that of `pip install
/// --target` and those of each version of Python.
fn packages(prefix: &Path) -> Vec<PathBuf> {
    let mut folders = vec![prefix.to_path_buf()];
    for library in ["lib", "lib64"] {
        for version in entries(&prefix.join(library)) {
            folders.extend(["site-packages", "dist-packages"].map(|name| version.join(name)));
        }
    }
    // In an environment /lib64 is often a link to /lib.
    folders.retain(|folder| folder.is_dir());
    let folders = folders.iter().filter_map(|it| it.canonicalize().ok());
    BTreeSet::from_iter(folders).into_iter().collect()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn check(folder: &Path) -> Option<Finding> {
    let own = version(folder, OWN)?;
    let place = folder.display();
    Some(match version(folder, OTHER) {
        Some(other) => CHECK.warning(
            format!(
                "the package {OTHER} {other} of PyPI in {place} has the same module name as \
                 gpulimit-cap {own}: `import gpulimit` may load the other one"
            ),
            "run `pip uninstall gpulimit`, then `pip install --force-reinstall` with the wheel of \
             gpulimit-cap",
        ),
        None => CHECK.fine(format!("gpulimit-cap {own} in {place}")),
    })
}

/// Returns the version of a distribution in a folder of packages.
fn version(folder: &Path, distribution: &str) -> Option<String> {
    entries(folder).iter().find_map(|path| {
        let name = path.file_name()?.to_str()?;
        let rest = name.strip_prefix(distribution)?.strip_prefix('-')?;
        let endings = [".dist-info", ".egg-info"];
        endings
            .iter()
            .find_map(|ending| Some(rest.strip_suffix(ending)?.to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::doctor::finding::Level;
    use gpulimit_support::Scratch;

    #[test]
    fn packages_are_found_in_every_layout_once() {
        let scratch = Scratch::new();
        let prefix = scratch.0.canonicalize().expect("there");
        let folder = prefix.join("lib/python3.12/site-packages");
        fs::create_dir_all(&folder).expect("made");
        fs::create_dir_all(prefix.join("lib64/python3.9/dist-packages")).expect("made");
        std::os::unix::fs::symlink("../lib/python3.12", prefix.join("lib64/python3.12"))
            .expect("made");
        let found = packages(&prefix);
        let other = prefix.join("lib64/python3.9/dist-packages");
        assert_eq!(found, [prefix, folder, other]);
    }

    #[test]
    fn another_package_of_the_same_module_is_named() {
        let scratch = Scratch::new();
        let level = || check(&scratch.0).map(|finding| finding.level);
        let make = |name: &str| fs::create_dir(scratch.at(name)).expect("made");
        make("gpulimit");
        make("gpulimit_cap_tools-1.0.dist-info");
        make("gpulimit-0.2.1.dist-info");
        assert_eq!(level(), None);
        make("gpulimit_cap-0.1.0.dist-info");
        assert_eq!(level(), Some(Level::Warning));
        let text = check(&scratch.0).expect("both").text;
        assert!(text.contains("gpulimit 0.2.1 of PyPI"), "{text}");
        fs::remove_dir(scratch.at("gpulimit-0.2.1.dist-info")).expect("removed");
        assert_eq!(level(), Some(Level::Fine));
        make("gpulimit-0.2.0.egg-info");
        assert_eq!(level(), Some(Level::Warning));
    }
}
