//! `doctor`

use crate::place::{
    Place, Running, compiled, executable, is_root, library, may_unshare, started_by, text,
};
use gpulimit_base::units::Size;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

#[test]
fn doctor_works_without_a_driver() {
    let place = Place::new();
    place.group("lab", Size::Max);
    // The empty library hides a driver that this machine may have.
    place.write("libcuda.so.1", "");
    let mut doctor = place.gpulimit(&["doctor", "--json"]);
    doctor.env("LD_LIBRARY_PATH", &place.0);
    // A caller that ignores the ends of children hands that down.
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' CHLD; exec \"$0\" \"$@\""]);
    let output = started_by(shell, &doctor).output().expect("started");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (&json["schema"], &json["ok"]),
        (&Value::from(1), &Value::from(false))
    );
    let find = |check: &str| {
        let all = json["findings"].as_array().expect("findings").iter();
        all.filter(|finding| finding["check"] == check)
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(find("driver")[0]["level"], "error");
    assert!(
        find("driver")[0]["remedy"]
            .as_str()
            .expect("a remedy")
            .contains("install")
    );
    assert_eq!(find("library")[0]["level"], "ok");
    assert_eq!(find("library")[0]["remedy"], Value::Null);
    assert_eq!(find("preload")[0]["level"], "ok");
    assert_eq!(find("root")[0]["level"], "ok");
    assert_eq!(
        find("environment")[0]["text"],
        "the environment asks for no limit"
    );
    let out = text(&place.output(&["doctor"]).stdout);
    assert!(out.contains("Limits can"), "{out}");
}

#[test]
fn doctor_says_that_a_damaged_trail_takes_no_events() {
    let place = Place::new();
    place.group("run-1-2", Size::Max);
    let trail = place.root_path().join(".trail");
    assert!(!text(&place.output(&["doctor"]).stdout).contains("jobs outside"));
    fs::write(&trail, "damaged").expect("written");
    let out = text(&place.output(&["doctor"]).stdout);
    let out = out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        out.contains("events of jobs outside named groups are lost"),
        "{out}"
    );
    assert!(
        out.contains("the file was cut short: remove the file"),
        "{out}"
    );
    let events = text(&place.output(&["events"]).stderr);
    assert!(events.contains(": remove the file"), "{events}");
}

