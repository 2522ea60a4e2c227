//! Files for containers: `gpulimit cdi generate` follows the rules of the Container Device
//! Interface (specification 1.1.0), restated here, and the entry point serves images that bring the
//! library themselves.

use crate::place::{GPULIMIT, Place, Shell, in_each_shell, me, repository, text};
use gpulimit_support::{clean, executable, may_unshare};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs the command with a library of the test's own.
fn generate(place: &Place, arguments: &[&str]) -> Output {
    let mut command = Command::new(GPULIMIT);
    command.args(["cdi", "generate"]).args(arguments);
    if !arguments.contains(&"--files") {
        command.arg("--files").arg(place.at("files"));
    }
    clean(&mut command)
        .env("GPULIMIT_ROOT", place.root_path())
        .env("GPULIMIT_LIBRARY", library());
    command.output().expect("started")
}

/// Returns a file that the loader takes for gpulimit's library.
fn library() -> PathBuf {
    let marks = format!(
        "const char *gpulimit_hooks(void) {{ return \"\"; }}\n\
         const char gpulimit_version_text[] = \"{}\";\n",
        gpulimit_base::version::text()
    );
    let options = ["-shared", "-fPIC", "-Wl,-soname,libgpulimit.so"];
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    executable::compiled(folder, "libgpulimit.so", &marks, &options)
}

fn spec(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    let spec = serde_json::from_slice(&output.stdout).expect("JSON");
    check(&spec);
    spec
}

fn keys(value: &Value) -> Vec<&str> {
    let object = value.as_object().expect("an object");
    object.keys().map(String::as_str).collect()
}

fn strings(value: &Value) -> Vec<&str> {
    let list = value.as_array().expect("a list").iter();
    list.map(|text| text.as_str().expect("a text")).collect()
}

/// Asserts what engines check before they accept any device of the file; unknown fields are errors,
/// too.
#[track_caller]
fn check(spec: &Value) {
    assert_eq!(
        keys(spec),
        ["cdiVersion", "kind", "containerEdits", "devices"]
    );
    assert_eq!(spec["kind"], "gpulimit.dev/mem");
    edits(&spec["containerEdits"]);
    let devices = spec["devices"].as_array().expect("a list");
    assert!(!devices.is_empty());
    let mut names = Vec::new();
    for device in devices {
        assert_eq!(keys(device), ["name", "containerEdits"]);
        let name = device["name"].as_str().expect("a name");
        let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        assert!(
            ends(name.chars().next()) && ends(name.chars().next_back()),
            "{name}"
        );
        assert!(
            name.chars()
                .all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)),
            "{name}"
        );
        assert!(!names.contains(&name), "{name}");
        names.push(name);
        edits(&device["containerEdits"]);
    }
    // The version is the lowest with the features that are used: names that begin with a digit came
    // with 0.5.0. Types of mounts, which came with 0.4.0, and all later features are not used.
    let digit = names.iter().any(|name| name.as_bytes()[0].is_ascii_digit());
    let version = if digit { "0.5.0" } else { "0.3.0" };
    assert_eq!(spec["cdiVersion"], version);
}

fn edits(edits: &Value) {
    let absolute = |value: &Value| {
        let path = value.as_str().expect("a path");
        assert!(path.starts_with('/'), "{path}");
    };
    for key in keys(edits) {
        for edit in edits[key].as_array().expect("a list") {
            match key {
                "mounts" => {
                    assert_eq!(keys(edit), ["hostPath", "containerPath", "options"]);
                    absolute(&edit["hostPath"]);
                    absolute(&edit["containerPath"]);
                    assert!(strings(&edit["options"]).contains(&"ro"));
                }
                "hooks" => {
                    assert_eq!(keys(edit), ["hookName", "path", "args"]);
                    let stages = ["createRuntime", "createContainer", "poststop"];
                    assert!(stages.contains(&edit["hookName"].as_str().expect("a stage")));
                    absolute(&edit["path"]);
                    // The runtime passes the arguments as they are: the first is the program's
                    // name.
                    assert_eq!(strings(&edit["args"])[..2], ["gpulimit", "oci-hook"]);
                }
                _ => panic!("{key}"),
            }
        }
    }
}

fn names(spec: &Value) -> Vec<&str> {
    let devices = spec["devices"].as_array().expect("devices").iter();
    devices
        .map(|device| device["name"].as_str().expect("a name"))
        .collect()
}

