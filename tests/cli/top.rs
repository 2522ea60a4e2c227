//! `gpulimit top`: rounds as text and JSON, and the screen on a terminal of the test's own.

use crate::history::{SECONDS, write_growth};
use crate::machines::ssh;
use crate::place::{
    GIB, GPU, Nothing, OTHER, Place, Running, compiled, may_unshare, on, set_environment, text,
    wait_until, words,
};
use crate::terminal;
use gpulimit_base::identity::Identity;
use gpulimit_base::units::Size;
use gpulimit_group::Insistence;
use gpulimit_ledger::Ledger;
use gpulimit_limits::{Key, Selector};
use gpulimit_support::eventually;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::num::NonZero;
use std::os::unix::fs::MetadataExt;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

const OPENS: &str = "\u{1b}[?1049h";
const CLOSES: &str = "\u{1b}[?1049l";

/// A place with the group `lab` of 4 GiB.
fn place() -> Place {
    let place = Place::new();
    place.group("lab", Size::Bytes(4 * GIB));
    place
}

fn size(cells: u16) -> NonZero<u16> {
    NonZero::new(cells).expect("a size")
}

/// A terminal that `script` makes, and a shell script that runs on it.
struct Terminal {
    child: Running,
    input: Option<ChildStdin>,
    output: Arc<Mutex<Output>>,
}

/// What was written to a terminal, and what it shows.
struct Output {
    bytes: Vec<u8>,
    screen: vt100::Parser,
}

impl Terminal {
    /// Starts a script on a terminal of 80 columns. In it, `$TOP` is `gpulimit top --idle`.
    fn start(place: &Place, environment: &[(&str, &str)], script: &str) -> Self {
        let controller = place.gpulimit(&[]);
        let mut command = terminal::script();
        command
            .args([
                "-qefc",
                "stty cols 80 rows 24; exec bash -c \"$SCRIPT\"",
                "/dev/null",
            ])
            .env("SCRIPT", script)
            .env(
                "TOP",
                format!("{} top --idle", controller.get_program().display()),
            )
            .env("SHELL", "/bin/sh")
            .env("TERM", "xterm-256color")
            .env("LANG", "C.UTF-8")
            .env_remove("LC_ALL")
            .env_remove("LC_CTYPE")
            .env_remove("NO_COLOR");
        set_environment(&mut command, &controller);
        command
            .envs(environment.iter().copied())
            .stdin(Stdio::piped());
        let mut child = Running::start(command.stdout(Stdio::piped()));
        let output = Arc::new(Mutex::new(Output {
            bytes: Vec::new(),
            screen: vt100::Parser::new(size(24), size(80), 0),
        }));
        let (input, from) = (child.stdin.take(), child.stdout.take());
        let all = Arc::clone(&output);
        thread::spawn(move || {
            let mut from = from.expect("piped");
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                let mut all = all.lock().expect("unpoisoned");
                all.bytes.extend(&bytes[..count]);
                all.screen.process(&bytes[..count]);
            }
        });
        Self {
            child,
            input,
            output,
        }
    }

    /// Returns all that was written to the terminal so far.
    fn seen(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().expect("unpoisoned").bytes).into_owned()
    }

    /// Returns the lines that the terminal shows.
    fn screen(&self) -> String {
        let output = self.output.lock().expect("unpoisoned");
        output.screen.screen().contents()
    }

    /// Waits until the terminal shows a text.
    #[track_caller]
    fn shows(&self, wanted: &str) {
        let is_shown = eventually(|| self.screen().contains(wanted));
        assert!(is_shown, "no {wanted:?} in\n{}", self.screen());
    }

    /// Waits until the terminal shows a round.
    #[track_caller]
    fn shows_a_round(&self) {
        self.shows("1 group ");
    }

    /// Waits until a sequence was written to the terminal.
    #[track_caller]
    fn wrote(&self, wanted: &str) {
        wait_until(wanted, || self.seen().contains(wanted));
    }

    /// Types keys.
    fn write(&mut self, keys: &str) {
        let input = self.input.as_mut().expect("open");
        input.write_all(keys.as_bytes()).expect("written");
        input.flush().expect("written");
    }

    /// Returns the value of a line `NAME=VALUE` that the script wrote.
    #[track_caller]
    fn said(&self, name: &str) -> String {
        let name = format!("{name}=");
        let value = |seen: &str| {
            let (value, _) = seen.split_once(&name)?.1.split_once('\r')?;
            Some(value.to_owned())
        };
        wait_until(&name, || value(&self.seen()).is_some());
        value(&self.seen()).unwrap_or_default()
    }

    /// Gives the terminal another size.
    fn resize(&self, columns: u16, rows: u16) {
        let mut output = self.output.lock().expect("unpoisoned");
        let usual = |cells: u16, usual| if cells == 0 { usual } else { cells };
        let screen = output.screen.screen_mut();
        screen.set_size(size(usual(rows, 24)), size(usual(columns, 80)));
        drop(output);
        let status = Command::new("stty")
            .args(["-F", &self.said("tty")])
            .args(["cols", &columns.to_string(), "rows", &rows.to_string()])
            .status();
        assert!(status.expect("started").success());
    }
}