/// A file system without space for the history of a GPU still has space for a member.
#[test]
fn a_group_without_a_history_is_named() {
    if !may_unshare(&["-m"]) {
        return;
    }
    let place = Place::new();
    let controller = place.gpulimit(&[]).get_program().to_owned();
    let script = "
        mount -t tmpfs -o size=1M tmpfs \"$PLACE\" && mkdir \"$GPULIMIT_ROOT\"
        \"$CONTROLLER\" create lab
        left=$(df --output=avail -k \"$PLACE\" | tail -n 1)
        fallocate -l $((left - 64))K \"$PLACE/full\"
        \"$@\" < /dev/null
        echo FULL
        \"$CONTROLLER\" doctor
        \"$CONTROLLER\" report 2>&1
        \"$CONTROLLER\" history 2>&1
        rm \"$PLACE/full\"
        \"$@\" < /dev/null
        echo NEXT
        \"$CONTROLLER\" report 2>&1
        exit 0";
    let mut command = Command::new("unshare");
    command
        .args(["-m", "sh", "-c", script, "sh"])
        .env("PLACE", &place.0)
        .env("CONTROLLER", controller)
        .env("GPULIMIT_LIBRARY", library());
    let mut command = place.member_command("lab", Some(command));
    let output = command.output().expect("started");
    assert!(output.status.success(), "{output:?}");
    let said = text(&output.stdout);
    let part = |from: &str, to: &str| {
        let rest = said.split_once(from).expect("printed").1;
        let part = rest.split(to).next().unwrap_or_default();
        part.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let noted = "gpulimit: no figures of a GPU in lab: the file system of the groups had no space";
    assert_eq!(said.matches(noted).count(), 2, "{said}");
    assert!(!said.contains("no named group or job"), "{said}");
    let full = part("FULL\n", "NEXT\n");
    assert!(
        full.contains("no space is left on the file system"),
        "{said}"
    );
    let again = part("NEXT\n", "END\n");
    assert!(
        again.contains("GIB-HOURS") && !again.contains("no figures"),
        "{said}"
    );
}

#[test]
fn doctor_tests_the_library_on_a_system_without_true() {
    if !may_unshare(&["-m"]) {
        return;
    }
    let place = Place::new();
    // In a system without merged directories, the second mount hides /bin/true.
    let script = "mount -t tmpfs tmpfs /usr/bin; [ -L /bin ] || mount -t tmpfs tmpfs /bin; \
        test ! -e /bin/true && exec \"$0\" \"$@\"";
    let mut unshare = Command::new("unshare");
    unshare.args(["-m", "sh", "-c", script]);
    let output = started_by(unshare, &place.gpulimit(&["doctor", "--json"])).output();
    let output = output.expect("started");
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let findings = json["findings"].as_array().expect("findings").iter();
    let preload: Vec<_> = findings.filter(|it| it["check"] == "preload").collect();
    assert_eq!(preload.len(), 1, "{preload:?}");
    assert_eq!(preload[0]["level"], "ok", "{preload:?}");
}

#[test]
fn doctor_warns_about_variables_that_no_program_reads() {
    let place = Place::new();
    place.group("lab", Size::Max);
    let level = |name: &str, value: &str, preload: Option<&Path>| {
        let mut command = place.gpulimit(&["doctor", "--json"]);
        command.env(name, value);
        if let Some(library) = preload {
            command.env("LD_PRELOAD", library);
        }
        let output = command.output().expect("started");
        let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let findings = json["findings"].as_array().expect("findings").iter();
        let about: Vec<_> = findings
            .filter(|it| it["text"].as_str().expect("a text").contains(" asks for "))
            .collect();
        assert_eq!(about.len(), 1, "{json}");
        about[0]["level"].as_str().expect("a level").to_owned()
    };
    for (name, value) in [("GPULIMIT_MAX", "4G"), ("GPULIMIT_GROUP", "lab")] {
        assert_eq!(level(name, value, None), "warning");
        let nowhere = Path::new("/nowhere/libgpulimit.so");
        assert_eq!(level(name, value, Some(nowhere)), "warning");
        assert_eq!(level(name, value, Some(&library())), "ok");
    }
}

#[test]
fn doctor_names_problems_in_the_root() {
    let place = Place::new();
    fs::create_dir(place.root_path()).expect("created");
    fs::create_dir(place.root_path().join("half")).expect("created");
    fs::write(place.root_path().join("half/lock"), "").expect("created");
    fs::write(place.root_path().join("README"), "theirs").expect("created");
    let output = place
        .gpulimit(&["doctor"])
        .env("GPULIMIT_MAX", "4Q")
        .env("GPULIMIT_LIBRARY", "/nowhere.so")
        .output()
        .expect("started");
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1));
    assert!(out.contains("GPULIMIT_MAX='4Q'"), "{out}");
    assert_eq!(out.matches("GPULIMIT_MAX=").count(), 1, "{out}");
    assert!(
        out.contains("cannot find libgpulimit.so (tried /nowhere.so)"),
        "{out}"
    );
    let half = format!(
        "not complete groups: '{}/half'",
        place.root_path().display()
    );
    assert!(out.contains(&half), "{out}");
    assert!(
        out.contains(&format!(
            "not made by gpulimit: '{}/README'",
            place.root_path().display()
        )),
        "{out}"
    );
}

/// A process that `doctor` inspects.
struct Looked(Running);

impl Looked {
    /// Starts a command and waits until it has become its program and printed a line.
    fn start(command: &mut Command) -> Looked {
        let mut child = Running::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut line = String::new();
        let out = child.stdout.as_mut().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("read");
        assert_eq!(line, "here\n");
        Looked(child)
    }