#[test]
fn generated_devices_match_the_options() {
    let place = Place::new();
    let print = ["--output", "-"];
    let unknown = generate(&place, &["--output", "-", "--group", "nolab"]);
    let said = text(&unknown.stderr);
    assert!(
        said.contains("with the device nolab cannot start: no group 'nolab'"),
        "{said}"
    );
    let ladder = spec(&generate(&place, &print));
    let sizes = names(&ladder);
    assert!(
        sizes.len() > 10 && sizes.contains(&"8g") && sizes.contains(&"80g"),
        "{sizes:?}"
    );
    let some = [
        "--cap",
        "8G",
        "--cap",
        "half=50%",
        "--group",
        "lab/alice",
        "--group",
        "lab",
    ];
    let some = spec(&generate(&place, &[&print[..], &some].concat()));
    assert_eq!(names(&some), ["8g", "half", "lab.alice", "lab"]);
    let asked: Vec<_> = some["devices"]
        .as_array()
        .expect("devices")
        .iter()
        .map(|device| {
            let hook = &device["containerEdits"]["hooks"][0];
            assert_eq!(hook["hookName"], "createRuntime");
            strings(&hook["args"])[2..].join(" ")
        })
        .collect();
    let root = place.at("root");
    let create = |what: &str| format!("create --root {} {what}", root.display());
    let expected = ["--cap 8G", "--cap 50%", "--group lab/alice", "--group lab"];
    assert_eq!(asked, expected.map(create));
    let plain = spec(&generate(&place, &["--output", "-", "--group", "lab"]));
    assert_eq!(plain["cdiVersion"], "0.3.0");
    // The command prints the file, and makes no other.
    assert!(!place.at("files").exists());
    for (arguments, why) in [
        (&["--cap", "lots"][..], "invalid value 'lots' for '--cap"),
        (&["--cap", "50%"], "name the cap with letters"),
        (&["--cap", "a b=4g"], "name the cap with letters"),
        (&["--cap", "4g", "--cap", "4G"], "two devices"),
        (&["--cap", "lab=4g", "--group", "lab"], "two devices"),
        (&["--group", "a/b", "--group", "a.b"], "two devices"),
        (&["--group", "../a"], "invalid group name"),
        (&["--files", "here"], "absolute path"),
    ] {
        let output = generate(&place, &[&print[..], arguments].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?} {said}");
        assert!(said.contains(why), "{arguments:?}: {said}");
    }
}

#[test]
fn cdi_generate_writes_the_files_that_it_names() {
    let place = Place::new();
    let file = place.at("etc/cdi/gpulimit.json");
    for devices in [&["--cap", "4g", "--cap", "8g"][..], &["--cap", "2g"]] {
        let output = ["--output", file.to_str().expect("UTF-8")];
        let output = generate(&place, &[&output[..], devices].concat());
        assert!(output.status.success(), "{output:?}");
        let said = text(&output.stdout);
        let list: Vec<_> = devices.iter().skip(1).step_by(2).copied().collect();
        assert_eq!(
            said,
            format!(
                "wrote {}: gpulimit.dev/mem={}\n",
                file.display(),
                list.join(", ")
            )
        );
        let text = fs::read_to_string(&file).expect("written");
        let spec: Value = serde_json::from_str(&text).expect("JSON");
        check(&spec);
        assert_eq!(names(&spec), list);
        for mount in spec["containerEdits"]["mounts"].as_array().expect("mounts") {
            let path = mount["hostPath"].as_str().expect("a path");
            assert!(fs::exists(path).expect("looked at"), "{path}");
        }
    }
    let preload = fs::read_to_string(place.at("files/ld.so.preload")).expect("written");
    assert_eq!(preload, "/usr/local/lib/gpulimit/libgpulimit.so\n");
    assert!(place.at("files/closed/.rules").exists());
}