fn signal(pid: &str, name: &str) {
    let status = Command::new("kill").args(["-s", name, pid]).status();
    assert!(status.expect("started").success(), "{name} {pid}");
}

/// Runs the program, and says the terminal's settings before and after it.
const RUN: &str = "trap : TERM HUP INT QUIT; echo before=$(stty -g); \
                   bash -c 'echo pid=$$; exec $TOP'; echo status=$?; echo after=$(stty -g); \
                   echo end=.";

#[test]
fn q_ends_and_restores_the_terminal() {
    let place = place();
    let mut terminal = Terminal::start(&place, &[], RUN);
    terminal.shows_a_round();
    terminal.write("q");
    terminal.said("end");
    assert_eq!(terminal.said("status"), "0");
    assert_eq!(terminal.said("before"), terminal.said("after"));
    let seen = terminal.seen();
    let (opens, closes) = (seen.find(OPENS), seen.rfind(CLOSES));
    assert!(opens.is_some() && opens < closes, "{seen:?}");
    assert!(
        seen[closes.unwrap_or(0)..].contains("\u{1b}[?25h"),
        "the cursor is shown"
    );
}

#[test]
fn signals_end_it_and_restore_the_terminal() {
    let place = place();
    for (name, status) in [("TERM", "143"), ("HUP", "129"), ("INT", "130")] {
        let terminal = Terminal::start(&place, &[], RUN);
        terminal.shows_a_round();
        signal(&terminal.said("pid"), name);
        terminal.said("end");
        assert_eq!(terminal.said("status"), status, "{name}");
        assert_eq!(terminal.said("before"), terminal.said("after"), "{name}");
        assert!(terminal.seen().contains(CLOSES), "{name}");
    }
}

#[test]
fn it_ends_with_its_terminal() {
    let place = place();
    let mut terminal = Terminal::start(&place, &[], "echo pid=$$; exec $TOP");
    terminal.shows_a_round();
    let pid = terminal.said("pid");
    // The terminal goes with the process that has made it.
    terminal.child.kill().expect("killed");
    let is_there = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    wait_until("top ends without a terminal", || {
        let stat = is_there();
        stat.is_empty() || stat.contains(") Z")
    });
}

#[test]
fn ctrl_z_stops_it_with_a_restored_terminal() {
    let place = place();
    let script = "set -m; echo before=$(stty -g); $TOP; echo stopped=$?; \
                  echo middle=$(stty -g); read line; fg >/dev/null; echo back=$?; \
                  echo after=$(stty -g)";
    let mut terminal = Terminal::start(&place, &[], script);
    terminal.shows_a_round();
    terminal.write("\u{1a}");
    assert_eq!(terminal.said("before"), terminal.said("middle"));
    assert!(
        !terminal.screen().contains("1 group "),
        "the ordinary screen"
    );
    terminal.write("\n");
    // The whole screen is drawn anew.
    terminal.shows_a_round();
    terminal.shows("COMMAND");
    terminal.write("q");
    assert_eq!(terminal.said("back"), "0");
    assert_eq!(terminal.said("before"), terminal.said("after"));
}

