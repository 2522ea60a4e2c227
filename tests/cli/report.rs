//! `report`

use crate::place::{GIB, GPU, Nothing, Place, may_unshare, on, skip, text, wait_until};
use gpulimit_base::units::Size;
use gpulimit_group::{Insistence, Member};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Returns a group `lab` in which this process has used memory for a while, and a group `idle`. One
/// request was refused.
fn used() -> (Place, Member) {
    let place = Place::new();
    place.group("lab", Size::Bytes(4 * GIB));
    place.group("idle", Size::Max);
    let member = place.member("lab");
    let device = on(&member);
    let charge = |bytes| device.charge(bytes, &Nothing, Insistence::Full);
    charge(3 * GIB).expect("fits");
    let refusal = charge(2 * GIB).expect_err("full");
    device.count_refusal("cuMemAlloc", 2 * GIB, &refusal);
    // The clock of the ledger has steps of some milliseconds.
    wait_until("memory over time", || hours(&place) > 0.0);
    (place, member)
}

fn uses(place: &Place, arguments: &[&str]) -> Vec<Value> {
    let json = place.json(&[&["report", "--json"], arguments].concat());
    json["uses"].as_array().expect("a list").clone()
}

fn hours(place: &Place) -> f64 {
    uses(place, &["lab"])[0]["gib_hours"]
        .as_f64()
        .expect("a number")
}

fn me() -> u64 {
    fs::metadata("/proc/self").expect("mounted").uid().into()
}

#[test]
fn report_has_a_line_for_each_group_and_gpu() {
    let (place, _member) = used();
    let before = Instant::now();
    let first = hours(&place);
    let after = Instant::now();
    let all = uses(&place, &[]);
    assert_eq!(all.len(), 1, "the other group has used no GPU: {all:?}");
    let group = &all[0];
    for (key, expected) in [
        ("peak", 3 * GIB),
        ("refusals", 1),
        ("waits", 0),
        ("waited_ms", 0),
    ] {
        assert_eq!(group[key], expected, "{key}: {group}");
    }
    assert_eq!(group["name"], "lab");
    assert_eq!(group["gpu"]["uuid"], GPU.to_string());
    assert!(group["user"].is_null() && group["uid"].is_null(), "{group}");
    // The use grows by 3 GiB times the time, as the memory stays charged. Both reports were made
    // within the longer time, and the shorter one passed between them.
    let (mut more, mut least) = (0.0, 0.0);
    wait_until("the use grows", || {
        least = after.elapsed().as_secs_f64();
        more = hours(&place) - first;
        more > 3.0 * 0.2 / 3_600.0
    });
    let most = before.elapsed().as_secs_f64();
    // The clock of the ledger has steps of some milliseconds.
    let limits = [least - 0.1, most + 0.1].map(|seconds| 3.0 * seconds / 3_600.0);
    assert!(
        limits[0] <= more && more <= limits[1],
        "{more} of {limits:?}"
    );

    let table = place.said(&["report"]);
    let words: Vec<&str> = table
        .split_whitespace()
        .filter(|word| !word.ends_with('%'))
        .collect();
    assert_eq!(
        words.join(" "),
        "GROUP GPU GIB-HOURS OF LIMIT PEAK REFUSED WAITED lab GPU-1a2b… 0.0 3.0 GiB 1 0.00 s"
    );
    // The group used 3 of 4 GiB for most of its life.
    let share = uses(&place, &[])[0]["limit_share"].as_f64();
    assert!(share > Some(0.0) && share < Some(0.76), "{share:?}");
    let output = place.output(&["report", "idle"]);
    assert!(
        output.status.success() && output.stdout.is_empty(),
        "{output:?}"
    );
    assert!(
        text(&output.stderr).contains("no named group or job"),
        "{output:?}"
    );
}

