//! Tests of the files in `config/kubernetes`. The files match the schemas of the Kubernetes API,
//! and the plugin accepts their arguments.

use crate::rig::cached;
use clap::Parser;
use gpulimit_k8s::options::Options;
use gpulimit_support::{Scratch, may_mount, repository, text};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

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

/// Returns the folder of Python's modules with the schemas of the Kubernetes API; `None` if it is
/// not there.
fn schemas() -> Option<PathBuf> {
    cached("kubernetes-validate")
}

/// Validates manifests strictly, for all versions: fields that the schema does not know are errors.
/// Returns whether all are valid, and a text that says of each file and version whether it
/// "passed".
fn validate(schemas: &Path, files: &[PathBuf]) -> (bool, String) {
    let output = Command::new("python3")
        .args(["-m", "kubernetes_validate", "--strict"])
        .args(VERSIONS.map(|version| format!("-k{version}")))
        .args(files)
        .env("PYTHONPATH", schemas)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("python3");
    let said = text(&output.stdout) + &text(&output.stderr);
    (output.status.success(), said)
}

#[test]
fn manifests_match_the_schemas_of_the_api() {
    let Some(schemas) = &schemas() else { return };
    let files = manifests();
    let (are_valid, said) = validate(schemas, &files);
    assert!(are_valid, "{said}");
    let passed = said.matches(" passed ").count();
    assert_eq!(passed, files.len() * VERSIONS.len(), "{said}");
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
";

/// Prints the init container's script.
const SCRIPT: &str = "
print(patch['spec']['template']['spec']['initContainers'][0]['command'][2], end='')
";

/// Runs a program of Python with the modules of the schemas; returns its output.
#[track_caller]
fn python(schemas: &Path, program: &str, files: &[&Path]) -> String {
    let output = Command::new("python3")
        .args(["-c", program])
        .args(files)
        .env("PYTHONPATH", schemas)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("python3");
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
}

/// Merges the patch of a component into the DaemonSet, writes the result to `merged`, and checks it
/// against the schemas. Returns the output of `more`, which is run after that.
#[track_caller]
fn merged(schemas: &Path, component: &str, merged: &Path, more: &str) -> String {
    let daemonset = folder().join("daemonset.yaml");
    let patch = folder().join(component).join("daemonset.yaml");
    let said = python(
        schemas,
        &[MERGE, more].concat(),
        &[&daemonset, &patch, merged],
    );
    let (is_valid, errors) = validate(schemas, &[merged.to_owned()]);
    assert!(is_valid, "{errors}");
    said
}

/// Runs the init container's script three times: on a new node, again, and with existing groups.
#[test]
fn the_root_gets_its_own_file_system() {
    let Some(schemas) = &schemas() else { return };
    if !may_mount() {
        return;
    }
    let place = Scratch::new();
    let script = merged(
        schemas,
        "own-file-system",
        &place.at("daemonset.yaml"),
        SCRIPT,
    );
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
    let said = text(&output.stderr);
    // The `1` at the end of the output is the number of mounts in the node's own /run.
    assert_eq!(text(&output.stdout), "tmpfs\nx\nlab\n1\n", "{said}");
    assert!(said.contains("restart the node"), "{said}");
}

/// The fields of a PodMonitor that config/kubernetes uses, as the operator defines them
/// (prometheus-operator 0.93, monitoring.coreos.com/v1).
const POD_MONITOR: &str = r#"
import sys, yaml, jsonschema
def fields(required, **properties):
    return {"type": "object", "properties": properties, "required": required,
            "additionalProperties": False}
text, labels = {"type": "string"}, {"type": "object", "additionalProperties": {"type": "string"}}
name = {"type": "string", "pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"}
relabeling = fields([], sourceLabels={"type": "array", "items": name}, targetLabel=text,
                    replacement=text, regex=text, action={"enum": ["replace", "labeldrop"]})
endpoint = fields([], port=text, path=text, honorLabels={"type": "boolean"},
    interval={"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"},
    scheme={"enum": ["http", "https"]},
    tlsConfig=fields([], ca=fields([], secret=fields(["key"], name=text, key=text)),
                     serverName=text),
    authorization=fields([], type=text, credentials=fields(["key"], name=text, key=text)),
    relabelings={"type": "array", "items": relabeling})
spec = fields(["selector"], selector=fields([], matchLabels=labels), jobLabel=text,
              podMetricsEndpoints={"type": "array", "items": endpoint})
schema = fields(["spec"], apiVersion={"const": "monitoring.coreos.com/v1"},
    kind={"const": "PodMonitor"}, metadata=fields([], name=text, namespace=text, labels=labels),
    spec=spec)
monitor = yaml.safe_load(open(sys.argv[1]))
jsonschema.validate(monitor, schema)
for wrong in ("honourLabels", "targetPort"):
    try:
        jsonschema.validate({**monitor, "spec": {**monitor["spec"], wrong: True}}, schema)
    except jsonschema.ValidationError:
        continue
    sys.exit(f"{wrong} is accepted")
"#;

/// Prometheus finds the sidecar by its pod's label and its port, and has its token.
#[test]
fn monitoring_runs_beside_the_plugin() {
    let Some(schemas) = &schemas() else { return };
    let place = Scratch::new();
    let daemonset = place.at("daemonset.yaml");
    merged(schemas, "monitoring", &daemonset, "");
    let whole = fs::read_to_string(&daemonset).expect("merged");
    python(
        schemas,
        POD_MONITOR,
        &[&folder().join("monitoring/pod-monitor.yaml")],
    );
    let monitor = read("monitoring/pod-monitor.yaml");
    let label = "app.kubernetes.io/name";
    assert_eq!(values(&monitor, label), [values(&whole, label)[0]]);
    let sidecars = read("monitoring/daemonset.yaml");
    let (serve, nginx) = sidecars
        .split_once("- name: tls\n")
        .expect("two containers");
    let proxy = read("monitoring/nginx.conf");
    let has = |text: &str, part: &str| assert!(text.contains(part), "{part}: {text}");
    let port = |text: &str| values(text, "containerPort")[0].to_owned();
    has(nginx, &format!("- name: {}\n", values(&monitor, "port")[0]));
    has(&proxy, &format!("listen {} ssl;", port(nginx)));
    has(serve, "--listen=127.0.0.1:13900");
    has(&proxy, "proxy_pass http://127.0.0.1:13900;");
    // Secrets and the configuration are where the containers look for them.
    has(
        &read("monitoring/kustomization.yaml"),
        "- name: gpulimit-serve-proxy\n",
    );
    has(nginx, "- /etc/gpulimit-serve-proxy/nginx.conf\n");
    has(&proxy, "/etc/gpulimit-serve-tls/tls.key;");
    let secrets = values(&sidecars, "secretName");
    assert_eq!(secrets, ["gpulimit-serve", "gpulimit-serve-tls"]);
    for secret in secrets {
        has(&monitor, &format!("name: {secret}\n"));
        has(&sidecars, &format!("mountPath: /etc/{secret}"));
    }
    assert_eq!(values(&monitor, "key"), ["ca.crt", "token"]);
    has(serve, "--token-file=/etc/gpulimit-serve/token\n");
    has(serve, "mountPath: /etc/gpulimit-serve\n");
    // The server is of the plugin's image, sees the same groups, and can write none of its files.
    assert_eq!(
        values(serve, "image"),
        values(&read("daemonset.yaml"), "image")
    );
    let root = Options::parse_from(["plugin"]).root;
    let mounts = values(serve, "mountPath");
    assert_eq!(Path::new(mounts[0]), root);
    assert_eq!(values(serve, "readOnly"), vec!["true"; mounts.len()]);
}

#[test]
fn mistakes_in_manifests_are_found() {
    let Some(schemas) = &schemas() else { return };
    let place = Scratch::new();
    let mistakes = [
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
    ];
    let write = |(number, (name, right, wrong)): (usize, &(&str, &str, &str))| {
        let text = read(name);
        assert_eq!(text.matches(right).count(), 1, "{name}: {right}");
        place.write(&format!("{number}.yaml"), &text.replace(right, wrong))
    };
    let files: Vec<PathBuf> = mistakes.iter().enumerate().map(write).collect();
    let (_, said) = validate(schemas, &files);
    for (file, mistake) in files.iter().zip(mistakes) {
        let error = format!("ERROR {} did not validate ", file.display());
        let count = said.matches(&error).count();
        assert_eq!(count, VERSIONS.len(), "{mistake:?}: {said}");
    }
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