#[test]
fn ctrl_z_stops_a_script_that_waits_for_it() {
    let place = place();
    let script = "set -m; sh -c \"$TOP; echo top=$?\"; echo stopped=$?; read line; \
                  fg >/dev/null; echo end=.";
    let mut terminal = Terminal::start(&place, &[], script);
    terminal.shows_a_round();
    terminal.write("\u{1a}");
    terminal.said("stopped");
    terminal.write("\n");
    terminal.shows_a_round();
    terminal.write("q");
    assert_eq!(terminal.said("end"), ".");
}

#[test]
fn ctrl_z_without_a_shell_changes_nothing() {
    let place = place();
    let mut terminal = Terminal::start(&place, &[], "exec $TOP");
    terminal.shows_a_round();
    terminal.write("\u{1a}");
    terminal.write("?");
    terminal.shows("Ctrl-Z");
    assert!(!terminal.seen().contains(CLOSES), "it stays on the screen");
}

/// A container's session can be outside its PID namespace: the kernel calls it 0 then.
#[test]
fn ctrl_z_in_a_pid_namespace_of_a_session_outside_changes_nothing() {
    if !may_unshare(&["--pid", "--mount-proc"]) {
        return;
    }
    let place = place();
    let script = "exec unshare --pid --fork --kill-child --mount-proc sh -c '$TOP; echo end=$?'";
    let mut terminal = Terminal::start(&place, &[], script);
    terminal.shows_a_round();
    terminal.write("\u{1a}");
    terminal.write("?");
    terminal.shows("Ctrl-Z");
    assert!(!terminal.seen().contains(CLOSES), "it stays on the screen");
    terminal.write("qq");
    assert_eq!(terminal.said("end"), "0");
}

#[test]
fn it_takes_the_terminal_again_after_a_stop_that_it_did_not_notice() {
    let place = place();
    let script = "set -m; echo tty=$(tty); bash -c 'echo pid=$$; exec $TOP'; stty sane; \
                  echo stopped=.; fg >/dev/null; echo end=.";
    let mut terminal = Terminal::start(&place, &[], script);
    terminal.shows_a_round();
    signal(&terminal.said("pid"), "STOP");
    terminal.said("stopped");
    wait_until("keys need no Enter", || {
        let output = Command::new("stty")
            .args(["-a", "-F", &terminal.said("tty")])
            .output();
        String::from_utf8_lossy(&output.expect("stty").stdout).contains("-icanon")
    });
    terminal.write("q");
    terminal.said("end");
}

#[test]
fn pasted_keys_do_nothing() {
    let place = place();
    let mut child = place.start_member("lab", None);
    let mut terminal = Terminal::start(&place, &[], "exec $TOP");
    terminal.shows("1 process ");
    terminal.wrote("\u{1b}[?2004h");
    terminal.write("\t\u{1b}[200~k\rq\u{1b}[201~");
    terminal.shows("pasted text");
    assert!(child.try_wait().expect("a child").is_none(), "no signal");
    terminal.write("q");
    terminal.wrote("\u{1b}[?2004l");
}

#[test]
fn a_process_that_was_refused_says_so_for_a_minute() {
    let place = place();
    let member = place.member("lab");
    let _other = place.start_member("lab", None);
    let refusal = on(&member).charge(9 * GIB, &Nothing, Insistence::Full);
    on(&member).count_refusal("cuMemAlloc", 9 * GIB, &refusal.expect_err("full"));
    let shown = place.said(&["top", "--once"]);
    let row = |begin: &str| {
        shown
            .lines()
            .find(|line| line.trim_start().starts_with(begin))
    };
    let own = std::process::id().to_string();
    assert!(row("lab").is_some_and(|row| row.contains("1 refused in 1 min")));
    let own = row(&own).expect(&shown);
    assert!(
        own.contains(" refused ") && own.contains(" s ago "),
        "{shown}"
    );
    assert_eq!(shown.matches(" s ago").count(), 1, "{shown}");
}

