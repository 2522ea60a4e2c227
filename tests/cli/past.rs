//! What jobs without a name leave when their groups are removed.

use crate::place::{GIB, Nothing, Place, Running, on, text, wait_until};
use crate::user::Machine;
use gpulimit_base::units::Size;
use gpulimit_group::Insistence;
use gpulimit_limits::LimitSet;
use serde_json::{Value, json};
use std::fs::{self, File, FileTimes};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, SystemTime};

/// Uses 3 GiB of a GPU in a group.
fn use_gpu(place: &Place, group: &str) {
    let member = place.member(group);
    let device = on(&member);
    let charge = |bytes| device.charge(bytes, &Nothing, Insistence::Full);
    charge(3 * GIB).expect("fits");
    if let Err(refusal) = charge(2 * GIB) {
        device.count_refusal("cuMemAlloc", 2 * GIB, &refusal);
    }
}

/// Makes the group of a job that has used a GPU and has ended, as `run` makes it.
fn job(place: &Place, name: &str) {
    let limits = LimitSet::all(Size::Bytes(4 * GIB));
    let made = place.root().create(name, &limits).expect("created");
    made.group.keep_history().expect("begun");
    use_gpu(place, name);
}

fn left(place: &Place) -> PathBuf {
    place.root_path().join(".trail-jobs")
}

/// Returns the names of the jobs that have left something, in natural order.
fn names(place: &Place) -> Vec<String> {
    let json = place.json(&["history", "--json"]);
    let all = json["histories"].as_array().expect("a list").iter();
    all.map(|history| history["name"].as_str().expect("a name").to_owned())
        .collect()
}

#[test]
fn an_ended_job_has_a_peak_and_a_curve_before_and_after_its_group_is_removed() {
    let place = Place::new();
    job(&place, "run-1-2");
    for is_removed in [false, true] {
        if is_removed {
            let done = place.clean();
            assert!(done.contains("run-1-2: removed, its job"), "{done}");
            assert_eq!(place.root().groups().expect("listed"), []);
            assert_eq!(place.root().leftovers().expect("listed").len(), 0);
            assert_eq!(place.said(&["gc"]), "");
        }
        assert_eq!(place.said(&["show", "--names"]), "");
        for arguments in [&["history"][..], &["history", "run-1-2"]] {
            let curve = place.said(arguments);
            let (title, drawn) = curve.split_once('\n').expect("lines");
            let title = title.split_once("  ended ").expect(&curve);
            assert_eq!(title.0, "run-1-2  GPU GPU-1a2b…");
            let peak = ", peak 3.0 of 4.0 GiB, 1 refused";
            assert!(title.1.ends_with(peak), "{curve}");
            assert!(
                drawn.starts_with("4.0 GiB ") && drawn.contains('R'),
                "{curve}"
            );
            let json = place.json(&[arguments, &["--json"]].concat());
            let history = &json["histories"][0];
            assert_eq!(history["root"], json!(place.root_path()), "{history}");
            assert_eq!(history["effective_max"], 4 * GIB);
            assert_eq!(
                (&history["usage"], &history["peak"]),
                (&json!(0), &json!(3 * GIB))
            );
            assert!(history["ended"].is_string() && history["trend"].is_null());
            let periods = history["periods"].as_array().expect("a list");
            assert_eq!(history["period_ms"], 1_000);
            let most = periods.iter().filter_map(|period| period["max"].as_u64());
            assert_eq!(most.max(), Some(3 * GIB));
            assert_eq!(periods.last().expect("a period")["min"], 0);
        }
        let report = place.json(&["report", "--json"]);
        let line = &report["uses"][0];
        let figures = ["name", "peak", "refusals"].map(|key| line[key].clone());
        assert_eq!(figures, [json!("run-1-2"), json!(3 * GIB), json!(1)]);
        assert!(line["ended"].is_string(), "{line}");
        let table = place.said(&["report"]);
        assert!(
            table.lines().next().expect("heads").ends_with("ENDED"),
            "{table}"
        );
        let since = place.json(&["report", "--since", "1h", "--json"]);
        assert_eq!(since["uses"][0]["peak"], 3 * GIB);
        // The files of a timer have the groups that stay.
        let saved = place.at(&format!("saved-{is_removed}"));
        place.said(&["report", "--save", &saved.display().to_string()]);
        let file = fs::read_dir(&saved).expect("made").next().expect("a file");
        let lines = fs::read_to_string(file.expect("a file").path()).expect("text");
        assert_eq!(lines.lines().count(), 1, "{lines}");
    }
    // Memory of the file system: the devices, the history of one GPU, and the bills.
    let ledger = fs::metadata(left(&place).join("run-1-2/ledger")).expect("left");
    assert!(ledger.blocks() * 512 <= 208 << 10, "{}", ledger.blocks());
}

