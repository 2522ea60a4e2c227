//! Screens of several sizes, compared with the files in `src/verbs/top/frames`. `UPDATE=1` rewrites
//! them.
#![allow(clippy::unwrap_used, reason = "a test that reads files")]

use super::*;
use crate::figures::machines::Told;
use crate::groups::sizes::rule;
use crate::verbs::top::plain;
use crate::verbs::top::round::{Round, Wanted};
use crate::verbs::top::rows::Item;
use crate::verbs::top::sample::{self, drawn, id, item, lines, name, scene, usage, view};
use ratatui::crossterm::event::KeyCode;
use ratatui::style::{Color, Modifier};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use unicode_width::UnicodeWidthStr;

/// Compares lines with a file.
#[track_caller]
fn same(file: &str, lines: &[String]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/verbs/top/frames")
        .join(file);
    let text = lines.join("\n") + "\n";
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        text == expected,
        "{file} is now (UPDATE=1 accepts it):\n{text}\nand was:\n{expected}"
    );
}

#[test]
fn screens_of_several_sizes() {
    let round = sample::round();
    let mut view = view();
    view.selected = Some(item("lab/bob"));
    for (size, file) in [
        ((80, 24), "80x24.txt"),
        ((120, 40), "120x40.txt"),
        ((200, 60), "200x60.txt"),
        ((40, 12), "40x12.txt"),
        ((31, 7), "31x7.txt"),
    ] {
        let (buffer, _) = drawn(&scene(&round, &view), size, true, false);
        same(file, &lines(&buffer));
    }
    let (buffer, _) = drawn(&scene(&round, &view), (80, 24), false, false);
    let ascii = lines(&buffer);
    assert!(ascii.iter().all(|line| line.is_ascii()), "{ascii:#?}");
    same("80x24-ascii.txt", &ascii);
}