#[test]
fn a_new_size_is_used_at_once() {
    let place = place();
    let script = "echo tty=$(tty); exec $TOP --interval 3600";
    let terminal = Terminal::start(&place, &[], script);
    terminal.shows_a_round();
    for (columns, rows, shown) in [
        (31, 24, "too small"),
        (150, 50, "MANAGED"),
        (1, 1, "…"),
        (80, 24, "COMMAND"),
        (31, 24, "too small"),
        // A terminal without a size, and one without a height, are drawn as usual ones.
        (0, 0, "COMMAND"),
        (31, 0, "too small"),
        (0, 24, "COMMAND"),
    ] {
        terminal.resize(columns, rows);
        terminal.shows(shown);
    }
}

#[test]
fn keys_set_a_limit() {
    let place = place();
    let mut terminal = Terminal::start(&place, &[], "exec $TOP");
    terminal.shows_a_round();
    terminal.write("js3G\r");
    terminal.shows("Type 3G again");
    assert_eq!(place.said(&["get", "lab", "max"]).trim(), "4GiB", "not yet");
    terminal.write("3G\r");
    terminal.shows("max=3GiB applied");
    assert_eq!(place.said(&["get", "lab", "max"]).trim(), "3GiB");
}

#[test]
fn keys_send_a_signal() {
    let place = place();
    let mut child = place.start_member("lab", None);
    let mut terminal = Terminal::start(&place, &[], "exec $TOP");
    terminal.shows("1 process ");
    // Tab selects the first process.
    terminal.write("\tK");
    terminal.shows("Signal to process");
    assert!(child.try_wait().expect("a child").is_none(), "not yet");
    terminal.write("\r");
    terminal.shows("SIGTERM sent to");
    wait_until("the end", || child.try_wait().expect("a child").is_some());
}

/// The test itself holds the slots, because it cannot give a pid to another process.
#[test]
fn a_signal_is_not_sent_to_another_process_with_the_pid() {
    let place = place();
    let ledger = place.root().group("lab").expect("there").ledger_path();
    let ledger = Arc::new(Ledger::open(&ledger).expect("opened"));
    let mut child = Running::start(Command::new("sleep").arg("600"));
    let identity = |start_time| Identity {
        pid: child.id(),
        start_time,
        ..Identity::of_self()
    };
    let [before, after] = [identity(100), identity(200)];
    let slot = ledger.claim(&before, "").expect("a slot");
    let mut terminal = Terminal::start(&place, &[], "exec $TOP");
    terminal.shows("1 process ");
    terminal.write("\tK");
    terminal.shows("Signal to process");
    drop(slot);
    let _slot = ledger.claim(&after, "").expect("a slot");
    terminal.write("\r");
    terminal.shows("another process of group 'lab' has");
    assert!(child.try_wait().expect("a child").is_none(), "no signal");
}

#[test]
fn readonly_changes_nothing() {
    let place = place();
    let mut terminal = Terminal::start(&place, &[], "exec $TOP --readonly");
    terminal.shows_a_round();
    terminal.write("js");
    terminal.shows("--readonly: limits and processes");
    // A question would take this for an answer.
    terminal.write("3G\r3G\rq");
    wait_until("the end", || terminal.seen().contains(CLOSES));
    assert_eq!(place.said(&["get", "lab", "max"]).trim(), "4GiB");
}

#[test]
fn without_colours_the_selection_is_still_visible() {
    let place = place();
    for (environment, coloured) in [
        (&[][..], true),
        (&[("NO_COLOR", "1")], false),
        (&[("TERM", "vt100")], false),
    ] {
        let mut terminal = Terminal::start(&place, environment, "exec $TOP");
        terminal.shows_a_round();
        terminal.write("j");
        terminal.wrote("\u{1b}[7m");
        let seen = terminal.seen();
        assert_eq!(
            seen.contains("\u{1b}[38;5;"),
            coloured,
            "{environment:?} {seen:?}"
        );
        // This sequence would wipe the bold and the reversed type.
        assert!(coloured || !seen.contains("\u{1b}[;m\u{1b}[7m"), "{seen:?}");
    }
}