#[test]
fn what_a_job_left_goes_while_a_new_job_has_its_name() {
    let place = Place::new();
    job(&place, "run-1-2");
    place.clean();
    let made = place.root().create("run-1-2", &LimitSet::all(Size::Max));
    let made = made.expect("created");
    made.group.keep_history().expect("begun");
    assert_eq!(names(&place), [""; 0]);
    use_gpu(&place, "run-1-2");
    assert_eq!(names(&place), ["run-1-2"]);
    drop(made);
    place.clean();
    let history = &place.json(&["history", "--json"])["histories"][0];
    assert!(history["effective_max"].is_null(), "{history}");
}

#[test]
fn the_last_sixteen_jobs_of_a_day_have_a_past() {
    let place = Place::new();
    for number in 1..=17 {
        job(&place, &format!("run-{number}-1"));
        let past = left(&place).join(format!("run-{number}-1"));
        place.clean();
        let age = |secs| SystemTime::now() - Duration::from_secs(secs);
        let directory = File::open(past).expect("left");
        let made = FileTimes::new().set_modified(age(1_000 - 10 * number));
        directory.set_times(made).expect("set");
    }
    // Jobs that used no GPU leave nothing, and jobs in a group are in the history of the group.
    place.group("lab", Size::Max);
    for (group, uses) in [("run-18-1", false), ("lab/run-19-1", true)] {
        place.group(group, Size::Max);
        if uses {
            use_gpu(&place, group);
        }
    }
    place.clean();
    let expected: Vec<_> = (2..=17).map(|number| format!("run-{number}-1")).collect();
    assert_eq!(names(&place), [&["lab".into()], &expected[..]].concat());
    let directory = File::open(left(&place).join("run-9-1")).expect("left");
    let day = SystemTime::now() - Duration::from_secs(86_401);
    directory
        .set_times(FileTimes::new().set_modified(day))
        .expect("set");
    place.said(&["run", "--max", "1G", "--", "true"]);
    assert_eq!(names(&place).len(), 16);
    assert!(!left(&place).join("run-9-1").exists());
}

#[test]
fn a_job_that_ended_earlier_is_shown_by_its_name_or_a_longer_time() {
    let place = Place::new();
    job(&place, "run-1-2");
    place.clean();
    wait_until("the second of the job's end is over", || {
        let output = place.output(&["history", "--since", "1s"]);
        text(&output.stderr).contains("no group has used such a GPU since then")
    });
    let json = place.json(&["history", "run-1-2", "--since", "1s", "--json"]);
    assert_eq!(json["histories"][0]["peak"], 3 * GIB);
    let error = place.refused(1, &["history", "run-1-3"]);
    assert!(error.contains("no group 'run-1-3'"), "{error}");
}

#[test]
fn a_killed_job_leaves_its_past_when_the_next_one_starts() {
    let place = Place::new();
    let own = std::env::current_exe().expect("known");
    let script = format!(
        "echo $GPULIMIT_GROUP; GPULIMIT_TEST_MEMBER=$GPULIMIT_GROUP exec {} \
            --exact place::member_process --ignored --nocapture",
        own.display()
    );
    let mut command = place.gpulimit(&["run", "--max", "4G", "--", "sh", "-c", &script]);
    let mut child = Running::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let group = lines.next().expect("a line").expect("text");
    assert!(lines.any(|line| line.is_ok_and(|line| line.contains("joined"))));
    child.kill().expect("killed");
    child.wait().expect("ended");
    wait_until("the charge of the killed process is given back", || {
        place.said(&["run", "--max", "1G", "--", "true"]);
        left(&place).join(&group).exists()
    });
    let history = &place.json(&["history", &group, "--json"])["histories"][0];
    assert_eq!(
        (&history["name"], &history["peak"]),
        (&json!(group), &json!(GIB))
    );
    assert!(history["ended"].is_string(), "{history}");
    // `run --stat` removes the group of its own command.
    let script = script
        .replace("exec ", "")
        .replace("--nocapture", "--nocapture </dev/null");
    place.said(&["run", "--max", "4G", "--stat", "--", "sh", "-c", &script]);
    assert_eq!(place.root().groups().expect("listed"), []);
    assert_eq!(names(&place).len(), 2);
}

/// Returns the output of `history` and of `report`, which must end with this status.
fn both(place: &Place, status: i32) -> [Output; 2] {
    ["history", "report"].map(|verb| {
        let output = place.output(&[verb, "--json"]);
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        output
    })
}

