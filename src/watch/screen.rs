//! A terminal's screen that is redrawn in place, and given back as it was when gpulimit ends.

use crate::failure::Failure;
use crate::{output, terminal};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::ffi::c_int;
use std::fmt::Write;
use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// The second screen of the terminal without a cursor, in which long lines are cut.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
const CLEAR: &str = "\x1b[2J";

/// How long a signal waits for a terminal that takes no output, before it ends this process.
const PATIENCE: Duration = Duration::from_secs(1);

/// The terminal at standard output, with lines that are redrawn in place.
pub struct Screen {
    state: Arc<Mutex<State>>,
    /// Gets a message if the lines have to be drawn anew.
    woken: Receiver<()>,
}

impl Screen {
    /// Returns whether standard output is a terminal that can move its cursor.
    pub fn is_possible() -> bool {
        terminal::has_cursor(&io::stdout())
    }

    /// Takes the terminal over, until this value is dropped or a signal ends this process.
    pub fn open() -> Result<Self, Failure> {
        let handled = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH];
        let cannot = |error| Failure::new(format_args!("cannot handle signals: {error}"));
        let signals = Signals::new(handled).map_err(cannot)?;
        let state = Arc::new(Mutex::new(State {
            before: tcgetattr(io::stdout()).ok(),
            drawn: Vec::new(),
        }));
        lock(&state, State::enter);
        let (wake, woken) = mpsc::channel();
        let shared = Arc::clone(&state);
        thread::Builder::new()
            .spawn(move || serve(signals, &shared, &wake))
            .map_err(cannot)?;
        Ok(Self { state, woken })
    }

    /// Shows these lines in the place of the last ones, cut to the terminal's width. The last row
    /// says how many lines the terminal is too small for.
    pub fn draw(&mut self, lines: Vec<String>) -> Result<(), Failure> {
        let out = io::stdout();
        let height = terminal::height(&out).unwrap_or(usize::MAX);
        let width = terminal::width(&out).unwrap_or(usize::MAX);
        let lines = cut(lines, height, width);
        lock(&self.state, |state| {
            let changes = changes(&state.drawn, &lines);
            state.drawn = lines;
            output::escaped(&changes).map(drop)
        })
    }

    /// Waits for this time, or until the lines have to be drawn anew.
    pub fn wait(&self, time: Duration) {
        if self.woken.recv_timeout(time).is_ok() {
            // One round answers all messages, such as those of a window that is being resized.
            while self.woken.try_recv().is_ok() {}
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        lock(&self.state, State::leave);
    }
}

/// What the terminal shows.
struct State {
    /// The settings of the terminal before this program changed them.
    before: Option<Termios>,
    /// The lines on the screen. Empty if the screen has to be drawn anew.
    drawn: Vec<String>,
}

impl State {
    /// Changes to the second screen, without the echo of keys.
    fn enter(&mut self) {
        // This call stops a process in the background, so it comes before the first output.
        if let Some(mut silent) = self.before.clone() {
            silent.local_modes.remove(LocalModes::ECHO);
            let _ = tcsetattr(io::stdout(), OptionalActions::Now, &silent);
        }
        self.drawn.clear();
        // If writing fails, drawing fails, too, and says why.
        let _ = output::escaped(ENTER);
    }

    /// Gives the terminal back. Keys that were pressed meanwhile are forgotten.
    fn leave(&mut self) {
        let _ = output::escaped(LEAVE);
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stdout(), OptionalActions::Flush, before);
        }
    }
}

fn lock<T>(state: &Mutex<State>, work: impl FnOnce(&mut State) -> T) -> T {
    work(&mut state.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Handles signals in a thread of its own, because reading figures can take a while.
fn serve(mut signals: Signals, state: &Mutex<State>, wake: &Sender<()>) {
    for signal in signals.forever() {
        match signal {
            SIGWINCH => lock(state, |state| state.drawn.clear()),
            SIGCONT => lock(state, State::enter),
            SIGTSTP => lock(state, |state| {
                state.leave();
                let _ = emulate_default_handler(signal);
                state.enter();
            }),
            _ => end(signal, state),
        }
        // The main thread may have ended its last round already.
        let _ = wake.send(());
    }
}

/// Gives the terminal back, and ends this process by the signal.
fn end(signal: c_int, state: &Mutex<State>) {
    thread::spawn(move || {
        thread::sleep(PATIENCE);
        let _ = emulate_default_handler(signal);
    });
    lock(state, |state| {
        state.leave();
        let _ = emulate_default_handler(signal);
    });
}

/// Cuts lines to the size of the terminal. The last line then says how many are left out.
fn cut(mut lines: Vec<String>, height: usize, width: usize) -> Vec<String> {
    if lines.len() > height {
        let shown = height.saturating_sub(1);
        let hidden = lines.len() - shown;
        lines.truncate(shown);
        lines.push(format!("{hidden} more lines: the terminal is too small"));
    }
    // The terminal would write the end of a longer line over its last column.
    for line in &mut lines {
        *line = terminal::cut(line, width);
    }
    lines
}

/// Returns the escape sequences that turn the lines on the screen into others. Rows that stay the
/// same are left alone, so nothing flickers.
fn changes(before: &[String], after: &[String]) -> String {
    let mut out = String::new();
    // Writing to a `String` never fails.
    if before.is_empty() {
        out.push_str(CLEAR);
    } else if before.len() > after.len() {
        let _ = write!(out, "\x1b[{};1H\x1b[J", after.len() + 1);
    }
    for (at, line) in after.iter().enumerate() {
        if before.get(at) != Some(line) {
            let _ = write!(out, "\x1b[{};1H\x1b[K{line}", at + 1);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn only_changed_rows_are_written() {
        let before = lines(&["time 1", "head", "lab 1", "gone"]);
        let after = lines(&["time 2", "head", "lab 1"]);
        assert_eq!(
            changes(&before, &after),
            "\x1b[4;1H\x1b[J\x1b[1;1H\x1b[Ktime 2"
        );
        assert_eq!(changes(&after, &after), "");
        // The last row of the screen stays when all rows are drawn anew.
        assert_eq!(changes(&[], &lines(&["a"])), "\x1b[2J\x1b[1;1H\x1b[Ka");
    }

    #[test]
    fn lines_are_cut_to_the_size_and_counted() {
        let all = lines(&["a", "b", "c", "d"]);
        assert_eq!(cut(all.clone(), 4, 80), all);
        let small = cut(all.clone(), 3, 80);
        assert_eq!(small, ["a", "b", "2 more lines: the terminal is too small"]);
        assert_eq!(cut(all, 1, 7), ["4 more…"]);
    }
}