#[test]
fn details_have_a_curve() {
    let place = place();
    let member = place.member("lab");
    let device = on(&member);
    device
        .charge(GIB, &Nothing, Insistence::Full)
        .expect("fits");
    write_growth(&place, "lab", &SECONDS);
    let mut terminal = Terminal::start(&place, &[("LANG", "C")], "exec $TOP");
    terminal.shows_a_round();
    terminal.write("j\r");
    terminal.shows("1.0 of 4.0 GiB used");
    terminal.shows("# used");
    terminal.write("]");
    terminal.shows("the last 2 h");
}

#[test]
fn a_root_that_goes_and_comes_back_is_shown() {
    let place = place();
    let mut command = place.gpulimit(&["top", "--idle", "--batch", "--interval", "0.1"]);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = Running::start(&mut command);
    let mut out = BufReader::new(child.stdout.take().expect("piped")).lines();
    // Each round is written at once: the program goes on.
    let mut read_until = |wanted: &str| {
        let is_it = |line: &std::io::Result<String>| {
            line.as_ref().is_ok_and(|line| line.starts_with(wanted))
        };
        assert!(out.by_ref().any(|line| is_it(&line)), "{wanted}");
    };
    read_until("lab ");
    fs::remove_dir_all(place.root_path()).expect("removed");
    read_until("no groups");
    place.group("night", Size::Max);
    read_until("night ");
}

#[test]
fn without_a_terminal_it_prints_one_round() {
    let place = place();
    place.group("lab/alice", Size::Bytes(2 * GIB));
    let member = place.member("lab/alice");
    let device = on(&member);
    device
        .charge(GIB, &Nothing, Insistence::Full)
        .expect("fits");
    let once = place.said(&["top", "--once"]);
    for arguments in [&["top"][..], &["top", "--once"]] {
        let mut command = place.gpulimit(arguments);
        let output = command
            .env("LANG", "C.UTF-8")
            .env("CLICOLOR_FORCE", "1")
            .output();
        let said = text(&output.expect("started").stdout);
        assert!(!said.contains('\u{1b}'), "{said}");
        assert_eq!(said.lines().count(), once.lines().count());
        let lab = said.lines().find(|line| line.starts_with("lab "));
        // The usage includes the group below.
        let words: Vec<&str> = lab.expect("a row").split_whitespace().collect();
        assert_eq!(words[2..4], ["4.0G", "1.0G"], "{said}");
        assert!(words.contains(&"25"), "{said}");
        assert!(said.contains("└─ alice"), "{said}");
        assert!(
            said.lines().all(|line| line.chars().count() <= 80),
            "{said}"
        );
    }
    let ascii = place.gpulimit(&["top"]).env("LC_ALL", "C").output();
    let ascii = text(&ascii.expect("started").stdout);
    assert!(ascii.is_ascii() && ascii.contains("`- alice"), "{ascii}");
}

