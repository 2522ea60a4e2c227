//! What each key does.

use super::*;
use crate::verbs::top::rows::Sort;
use crate::verbs::top::sample::{self, id, item, name, view};
use gpulimit_base::units::Size;

/// A view and its round, with keys pressed one after the other.
struct Keys {
    view: View,
    round: Round,
    act: Option<Act>,
}

impl Keys {
    fn new() -> Self {
        let mut view = view();
        view.choice.sort = Sort::Group;
        Self {
            view,
            round: sample::round(),
            act: None,
        }
    }

    fn press(&mut self, key: KeyCode) -> &mut Self {
        self.act = self.view.key(KeyEvent::from(key), &self.round, 5);
        self
    }

    fn write(&mut self, text: &str) -> &mut Self {
        for c in text.chars() {
            self.press(KeyCode::Char(c));
        }
        self
    }

    fn control(&mut self, c: char) -> Option<Act> {
        let key = KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
        self.view.key(key, &self.round, 5)
    }

    /// The place of the selected row.
    fn at(&self) -> Option<usize> {
        let rows = Rows::of(&self.round, &self.view.choice);
        self.view.position(&rows)
    }

    fn rows(&self) -> Rows<'_> {
        Rows::of(&self.round, &self.view.choice)
    }

    /// The names of the shown groups, each once.
    fn groups(&self) -> Vec<&str> {
        let rows = self.rows().groups;
        let first = rows.into_iter().filter(|row| row.first);
        first.map(|row| row.row.group.name.as_str()).collect()
    }

    fn pids(&self) -> Vec<u32> {
        let rows = self.rows().processes;
        let pids = rows.iter().map(|it| it.own_pid);
        pids.collect()
    }
}

#[test]
fn arrows_select_rows_of_both_tables() {
    let mut keys = Keys::new();
    assert_eq!(keys.at(), None);
    for (key, at) in [
        (KeyCode::Down, 0),
        (KeyCode::Char('j'), 1),
        (KeyCode::PageDown, 6),
        (KeyCode::Up, 5),
        (KeyCode::Char('k'), 4),
        (KeyCode::PageUp, 0),
        (KeyCode::Up, 0),
        (KeyCode::Tab, 5),
        (KeyCode::Tab, 0),
        (KeyCode::End, 9),
        (KeyCode::Down, 9),
        (KeyCode::Home, 0),
    ] {
        assert_eq!(keys.press(key).at(), Some(at), "{key:?}");
    }
    assert_eq!(keys.press(KeyCode::Esc).at(), None);
    // Without a selection, the first key selects an end of the list.
    assert_eq!(keys.press(KeyCode::Up).at(), Some(9));
}

#[test]
fn the_selection_follows_its_item_and_survives_it() {
    let mut keys = Keys::new();
    keys.press(KeyCode::Tab).press(KeyCode::Down);
    assert_eq!(keys.at(), Some(6));
    // Another order moves the row, and the selection with it.
    keys.press(KeyCode::Char('I'));
    assert_eq!(keys.pids()[keys.at().expect("a row") - 5], 4711);
    keys.press(KeyCode::Char('I'));
    keys.round.processes.remove(1);
    assert_eq!(keys.at(), Some(6), "the row in its place");
    keys.round.processes.clear();
    assert_eq!(keys.at(), Some(4), "the last row");
    keys.round = Round::default();
    assert_eq!(keys.at(), None);
    for key in ['j', 's', 'K', 'S', 't', 'd', '.'] {
        assert_eq!(keys.press(KeyCode::Char(key)).act, None);
    }
}