/// Returns what a machine with this round says.
fn said(round: Round) -> Value {
    let text = Round::written(&Ok(round)).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Returns what machines show of which each says this. The last one does not answer.
fn told(rounds: &[(&str, &Value)]) -> Round {
    let mut told = Told::default();
    for (machine, round) in rounds {
        let answer = Told::read(machine, round.to_string().as_bytes());
        if let Some(Ok(one)) = answer {
            told.add(one);
        }
    }
    let answers = rounds.iter().map(|(machine, _)| (*machine, None));
    let lost = ("lab3", Some("not reached: Connection refused".to_owned()));
    let asked = answers
        .chain([lost])
        .map(|(name, why)| (name.to_owned(), why));
    let mut round = Round::told((asked.collect(), told), None);
    round.time = sample::round().time;
    round.escape();
    round
}

#[test]
fn several_machines_are_one_list() {
    let rounds = [sample::round(), sample::crowded()].map(said);
    let [small, large] = &rounds;
    let round = told(&[("lab1", small), ("alice@lab2", large)]);
    let view = view();
    for (size, file) in [
        ((80, 24), "80x24-machines.txt"),
        ((120, 40), "120x40-machines.txt"),
    ] {
        let (buffer, _) = drawn(&scene(&round, &view), size, true, false);
        same(file, &lines(&buffer));
    }
    // Each GPU has a bar, however many there are.
    let many: Vec<_> = (1..=5).map(|at| format!("m{at}")).collect();
    let many: Vec<_> = many.iter().map(|name| (&**name, large)).collect();
    let round = told(&many);
    let shown = drawn(&scene(&round, &view), (80, 24), true, false);
    let shown = lines(&shown.0).join("\n");
    for (machine, _) in many {
        let is_shown = |gpu| shown.contains(&format!("{machine}:{gpu} ["));
        assert!((0..8).all(is_shown), "{shown}");
    }
}

#[test]
fn a_machine_looks_the_same_from_afar() {
    /// Takes out what only rounds of several machines have.
    fn plain(value: &mut Value) {
        match value {
            Value::Array(list) => list.iter_mut().for_each(plain),
            Value::Object(keys) => {
                keys.retain(|key, _| !["machine", "machines", "time"].contains(&&**key));
                if let Some(Value::String(root)) = keys.get_mut("root") {
                    *root = root.replace("lab1:", "");
                }
                keys.values_mut().for_each(plain);
            }
            _ => {}
        }
    }
    let mut round = sample::round();
    let options = &mut round.groups[1].rules.options;
    options.wait_timeout = Duration::from_secs(7);
    options.count_context = false;
    options.suspended_max = Some(u64::MAX);
    for group in &mut round.groups {
        let gpus = group.gpus.iter_mut();
        gpus.for_each(|gpu| gpu.rule = rule(&group.rules, gpu.id));
    }
    let mut here = round.json(None, |_| true);
    let told = told(&[("lab1", &said(round))]);
    // These figures are not in JSON.
    assert_eq!(told.groups[3].gpus[0].recent, usage(0, 21, None).recent);
    assert!(told.groups[3].gpus[0].longest_wait.is_some());
    assert_eq!(
        told.groups[0].sum.as_ref().unwrap().usage,
        Some(42 * sample::GIB)
    );
    let mut there = told.json(None, |_| true);
    let machines = json!({ "lab1": null, "lab3": "not reached: Connection refused" });
    assert_eq!(there["machines"], machines);
    for (list, at) in [("gpus", 0), ("groups", 0), ("processes", 1)] {
        assert_eq!(there[list][at]["machine"], "lab1");
    }
    [&mut here, &mut there].into_iter().for_each(plain);
    assert_eq!(there, here);
}

#[test]
fn odd_words_of_a_machine_are_left_out() {
    let id = id(0).to_string();
    let odd = json!([
        null,
        7,
        -1,
        1e300,
        u64::MAX,
        "\u{1b}[2J",
        "../lab",
        [],
        [{}],
        true,
        id
    ]);
    let odd = odd.as_array().unwrap();
    // Each figure of a proper round becomes each of these values.
    let mut round = sample::round();
    round.gpus.truncate(1);
    round.groups.drain(1..3);
    round.groups.truncate(2);
    round.processes.drain(..3);
    let whole = said(round);
    let mut paths = Vec::new();
    fn walk(value: &Value, path: String, paths: &mut Vec<String>) {
        match value {
            Value::Array(list) => {
                let each = list.iter().enumerate().take(3);
                each.for_each(|(at, it)| walk(it, format!("{path}/{at}"), paths));
            }
            Value::Object(keys) => {
                let each = keys.iter();
                each.for_each(|(key, it)| walk(it, format!("{path}/{key}"), paths));
            }
            _ => {}
        }
        paths.push(path);
    }
    walk(&whole, String::new(), &mut paths);
    let view = view();
    let mut read = 0;
    for path in &paths {
        for value in odd {
            let mut changed = whole.clone();
            *changed.pointer_mut(path).unwrap() = value.clone();
            let round = told(&[("lab1", &changed), ("lab2", &changed)]);
            read += round.groups.len();
            round.json(None, |_| true);
            assert!(round.groups.iter().all(|group| group.name != "../lab"));
            let shown = plain::lines(&scene(&round, &view), 200).concat();
            let is_odd = |c: char| c.is_control() || c == '\u{202e}';
            assert!(!shown.contains(is_odd), "{path} {value}: {shown:?}");
        }
    }
    assert!(read > paths.len());
}

#[test]
fn memory_that_may_be_in_an_unreadable_group_is_not_called_outside() {
    let mut round = sample::round();
    let view = view();
    let said = |round: &Round| {
        let (buffer, _) = drawn(&scene(round, &view), (120, 40), true, false);
        lines(&buffer).concat()
    };
    assert!(said(&round).contains("1 outside 6.0G"));
    round.gpus[0].unsure = sample::GIB;
    assert!(said(&round).contains("1 outside or not readable 6.0G"));
}

#[test]
fn users_are_listed_with_sums_over_groups_and_gpus() {
    let mut round = sample::round();
    // A process on a second GPU is one process.
    let mut again = round.processes[1].clone();
    again.on.as_mut().unwrap().gpu = id(1);
    round.processes.push(again);
    for process in &mut round.processes {
        process.uid = process.user.as_bytes()[0].into();
    }
    let mut view = view();
    view.page = Page::Users;
    let (buffer, _) = drawn(&scene(&round, &view), (80, 24), true, false);
    same("80x24-users.txt", &lines(&buffer));
}

#[test]
fn a_refusal_within_the_last_minute_is_an_alarm() {
    let mut round = sample::round();
    let view = view();
    let red = |round: &Round, row: &str| {
        let (buffer, _) = drawn(&scene(round, &view), (120, 40), true, true);
        let at = lines(&buffer).iter().position(|line| line.starts_with(row));
        let y = at.unwrap() as u16;
        let is_red = |x: &u16| buffer[(*x, y)].fg == Color::Red;
        let symbols = (0..120).filter(is_red).map(|x| buffer[(x, y)].symbol());
        symbols.collect::<String>()
    };
    assert_eq!(red(&round, "night"), "");
    round.groups[4].gpus[0].refused_lately = 2;
    let said = red(&round, "night");
    let text = "2 refused in 1 min";
    assert!(
        said.contains(text) && said.chars().count() > text.len(),
        "{said}"
    );
    // So is the row of the process.
    assert!(red(&round, "4711").contains("refused 12 s ago"));
    round.processes[1].refused = None;
    assert_eq!(red(&round, "4711"), "");
}

/// Returns the line of a round that begins so, on a screen of this width.
fn row(round: &Round, begin: &str, width: u16) -> String {
    let shown = lines(&drawn(&scene(round, &view()), (width, 40), true, false).0);
    let mut rows = shown.iter().filter(|line| line.starts_with(begin));
    rows.next().unwrap_or_else(|| panic!("{shown:#?}")).clone()
}

#[test]
fn a_sum_says_of_which_gpu_its_percentage_is() {
    let mut round = sample::round();
    round.groups[0].gpus[1].usage = Some(53 * sample::GIB);
    round.groups[0].add_up();
    for width in [80, 120, 200] {
        let lab = row(&round, "lab ", width);
        assert!(lab.contains(" 83.0G ") && lab.contains(" 1: 88% "), "{lab}");
        assert!(row(&round, "GROUP", width).contains(" FULLEST "));
    }
    round.groups.remove(0);
    assert!(row(&round, "GROUP", 120).contains(" % "));
    assert!(row(&round, "night", 120).contains(" 40 "));
}

#[test]
fn a_process_that_waits_shows_its_command_and_who_has_the_memory() {
    let mut round = sample::round();
    let waits = "waits for 2.0 GiB, 40 s";
    assert!(row(&round, "4713", 80).contains(&format!(" {waits}    python")));
    assert!(row(&round, "4713", 120).contains(&format!(" {waits}; 4714 has 3.5G python")));
    // A process beside the full group has none of its memory.
    for process in &mut round.processes {
        if process.pid != Some(4713) {
            process.root = "/other".into();
        }
    }
    assert!(!row(&round, "4713", 120).contains(" has "));
}

#[test]
fn limits_above_the_size_of_a_gpu_are_called_so() {
    let round = sample::round();
    let [above, within] = ["   ░ others 6.0G", "   ░ others 0B"].map(|it| row(&round, it, 120));
    assert!(above.contains("limits 84.0G, above its size "), "{above}");
    assert!(within.contains("limits 70.0G  "), "{within}");
}

#[test]
fn eight_gpus_fit_and_rows_scroll() {
    let round = sample::crowded();
    let mut view = view();
    let (buffer, seen) = drawn(&scene(&round, &view), (80, 24), true, false);
    same("80x24-eight-gpus.txt", &lines(&buffer));
    assert_eq!(seen.offsets, [0, 0]);
    // The selected row is on the screen, and the row above it does not move.
    view.choice.sort = Sort::Group;
    view.selected = Some(Item {
        gpu: Some(id(30 % 8)),
        ..item("group30")
    });
    let (buffer, seen) = drawn(&scene(&round, &view), (80, 24), true, false);
    let shown = lines(&buffer);
    assert!(
        shown.iter().any(|line| line.starts_with("group30 ")),
        "{shown:#?}"
    );
    let offset = seen.offsets[0];
    view.offsets = seen.offsets;
    view.selected = Some(Item {
        gpu: Some(id(28 % 8)),
        ..item("group28")
    });
    let (_, seen) = drawn(&scene(&round, &view), (80, 24), true, false);
    assert_eq!(seen.offsets[0], offset);
    view.selected = Some(Item {
        gpu: Some(id(0)),
        ..item("group00")
    });
    let (_, seen) = drawn(&scene(&round, &view), (80, 24), true, false);
    assert_eq!(seen.offsets[0], 0);
}

#[test]
fn what_was_chosen_is_shown_beside_many_rows() {
    let round = sample::crowded();
    let mut view = view();
    let head = |view: &View, width| {
        let (buffer, _) = drawn(&scene(&round, view), (width, 24), true, false);
        lines(&buffer).remove(0)
    };
    let of_groups = "gpulimit  14:13:20  40 groups (1-8 of 40)";
    let all = format!("{of_groups}  40 processes (1-8 of 40)  every 1 s");
    assert_eq!(head(&view, 120), all);
    view.choice.filter = "group".into();
    let short = "40 groups  40 processes  filter 'group'";
    assert_eq!(
        head(&view, 80),
        format!("gpulimit  14:13:20  {short}  every 1 s")
    );
    view.choice.sort = Sort::Usage;
    view.choice.inverted = true;
    view.choice.user = "dave".into();
    let chosen = "by usage, inverted  user dave  filter 'group'";
    assert_eq!(
        head(&view, 80),
        format!("gpulimit  14:13:20  40 groups  {chosen}")
    );
    assert_eq!(head(&view, 65), format!("gpulimit  14:13:20  {chosen}"));
}

#[test]
fn questions_and_pages() {
    let round = sample::round();
    let mut view = view();
    view.selected = Some(item("lab/bob"));
    let screen = |view: &View| lines(&drawn(&scene(&round, view), (80, 24), true, false).0);
    view.page = Page::Help;
    same("80x24-help.txt", &screen(&view));
    view.page = Page::Details(Wanted {
        group: name("lab/bob"),
        since: Duration::from_secs(7_200),
    });
    same("80x24-details.txt", &screen(&view));
    view.page = Page::Tables;
    view.message =
        "lab/bob: max=8GiB applied to all GPUs; lab/bob: applied; usage 21.0 GiB of GPU \
                    0 is above the new max 8.0 GiB: growth is refused until the usage falls"
            .into();
    let shown = screen(&view);
    assert!(
        shown[22].starts_with("lab/bob: max=8GiB applied"),
        "{shown:#?}"
    );
    assert!(shown[23].contains("growth is refused"), "{shown:#?}");
}

#[test]
fn a_chosen_gpu_that_has_disappeared_is_named() {
    let mut round = sample::round();
    let mut view = view();
    view.choice.gpus = vec![id(0)];
    let head = |round: &Round| {
        let (buffer, _) = drawn(&scene(round, &view), (80, 24), true, false);
        lines(&buffer).remove(0)
    };
    assert!(head(&round).contains("  GPU 0  "), "{}", head(&round));
    round.gpus.remove(0);
    let name = format!("  GPU {}  ", id(0).short());
    assert!(head(&round).contains(&name), "{}", head(&round));
}

#[test]
fn narrow_screens_show_whole_questions() {
    let round = sample::round();
    for (key, size, text) in [
        ('K', (32, 8), "Esc does not. Command: nvidia-smi"),
        (
            's',
            (32, 8),
            "lab: max on all GPUs is 60.0 GiB. Esc changes nothing.",
        ),
        ('K', (40, 12), "Esc does not. Command: nvidia-smi"),
    ] {
        let mut view = view();
        view.choice.sort = Sort::Group;
        view.key(KeyCode::Tab.into(), &round, 5);
        view.key(KeyCode::Char(key).into(), &round, 5);
        let (buffer, _) = drawn(&scene(&round, &view), size, true, false);
        let lines = lines(&buffer);
        let shown = lines[..lines.len() - 1].join(" ");
        assert!(shown.ends_with(text), "{key} {size:?}: {lines:#?}");
    }
    let (buffer, _) = drawn(&scene(&round, &view()), (12, 5), true, false);
    let shown = lines(&buffer).join(" ");
    assert_eq!(shown.trim_end(), "too small: 32x8 is needed, q quits");
}

#[test]
fn every_size_is_drawn_without_a_wrapped_or_lost_line() {
    let mut hostile = sample::round();
    hostile.groups[3].title = "模型".repeat(40);
    hostile.processes[1].command = Some("e\u{301}שלום\u{1f469}\u{fe0f}模".repeat(20));
    hostile.processes[2].user = "長い名前".into();
    for round in [
        &sample::round(),
        &sample::crowded(),
        &Round::default(),
        &hostile,
    ] {
        for page in [Page::Tables, Page::Help] {
            let mut view = view();
            view.page = page;
            for width in (1..60).chain([79, 80, 81, 133, 300]) {
                for height in [1, 2, 7, 8, 9, 24, 50] {
                    let (buffer, seen) = drawn(&scene(round, &view), (width, height), true, true);
                    let lines = lines(&buffer);
                    let widest = lines.iter().map(|line| line.width()).max();
                    assert!(widest <= Some(width.into()), "{width}x{height}: {lines:#?}");
                    assert!(!lines[0].is_empty(), "{width}x{height}");
                    assert!(seen.page > 0);
                }
            }
        }
    }
}

#[test]
fn the_selection_is_reversed_with_and_without_colours() {
    let round = sample::round();
    let mut view = view();
    view.selected = Some(item("lab/bob"));
    for colours in [true, false] {
        let (buffer, _) = drawn(&scene(&round, &view), (80, 24), true, colours);
        let reversed: Vec<u16> = (0..24)
            .filter(|y| {
                let is_reversed = |x| buffer[(x, *y)].modifier.contains(Modifier::REVERSED);
                (0..80).all(is_reversed)
            })
            .collect();
        let line = plain::line(&buffer, reversed[0]);
        assert!(
            reversed.len() == 1 && line.contains("bob"),
            "{reversed:?} {line}"
        );
        let is_coloured = |y: u16, x: u16| buffer[(x, y)].fg != Color::Reset;
        let any = (0..24).any(|y| (0..80).any(|x| is_coloured(y, x)));
        assert_eq!(any, colours);
        let heads = (0..24)
            .find(|y| plain::line(&buffer, *y).starts_with("GROUP"))
            .unwrap();
        let bold = Modifier::BOLD | Modifier::UNDERLINED;
        assert_eq!(buffer[(0, heads)].modifier, bold);
        // A state that needs attention is bold as well as red.
        let line = plain::line(&buffer, heads + 1);
        let at = line.find("waits").map(|at| line[..at].width()).unwrap() as u16;
        let cell = &buffer[(at, heads + 1)];
        assert!(cell.modifier.contains(Modifier::BOLD));
        assert_eq!(cell.fg == Color::Red, colours);
    }
}

#[test]
fn problems_are_shown() {
    let mut round = Round::without("cannot read /run/gpulimit: it is gone".into());
    let view = view();
    let shown = lines(&drawn(&scene(&round, &view), (80, 24), true, false).0);
    assert_eq!(shown[1], "cannot read /run/gpulimit: it is gone");
    assert!(!shown.concat().contains("makes one"));
    round.problem.clear();
    let mut stuck = scene(&round, &view);
    stuck.stuck = Some(Duration::from_secs(7));
    let shown = lines(&drawn(&stuck, (80, 24), true, false).0);
    assert!(shown[0].ends_with("no answer for 7 s"), "{}", shown[0]);
    assert!(
        shown
            .concat()
            .contains("`gpulimit run --max 4G -- COMMAND` makes one")
    );
}

#[test]
fn plain_text_has_all_rows() {
    let round = sample::crowded();
    let lines = plain::lines(&scene(&round, &view()), 80);
    assert_eq!(
        lines
            .iter()
            .filter(|line| line.starts_with("group"))
            .count(),
        40
    );
    assert_eq!(
        lines.iter().filter(|line| line.contains(" dave ")).count(),
        40
    );
    same(
        "plain-80.txt",
        &plain::lines(&scene(&sample::round(), &view()), 80),
    );
    let none = plain::lines(&scene(&Round::default(), &view()), 80);
    assert!(none[1].contains("no groups"), "{none:?}");
}

#[test]
fn a_figure_stays_beside_its_name() {
    let group = &sample::round().groups[0];
    let text = pages::figures(&group.rows().next().unwrap());
    for width in 18..60 {
        let lines: Vec<_> = wrapped(&text, width).map(|line| line.to_string()).collect();
        let parts = |line: &String| line.starts_with(|c: char| c.is_ascii_digit());
        assert!(!lines.iter().any(parts), "{lines:?}");
    }
}

#[test]
fn texts_of_other_users_are_escaped() {
    let mut round = sample::round();
    let hostile = "a\u{202e}b".to_owned();
    round.gpus[0].name = hostile.clone();
    round.gpus[0].parts[0].0 = hostile.clone();
    round.groups[0].title = hostile.clone();
    round.processes[1].user = hostile.clone();
    round.processes[1].place = hostile.clone();
    round.processes[1].command = Some(hostile.clone());
    round.processes[1].title = hostile;
    round.escape();
    let shown = lines(&drawn(&scene(&round, &view()), (200, 60), true, false).0).concat();
    assert!(!shown.contains('\u{202e}'), "{shown}");
    assert_eq!(shown.matches("a\\u202eb").count(), 8, "{shown}");
}