#[test]
fn options_choose_rows() {
    let place = place();
    place.group("lab/alice", Size::Bytes(2 * GIB));
    place.group("night", Size::Max);
    let member = place.member("night");
    let device = on(&member);
    device
        .charge(GIB, &Nothing, Insistence::Full)
        .expect("fits");
    let groups = |arguments: &[&str]| -> Vec<String> {
        let said = place.said(&[&["top", "--once", "--idle"], arguments].concat());
        let rows = said
            .lines()
            .skip_while(|line| !line.starts_with("GROUP"))
            .skip(1);
        let names = rows.take_while(|line| !line.contains("PID"));
        let name = |line: &str| words(line).first().copied().unwrap_or_default().to_owned();
        names.map(name).collect()
    };
    assert_eq!(groups(&["--filter", "NIGHT"]), ["night"]);
    assert_eq!(groups(&["--sort", "usage"])[0], "night");
    assert_eq!(groups(&["lab"]).len(), 2);
    assert_eq!(groups(&["--fold"]).len(), 2);
    assert_eq!(groups(&["--fold=lab"]).len(), 2);
    assert_eq!(groups(&["--fold=night"]).len(), 3);
    let error = place.refused(1, &["top", "--once", "--fold=nihgt"]);
    assert!(error.contains("did you mean night?"), "{error}");
    let user = fs::metadata("/proc/self").expect("it").uid().to_string();
    assert_eq!(groups(&["--user", &user]), ["night"]);
    assert_eq!(groups(&["--device", &GPU.to_string()])[0], "night");
    // The limit for all GPUs applies to a GPU that the group has not used.
    let group = place.root().group("night").expect("there");
    group
        .write_limits(|set| set.set(Selector::All, Key::Max, Size::Bytes(3 * GIB)))
        .expect("written");
    let other = place.said(&["top", "--once", "--idle", "--device", &OTHER.to_string()]);
    let row = other.lines().find(|line| line.starts_with("night"));
    let row = words(row.expect("a row"));
    assert_eq!(row[1..3], ["3.0G", "-"], "{other}");
    for (arguments, why) in [
        (&["--interval", "0"][..], "0.1 to 86400"),
        (&["--sort", "colour"], "possible values"),
        (&["--user", "nobody-at-all"], "no user 'nobody-at-all'"),
        (&["--once", "--batch"], "cannot be used with"),
    ] {
        let said = place.refused(2, &[&["top"], arguments].concat());
        assert!(said.contains(why), "{said}");
    }
    assert!(
        place
            .refused(1, &["top", "nolab"])
            .contains("no group 'nolab'")
    );
}

#[test]
fn json_has_the_names_of_show_and_ps() {
    let place = place();
    let member = place.member("lab");
    let device = on(&member);
    device
        .charge(GIB, &Nothing, Insistence::Full)
        .expect("fits");
    let top = place.json(&["top", "--json", "--once"]);
    assert_eq!(top["groups"], place.json(&["show", "--json"])["groups"]);
    let mut seen = [
        top["processes"].clone(),
        place.json(&["ps", "--json"])["processes"].clone(),
    ];
    for processes in &mut seen {
        // The process's own memory on the host changes.
        assert!(processes[0]["host"].take().as_u64() > Some(0));
    }
    assert_eq!(seen[0], seen[1]);
    assert_eq!(top["schema"], 1);
    assert_eq!(top["gpus"][0]["uuid"], GPU.to_string());
    assert_eq!(top["gpus"][0]["groups"], GIB);
    assert_eq!(top["gpus"][0]["used"], Value::Null, "there is no NVML");
    // Rounds go on until the pipe is closed, an object on each line.
    let mut command = place.gpulimit(&["top", "--json", "--interval", "0.1"]);
    let mut child = Running::start(command.stdout(Stdio::piped()));
    let out = BufReader::new(child.stdout.take().expect("piped"));
    let rounds = out
        .lines()
        .take(3)
        .map(|line| serde_json::from_str::<Value>(&line.expect("a line")).expect("an object"));
    assert!(
        rounds
            .into_iter()
            .all(|round| round["groups"] == top["groups"])
    );
    // The pipe is closed now.
    assert!(child.ended().status.success());
}