#[test]
fn keys_sort_and_invert() {
    let mut keys = Keys::new();
    assert_eq!(
        keys.groups(),
        [
            "lab",
            "lab/alice",
            "lab/alice/run-4711-88",
            "lab/bob",
            "night"
        ]
    );
    keys.press(KeyCode::Char(','));
    assert_eq!(keys.view.choice.sort, Sort::Usage);
    assert_eq!(
        keys.groups(),
        [
            "lab",
            "lab/bob",
            "lab/alice",
            "lab/alice/run-4711-88",
            "night"
        ],
        "the largest first, below the parent"
    );
    keys.press(KeyCode::Char('I'));
    assert_eq!(keys.groups()[0], "night");
    keys.press(KeyCode::Char('I'))
        .press(KeyCode::F(6))
        .press(KeyCode::Char('<'));
    assert_eq!(keys.view.choice.sort, Sort::Usage);
    keys.press(KeyCode::Char(','));
    assert_eq!(keys.view.choice.sort, Sort::Pid);
    assert_eq!(keys.pids(), [4711, 4713, 4714, 4715, 4716]);
    keys.press(KeyCode::Char(','));
    // Users of equal names are in the order of their pids.
    assert_eq!(keys.pids(), [4711, 4716, 4713, 4714, 4715]);
}

#[test]
fn rows_of_equal_figures_keep_their_order() {
    let mut keys = Keys::new();
    keys.view.choice.sort = Sort::Usage;
    let before = keys.pids();
    keys.round.processes.reverse();
    assert_eq!(keys.pids(), before);
    for process in &mut keys.round.processes {
        process.on.iter_mut().for_each(|parts| parts.total = 1);
    }
    assert_eq!(keys.pids(), [4711, 4713, 4714, 4715, 4716]);
}

#[test]
fn the_filter_follows_what_is_typed() {
    let mut keys = Keys::new();
    keys.press(KeyCode::Char('/')).write("BO");
    assert_eq!(keys.groups(), ["lab", "lab/bob"], "with the group above");
    assert_eq!(keys.pids(), [4713, 4714]);
    keys.press(KeyCode::Backspace)
        .press(KeyCode::Backspace)
        .write("4f2a");
    assert_eq!(keys.pids(), [4714], "by container");
    // Letters are text here, and no keys.
    keys.press(KeyCode::Delete).write("q").press(KeyCode::Enter);
    assert_eq!((&*keys.view.choice.filter, &keys.act), ("q", &None));
    assert_eq!(keys.groups(), [""; 0]);
    // Esc leaves the line and clears the filter; Enter keeps it.
    keys.press(KeyCode::Char('/')).press(KeyCode::Esc);
    assert_eq!((&*keys.view.choice.filter, &keys.act), ("", &None));
    assert!(keys.view.question.is_none());
    assert_eq!(keys.groups().len(), 5);
    keys.press(KeyCode::Char('/'))
        .write("bo")
        .press(KeyCode::Enter);
    keys.press(KeyCode::Esc);
    assert_eq!(keys.groups().len(), 5, "also after Enter");
}

/// The pid of a selected process can belong to another process in the next round.
#[test]
fn another_process_with_the_pid_is_not_selected() {
    let mut keys = Keys::new();
    keys.press(KeyCode::Tab).press(KeyCode::Down);
    let [first, second] = [1, 2].map(|at| keys.round.processes[at].clone());
    keys.round.processes[2].pid = first.pid;
    keys.round.processes[2].own_pid = first.own_pid;
    keys.round.processes[2].group = first.group.clone();
    keys.round.processes[1] = second;
    let rows = keys.rows();
    let item = keys.view.selected.clone().expect("selected");
    assert_eq!(rows.position(&item), None);
}

#[test]
fn pasted_text_is_typed_and_never_taken_for_keys() {
    let mut keys = Keys::new();
    keys.press(KeyCode::Tab).view.paste("q\rk\r");
    assert!(keys.view.question.is_none());
    assert!(keys.view.message.contains("pasted text"));
    keys.press(KeyCode::Char('K')).view.paste("\r");
    assert!(keys.view.question.is_some());
    keys.press(KeyCode::Esc).press(KeyCode::Char('/'));
    keys.view.paste("b\u{1b}o\u{7}\nk\n");
    assert_eq!(keys.view.choice.filter, "bo", "one line, without controls");
    assert_eq!(keys.groups(), ["lab", "lab/bob"]);
    keys.view.paste(&"x".repeat(1_000_000));
    assert!(keys.view.choice.filter.len() <= 256);
}