#[test]
fn report_by_user_has_the_use_of_each_user() {
    let (place, _member) = used();
    let all = uses(&place, &["--by", "user"]);
    assert_eq!(all.len(), 1, "{all:?}");
    let user = &all[0];
    assert_eq!(user["uid"], me());
    assert!(
        user["peak"].is_null() && user["refusals"].is_null(),
        "{user}"
    );
    assert!(user["gib_hours"].as_f64() > Some(0.0), "{user}");
    let name = user["user"].as_str().expect("a name");
    let table = place.said(&["report", "--by", "user"]);
    assert!(
        table.starts_with("GROUP  GPU        USER") && table.contains(name),
        "{table}"
    );
    let csv = place.said(&["report", "--by", "user", "--csv"]);
    let row = format!(",{GPU},{},{name},0.00", me());
    assert!(csv.contains(&row) && csv.lines().count() == 2, "{csv}");
}

#[test]
fn report_by_user_has_a_sum_over_groups() {
    let (place, _member) = used();
    place.group("lab/a", Size::Max);
    place.group("night", Size::Max);
    let members = ["lab/a", "night"].map(|name| {
        let member = place.member(name);
        let device = on(&member);
        let charged = device.charge(GIB, &Nothing, Insistence::Full);
        charged.expect("fits");
        member
    });
    wait_until("memory over time", || {
        let all = uses(&place, &[]);
        all.len() == 3
            && all
                .iter()
                .all(|line| line["gib_hours"].as_f64() > Some(0.0))
    });
    drop(members);
    let table = place.said(&["report", "--by", "user"]);
    let last = table.lines().last().expect("a line");
    assert!(
        last.starts_with("all groups") && table.lines().count() == 5,
        "{table}"
    );
    // The figures of programs have each line once.
    assert_eq!(uses(&place, &["--by", "user"]).len(), 3);
    assert_eq!(
        place
            .said(&["report", "--by", "user", "--csv"])
            .lines()
            .count(),
        4
    );
    assert!(
        !place
            .said(&["report", "lab/a", "--by", "user"])
            .contains("all groups")
    );
}

#[test]
fn report_of_a_group_reads_no_limits_of_others() {
    let (place, _member) = used();
    place.group("lab/a", Size::Max);
    place.group("lab/b", Size::Max);
    let _inner = place.member("lab/a");
    let limits = place.root().group("lab/b").expect("there").limits_path();
    // The kernel notes the time of a read if the noted time is long ago.
    let forget = || {
        let file = fs::File::options()
            .write(true)
            .open(&limits)
            .expect("opened");
        let times = fs::FileTimes::new().set_accessed(UNIX_EPOCH);
        file.set_times(times).expect("set");
    };
    let is_read = || {
        let about = fs::metadata(&limits).expect("there");
        about.accessed().expect("known") != UNIX_EPOCH
    };
    forget();
    place.said(&["report", "lab/b"]);
    if !is_read() {
        skip("the file system does not note reads");
        return;
    }
    forget();
    assert_eq!(uses(&place, &["lab/a"]).len(), 1);
    assert!(!is_read(), "reads of all pairs of groups take long");
}

#[test]
fn report_does_not_count_the_time_in_which_a_process_may_have_been_dead() {
    let place = Place::new();
    place.group("lab", Size::Max);
    let mut member = place.start_member("lab", None);
    member.kill().expect("killed");
    member.wait().expect("ended");
    // The first report finds that the process is dead, and ends the uncertain time.
    let killed = Instant::now();
    wait_until("the clock", || killed.elapsed().as_millis() > 50);
    for by in ["group", "user"] {
        let all = uses(&place, &["--by", by]);
        let figure = |key: &str| all[0][key].as_f64().expect("a number");
        assert_eq!(figure("gib_hours"), 0.0, "{all:?}");
        assert!(figure("gib_hours_uncertain") > 0.04 / 3_600.0, "{all:?}");
    }
    let csv = place.said(&["report", "--csv"]);
    let row = csv.lines().nth(1).expect("a row");
    let last = row.rsplit(',').next().expect("a cell");
    assert!(last.parse::<f64>().expect("a number") > 0.0, "{csv}");
}