#[test]
fn output_to_pipes_and_links_is_written_through() {
    use std::os::unix::fs::FileTypeExt;
    let place = Place::new();
    let (pipe, link, target) = (place.at("pipe"), place.at("link"), place.at("target.json"));
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo");
    std::os::unix::fs::symlink(&target, &link).expect("linked");
    // A pipe has room for the file. A pipe opened for reading and writing blocks neither side.
    let mut options = fs::OpenOptions::new();
    let reader = options.read(true).write(true).open(&pipe).expect("opened");
    for output in [&pipe, &link, &link] {
        let arguments = ["--cap", "4g", "--output", output.to_str().expect("UTF-8")];
        let output = generate(&place, &arguments);
        assert!(output.status.success(), "{output:?}");
    }
    let is_pipe = |about: fs::Metadata| about.file_type().is_fifo();
    assert!(fs::symlink_metadata(&pipe).is_ok_and(is_pipe), "replaced");
    assert!(
        fs::symlink_metadata(&link).is_ok_and(|about| about.is_symlink()),
        "replaced"
    );
    let linked = fs::read_to_string(&target).expect("written");
    check(&serde_json::from_str(&linked).expect("JSON"));
    let mut piped = vec![0; linked.len()];
    std::io::Read::read_exact(&mut &reader, &mut piped).expect("read");
    assert_eq!(String::from_utf8(piped).expect("UTF-8"), linked);
}

#[test]
fn only_root_makes_groups_for_containers() {
    let place = Place::new();
    let bundle = place.write("bundle/config.json", "{\"root\": {\"path\": \"rootfs\"}}");
    let state = format!(
        "{{\"id\": \"a\", \"pid\": {}, \"bundle\": \"{}\"}}",
        std::process::id(),
        bundle.parent().expect("a folder").display()
    );
    let state = place.write("state.json", &state);
    let mut command = match me() {
        0 => {
            let options = ["--user", "--map-root-user"];
            if !may_unshare(&options) {
                return;
            }
            let mut command = Command::new("unshare");
            command.args(options).arg(GPULIMIT);
            command
        }
        _ => Command::new(GPULIMIT),
    };
    clean(command.args(["oci-hook", "create", "--cap", "1g"]))
        .env("GPULIMIT_ROOT", place.root_path())
        .stdin(fs::File::open(state).expect("there"));
    let output = command.output().expect("started");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("only the host's root"), "{said}");
}

/// Runs the entry point with these variables and this command; returns status, output and errors.
fn enter(
    shell: &Shell,
    variables: &[(&str, &str)],
    command: &[&str],
) -> (Option<i32>, String, String) {
    let output = shell
        .command()
        .arg(repository("config/container-entrypoint"))
        .args(command)
        .envs(variables.iter().copied())
        .output()
        .expect("started");
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn the_entry_point_preloads_the_images_library() {
    in_each_shell(preloads);
}

fn preloads(shell: &Shell) {
    let enter = |variables: &[_], command: &[_]| enter(shell, variables, command);
    let place = Place::new();
    let path = library();
    let path = path.to_str().expect("UTF-8");
    let other = place.at("other.so");
    fs::copy(path, &other).expect("copied");
    let other = other.to_str().expect("UTF-8");
    let named = ("GPULIMIT_LIBRARY", path);
    let show = [
        "sh",
        "-c",
        "echo \"${LD_PRELOAD-none} $0 $*\"; exit 7",
        "a b",
        "c",
    ];
    let both = format!("{path}:{other}");
    let there = format!("{other}:{path}");
    for (variables, preload) in [
        (&[][..], "none"),
        (&[("GPULIMIT_MAX", "1G")], path),
        (&[("GPULIMIT_GROUP", "lab")], path),
        (&[("GPULIMIT_MAX", "1G"), ("LD_PRELOAD", other)], &both),
        (&[("LD_PRELOAD", other)], other),
        (&[("GPULIMIT_MAX", "1G"), ("LD_PRELOAD", &there)], &there),
    ] {
        let variables = [&[named], variables].concat();
        let (status, said, errors) = enter(&variables, &show);
        assert_eq!((status, errors.as_str()), (Some(7), ""), "{variables:?}");
        assert_eq!(said, format!("{preload} a b c\n"), "{variables:?}");
    }
    let missing = ("GPULIMIT_LIBRARY", "/no/libgpulimit.so");
    let (status, said, errors) = enter(&[missing, ("GPULIMIT_MAX", "1G")], &show);
    assert_eq!((status, said.as_str()), (Some(125), ""));
    assert!(errors.contains("no /no/libgpulimit.so"), "{errors}");
    // Without a limit, the entry point runs the command without the library.
    assert_eq!(enter(&[missing], &["echo", "a"]).1, "a\n");
    let (status, _, errors) = enter(&[named], &[]);
    assert!(status == Some(125) && errors.contains("no command"));
    assert_eq!(enter(&[named], &["/no/such/program"]).0, Some(127));
}