#[test]
fn one_users_processes_are_shown_with_their_groups() {
    let mut keys = Keys::new();
    keys.press(KeyCode::Char('u'))
        .write("carol")
        .press(KeyCode::Enter);
    assert_eq!(keys.groups(), ["night"]);
    assert_eq!(keys.pids(), [4715]);
    keys.press(KeyCode::Char('u'))
        .press(KeyCode::Delete)
        .press(KeyCode::Enter);
    assert_eq!(keys.groups().len(), 5);
}

#[test]
fn keys_fold_groups() {
    let mut keys = Keys::new();
    keys.press(KeyCode::Down).press(KeyCode::Char(' '));
    assert_eq!(keys.groups(), ["lab", "night"]);
    assert_eq!(keys.rows().groups[0].name, "▸ lab (+3)");
    keys.press(KeyCode::Char('t'));
    assert_eq!(keys.groups().len(), 5);
    keys.press(KeyCode::Char('T'));
    assert_eq!(keys.groups(), ["lab", "night"]);
    keys.press(KeyCode::Char(' '));
    assert_eq!(
        keys.groups(),
        ["lab", "lab/alice", "lab/bob", "night"],
        "one level is unfolded"
    );
    keys.press(KeyCode::Char('T'));
    assert_eq!(keys.groups().len(), 5);
    assert_eq!(keys.pids().len(), 5, "processes of folded groups stay");
}

#[test]
fn one_gpu_after_the_other_is_shown() {
    let mut keys = Keys::new();
    let mut seen = Vec::new();
    for _ in 0..3 {
        keys.press(KeyCode::Char('d'));
        seen.push((keys.view.choice.gpus.clone(), keys.pids()));
    }
    let all = vec![4716, 4711, 4713, 4714, 4715];
    assert_eq!(
        seen,
        [
            (vec![id(0)], vec![4716, 4711, 4713, 4714]),
            (vec![id(1)], vec![4716, 4715]),
            (vec![], all),
        ]
    );
}

#[test]
fn a_limit_is_typed_twice() {
    let mut keys = Keys::new();
    keys.press(KeyCode::Down)
        .press(KeyCode::Char('s'))
        .write("8G")
        .press(KeyCode::Enter);
    assert_eq!(keys.act, None, "not yet");
    keys.write("8G").press(KeyCode::Enter);
    let limit = |gpu: Option<String>| Act::Limit(name("lab"), "8G".into(), gpu);
    assert_eq!(keys.act, Some(limit(None)), "the row of all GPUs");
    // Only a limit for this GPU alone counts where there is one.
    let only = Selector::Device(id(0));
    keys.round.groups[0]
        .rules
        .set(only, Key::Max, Size::Bytes(1));
    keys.press(KeyCode::Char('d'))
        .press(KeyCode::Home)
        .press(KeyCode::Char('s'))
        .write("8G")
        .press(KeyCode::Enter);
    keys.write("8G").press(KeyCode::Enter);
    assert_eq!(keys.act, Some(limit(Some(id(0).to_string()))));
}

#[test]
fn a_limit_that_was_not_confirmed_changes_nothing() {
    for answers in [
        &["8G", "80G"][..],
        &["8G", ""],
        &["", "8G"],
        &["4X", "4X"],
        &["-", "-"],
    ] {
        let mut keys = Keys::new();
        keys.press(KeyCode::Down).press(KeyCode::Char('s'));
        for answer in answers {
            // Letters such as q would end the program if no question were open.
            if keys.view.question.is_some() {
                keys.write(answer).press(KeyCode::Enter);
            }
            assert_eq!(keys.act, None, "{answers:?}");
        }
    }
    let mut keys = Keys::new();
    keys.press(KeyCode::Down)
        .press(KeyCode::Char('s'))
        .write("8G")
        .press(KeyCode::Esc);
    assert!(keys.view.question.is_none());
    keys.press(KeyCode::Char('s'))
        .write("4X")
        .press(KeyCode::Enter);
    assert!(
        keys.view.message.contains("invalid size '4X'"),
        "{}",
        keys.view.message
    );
}