/// A reader of a ledger takes space on its file system if the ledger names more slots than it has.
#[test]
fn report_names_a_group_that_it_cannot_read_to_the_end() {
    if !may_unshare(&["-m"]) {
        return;
    }
    let place = Place::new();
    let controller = place.gpulimit(&[]).get_program().to_owned();
    let script = r#"
        mount -t tmpfs -o size=1M tmpfs "$PLACE" && mkdir "$GPULIMIT_ROOT" || exit 77
        "$CONTROLLER" create lab
        "$@" < /dev/null
        printf '\000\020' | dd of="$GPULIMIT_ROOT/lab/ledger" bs=1 seek=64 conv=notrunc 2>&1
        left=$(df --output=avail -k "$PLACE" | tail -n 1)
        fallocate -l $((left - 64))K "$PLACE/full"
        for verb in report history show; do "$CONTROLLER" $verb 2>&1; echo "status $?"; done"#;
    let mut command = Command::new("unshare");
    command
        .args(["-m", "sh", "-c", script, "sh"])
        .env("PLACE", &place.0)
        .env("CONTROLLER", controller);
    let mut command = place.member_command("lab", Some(command));
    let said = text(&command.output().expect("started").stdout);
    let error = "cannot be used (the file was cut short, or its file system has no space)";
    assert_eq!(said.matches(error).count(), 3, "{said}");
    assert_eq!(said.matches("status 1").count(), 3, "{said}");
}

/// Returns the lines of the only file in a directory, and the file's name.
fn saved(directory: &Path) -> (String, Vec<String>) {
    let files: Vec<_> = fs::read_dir(directory).expect("made").flatten().collect();
    let lines = |path| {
        fs::read_to_string(path)
            .expect("read")
            .lines()
            .map(String::from)
            .collect()
    };
    // At midnight there are two files.
    let last = files
        .iter()
        .max_by_key(|file| file.file_name())
        .expect("a file");
    let name = last.file_name().into_string().expect("text");
    (name, lines(last.path()))
}