#[test]
fn files_that_no_job_left_are_named_and_skipped() {
    let place = Place::new();
    job(&place, "run-1-2");
    place.clean();
    let copy = |name: &str| {
        let (from, to) = (left(&place).join("run-1-2"), left(&place).join(name));
        fs::create_dir(&to).expect("made");
        for file in ["limits", "ledger"] {
            fs::copy(from.join(file), to.join(file)).expect("copied");
        }
        to.join("ledger")
    };
    let bad = ["run-2-1", "run-3-1", "run-4-1", "run-5-1"].map(copy);
    fs::write(&bad[0], "garbage").expect("written");
    let file = File::options().write(true).open(&bad[1]).expect("there");
    file.set_len(1 << 20).expect("cut");
    fs::remove_file(&bad[2]).expect("removed");
    symlink("../run-1-2/ledger", &bad[2]).expect("linked");
    fs::remove_file(&bad[3]).expect("removed");
    // A link in the place of a directory is no group.
    symlink("run-1-2", left(&place).join("run-6-1")).expect("linked");
    for output in both(&place, 1) {
        let (said, told) = (text(&output.stdout), text(&output.stderr));
        let json: Value = serde_json::from_str(&said).expect("JSON");
        let all = json["histories"].as_array().or(json["uses"].as_array());
        let all: Vec<_> = all.expect("a list").iter().map(|it| &it["name"]).collect();
        assert_eq!(all, ["run-1-2"], "{said}");
        for name in ["run-2-1", "run-3-1", "run-4-1", "run-5-1"] {
            assert!(told.contains(name), "{name}: {told}");
        }
    }
    // The directory itself is a link, or another user's.
    let aside = place.at("aside");
    fs::rename(left(&place), &aside).expect("moved");
    symlink(&aside, left(&place)).expect("linked");
    for output in both(&place, 0) {
        assert!(text(&output.stderr).contains(".trail-jobs"), "{output:?}");
    }
    job(&place, "run-7-1");
    place.clean();
    assert_eq!(
        place.root().groups().expect("listed"),
        [],
        "removed all the same"
    );
    assert!(!aside.join("run-7-1").exists(), "no link is followed");
}

#[test]
fn a_foreign_directory_in_the_place_of_a_users_past_is_not_read() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let place = &machine.place;
    let alice: u32 = crate::user::ALICE.parse().expect("a number");
    fs::set_permissions(place.root_path(), fs::Permissions::from_mode(0o700)).expect("closed");
    let foreign = left(place);
    fs::create_dir(&foreign).expect("made");
    chown(place.root_path(), Some(alice), None).expect("given");
    chown(&foreign, Some(alice - 1), None).expect("given");
    let output = machine.alice(&["history"]);
    assert!(text(&output.stderr).contains(".trail-jobs"), "{output:?}");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn the_past_of_roots_job_for_another_user_has_no_secret_and_is_roots() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let place = &machine.place;
    let mut command = place.gpulimit(&["run", "--max", "4G", "--", "sh", "-c"]);
    command.arg("echo $GPULIMIT_ROOT $GPULIMIT_GROUP; read line");
    let mut child = Running::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    out.read_line(&mut line).expect("a line");
    let (view, group) = line.trim_end().split_once(' ').expect("two words");
    let secret = Path::new(view).file_name().expect("a name");
    let secret = secret
        .to_str()
        .and_then(|name| name.rsplit_once('.'))
        .expect("a secret")
        .1;
    use_gpu(place, group);
    drop(child.stdin.take());
    child.wait().expect("ended");
    place.clean();
    let kept = left(place).join(group);
    for path in [left(place), kept.clone()] {
        let about = fs::metadata(path).expect("there");
        assert_eq!((about.uid(), about.mode() & 0o777), (0, 0o700));
    }
    for verb in ["history", "report"] {
        for form in [&[][..], &["--json"]] {
            let said = place.said(&[&[verb], form].concat());
            assert!(said.contains(group) && !said.contains("secret"), "{said}");
            assert!(!said.contains(secret), "{said}");
        }
        let alices = machine.alice(&[verb]);
        assert_eq!(alices.status.code(), Some(0), "{alices:?}");
        assert!(!text(&alices.stderr).contains(".trail-jobs"), "{alices:?}");
        assert_eq!(text(&alices.stdout), "");
    }
    // The name is in no file, either.
    for entry in fs::read_dir(&kept).expect("listed") {
        let path = entry.expect("an entry").path();
        if path.is_file() {
            let mut bytes = Vec::new();
            File::open(&path)
                .expect("opened")
                .read_to_end(&mut bytes)
                .expect("read");
            let secret = secret.as_bytes();
            assert!(
                !bytes.windows(secret.len()).any(|part| part == secret),
                "{path:?}"
            );
        }
    }
}