#[test]
fn a_signal_is_chosen() {
    let mut keys = Keys::new();
    keys.press(KeyCode::Tab)
        .press(KeyCode::Down)
        .press(KeyCode::Char('K'));
    assert_eq!(keys.act, None);
    keys.press(KeyCode::Down).press(KeyCode::Enter);
    let signal =
        |process, signal| Some(Act::Signal(name("lab/alice/run-4711-88"), process, signal));
    let mut processes = keys.round.processes.iter().map(Who::of);
    let process = processes.find(|it| it.pid == Some(4711)).unwrap();
    assert_eq!(keys.act, signal(Some(process), libc::SIGINT));
    assert_eq!(keys.press(KeyCode::Char('K')).press(KeyCode::Esc).act, None);
    assert!(keys.view.question.is_none());
    // In the row of a group, for all of its processes.
    keys.view.selected = Some(item("lab/alice/run-4711-88"));
    keys.press(KeyCode::F(9)).press(KeyCode::Enter);
    assert_eq!(keys.act, signal(None, libc::SIGTERM));
}

#[test]
fn changes_need_a_selected_row() {
    for key in [
        KeyCode::Char('s'),
        KeyCode::Char('K'),
        KeyCode::F(9),
        KeyCode::Enter,
    ] {
        let mut keys = Keys::new();
        assert_eq!(keys.press(key).act, None);
        assert!(keys.view.question.is_none());
        assert!(keys.view.message.contains("select a row"), "{key:?}");
    }
}

#[test]
fn readonly_takes_changes_away() {
    for key in [KeyCode::Char('s'), KeyCode::Char('K'), KeyCode::Char('S')] {
        let mut keys = Keys::new();
        keys.view.readonly = true;
        keys.press(KeyCode::Down).press(key);
        assert!(keys.view.question.is_none(), "{key:?}");
        assert!(keys.view.message.contains("--readonly"), "{key:?}");
    }
}

#[test]
fn details_show_the_group_of_a_row() {
    let mut keys = Keys::new();
    keys.press(KeyCode::Tab)
        .press(KeyCode::Down)
        .press(KeyCode::Enter);
    let wanted = |seconds| {
        Some(Act::Ask(Ask::Curves(Some(Wanted {
            group: name("lab/alice/run-4711-88"),
            since: Duration::from_secs(seconds),
        }))))
    };
    assert_eq!(keys.act, wanted(600));
    assert_eq!(keys.press(KeyCode::Char(']')).act, wanted(7_200));
    assert_eq!(keys.press(KeyCode::Char('[')).act, wanted(600));
    assert_eq!(
        keys.press(KeyCode::Esc).act,
        Some(Act::Ask(Ask::Curves(None)))
    );
    assert!(matches!(keys.view.page, Page::Tables));
}

#[test]
fn help_is_a_page() {
    for key in [KeyCode::Char('?'), KeyCode::Char('h'), KeyCode::F(1)] {
        let mut keys = Keys::new();
        keys.press(key);
        assert!(matches!(keys.view.page, Page::Help), "{key:?}");
        keys.press(KeyCode::Down);
        assert_eq!(keys.view.scroll, 1);
        keys.press(KeyCode::Char('q'));
        assert!(matches!(keys.view.page, Page::Tables));
        assert_eq!(keys.act, None, "q leaves the page only");
    }
}

#[test]
fn the_users_are_a_page_of_their_own() {
    let mut keys = Keys::new();
    keys.press(KeyCode::Char('U'));
    assert!(matches!(keys.view.page, Page::Users));
    for leaves in [KeyCode::Char('U'), KeyCode::Char('q'), KeyCode::Esc] {
        keys.view.page = Page::Users;
        keys.press(leaves);
        assert!(matches!(keys.view.page, Page::Tables), "{leaves:?}");
        assert_eq!(keys.act, None, "{leaves:?} leaves the page only");
    }
}

#[test]
fn the_interval_has_steps_and_ends() {
    let mut keys = Keys::new();
    let interval = |millis| Some(Act::Ask(Ask::Interval(Duration::from_millis(millis))));
    assert_eq!(keys.press(KeyCode::Char('+')).act, interval(2_000));
    for _ in 0..9 {
        keys.press(KeyCode::Char('+'));
    }
    assert_eq!(keys.act, interval(60_000));
    for _ in 0..9 {
        keys.press(KeyCode::Char('-'));
    }
    assert_eq!(keys.act, interval(200));
}