#[test]
fn report_appends_to_the_file_of_the_day() {
    let (place, member) = used();
    let directory = place.0.join("log/reports");
    // A mistyped path is named, and only the last directory is made.
    let arguments = ["report", "--save", directory.to_str().expect("text")];
    let error = place.refused(1, &arguments);
    let above = place.0.join("log");
    let missing = format!("there is no directory {}", above.display());
    assert!(error.contains(&missing) && !above.exists(), "{error}");
    fs::create_dir(&above).expect("made");
    let output = place.output(&arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    let made = format!("gpulimit: made the directory {}", directory.display());
    assert!(
        output.status.success() && said.replace("\n  ", " ").contains(&made),
        "{output:?}"
    );
    let save = || {
        assert_eq!(place.said(&arguments), "");
        saved(&directory)
    };
    let mut member = Some(member);
    let (name, first, second) = loop {
        fs::remove_dir_all(&directory).expect("removed");
        fs::create_dir(&directory).expect("made");
        let (name, first) = save();
        // The figures go on, also if the process has ended.
        drop(member.take());
        let (again, second) = save();
        // At midnight, the second save begins another file.
        if again == name {
            break (name, first, second);
        }
    };
    assert_eq!(name.len(), "2026-11-23.csv".len(), "{name}");
    assert_eq!(
        first[0],
        "time,group,root,gpu,uid,user,gib_hours,peak,refusals,waits,waited_ms,made,\
         gib_hours_uncertain"
    );
    assert_eq!(
        first.len(),
        3,
        "one line of the group, one of the user: {first:?}"
    );
    assert!(first[1].starts_with(&name[..10]), "{first:?}");
    assert!(
        first[1].contains(&format!(",lab,{},", place.root_path().display())),
        "{first:?}"
    );
    assert!(
        first[1].contains(&format!(",{},1,0,0,", 3 * GIB)),
        "{first:?}"
    );
    assert!(first[2].contains(&format!(",{},", me())), "{first:?}");
    assert_eq!((second.len(), &second[..3]), (5, &first[..]), "heads once");
    let hours = |line: &str| -> f64 {
        let cell = line.split(',').nth(6).expect("a cell");
        cell.parse().expect("a number")
    };
    for (before, after) in [(1, 3), (2, 4)] {
        assert!(
            hours(&second[after]) >= hours(&second[before]),
            "{second:?}"
        );
    }
    let made = |line: &str| line.rsplit(',').nth(1).map(String::from);
    assert_eq!(made(&second[3]), made(&first[1]));
}

#[test]
fn report_names_what_cannot_be_saved() {
    let (place, _member) = used();
    let file = place.0.join("file");
    fs::write(&file, "").expect("written");
    let below = file.join("below");
    let error = place.refused(1, &["report", "--save", below.to_str().expect("text")]);
    assert!(
        error.contains("cannot make") && error.contains("file/below"),
        "{error}"
    );
    place.refused(2, &["report", "--save", "x", "--json"]);
}

/// A directory with files of `--save`, and the root that they are about.
struct Files {
    place: Place,
    directory: String,
}

const HEADS: &str = "time,group,root,gpu,uid,user,gib_hours,peak,refusals,waits,waited_ms,made";

impl Files {
    fn new() -> Self {
        let place = Place::new();
        let directory = place.0.join("log");
        fs::create_dir(&directory).expect("made");
        let directory = directory.to_str().expect("text").to_owned();
        Self { place, directory }
    }

    /// Writes the file of a day in November 2026: of each line the time of the day, the group, the
    /// figures from `uid` to `waited_ms`, and the time when the group was made.
    fn write(&self, day: u32, lines: &[(&str, &str, &str, &str)]) {
        let root = self.place.root_path();
        let line = |(time, group, figures, made): &(&str, &str, &str, &str)| {
            let root = root.display();
            format!(
                "2026-11-{day:02}T{time}:00.000Z,{group},{root},{GPU},{figures},2026-{made}.000Z\n"
            )
        };
        let text: String = lines.iter().map(line).collect();
        let path = format!("{}/2026-11-{day:02}.csv", self.directory);
        fs::write(path, format!("{HEADS}\n{text}")).expect("written");
    }

    /// Returns the uses in a time in UTC.
    fn uses(&self, since: &str, until: &str, arguments: &[&str]) -> Vec<Value> {
        let (since, until) = (
            format!("2026-11-{since}:00Z"),
            format!("2026-11-{until}:00Z"),
        );
        let span = [
            "--from",
            &self.directory,
            "--since",
            &since,
            "--until",
            &until,
        ];
        uses(&self.place, &[&span[..], arguments].concat())
    }
}

#[test]
fn saved_reports_tell_who_used_how_much_before_and_after_a_reboot() {
    let files = Files::new();
    let (first, second) = ("10-30T08:00:00", "11-03T06:00:00");
    files.write(
        1,
        &[
            ("10:00", "lab", ",,100.5,5000,7,2,3000", first),
            ("10:00", "lab", "1001,alice,60.5,,,,", first),
            ("10:00", "lab", "1002,bob,40,,,,", first),
            ("22:00", "lab", ",,110.5,5000,9,3,4500", first),
            ("22:00", "lab", "1001,alice,70.5,,,,", first),
            ("22:00", "lab", "1002,bob,40,,,,", first),
        ],
    );
    // The machine has restarted meanwhile.
    files.write(
        3,
        &[
            ("12:00", "lab", ",,8,6000,1,0,0", second),
            ("12:00", "lab", "1001,alice,5,,,,", second),
            ("12:00", "lab", "1003,carol,3,,,,", second),
        ],
    );
    files.write(
        4,
        &[
            ("12:00", "lab", ",,20,6000,1,0,0", second),
            ("12:00", "lab", "1001,alice,5,,,,", second),
            ("12:00", "lab", "1003,carol,15,,,,", second),
            ("12:00", "lab/new", ",,2,100,0,0,0", second),
        ],
    );
    let by_group = files.uses("01T12:00", "05T00:00", &[]);
    let names: Vec<_> = by_group.iter().map(|one| one["name"].as_str()).collect();
    assert_eq!(
        names,
        [Some("lab"), Some("lab/new")],
        "also groups that are gone"
    );
    let lab = &by_group[0];
    for (key, expected) in [
        ("gib_hours", json!(30.0)),
        ("peak", json!(6000)),
        ("refusals", json!(3)),
        ("waits", json!(1)),
        ("waited_ms", json!(1500)),
        ("from", json!("2026-11-01T10:00:00.000Z")),
        ("until", json!("2026-11-05T00:00:00.000Z")),
    ] {
        assert_eq!(lab[key], expected, "{key}: {lab}");
    }
    assert_eq!(lab["gpu"]["uuid"], GPU.to_string());
    let by_user = |since, until| -> Vec<(String, f64)> {
        let all = files.uses(since, until, &["--by", "user"]);
        let of = |one: &Value| {
            assert!(one["peak"].is_null() && one["refusals"].is_null(), "{one}");
            let uid = one["uid"].as_u64().expect("a user").to_string();
            (uid, one["gib_hours"].as_f64().expect("a number"))
        };
        all.iter().map(of).collect()
    };
    let wanted = |all: &[(&str, f64)]| -> Vec<(String, f64)> {
        all.iter()
            .map(|(uid, hours)| (uid.to_string(), *hours))
            .collect()
    };
    assert_eq!(
        by_user("01T12:00", "05T00:00"),
        wanted(&[("1001", 15.0), ("1002", 0.0), ("1003", 15.0)])
    );
    // The last save before the begin is in an earlier file.
    assert_eq!(
        by_user("04T00:00", "05T00:00"),
        wanted(&[("1001", 0.0), ("1003", 12.0)])
    );
    let later = files.uses("04T00:00", "05T00:00", &["lab"]);
    // The peak did not rise, so it can be older.
    assert_eq!(
        (&later[0]["gib_hours"], &later[0]["peak"]),
        (&12.0.into(), &Value::Null)
    );
    assert_eq!(later[0]["from"], "2026-11-03T12:00:00.000Z");
    let begin = "2026-11-01T12:00:00Z";
    let end = "2026-11-05T00:00:00Z";
    let span = [
        "report",
        "--from",
        &files.directory,
        "--since",
        begin,
        "--until",
        end,
    ];
    let table = files.place.said(&span);
    assert!(
        table.contains("FROM") && table.contains("2026-11-01T"),
        "early: {table}"
    );
    // A GPU without a line in a save was not used before.
    assert_eq!(later[1]["gib_hours"], 2.0);
    assert_eq!(files.uses("04T00:00", "05T00:00", &["lab/new"]).len(), 1);
    assert_eq!(files.uses("05T00:00", "06T00:00", &[]), [Value::Null; 0]);
}

#[test]
fn figures_that_begin_late_say_so() {
    let files = Files::new();
    let made = "10-30T08:00:00";
    files.write(
        2,
        &[
            ("10:00", "lab", ",,100,5000,7,2,3000", made),
            ("11:00", "lab", ",,104,5000,9,2,3000", made),
        ],
    );
    let path = format!("{}/2026-11-02.csv", files.directory);
    let text = fs::read_to_string(&path).expect("read");
    // A line that a full file system has cut, one of other figures, and a file of something else.
    let forged = "2026-11-02T11:30:00.000Z,\u{1b}[2J,x,y,,,1,2,3,4,5,\n";
    let text =
        text + forged + "2026-11-02T11:45:00.000Z,lab,x,y,,,-1,2,3,4,5,\n2026-11-02T12:00:00";
    fs::write(&path, text).expect("written");
    fs::write(format!("{}/2026-11-03.csv", files.directory), "a,b\n1,2\n").expect("written");
    fs::write(format!("{}/notes.csv", files.directory), "a,b\n").expect("written");
    let all = files.uses("01T00:00", "05T00:00", &[]);
    assert_eq!(
        (all[0]["gib_hours"].as_f64(), all[0]["refusals"].as_u64()),
        (Some(4.0), Some(2))
    );
    assert_eq!(all[0]["from"], "2026-11-02T10:00:00.000Z");
    let span = [
        "report",
        "--since",
        "2026-11-01",
        "--until",
        "2026-11-05",
        "--from",
    ];
    let output = files
        .place
        .output(&[&span[..], &[&files.directory]].concat());
    let (table, notes) = (text_of(&output.stdout), text_of(&output.stderr));
    assert!(
        table.contains("GROUP GPU GIB-HOURS PEAK REFUSED WAITED FROM"),
        "{table}"
    );
    assert!(
        table.contains("lab GPU-1a2b… 4.0 - 2 0.00 s 2026-11-02T"),
        "{table}"
    );
    assert!(
        notes.contains("left out 3 lines of") && notes.contains("2026-11-02.csv"),
        "{notes}"
    );
    assert!(
        notes.contains("left out 2 lines of") && notes.contains("2026-11-03.csv"),
        "{notes}"
    );
    assert!(
        notes.contains("lines with a time in FROM count from then"),
        "{notes}"
    );
    let csv = files
        .place
        .said(&[&span[..], &[&files.directory, "--csv"]].concat());
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(
        lines[0],
        "group,root,gpu,uid,user,from,until,gib_hours,peak,refusals,waits,waited_ms"
    );
    assert!(lines[1].contains(",2026-11-02T10:00:00.000Z,"), "{csv}");
    assert!(lines[1].ends_with(",4.000000,,2,0,0"), "{csv}");
    for (arguments, error) in [
        (&["--from", "x"][..], "--since"),
        (&["--since", "1h", "--until", "1h"], "--from"),
        (&["--since", "soon"], "invalid value 'soon'"),
        (
            &["--since", "1h", "--from", &files.directory, "--until", "2h"],
            "not later",
        ),
        (&["--since", "1h", "--save", "x"], "--save"),
    ] {
        let said = files.place.refused(2, &[&["report"], arguments].concat());
        assert!(said.contains(error), "{arguments:?}: {said}");
    }
    let error = files
        .place
        .refused(1, &["report", "--since", "1h", "--from", "/nowhere"]);
    assert!(error.contains("cannot read /nowhere"), "{error}");
}

/// Returns a text with single spaces and without line ends.
fn text_of(bytes: &[u8]) -> String {
    text(bytes).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_use_since_a_time_comes_from_the_group_its_history_and_the_files() {
    let (place, member) = used();
    // The group was made after the begin, so that all its figures count.
    let all = &uses(&place, &["--since", "1h"])[0];
    assert_eq!(
        (&all["peak"], &all["refusals"]),
        (&(3 * GIB).into(), &1.into())
    );
    assert!(all["gib_hours"].as_f64() > Some(0.0), "{all}");
    let made = &uses(&place, &[])[0]["made"];
    assert_eq!(&all["from"], made, "nothing is known of groups before it");
    let users = uses(&place, &["--since", "1h", "--by", "user"]);
    assert_eq!((users.len(), &users[0]["uid"]), (1, &me().into()));
    assert!(users[0]["gib_hours"].as_f64() > Some(0.0), "{users:?}");
    let directory = place.0.join("log");
    let directory = directory.to_str().expect("text");
    place.said(&["report", "--save", directory]);
    let saved = saved(Path::new(directory)).1;
    let (time, _) = saved[1].split_once(',').expect("cells");
    let before = hours(&place);
    // The group and the save are older than the begin, which is a whole second.
    let seconds = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("after 1970")
            .as_secs()
    };
    let end = seconds();
    wait_until("the next second", || seconds() > end);
    let begin = jiff::Timestamp::from_second(seconds() as i64)
        .expect("a time")
        .to_string();
    let device = member.device(GPU, 80 * GIB).expect("a device");
    let charge = |bytes| device.charge(bytes, &Nothing, Insistence::Full);
    let refusal = charge(2 * GIB).expect_err("full");
    device.count_refusal("cuMemAlloc", 2 * GIB, &refusal);

    let since = |arguments: &[&str]| uses(&place, &[&["--since", &begin], arguments].concat());
    let alone = &since(&[])[0];
    assert_eq!(alone["gib_hours"], Value::Null, "only the sum is known");
    assert_eq!(
        alone["peak"],
        3 * GIB,
        "the history has what was charged before"
    );
    assert_eq!(since(&["--by", "user"])[0]["gib_hours"], Value::Null);
    let table = place.output(&["report", "--since", &begin]);
    let said = text_of(&table.stdout);
    assert!(said.contains("lab GPU-1a2b… - 3.0 GiB "), "{said}");
    assert!(
        text_of(&table.stderr).contains("need the files of"),
        "{table:?}"
    );

    let with_files = &since(&["--from", directory])[0];
    let more = with_files["gib_hours"].as_f64().expect("known");
    assert!(
        more > 0.0 && more <= hours(&place) - before + 1e-3,
        "{more} since {before}"
    );
    assert_eq!(
        (&with_files["refusals"], &with_files["from"]),
        (&1.into(), &time.into())
    );
    assert_eq!(with_files["peak"], 3 * GIB, "of the history");
    let user = &since(&["--from", directory, "--by", "user"])[0];
    assert!(user["gib_hours"].as_f64() > Some(0.0), "{user}");
}