    /// Starts a shell in this environment, which waits for a line.
    fn shell(environment: &[(&str, &str)]) -> Looked {
        let mut command = Command::new("sh");
        command.args(["-c", "echo here; read line"]);
        Looked::start(command.env_clear().envs(environment.iter().copied()))
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

/// Returns the exit status and the output of `doctor` about this process.
fn about(place: &Place, pid: &str) -> (i32, String) {
    let output = place.output(&["doctor", "--pid", pid]);
    (output.status.code().expect("ended"), text(&output.stdout))
}

#[track_caller]
fn says(place: &Place, looked: &Looked, status: i32, expected: &[&str]) {
    let (code, out) = about(place, &looked.pid());
    assert_eq!(code, status, "{out}");
    for line in expected {
        assert!(out.contains(line), "no {line:?} in:\n{out}");
    }
}

#[test]
fn doctor_reports_whether_a_process_has_the_library() {
    let place = Place::new();
    place.group("lab", Size::Max);
    let root = place.root_path().display().to_string();
    let library = library().display().to_string();
    let with = |variables: &[(&str, &str)]| {
        let mut all = vec![("GPULIMIT_ROOT", root.as_str())];
        all.extend(variables);
        Looked::shell(&all)
    };
    says(
        &place,
        &with(&[]),
        0,
        &[
            "warning  library",
            "neither LD_PRELOAD in the process's environment nor",
            "asks for a limit",
        ],
    );
    let asked = with(&[("GPULIMIT_GROUP", "lab")]);
    says(
        &place,
        &asked,
        1,
        &[
            "error    library",
            "the process will join group lab",
            "limit cannot be applied",
        ],
    );
    let whole = with(&[("GPULIMIT_GROUP", "lab"), ("LD_PRELOAD", &library)]);
    says(
        &place,
        &whole,
        0,
        &[
            &format!("ok       library      the process has loaded {library}"),
            "the process will join group lab",
        ],
    );
    let job = with(&[("GPULIMIT_MAX", "4G"), ("LD_PRELOAD", &library)]);
    says(&place, &job, 0, &["GPULIMIT_MAX asks for a separate group"]);
    let nowhere = with(&[("GPULIMIT_GROUP", "none"), ("LD_PRELOAD", &library)]);
    says(
        &place,
        &nowhere,
        1,
        &["error    group", "none", "the process gets no GPU memory"],
    );
    let wrong = with(&[("GPULIMIT_MAX", "4Q"), ("LD_PRELOAD", &library)]);
    says(&place, &wrong, 1, &["GPULIMIT_MAX='4Q'"]);
    let unseen = with(&[
        ("GPULIMIT_MAX", "4G"),
        ("LD_PRELOAD", "/nowhere/libgpulimit.so"),
    ]);
    says(
        &place,
        &unseen,
        1,
        &[
            "the process's LD_PRELOAD names /nowhere/libgpulimit.so, which does not exist in the \
             process's file system",
        ],
    );
}

#[test]
fn doctor_reports_a_replaced_library() {
    let place = Place::new();
    let copy = place.0.join("libgpulimit.so");
    fs::copy(library(), &copy).expect("copied");
    let path = copy.display().to_string();
    let looked = Looked::shell(&[("LD_PRELOAD", &path)]);
    fs::remove_file(&copy).expect("removed");
    says(
        &place,
        &looked,
        0,
        &[
            "warning  library",
            &format!("the process has loaded {path}, and the file was replaced or removed"),
        ],
    );
    let second = place.0.join("second");
    fs::create_dir(&second).expect("made");
    for at in [&copy, &second.join("libgpulimit.so")] {
        fs::copy(library(), at).expect("copied");
    }
    let both = format!("{path}:{}/libgpulimit.so", second.display());
    let looked = Looked::shell(&[("LD_PRELOAD", &both)]);
    says(&place, &looked, 1, &["two copies of the library"]);
}

#[test]
fn doctor_reports_programs_that_load_no_preload() {
    let place = Place::new();
    let code = "#include <unistd.h>\nint main(void) { char c; write(1, \"here\\n\", 5); return \
        (int)read(0, &c, 1); }\n";
    let start = |program: &Path| {
        let mut command = Command::new(program);
        Looked::start(
            command
                .env_clear()
                .env("GPULIMIT_MAX", "4G")
                .env("LD_PRELOAD", library()),
        )
    };
    let looked = start(&compiled("static", code, &["-static"]));
    let expected = ["error    library", "linked statically"];
    says(&place, &looked, 1, &expected);
    let dynamic = compiled("dynamic", code, &[]);
    says(&place, &start(&dynamic), 0, &["the process has loaded"]);
    // This program runs with another user's rights.
    if is_root() {
        let program = place.at("program");
        executable::copy(&dynamic, &program);
        std::os::unix::fs::chown(&program, Some(65533), None).expect("given away");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("changed");
        let expected = ["the process's LD_PRELOAD is ignored"];
        says(&place, &start(&program), 1, &expected);
    }
}

#[test]
fn doctor_tells_whether_a_program_can_load_the_library() {
    let place = Place::new();
    let code = "int main(void) { return 0; }\n";
    let at = |name: &str, options: &[&str]| compiled(name, code, options).display().to_string();
    let plain = at("bears-plain", &[]);
    let musl = at(
        "bears-musl",
        &["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"],
    );
    let script = |name: &str, line: &str| {
        let path = place.at(name);
        fs::write(&path, format!("#!{line}\n")).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("changed");
        path.display().to_string()
    };
    let fifo = place.at("fifo").display().to_string();
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .expect("mkfifo")
            .success()
    );
    for (program, status, expected) in [
        (&*plain, 0, "ok       program"),
        (&*at("bears-static", &["-static"]), 1, "linked statically"),
        (&*musl, 1, "linked to musl"),
        (
            &*script("script", &format!(" {musl} -x")),
            1,
            "linked to musl",
        ),
        (
            &*script("by-env", &format!("/usr/bin/env -S A=b {plain}")),
            0,
            "script of",
        ),
        (
            &*script("endless", &place.at("endless").display().to_string()),
            1,
            "a script, too",
        ),
        ("sh", 0, "/sh can load the library"),
        ("no-such-command", 1, "no such command in PATH"),
        (&*fifo, 1, "not a regular file"),
    ] {
        let output = place.output(&["doctor", program]);
        let said = text(&output.stdout);
        assert_eq!(output.status.code(), Some(status), "{program}: {said}");
        assert!(said.contains(expected), "{program}: {said}");
    }
}

#[test]
fn doctor_names_the_group_of_a_member() {
    let place = Place::new();
    place.group("lab", Size::Max);
    place.group("lab/alice", Size::Max);
    let mut by = Command::new("env");
    by.arg(format!("LD_PRELOAD={}", library().display()));
    let mut member = place.start_member("lab/alice", Some(by));
    let (code, out) = about(&place, &member.id().to_string());
    assert_eq!(code, 0, "{out}");
    assert!(
        out.contains("the process is in group lab/alice and uses 1.0 GiB"),
        "{out}"
    );
    member.kill().expect("ended");
    member.wait().expect("ended");
    let (code, out) = about(&place, &member.id().to_string());
    assert_eq!((code, out.contains("no process ")), (1, true), "{out}");
}

#[test]
fn doctor_reports_whether_programs_start_in_a_container() {
    let place = Place::new();
    // The script answers as a container engine would.
    let engine = place.0.join("docker");
    executable::script(
        &engine,
        "#!/bin/sh\n[ \"$5\" = web ] && cat \"${0%/*}/pid\"\n",
    );
    let path = format!("{}:/usr/bin:/bin", place.0.display());
    let about = |name: &str| {
        let mut command = place.gpulimit(&["doctor", "--container", name]);
        let output = command.env("PATH", &path).output().expect("started");
        (output.status.code().expect("ended"), text(&output.stdout))
    };
    let (code, out) = about("other");
    assert_eq!(
        (
            code,
            out.contains("no process in a container with the id or name 'other'")
        ),
        (1, true),
        "{out}"
    );
    if !may_unshare(&["-m"]) {
        return;
    }
    let start = |preload: &str| {
        let mut command = Command::new("unshare");
        command.args([
            "-m",
            "env",
            "-i",
            preload,
            "sh",
            "-c",
            "echo here; read line",
        ]);
        let looked = Looked::start(&mut command);
        fs::write(place.0.join("pid"), looked.pid() + "\n").expect("written");
        looked
    };
    let whole = start(&format!("LD_PRELOAD={}", library().display()));
    let (code, out) = about("web");
    assert_eq!(code, 0, "{out}");
    assert!(
        out.contains("the first process of ") && out.contains("a container)"),
        "{out}"
    );
    assert!(
        out.contains("ok       preload      programs that start in the container load"),
        "{out}"
    );
    drop(whole);
    let broken = start("LD_PRELOAD=/nowhere/libgpulimit.so");
    let (code, out) = about("web");
    assert_eq!(code, 1, "{out}");
    assert!(
        out.contains("programs that start in the container cannot load /nowhere/libgpulimit.so"),
        "{out}"
    );
    drop(broken);
}

#[test]
fn doctor_reports_a_process_older_than_the_preload_file() {
    if !may_unshare(&["-m"]) {
        return;
    }
    let place = Place::new();
    place.group("lab", Size::Max);
    let mut command = Command::new("unshare");
    command
        .args([
            "-m",
            "sh",
            "-c",
            "mount -t tmpfs tmpfs /etc; echo here; read line",
        ])
        .env("GPULIMIT_ROOT", place.root_path())
        .env("GPULIMIT_GROUP", "lab");
    let looked = Looked::start(&mut command);
    let file = Path::new("/proc")
        .join(looked.pid())
        .join("root")
        .join("etc/ld.so.preload");
    fs::write(&file, format!("{}\n", library().display())).expect("written");
    let at = |time: SystemTime| {
        let file = fs::File::options().write(true).open(&file).expect("there");
        file.set_modified(time).expect("changed");
    };
    let hour = Duration::from_secs(3600);
    at(SystemTime::now() + hour);
    says(&place, &looked, 1, &[" was added to /etc/ld.so.preload"]);
    at(SystemTime::now() - hour);
    says(
        &place,
        &looked,
        1,
        &["but the dynamic linker did not load the library"],
    );
}