#[test]
fn the_program_ends_stops_and_pauses() {
    let mut keys = Keys::new();
    assert_eq!(keys.press(KeyCode::Char('q')).act, Some(Act::Quit));
    assert_eq!(
        keys.press(KeyCode::Char('p')).act,
        Some(Act::Ask(Ask::Pause(true)))
    );
    assert_eq!(
        keys.press(KeyCode::Char('p')).act,
        Some(Act::Ask(Ask::Pause(false)))
    );
    assert_eq!(keys.press(KeyCode::Char('r')).act, Some(Act::Ask(Ask::Now)));
    // Also while a question is open.
    keys.press(KeyCode::Char('/'));
    assert_eq!(keys.control('c'), Some(Act::Quit));
    assert_eq!(keys.control('z'), Some(Act::Stop));
    assert_eq!(keys.control('l'), Some(Act::Redraw));
    assert_eq!(keys.control('x'), None);
}

#[test]
fn idle_groups_are_shown_on_demand() {
    let mut keys = Keys::new();
    let mut idle = sample::group("idle", vec![sample::usage(0, 0, Some(5))]);
    idle.processes = Some(0);
    keys.round.groups.push(idle);
    assert_eq!((keys.groups().len(), keys.rows().idle), (5, 1));
    keys.press(KeyCode::Char('i'));
    assert_eq!((keys.groups().len(), keys.rows().idle), (6, 0));
    keys.press(KeyCode::Char('i'))
        .press(KeyCode::Char('/'))
        .write("idl");
    assert_eq!(keys.groups(), ["idle"], "a filter finds them");
}

#[test]
fn what_is_suspended_is_resumed_and_the_rest_suspended() {
    let mut keys = Keys::new();
    for (pid, moved) in [(4714, "resume"), (4713, "suspend")] {
        let its = |it: &&Process| it.pid == Some(pid);
        let process = keys
            .round
            .processes
            .iter()
            .find(its)
            .cloned()
            .expect("a process");
        keys.view.selected = Some(Item {
            group: name("lab/bob"),
            gpu: Some(id(0)),
            process: Some(Who::of(&process)),
        });
        keys.press(KeyCode::Char('S'));
        assert_eq!(keys.act, None, "not yet");
        keys.press(KeyCode::Enter);
        let who = Some(Who::of(&process));
        assert_eq!(keys.act, Some(Act::Move(name("lab/bob"), who, moved)));
        assert_eq!(keys.press(KeyCode::Char('S')).press(KeyCode::Esc).act, None);
    }
    keys.view.selected = Some(item("lab"));
    keys.press(KeyCode::Char('S')).press(KeyCode::Enter);
    assert_eq!(keys.act, Some(Act::Move(name("lab"), None, "resume")));
}

#[test]
fn the_mouse_selects_opens_and_scrolls() {
    let mut keys = Keys::new();
    let (_, seen) = sample::drawn(
        &sample::scene(&keys.round, &keys.view),
        (80, 24),
        true,
        false,
    );
    let mouse = |kind, row| MouseEvent {
        kind,
        column: 3,
        row,
        modifiers: KeyModifiers::NONE,
    };
    let act = |keys: &mut Keys, kind, row| keys.view.mouse(mouse(kind, row), &keys.round, &seen);
    let click = MouseEventKind::Down(MouseButton::Left);
    let [groups, processes] = seen.tables.map(|area| area.y);
    assert_eq!(act(&mut keys, click, groups), None, "the heads");
    assert_eq!(keys.at(), None);
    act(&mut keys, click, groups + 2);
    assert_eq!(keys.at(), Some(1));
    act(&mut keys, MouseEventKind::ScrollDown, 0);
    assert_eq!(keys.at(), Some(4));
    act(&mut keys, MouseEventKind::ScrollUp, 0);
    act(&mut keys, click, processes + 1);
    assert_eq!(keys.at(), Some(5), "the first process");
    assert!(
        act(&mut keys, click, processes + 1).is_some(),
        "a second click opens the row"
    );
    assert!(matches!(keys.view.page, Page::Details(_)));
    keys.press(KeyCode::Esc).press(KeyCode::Char('K'));
    act(&mut keys, click, groups + 1);
    assert_eq!(keys.at(), Some(5), "not while a question is open");
}
