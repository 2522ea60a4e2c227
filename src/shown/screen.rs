//! The terminal as `top` takes it and gives it back: after panics, signals and Ctrl-Z, too.
//!
//! The text on this screen was escaped when a round was made.

mod job;

use super::terminal;
use crate::words::failure::Failure;
use ratatui::backend::CrosstermBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{
    DisableBracketedPaste, DisableMouseCapture, EnableBracketedPaste, EnableMouseCapture,
};
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{event, execute};
use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};
use signal_hook::consts::signal::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::io::{self, BufWriter, Stdout};
use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Whether the terminal is in the state of the screen.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The screen. The terminal gets its former state back when this value is dropped.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
}

impl Screen {
    /// Takes the terminal.
    pub fn open() -> Result<Self, Failure> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = panic::take_hook();
            // The message of a panic must be on the ordinary screen.
            panic::set_hook(Box::new(move |about| {
                restore();
                before(about);
            }));
        });
        Ok(Self { terminal: take()? })
    }

    /// Draws a frame: `draw` gets an empty buffer of the terminal's present size.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Buffer)) -> Result<(), Failure> {
        let area = area();
        if area != self.terminal.get_frame().area() {
            self.terminal.resize(area).map_err(lost)?;
        }
        let drawn = self.terminal.draw(|frame| draw(frame.buffer_mut()));
        drawn.map(drop).map_err(lost)
    }

    /// Returns whether the terminal has its former state. A panic of any thread restores it.
    pub fn is_lost() -> bool {
        !TAKEN.load(Ordering::SeqCst)
    }

    /// Takes the terminal again, if it was given back, and draws all of the next frame.
    pub fn reopen(&mut self) -> Result<(), Failure> {
        self.terminal = take()?;
        Ok(())
    }

    /// Gives the terminal back and stops the job, as Ctrl-Z does in other programs. Returns when
    /// the job goes on; at once if no shell could continue it.
    pub fn stop(&mut self) -> Result<(), Failure> {
        if !job::has_shell() {
            return Ok(());
        }
        restore();
        job::stop().map_err(|error| Failure::new(format_args!("cannot stop: {error}")))?;
        self.reopen()
    }

    /// Gives the terminal back and does what a signal does by default: ends or stops this process.
    /// Returns when the process goes on.
    pub fn obey(&mut self, signal: i32) -> Result<(), Failure> {
        if signal == SIGTSTP && !job::has_shell() {
            return Ok(());
        }
        restore();
        emulate_default_handler(signal)
            .map_err(|error| Failure::new(format_args!("cannot handle signal {signal}: {error}")))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

fn lost(error: io::Error) -> Failure {
    Failure::new(format_args!("cannot draw on the terminal: {error}"))
}

fn take() -> Result<Terminal<CrosstermBackend<BufWriter<Stdout>>>, Failure> {
    /// More than a whole screen, so that a frame is written in few pieces.
    const BUFFER: usize = 1 << 16;
    if !Screen::is_lost() {
        // A shell changes the settings of the terminal while this process is stopped by SIGSTOP,
        // and crossterm sets them only once.
        disable_raw_mode().map_err(lost)?;
    }
    enable_raw_mode().map_err(lost)?;
    TAKEN.store(true, Ordering::SeqCst);
    let mut out = BufWriter::with_capacity(BUFFER, io::stdout());
    execute!(
        out,
        EnterAlternateScreen,
        EnableBracketedPaste,
        EnableMouseCapture,
        Hide,
        Clear(ClearType::All)
    )
    .map_err(lost)?;
    let options = TerminalOptions {
        viewport: Viewport::Fixed(area()),
    };
    Terminal::with_options(CrosstermBackend::new(out), options).map_err(lost)
}

/// Returns the area of the terminal. A terminal that says no size, as a serial line, gets 80
/// columns or 24 rows.
fn area() -> Rect {
    let out = io::stdout();
    let cells = |known: Option<usize>, usual| known.map_or(Ok(usual), u16::try_from);
    let width = cells(terminal::width(&out), 80).unwrap_or(u16::MAX);
    let height = cells(terminal::height(&out), 24).unwrap_or(u16::MAX);
    Rect::new(0, 0, width, height)
}

/// Gives the terminal its former state. Errors do not matter: the terminal may be closed.
fn restore() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        let _ = execute!(
            io::stdout(),
            DisableMouseCapture,
            DisableBracketedPaste,
            LeaveAlternateScreen,
            Show
        );
        let _ = disable_raw_mode();
    }
}

/// Starts a thread that passes signals to `tell`.
pub fn watch_signals(tell: impl Fn(i32) + Send + 'static) -> Result<(), Failure> {
    /// How long the screen has time to end by itself. It may be blocked in a write.
    const PATIENCE: Duration = Duration::from_secs(2);
    let ends = [SIGTERM, SIGHUP, SIGINT, SIGQUIT];
    let failed = |error: io::Error| Failure::new(format_args!("cannot watch for signals: {error}"));
    let mut signals = Signals::new(ends.into_iter().chain([SIGTSTP, SIGCONT])).map_err(failed)?;
    let watch = move || {
        for signal in signals.forever() {
            tell(signal);
            if ends.contains(&signal) {
                thread::sleep(PATIENCE);
                restore();
                let _ = emulate_default_handler(signal);
            }
        }
    };
    spawn("signals", watch)
}

/// Starts a thread that passes what the user types, and new sizes of the terminal, to `tell`, until
/// the input ends.
pub fn watch_input(tell: impl Fn(Option<event::Event>) + Send + 'static) -> Result<(), Failure> {
    spawn("input", move || {
        while let Ok(event) = event::read() {
            tell(Some(event));
        }
        tell(None);
    })
}

/// Starts a thread.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let thread = thread::Builder::new().name(name.into()).spawn(work);
    thread
        .map(drop)
        .map_err(|error| Failure::new(format_args!("cannot start a thread: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::env;
    use std::process::Command;

    #[test]
    fn a_panic_restores_the_terminal_before_its_message() {
        let own = env::current_exe().expect("a path");
        let test = "shown::screen::tests::panics_on_a_screen";
        let script = format!(
            "stty cols 80 rows 24; echo before=$(stty -g); \
             {} --exact {test} --ignored --nocapture; echo after=$(stty -g)",
            own.display()
        );
        let mut command = Command::new("script");
        let output = command.args(["-qec", &script, "/dev/null"]).output();
        let output = output.expect("script, of util-linux");
        let seen = String::from_utf8_lossy(&output.stdout).replace('\r', "");
        let value = |name| {
            let mut lines = seen.lines();
            lines
                .find_map(|line| line.strip_prefix(name))
                .map(str::to_owned)
        };
        assert_eq!(value("before="), value("after="), "{seen:?}");
        let (_, rest) = seen.split_once("\u{1b}[?1049h").expect("a screen");
        let (_, rest) = rest.split_once("\u{1b}[?1049l").expect("it was left");
        assert!(rest.contains("in a frame"), "{seen:?}");
    }

    #[test]
    #[ignore = "a part of another test: needs a terminal of its own"]
    fn panics_on_a_screen() {
        let mut screen = Screen::open().expect("a terminal");
        screen.draw(|_| panic!("in a frame")).expect("drawn");
    }
}
