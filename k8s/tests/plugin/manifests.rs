//! Tests of the files in `config/kubernetes`. The files match the schemas of the Kubernetes API,
//! and the plugin accepts their arguments.

use crate::rig::cached;
use clap::Parser;
use gpulimit_k8s::options::Options;
use gpulimit_programs::world::{repository, text};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The oldest and the newest version of Kubernetes that docs/kubernetes.md names.
const VERSIONS: [&str; 2] = ["1.26", "1.37"];

fn folder() -> PathBuf {
    repository().join("config/kubernetes")
}

/// Returns all manifests for the API server, sorted by name.
fn manifests() -> Vec<PathBuf> {
    let entries = fs::read_dir(folder()).expect("listed");
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.extension().is_some_and(|end| end == "yaml"));
    found.retain(|path| !path.ends_with("kustomization.yaml"));
    found.sort();
    assert!(found.len() >= 5, "{found:?}");
    found
}

fn read(name: &str) -> String {
    fs::read_to_string(folder().join(name)).expect(name)
}

/// Validates manifests strictly: fields that the schema does not know are errors.
fn validate(version: &str, files: &[PathBuf]) -> Output {
    let output = Command::new("python3")
        .args(["-m", "kubernetes_validate", "--strict", "-k", version])
        .args(files)
        .env("PYTHONPATH", cached("kubernetes-validate"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output();
    output.expect("python3")
}

#[test]
fn manifests_match_the_schemas_of_the_api() {
    let files = manifests();
    for version in VERSIONS {
        let output = validate(version, &files);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert_eq!(said.matches(" passed ").count(), files.len(), "{said}");
    }
}

/// A program that merges a patch into the DaemonSet as kustomize does, and joins lists.
const MERGE: &str = "
import sys, yaml
whole, patch = (yaml.safe_load(open(path)) for path in sys.argv[1:3])
def merge(into, what):
    for key, value in what.items():
        if isinstance(value, dict):
            merge(into.setdefault(key, {}), value)
        elif isinstance(value, list):
            into[key] = into.get(key, []) + value
        else:
            assert into.setdefault(key, value) == value, key
merge(whole, patch)
yaml.safe_dump(whole, open(sys.argv[3], 'w'))
print(patch['spec']['template']['spec']['initContainers'][0]['command'][2], end='')
";

/// Runs the init container's script three times: on a new node, again, and with existing groups.
#[test]
fn the_root_gets_its_own_file_system() {
    let place = std::env::temp_dir().join(format!("gpulimit-own-{}", std::process::id()));
    fs::create_dir_all(&place).expect("a directory");
    let merged = place.join("daemonset.yaml");
    let output = Command::new("python3")
        .args(["-c", MERGE])
        .arg(folder().join("daemonset.yaml"))
        .arg(folder().join("own-file-system/daemonset.yaml"))
        .arg(&merged)
        .env("PYTHONPATH", cached("kubernetes-validate"))
        .output()
        .expect("python3");
    assert!(output.status.success(), "{output:?}");
    let script = text(&output.stdout);
    for version in VERSIONS {
        let output = validate(version, std::slice::from_ref(&merged));
        assert!(output.status.success(), "{output:?}");
    }
    let unit = fs::read_to_string(repository().join("config/systemd/run-gpulimit.mount"));
    let unit = unit.expect("there");
    let options = unit.lines().find_map(|line| line.strip_prefix("Options="));
    assert!(script.contains(options.expect("options")), "{script}");

    let node = "mount -t tmpfs tmpfs \"$NODE_RUN\" && cd \"$NODE_RUN\" && sh -euc \"$1\" \
        && stat -f -c %T gpulimit && touch gpulimit/x && sh -euc \"$1\" && ls gpulimit \
        && umount gpulimit && mkdir gpulimit/lab && sh -euc \"$1\" && ls gpulimit \
        && grep -c gpulimit /proc/mounts";
    let output = Command::new("unshare")
        .args(["-m", "sh", "-euc", node, "sh", &script])
        .env("NODE_RUN", &place)
        .output()
        .expect("unshare");
    fs::remove_dir_all(&place).expect("removed");
    let said = text(&output.stderr);
    if said.contains("unshare failed") {
        eprintln!("SKIPPED: only root can mount file systems");
        return;
    }
    // The `1` at the end of the output is the number of mounts in the node's own /run.
    assert_eq!(text(&output.stdout), "tmpfs\nx\nlab\n1\n", "{said}");
    assert!(said.contains("restart the node"), "{said}");
}

#[test]
fn mistakes_in_manifests_are_found() {
    let place = std::env::temp_dir().join(format!("gpulimit-manifests-{}", std::process::id()));
    fs::create_dir_all(&place).expect("a directory");
    let file = place.join("wrong.yaml");
    for (name, right, wrong) in [
        ("daemonset.yaml", "volumeMounts:", "volumeMount:"),
        (
            "daemonset.yaml",
            "readOnlyRootFilesystem: true",
            "readOnlyRootFilesystem: yes please",
        ),
        (
            "daemonset.yaml",
            "terminationGracePeriodSeconds: 10",
            "terminationGracePeriodSeconds: ten",
        ),
        (
            "daemonset.yaml",
            "  selector:\n    matchLabels:\n      app.kubernetes.io/name: gpulimit-device-plugin\n",
            "",
        ),
        ("example-pod.yaml", "  containers:", "  container:"),
        ("example-pod.yaml", "limits:", "limit:"),
        ("example-deployment.yaml", "replicas: 4", "replicas: four"),
        (
            "service-account.yaml",
            "automountServiceAccountToken",
            "automountToken",
        ),
        ("namespace.yaml", "  name: gpulimit\n", "  name: 7\n"),
    ] {
        let text = read(name);
        assert_eq!(text.matches(right).count(), 1, "{name}: {right}");
        fs::write(&file, text.replace(right, wrong)).expect("written");
        let output = validate(VERSIONS[1], std::slice::from_ref(&file));
        assert!(!output.status.success(), "{name}: {wrong}");
    }
    fs::remove_dir_all(&place).expect("removed");
}

/// Returns the values of all lines `KEY: VALUE` in a manifest.
fn values<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    let start = format!("{key}: ");
    let lines = text
        .lines()
        .map(|line| line.trim().trim_start_matches("- "));
    let found = lines.filter_map(|line| line.strip_prefix(&*start));
    found.map(|value| value.trim_matches('"')).collect()
}

#[test]
fn manifests_fit_the_plugin() {
    let daemonset = read("daemonset.yaml");
    let arguments: Vec<&str> = daemonset
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- "))
        .filter(|word| word.starts_with("--"))
        .collect();
    assert!(!arguments.is_empty());
    let given = Options::try_parse_from([&["plugin"], &*arguments].concat());
    let given = given.unwrap_or_else(|error| panic!("{error}"));
    let defaults = Options::parse_from(["plugin"]);
    assert_eq!(
        (given.unit, given.reserve, given.gpus),
        (defaults.unit, defaults.reserve, defaults.gpus)
    );
    // The plugin tells containers the paths of its files, so each path is the same inside and
    // outside the plugin's pod.
    let pods = defaults.pods.parent().expect("a directory");
    let places: [&Path; 4] = [&defaults.kubelet, pods, &defaults.root, &defaults.state];
    let places = places.map(|path| path.to_str().expect("UTF-8"));
    assert_eq!(values(&daemonset, "mountPath"), places);
    assert_eq!(values(&daemonset, "path"), places);
    for example in ["example-pod.yaml", "example-deployment.yaml"] {
        assert_eq!(
            values(&read(example), &defaults.resource).len(),
            1,
            "{example}"
        );
    }
    // The kustomization lists all manifests except the examples.
    let kustomization = read("kustomization.yaml");
    for path in manifests() {
        let name = path.file_name().unwrap().to_str().unwrap();
        let listed = kustomization
            .lines()
            .any(|line| line.trim() == format!("- {name}"));
        assert_eq!(listed, !name.starts_with("example-"), "{name}");
    }
    let image = values(&daemonset, "image")[0];
    let tag = values(&kustomization, "newTag")[0];
    assert_eq!(
        image,
        format!("{}:{tag}", values(&kustomization, "name")[0])
    );
    assert_eq!(tag, env!("CARGO_PKG_VERSION"));
    assert!(read("Containerfile").contains(image));
}