#[test]
fn a_round_that_fails_says_why_and_the_next_one_follows() {
    let place = place();
    place.group("night", Size::Max);
    let start = |form| {
        let mut command = place.gpulimit(&["top", "lab", "--idle", form, "--interval", "0.1"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Running::start(&mut command);
        let out = BufReader::new(child.stdout.take().expect("piped")).lines();
        (child, out.map(|line| line.expect("a line")))
    };
    let (rounds, mut objects) = start("--json");
    let (texts, mut lines) = start("--batch");
    let mut object =
        || serde_json::from_str::<Value>(&objects.next().expect("a round")).expect("an object");
    assert_eq!(object()["groups"][0]["name"], "lab");
    assert!(lines.any(|line| line.starts_with("lab ")));
    place.said(&["rm", "lab"]);
    let failed = loop {
        let round = object();
        if round["groups"].is_null() {
            break round;
        }
    };
    // The same form as that of `--watch --json`.
    let keys: Vec<&String> = failed.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["schema", "time", "error"]);
    assert!(
        failed["error"]
            .as_str()
            .is_some_and(|why| why.contains("no group 'lab'"))
    );
    assert!(lines.any(|line| line.starts_with("no group 'lab'")));
    place.group("lab", Size::Max);
    while object()["groups"].is_null() {}
    assert!(lines.any(|line| line.starts_with("lab ")));
    drop((objects, lines));
    for child in [rounds, texts] {
        let said = child.ended().stderr;
        assert_eq!(text(&said), "");
    }
}

/// The ledger is nearly full. The slots name processes that the caller cannot see.
#[test]
fn thousands_of_members_are_shown() {
    const MEMBERS: u32 = 4_000;
    let place = place();
    let ledger = place.root().group("lab").expect("there").ledger_path();
    let ledger = Arc::new(Ledger::open(&ledger).expect("opened"));
    let slots: Vec<_> = (1..=MEMBERS)
        .map(|pid| {
            let identity = Identity {
                pid,
                pid_ns: 1,
                ..Identity::of_self()
            };
            ledger.claim(&identity, "").expect("a slot")
        })
        .collect();
    let mut terminal = Terminal::start(&place, &[], "exec $TOP");
    terminal.shows("of 4000)");
    // To the last row.
    terminal.write("G");
    terminal.shows("-4000 of 4000)");
    terminal.write("K");
    terminal.shows("process 4000 is in another pid namespace");
    terminal.write("q");
    terminal.wrote(CLOSES);
    drop(slots);
}

#[test]
fn machines_are_shown_and_not_changed() {
    let place = place();
    let own = place.gpulimit(&[]).get_program().display().to_string();
    let run = format!("shift; exec {own} \"$@\"");
    let escapes = "echo '\u{1b}[2J\u{7}: no\u{1b}]0;x\u{7}' >&2; exit 255";
    let machines = [("lab1", run), ("bad", escapes.to_owned())];
    let path = ssh::path(&place, &machines);
    let script = "bash -c 'echo pid=$$; exec $TOP --machines lab1,gone,bad'; echo end=.";
    let mut terminal = Terminal::start(&place, &[("PATH", &path)], script);
    terminal.shows("lab1    lab");
    terminal.shows("gone: not reached: Connection refused");
    terminal.shows("bad: not reached: ");
    terminal.write("\u{1b}[Bs");
    terminal.shows("nor with --machines");
    terminal.write("\r");
    terminal.shows("history: on lab1");
    signal(&terminal.said("pid"), "TERM");
    terminal.said("end");
    wait_until("no command is left", || ssh::count(&place).1 == 0);
    assert!(!terminal.seen().contains("\u{1b}]0;x"));
}

#[test]
fn texts_of_others_cannot_control_the_terminal() {
    let place = place();
    let mut by = Command::new("bash");
    by.args([
        "-c",
        "exec -a $'\\e]0;x\\a\\u202emodel 模型' \"$@\"",
        "bash",
    ]);
    let _child = place.start_member("lab", Some(by));
    for arguments in [&["top", "--once"][..], &["top", "--once", "--json"]] {
        let mut command = place.gpulimit(arguments);
        let said = text(
            &command
                .env("LANG", "C.UTF-8")
                .output()
                .expect("started")
                .stdout,
        );
        let is_control = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(!said.contains(is_control), "{said:?}");
        assert!(said.contains("?model"), "{said}");
    }
}

#[test]
fn a_driver_that_does_not_answer_does_not_freeze_the_keys() {
    let place = place();
    let code = "#include <unistd.h>\nint nvmlInit_v2(void) { sleep(3600); return 9; }\n";
    let driver = compiled("libnvidia-ml.so.1", code, &["-shared", "-fPIC"]);
    let path = driver.parent().expect("a folder").display().to_string();
    let mut terminal = Terminal::start(&place, &[("LD_LIBRARY_PATH", &path)], "exec $TOP");
    terminal.shows("reading the groups");
    terminal.shows("no answer for");
    terminal.write("?");
    terminal.shows("Ctrl-Z");
    terminal.write("qq");
    wait_until("the end", || terminal.seen().contains(CLOSES));
}
